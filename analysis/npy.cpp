// NumPy's .npy files of integers: token ids, categorical fields.
#include "analysis/npy.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "analysis/input_file.h"
#include "analysis/quote.h"

namespace sparsesync {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr const char* kMend = "; save it with numpy.save('FILE.npy', array.astype('int64'))";

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<Index> shape;
};

/// Reads the header: a Python dictionary of a text, a bool and a tuple of numbers, in any order.
/// Nothing is evaluated; what is not of exactly this kind is refused.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  Header parse() {
    Header header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !has_descr) {
        if (peek() == '[') refuse("it holds records, not integers");
        header.descr = quoted();
        has_descr = true;
      } else if (key == "fortran_order" && !has_order) {
        header.fortran_order = boolean();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        header.shape = tuple();
        has_shape = true;
      } else {
        refuse("its header cannot be understood");
      }
      if (!accept(',') && peek() != '}') refuse("its header cannot be understood");
    }
    skip_space();
    if (!text_.empty() || !has_descr || !has_order || !has_shape) {
      refuse("its header cannot be understood");
    }
    return header;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(where_ + ": " + what + kMend);
  }
  void skip_space() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n' || text_[0] == '\t')) {
      text_.remove_prefix(1);
    }
  }
  char peek() {
    skip_space();
    return text_.empty() ? '\0' : text_[0];
  }
  bool accept(char c) {
    if (peek() != c || text_.empty()) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse("its header cannot be understood");
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse("its header cannot be understood");
    text_.remove_prefix(1);
    const std::size_t end = text_.find(quote);
    if (end == std::string_view::npos) refuse("its header cannot be understood");
    std::string word(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return word;
  }
  bool boolean() {
    if (accept_word("True")) return true;
    if (accept_word("False")) return false;
    refuse("its header cannot be understood");
  }
  std::vector<Index> tuple() {
    std::vector<Index> numbers;
    expect('(');
    while (!accept(')')) {
      numbers.push_back(number());
      if (!accept(',') && peek() != ')') refuse("its header cannot be understood");
    }
    return numbers;
  }
  Index number() {
    if (peek() < '0' || peek() > '9') refuse("its header cannot be understood");
    Index value = 0;
    while (!text_.empty() && text_[0] >= '0' && text_[0] <= '9') {
      if (__builtin_mul_overflow(value, Index{10}, &value) ||
          __builtin_add_overflow(value, Index{text_[0] - '0'}, &value)) {
        refuse("its shape has more elements than can be counted");
      }
      text_.remove_prefix(1);
    }
    return value;
  }

  std::string_view text_;
  std::string where_;
};

/// Calls `body` with a value of the integer type that `descr` names; false if it names no such
/// type.
template <typename Body>
bool for_integer(const std::string& descr, Body&& body) {
  const bool one_byte = descr.size() == 3 && (descr[0] == '|' || descr[0] == '<');
  if (one_byte && descr.substr(1) == "i1") return body(std::int8_t{}), true;
  if (one_byte && descr.substr(1) == "u1") return body(std::uint8_t{}), true;
  if (descr == "<i2") return body(std::int16_t{}), true;
  if (descr == "<u2") return body(std::uint16_t{}), true;
  if (descr == "<i4") return body(std::int32_t{}), true;
  if (descr == "<u4") return body(std::uint32_t{}), true;
  if (descr == "<i8") return body(std::int64_t{}), true;
  if (descr == "<u8") return body(std::uint64_t{}), true;
  return false;
}

std::string what_instead(const std::string& descr) {
  const char kind = descr.size() > 1 ? descr[1] : '?';
  if (!descr.empty() && descr[0] == '>') return "its numbers are big-endian";
  if (kind == 'f' || kind == 'c') return fmt::format("it holds floats ({})", printable(descr));
  if (kind == 'O') return "it holds Python objects";
  return fmt::format("it holds '{}', not integers", printable(descr));
}

template <typename Integer>
std::int64_t value_at(std::span<const std::byte> data, std::size_t position,
                      const std::string& where) {
  Integer value;
  std::memcpy(&value, data.data() + position * sizeof(Integer), sizeof(Integer));
  if constexpr (std::is_same_v<Integer, std::uint64_t>) {
    if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      throw InputError(fmt::format("{}: the value {} at position {} is beyond 2^63{}", where, value,
                                   position, kMend));
    }
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace

NpyArray read_npy(const std::filesystem::path& path) {
  const std::string where = shown_path(path);
  const FileBytes file = FileBytes::read(path);
  const std::string_view text = file.text();
  if (!text.starts_with(kMagic) || text.size() < 10) {
    throw InputError(where + " is not an .npy file" + kMend);
  }
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0) {
    throw InputError(fmt::format("{}: version {}.{} of the .npy format is unknown{}", where,
                                 version, unsigned{byte(7)}, kMend));
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = 8 + length_bytes;
  std::size_t header_bytes = 0;
  for (std::size_t i = 0; i < length_bytes && 8 + i < text.size(); ++i) {
    header_bytes |= std::size_t{byte(8 + i)} << (8U * i);
  }
  if (text.size() < begin || header_bytes > text.size() - begin) {
    throw InputError(where + " is cut short in its header" + kMend);
  }
  const Header header = HeaderParser(text.substr(begin, header_bytes), where).parse();
  if (header.shape.empty() || header.shape.size() > 2) {
    throw InputError(
        fmt::format("{} has {} dimensions, not one or two{}", where, header.shape.size(), kMend));
  }

  const std::span<const std::byte> data = file.bytes().subspan(begin + header_bytes);
  NpyArray array;
  array.shape = header.shape;
  const bool known = for_integer(header.descr, [&]<typename Integer>(Integer) {
    std::optional<std::int64_t> bytes = sizeof(Integer);
    for (const Index dimension : header.shape) {
      bytes = bytes ? checked_product(*bytes, dimension) : bytes;
    }
    if (!bytes || *bytes != static_cast<std::int64_t>(data.size())) {
      throw InputError(
          fmt::format("{} has {} bytes of data, and its shape needs {}{}", where, data.size(),
                      bytes ? fmt::format("{}", *bytes) : "more than there are", kMend));
    }
    const std::size_t count = data.size() / sizeof(Integer);
    array.values.resize(count);
    const bool transposed = header.fortran_order && header.shape.size() == 2;
    const std::size_t rows = transposed ? static_cast<std::size_t>(header.shape[0]) : count;
    const std::size_t columns = transposed ? static_cast<std::size_t>(header.shape[1]) : 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t to = transposed ? (i % rows) * columns + i / rows : i;
      array.values[to] = value_at<Integer>(data, i, where);
    }
  });
  if (!known) throw InputError(where + ": " + what_instead(header.descr) + kMend);
  return array;
}

}  // namespace sparsesync
