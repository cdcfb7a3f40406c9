#include "analysis/trace/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/support/input_json.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

using Json = nlohmann::json;

// Numbers are copied between memory and file without conversion.
static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the format

SafetensorsEntry read_entry(const std::string& name, const InputJson& json,
                            std::span<const std::byte> data) {
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = json.member("dtype").text();
  const InputJson shape = json.member("shape");
  for (const InputJson& item : shape.list()) entry.shape.push_back(item.whole<Index>());
  const InputJson offsets = json.member("data_offsets");
  const std::vector<InputJson> pair = offsets.list(2);
  const auto begin = pair[0].whole<std::size_t>();
  const auto end = pair[1].whole<std::size_t>();
  if (begin > end) offsets.refuse("ends before it begins");
  if (end > data.size()) {
    offsets.refuse(
        fmt::format("ends at byte {} of {}: the file is truncated or wrong", end, data.size()));
  }
  entry.bytes = data.subspan(begin, end - begin);
  // Verified for unknown dtypes, too, so that elements() cannot overflow later.
  const Index each = safetensors_element_bytes(entry.dtype);
  const std::optional<Index> needed = array_bytes(entry.shape, std::max<Index>(each, 1));
  if (!needed) shape.refuse("has more elements than can be counted");
  if (each > 0 && *needed != std::ssize(entry.bytes)) {
    shape.refuse(fmt::format("does not match the tensor's {} bytes", entry.bytes.size()));
  }
  return entry;
}

}  // namespace

Index SafetensorsEntry::elements() const {
  Index product = 1;
  for (const Index dimension : shape) product *= dimension;
  return product;
}

std::string safetensors_name(DType dtype) {
  // The format uses the same names in capitals.
  std::string name(name_of(dtype));
  for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
  return name;
}

Index safetensors_element_bytes(const std::string& dtype) {
  struct Known {
    std::string_view name;
    Index bytes;
  };
  static constexpr std::array kKnown{
      Known{"BOOL", 1},    Known{"U8", 1},  Known{"I8", 1},  Known{"F8_E4M3", 1},
      Known{"F8_E5M2", 1}, Known{"I16", 2}, Known{"U16", 2}, Known{"F16", 2},
      Known{"BF16", 2},    Known{"I32", 4}, Known{"U32", 4}, Known{"F32", 4},
      Known{"I64", 8},     Known{"U64", 8}, Known{"F64", 8}, Known{"C64", 8}};
  for (const Known& known : kKnown) {
    if (dtype == known.name) return known.bytes;
  }
  return 0;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const InputPlace place(path, "write the file again");
  SafetensorsFile result;
  result.file_ = InputFile::read(path);
  const std::span<const std::byte> bytes = result.file_.bytes();
  if (bytes.size() < kLengthBytes) {
    place.refuse(fmt::format("is not a safetensors file: it has {} bytes", bytes.size()));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - kLengthBytes) {
    place.refuse(fmt::format(
        "is not a safetensors file or is truncated: a header of {} bytes in a file of {}",
        header_bytes, bytes.size()));
  }
  const std::size_t header_end = kLengthBytes + static_cast<std::size_t>(header_bytes);
  const std::span<const std::byte> data = bytes.subspan(header_end);
  const InputJson header = InputJson::parse(
      result.file_.text().substr(kLengthBytes, header_end - kLengthBytes), place.at("header"));
  for (const auto& [name, value] : header.members()) {
    if (name != "__metadata__") {
      result.tensors_.push_back(read_entry(name, value, data));
      continue;
    }
    for (const auto& [key, note] : value.members()) (void)note.text();  // throws if it is not text
  }
  std::ranges::sort(result.tensors_, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.bytes.data(), entry.bytes.size());
  });
  const std::byte* expected = data.data();
  for (const SafetensorsEntry& entry : result.tensors_) {
    if (entry.bytes.data() != expected) {
      place.at(in_quotes(entry.name)).refuse("overlaps another tensor or leaves a gap");
    }
    expected += entry.bytes.size();
  }
  if (expected != data.data() + data.size()) {
    place.refuse(fmt::format("has {} bytes at the end that belong to no tensor",
                             data.data() + data.size() - expected));
  }
  result.by_name_.resize(result.tensors_.size());
  std::iota(result.by_name_.begin(), result.by_name_.end(), std::size_t{0});
  std::ranges::sort(result.by_name_, {}, [&](std::size_t position) -> const std::string& {
    return result.tensors_[position].name;
  });
  return result;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto name_at = [&](std::size_t position) -> const std::string& {
    return tensors_[position].name;
  };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_at);
  return found == by_name_.end() || name_at(*found) != name ? nullptr : &tensors_[*found];
}

void write_safetensors(OutputFile& file, std::span<const SafetensorsEntry> tensors) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : tensors) {
    const Index each = safetensors_element_bytes(entry.dtype);
    SPARSESYNC_EXPECT(each, >, Index{0});
    SPARSESYNC_EXPECT(std::ssize(entry.bytes), ==, entry.elements() * each);
    order.push_back(&entry);
  }
  std::ranges::stable_sort(order, std::ranges::greater(), [](const SafetensorsEntry* entry) {
    return safetensors_element_bytes(entry->dtype);
  });
  Json header = Json::object();
  std::size_t offset = 0;
  for (const SafetensorsEntry* entry : order) {
    SPARSESYNC_EXPECT(header.contains(entry->name), ==, false);
    header[entry->name] = {{"dtype", entry->dtype},
                           {"shape", entry->shape},
                           {"data_offsets", {offset, offset + entry->bytes.size()}}};
    offset += entry->bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const SafetensorsEntry* entry : order) file.write(entry->bytes);
}

}  // namespace sparsesync
