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

struct SchedulePolicy;  // of the implementation

// ---- The model that a schedule is planned for.

/// Describes the gradient of an embedding: rows of f32.
struct SparseGradient {
  Index rows = 0;
  Index width = 0;  // elements of a row
  double nnz = 0;   // rows that a worker touches in a step
  /// Densification γ by the number of workers: rows that they touch together, over nnz. γ(1) is 1.
  std::map<int, double> densification = {};

  /// Returns the rows that so many workers touch together, at most all rows. Between known numbers
  /// of workers it grows as a power of their number; beyond the last one, as between the last two.
  /// Without known ones, no two workers touch the same row.
  double united(double workers) const;
};

/// Describes a layer: parameters whose gradients become ready together.
struct ModelLayer {
  std::string name;
  double forward_s = 0;   // seconds of its forward pass; 0: not known
  double backward_s = 0;  // seconds of its backward pass; 0: not known
  double bytes = 0;       // of its dense gradient
  std::optional<SparseGradient> sparse = std::nullopt;  // replaces `bytes`
  int group = 0;          // layers of different groups never share a bucket; not in a model's file
  bool announces = true;  // whether its rows are known in the forward pass; not in a model's file
};

/// Describes a model: at least one layer, in the order of the forward pass. Gradients become ready
/// in the reverse order.
struct Model {
  std::string name;
  std::vector<ModelLayer> layers;
};

// ---- A schedule.

/// Names consecutive layers, from `first` to `last`, both included.
struct LayerRange {
  int first = 0;
  int last = 0;

  /// Returns the number of layers.
  int size() const { return last - first + 1; }
  friend bool operator==(LayerRange, LayerRange) = default;
};

/// Names a phase of one of a schedule's buckets.
struct ScheduledPhase {
  std::size_t bucket = 0;
  Phase phase = Phase::reduce;
  friend bool operator==(ScheduledPhase, ScheduledPhase) = default;
};

/// Says what a step sends, and when.
struct Schedule {
  /// The layers of each bucket, in the order of the backward pass: the last layers come first.
  std::vector<LayerRange> buckets;
  /// Every phase of a step once, in the order in which they run. A reduce waits for the gradients
  /// of its bucket.
  std::vector<ScheduledPhase> order;
  /// Whether reduces wait for the end of the backward pass.
  bool after_backward = false;
  /// Whether gathers run during the next forward pass, where each layer waits for its own bucket.
  /// Otherwise the pass waits for all buckets.
  bool under_forward = false;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Verifies a schedule: every layer is in one bucket, in the order of the backward pass, and the
/// order has each bucket's announce, if any, its reduce and its gather once, in this order.
/// @throws InputError naming the layer or the bucket that is wrong
void check_schedule(const Schedule& schedule, std::size_t layers);

// ---- One step of a schedule.

/// Decides what a worker submits and waits for in each step of a schedule. C++ programs and
/// sparsesync.torch run their steps by it: they make the calls of Session that it names. It makes
/// no calls itself.
///
/// @code
///   session.set_order(step.order(ids), session.step());
///   // The forward pass:
///   step.begin_forward();
///   for each layer, the first one first:
///     wait for the results of step.bucket_of(layer), unless they were waited for;
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
  /// @param schedule  passes check_schedule() for so many layers
  ScheduledStep(Schedule schedule, std::size_t layers);

  const Schedule& schedule() const { return schedule_; }
  /// Returns the bucket that the layer is in.
  std::size_t bucket_of(std::size_t layer) const { return bucket_of_[layer]; }
  /// Returns whether the bucket announces its rows in the forward pass.
  bool announces(std::size_t bucket) const { return announces_[bucket] != 0; }
  /// Returns the order for Session::set_order().
  /// @param ids     of the schedule's buckets, in their order
  /// @param beside  of buckets that are not in the schedule: their phases follow the last reduce of
  ///                gradients
  std::vector<OrderEntry> order(std::span<const BucketId> ids,
                                std::span<const BucketId> beside = {}) const;
  /// Returns all buckets, in the order of their gathers: wait for several results in this order.
  std::span<const std::size_t> gathers() const { return gathers_; }

  // ---- The forward pass.

  /// Names the layers that announce rows in most steps. A bucket announces once these of its layers
  /// did, at the latest in end_forward(). Before the first call, all layers do.
  /// @param layers  [layer]: nonzero if it announces
  void expect_announcements(std::span<const char> layers);
  /// Begins a forward pass, or begins it again after an error: nothing has been announced.
  void begin_forward();
  /// Counts a layer whose rows are known: once a step, for layers of which that is expected.
  /// @return the bucket to announce now, if any. Wait for its last results first
  std::optional<std::size_t> announced(std::size_t layer);
  /// Ends the forward pass.
  /// @return buckets to announce now, with the rows that are known
  std::span<const std::size_t> end_forward();

  // ---- The backward pass.

  /// Counts a layer whose gradient is ready: at most once a step.
  /// @return the bucket whose reduce and gather to submit now, if any
  std::optional<std::size_t> ready(std::size_t layer);
  /// Ends the backward pass. The next step begins.
  /// @return buckets whose reduce and gather to submit now, with the gradients that are ready
  std::span<const std::size_t> end_backward();
  /// Returns the buckets whose results to wait for after end_backward(), in the order of their
  /// gathers: all of them, or none if gathers run during the next forward pass.
  /// @param needs_all  whether all results are needed now in any case, such as for a review
  std::span<const std::size_t> waits_after_backward(bool needs_all) const;

 private:
  /// Counts a layer of a bucket.
  /// @return whether it was the last one
  static bool is_last(std::size_t& waiting) { return --waiting == 0; }

  Schedule schedule_;
  std::vector<std::size_t> bucket_of_;    // [layer]
  std::vector<char> announces_;           // [bucket]
  std::vector<std::size_t> gathers_;      // buckets
  std::vector<char> expected_;            // [layer]: whether its bucket waits for its rows
  std::vector<std::size_t> unannounced_;  // [bucket]: layers whose rows it waits for
  std::vector<char> announced_;           // [bucket]
  std::vector<std::size_t> not_ready_;    // [bucket]: layers whose gradients it waits for
  std::vector<char> submitted_;           // [bucket]
  std::vector<std::size_t> rest_;
};

// ---- Planning.

/// Chooses how SchedulePlanner plans. The same on all workers.
struct ScheduleOptions {
  /// "sequential", "wfbp", "merge_all", "mg_wfbp", "mg_wfbp_exact", "lazy", "dear", or "auto",
  /// which picks the fastest of the others.
  std::string schedule = "auto";
  /// Bytes of a full bucket of "lazy" and "dear". Nothing: the size that is expected to be fastest.
  std::optional<double> full_bytes = std::nullopt;
  /// Bytes of a step's first bucket when full; at most `full_bytes`. Nothing: as the others.
  std::optional<double> first_bytes = std::nullopt;
  std::string scheme = "auto";  // of sparse gradients
  std::string dense_scheme = "dense_ring";
  bool announce = false;  // whether workers exchange row indices during the forward pass
  /// Whether a forward pass can wait for one bucket after another. Otherwise "auto" runs no gathers
  /// during it.
  bool may_go_on_under_forward = true;
};

/// Holds the expected times of a step.
struct ExpectedStep {
  double iteration_s = 0;
  double compute_s = 0;        // both passes
  double communication_s = 0;  // all phases
  double exposed_s = 0;        // communication that the passes wait for
};

/// Names a phase that runs, in part or as a whole, while the worker computes nothing.
struct ExposedPhase {
  std::size_t bucket = 0;
  Phase phase = Phase::reduce;
  double seconds = 0;  // of each step
};

/// Counts the rows of a layer that a step touched.
struct ObservedLayer {
  std::size_t layer = 0;
  double touched = 0;  // by this worker
  double united = 0;   // by all workers
};

/// Plans the schedule of one model: worker 0 plans from measured passes and links, all workers
/// agree, and a review replans. All workers make one, and call review() between the same steps.
///
/// Until passes were measured, policies that need their times use buckets of 25 MiB, as "lazy".
class SchedulePlanner {
 public:
  /// @param session  outlives calls of review()
  /// @param model    seconds of its passes may be 0: add_step() measures them
  /// @throws InputError if the policy or a scheme is unknown, or the model has no layers;
  ///         AgreementError if workers differ, naming both layers if their orders do; what Session
  ///         throws
  SchedulePlanner(Session& session, Model model, ScheduleOptions options);

  const Schedule& schedule() const { return schedule_; }
  /// Returns the expected times of a step. Nothing before passes were measured.
  const std::optional<ExpectedStep>& expected() const { return expected_; }
  /// Returns the exposed phases that are expected, the longest first.
  const std::vector<ExposedPhase>& exposed() const { return exposed_; }
  /// Returns the model with this worker's measurements.
  const Model& model() const { return model_; }

  /// Records the seconds of a step's passes. [layer]
  /// @return whether a review is due: the same on all workers
  bool add_step(std::span<const double> forward_s, std::span<const double> backward_s);
  /// Records the rows that the last step touched of a layer with a sparse gradient.
  /// @param touched  by this worker
  /// @param united   by all workers
  void observe(std::size_t layer, double touched, double united);
  /// Divides the rows of a bucket's row spaces among its layers, by the rows that each layer was
  /// first expected to touch.
  /// @param observed  what Session::observed() returns for a bucket with rows. Its tensors are
  ///                  those of the bucket's layers, the last layer's first
  std::vector<ObservedLayer> share(std::size_t bucket,
                                   std::span<const ObservedRows> observed) const;
  /// Replans from the medians of the last steps. Another schedule replaces the present one only if
  /// a step is expected to take 3% less.
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
  void update_medians();
  bool plan_with_seconds();
  Plan without_seconds() const;
  Plan with_seconds(const Network& network) const;
  bool adopt(const std::optional<Plan>& own);

  Session& session_;
  int workers_;
  Model model_;
  std::vector<double> first_touched_;  // [layer]: rows, as they were given
  ScheduleOptions options_;
  const SchedulePolicy& policy_;
  Schedule schedule_;
  std::optional<ExpectedStep> expected_;
  std::vector<ExposedPhase> exposed_;
  std::int64_t steps_ = 0;
  std::int64_t review_at_;
  // The last steps, the oldest overwritten: forward, then backward. [step][layer]
  std::vector<std::vector<double>> measured_;
};

}  // namespace sparsesync
