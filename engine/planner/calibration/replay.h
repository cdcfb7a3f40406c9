// The virtual clock: what workers did in a step, and when they would have ended on any link.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparsesync/transports/local.h"

namespace sparsesync {

/// One thing that a worker did, in its own order. All but computing takes no time of its own.
struct RecordedEvent {
  enum class Kind : std::uint8_t {
    compute,  // works for `seconds`
    send,     // posts a message of `bytes` to `peer`, as one of a group
    receive,  // posts a receive of the next message from `peer`, as one of a group
    take,     // waits for a message of a group: it was that of `peer`, and took `seconds` to handle
    finish,   // waits until all messages that a group sends have gone out, and are read
  };
  Kind kind = Kind::compute;
  std::int32_t group = 0;  // any number but of another group of this worker in this step
  std::int32_t peer = 0;
  std::int64_t bytes = 0;  // on the wire, the header among them
  double seconds = 0;      // of the processor
};

/// What each worker did in one step, by rank. All begin together, on idle links.
struct RecordedStep {
  std::vector<std::vector<RecordedEvent>> workers;
};

/// A discrete-event simulation of one step on links of the given kind: when each worker ends, in
/// seconds after the common beginning.
///
/// The network is that of the transport `local`: a worker's messages leave one after another in the
/// order of posting, are `latency_s` under way, and come in chunk by chunk (kLinkChunkBytes) as
/// they arrive; a link is busy for bytes · 8 / rate in each direction. A message is read, its
/// sender's memory free, once its receiver waits for something and has posted the receive. Which
/// message a worker takes next is what has come first on *these* links, whatever came first in the
/// run; handling it takes what handling that very message took in the run. Worker r's ends do not
/// depend on anything but the record and the link: the same bits each time.
/// @return one number for each worker, by rank
/// @throws InputError if a worker would wait forever, or the link or the record makes no sense
std::vector<double> replay(const RecordedStep& step, const LocalLink& link);

/// From the common beginning to the last worker's end, in seconds.
/// @throws InputError as replay()
double replayed_seconds(const RecordedStep& step, const LocalLink& link);

/// A run of the same steps, `repeat` times.
struct RecordedRun {
  int steps = 1;                       // of a repeat
  std::vector<RecordedStep> recorded;  // [repeat · steps + step]
};

/// What a step takes, in seconds: over repeats, of the mean over steps.
struct StepTimes {
  double median = 0;
  double min = 0;
};

/// What a step of the run takes on a link.
/// @throws InputError as replay(), or if not all repeats are complete
StepTimes replayed_times(const RecordedRun& run, const LocalLink& link);

/// The same of times that were measured.
/// @param seconds  of each repeat's mean step; one at least
StepTimes times_of(const std::vector<double>& seconds);

/// What one worker moved in a step.
struct RecordedTraffic {
  std::int64_t bytes_sent = 0;
  std::int64_t messages_sent = 0;
  std::int64_t messages_received = 0;
  double compute_seconds = 0;  // handling of messages among them
};

/// The sum of a worker's events.
RecordedTraffic traffic_of(std::span<const RecordedEvent> events);

}  // namespace sparsesync
