// What one worker of a comparison saw, and how it gets from its process to the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/scheme/plan.h"
#include "schemes/scheme.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// What one worker saw of one step.
struct StepRecord {
  Clock::time_point begin;
  Clock::time_point end;
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t messages_sent = 0;
  std::int64_t index_bytes_sent = 0;
  std::int64_t non_finite = 0;  // values of the sums, where they crossed as a narrower type
  std::uint64_t bits = 0;       // a hash of the result
};

/// What one worker brings home.
struct WorkerRecord {
  std::vector<StepRecord> steps;  // [repeat · steps + step]
  std::optional<std::string> first_difference;
  std::int64_t memory_bytes = 0;
  std::vector<SpaceChoice> choices;
  SchemeVariant variant;               // that its bucket went in the end
  int rounds = 1;                      // that each phase was cut into in the end
  std::vector<Imbalance> imbalances;   // [step], of worker 0, where the scheme has servers
  std::optional<std::string> refusal;  // the scheme does not fit: nothing else counts
};

/// A record as a text, for another process. Machines have clocks of their own: each step begins at
/// 0.
std::string text_of(const WorkerRecord& record);
/// The record that text_of() made it from.
/// @throws ProtocolError if it is no such text
WorkerRecord record_from(const std::string& text);

}  // namespace sparsesync
