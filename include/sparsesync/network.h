// The cost model of network and processors: an α-β model of links, and seconds per unit of CPU
// work.
#pragma once

namespace sparsesync {

/// Counts the CPU work of one worker.
struct Work {
  /// Rows copied into messages or from messages to their destination, including index coding.
  double encoded_rows = 0;
  /// Bytes of values copied in the same way, without indices.
  double encoded_bytes = 0;
  /// Rows decoded, merged with other workers' rows, and added.
  double aggregated_rows = 0;
  /// Bytes of values decoded, merged and added.
  double aggregated_bytes = 0;
  /// Rows sorted.
  double sorted_rows = 0;
  /// Distinct rows of all workers whose owner this worker computes.
  double owned_rows = 0;
  /// Bytes of dense values added.
  double added_bytes = 0;
  /// Pairs of a sent and a received message.
  double messages = 0;
  /// Times that the worker waits for a set of messages.
  double steps = 0;

  /// Adds the counts of `other`.
  Work& operator+=(const Work& other);
  friend bool operator==(const Work&, const Work&) = default;
};

/// Holds the CPU time per unit of each count of Work. 0 means unknown; such work is assumed to be
/// free.
struct HostCosts {
  /// Seconds per row, for Work::encoded_rows.
  double encode_s_per_row = 0;
  /// Seconds per byte, for Work::encoded_bytes.
  double encode_s_per_byte = 0;
  /// Seconds per row, for Work::aggregated_rows.
  double aggregate_s_per_row = 0;
  /// Seconds per byte, for Work::aggregated_bytes.
  double aggregate_s_per_byte = 0;
  /// Seconds per row, for Work::sorted_rows.
  double sort_s_per_row = 0;
  /// Seconds per row, for Work::owned_rows.
  double own_s_per_row = 0;
  /// Seconds per byte, for Work::added_bytes.
  double add_s_per_byte = 0;
  /// Seconds per message, for Work::messages.
  double message_s = 0;
  /// Seconds per wait, for Work::steps.
  double step_s = 0;

  /// Returns the seconds that one thread needs for all of `work`.
  double seconds(const Work& work) const;
};

/// Models the network and the processors: an α-β model that is the same for each worker and
/// direction.
/// @code
/// SessionOptions options;
/// options.network = Network{.latency_s = 50e-6, .rate_bps = 25e9};  // 50 µs, 25 Gbit/s
/// @endcode
struct Network {
  /// Seconds per message.
  double latency_s = 0;
  /// Bits/s.
  double rate_bps = 0;
  HostCosts host = {};  ///< CPU time of each worker
};

}  // namespace sparsesync
