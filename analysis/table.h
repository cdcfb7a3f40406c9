// Tables for people: columns that line up, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace sparsesync {

class Table {
 public:
  enum class Align : unsigned char { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// @param cells  one for each column
  void add_row(std::vector<std::string> cells);
  /// Title, a rule, the rows; two spaces between columns, no spaces at the ends of lines.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sparsesync
