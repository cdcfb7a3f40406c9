// Schemes by name: which exist, and what each is expected to cost.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsesync/bucket.h"
#include "sparsesync/network.h"

namespace sparsesync {

/// A scheme, as BucketSpec::scheme names it.
struct SchemeInfo {
  std::string_view name;
  std::string_view summary;  // one line
};
/// Returns all schemes, by name. "auto", which chooses among them, is not one of them.
std::vector<SchemeInfo> schemes();

/// A scheme's choices for one row space; empty where the scheme has no such choice.
struct SpaceChoice {
  std::string index_code;  // empty where no indices cross
  std::optional<int> row_groups;
  std::optional<int> column_slices;
};

/// A scheme and its communication pattern.
struct SchemeVariant {
  std::string scheme;
  std::optional<Communication> pattern = std::nullopt;  // where the scheme has a choice of it

  /// "all_gather (hierarchy)".
  std::string label() const;
  friend bool operator==(const SchemeVariant&, const SchemeVariant&) = default;
};

/// The expected cost of a variant.
struct Prediction {
  SchemeVariant variant;
  double seconds = 0;
  double bytes_busiest = 0;
  double memory_bytes = 0;  // of each worker's workspace
  Work work = {};           // of the busiest worker's processor
  double host_seconds = 0;  // what that takes; some of it may hide behind the wire
  int trials = 0;  // that host_seconds come from, of this variant or one that costs the same
  // If host_seconds are as far off as they may be, a model's further than those of trials.
  double seconds_at_best = 0;
  double seconds_at_worst = 0;
  std::string ruled_out = {};  // why it cannot be used; empty where it can
};

}  // namespace sparsesync
