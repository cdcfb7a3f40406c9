#include "analysis/trace/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/support/input_file.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

// Numbers are copied from the file without conversion.
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr const char* kMend = "save it with numpy.save('FILE.npy', array.astype('int64'))";

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<Index> shape;
};

/// Parses the header: a Python dictionary of a text, a bool and a tuple of numbers, in any order.
/// It evaluates no code, and rejects anything else.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const InputPlace& place) : text_(text), place_(place) {}

  Header parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<Index>> shape;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted_text();
      expect(':');
      if (key == "descr" && !descr) {
        if (peek() == '[') place_.refuse("holds records, not integers");
        descr = quoted_text();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        refuse();
      }
      if (!accept(',') && peek() != '}') refuse();
    }
    skip_space();
    if (!text_.empty() || !descr || !fortran_order || !shape) refuse();
    return {*descr, *fortran_order, *shape};
  }

 private:
  [[noreturn]] void refuse() const { place_.refuse("has a header that cannot be understood"); }
  void skip_space() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \n\t"), text_.size()));
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
    if (!accept(c)) refuse();
  }
  std::string quoted_text() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse();
    text_.remove_prefix(1);
    const std::size_t end = text_.find(quote);
    if (end == std::string_view::npos) refuse();
    std::string word(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return word;
  }
  bool boolean() {
    skip_space();
    const bool value = text_.starts_with("True");
    if (!value && !text_.starts_with("False")) refuse();
    text_.remove_prefix(value ? 4 : 5);
    return value;
  }
  std::vector<Index> tuple() {
    std::vector<Index> numbers;
    expect('(');
    while (!accept(')')) {
      numbers.push_back(number());
      if (!accept(',') && peek() != ')') refuse();
    }
    return numbers;
  }
  Index number() {
    if (peek() < '0' || peek() > '9') refuse();
    Index value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc()) place_.refuse("has more elements than can be counted");
    text_ = {end, text_.data() + text_.size()};
    return value;
  }

  std::string_view text_;
  const InputPlace& place_;
};

/// Calls `body` with a value of the integer type that `descr` names.
/// @return false if it does not name one
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
  if (!descr.empty() && descr[0] == '>') return "holds big-endian numbers";
  if (kind == 'f' || kind == 'c') return fmt::format("holds floats ({})", shortened(descr));
  if (kind == 'O') return "holds Python objects";
  return fmt::format("holds {}, not integers", in_quotes(descr));
}

template <typename Integer>
std::vector<std::int64_t> read_values(const Header& header, std::span<const std::byte> data,
                                      const InputPlace& place) {
  const std::optional<Index> bytes = array_bytes(header.shape, sizeof(Integer));
  if (bytes != std::ssize(data)) {
    place.refuse(fmt::format("has {} bytes of data, but its shape needs {}", data.size(),
                             bytes ? fmt::format("{}", *bytes) : "more than can be counted"));
  }
  std::vector<std::int64_t> values(data.size() / sizeof(Integer));
  const bool transposed = header.fortran_order && header.shape.size() == 2;
  const std::size_t rows = transposed ? static_cast<std::size_t>(header.shape[0]) : values.size();
  const std::size_t columns = transposed ? static_cast<std::size_t>(header.shape[1]) : 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    Integer value;
    std::memcpy(&value, data.data() + i * sizeof(Integer), sizeof(Integer));
    if (!std::in_range<std::int64_t>(value)) {
      place.refuse(fmt::format("has the value {} at position {}, beyond 2^63", value, i));
    }
    const std::size_t to = transposed ? (i % rows) * columns + i / rows : i;
    values[to] = static_cast<std::int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): a number
  }
  return values;
}

}  // namespace

NpyArray read_npy(const std::filesystem::path& path) {
  const InputPlace place(path, kMend);
  const InputFile file = InputFile::read(path);
  const std::string_view text = file.text();
  if (!text.starts_with(kMagic) || text.size() < 10) place.refuse("is not an .npy file");
  const auto version = std::to_integer<unsigned>(file.bytes()[6]);
  const auto minor = std::to_integer<unsigned>(file.bytes()[7]);
  if (version < 1 || version > 3 || minor != 0) {
    place.refuse(
        fmt::format("has version {}.{} of the .npy format, which is unknown", version, minor));
  }
  const std::size_t begin = version == 1 ? 10 : 12;
  std::uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data() + 8, std::min(begin, text.size()) - 8);
  if (text.size() < begin || header_bytes > text.size() - begin) {
    place.refuse("is truncated in its header");
  }
  const Header header = HeaderParser(text.substr(begin, header_bytes), place).parse();
  if (header.shape.empty() || header.shape.size() > 2) {
    place.refuse(fmt::format("has {} dimensions, not one or two", header.shape.size()));
  }
  NpyArray array;
  array.shape = header.shape;
  const bool known = for_integer(header.descr, [&]<typename Integer>(Integer) {
    array.values = read_values<Integer>(header, file.bytes().subspan(begin + header_bytes), place);
  });
  if (!known) place.refuse(what_instead(header.descr));
  return array;
}

}  // namespace sparsesync
