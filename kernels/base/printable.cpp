#include "kernels/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace sparsesync {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0 if the text does not start with a valid character
};

/// Decodes the first character of a text. Rejects overlong forms and surrogates.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80U) return {first, 1};
  struct Form {
    unsigned mask, lead;
    std::uint32_t smallest;
  };
  constexpr std::array kForms{Form{0xE0U, 0xC0U, 0x80U}, Form{0xF0U, 0xE0U, 0x800U},
                              Form{0xF8U, 0xF0U, 0x10000U}};
  for (std::size_t more = 1; more <= kForms.size(); ++more) {
    const Form& form = kForms[more - 1];
    if ((first & form.mask) != form.lead) continue;
    if (text.size() <= more) return {};
    std::uint32_t code = first & ~form.mask & 0xFFU;
    for (std::size_t i = 1; i <= more; ++i) {
      if ((byte(i) & 0xC0U) != 0x80U) return {};
      code = code << 6U | (byte(i) & 0x3FU);
    }
    const bool is_surrogate = code >= 0xD800U && code <= 0xDFFFU;
    if (code < form.smallest || code > 0x10FFFFU || is_surrogate) return {};
    return {code, more + 1};
  }
  return {};
}

bool is_shown(std::uint32_t code) {
  struct Range {
    std::uint32_t first, last;
  };
  constexpr std::array kHidden{
      Range{0x00, 0x1F},        // C0 controls.
      Range{0x7F, 0x9F},        // DEL and C1 controls.
      Range{0xAD, 0xAD},        // Soft hyphen.
      Range{0x034F, 0x034F},    // Combining grapheme joiner.
      Range{0x061C, 0x061C},    // Arabic letter mark.
      Range{0x115F, 0x1160},    // Hangul fillers.
      Range{0x17B4, 0x17B5},    // Khmer inherent vowels.
      Range{0x180B, 0x180F},    // Mongolian selectors and vowel separator.
      Range{0x200B, 0x200F},    // Zero widths and direction marks.
      Range{0x2028, 0x202E},    // Line and paragraph separators, bidirectional overrides.
      Range{0x2060, 0x206F},    // Invisible operators, bidirectional isolates.
      Range{0x3164, 0x3164},    // Hangul filler.
      Range{0xFE00, 0xFE0F},    // Variation selectors.
      Range{0xFEFF, 0xFEFF},    // Zero width no-break space.
      Range{0xFFA0, 0xFFA0},    // Half-width Hangul filler.
      Range{0xFFF0, 0xFFFB},    // Annotations.
      Range{0x1BCA0, 0x1BCA3},  // Shorthand controls.
      Range{0x1D173, 0x1D17A},  // Musical controls.
      Range{0xE0000, 0xE0FFF},  // Tags and more selectors.
  };
  return std::none_of(kHidden.begin(), kHidden.end(), [&](const Range& hidden) {
    return code >= hidden.first && code <= hidden.last;
  });
}

std::string escape_of(std::uint32_t code) {
  if (code < 0x80U) return fmt::format("\\x{:02x}", code);
  if (code <= 0xFFFFU) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\U{:08x}", code);
}

}  // namespace

std::string printable(std::string_view text, PrintableOptions options) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const Character character = first_character(text.substr(at));
    const std::size_t bytes = std::max<std::size_t>(character.bytes, 1);
    if (bytes > options.longest - std::min(at, options.longest)) return out + "...";
    const std::string_view here = text.substr(at, bytes);
    if (character.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(here.front()));
    } else if (is_shown(character.code) || (here == "\n" && options.keeps_line_ends)) {
      out += here;
    } else {
      out += escape_of(character.code);
    }
    at += bytes;
  }
  return out;
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  return printable(text, {.longest = kLongest});
}

std::string in_quotes(std::string_view text) {
  return fmt::format("'{}'", shortened(text));
}

}  // namespace sparsesync
