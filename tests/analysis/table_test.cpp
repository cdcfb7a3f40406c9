// Tables: columns that line up, in characters.
#include "analysis/table.h"

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace sparsesync {
namespace {

using Align = Table::Align;

TEST(Table, LinesUp) {
  Table table({{"scheme", Align::left}, {"bytes", Align::right}, {"note", Align::left}});
  table.add_row({"balanced", "1234", "a"});
  table.add_row({"x", "7", ""});
  table.add_row({"", "", ""});
  EXPECT_EQ(table.text(),
            "scheme    bytes  note\n"
            "---------------------\n"
            "balanced   1234  a\n"
            "x             7\n"
            "\n");
}

TEST(Table, CountsCharactersNotBytes) {
  // Of 2, 3 and 4 bytes each.
  Table table({{"µs", Align::right}, {"grid", Align::left}, {"→", Align::right}});
  table.add_row({"1", "4×2", "10"});
  table.add_row({"100", "16×16", "𝄞"});
  EXPECT_EQ(table.text(),
            " µs  grid    →\n"
            "--------------\n"
            "  1  4×2    10\n"
            "100  16×16   𝄞\n");
}

TEST(Table, WithoutRowsIsItsTitle) {
  const Table table({{"a", Align::left}, {"b", Align::right}});
  EXPECT_EQ(table.text(), "a  b\n----\n");
}

TEST(Table, HasNoSpacesAtTheEndsOfLines) {
  Table table({{"wide title", Align::left}, {"another", Align::left}});
  table.add_row({"a", "b"});
  table.add_row({"only the first", ""});
  const std::string text = table.text();
  EXPECT_EQ(text.find(" \n"), std::string::npos) << text;
}

TEST(Table, WantsACellForEachColumn) {
  Table table({{"a"}, {"b"}});
  EXPECT_THROW(table.add_row({"1"}), ContractError);
  EXPECT_THROW(table.add_row({"1", "2", "3"}), ContractError);
  EXPECT_EQ(table.text(), "a  b\n----\n");
}

}  // namespace
}  // namespace sparsesync
