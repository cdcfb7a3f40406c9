// The network and the processors as costs are planned with: an α-β model, and seconds of work.
#pragma once

namespace sparsesync {

/// Counts the work of one worker's processor.
struct Work {
  // Gathered into messages or brought from them to their places, with the coding of indices.
  double encoded_rows = 0;
  double encoded_bytes = 0;  // of values, not of indices
  // Decoded, united with other workers' rows, and added up.
  double aggregated_rows = 0;
  double aggregated_bytes = 0;
  double sorted_rows = 0;  // brought into another order
  double owned_rows = 0;   // of all workers, where each finds out who owns them
  double added_bytes = 0;  // of dense values
  double messages = 0;     // one posted, and one taken
  double steps = 0;        // until all messages that it waits for at a time have come

  Work& operator+=(const Work& other);
  friend bool operator==(const Work&, const Work&) = default;
};

/// Seconds of a worker's processor for each of what Work counts; 0 where that is not known.
struct HostCosts {
  double encode_s_per_row = 0;
  double encode_s_per_byte = 0;
  double aggregate_s_per_row = 0;
  double aggregate_s_per_byte = 0;
  double sort_s_per_row = 0;
  double own_s_per_row = 0;
  double add_s_per_byte = 0;
  double message_s = 0;
  double step_s = 0;

  /// Returns the seconds of a worker that does all of it, one thing after another.
  double seconds(const Work& work) const;
};

/// The α-β model of a link, the same in each direction of each worker, and its workers' processors.
struct Network {
  double latency_s = 0;
  double rate_bps = 0;  // bits/s
  HostCosts host = {};
};

}  // namespace sparsesync
