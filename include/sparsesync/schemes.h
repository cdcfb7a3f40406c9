// The list of schemes, their choices, and their predicted costs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsesync/bucket.h"
#include "sparsesync/network.h"

namespace sparsesync {

/// Describes a scheme that BucketSpec::scheme accepts.
struct SchemeInfo {
  std::string_view name;     ///< the name for BucketSpec::scheme
  std::string_view summary;  ///< a description of one line
};
/// Returns all schemes, sorted by name. "auto", which selects one of them, is not listed.
/// @code
/// for (const SchemeInfo& scheme : schemes()) std::cout << scheme.name << '\n';
/// @endcode
std::vector<SchemeInfo> schemes();

/// Holds a scheme's choices for one row space. A choice that the scheme does not have is empty.
struct SpaceChoice {
  std::string index_code;  ///< name of the index code; empty if no indices are sent
  /// Number of row groups.
  std::optional<int> row_groups;
  /// Number of column slices.
  std::optional<int> column_slices;
};

/// Names a scheme and its communication pattern.
struct SchemeVariant {
  std::string scheme;
  std::optional<Communication> pattern = std::nullopt;  ///< nothing if the scheme supports only one

  /// Returns a label such as "all_gather (hierarchy)".
  std::string label() const;
  friend bool operator==(const SchemeVariant&, const SchemeVariant&) = default;
};

/// Holds the predicted cost of a step with one variant.
struct Prediction {
  SchemeVariant variant;
  /// Predicted time of a step.
  double seconds = 0;
  /// Bytes that the busiest worker sends or receives, whichever is more.
  double bytes_busiest = 0;
  double memory_bytes = 0;  ///< bytes of each worker's workspace
  Work work = {};           ///< CPU work of the busiest worker
  double host_seconds = 0;  ///< seconds of that work; part of them may overlap with communication
  /// Number of trials that `host_seconds` is based on, of this variant or one with equal cost.
  int trials = 0;
  /// Lower bound of `seconds`, given the uncertainty of `host_seconds`. The uncertainty of the
  /// model is larger than that of trials.
  double seconds_at_best = 0;
  /// Upper bound of `seconds`, given the same uncertainty.
  double seconds_at_worst = 0;
  std::string ruled_out = {};  ///< why the variant cannot be used; empty if it can
};

}  // namespace sparsesync
