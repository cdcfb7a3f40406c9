// Schedules: which layers' gradients form a bucket, and when each phase of a bucket runs in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsesync/bucket.h"
#include "sparsesync/result.h"
#include "sparsesync/session.h"

namespace sparsesync {

struct SchedulePolicy;  // internal

// ---- The model that a schedule is planned for.

/// Describes the gradient of an embedding: rows of f32.
struct SparseGradient {
  /// Rows of the whole tensor.
  Index rows = 0;
  Index width = 0;  ///< elements per row
  double nnz = 0;   ///< rows that one worker touches in a step
  /// Densification γ by number of workers: rows that these workers touch together, divided by
  /// `nnz`. γ(1) is 1.
  std::map<int, double> densification = {};

  /// Returns the number of rows that `workers` workers touch together, at most all rows.
  ///
  /// Interpolates `densification` by a power law between known numbers of workers. Beyond the
  /// largest known number, the last exponent continues. If none is known, assumes that no two
  /// workers touch the same row.
  double united(double workers) const;
};

/// Describes a layer: parameters whose gradients become ready together.
struct ModelLayer {
  std::string name;
  double forward_s = 0;   ///< seconds of its forward pass; 0: unknown
  double backward_s = 0;  ///< seconds of its backward pass; 0: unknown
  double bytes = 0;       ///< size of its dense gradient
  std::optional<SparseGradient> sparse = std::nullopt;  ///< replaces `bytes` if set
  int group = 0;  ///< layers of different groups never share a bucket; not stored in model files
  /// Whether its rows are known in the forward pass; not stored in model files.
  bool announces = true;
};

/// Describes a model: one or more layers in the order of the forward pass. Gradients become ready
/// in the reverse order.
struct Model {
  std::string name;
  std::vector<ModelLayer> layers;
};

// ---- A schedule.

/// Identifies consecutive layers from `first` to `last`, both included.
struct LayerRange {
  int first = 0;
  int last = 0;

  /// Returns the number of layers.
  int size() const { return last - first + 1; }
  friend bool operator==(LayerRange, LayerRange) = default;
};

/// Identifies a phase of one of a schedule's buckets.
struct ScheduledPhase {
  std::size_t bucket = 0;
  Phase phase = Phase::reduce;
  friend bool operator==(ScheduledPhase, ScheduledPhase) = default;
};

/// Describes which data a step sends, and when.
struct Schedule {
  /// The layers of each bucket, in the order of the backward pass: the last layers come first.
  std::vector<LayerRange> buckets;
  /// Each phase of a step once, in the order in which they run. A reduce phase starts when its
  /// bucket's gradients are ready.
  std::vector<ScheduledPhase> order;
  /// Whether reduce phases wait for the end of the backward pass.
  bool after_backward = false;
  /// Whether gather phases run during the next forward pass. Each layer then waits for its bucket
  /// only. Otherwise the forward pass waits for all buckets.
  bool under_forward = false;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Verifies a schedule. Each layer is in one bucket, and buckets follow the order of the backward
/// pass. The order contains each bucket's announce (optional), reduce and gather once, in this
/// order.
/// @param schedule  the schedule
/// @param layers    number of layers of the model
/// @throws InputError naming the first layer or bucket that is wrong
void check_schedule(const Schedule& schedule, std::size_t layers);

// ---- One step of a schedule.

/// Decides which calls of Session a worker makes in each step of a schedule. It makes no calls
/// itself. sparsesync.torch uses it, too; examples/cpp/schedule.cpp is a complete program.
///
/// Owns all its memory. One thread at a time calls it.
/// @code
///   session.set_order(step.order(ids), session.step());
///   // The forward pass:
///   step.begin_forward();
///   for each layer, the first one first:
///     wait for the results of step.bucket_of(layer), unless already done;
///     compute; if (bucket = step.announced(layer)) announce it;
///   wait for all other results of the last step;
///   for (bucket : step.end_forward()) announce it;
///   // The backward pass:
///   for each layer, the last one first:
///     compute; if (bucket = step.ready(layer)) submit its reduce and its gather;
///   for (bucket : step.end_backward()) submit its reduce and its gather;
///   for (bucket : step.waits_after_backward(false)) wait for its results;
/// @endcode
class ScheduledStep {
 public:
  /// @param schedule  passes check_schedule() for this number of layers
  /// @param layers    number of layers of the model
  ScheduledStep(Schedule schedule, std::size_t layers);

  /// Returns the schedule.
  const Schedule& schedule() const { return schedule_; }
  /// Returns the bucket that contains the layer.
  std::size_t bucket_of(std::size_t layer) const { return bucket_of_[layer]; }
  /// Returns whether the bucket announces its rows in the forward pass.
  bool announces(std::size_t bucket) const { return announces_[bucket] != 0; }
  /// Returns the order for Session::set_order().
  /// @param ids     session buckets of the schedule's buckets, in their order
  /// @param beside  session buckets outside the schedule; their phases follow the last reduce phase
  ///     of the schedule
  std::vector<OrderEntry> order(std::span<const BucketId> ids,
                                std::span<const BucketId> beside = {}) const;
  /// Returns all buckets in the order of their gather phases, which is the order to wait for
  /// results in.
  std::span<const std::size_t> gathers() const { return gathers_; }

  // ---- The forward pass.

  /// Sets which layers announce rows in most steps. A bucket is announced once all of these layers
  /// have announced, and otherwise in end_forward(). Before the first call, all layers are expected
  /// to announce.
  /// @param layers  [layer]: nonzero if it announces
  void expect_announcements(std::span<const char> layers);
  /// Begins a forward pass, or begins it again after an error. No bucket has been announced then.
  void begin_forward();
  /// Records that a layer's rows are known. Call it once a step for each layer that is expected to
  /// announce.
  /// @return the bucket to announce now, if any; wait for its last results first
  std::optional<std::size_t> announced(std::size_t layer);
  /// Ends the forward pass.
  /// @return the buckets to announce now, with the rows that are known
  std::span<const std::size_t> end_forward();

  // ---- The backward pass.

  /// Records that a layer's gradient is ready. Call it at most once a step for each layer.
  /// @return the bucket whose reduce and gather to submit now, if any
  std::optional<std::size_t> ready(std::size_t layer);
  /// Ends the backward pass. The next step begins.
  /// @return the buckets whose reduce and gather to submit now, with the gradients that are ready
  std::span<const std::size_t> end_backward();
  /// Returns the buckets to wait for after end_backward(), in the order of their gather phases.
  /// These are all buckets, or none if gather phases run during the next forward pass.
  /// @param needs_all  whether all results are needed now, for example for a review
  std::span<const std::size_t> waits_after_backward(bool needs_all) const;

 private:
  /// Counts down the layers that a bucket waits for.
  /// @return whether this was the last layer
  static bool is_last(std::size_t& waiting) { return --waiting == 0; }

  Schedule schedule_;
  std::vector<std::size_t> bucket_of_;    // [layer]
  std::vector<char> announces_;           // [bucket]
  std::vector<std::size_t> gathers_;      // buckets
  std::vector<char> expected_;            // [layer]: whether its bucket waits for its rows
  std::vector<std::size_t> unannounced_;  // [bucket]: layers whose rows are awaited
  std::vector<char> announced_;           // [bucket]
  std::vector<std::size_t> not_ready_;    // [bucket]: layers whose gradients are awaited
  std::vector<char> submitted_;           // [bucket]
  std::vector<std::size_t> rest_;         // buckets of end_forward(), end_backward()
};

// ---- Planning.

/// Configures a SchedulePlanner. The same on all workers.
struct ScheduleOptions {
  /// "sequential", "wfbp", "merge_all", "mg_wfbp", "mg_wfbp_exact", "lazy", "dear", or "auto",
  /// which picks the one with the shortest expected step.
  std::string schedule = "auto";
  /// Size of a full bucket of "lazy" and "dear", in bytes. Nothing: the size with the shortest
  /// expected step.
  std::optional<double> full_bytes = std::nullopt;
  /// Size of a step's first bucket when full, in bytes; at most `full_bytes`. Nothing:
  /// `full_bytes`.
  std::optional<double> first_bytes = std::nullopt;
  std::string scheme = "auto";              ///< scheme of sparse gradients
  std::string dense_scheme = "dense_ring";  ///< scheme of dense gradients
  bool announce = false;  ///< whether workers exchange row indices during the forward pass
  /// Whether a forward pass can wait for one bucket after another. Otherwise "auto" schedules no
  /// gather phases during the forward pass.
  bool may_go_on_under_forward = true;
};

/// Holds the expected times of a step, in seconds.
struct ExpectedStep {
  /// Time of the whole step.
  double iteration_s = 0;
  double compute_s = 0;        ///< forward and backward pass
  double communication_s = 0;  ///< all phases
  double exposed_s = 0;        ///< exposed communication: the time that the passes wait
};

/// Identifies a phase that is not fully hidden behind computation.
struct ExposedPhase {
  /// Index of the schedule's bucket.
  std::size_t bucket = 0;
  Phase phase = Phase::reduce;
  double seconds = 0;  ///< exposed time, in each step
};

/// Counts the rows of a layer that a step touched.
struct ObservedLayer {
  /// Index of the layer.
  std::size_t layer = 0;
  double touched = 0;  ///< rows touched by this worker
  double united = 0;   ///< rows touched by any worker
};

/// Plans the schedule of a model, and replans it from measurements.
///
/// @code
/// SchedulePlanner planner(session, model, {.schedule = "auto"});
/// ScheduledStep step(planner.schedule(), model.layers.size());
/// // After each step:
/// if (planner.add_step(forward_s, backward_s) && planner.review()) {
///   // Register the buckets of planner.schedule() instead of the old ones.
/// }
/// @endcode
/// The complete program is examples/cpp/schedule.cpp.
///
/// Worker 0 plans from its measurements of the passes and links, and all workers agree on its plan.
/// All workers construct a planner, and call review() between the same steps. One thread at a time
/// calls it.
///
/// Before the passes are measured, policies that need their times use buckets of 25 MiB, like
/// "lazy".
class SchedulePlanner {
 public:
  /// Plans the first schedule. A collective call.
  /// @param session  outlives the last call of review()
  /// @param model    the times of its passes may be 0; add_step() measures them
  /// @param options  the policy and its settings
  /// @throws InputError if the policy or a scheme is unknown, or the model has no layers
  /// @throws AgreementError if workers differ; names both layers if their orders differ
  /// @throws Error the errors of Session
  SchedulePlanner(Session& session, Model model, ScheduleOptions options);

  /// Returns the current schedule.
  const Schedule& schedule() const { return schedule_; }
  /// Returns the expected times of a step. Nothing before the passes are measured.
  const std::optional<ExpectedStep>& expected() const { return expected_; }
  /// Returns the phases that are expected to be exposed, the longest first.
  const std::vector<ExposedPhase>& exposed() const { return exposed_; }
  /// Returns the model with this worker's measurements.
  const Model& model() const { return model_; }

  /// Records the duration of a step's passes.
  /// @param forward_s   [layer]: seconds
  /// @param backward_s  [layer]: seconds
  /// @return whether a review is due; the same on all workers
  bool add_step(std::span<const double> forward_s, std::span<const double> backward_s);
  /// Records how many rows of a layer with a sparse gradient the last step touched.
  /// @param layer    index of the layer
  /// @param touched  rows touched by this worker
  /// @param united   rows touched by any worker
  void observe(std::size_t layer, double touched, double united);
  /// Divides the rows of a bucket's row spaces among its layers, in proportion to the rows that
  /// each layer was first expected to touch.
  /// @param bucket    index of the schedule's bucket, which has sparse gradients
  /// @param observed  the result of Session::observed(). The bucket's tensors are those of its
  ///     layers, the last layer's first
  std::vector<ObservedLayer> share(std::size_t bucket,
                                   std::span<const ObservedRows> observed) const;
  /// Replans from the medians of the last steps. A new schedule replaces the current one only if a
  /// step is expected to take at least 3% less time. A collective call.
  /// @return whether the schedule changed
  /// @throws ProtocolError
  /// @throws Error the errors of Session
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
  void update_medians();
  bool plan_with_seconds();
  Plan without_seconds() const;
  Plan with_seconds(const Network& network) const;
  bool adopt(const std::optional<Plan>& own);

  Session& session_;
  int workers_;
  Model model_;
  std::vector<double> first_touched_;  // [layer]: expected rows of the model that was passed
  ScheduleOptions options_;
  const SchedulePolicy& policy_;
  Schedule schedule_;
  std::optional<ExpectedStep> expected_;
  std::vector<ExposedPhase> exposed_;
  std::int64_t steps_ = 0;
  std::int64_t review_at_;
  // The last steps, forward times before backward times. The oldest step is overwritten.
  // [step][layer]
  std::vector<std::vector<double>> measured_;
};

}  // namespace sparsesync
