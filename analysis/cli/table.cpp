#include "analysis/cli/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsesync {
namespace {

/// Characters, not bytes: cells may hold "×".
std::size_t width_of(const std::string& cell) {
  return static_cast<std::size_t>(std::count_if(cell.begin(), cell.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  SPARSESYNC_EXPECT(cells.size(), ==, columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(width_of(columns_[i].title));
    for (const std::vector<std::string>& row : rows_) {
      widths[i] = std::max(widths[i], width_of(row[i]));
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string pad(widths[i] - width_of(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::left ? cell + pad : pad + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  std::size_t total = 2 * (columns_.size() - 1);
  for (const std::size_t width : widths) total += width;
  text += std::string(total, '-') + "\n";
  for (const std::vector<std::string>& row : rows_) {
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

}  // namespace sparsesync
