// CPU bodies of the operations on owners.
#include "kernels/owners.h"

#include <algorithm>
#include <numeric>

#include "kernels/bits.h"
#include "kernels/threads.h"

namespace sparsesync::cpu {
namespace {

/// Batches that the rows with several touchers are cut into; the last one is halved, down to as
/// many rows as leave an imbalance of no account.
constexpr Index kBatches = 16;
constexpr Index kSmallestBatch = 16;

/// Fewer rows are not worth a thread.
constexpr Index kGrain = 8192;

/// The upper half of a product of two numbers: where a random number falls in [0, size).
std::uint64_t scaled(std::uint64_t random, std::uint64_t size) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random) * size) >> 64U);
}

/// Touchers of each row, row after row.
struct Touchers {
  std::span<const Index> begin;
  std::span<const std::uint16_t> workers;

  std::span<const std::uint16_t> of(Index row) const {
    const auto first = static_cast<std::size_t>(begin[static_cast<std::size_t>(row)]);
    const auto last = static_cast<std::size_t>(begin[static_cast<std::size_t>(row) + 1]);
    return workers.subspan(first, last - first);
  }
};

/// @param begin  rows + 2 numbers of scratch, of which the first rows + 1 are the result's
Touchers transpose(std::span<const std::span<const Index>> touched, std::span<Index> begin,
                   std::span<std::uint16_t> workers) {
  // begin[row + 2] counts, then begin[row + 1] is where the row's next one goes, and in the end
  // where they end.
  std::fill(begin.begin(), begin.end(), Index{0});
  for (const std::span<const Index> of_worker : touched) {
    for (const Index row : of_worker) ++begin[static_cast<std::size_t>(row) + 2];
  }
  std::inclusive_scan(begin.begin(), begin.end(), begin.begin());
  for (std::size_t worker = 0; worker < touched.size(); ++worker) {
    for (const Index row : touched[worker]) {
      workers[static_cast<std::size_t>(begin[static_cast<std::size_t>(row) + 1]++)] =
          static_cast<std::uint16_t>(worker);
    }
  }
  return {begin.first(begin.size() - 1), workers};
}

/// The rows that several touched, those of fewer touchers first.
/// @param order   room for all rows
/// @param counts  workers + 1 numbers of scratch
std::span<Index> order_by_touchers(const Touchers& touchers, std::span<Index> order,
                                   std::span<Index> counts) {
  const auto rows = static_cast<Index>(touchers.begin.size()) - 1;
  std::fill(counts.begin(), counts.end(), Index{0});
  for (Index row = 0; row < rows; ++row) ++counts[touchers.of(row).size()];
  counts[1] = 0;
  std::exclusive_scan(counts.begin(), counts.end(), counts.begin(), Index{0});
  Index shared = 0;
  for (Index row = 0; row < rows; ++row) {
    const std::size_t number = touchers.of(row).size();
    if (number < 2) continue;
    order[static_cast<std::size_t>(counts[number]++)] = row;
    ++shared;
  }
  return order.first(static_cast<std::size_t>(shared));
}

/// What each worker lies below the level to which so much fills them.
/// @param loads   of each worker
/// @param sorted  as many numbers of scratch
void weigh(std::span<const std::uint64_t> loads, std::uint64_t fill,
           std::span<std::uint64_t> sorted, std::span<std::uint64_t> weights) {
  std::copy(loads.begin(), loads.end(), sorted.begin());
  std::sort(sorted.begin(), sorted.end());
  std::uint64_t below = 0;
  std::uint64_t level = 0;
  for (std::size_t number = 1; number <= sorted.size(); ++number) {
    below += sorted[number - 1];
    level = (fill + below) / number;
    if (number == sorted.size() || level <= sorted[number]) break;
  }
  for (std::size_t worker = 0; worker < loads.size(); ++worker) {
    weights[worker] = level > loads[worker] ? level - loads[worker] : 0;
  }
}

std::int32_t pick(std::span<const std::uint16_t> touchers, std::span<const std::uint64_t> weights,
                  std::uint64_t random) {
  std::uint64_t sum = 0;
  for (const std::uint16_t worker : touchers) sum += weights[worker];
  if (sum == 0) return touchers[scaled(random, touchers.size())];
  std::uint64_t rest = scaled(random, sum);
  for (const std::uint16_t worker : touchers) {
    if (rest < weights[worker]) return worker;
    rest -= weights[worker];
  }
  return touchers.back();
}

}  // namespace

void find_places(const Context&, std::span<const Index> set, std::span<const Index> rows,
                 std::span<Index> places, Count found) {
  SPARSESYNC_EXPECT(rows.size(), ==, places.size());
  std::size_t at = 0;
  std::size_t i = 0;
  for (; i < rows.size(); ++i) {
    while (at < set.size() && set[at] < rows[i]) ++at;
    if (at == set.size() || set[at] != rows[i]) break;
    places[i] = static_cast<Index>(at);
  }
  *found.location() = static_cast<Index>(i);
}

void choose_owners(const Context& context, std::span<const Index> united,
                   std::span<const std::span<const Index>> touched, std::span<std::int32_t> owners,
                   OwnersWorkspace& workspace) {
  SPARSESYNC_EXPECT(united.size(), ==, owners.size());
  SPARSESYNC_EXPECT(touched.size(), <=, std::size_t{1} << 16U);
  const auto rows = static_cast<Index>(united.size());
  const auto size = static_cast<Index>(touched.size());
  Index total = 0;
  for (const std::span<const Index> of_worker : touched) {
    total += static_cast<Index>(of_worker.size());
  }
  const std::span<Index> begin = workspace.begin.reserve(rows + 2 + size + 1);
  const Touchers touchers =
      transpose(touched, begin.first(united.size() + 2), workspace.touchers.reserve(total));
  const std::span<Index> shared =
      order_by_touchers(touchers, workspace.order.reserve(rows), begin.subspan(united.size() + 2));

  const std::span<std::uint64_t> levels = workspace.levels.reserve(3 * size);
  const std::span<std::uint64_t> loads = levels.first(touched.size());
  const std::span<std::uint64_t> sorted = levels.subspan(touched.size(), touched.size());
  const std::span<std::uint64_t> weights = levels.last(touched.size());
  const std::uint64_t load = load_of_a_row(touched.size());
  for (std::size_t worker = 0; worker < touched.size(); ++worker) {
    loads[worker] = touched[worker].size();
  }
  for (Index row = 0; row < rows; ++row) {
    const std::span<const std::uint16_t> of_row = touchers.of(row);
    if (of_row.size() != 1) continue;
    owners[static_cast<std::size_t>(row)] = of_row.front();
    loads[of_row.front()] += load;
  }
  const auto all = static_cast<Index>(shared.size());
  const Index whole = std::max(kSmallestBatch, ceil_div(all, kBatches));
  for (Index at = 0; at < all;) {
    const Index left = all - at;
    const Index batch = left > whole            ? whole
                        : left > kSmallestBatch ? ceil_div<Index>(left, 2)
                                                : left;
    weigh(loads, static_cast<std::uint64_t>(batch) * load, sorted, weights);
    parallel_for(context, batch, kGrain, [&](IndexRange range) {
      for (Index i = at + range.begin; i < at + range.end; ++i) {
        const auto row = static_cast<std::size_t>(shared[static_cast<std::size_t>(i)]);
        owners[row] = pick(touchers.of(static_cast<Index>(row)), weights,
                           mix64(static_cast<std::uint64_t>(united[row])));
      }
    });
    for (Index i = at; i < at + batch; ++i) {
      const auto row = static_cast<std::size_t>(shared[static_cast<std::size_t>(i)]);
      loads[static_cast<std::size_t>(owners[row])] += load;
    }
    at += batch;
  }
}

void order_by_owner(const Context&, std::span<const std::int32_t> owners,
                    std::span<const Index> places, std::span<Index> order, std::span<Index> begin) {
  SPARSESYNC_EXPECT(places.size(), ==, order.size());
  const auto owner_of = [&](Index place) {
    return static_cast<std::size_t>(owners[static_cast<std::size_t>(place)]);
  };
  std::fill(begin.begin(), begin.end(), Index{0});
  for (const Index place : places) ++begin[owner_of(place)];
  std::exclusive_scan(begin.begin(), begin.end(), begin.begin(), Index{0});
  for (std::size_t i = 0; i < places.size(); ++i) {
    order[static_cast<std::size_t>(begin[owner_of(places[i])]++)] = static_cast<Index>(i);
  }
  // Each has moved to where the next one begins.
  std::copy_backward(begin.begin(), begin.end() - 1, begin.end());
  begin.front() = 0;
}

void rows_of_owner(const Context&, std::span<const std::int32_t> owners,
                   std::span<const Index> rows, std::span<const Index> places, std::int32_t owner,
                   std::span<Index> out, Count count) {
  SPARSESYNC_EXPECT(rows.size(), ==, places.size());
  SPARSESYNC_EXPECT(rows.size(), <=, out.size());
  Index written = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out[static_cast<std::size_t>(written)] = rows[i];
    written += owners[static_cast<std::size_t>(places[i])] == owner ? 1 : 0;
  }
  *count.location() = written;
}

}  // namespace sparsesync::cpu
