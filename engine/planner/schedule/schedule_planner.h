// The schedule of a training: planned on worker 0 from what passes and networks were measured to
// take, agreed by all workers, and planned anew as that changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/planner/schedule/exposed_communication.h"
#include "engine/planner/schedule/model.h"
#include "engine/planner/schedule/schedule.h"
#include "sparsesync/result.h"
#include "sparsesync/session.h"

namespace sparsesync {

/// What schedules are to be like. The same on all workers.
struct PlannerOptions {
  std::string schedule = "auto";  // a policy's name
  /// What a bucket of `lazy` and `dear` is full with, in bytes. Nothing: what is the best.
  std::optional<double> full_bytes = std::nullopt;
  /// The same of a step's first bucket, where buckets are filled.
  std::optional<double> first_bytes = std::nullopt;
  std::string scheme = "auto";  // of gradients of which rows cross
  std::string dense_scheme = "dense_ring";
  bool announce = false;  // rows are told under the forward pass
  /// Whether a forward pass can wait for one bucket after another.
  bool may_go_on_under_forward = true;
};

/// What a step is expected to take.
struct ExpectedStep {
  double iteration_s = 0;
  double compute_s = 0;        // of the passes
  double communication_s = 0;  // that something crosses
  double exposed_s = 0;        // that the passes wait
};

/// The rows that a step touched of a layer.
struct ObservedLayer {
  std::size_t layer = 0;
  double touched = 0;  // by this worker
  double united = 0;   // by all workers
};

/// Plans for one model. All workers make one, and call review(), between the same steps.
///
/// Until passes were measured, policies that go by their times have buckets of 25 MiB, as `lazy`.
class SchedulePlanner {
 public:
  /// @param session  outlives calls of review()
  /// @param model    layers in the order of the forward pass; seconds of their passes where those
  ///                 are known, else 0
  /// @throws InputError if there is no such policy or scheme, or the model has no layers;
  ///         AgreementError where workers differ, naming both layers where their orders do; what
  ///         Session throws
  SchedulePlanner(Session& session, Model model, PlannerOptions options);

  const Schedule& schedule() const { return schedule_; }
  /// Nothing before passes were measured.
  const std::optional<ExpectedStep>& expected() const { return expected_; }
  /// What of a step cannot hide, as expected: the longest first.
  const std::vector<ExposedPhase>& exposed() const { return exposed_; }
  /// With what was measured so far, on this worker.
  const Model& model() const { return model_; }

  /// A step is over that took so long, in seconds. [layer]
  /// @return whether a review is due: the same on all workers
  bool add_step(std::span<const double> forward_s, std::span<const double> backward_s);
  /// What the last step showed of a layer of which rows cross.
  /// @param touched  rows, by this worker
  /// @param united   by all workers
  void observe(std::size_t layer, double touched, double united);
  /// Shares what a step showed of a bucket among the layers of each of its row spaces, by the rows
  /// that they were first expected to touch.
  /// @param observed  what Session::observed() returns of a bucket with rows. Its tensors are those
  ///                  of the bucket's layers, the last layer's first
  std::vector<ObservedLayer> share(std::size_t bucket,
                                   std::span<const ObservedRows> observed) const;
  /// Plans anew, from the medians of the last steps. Another schedule takes the place of the
  /// present one only if a step is expected to take 3% less.
  /// @return whether one did
  /// @throws what Session throws, ProtocolError
  bool review();

 private:
  struct Plan {
    Schedule schedule;
    std::optional<ExpectedStep> expected;
    std::vector<ExposedPhase> exposed = {};
  };
  static std::string packed(const Plan& plan);
  Plan unpacked(const std::string& text) const;

  void agree() const;
  bool knows_seconds() const;
  void take_medians();
  bool plan_with_seconds();
  Plan without_seconds() const;
  Plan with_seconds(const Network& network) const;
  bool take(const std::optional<Plan>& own);

  Session& session_;
  int workers_;
  Model model_;
  std::vector<double> first_touched_;  // [layer]: rows, as they were given
  PlannerOptions options_;
  const SchedulePolicy& policy_;
  Schedule schedule_;
  std::optional<ExpectedStep> expected_;
  std::vector<ExposedPhase> exposed_;
  std::int64_t steps_ = 0;
  std::int64_t review_at_;
  // Of the last steps, the oldest overwritten: forward, then backward. [step][layer]
  std::vector<std::vector<double>> measured_;
};

}  // namespace sparsesync
