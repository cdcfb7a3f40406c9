// The predicted cost of a bucket: messages, bytes and CPU work, and the seconds that they take in
// the α-β model.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "schemes/bucket.h"
#include "schemes/statistics.h"
#include "sparsesync/network.h"  // IWYU pragma: export

namespace sparsesync {

/// Returns the work of merging `total` indices of a range, beyond the work that aggregated_rows
/// represents. See unite() in kernels/rows/aggregate.h.
Work work_of_union(double range, double total);

/// Links a member of HostCosts, its name in files, and the count of Work that it is the cost of.
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

/// CPU seconds of one worker in a phase.
struct PhaseSeconds {
  double apart = 0;     // while no message is in flight
  double arriving = 0;  // while messages are in flight
};

/// CPU seconds of one worker in a step.
struct HostSeconds {
  PhaseSeconds reduce;
  PhaseSeconds gather;

  /// Returns the sum over both phases.
  double total() const;
  HostSeconds operator*(double factor) const;
};

/// The predicted cost of a phase that runs as one exchange, headers included.
struct PhaseCost {
  double steps = 0;           // messages that wait for each other; each adds one latency
  double messages = 0;        // messages sent by the busiest worker
  double bytes_sent = 0;      // by the worker that sends most
  double bytes_received = 0;  // by the worker that receives most
  // Bytes of the longest chain of messages that each wait for the previous one. 0 if no chain is
  // longer than one worker's own traffic.
  double bytes_chained = 0;
  // CPU work of the busiest worker, including its own rows. Excludes messages and steps.
  Work work = {};
  Work arriving = {};  // CPU work per message, done while other messages are in flight

  /// Returns all CPU work, including messages and steps.
  Work all_work() const;

  double bytes_busiest() const { return bytes_sent > bytes_received ? bytes_sent : bytes_received; }
  /// Returns the time of the phase: steps · latency, plus bytes · 8 / rate of the busiest worker or
  /// the longest chain, plus CPU time. CPU work on arriving messages overlaps with their transfer:
  /// the longer of the two counts in full, and one message's share of the shorter.
  double seconds(const Network& network) const;
  /// Returns the same for known CPU seconds.
  double seconds(const Network& network, const PhaseSeconds& host) const;
  /// Returns the predicted CPU seconds.
  PhaseSeconds host_seconds(const HostCosts& costs) const;
  friend bool operator==(const PhaseCost&, const PhaseCost&) = default;
};

/// The predicted cost of a bucket in one step.
struct Cost {
  PhaseCost reduce;
  PhaseCost gather;

  /// Adds the cost of more data that is sent in the same messages.
  Cost& operator+=(const Cost& other);

  /// Returns the CPU work of both phases.
  Work all_work() const;
  /// Returns the bytes over both phases that the busiest worker sends or receives, whichever is
  /// more. The busiest sender and the busiest receiver may be different workers.
  double bytes_busiest() const;
  /// Returns the sum of both phases' seconds.
  double seconds(const Network& network) const;
  /// Returns the same for known CPU seconds.
  double seconds(const Network& network, const HostSeconds& host) const;
  /// Returns the predicted CPU seconds.
  HostSeconds host_seconds(const HostCosts& costs) const;
  friend bool operator==(const Cost&, const Cost&) = default;
};

/// Returns the cost of a step in which each worker sends each other worker one message of
/// `message_bytes`, header included.
PhaseCost all_to_all_cost(int size, double message_bytes);

/// Input of a cost function. A view.
struct Workload {
  std::span<const RowSpace> spaces;
  int size = 1;
  const Statistics& statistics;
  SchemeOptions options = {};
  /// Rounds of each phase. Cost functions get 1; workspace functions may get more.
  int rounds = 1;
  /// Whether an announce phase has already sent all index sets.
  bool announced = false;
};

/// Returns the sum of of_space(space, statistics) over all row spaces.
template <typename OfSpace>
double sum_over_spaces(const Workload& workload, OfSpace&& of_space) {
  double sum = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    sum += of_space(workload.spaces[i], workload.statistics[i]);
  }
  return sum;
}

}  // namespace sparsesync
