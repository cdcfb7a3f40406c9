// The virtual clock: records of what workers did in a step, and their replay on any link.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparsesync/transports/local.h"

namespace sparsesync {

/// An event of one worker. Only computing and handling take time.
struct RecordedEvent {
  enum class Kind : std::uint8_t {
    compute,  // Computes for `seconds`.
    send,     // Posts a message of `bytes` to `peer`, in a group.
    receive,  // Posts a receive of the next message from `peer`, in a group.
    take,     // Takes a message of a group; `seconds` to handle `peer`'s.
    finish,   // Waits until all sends of a group have left and are read.
  };
  Kind kind = Kind::compute;
  std::int32_t group = 0;  // unique among this worker's groups of the step
  std::int32_t peer = 0;
  std::int64_t bytes = 0;  // on the wire, with the header
  double seconds = 0;      // CPU time
};

/// Events of each worker in one step. All workers begin together, on idle links.
struct RecordedStep {
  std::vector<std::vector<RecordedEvent>> workers;
};

/// Simulates one step on links of the given kind, by discrete events.
///
/// The network model is that of the transport `local`. A worker's messages leave one after another
/// in the order of posting, and are delayed by `latency_s`. They arrive chunk by chunk
/// (kLinkChunkBytes). A link is busy for bytes · 8 / rate_bps seconds in each direction. A message
/// is read, and its sender's memory is free, once its receiver has posted the receive and waits.
///
/// A worker takes messages in the order in which they arrive on these links, not in the recorded
/// order. Handling a message takes the time that was recorded for this message. The result depends
/// only on the record and the link, bit by bit.
/// @return when each worker ends, by rank, in seconds after the common beginning
/// @throws InputError if a worker would wait forever, or the link or the record is not valid
std::vector<double> replay(const RecordedStep& step, const LocalLink& link);

/// Returns the seconds from the common beginning to the last worker's end.
/// @throws InputError as replay()
double replayed_seconds(const RecordedStep& step, const LocalLink& link);

/// A recorded run, which repeats the same steps.
struct RecordedRun {
  int steps = 1;                       // steps per repeat
  std::vector<RecordedStep> recorded;  // [repeat · steps + step]
};

/// Seconds per step. Each repeat gives the mean over its steps.
struct StepTimes {
  double median = 0;
  double min = 0;
};

/// Returns the seconds per step of a run on a link.
/// @throws InputError as replay(), or if a repeat is incomplete
StepTimes replayed_times(const RecordedRun& run, const LocalLink& link);

/// Returns the seconds per step of a measured run.
/// @param seconds  [repeat] mean over its steps; at least one repeat
StepTimes times_of(const std::vector<double>& seconds);

/// Traffic and computing of one worker in a step.
struct RecordedTraffic {
  std::int64_t bytes_sent = 0;
  std::int64_t messages_sent = 0;
  std::int64_t messages_received = 0;
  double compute_seconds = 0;  // includes the handling of messages
};

/// Returns the sums of a worker's events.
RecordedTraffic traffic_of(std::span<const RecordedEvent> events);

}  // namespace sparsesync
