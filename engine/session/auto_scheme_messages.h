// Messages that workers exchange for the scheme `auto`: parameters of the planner, samples of
// touched rows, and CPU times of trials.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/session/control_channel.h"
#include "schemes/bucket.h"
#include "schemes/cost.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// Parameters of the planner, besides the bucket and its rows.
struct PlanContext {
  Network network;
  bool has_all_reduce = false;                  // whether the transport has an all-reduce
  std::optional<double> memory = std::nullopt;  // bytes of workspace; no value: unlimited
  int trials = 0;                               // limit for the trials of a bucket
};

/// Returns the context that all workers plan with. It has the network of worker 0, the smallest
/// workspace and the smallest number of trials. All workers call this function together.
/// @param own  this worker's context
/// @throws what Transport throws, ProtocolError
PlanContext agree_on_plan_context(ControlChannel& control, const PlanContext& own);

/// Samples of the rows that the workers touched in one step.
struct RowSamples {
  std::vector<std::string> messages;  // [worker]
  double share = 1;                   // fraction of touched rows that are in the samples
};

/// Exchanges samples of the touched rows. All workers call this function together.
/// @param rows  [row space], increasing: the rows that this worker touched
/// @throws what Transport throws, ProtocolError
RowSamples exchange_samples(ControlChannel& control, std::span<const std::vector<Index>> rows);

/// Returns the statistics of all touched rows, extrapolated from samples.
/// @throws ProtocolError if a sample is not valid
Statistics statistics_from(const RowSamples& samples, std::span<const RowSpace> spaces,
                           const SchemeOptions& options);

/// CPU times of a trial's steps, for all workers together.
struct TrialTimes {
  std::vector<std::string> messages;  // [worker]
  HostSeconds median;                 // the step with the median total
};

/// Exchanges the CPU times of a trial's steps. Each part of a step counts as the slowest
/// worker measured it, because the others wait for that worker. All workers call this function
/// together.
/// @param own  this worker's times: the same number of steps on all workers, at least 1
/// @throws what Transport throws, ProtocolError
TrialTimes exchange_trial_times(ControlChannel& control, std::span<const HostSeconds> own);

}  // namespace sparsesync
