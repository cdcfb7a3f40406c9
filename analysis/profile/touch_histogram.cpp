#include "analysis/profile/touch_histogram.h"

#include <algorithm>

namespace sparsesync {
namespace {

bool is_before(const CountedRow& a, const CountedRow& b) {
  return a.row < b.row;
}

/// Replaces consecutive entries of the same row by their sum.
void sum_repeats(std::vector<CountedRow>& rows) {
  std::size_t kept = 0;
  for (const CountedRow& each : rows) {
    if (kept > 0 && rows[kept - 1].row == each.row) {
      rows[kept - 1].touches += each.touches;
    } else {
      rows[kept++] = each;
    }
  }
  rows.resize(kept);
}

}  // namespace

void TouchCounts::add(std::span<const CountedRow> rows) {
  // A merge reads all merged entries, so it waits for as many new ones.
  constexpr std::size_t kFew = std::size_t{1} << 16U;
  for (const CountedRow& each : rows) touches_ += each.touches;
  pending_.insert(pending_.end(), rows.begin(), rows.end());
  if (pending_.size() >= std::max(kFew, merged_.size())) merge();
}

std::span<const CountedRow> TouchCounts::rows() {
  merge();
  return merged_;
}

void TouchCounts::merge() {
  std::sort(pending_.begin(), pending_.end(), is_before);
  sum_repeats(pending_);
  const auto before = std::ssize(merged_);
  merged_.insert(merged_.end(), pending_.begin(), pending_.end());
  std::inplace_merge(merged_.begin(), merged_.begin() + before, merged_.end(), is_before);
  sum_repeats(merged_);
  pending_.clear();
}

CountsOfCounts counts_of_counts(std::span<const CountedRow> rows) {
  std::vector<std::int64_t> touches;
  touches.reserve(rows.size());
  for (const CountedRow& each : rows) touches.push_back(each.touches);
  std::sort(touches.begin(), touches.end());
  CountsOfCounts counts;
  for (const std::int64_t each : touches) {
    if (counts.empty() || counts.back().first != each) counts.emplace_back(each, 0);
    ++counts.back().second;
  }
  return counts;
}

std::vector<CountedRow> hottest(std::span<const CountedRow> rows, std::size_t most) {
  std::vector<CountedRow> hot(std::min(most, rows.size()));
  std::partial_sort_copy(rows.begin(), rows.end(), hot.begin(), hot.end(),
                         [](const CountedRow& a, const CountedRow& b) {
                           return a.touches != b.touches ? a.touches > b.touches : a.row < b.row;
                         });
  return hot;
}

}  // namespace sparsesync
