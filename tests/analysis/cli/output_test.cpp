// Tables: columns are aligned by characters, not by bytes.
#include "analysis/cli/output.h"

#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace sparsesync {
namespace {

using Align = Table::Align;

std::string text_of(std::vector<Table::Column> columns,
                    const std::vector<std::vector<std::string>>& rows) {
  Table table(std::move(columns));
  for (const std::vector<std::string>& row : rows) table.add_row(row);
  return table.text();
}

TEST(Table, AlignsColumns) {
  EXPECT_EQ(text_of({{"scheme", Align::left}, {"bytes", Align::right}, {"note", Align::left}},
                    {{"balanced", "1234", "a"}, {"x", "7", ""}, {"", "", ""}}),
            "scheme    bytes  note\n"
            "---------------------\n"
            "balanced   1234  a\n"
            "x             7\n"
            "\n");
}

TEST(Table, CountsCharactersNotBytes) {
  // The table has characters of 2, 3 and 4 bytes.
  EXPECT_EQ(text_of({{"µs", Align::right}, {"grid", Align::left}, {"→", Align::right}},
                    {{"1", "4×2", "10"}, {"100", "16×16", "𝄞"}}),
            " µs  grid    →\n"
            "--------------\n"
            "  1  4×2    10\n"
            "100  16×16   𝄞\n");
}

TEST(Table, WithoutRowsIsItsHeader) {
  EXPECT_EQ(text_of({{"a", Align::left}, {"b", Align::right}}, {}), "a  b\n----\n");
}

TEST(Table, HasNoSpacesAtTheEndsOfLines) {
  const std::string text = text_of({{"wide title", Align::left}, {"another", Align::left}},
                                   {{"a", "b"}, {"only the first", ""}});
  EXPECT_EQ(text.find(" \n"), std::string::npos) << text;
}

TEST(Table, RequiresACellForEachColumn) {
  Table table({{"a"}, {"b"}});
  EXPECT_THROW(table.add_row({"1"}), ContractError);
  EXPECT_THROW(table.add_row({"1", "2", "3"}), ContractError);
  EXPECT_EQ(table.text(), "a  b\n----\n");
}

}  // namespace
}  // namespace sparsesync
