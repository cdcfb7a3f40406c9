// The planner: predicts each scheme's time for a bucket, and thereby chooses a scheme.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "schemes/cost.h"
#include "schemes/registry.h"
#include "sparsesync/schemes.h"  // IWYU pragma: export

namespace sparsesync {

/// CPU time of the bottleneck worker in a trial of a variant. The ratio to the expected time also
/// applies to other rows. The median ratio of all trials applies to variants without a trial.
struct Trial {
  SchemeVariant variant;
  HostSeconds took;
  double expected = 0;  // expected seconds, above 0

  double over_expected() const { return took.total() / expected; }
};

/// Inputs of the planner. A view.
struct PlanQuestion {
  std::span<const RowSpace> spaces;  // row spaces, with the dtypes that are sent
  int size = 1;
  const Statistics& statistics;
  Network network;
  SchemeOptions options = {};
  bool has_all_reduce = false;                  // whether the transport has an all-reduce
  bool announce = false;                        // whether the scheme must use announced rows
  std::optional<double> memory = std::nullopt;  // workspace bytes of a worker; no value: unlimited
  std::span<const Trial> trials = {};           // if a variant has several, the fastest counts
};

/// Returns the variant that a bucket with these options uses.
SchemeVariant variant_of(const SchemeEntry& entry, const SchemeOptions& options);

/// Returns options that select a variant; other options are unchanged.
SchemeOptions options_for(const SchemeVariant& variant, SchemeOptions options);

/// Whether `a` comes before `b`: usable variants before ruled-out ones, then faster ones first.
bool is_better(const Prediction& a, const Prediction& b);

/// Returns predictions for every scheme with every pattern: usable variants first, the fastest of
/// them first. Equally fast variants are in the order of their schemes' names. All workers get the
/// same predictions for the same question.
std::vector<Prediction> plan(const PlanQuestion& question);

/// Returns the prediction for a variant.
/// @return null if there is none; otherwise a pointer into `predictions`
const Prediction* prediction_of(std::span<const Prediction> predictions,
                                const SchemeVariant& variant);

/// Returns the variants that are worth a trial, because CPU time decides whether they are the
/// fastest. These are the first one, if another one may beat it, and others that may beat its
/// expected time. The predicted CPU time of a variant is uncertain, because it is derived from a
/// few cost constants of all kernels. Each trial reduces the uncertainty, and none remains after
/// four trials.
/// @param predictions  result of plan()
std::vector<SchemeVariant> worth_a_trial(std::span<const Prediction> predictions);

}  // namespace sparsesync
