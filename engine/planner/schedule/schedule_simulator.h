// The virtual clock of a schedule: when workers' passes and what crosses between them begin and
// end, step after step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/planner/schedule/policies.h"

namespace sparsesync {

/// Something that took time.
struct TimeSpan {
  double begin = 0;
  double end = 0;

  double seconds() const { return end - begin; }
};

/// What a step did on the virtual clock: of one worker, whose passes are `forward` and `backward`,
/// and of the link.
struct StepTimeline {
  std::vector<TimeSpan> forward;   // [layer]
  std::vector<TimeSpan> backward;  // [layer]
  std::vector<TimeSpan> crossed;   // [place in Schedule::order]
};

/// Workers' passes and the link that they share, as the engine has them: phases cross one after
/// another, in the order of the schedule, each once all workers have what it needs and the one
/// before is over. A pass waits for what it needs, and for nothing else.
class StepClock {
 public:
  /// @param layers, schedule  outlive it
  /// @param costs             asked now
  /// @param workers           1 or more
  StepClock(std::span<const ScheduledLayer> layers, const BucketCosts& costs,
            const Schedule& schedule, std::size_t workers = 1);

  /// Goes on to the end of the next backward pass, and of what crosses after it.
  /// @param paces     of each worker: seconds of its passes over those of the layers
  /// @param timeline  of worker 0; null: nobody wants to see it
  void step(std::span<const double> paces, StepTimeline* timeline = nullptr);

  /// When each worker's last backward pass ended. [worker]
  std::span<const double> ends() const { return ends_; }
  /// What a step's phases take together.
  double communication_seconds() const;

 private:
  void forward(std::span<const double> paces, StepTimeline* timeline);
  void backward(std::span<const double> paces, StepTimeline* timeline);
  void cross(StepTimeline* timeline);

  std::span<const ScheduledLayer> layers_;
  const Schedule& schedule_;
  std::vector<double> backward_until_;  // [layer]: since the pass began, at pace 1
  std::vector<double> takes_;           // [place in the order]
  std::vector<double> ends_;            // [worker]
  std::vector<double> announces_at_;    // [bucket]: when all workers know its rows
  std::vector<double> ready_at_;        // [bucket]: when all workers have its gradients
  std::vector<double> gathered_at_;     // [bucket]
  double free_at_ = 0;                  // the link
};

/// What a step takes once it is like the one before, where all workers are alike.
double step_seconds(std::span<const ScheduledLayer> layers, const BucketCosts& costs,
                    const Schedule& schedule);

}  // namespace sparsesync
