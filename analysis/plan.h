// The planner: what each scheme is expected to take for a bucket, and so which one to use.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schemes/scheme.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// What is known when a scheme is to be chosen. A view.
struct PlanQuestion {
  std::span<const RowSpace> spaces;  // as they cross
  int size = 1;
  const Statistics& statistics;
  Network network;
  SchemeOptions options = {};
  bool has_all_reduce = false;                  // the transport, of its own
  bool announce = false;                        // only schemes that use announced rows are of use
  std::optional<double> memory = std::nullopt;  // bytes of workspace that each worker has
};

/// One way to synchronize a bucket.
struct Way {
  std::string scheme;
  std::optional<Communication> pattern = std::nullopt;  // where the scheme has a choice of it

  /// "all_gather (hierarchy)".
  std::string label() const;
  friend bool operator==(const Way&, const Way&) = default;
};

/// That of a bucket whose scheme and options say it.
Way way_of(const SchemeEntry& entry, const SchemeOptions& options);

/// The options that make a bucket go a way.
SchemeOptions options_for(const Way& way, SchemeOptions options);

/// What a way is expected to take.
struct Prediction {
  Way way;
  double seconds = 0;
  double bytes_busiest = 0;
  double memory_bytes = 0;
  Work work = {};              // of the busiest worker's processor
  std::string ruled_out = {};  // why it cannot be used; empty where it can
};

/// Whether one goes before another: it can be used, or is faster.
bool is_better(const Prediction& a, const Prediction& b);

/// Every scheme with every pattern: those that can be used first, the fastest of them first; of
/// equals the one whose name comes first. The same on all workers that ask the same.
std::vector<Prediction> plan(const PlanQuestion& question);

}  // namespace sparsesync
