// A bucket that all workers agreed on: its input, its scheme at work, and what it ended with,
// tensor by tensor.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/planner/scheme/plan.h"
#include "schemes/bucket.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/registry.h"
#include "schemes/scheme.h"
#include "sparsesync/result.h"
#include "sparsesync/session.h"

namespace sparsesync {

/// Says why the squares of a bucket's first tensors cannot be told from those of its others.
/// @param tensors  how many; none of them may share dtype and width, as they cross, with another
///                 one, or have integers
/// @return empty where they can
std::string squares_problem(const BucketSpec& spec, Index tensors);

/// A bucket at work on one worker.
class RegisteredBucket {
 public:
  /// Does not synchronize the stream.
  /// @param entry  the scheme that is at work first
  /// @param seed   the same on all workers
  /// @throws BudgetError, std::bad_alloc if the scheme's fixed workspace is not to be had
  RegisteredBucket(const Context& context, BucketSpec spec, const SchemeEntry& entry, Rank rank,
                   int size, std::uint64_t seed);

  const BucketSpec& spec() const { return spec_; }
  const Context& context() const { return context_; }
  /// As they cross.
  std::span<const RowSpace> spaces() const { return spaces_; }
  /// The one at work.
  Scheme& scheme() { return *scheme_; }
  /// The step's gradients.
  BucketInput& input() { return input_; }
  /// The rows that a step announces. Only where the bucket announces.
  BucketInput& announced() { return *announced_; }
  /// Whether a step's first phase is this one.
  bool begins_with(Phase phase) const {
    return phase == (spec_.announce ? Phase::announce : Phase::reduce);
  }
  /// Of the scheme at work.
  const Pattern& pattern(Phase phase) const { return patterns_[static_cast<std::size_t>(phase)]; }

  /// The steps that spread word of how a phase ended.
  const Pattern& last_word() const { return last_word_; }
  /// Phases of a step from its first one to `last`.
  std::vector<Phase> phases_to(Phase last) const;
  /// Keeps what a step is given for a phase, so that the step can begin again: views of the
  /// caller's memory.
  /// @param source  gives those of a reduce; null: `gradients` are all
  void keep_gradients(Phase phase, std::span<const Gradient> gradients, GradientSource* source);
  /// The gradients that keep_gradients() was given for a phase of the step, or has a source for.
  /// @param stopwatch  stands still while the source finds them; null: nobody wants to know
  /// @throws what the source throws
  std::span<const Gradient> gradients(Phase phase, Stopwatch* stopwatch);
  /// Whether the source of the step's gradients has not given them yet.
  bool awaits_gradients() const { return source_ != nullptr; }

  /// Exchanges that each phase is cut into.
  int rounds() const { return *crossing_.rounds; }
  /// Cuts phases into so many from now on; results are gone. Between phases that belong together.
  /// @throws BudgetError, std::bad_alloc as change_scheme()
  void change_rounds(int rounds);
  /// Lets the scheme choose anew.
  /// @param statistics  that all workers agree on
  void adapt(const Statistics& statistics);

  /// Which scheme is at work, with which pattern.
  const SchemeVariant& chosen() const { return chosen_; }
  /// Puts another scheme to work; results are gone. Between steps. After an error there is none,
  /// and another one must be.
  /// @throws BudgetError, std::bad_alloc if its fixed workspace is not to be had
  void change_scheme(const SchemeVariant& chosen);

  /// After a gather phase.
  const TensorResult& result(std::size_t tensor) const {
    SPARSESYNC_EXPECT(tensor, <, results_.size());
    return results_[tensor];
  }
  /// What the scheme chose, for each tensor.
  std::vector<SpaceChoice> choices() const;

  /// After the last round of a gather phase: finds each tensor's result, and makes its values the
  /// tensor's own type where they crossed as another. Synchronizes the stream.
  /// @throws BudgetError
  void take_results();
  /// Of a result that crossed as a narrower type, or of a bucket that counts them, the values that
  /// are infinite or not a number: the same on all workers.
  std::int64_t non_finite() const { return non_finite_; }

  /// Where note_squares() leaves its sum from now on.
  /// @param tensors  the bucket's first ones, which share no row space with others
  /// @param sum      in the context's memory; null: nowhere
  /// @throws ContractError where they do
  void keep_squares(std::size_t tensors, double* sum);
  /// After the last round of a reduce phase: adds up the squares of what this worker owns. Does not
  /// synchronize the stream.
  void note_squares();
  /// Whether there were such at the last reduce.
  bool has_squares() const { return has_squares_; }

  /// Notes what a phase that is over showed.
  /// @param index_bytes_sent  in this phase
  void observe(Phase phase, std::int64_t index_bytes_sent);
  /// Of each row space.
  const std::vector<ObservedRows>& observed() const { return observed_; }
  std::int64_t index_bytes_sent() const { return index_bytes_sent_; }

  // The state of its channel, kept by the session.
  std::uint32_t channel = 0;
  std::uint64_t signature = 0;
  std::uint64_t sequence = 0;
  bool late_refusals = false;           // agreed by all workers
  std::optional<RefusedError> refused;  // this step

 private:
  std::unique_ptr<Scheme> create(const SchemeEntry& entry, const BucketSpec& crossing) const;
  void find_tensors();
  void find_members(const SpaceResult& result, std::span<const RowSpace::Member> members);
  void widen_results();
  void take_patterns();

  Context context_;
  BucketSpec spec_;
  BucketSpec crossing_;  // the same, as the scheme sees it; its rounds are those at work
  std::vector<RowSpace> spaces_;
  BucketInput input_;
  std::optional<BucketInput> announced_;
  std::array<std::vector<Gradient>, kPhases> gradients_;  // [phase] of the step
  GradientSource* source_ = nullptr;  // of the step's reduce, until it gave them
  Rank rank_;
  int size_;
  std::uint64_t seed_;
  SchemeVariant chosen_;
  std::unique_ptr<Scheme> scheme_;
  std::optional<Statistics> adapted_to_;
  std::array<Pattern, kPhases> patterns_;  // [phase]
  Pattern last_word_;
  std::vector<std::size_t> space_of_;          // [tensor]
  std::vector<Buffer<Index>> result_indices_;  // [tensor]
  std::vector<Buffer<std::byte>> widened_;     // [tensor], where it crosses as another type
  std::vector<TensorResult> results_;          // [tensor]
  std::int64_t non_finite_ = 0;
  double* squares_ = nullptr;
  std::vector<bool> is_squared_;  // [row space]
  std::vector<OwnedPart> owned_;
  bool has_squares_ = false;
  Buffer<Index> counts_;
  std::vector<Index> bounds_;
  std::vector<ObservedRows> observed_;
  std::atomic<std::int64_t> index_bytes_sent_ = 0;  // asked for while a phase runs, too
};

/// Returns the scheme at work for a bucket, for its costs and its exact traffic. While no phase of
/// the bucket runs.
const Scheme& scheme_of(const Session& session, BucketId bucket);

}  // namespace sparsesync
