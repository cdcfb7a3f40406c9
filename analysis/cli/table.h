// Tables for people: columns that line up, numbers to the right.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sparsesync {

/// A table that is filled row by row.
class Table {
 public:
  enum class Align : unsigned char { left, right };
  /// What stands over a column, and to which side its cells are pushed.
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Adds a row at the end.
  /// @pre there is a cell for each column (ContractError otherwise)
  void add_row(std::vector<std::string> cells);
  /// Title, a rule, the rows; two spaces between columns, no spaces at the ends of lines.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sparsesync
