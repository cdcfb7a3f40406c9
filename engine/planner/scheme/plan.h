// The planner: what each scheme is expected to take for a bucket, and so which one to use.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "schemes/cost.h"
#include "schemes/registry.h"
#include "sparsesync/schemes.h"  // IWYU pragma: export

namespace sparsesync {

/// What the busiest processor took when a way was tried. What it took over what was expected of it
/// holds for other rows too, and the median of trials for ways that were not tried.
struct Trial {
  SchemeVariant variant;
  HostSeconds took;
  double expected = 0;  // seconds, above 0

  double over_expected() const { return took.total() / expected; }
};

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
  std::span<const Trial> trials = {};           // of a way that has several the quickest counts
};

/// The way that a bucket of this scheme with these options goes.
SchemeVariant variant_of(const SchemeEntry& entry, const SchemeOptions& options);

/// The options with which a bucket goes this way, all others as they are.
SchemeOptions options_for(const SchemeVariant& variant, SchemeOptions options);

/// Whether `a` goes before `b`: what can be used goes before what cannot, and then the faster one.
bool is_better(const Prediction& a, const Prediction& b);

/// Every scheme with every pattern: those that can be used first, the fastest of them first; of
/// equals the one whose name comes first. The same on all workers that ask the same.
std::vector<Prediction> plan(const PlanQuestion& question);

/// The one that is of a way.
/// @return null where none is; else it points into `predictions`
const Prediction* prediction_of(std::span<const Prediction> predictions,
                                const SchemeVariant& variant);

/// Ways to try, because processors decide whether they are the fastest: the first one if it may
/// fall behind another, and others that may beat what is expected of the first; the more often one
/// was tried the less is it in doubt, and after four trials it is not. What costs of processors are
/// worked out from is a few figures for all that kernels do.
/// @param predictions  of plan()
std::vector<SchemeVariant> worth_a_trial(std::span<const Prediction> predictions);

}  // namespace sparsesync
