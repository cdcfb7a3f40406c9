// The measurements of one worker of a comparison, and their transfer between processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/scheme/plan.h"
#include "schemes/scheme.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// One worker's measurements of one step.
struct StepRecord {
  Clock::time_point begin;
  Clock::time_point end;
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t messages_sent = 0;
  std::int64_t index_bytes_sent = 0;
  std::int64_t non_finite = 0;  // infinite or NaN values of the sums, with a narrower wire type
  std::uint64_t bits = 0;       // hash of the result
};

/// One worker's measurements of all steps.
struct WorkerRecord {
  std::vector<StepRecord> steps;  // [repeat · steps + step]
  std::optional<std::string> first_difference;
  std::int64_t memory_bytes = 0;
  std::vector<SpaceChoice> choices;
  SchemeVariant variant;  // variant that the bucket used in the end
  int rounds = 1;         // rounds per phase in the end
  /// [step]; on worker 0 only, and only if the scheme has servers.
  std::vector<Imbalance> imbalances;
  /// Reason why the scheme does not fit; the other members are then unset.
  std::optional<std::string> refusal;
};

/// Serializes a record for another process. Clocks differ between machines, so each step begins at
/// time 0 in the text.
std::string text_of(const WorkerRecord& record);
/// Parses the text of text_of().
/// @throws ProtocolError if the text is invalid
WorkerRecord record_from(const std::string& text);

}  // namespace sparsesync
