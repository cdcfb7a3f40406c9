#include "analysis/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "analysis/trace/safetensors.h"
#include "engine/support/input_json.h"
#include "kernels/base/bits.h"
#include "kernels/base/dtype.h"
#include "kernels/base/printable.h"

namespace sparsesync {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kHeaderFile = "trace.json";
constexpr const char* kMend = "make the trace again";
constexpr Index kMaxRowsOfI32 = Index{1} << 31U;

std::string indices_name(const TensorSpec& tensor) {
  return tensor.name + ".indices";
}

std::string values_name(const TensorSpec& tensor) {
  return tensor.name + ".values";
}

DType read_dtype(const InputJson& json) {
  const std::string name = json.text();
  try {
    return dtype_named(name);
  } catch (const InputError& unknown) {
    json.refuse(fmt::format("cannot be used: {}", shortened(unknown.what())));
  }
}

TraceHeader read_header(const fs::path& path) {
  const auto no_trace = [&](const std::string& why) {
    throw InputError(fmt::format("{} is not a trace: {}; make one with 'sparsesync trace'",
                                 in_quotes(path.native()), why));
  };
  std::error_code error;
  if (!fs::exists(path, error)) no_trace("it does not exist");
  if (!fs::is_directory(path, error)) no_trace("it is not a folder");
  if (!fs::exists(path / kHeaderFile, error)) no_trace(fmt::format("it has no {}", kHeaderFile));
  const InputFile file = InputFile::read(path / kHeaderFile);
  const auto json = InputJson::parse(file.text(), InputPlace(path / kHeaderFile, kMend));
  if (const int format = json.member("format").whole<int>(); format != 1) {
    json.member("format").refuse(fmt::format("is {}, but this program reads only 1", format));
  }
  TraceHeader header;
  for (const InputJson& tensor : json.member("tensors").list()) {
    header.tensors.push_back({tensor.member("name").text(), tensor.member("rows").whole<Index>(1),
                              tensor.member("width").whole<Index>(1),
                              read_dtype(tensor.member("dtype"))});
  }
  header.workers = json.member("workers").whole(1, kMaxTraceWorkers);
  header.steps = json.member("steps").whole<int>(1);
  header.source = json.member("source").text();
  header.seed = json.member("seed").whole<std::uint64_t>();
  return checked_header(std::move(header), in_quotes((path / kHeaderFile).native()));
}

/// Returns whether a TraceWriter may have written this path in its folder.
bool is_in_traces(const fs::path& path, bool is_folder) {
  return !is_folder && (path == kHeaderFile || is_trace_file_name(path.native()));
}

/// Describes the first index outside [0, rows); nothing if there is none.
std::optional<std::string> index_outside(std::span<const Index> indices, Index rows) {
  const auto found = std::find_if(indices.begin(), indices.end(),
                                  [&](Index index) { return index < 0 || index >= rows; });
  if (found == indices.end()) return std::nullopt;
  return fmt::format("has index {} at position {}, outside the tensor's {} rows", *found,
                     found - indices.begin(), rows);
}

template <typename Integer>
std::vector<Index> decode_indices(std::span<const std::byte> bytes) {
  std::vector<Integer> raw(bytes.size() / sizeof(Integer));
  if (!raw.empty()) std::memcpy(raw.data(), bytes.data(), bytes.size());
  return {raw.begin(), raw.end()};
}

std::vector<Index> read_indices(const SafetensorsEntry& entry, const TensorSpec& tensor,
                                const InputPlace& place) {
  if (entry.shape.size() != 1) {
    place.refuse(fmt::format("has {} dimensions, not one", entry.shape.size()));
  }
  if (entry.dtype != "I64" && entry.dtype != "I32") {
    place.refuse(fmt::format("has dtype {}, not I64 or I32", shortened(entry.dtype)));
  }
  std::vector<Index> indices = entry.dtype == "I64" ? decode_indices<std::int64_t>(entry.bytes)
                                                    : decode_indices<std::int32_t>(entry.bytes);
  if (const auto wrong = index_outside(indices, tensor.rows)) place.refuse(*wrong);
  return indices;
}

void check_values(const SafetensorsEntry& entry, const TensorSpec& tensor, std::size_t nnz,
                  const InputPlace& place) {
  if (entry.dtype != safetensors_name(tensor.dtype)) {
    place.refuse(fmt::format("has dtype {}, but {} has {}", shortened(entry.dtype), kHeaderFile,
                             name_of(tensor.dtype)));
  }
  if (entry.shape != std::vector<Index>{static_cast<Index>(nnz), tensor.width}) {
    place.refuse(fmt::format("does not have the shape [{}, {}] that indices and width require", nnz,
                             tensor.width));
  }
}

/// Verifies that a trace has a worker and a step (ContractError otherwise).
void expect_file(const TraceHeader& header, Rank worker, int step) {
  SPARSESYNC_EXPECT(worker.value, >=, 0);
  SPARSESYNC_EXPECT(worker.value, <, header.workers);
  SPARSESYNC_EXPECT(step, >=, 0);
  SPARSESYNC_EXPECT(step, <, header.steps);
}

template <typename Word>
void fill_values(std::span<const Index> rows, Index width, std::uint64_t key,
                 const std::array<Word, 4>& numbers, std::byte* out) {
  constexpr Index kColumnsOfHash = 32;  // two bits each
  for (const Index row : rows) {
    const std::uint64_t row_key = mix64(key + static_cast<std::uint64_t>(row));
    for (Index begin = 0; begin < width; begin += kColumnsOfHash) {
      std::uint64_t hash = mix64(row_key + static_cast<std::uint64_t>(begin / kColumnsOfHash));
      const Index end = std::min(width, begin + kColumnsOfHash);
      for (Index column = begin; column < end; ++column, hash >>= 2U, out += sizeof(Word)) {
        std::memcpy(out, &numbers[hash & 3U], sizeof(Word));
      }
    }
  }
}

}  // namespace

TraceHeader checked_header(TraceHeader header, const std::string& where) {
  const auto fail = [&](const std::string& what) { throw InputError(where + ": " + what); };
  if (header.tensors.empty()) fail("a trace must have one tensor or more");
  std::set<std::string> names;
  for (const TensorSpec& tensor : header.tensors) {
    const std::string shown = "tensor " + in_quotes(tensor.name);
    if (tensor.name.empty() || tensor.name.find('/') != std::string::npos) {
      fail(shown + ": a name must not be empty or contain '/'");
    }
    if (!names.insert(tensor.name).second) fail(shown + " appears twice: names must be distinct");
    if (tensor.rows < 1) fail(fmt::format("{}: {} rows: give 1 or more", shown, tensor.rows));
    if (tensor.width < 1) {
      fail(fmt::format("{}: a width of {}: give 1 or more", shown, tensor.width));
    }
    if (!array_bytes(std::array{tensor.rows, tensor.width},
                     element_bytes(sum_dtype(tensor.dtype)))) {
      fail(fmt::format("{}: {} rows of width {} have more bytes than can be counted", shown,
                       tensor.rows, tensor.width));
    }
  }
  // The arrays of different tensors must not share a name, as those of "a" and "a.indices" would.
  for (const TensorSpec& tensor : header.tensors) {
    for (const std::string& part : {indices_name(tensor), values_name(tensor)}) {
      if (names.contains(part)) {
        fail(fmt::format("tensor {} has the name of another tensor's array", in_quotes(part)));
      }
    }
  }
  if (header.workers < 1 || header.workers > kMaxTraceWorkers) {
    fail(fmt::format("{} workers: give a number from 1 to {}", header.workers, kMaxTraceWorkers));
  }
  if (header.steps < 1) fail(fmt::format("{} steps: give 1 or more", header.steps));
  if (std::int64_t{header.workers} * header.steps > kMaxTraceFiles) {
    fail(fmt::format("{} workers × {} steps: a trace has at most {} files", header.workers,
                     header.steps, kMaxTraceFiles));
  }
  return header;
}

std::string trace_file_name(Rank worker, int step) {
  return fmt::format("w{:04}.s{:04}.safetensors", worker.value, step);
}

bool is_trace_file_name(std::string_view name) {
  const auto skips = [&](std::string_view prefix) {
    if (!name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    return true;
  };
  const auto skips_number = [&] {
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    name.remove_prefix(digits);
    return digits >= 4;
  };
  return skips("w") && skips_number() && skips(".s") && skips_number() && name == ".safetensors";
}

void make_distinct(std::vector<Index>& rows) {
  if (!std::is_sorted(rows.begin(), rows.end())) std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
}

std::vector<std::byte> made_values(const TraceHeader& header, Rank worker, int step, int tensor,
                                   std::span<const Index> rows) {
  const TensorSpec& spec = header.tensors.at(static_cast<std::size_t>(tensor));
  std::uint64_t key = mix64(header.seed);
  for (const int part : {worker.value, step, tensor})
    key = mix64(key + static_cast<std::uint64_t>(part));
  SPARSESYNC_EXPECT(std::ssize(rows), <=, spec.rows);
  std::vector<std::byte> values(rows.size() * static_cast<std::size_t>(spec.row_bytes()));
  for_dtype(spec.dtype, [&]<typename Value>(Value) {
    std::array<Value, 4> numbers{};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = ValueTraits<Value>::narrow(static_cast<typename ValueTraits<Value>::Sum>(i + 1));
    }
    fill_values(rows, spec.width, key, numbers, values.data());
  });
  return values;
}

Trace Trace::open(const fs::path& path) {
  Trace trace;
  trace.path_ = path;
  trace.header_ = read_header(path);
  for (int step = 0; step < trace.header_.steps; ++step) {
    for (const Rank worker : Ranks(trace.header_.workers)) {
      std::error_code error;
      if (!fs::is_regular_file(path / trace_file_name(worker, step), error)) {
        InputPlace(path, kMend)
            .refuse(fmt::format("has no file {} (worker {} at step {})",
                                trace_file_name(worker, step), worker.value, step));
      }
    }
  }
  const auto first = SafetensorsFile::open(path / trace_file_name(Rank{0}, 0));
  trace.has_values_ = first.find(values_name(trace.header_.tensors[0])) != nullptr;
  return trace;
}

std::vector<TracePart> Trace::load(Rank worker, int step) const {
  return read(worker, step, true);
}

std::vector<TracePart> Trace::load_indices(Rank worker, int step) const {
  return read(worker, step, false);
}

std::vector<TracePart> Trace::read(Rank worker, int step, bool want_values) const {
  expect_file(header_, worker, step);
  const fs::path path = path_ / trace_file_name(worker, step);
  const auto file = SafetensorsFile::open(path);
  const InputPlace place(path, kMend);
  std::set<std::string> known;
  std::vector<TracePart> parts;
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    const TensorSpec& tensor = header_.tensors[i];
    known.insert({indices_name(tensor), values_name(tensor)});
    const InputPlace indices_place = place.at(in_quotes(indices_name(tensor)));
    const InputPlace values_place = place.at(in_quotes(values_name(tensor)));
    const SafetensorsEntry* indices = file.find(indices_name(tensor));
    const SafetensorsEntry* values = file.find(values_name(tensor));
    if (indices == nullptr) indices_place.refuse("is missing");
    if ((values != nullptr) != has_values_) {
      values_place.refuse(fmt::format("is {}, unlike in the trace's first file",
                                      values != nullptr ? "present" : "missing"));
    }
    TracePart& part = parts.emplace_back();
    part.indices = read_indices(*indices, tensor, indices_place);
    if (values != nullptr) {
      check_values(*values, tensor, part.indices.size(), values_place);
      if (want_values) part.values.assign(values->bytes.begin(), values->bytes.end());
    } else {
      make_distinct(part.indices);
      if (want_values) {
        part.values = made_values(header_, worker, step, static_cast<int>(i), part.indices);
      }
    }
  }
  for (const SafetensorsEntry& entry : file.tensors()) {
    if (!known.contains(entry.name)) {
      place.at(in_quotes(entry.name))
          .refuse(fmt::format("belongs to no tensor of {}", kHeaderFile));
    }
  }
  return parts;
}

TraceWriter::TraceWriter(const fs::path& path, TraceHeader header, bool force)
    : header_(checked_header(std::move(header), "the trace " + in_quotes(path.native()))),
      directory_(path, force, {kHeaderFile, is_in_traces}),
      written_(static_cast<std::size_t>(header_.workers) *
               static_cast<std::size_t>(header_.steps)) {}

void TraceWriter::write(Rank worker, int step, std::span<const TracePart> parts) {
  expect_file(header_, worker, step);
  SPARSESYNC_EXPECT(parts.size(), ==, header_.tensors.size());
  const std::size_t number =
      static_cast<std::size_t>(step) * static_cast<std::size_t>(header_.workers) + worker.index();
  SPARSESYNC_EXPECT(static_cast<bool>(written_[number]), ==, false);

  // A part without rows has no bytes of values in any case: the parts with rows decide whether the
  // trace has values.
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto nnz = std::ssize(parts[i].indices);
    if (nnz > 0 && !values_) values_ = !parts[i].values.empty();
    SPARSESYNC_EXPECT(std::ssize(parts[i].values), ==,
                      values_.value_or(false) ? nnz * header_.tensors[i].row_bytes() : Index{0});
  }
  if (values_) {
    write_file(worker, step, parts);
  } else {
    waiting_.emplace_back(worker, step);
  }
  written_[number] = true;
}

void TraceWriter::write_file(Rank worker, int step, std::span<const TracePart> parts) {
  std::vector<std::vector<std::int32_t>> narrow(parts.size());
  std::vector<SafetensorsEntry> entries;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorSpec& tensor = header_.tensors[i];
    const TracePart& part = parts[i];
    const auto nnz = std::ssize(part.indices);
    if (const auto wrong = index_outside(part.indices, tensor.rows)) {
      throw InputError(fmt::format("worker {} at step {}: tensor {} {}", worker.value, step,
                                   in_quotes(tensor.name), *wrong));
    }
    SafetensorsEntry entry{indices_name(tensor), "I64", {nnz}, {}};
    if (tensor.rows <= kMaxRowsOfI32) {
      narrow[i].reserve(part.indices.size());
      for (const Index index : part.indices) narrow[i].push_back(static_cast<std::int32_t>(index));
      entry.dtype = "I32";
      entry.bytes = std::as_bytes(std::span(narrow[i]));
    } else {
      entry.bytes = std::as_bytes(std::span(part.indices));
    }
    entries.push_back(std::move(entry));
    if (values_.value_or(false)) {
      entries.push_back(
          {values_name(tensor), safetensors_name(tensor.dtype), {nnz, tensor.width}, part.values});
    }
  }
  OutputFile file(directory_.staging() / trace_file_name(worker, step), false);
  write_safetensors(file, entries);
  file.commit();
}

void TraceWriter::commit() {
  SPARSESYNC_EXPECT(std::count(written_.begin(), written_.end(), false), ==, std::int64_t{0});
  const std::vector<TracePart> nothing(header_.tensors.size());
  for (const auto& [worker, step] : waiting_) write_file(worker, step, nothing);
  Json json = {{"format", 1},
               {"workers", header_.workers},
               {"steps", header_.steps},
               {"source", header_.source},
               {"seed", header_.seed},
               {"tensors", Json::array()}};
  for (const TensorSpec& tensor : header_.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"rows", tensor.rows},
                               {"width", tensor.width},
                               {"dtype", name_of(tensor.dtype)}});
  }
  OutputFile file(directory_.staging() / kHeaderFile, false);
  // Paths in `source` need not be UTF-8. Invalid bytes are replaced to keep the file valid JSON.
  file.write(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  file.commit();
  directory_.commit();
}

std::vector<OwnedIndexSets> tensor_sets(const Trace& trace, int step) {
  std::vector<OwnedIndexSets> of_tensors(trace.header().tensors.size());
  for (const Rank worker : Ranks(trace.header().workers)) {
    std::vector<TracePart> parts = trace.load_indices(worker, step);
    for (std::size_t tensor = 0; tensor < parts.size(); ++tensor) {
      std::vector<Index>& rows = parts[tensor].indices;
      make_distinct(rows);
      of_tensors[tensor].push_back(std::move(rows));
    }
  }
  return of_tensors;
}

std::vector<OwnedIndexSets> space_sets(const std::vector<OwnedIndexSets>& of_tensors,
                                       std::span<const RowSpace> spaces) {
  std::vector<OwnedIndexSets> of_spaces;
  for (const RowSpace& space : spaces) {
    OwnedIndexSets& sets = of_spaces.emplace_back(of_tensors.front().size());
    for (const RowSpace::Member& member : space.members) {
      for (std::size_t worker = 0; worker < sets.size(); ++worker) {
        for (const Index row : of_tensors[member.tensor][worker]) {
          sets[worker].push_back(row + member.first_row);
        }
      }
    }
  }
  return of_spaces;
}

}  // namespace sparsesync
