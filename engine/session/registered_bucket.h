// A bucket that all workers agreed on: its input, its scheme, and its results per tensor.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
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

/// Explains why the squared norm of a bucket's first tensors cannot be computed separately.
/// @param tensors  number of first tensors. They must have floating-point dtypes. None may share
///                 both its wire dtype and its width with one of the bucket's other tensors
/// @return empty if it can be computed
std::string squares_problem(const BucketSpec& spec, Index tensors);

/// Refusal of a step.
struct Refusal {
  RefusedError passed_on;    // the error that the other workers throw
  std::exception_ptr cause;  // the error that this worker throws
};

/// One worker's side of a registered bucket.
class RegisteredBucket {
 public:
  /// Creates the scheme. Does not synchronize the stream.
  /// @param entry  the first scheme
  /// @param seed   the same on all workers
  /// @throws BudgetError, std::bad_alloc if there is not enough memory for the scheme's fixed
  ///         workspace
  RegisteredBucket(const Context& context, BucketSpec spec, const SchemeEntry& entry, Rank rank,
                   int size, std::uint64_t seed);

  const BucketSpec& spec() const { return spec_; }
  const Context& context() const { return context_; }
  /// Returns the row spaces, with the dtypes that are sent.
  std::span<const RowSpace> spaces() const { return spaces_; }
  /// Returns the current scheme.
  Scheme& scheme() { return *scheme_; }
  /// Returns the step's gradients.
  BucketInput& input() { return input_; }
  /// Returns the rows that the step announces.
  /// @pre the bucket announces
  BucketInput& announced() { return *announced_; }
  /// Whether a phase is the first phase of a step.
  bool begins_with(Phase phase) const {
    return phase == (spec_.announce ? Phase::announce : Phase::reduce);
  }
  /// Returns the current scheme's pattern for a phase.
  const Pattern& pattern(Phase phase) const { return patterns_[static_cast<std::size_t>(phase)]; }

  /// Returns the message pattern that informs all workers of a phase's outcome.
  const Pattern& last_word() const { return last_word_; }
  /// Returns the phases of a step, from its first phase through `last`.
  std::vector<Phase> phases_to(Phase last) const;
  /// Keeps the gradients of a phase, so that the step can be retried. They are views of the
  /// caller's memory.
  /// @param source  provides the gradients of a reduce; null: `gradients` has them
  void keep_gradients(Phase phase, std::span<const Gradient> gradients, GradientSource* source);
  /// Returns the gradients of a phase, from keep_gradients() or from its source.
  /// @param stopwatch  paused while the source runs; null: no time is measured
  /// @throws what the source throws
  std::span<const Gradient> gradients(Phase phase, Stopwatch* stopwatch);
  /// Whether the step's source has not provided the gradients yet.
  bool awaits_gradients() const { return source_ != nullptr; }

  /// Returns the number of rounds of each phase.
  int rounds() const { return *crossing_.rounds; }
  /// Changes the number of rounds of each phase, and invalidates results. Call it between steps.
  /// @throws what change_scheme() throws
  void change_rounds(int rounds);
  /// Lets the scheme choose again from new statistics.
  /// @param statistics  the same on all workers
  void adapt(const Statistics& statistics);

  /// Returns the name and the pattern of the current scheme.
  const SchemeVariant& chosen() const { return chosen_; }
  /// Replaces the scheme, and invalidates results. Call it between steps. After an error the bucket
  /// has no scheme, and the caller must change to another one.
  /// @throws BudgetError, std::bad_alloc if there is not enough memory for its fixed workspace
  void change_scheme(const SchemeVariant& chosen);

  /// Returns the result of one tensor.
  /// @pre a gather phase has ended
  const TensorResult& result(std::size_t tensor) const {
    SPARSESYNC_EXPECT(tensor, <, results_.size());
    return results_[tensor];
  }
  /// Returns the scheme's choice for each tensor.
  std::vector<SpaceChoice> choices() const;

  /// Finds each tensor's result after the last round of a gather phase, and casts values of the
  /// wire type to the tensor's dtype. Synchronizes the stream.
  /// @throws BudgetError
  void take_results();
  /// Returns how many values of the results are infinite or not a number. It is 0 unless a wire
  /// type is set or the bucket counts them. The same on all workers.
  std::int64_t non_finite() const { return non_finite_; }

  /// Sets the memory that note_squares() writes to.
  /// @param tensors  number of first tensors, which share no row space with the other tensors
  /// @param sum      in the context's memory; null: no sum is computed
  /// @throws ContractError if a row space is shared
  void keep_squares(std::size_t tensors, double* sum);
  /// Computes the sum of squares of this worker's shard after the last round of a reduce phase.
  /// Does not synchronize the stream.
  void note_squares();
  /// Whether the last reduce phase computed the sum of squares.
  bool has_squares() const { return has_squares_; }

  /// Records statistics of a phase that has ended.
  /// @param index_bytes_sent  bytes of indices sent in this phase
  void observe(Phase phase, std::int64_t index_bytes_sent);
  /// Returns the observed rows of each row space.
  const std::vector<ObservedRows>& observed() const { return observed_; }
  std::int64_t index_bytes_sent() const { return index_bytes_sent_; }

  // State of the bucket's channel, which the session updates.
  std::uint32_t channel = 0;
  std::uint64_t signature = 0;
  std::uint64_t sequence = 0;
  bool late_refusals = false;      // the same on all workers
  std::optional<Refusal> refused;  // refusal of the current step

 private:
  std::unique_ptr<Scheme> create(const SchemeEntry& entry, const BucketSpec& crossing) const;
  void find_tensors();
  void find_members(const SpaceResult& result, std::span<const RowSpace::Member> members);
  void widen_results();
  void take_patterns();

  Context context_;
  BucketSpec spec_;
  BucketSpec crossing_;  // the scheme's spec: wire dtypes, current number of rounds
  std::vector<RowSpace> spaces_;
  BucketInput input_;
  std::optional<BucketInput> announced_;
  std::array<std::vector<Gradient>, kPhases> gradients_;  // [phase] of the current step
  GradientSource* source_ = nullptr;  // the reduce's; null once it provided the gradients
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
  std::vector<Buffer<std::byte>> widened_;     // [tensor], if its wire type differs from its dtype
  std::vector<TensorResult> results_;          // [tensor]
  std::int64_t non_finite_ = 0;
  double* squares_ = nullptr;
  std::vector<bool> is_squared_;  // [row space]
  std::vector<OwnedPart> owned_;
  bool has_squares_ = false;
  Buffer<Index> counts_;
  std::vector<Index> bounds_;
  std::vector<ObservedRows> observed_;
  std::atomic<std::int64_t> index_bytes_sent_ = 0;  // may be read while a phase runs
};

/// Returns a bucket's current scheme, for its cost and its exact traffic.
/// @pre no phase of the bucket runs
const Scheme& scheme_of(const Session& session, BucketId bucket);

}  // namespace sparsesync
