// CPU implementations of the operations on owners.
#include "kernels/partition/owners.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/partition/owner_batches.h"

namespace sparsesync::cpu {
namespace {

using detail::OwnedRow;
using detail::OwnerBatch;
using detail::OwnerBatches;

/// Number of rows that is worth waking a thread for.
constexpr Index kGrain = 8192;

/// Scales a random number to [0, size): the upper half of the product.
std::uint64_t scaled(std::uint64_t random, std::uint64_t size) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random) * size) >> 64U);
}

/// The workers that touched each row, row after row.
struct Touchers {
  std::span<const Index> begin;
  std::span<const std::uint16_t> workers;

  std::span<const std::uint16_t> of(Index row) const {
    const auto first = static_cast<std::size_t>(begin[static_cast<std::size_t>(row)]);
    const auto last = static_cast<std::size_t>(begin[static_cast<std::size_t>(row) + 1]);
    return workers.subspan(first, last - first);
  }
};

/// Transposes the lists of rows per worker to lists of workers per row.
/// @param begin  rows + 2 numbers of scratch memory; the result uses the first rows + 1
Touchers transpose(std::span<const std::span<const Index>> touched, std::span<Index> begin,
                   std::span<std::uint16_t> workers) {
  // First, begin[row + 2] counts the workers of a row. Then begin[row + 1] is the position of the
  // row's next worker, and finally the end of its workers.
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

/// Returns the rows that several workers touched, ordered by the number of these workers.
/// @param order   capacity for all rows
/// @param counts  workers + 1 numbers of scratch memory
std::span<Index> order_by_touchers(const Touchers& touchers, std::span<Index> order,
                                   std::span<Index> counts) {
  const auto rows = std::ssize(touchers.begin) - 1;
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

/// The loads of the workers in a step, in rows. They consist of the known loads, and of each
/// worker's expected share of the rows that have no owner yet.
class Loads {
 public:
  /// @param scratch  4 numbers per worker
  Loads(std::span<const std::span<const Index>> touched, std::size_t united,
        std::span<std::uint64_t> scratch)
      : size_(touched.size()),
        sent_(scratch.first(size_)),
        received_(scratch.subspan(size_, size_)),
        sorted_(scratch.subspan(2 * size_, size_)),
        weights_(scratch.last(size_)) {
    for (std::size_t worker = 0; worker < size_; ++worker) {
      sent_[worker] = touched[worker].size();
      received_[worker] = united;
    }
  }

  /// Adds a row to the load of its owner, from the number of workers that touched it.
  void own(std::size_t owner, std::size_t touchers) {
    const OwnedRow row(size_, touchers);
    sent_[owner] += row.sends;
    received_[owner] += row.receives;
  }
  /// Adds a row without an owner to the expected loads, from the number of workers that touched it.
  void expect(std::size_t touchers) {
    const OwnedRow row(size_, touchers);
    to_send_ += row.sends;
    to_receive_ += row.receives;
  }
  /// Removes a row from the expected loads, because it has an owner now.
  void expected(std::size_t touchers) {
    const OwnedRow row(size_, touchers);
    to_send_ -= row.sends;
    to_receive_ -= row.receives;
  }

  /// Returns the weight of each worker for a batch, relative to the others. The weight is the
  /// distance of the worker's load below the level that the batch would fill all loads up to.
  ///
  /// The number of workers that touched the batch's middle row stands for all its rows.
  std::span<const std::uint64_t> weigh(const OwnerBatch& batch, std::size_t touchers) {
    const OwnedRow row(size_, touchers);
    const std::uint64_t fill = row.load_of(batch);
    for (std::size_t worker = 0; worker < size_; ++worker) {
      weights_[worker] =
          row.load(sent_[worker] + to_send_ / size_, received_[worker] + to_receive_ / size_);
    }
    std::copy(weights_.begin(), weights_.end(), sorted_.begin());
    std::sort(sorted_.begin(), sorted_.end());
    std::uint64_t below = 0;
    std::uint64_t level = 0;
    for (std::size_t number = 1; number <= size_; ++number) {
      below += sorted_[number - 1];
      level = (fill + below) / number;
      if (number == size_ || level <= sorted_[number]) break;
    }
    for (std::uint64_t& weight : weights_) weight = level > weight ? level - weight : 0;
    return weights_;
  }

 private:
  std::size_t size_;
  std::span<std::uint64_t> sent_;
  std::span<std::uint64_t> received_;
  std::span<std::uint64_t> sorted_;
  std::span<std::uint64_t> weights_;
  std::uint64_t to_send_ = 0;
  std::uint64_t to_receive_ = 0;
};

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
  const auto rows = std::ssize(united);
  const auto size = std::ssize(touched);
  Index total = 0;
  for (const std::span<const Index> of_worker : touched) {
    total += std::ssize(of_worker);
  }
  const std::span<Index> begin = workspace.begin.reserve(rows + 2 + size + 1);
  const Touchers touchers =
      transpose(touched, begin.first(united.size() + 2), workspace.touchers.reserve(total));
  const std::span<Index> shared =
      order_by_touchers(touchers, workspace.order.reserve(rows), begin.subspan(united.size() + 2));
  Loads loads(touched, united.size(), workspace.levels.reserve(4 * size));
  for (Index row = 0; row < rows; ++row) {
    const std::span<const std::uint16_t> of_row = touchers.of(row);
    if (of_row.size() != 1) continue;
    owners[static_cast<std::size_t>(row)] = of_row.front();
    loads.own(of_row.front(), 1);
  }
  for (const Index row : shared) loads.expect(touchers.of(row).size());
  OwnerBatches batches(std::ssize(shared));
  for (OwnerBatch batch = batches.next(); batch.size > 0; batch = batches.next()) {
    const std::span<const Index> of_batch =
        part_of(shared, {batch.begin, batch.begin + batch.size});
    const Index middle = shared[static_cast<std::size_t>(middle_of(batch))];
    const std::span<const std::uint64_t> weights = loads.weigh(batch, touchers.of(middle).size());
    parallel_for(context, batch.size, kGrain, [&](IndexRange range) {
      for (const Index row : part_of(of_batch, range)) {
        const auto place = static_cast<std::size_t>(row);
        owners[place] =
            pick(touchers.of(row), weights, mix64(static_cast<std::uint64_t>(united[place])));
      }
    });
    for (const Index row : of_batch) {
      loads.own(static_cast<std::size_t>(owners[static_cast<std::size_t>(row)]),
                touchers.of(row).size());
      loads.expected(touchers.of(row).size());
    }
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
  // Each begin has advanced to the next owner's begin. Shift them back.
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

void find_places_all(const Context& context, std::span<const Index> set,
                     std::span<const PlacesJob> jobs, std::span<Index> found) {
  SPARSESYNC_EXPECT(jobs.size(), ==, found.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    find_places(context, set, jobs[i].rows, jobs[i].places, Count(&found[i]));
  }
}

void rows_of_owner_all(const Context& context, std::span<const std::int32_t> owners,
                       std::span<const OwnedJob> jobs, std::int32_t owner,
                       std::span<Index> counts) {
  SPARSESYNC_EXPECT(jobs.size(), ==, counts.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    rows_of_owner(context, owners, jobs[i].rows, jobs[i].places, owner, jobs[i].out,
                  Count(&counts[i]));
  }
}

}  // namespace sparsesync::cpu
