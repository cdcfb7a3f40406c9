// Traces: which rows each worker touched at each step, in a folder (design: "Trace").
#include "analysis/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "analysis/input_file.h"
#include "analysis/quote.h"
#include "analysis/safetensors.h"
#include "kernels/bits.h"

namespace sparsesync {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kHeaderFile = "trace.json";
constexpr const char* kMend = "; make the trace anew";
constexpr Index kMaxRowsOfI32 = Index{1} << 31U;

/// "the trace 'T': trace.json"
std::string header_place(const fs::path& path) {
  return shown_path(path / kHeaderFile);
}

const Json& member(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) throw InputError(fmt::format("{} is not a JSON object{}", where, kMend));
  const auto found = object.find(key);
  if (found == object.end()) throw InputError(fmt::format("{} has no '{}'{}", where, key, kMend));
  return *found;
}

std::int64_t whole_member(const Json& object, const char* key, std::int64_t minimum,
                          std::int64_t maximum, const std::string& where) {
  const Json& value = member(object, key, where);
  const auto number = whole_number(value, minimum, maximum);
  if (!number) {
    throw InputError(fmt::format("{}: '{}' is {}, not a whole number from {} to {}{}", where, key,
                                 printable(value.dump(-1, ' ', true)), minimum, maximum, kMend));
  }
  return *number;
}

std::string text_member(const Json& object, const char* key, const std::string& where) {
  const Json& value = member(object, key, where);
  if (!value.is_string()) {
    throw InputError(fmt::format("{}: '{}' is not a text{}", where, key, kMend));
  }
  return value.get<std::string>();
}

TensorSpec read_tensor(const Json& object, const std::string& where) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  TensorSpec tensor;
  tensor.name = text_member(object, "name", where);
  tensor.rows = whole_member(object, "rows", 1, kMax, where);
  tensor.width = whole_member(object, "width", 1, kMax, where);
  try {
    tensor.dtype = dtype_named(text_member(object, "dtype", where));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", where, printable(error.what())));
  }
  return tensor;
}

TraceHeader read_header(const fs::path& path) {
  const std::string where = header_place(path);
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw InputError(
        fmt::format("{} is not a trace: {}; make one with 'sparsesync trace'", shown_path(path),
                    fs::exists(path, error) ? "it is not a folder" : "it does not exist"));
  }
  if (!fs::exists(path / kHeaderFile, error)) {
    throw InputError(
        fmt::format("{} is not a trace: it has no {}; make one with 'sparsesync trace'",
                    shown_path(path), kHeaderFile));
  }
  const FileBytes file = FileBytes::read(path / kHeaderFile);
  const Json json = parse_json(file.text(), where);
  const Json& format = member(json, "format", where);
  if (whole_number(format) != std::int64_t{1}) {
    throw InputError(fmt::format("{}: format {} is unknown: this program reads format 1", where,
                                 printable(format.dump(-1, ' ', true))));
  }
  TraceHeader header;
  const Json& tensors = member(json, "tensors", where);
  if (!tensors.is_array()) {
    throw InputError(fmt::format("{}: 'tensors' is not a list{}", where, kMend));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    header.tensors.push_back(read_tensor(tensors[i], fmt::format("{}: tensor {}", where, i)));
  }
  header.workers = static_cast<int>(whole_member(json, "workers", 1, kMaxTraceWorkers, where));
  header.steps =
      static_cast<int>(whole_member(json, "steps", 1, std::numeric_limits<int>::max(), where));
  header.source = text_member(json, "source", where);
  const Json& seed = member(json, "seed", where);
  if (!seed.is_number_unsigned()) {
    throw InputError(
        fmt::format("{}: 'seed' is not a whole number from 0 to 2^64 - 1{}", where, kMend));
  }
  header.seed = seed.get<std::uint64_t>();
  check_trace_header(header, where);
  return header;
}

template <typename Integer>
std::vector<Index> decode_indices(const SafetensorsEntry& entry, Index rows,
                                  const std::string& where) {
  std::vector<Integer> raw(entry.bytes.size() / sizeof(Integer));
  if (!raw.empty()) std::memcpy(raw.data(), entry.bytes.data(), entry.bytes.size());
  std::vector<Index> indices(raw.begin(), raw.end());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= rows) {
      throw InputError(fmt::format("{}: index {} at position {} is outside the tensor's {} rows{}",
                                   where, indices[i], i, rows, kMend));
    }
  }
  return indices;
}

std::vector<Index> read_indices(const SafetensorsEntry& entry, Index rows,
                                const std::string& where) {
  if (entry.shape.size() != 1) {
    throw InputError(
        fmt::format("{} has {} dimensions, not one{}", where, entry.shape.size(), kMend));
  }
  if (entry.dtype == "I64") return decode_indices<std::int64_t>(entry, rows, where);
  if (entry.dtype == "I32") return decode_indices<std::int32_t>(entry, rows, where);
  throw InputError(
      fmt::format("{} has dtype {}, not I64 or I32{}", where, printable(entry.dtype), kMend));
}

void check_values(const SafetensorsEntry& entry, const TensorSpec& tensor, std::size_t nnz,
                  const std::string& where) {
  if (entry.dtype != safetensors_name(tensor.dtype)) {
    throw InputError(fmt::format("{} has dtype {}, and trace.json says {}{}", where,
                                 printable(entry.dtype), name_of(tensor.dtype), kMend));
  }
  const std::vector<Index> expected{static_cast<Index>(nnz), tensor.width};
  if (entry.shape != expected) {
    throw InputError(fmt::format("{} has not the shape [{}, {}] that indices and width ask for{}",
                                 where, nnz, tensor.width, kMend));
  }
}

void sort_distinct(std::vector<Index>& indices) {
  if (!std::is_sorted(indices.begin(), indices.end())) std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
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

void check_trace_header(const TraceHeader& header, const std::string& where) {
  const auto fail = [&](const std::string& what) { throw InputError(where + ": " + what); };
  if (header.tensors.empty()) fail("a trace has one tensor or more");
  std::set<std::string> names;
  for (const TensorSpec& tensor : header.tensors) {
    const std::string shown = fmt::format("tensor '{}'", printable(tensor.name));
    if (tensor.name.empty() || tensor.name.find('/') != std::string::npos) {
      fail(shown + ": a name is not empty and has no '/'");
    }
    if (!names.insert(tensor.name).second) fail(shown + " is there twice: names are distinct");
    if (tensor.rows < 1) fail(fmt::format("{}: {} rows: give 1 or more", shown, tensor.rows));
    if (tensor.width < 1)
      fail(fmt::format("{}: a width of {}: give 1 or more", shown, tensor.width));
    const auto row_bytes = checked_product(tensor.width, element_bytes(sum_dtype(tensor.dtype)));
    if (!row_bytes || !checked_product(tensor.rows, *row_bytes)) {
      fail(fmt::format("{}: {} rows of width {} have more bytes than can be counted", shown,
                       tensor.rows, tensor.width));
    }
  }
  // One tensor's indices must not be taken for another's, such as those of "a" and "a.indices".
  for (const std::string& name : names) {
    for (const char* suffix : {".indices", ".values"}) {
      if (names.contains(name + suffix)) {
        fail(fmt::format("tensor '{}{}' is named as a part of another", printable(name), suffix));
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
}

std::string trace_file_name(int worker, int step) {
  return fmt::format("w{:04}.s{:04}.safetensors", worker, step);
}

std::vector<std::byte> made_values(const TraceHeader& header, int worker, int step, int tensor,
                                   std::span<const Index> rows) {
  const TensorSpec& spec = header.tensors.at(static_cast<std::size_t>(tensor));
  std::uint64_t key = mix64(header.seed);
  for (const int part : {worker, step, tensor}) key = mix64(key + static_cast<std::uint64_t>(part));
  const auto elements = checked_product(static_cast<Index>(rows.size()), spec.width);
  const auto bytes =
      elements ? checked_product(*elements, element_bytes(spec.dtype)) : std::nullopt;
  if (!bytes) {
    throw InputError(
        fmt::format("tensor '{}': the values of {} rows have more bytes than can be counted",
                    printable(spec.name), rows.size()));
  }
  std::vector<std::byte> values(static_cast<std::size_t>(*bytes));
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
    for (int worker = 0; worker < trace.header_.workers; ++worker) {
      std::error_code error;
      if (!fs::is_regular_file(path / trace_file_name(worker, step), error)) {
        throw InputError(fmt::format("the trace {} has no file {} (worker {} at step {}){}",
                                     shown_path(path), trace_file_name(worker, step), worker, step,
                                     kMend));
      }
    }
  }
  const auto first = SafetensorsFile::open(path / trace_file_name(0, 0));
  trace.has_values_ = first.find(trace.header_.tensors[0].name + ".values") != nullptr;
  return trace;
}

std::vector<TracePart> Trace::load(int worker, int step) const {
  return read(worker, step, true);
}

std::vector<TracePart> Trace::load_indices(int worker, int step) const {
  return read(worker, step, false);
}

std::vector<TracePart> Trace::read(int worker, int step, bool want_values) const {
  SPARSESYNC_EXPECT(worker, >=, 0);
  SPARSESYNC_EXPECT(worker, <, header_.workers);
  SPARSESYNC_EXPECT(step, >=, 0);
  SPARSESYNC_EXPECT(step, <, header_.steps);
  const fs::path path = path_ / trace_file_name(worker, step);
  const auto file = SafetensorsFile::open(path);
  const std::string place = shown_path(path);
  std::vector<TracePart> parts;
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    const TensorSpec& tensor = header_.tensors[i];
    const std::string indices_name = tensor.name + ".indices";
    const std::string values_name = tensor.name + ".values";
    const std::string where = fmt::format("{}: '{}'", place, printable(indices_name));
    const SafetensorsEntry* indices = file.find(indices_name);
    if (indices == nullptr) throw InputError(fmt::format("{} is missing{}", where, kMend));
    TracePart& part = parts.emplace_back();
    part.indices = read_indices(*indices, tensor.rows, where);
    const SafetensorsEntry* values = file.find(values_name);
    const std::string values_where = fmt::format("{}: '{}'", place, printable(values_name));
    if ((values != nullptr) != has_values_) {
      throw InputError(fmt::format("{} is {}, unlike in the trace's first file{}", values_where,
                                   values != nullptr ? "there" : "missing", kMend));
    }
    if (values != nullptr) {
      check_values(*values, tensor, part.indices.size(), values_where);
      if (want_values) part.values.assign(values->bytes.begin(), values->bytes.end());
    } else {
      sort_distinct(part.indices);
      if (want_values) {
        part.values = made_values(header_, worker, step, static_cast<int>(i), part.indices);
      }
    }
  }
  const std::size_t expected = header_.tensors.size() * (has_values_ ? 2 : 1);
  if (file.tensors().size() != expected) {
    for (const SafetensorsEntry& entry : file.tensors()) {
      const bool known = std::any_of(
          header_.tensors.begin(), header_.tensors.end(), [&](const TensorSpec& tensor) {
            return entry.name == tensor.name + ".indices" || entry.name == tensor.name + ".values";
          });
      if (!known) {
        throw InputError(fmt::format("{}: '{}' belongs to no tensor of trace.json{}", place,
                                     printable(entry.name), kMend));
      }
    }
  }
  return parts;
}

void Trace::validate() const {
  for (int step = 0; step < header_.steps; ++step) {
    for (int worker = 0; worker < header_.workers; ++worker) load_indices(worker, step);
  }
}

namespace {

TraceHeader checked(TraceHeader header, const fs::path& path) {
  check_trace_header(header, fmt::format("the trace {}", shown_path(path)));
  return header;
}

}  // namespace

TraceWriter::TraceWriter(const fs::path& path, TraceHeader header, bool force)
    : header_(checked(std::move(header), path)),
      directory_(path, force, kHeaderFile),
      written_(static_cast<std::size_t>(header_.workers) *
               static_cast<std::size_t>(header_.steps)) {}

void TraceWriter::write(int worker, int step, std::span<const TracePart> parts) {
  SPARSESYNC_EXPECT(worker, >=, 0);
  SPARSESYNC_EXPECT(worker, <, header_.workers);
  SPARSESYNC_EXPECT(step, >=, 0);
  SPARSESYNC_EXPECT(step, <, header_.steps);
  SPARSESYNC_EXPECT(parts.size(), ==, header_.tensors.size());
  const std::size_t number =
      static_cast<std::size_t>(step) * static_cast<std::size_t>(header_.workers) +
      static_cast<std::size_t>(worker);
  SPARSESYNC_EXPECT(static_cast<bool>(written_[number]), ==, false);

  // A part without rows has no bytes of values either way: others decide what it counts as.
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Index row_bytes = header_.tensors[i].width * element_bytes(header_.tensors[i].dtype);
    const auto nnz = static_cast<Index>(parts[i].indices.size());
    if (nnz > 0 && !values_) values_ = !parts[i].values.empty();
    SPARSESYNC_EXPECT(static_cast<Index>(parts[i].values.size()), ==,
                      values_.value_or(false) ? nnz * row_bytes : Index{0});
  }
  written_[number] = true;
  ++files_;
  if (values_) {
    write_file(worker, step, parts);
  } else {
    waiting_.emplace_back(worker, step);
  }
}

void TraceWriter::write_file(int worker, int step, std::span<const TracePart> parts) {
  std::vector<std::vector<std::int32_t>> narrow(parts.size());
  std::vector<SafetensorsEntry> entries;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorSpec& tensor = header_.tensors[i];
    const TracePart& part = parts[i];
    const auto nnz = static_cast<Index>(part.indices.size());
    for (std::size_t k = 0; k < part.indices.size(); ++k) {
      if (part.indices[k] < 0 || part.indices[k] >= tensor.rows) {
        throw InputError(
            fmt::format("worker {} at step {}, tensor '{}': index {} at position {} is outside the "
                        "tensor's {} rows",
                        worker, step, printable(tensor.name), part.indices[k], k, tensor.rows));
      }
    }
    SafetensorsEntry entry{tensor.name + ".indices", "I64", {nnz}, {}};
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
      entries.push_back({tensor.name + ".values",
                         safetensors_name(tensor.dtype),
                         {nnz, tensor.width},
                         part.values});
    }
  }
  OutputFile file(directory_.staging() / trace_file_name(worker, step), false);
  write_safetensors(file, entries);
  file.commit();
}

void TraceWriter::commit() {
  SPARSESYNC_EXPECT(files_, ==, static_cast<std::int64_t>(written_.size()));
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
  // Paths in `source` need not be UTF-8: what is not is replaced, the file stays valid JSON.
  file.write(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  file.commit();
  directory_.commit();
}

}  // namespace sparsesync
