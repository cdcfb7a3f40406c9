#include "analysis/profile/overlap.h"

#include <algorithm>

namespace sparsesync {
namespace {

struct Touch {
  Index row = 0;
  std::int32_t worker = 0;
};

/// Returns all touches of a range, ordered by row and then by worker: a merge sort of the workers'
/// sets.
std::vector<Touch> merged_touches(const IndexSets& sets, IndexRange range) {
  std::vector<Touch> touches;
  std::vector<std::ptrdiff_t> ends;  // ends of the consecutive sorted runs
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    for (const Index row : indices_in(sets[worker], range)) {
      touches.push_back({row, static_cast<std::int32_t>(worker)});
    }
    ends.push_back(std::ssize(touches));
  }
  std::vector<Touch> merged(touches.size());
  while (ends.size() > 1) {
    std::vector<std::ptrdiff_t> next;
    std::ptrdiff_t begin = 0;
    for (std::size_t i = 0; i < ends.size(); i += 2) {
      const std::ptrdiff_t middle = ends[i];
      const std::ptrdiff_t end = i + 1 < ends.size() ? ends[i + 1] : middle;
      // Stable: for equal rows, the lower worker comes first.
      std::merge(touches.begin() + begin, touches.begin() + middle, touches.begin() + middle,
                 touches.begin() + end, merged.begin() + begin,
                 [](const Touch& a, const Touch& b) { return a.row < b.row; });
      next.push_back(end);
      begin = end;
    }
    touches.swap(merged);
    ends.swap(next);
  }
  return touches;
}

}  // namespace

void SharedRows::add(const SharedRows& next) {
  united.insert(united.end(), next.united.begin(), next.united.end());
  const auto add_up = [](std::vector<std::int64_t>& sums, const std::vector<std::int64_t>& others) {
    sums.resize(others.size());
    for (std::size_t i = 0; i < others.size(); ++i) sums[i] += others[i];
  };
  add_up(united_in_groups, next.united_in_groups);
  add_up(common, next.common);
}

SharedRows shared_rows(const IndexSets& sets, IndexRange range,
                       const SharedRowsQuestion& question) {
  const std::size_t paired = question.paired.size();
  std::vector<std::ptrdiff_t> place_of(sets.size(), -1);  // [worker]: index in question.paired
  for (std::size_t i = 0; i < paired; ++i) {
    place_of[static_cast<std::size_t>(question.paired[i])] = static_cast<std::ptrdiff_t>(i);
  }
  SharedRows found;
  found.united_in_groups.resize(question.group_sizes.size());
  found.common.resize(paired * paired);
  const std::vector<Touch> touches = merged_touches(sets, range);
  std::vector<std::size_t> places;
  for (std::size_t begin = 0; begin < touches.size();) {
    std::size_t end = begin;
    places.clear();
    for (; end < touches.size() && touches[end].row == touches[begin].row; ++end) {
      const std::ptrdiff_t place = place_of[static_cast<std::size_t>(touches[end].worker)];
      if (place >= 0) places.push_back(static_cast<std::size_t>(place));
    }
    found.united.push_back({touches[begin].row, static_cast<std::int64_t>(end - begin)});
    for (std::size_t i = 0; i < question.group_sizes.size(); ++i) {
      const int size = question.group_sizes[i];
      const int complete = static_cast<int>(sets.size()) / size;
      int last = -1;
      for (std::size_t touch = begin; touch < end; ++touch) {
        const int group = touches[touch].worker / size;
        if (group != last && group < complete) ++found.united_in_groups[i];
        last = group;
      }
    }
    for (std::size_t a = 0; a < places.size(); ++a) {
      for (std::size_t b = a + 1; b < places.size(); ++b) {
        ++found.common[places[a] * paired + places[b]];
      }
    }
    begin = end;
  }
  return found;
}

std::vector<IndexRange> even_work(const IndexSets& sets, Index rows, int parts) {
  const auto longest = std::max_element(
      sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::vector<IndexRange> ranges;
  Index begin = 0;
  for (int part = 1; part <= parts; ++part) {
    Index end = rows;
    if (part < parts && !longest->empty()) {
      end = (*longest)[longest->size() * static_cast<std::size_t>(part) /
                       static_cast<std::size_t>(parts)];
    }
    ranges.push_back({begin, std::max(begin, end)});
    begin = ranges.back().end;
  }
  return ranges;
}

double overlap_ratio(std::int64_t common, std::int64_t a, std::int64_t b) {
  const std::int64_t smaller = std::min(a, b);
  return smaller > 0 ? static_cast<double>(common) / static_cast<double>(smaller) : 0;
}

}  // namespace sparsesync
