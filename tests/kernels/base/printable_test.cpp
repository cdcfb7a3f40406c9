// Text from outside: a terminal must not interpret or hide any part of it, and truncation must not
// split a character.
#include "kernels/base/printable.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace sparsesync {
namespace {

TEST(Printable, KeepsVisibleText) {
  for (const std::string_view text : {"", "a b", "embedding.weight", "4 × 10⁶ µs — Größe", "日本語",
                                      "\U0001F600", "C:\\x1b", "'\"<&>", "\u00A0", "e\u0301"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("\x1b]0;pwned\x07"), "\\x1b]0;pwned\\x07");
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\x0ab\\x0d\\x09c");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\x7f"), "\\x7f");
  for (unsigned code = 0; code < 0x20; ++code) {
    const std::string shown = printable(std::string(1, static_cast<char>(code)));
    EXPECT_EQ(shown.size(), 4U) << code;
  }
  for (unsigned code = 0x80; code < 0xA0; ++code) {  // C1: U+009B is CSI
    const std::string shown = printable(std::string{'\xC2', static_cast<char>(code)});
    EXPECT_EQ(shown.substr(0, 4), "\\u00") << code;
  }
  EXPECT_EQ(printable("\u009B31mred"), "\\u009b31mred");
}

/// Encodes a character in UTF-8. As literals, these characters would reorder the lines of this
/// file.
std::string character(unsigned code) {
  const auto byte = [](unsigned value) { return static_cast<char>(value); };
  if (code < 0x800U) return {byte(0xC0U | code >> 6U), byte(0x80U | (code & 0x3FU))};
  if (code < 0x10000U) {
    return {byte(0xE0U | code >> 12U), byte(0x80U | (code >> 6U & 0x3FU)),
            byte(0x80U | (code & 0x3FU))};
  }
  return {byte(0xF0U | code >> 18U), byte(0x80U | (code >> 12U & 0x3FU)),
          byte(0x80U | (code >> 6U & 0x3FU)), byte(0x80U | (code & 0x3FU))};
}

TEST(Printable, EscapesCharactersThatReorderOrHideText) {
  EXPECT_EQ(printable(fmt::format("a{}b{}", character(0x202E), character(0x202C))),
            "a\\u202eb\\u202c");
  EXPECT_EQ(printable(fmt::format("a{}", character(0xE0041))), "a\\U000e0041");
  for (const unsigned code :
       {0x00ADU, 0x034FU, 0x061CU, 0x115FU, 0x180EU, 0x200BU, 0x200DU, 0x200EU, 0x200FU,
        0x2028U, 0x2029U, 0x202AU, 0x202BU, 0x202DU, 0x2060U, 0x2064U, 0x2066U, 0x2067U,
        0x2068U, 0x2069U, 0x206FU, 0x3164U, 0xFE0FU, 0xFEFFU, 0xFFA0U, 0xFFF9U}) {
    EXPECT_EQ(printable(character(code)), fmt::format("\\u{:04x}", code));
  }
  for (const unsigned code : {0x1BCA0U, 0x1D173U, 0xE0001U}) {
    EXPECT_EQ(printable(character(code)), fmt::format("\\U{:08x}", code));
  }
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("a\xFFz"), "a\\xffz");
  EXPECT_EQ(printable("\x9B"), "\\x9b");           // a single byte: CSI in 8-bit terminals
  EXPECT_EQ(printable("\xC1\x9B"), "\\xc1\\x9b");  // an overlong form
  EXPECT_EQ(printable("\xE0\x82\x9B"), "\\xe0\\x82\\x9b");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xE2\x80"), "\\xe2\\x80");  // truncated
  EXPECT_EQ(printable("\xE2\x80z"), "\\xe2\\x80z");
}

TEST(Printable, IsIdempotent) {
  const std::string once = printable(fmt::format("a\x1b{}{}", character(0x202E), "\xFF\nü"));
  EXPECT_EQ(printable(once), once);
}

TEST(Printable, KeepsLineEndsOnRequest) {
  EXPECT_EQ(printable("a\nb\x1b\n", {.keeps_line_ends = true}), "a\nb\\x1b\n");
}

TEST(Printable, TruncatesBetweenCharacters) {
  const auto cut = [](std::string_view text, std::size_t longest) {
    return printable(text, {.longest = longest});
  };
  EXPECT_EQ(cut("abc", 3), "abc");
  EXPECT_EQ(cut("abcd", 3), "abc...");
  EXPECT_EQ(cut("abü", 4), "abü");
  EXPECT_EQ(cut("abü", 3), "ab...");
  EXPECT_EQ(cut("ab\U0001F600", 5), "ab...");
  EXPECT_EQ(cut("ab\x1b\x1b", 3), "ab\\x1b...");
  EXPECT_EQ(cut("a", 0), "...");
  EXPECT_EQ(cut("", 0), "");
}

}  // namespace
}  // namespace sparsesync
