// Simulates a schedule on a virtual clock: when the workers' passes and the phases begin and end,
// step after step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/planner/schedule/policies.h"

namespace sparsesync {

/// An interval on the virtual clock, in seconds.
struct TimeSpan {
  double begin = 0;
  double end = 0;

  double seconds() const { return end - begin; }
};

/// Timeline of one step on the virtual clock: one worker's passes, and the phases on the link.
struct StepTimeline {
  std::vector<TimeSpan> forward;   // [layer]
  std::vector<TimeSpan> backward;  // [layer]
  std::vector<TimeSpan> crossed;   // [index in Schedule::order] phases
};

/// Simulates workers' passes and the link that they share, with the engine's rules. Phases run one
/// after another in the order of the schedule. A phase begins when all workers have its inputs and
/// the previous phase has ended. A pass waits only for the results that it needs.
class StepClock {
 public:
  /// Evaluates the costs of the schedule's buckets.
  /// @param layers, schedule  outlive the clock
  /// @param costs             called only here
  /// @param workers           at least 1
  StepClock(std::span<const ScheduledLayer> layers, const BucketCosts& costs,
            const Schedule& schedule, std::size_t workers = 1);

  /// Advances to the end of the next backward pass, and of the phases that follow it.
  /// @param paces     [worker] duration of its passes, relative to the layers' seconds
  /// @param timeline  receives worker 0's timeline; null: not recorded
  void step(std::span<const double> paces, StepTimeline* timeline = nullptr);

  /// Returns when each worker's last backward pass ended. [worker]
  std::span<const double> ends() const { return ends_; }
  /// Returns the total seconds of a step's phases.
  double communication_seconds() const;

 private:
  void forward(std::span<const double> paces, StepTimeline* timeline);
  void backward(std::span<const double> paces, StepTimeline* timeline);
  void cross(StepTimeline* timeline);

  std::span<const ScheduledLayer> layers_;
  const Schedule& schedule_;
  std::vector<double> backward_until_;  // [layer]: seconds from the pass's start, at pace 1
  std::vector<double> takes_;           // [phase] seconds
  std::vector<double> ends_;            // [worker]
  std::vector<double> announces_at_;    // [bucket]: when all know its rows
  std::vector<double> ready_at_;        // [bucket]: when all have its gradients
  std::vector<double> gathered_at_;     // [bucket]
  double free_at_ = 0;                  // when the link is free
};

/// Returns the seconds of a step in the steady state, if all workers have the same pace.
double step_seconds(std::span<const ScheduledLayer> layers, const BucketCosts& costs,
                    const Schedule& schedule);

}  // namespace sparsesync
