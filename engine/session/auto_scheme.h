// The scheme `auto`: chooses a bucket's scheme by prediction and by trial.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/planner/scheme/plan.h"
#include "engine/session/auto_scheme_messages.h"
#include "engine/session/control_channel.h"
#include "schemes/exchange.h"

namespace sparsesync {

class RegisteredBucket;

/// The name that a bucket asks for. The registry has no scheme of this name.
inline constexpr std::string_view kAuto = "auto";

/// Returns the scheme of a name. The entry of `auto` is that of its first scheme.
/// @throws InputError if no scheme has the name; the text lists the names
SchemeEntry scheme_or_auto(std::string_view name);

/// Chooses the scheme of one bucket on one worker. All workers choose the same scheme: their
/// decisions depend only on data that all of them have.
///
/// The first step uses `balanced`, and each worker records which rows it touched. A review then
/// exchanges samples of these rows and predicts the time of every scheme. The next steps are trials
/// if the choice between some schemes depends on CPU time. A trial runs one scheme for some steps,
/// and its measured CPU time replaces the predicted one. Finally the bucket adopts the scheme
/// with the shortest predicted time. It leaves a scheme that it adopted before only for one that is
/// predicted to be 3% faster.
///
/// No messages are exchanged and no times are measured after that. The rows are recorded and
/// reviewed again if the union of all rows changes by a quarter, or after 1,000 steps.
///
/// The class is a state machine. A phase that fails does not count as ended.
///
/// @code
///     state              event                                   next state
///     sampling           a reduce phase ends                     rows_recorded
///     rows_recorded      a step begins, or adapt()               the review's
///     trialing           a gather phase ends: a step of several  trialing
///                        a gather phase ends: the last step      trial_complete
///                        adapt()                                 trial_interrupted
///     trial_complete     a step begins, or adapt()               the review's
///     trial_interrupted  a reduce phase ends                     rows_recorded
///     adopted            a gather phase ends: the rows drifted   sampling
///                        a gather phase ends: the 1,000th one    sampling
///                        adapt()                                 sampling
/// @endcode
///
/// A review leads to `trialing` if a scheme is worth a trial, and to `adopted` otherwise. All other
/// pairs of a state and an event leave the state as it is. The first state is `sampling`.
class AutoScheme {
 public:
  /// @param bucket   outlives this object; its scheme is kFirstScheme
  /// @param context  the same on all workers
  AutoScheme(RegisteredBucket& bucket, const PlanContext& context)
      : bucket_(bucket), context_(context) {}

  /// The scheme of a bucket until its first review.
  static constexpr const char* kFirstScheme = "balanced";

  /// Reviews at the beginning of a step, if a review is due. A review invalidates the results of
  /// the last step. All workers call this function together, before a phase of the bucket.
  /// @return measures the phase's time outside the transport; null if the time is not needed
  /// @throws what Transport throws, ProtocolError
  Stopwatch* begin_phase(Phase phase, ControlChannel& control);
  /// Records the data of a phase that a review needs. Called after a phase without an error.
  /// Synchronizes the stream.
  void end_phase(Phase phase);
  /// Reviews if a review is due. Otherwise the next step's rows are recorded. Invalidates the
  /// results of the last step. All workers call this function together, between steps.
  /// @throws what Transport throws, ProtocolError
  void adapt(ControlChannel& control);
  /// Whether no review is due and no trial runs. The rows of the next step may be recorded.
  bool settled() const { return state_ == State::sampling || state_ == State::adopted; }

  /// Returns the last review's predictions for all schemes, best first. Empty before the first
  /// review.
  const std::vector<Prediction>& predictions() const { return findings_.predictions; }

 private:
  enum class State : std::uint8_t {
    sampling,           // Records the next step's rows.
    rows_recorded,      // A review of the rows is due.
    trialing,           // Measures the chosen scheme.
    trial_complete,     // A review of the trial is due.
    trial_interrupted,  // Discards the trial, and records the next step's rows.
    adopted             // Monitors the adopted scheme for a drift of the rows.
  };

  /// The trial that runs. Only valid while `trialing` and `trial_complete`.
  struct RunningTrial {
    std::size_t length = 0;                 // in steps
    std::vector<HostSeconds> seconds = {};  // [step], this worker's, outside the transport
    Stopwatch reduce = {};                  // current step's reduce phase, with its announce phase
    Stopwatch gather = {};                  // current step's gather phase
  };

  /// Results of reviews. They are the same on all workers.
  struct Findings {
    int workers = 1;
    Statistics statistics = {};  // the rows reviewed last
    std::vector<Prediction> predictions = {};
    std::vector<Trial> trials = {};
    // Schemes that exceed a worker's memory with the last reviewed rows.
    std::vector<SchemeVariant> refused = {};
  };

  /// The scheme that the last review without a trial adopted.
  struct Adopted {
    SchemeVariant variant;
    std::int64_t steps = 0;  // since then, while `adopted`
  };

  bool is_review_due() const {
    return state_ == State::rows_recorded || state_ == State::trial_complete;
  }
  void record_rows();
  void count_step();
  bool has_drifted() const;
  void review(ControlChannel& control);
  void review_rows(ControlChannel& control);
  void review_trial(ControlChannel& control);
  void predict();
  bool start_trial(ControlChannel& control);
  void adopt_best(ControlChannel& control);
  bool change_to(const SchemeVariant& variant, ControlChannel& control);
  const Prediction& prediction_of_chosen() const;
  void extend_signature(std::span<const std::string> agreed);

  RegisteredBucket& bucket_;
  PlanContext context_;
  State state_ = State::sampling;
  std::vector<std::vector<Index>> recorded_rows_;  // [row space]
  RunningTrial trial_;
  Findings findings_;
  std::optional<Adopted> adopted_;
};

}  // namespace sparsesync
