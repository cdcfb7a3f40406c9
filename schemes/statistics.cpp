#include "schemes/statistics.h"

#include <algorithm>
#include <cmath>

#include "kernels/aggregate.h"
#include "kernels/even_ranges.h"
#include "schemes/transport.h"

namespace sparsesync {
namespace {

/// The quantile of the standard normal distribution, by bisection of its distribution function.
double normal_quantile(double probability) {
  double low = -10;
  double high = 10;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  for (const HostCost& cost : kHostCosts) this->*cost.amount += other.*cost.amount;
  return *this;
}

double HostCosts::seconds(const Work& work) const {
  double seconds = 0;
  for (const HostCost& cost : kHostCosts) seconds += this->*cost.seconds * work.*cost.amount;
  return seconds;
}

double HostSeconds::total() const {
  return reduce.apart + reduce.arriving + gather.apart + gather.arriving;
}

HostSeconds HostSeconds::operator*(double factor) const {
  return {{reduce.apart * factor, reduce.arriving * factor},
          {gather.apart * factor, gather.arriving * factor}};
}

Work work_of_union(double range, double total) {
  Work work;
  if (unites_by_address(static_cast<Index>(range), static_cast<Index>(total))) {
    // A bit for each index, cleared and then read.
    constexpr double kPasses = 2;
    work.added_bytes = kPasses * range / 8;
  } else {
    work.sorted_rows = total;
  }
  return work;
}

Work PhaseCost::all_work() const {
  Work all = work;
  all += arriving;
  all.messages += messages;
  all.steps += steps;
  return all;
}

Cost& Cost::operator+=(const Cost& other) {
  const auto add = [](PhaseCost& to, const PhaseCost& from) {
    to.steps += from.steps;
    to.messages += from.messages;
    to.bytes_sent += from.bytes_sent;
    to.bytes_received += from.bytes_received;
    to.bytes_chained += from.bytes_chained;
    to.work += from.work;
    to.arriving += from.arriving;
  };
  add(reduce, other.reduce);
  add(gather, other.gather);
  return *this;
}

Work Cost::all_work() const {
  Work all = reduce.all_work();
  all += gather.all_work();
  return all;
}

double Cost::bytes_busiest() const {
  return std::max(reduce.bytes_sent + gather.bytes_sent,
                  reduce.bytes_received + gather.bytes_received);
}

HostSeconds Cost::host_seconds(const HostCosts& costs) const {
  const auto phase = [&](const PhaseCost& cost) {
    Work apart = cost.work;
    apart.messages += cost.messages;
    apart.steps += cost.steps;
    return PhaseSeconds{costs.seconds(apart), costs.seconds(cost.arriving)};
  };
  return {phase(reduce), phase(gather)};
}

double Cost::seconds(const Network& network) const {
  return seconds(network, host_seconds(network.host));
}

double Cost::seconds(const Network& network, const HostSeconds& host) const {
  const auto phase = [&](const PhaseCost& cost, const PhaseSeconds& taken) {
    const double on_links =
        std::max(cost.bytes_busiest(), cost.bytes_chained) * 8 / network.rate_bps;
    return cost.steps * network.latency_s + taken.apart + std::max(on_links, taken.arriving) +
           std::min(on_links, taken.arriving) / std::max(1.0, cost.messages);
  };
  return phase(reduce, host.reduce) + phase(gather, host.gather);
}

std::span<const Index> indices_in(std::span<const Index> set, IndexRange range) {
  const auto begin = std::lower_bound(set.begin(), set.end(), range.begin);
  const auto end = std::lower_bound(begin, set.end(), range.end);
  return {begin, end};
}

void Traffic::message(int from, int to, std::int64_t payload) {
  payload_sent[static_cast<std::size_t>(from)] += payload;
  payload_received[static_cast<std::size_t>(to)] += payload;
  ++messages_sent[static_cast<std::size_t>(from)];
}

void Traffic::all_reduce(std::int64_t bytes) {
  const std::int64_t moved = all_reduce_bytes(bytes, static_cast<int>(payload_sent.size()));
  for (std::int64_t& sent : payload_sent) sent += moved;
  for (std::int64_t& received : payload_received) received += moved;
}

namespace {

/// The rows of all sets, increasing, repeats among them.
std::vector<Index> sorted_rows(const IndexSets& sets) {
  std::vector<Index> all;
  for (const std::span<const Index> set : sets) all.insert(all.end(), set.begin(), set.end());
  std::sort(all.begin(), all.end());
  return all;
}

/// As SpaceStatistics has it.
/// @param all  sorted_rows()
double sent_at_least(const IndexSets& sets, std::span<const Index> all) {
  std::vector<Index> alone;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool repeats =
        (i > 0 && all[i - 1] == all[i]) || (i + 1 < all.size() && all[i + 1] == all[i]);
    if (!repeats) alone.push_back(all[i]);
  }
  const double others = std::max(0.0, static_cast<double>(sets.size()) - 2);
  double most = 0;
  for (const std::span<const Index> set : sets) {
    double own = 0;
    for (const Index row : set) {
      own += std::binary_search(alone.begin(), alone.end(), row) ? 1 : 0;
    }
    most = std::max(most, static_cast<double>(set.size()) + others * own);
  }
  return most;
}

}  // namespace

std::vector<Index> united_rows(const IndexSets& sets) {
  std::vector<Index> all = sorted_rows(sets);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

SpaceStatistics statistics_of(const IndexSets& sets, Index rows) {
  const auto workers = static_cast<double>(sets.size());
  const EvenRanges ranges(rows, static_cast<Index>(sets.size()));
  std::vector<Index> united = sorted_rows(sets);
  SpaceStatistics statistics;
  statistics.sent_at_least = sent_at_least(sets, united);
  united.erase(std::unique(united.begin(), united.end()), united.end());
  statistics.united = static_cast<double>(united.size());
  for (const std::span<const Index> set : sets) {
    const auto touched = static_cast<double>(set.size());
    statistics.touched_mean += touched / workers;
    statistics.touched_max = std::max(statistics.touched_max, touched);
  }
  for (std::size_t group = 1; group < sets.size(); group *= 2) {
    std::size_t most = 0;
    for (std::size_t first = 0; first < sets.size(); first += group) {
      const auto begin = sets.begin() + static_cast<std::ptrdiff_t>(first);
      const std::size_t workers_of_it = std::min(group, sets.size() - first);
      most = std::max(
          most, united_rows({begin, begin + static_cast<std::ptrdiff_t>(workers_of_it)}).size());
    }
    statistics.united_in_groups.push_back(static_cast<double>(most));
  }
  for (Index part = 0; part < ranges.parts(); ++part) {
    std::size_t pushed = 0;
    for (const std::span<const Index> set : sets) {
      pushed += indices_in(set, ranges.range(part)).size();
    }
    const auto pulled = static_cast<double>(indices_in(united, ranges.range(part)).size());
    if (united.empty()) continue;
    statistics.push_skewness =
        std::max(statistics.push_skewness, static_cast<double>(pushed) / statistics.touched_mean);
    statistics.pull_skewness =
        std::max(statistics.pull_skewness, workers * pulled / statistics.united);
  }
  return statistics;
}

double united_by(const SpaceStatistics& statistics, int workers, int size) {
  if (workers >= size) return statistics.united;
  const std::vector<double>& known = statistics.united_in_groups;
  // The groups next to it: as many workers or fewer, and more.
  std::pair<double, double> below{1, known.empty() ? statistics.touched_max : known.front()};
  std::pair<double, double> above{size, statistics.united};
  for (std::size_t i = 0; i < known.size(); ++i) {
    const auto group = static_cast<double>(std::size_t{1} << i);
    if (group <= workers) {
      below = {group, known[i]};
    } else {
      above = {group, known[i]};
      break;
    }
  }
  if (below.second <= 0) return 0;
  const double power = std::log(above.second / below.second) / std::log(above.first / below.first);
  return below.second * std::pow(workers / below.first, power);
}

double expected_largest_normal(int count) {
  return count < 2 ? 0 : normal_quantile((count - 0.375) / (count + 0.25));
}

}  // namespace sparsesync
