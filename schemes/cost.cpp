#include "schemes/cost.h"

#include <algorithm>

#include "kernels/rows/aggregate.h"

namespace sparsesync {

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
  return {.reduce = {.apart = reduce.apart * factor, .arriving = reduce.arriving * factor},
          .gather = {.apart = gather.apart * factor, .arriving = gather.arriving * factor}};
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

PhaseCost all_to_all_cost(int size, double message_bytes) {
  if (size < 2) return {};
  const double peers = size - 1.0;
  return {.steps = 1,
          .messages = peers,
          .bytes_sent = peers * message_bytes,
          .bytes_received = peers * message_bytes};
}

double Cost::bytes_busiest() const {
  return std::max(reduce.bytes_sent + gather.bytes_sent,
                  reduce.bytes_received + gather.bytes_received);
}

PhaseSeconds PhaseCost::host_seconds(const HostCosts& costs) const {
  Work apart = work;
  apart.messages += messages;
  apart.steps += steps;
  return {.apart = costs.seconds(apart), .arriving = costs.seconds(arriving)};
}

double PhaseCost::seconds(const Network& network) const {
  return seconds(network, host_seconds(network.host));
}

double PhaseCost::seconds(const Network& network, const PhaseSeconds& host) const {
  const double on_links = std::max(bytes_busiest(), bytes_chained) * 8 / network.rate_bps;
  return steps * network.latency_s + host.apart + std::max(on_links, host.arriving) +
         std::min(on_links, host.arriving) / std::max(1.0, messages);
}

HostSeconds Cost::host_seconds(const HostCosts& costs) const {
  return {.reduce = reduce.host_seconds(costs), .gather = gather.host_seconds(costs)};
}

double Cost::seconds(const Network& network) const {
  return seconds(network, host_seconds(network.host));
}

double Cost::seconds(const Network& network, const HostSeconds& host) const {
  return reduce.seconds(network, host.reduce) + gather.seconds(network, host.gather);
}

}  // namespace sparsesync
