// The safetensors format: 8 bytes of little-endian header length, a JSON header, the tensors'
// bytes.
#include "analysis/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "analysis/input_file.h"
#include "analysis/quote.h"

namespace sparsesync {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMend = "; make the file anew";

/// What the messages of one file begin with.
[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw InputError(where + what + kMend);
}

struct Range {
  Index begin;
  Index end;
};

Range read_offsets(const Json& value, Index data_bytes, const std::string& where) {
  if (!value.is_array() || value.size() != 2)
    fail(where, ": data_offsets is not a pair of numbers");
  const auto begin = whole_number(value[0]);
  const auto end = whole_number(value[1]);
  if (!begin || !end || *begin > *end) {
    fail(where, ": data_offsets are not two whole numbers in order");
  }
  if (*end > data_bytes) {
    fail(where, fmt::format(": its data ends at byte {} of {}; the file is cut short or wrong",
                            *end, data_bytes));
  }
  return {*begin, *end};
}

SafetensorsEntry read_entry(const std::string& name, const Json& value,
                            std::span<const std::byte> data, const std::string& where) {
  if (!value.is_object()) fail(where, " is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) fail(where, fmt::format(" has no {}", key));
  }
  SafetensorsEntry entry;
  entry.name = name;
  if (!value["dtype"].is_string()) fail(where, ": dtype is not a text");
  entry.dtype = value["dtype"].get<std::string>();
  if (!value["shape"].is_array()) fail(where, ": shape is not a list");
  const Range range = read_offsets(value["data_offsets"], static_cast<Index>(data.size()), where);
  // The product is checked number by number, so that elements() cannot overflow later; a 0 anywhere
  // does not excuse the others.
  Index product = 1;
  for (const Json& item : value["shape"]) {
    const auto dimension = whole_number(item);
    if (!dimension) fail(where, ": shape holds something else than whole numbers");
    entry.shape.push_back(*dimension);
    const auto next = checked_product(product, std::max<Index>(*dimension, 1));
    if (!next) fail(where, ": shape has more elements than can be counted");
    product = *next;
  }
  const Index each = safetensors_element_bytes(entry.dtype);
  if (each > 0) {
    const auto needed = checked_product(entry.elements(), each);
    if (!needed || *needed != range.end - range.begin) {
      fail(where, fmt::format(": its shape needs another number of bytes than the {} that it has",
                              range.end - range.begin));
    }
  }
  entry.bytes = data.subspan(static_cast<std::size_t>(range.begin),
                             static_cast<std::size_t>(range.end - range.begin));
  return entry;
}

}  // namespace

Index SafetensorsEntry::elements() const {
  Index product = 1;
  for (const Index dimension : shape) product *= dimension;
  return product;
}

std::string safetensors_name(DType dtype) {
  // The same name, in capitals.
  std::string name(name_of(dtype));
  for (char& letter : name) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return name;
}

Index safetensors_element_bytes(const std::string& dtype) {
  static constexpr std::array<std::pair<const char*, Index>, 16> kKnown{{{"BOOL", 1},
                                                                         {"U8", 1},
                                                                         {"I8", 1},
                                                                         {"F8_E4M3", 1},
                                                                         {"F8_E5M2", 1},
                                                                         {"I16", 2},
                                                                         {"U16", 2},
                                                                         {"F16", 2},
                                                                         {"BF16", 2},
                                                                         {"I32", 4},
                                                                         {"U32", 4},
                                                                         {"F32", 4},
                                                                         {"I64", 8},
                                                                         {"U64", 8},
                                                                         {"F64", 8},
                                                                         {"C64", 8}}};
  for (const auto& [name, bytes] : kKnown) {
    if (dtype == name) return bytes;
  }
  return 0;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const std::string file_name = shown_path(path);
  auto storage = std::make_shared<const FileBytes>(FileBytes::read(path));
  const std::span<const std::byte> bytes = storage->bytes();
  if (bytes.size() < kLengthBytes) {
    fail(file_name, fmt::format(" is not a safetensors file: it has {} bytes", bytes.size()));
  }
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<std::uint64_t>(bytes[i]) << (8U * i);
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - kLengthBytes) {
    fail(file_name,
         fmt::format(" is not a safetensors file or is cut short: a header of {} bytes in a "
                     "file of {}",
                     header_bytes, bytes.size()));
  }
  const std::string header_name = file_name + ": its header";
  const Json header = parse_json(
      storage->text().substr(kLengthBytes, static_cast<std::size_t>(header_bytes)), header_name);
  if (!header.is_object()) fail(header_name, " is not a JSON object");

  SafetensorsFile file;
  file.path_ = path;
  const auto data = bytes.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      const bool texts =
          value.is_object() &&
          std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
      if (!texts) fail(header_name, ": __metadata__ is not an object of texts");
      continue;
    }
    file.tensors_.push_back(
        read_entry(name, value, data, fmt::format("{}: tensor '{}'", file_name, printable(name))));
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.bytes.data(), a.bytes.size()) <
                     std::pair(b.bytes.data(), b.bytes.size());
            });
  const std::byte* expected = data.data();
  for (const SafetensorsEntry& entry : file.tensors_) {
    if (entry.bytes.data() != expected) {
      fail(file_name,
           fmt::format(": tensor '{}' overlaps another or leaves a gap", printable(entry.name)));
    }
    expected += entry.bytes.size();
  }
  if (expected != data.data() + data.size()) {
    fail(file_name, fmt::format(": {} bytes at the end belong to no tensor",
                                data.data() + data.size() - expected));
  }
  file.storage_ = std::move(storage);
  return file;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(),
                   [&](const SafetensorsEntry& entry) { return entry.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void write_safetensors(OutputFile& file, std::span<const SafetensorsEntry> tensors) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : tensors) {
    const Index each = safetensors_element_bytes(entry.dtype);
    SPARSESYNC_EXPECT(each, >, Index{0});
    SPARSESYNC_EXPECT(static_cast<Index>(entry.bytes.size()), ==, entry.elements() * each);
    order.push_back(&entry);
  }
  std::stable_sort(
      order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
        return safetensors_element_bytes(a->dtype) > safetensors_element_bytes(b->dtype);
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
  std::array<std::byte, kLengthBytes> length{};
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<std::byte>((text.size() >> (8U * i)) & 0xFFU);
  }
  file.write(std::span<const std::byte>(length));
  file.write(text);
  for (const SafetensorsEntry* entry : order) file.write(entry->bytes);
}

}  // namespace sparsesync
