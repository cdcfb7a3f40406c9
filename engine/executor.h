// The executor: synchronizes a model's gradients, layer by layer, by a schedule policy in real
// time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/planner/schedule/schedule_planner.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "engine/planner/schedule/scheduled_step.h"
#include "sparsesync/session.h"

namespace sparsesync {

/// A layer: a tensor whose gradient becomes ready at once.
struct ExecutedLayer {
  TensorSpec tensor;  // where the gradient is dense: any shape of so many elements
  /// Rows of its gradient cross; else all elements.
  bool rows_cross = false;
  // Rows that a step is expected to touch, until steps have shown it, and their densification.
  double touched = 0;
  std::map<int, double> densification = {};
  // Seconds of its passes where they are known beforehand, of all layers or of none.
  double forward_s = 0;
  double backward_s = 0;
};

/// How gradients are synchronized. The same on all workers.
struct ExecutorOptions {
  PlannerOptions planning = {};
  Reduction reduction = Reduction::sum;
  SchemeOptions options = {};  // of schemes
};

/// What steps have taken.
struct ExecutorStatistics {
  std::int64_t steps = 0;
  double iteration_s = 0;  // from end to end of backward passes; median of the last ones
  double exposed_s = 0;    // of that the time that the caller waited here; median of the same
  std::array<double, kPhases> phase_s{};  // [phase]: in the background; mean of all steps

  double communication_s() const { return phase_s[0] + phase_s[1] + phase_s[2]; }
};

/// One worker's gradients under a schedule. Calls come from one thread; all workers make those of a
/// step in their own time, and each step's alike. A step is:
///   forward(layer), and announce(layer) where rows are told, as the forward pass comes to layers;
///   backward(); ready(layer) as gradients become ready; end_backward().
/// Dense gradients of a bucket lie one after another, in the order of backward, once they cross: in
/// its row spaces.
///
/// By measured times another schedule may take the place of the present one, at the end of a step:
/// of that step nothing goes on under the next forward pass.
class Executor {
 public:
  /// Told a layer's result when the caller's thread has waited for it: in forward() at the latest,
  /// before the layer's weights are used. It stays until then, and is valid during the call.
  using OnResult = std::function<void(std::size_t layer, const TensorResult& result)>;

  /// @param session    outlives it; has no other buckets
  /// @param layers     in the order of the forward pass
  /// @param on_result  once a step for each layer
  /// @throws what SchedulePlanner and Session::register_bucket() throw
  Executor(Session& session, std::vector<ExecutedLayer> layers, const ExecutorOptions& options,
           OnResult on_result);

  /// The forward pass comes to a layer: waits for what its weights need.
  /// @throws what Session::wait() throws
  void forward(std::size_t layer);
  /// Tells the rows that the layer's gradient may touch. Where its bucket does not announce, does
  /// nothing.
  /// @param rows  the caller's, unchanged until end_backward()
  void announce(std::size_t layer, std::span<const Index> rows);
  /// The forward pass is over, and the backward pass begins.
  void backward();
  /// A layer's gradient is ready: at most once a step.
  /// @param gradient  the caller's memory, unchanged until the layer's result
  /// @param after     as Session::submit() has it
  void ready(std::size_t layer, const Gradient& gradient, const Mark* after = nullptr);
  /// The backward pass is over: layers that were not ready have empty gradients. Waits for all
  /// results, but for those that go on under the next forward pass.
  /// @throws what Session::wait() throws, and what SchedulePlanner::review() does
  void end_backward();
  /// Waits for all results: at the end of training, and wherever weights are used but by forward().
  /// @throws what Session::wait() throws
  void synchronize();

  const SchedulePlanner& planner() const { return planner_; }
  ExecutorStatistics statistics() const;
  /// The last three steps whose results are there, fewer at first, in seconds since the executor
  /// was made. Valid until the next call.
  std::span<const StepTimeline> timelines() const { return timelines_; }

 private:
  /// A bucket at work.
  struct Bucket {
    BucketId id;
    std::vector<Gradient> gradients;  // [layer of the bucket]
    std::vector<Gradient> rows;       // announced; [layer of the bucket]
    const Mark* after = nullptr;
    std::optional<Session::Ticket> reduced;
    std::optional<Session::Ticket> gathered;
  };

  void make_buckets();
  void release_buckets();
  std::size_t place_of(std::size_t layer) const;
  void announce_bucket(std::size_t bucket);
  void submit(std::size_t bucket);
  void finish(std::size_t bucket);
  void observe();
  void end_layer(Clock::time_point now);
  void end_iteration();
  void keep_timeline();
  double at(Clock::time_point time) const;

  Session& session_;
  std::vector<ExecutedLayer> layers_;
  ExecutorOptions options_;
  OnResult on_result_;
  SchedulePlanner planner_;
  std::optional<ScheduledStep> step_;
  std::vector<Bucket> buckets_;

  std::vector<double> forward_s_;   // of this step; [layer]
  std::vector<double> backward_s_;  // of this step; [layer]
  std::vector<double> touched_;     // rows, when it was last ready; [layer]
  std::optional<std::size_t> in_layer_;
  Clock::time_point since_;  // the layer that the pass is in
  std::optional<Clock::time_point> step_ended_;
  double waited_s_ = 0;               // of this step
  std::vector<double> iterations_s_;  // the last ones, the oldest overwritten
  std::vector<double> exposed_s_;     // of the same steps
  std::int64_t kept_ = 0;             // of these so far
  std::int64_t steps_ = 0;
  std::array<double, kPhases> phase_s_{};

  const Clock::time_point made_ = Clock::now();
  StepTimeline running_;                                // the step whose passes run
  StepTimeline crossing_;                               // the step whose results come
  std::vector<std::array<TimeSpan, kPhases>> crossed_;  // of that one; [bucket]
  std::size_t unfinished_ = 0;                          // buckets of that one
  std::vector<StepTimeline> timelines_;                 // of steps that are over
};

}  // namespace sparsesync
