// What a bucket is expected to cost on a network: messages, bytes and processors' work, and the
// seconds that they take by the α-β model.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "schemes/bucket.h"
#include "schemes/statistics.h"
#include "sparsesync/network.h"  // IWYU pragma: export

namespace sparsesync {

/// What the union of `total` indices of a range takes beyond what aggregated_rows stands for:
/// unite() in kernels/rows/aggregate.h.
Work work_of_union(double range, double total);

/// One of HostCosts, by the name that files give it, and what of Work it is the cost of.
struct HostCost {
  std::string_view name;
  double HostCosts::*seconds;
  double Work::*amount;
};
inline constexpr std::array kHostCosts{
    HostCost{"encode_s_per_row", &HostCosts::encode_s_per_row, &Work::encoded_rows},
    HostCost{"encode_s_per_byte", &HostCosts::encode_s_per_byte, &Work::encoded_bytes},
    HostCost{"aggregate_s_per_row", &HostCosts::aggregate_s_per_row, &Work::aggregated_rows},
    HostCost{"aggregate_s_per_byte", &HostCosts::aggregate_s_per_byte, &Work::aggregated_bytes},
    HostCost{"sort_s_per_row", &HostCosts::sort_s_per_row, &Work::sorted_rows},
    HostCost{"own_s_per_row", &HostCosts::own_s_per_row, &Work::owned_rows},
    HostCost{"add_s_per_byte", &HostCosts::add_s_per_byte, &Work::added_bytes},
    HostCost{"message_s", &HostCosts::message_s, &Work::messages},
    HostCost{"step_s", &HostCosts::step_s, &Work::steps}};

/// What a worker's processor takes in a phase: apart from messages, and while some are on their
/// way.
struct PhaseSeconds {
  double apart = 0;
  double arriving = 0;
};

/// The same of a step.
struct HostSeconds {
  PhaseSeconds reduce;
  PhaseSeconds gather;

  double total() const;
  HostSeconds operator*(double factor) const;
};

/// What a phase is expected to cost: one exchange, headers included.
struct PhaseCost {
  double steps = 0;           // messages one after another: each pays the latency
  double messages = 0;        // that the busiest worker sends
  double bytes_sent = 0;      // by the worker that sends most
  double bytes_received = 0;  // by the worker that receives most
  // Of the longest chain of messages, each of which waits for the one before; 0 where no chain is
  // longer than what one worker moves.
  double bytes_chained = 0;
  // Of the busiest worker's processor, on its own rows too; but for messages and steps.
  Work work = {};
  Work arriving = {};  // the same that is done message by message while others are on their way

  /// Both, and messages and steps among it.
  Work all_work() const;

  double bytes_busiest() const { return bytes_sent > bytes_received ? bytes_sent : bytes_received; }
  /// steps · latency + bytes · 8 / rate of the busiest worker or the longest chain, and what its
  /// processor takes for its work. What it does as messages arrive overlaps with their way: of the
  /// two the longer one counts, and of the shorter one message's share.
  double seconds(const Network& network) const;
  /// The same where it is known what the busiest processor takes.
  double seconds(const Network& network, const PhaseSeconds& host) const;
  /// What it is expected to take.
  PhaseSeconds host_seconds(const HostCosts& costs) const;
  friend bool operator==(const PhaseCost&, const PhaseCost&) = default;
};

/// What a bucket is expected to cost in one step.
struct Cost {
  PhaseCost reduce;
  PhaseCost gather;

  /// Adds what crosses in the same exchanges.
  Cost& operator+=(const Cost& other);

  /// Of both phases.
  Work all_work() const;
  /// Over both phases: the larger of what the worker that sends most sends and of what the one that
  /// receives most receives.
  double bytes_busiest() const;
  /// Phase after phase.
  double seconds(const Network& network) const;
  /// The same where it is known what the busiest processor takes.
  double seconds(const Network& network, const HostSeconds& host) const;
  /// What it is expected to take.
  HostSeconds host_seconds(const HostCosts& costs) const;
  friend bool operator==(const Cost&, const Cost&) = default;
};

/// One step in which each worker sends each other one a message of so many bytes, header included.
PhaseCost all_to_all_cost(int size, double message_bytes);

/// What a cost is asked for. A view.
struct Workload {
  std::span<const RowSpace> spaces;
  int size = 1;
  const Statistics& statistics;
  SchemeOptions options = {};
  /// That each phase is cut into: only workspaces are asked for with more than one.
  int rounds = 1;
  /// Whether the phase `announce` has told all workers which rows there are.
  bool announced = false;
};

/// The sum over all row spaces of of_space(space, statistics).
template <typename OfSpace>
double sum_over_spaces(const Workload& workload, OfSpace&& of_space) {
  double sum = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    sum += of_space(workload.spaces[i], workload.statistics[i]);
  }
  return sum;
}

}  // namespace sparsesync
