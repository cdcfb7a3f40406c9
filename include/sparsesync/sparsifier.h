// Sparsifiers: select the part of a dense gradient to send, and keep the rest as a residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sparsesync/context.h"
#include "sparsesync/dtype.h"
#include "sparsesync/gradient.h"
#include "sparsesync/matrix.h"

namespace sparsesync {

/// Names the rule that selects elements of the residual.
enum class Selecting : std::uint8_t {
  /// The k elements of largest magnitude of each tensor: DGC (Lin et al., ICLR 2018).
  top_k,
  /// All elements whose magnitude is at least a fixed threshold.
  threshold,
  /// Chunks of the concatenated tensors, the same chunks on all workers: coarse-grained sparse
  /// communication of GradientFlow (Sun et al., 2019).
  chunks,
};

/// Configures a sparsifier. The same on all workers, and for all steps.
struct SparsifierOptions {
  Selecting selecting = Selecting::top_k;
  Index chunk = Index{1} << 15;  ///< elements per chunk, for `chunks`
  /// Smallest magnitude to send, for `threshold`; applies to gradients without a loss scale.
  float level = 0;
  /// Whether to accumulate and send velocities instead of gradients (momentum correction).
  bool corrects_momentum = false;
  /// Whether to reset the velocity of sent elements to 0 (momentum factor masking). Not for
  /// `chunks`.
  bool masks_momentum = true;
  /// Largest L2 norm of a tensor's gradient. Longer gradients are scaled down before they are added
  /// to the residual. Nothing: no limit.
  std::optional<double> clip = std::nullopt;
  /// Whether to keep unsent gradients in the residual. Otherwise they are discarded.
  bool keeps_rest = true;
  /// Wire type of values: f32, f16 or bf16. Nothing: the tensor's dtype, or the first tensor's for
  /// `chunks`.
  std::optional<DType> wire = std::nullopt;
};

/// Settings of one step. The same on all workers.
struct SparsifierStep {
  /// Fraction of each tensor's elements to send, rounded up, for `top_k`.
  double share = 1;
  /// Loss scale: the factor that the gradients are multiplied by.
  float scale = 1;
  float momentum = 0;     ///< momentum factor, if `corrects_momentum` is set
  bool nesterov = false;  ///< whether to use Nesterov momentum
};

/// Verifies the settings of a step.
/// @throws InputError if `share` is outside (0, 1], `scale` is not positive and finite, or
///     `momentum` is negative or not finite
void validate(const SparsifierStep& step);

/// Sparsifies the dense gradients of one worker's bucket.
///
/// @code
/// const std::vector<TensorSpec> tensors{{"weights", 10'000, 1, DType::f32}};
/// const auto sparsifier = make_sparsifier(Context(memory), tensors, {});
/// const BucketId bucket = session.register_bucket({"top_k", sparsifier->crossing()});
/// // In each step:
/// session.synchronize(bucket, sparsifier->take(gradients, {.share = 0.01}));
/// @endcode
/// The complete program is examples/cpp/sparsifier.cpp.
///
/// take() adds a step's gradients to the residual, and then moves the selected elements out of it.
/// Any scheme and schedule can send them. In f32, the sent elements and the remaining residual add
/// up exactly to the residual before the selection.
///
/// The residual has the loss scale of the last step. If the scale changes, the residual is
/// multiplied by the ratio, which is exact for powers of two.
///
/// Uses only the memory of its context. One thread at a time calls it.
class Sparsifier {
 public:
  virtual ~Sparsifier() = default;
  Sparsifier(const Sparsifier&) = delete;
  Sparsifier& operator=(const Sparsifier&) = delete;

  /// Returns the tensors to register the bucket with.
  virtual const std::vector<TensorSpec>& crossing() const = 0;

  /// Adds a step's gradients to the residual and moves the selected part out of it. Synchronizes
  /// the stream.
  /// @param gradients  for each tensor: all its elements, in the context's memory; or null to add
  ///     nothing
  /// @param step       settings of the step
  /// @return a sparse gradient for each registered tensor, in the sparsifier's memory, unchanged
  ///     until the next call
  /// @throws Error the errors of validate()
  /// @throws BudgetError nothing was selected, and the residual is unchanged except for rounding
  /// @throws DeviceMemoryError nothing was selected, and the residual is unchanged except for
  ///     rounding
  /// @throws std::bad_alloc nothing was selected, and the residual is unchanged except for rounding
  virtual std::span<const Gradient> take(std::span<const std::byte* const> gradients,
                                         const SparsifierStep& step) = 0;
  /// Returns the number of infinities and NaNs in the last step. It counts gradients, which were
  /// left out. It also counts values that overflowed the wire type; these are sent as they are and
  /// remain in the residual.
  virtual Index not_finite() const = 0;

  /// Undoes the last take(), to skip the step. The residual is restored except for rounding. Call
  /// it before the next choose().
  /// @param gradients  the gradients of that take()
  /// @throws ContractError if there is nothing to undo
  virtual void undo(std::span<const std::byte* const> gradients) = 0;
  /// Moves the elements that the last take() selected back into the residual, if their sums are not
  /// used. The step's gradients stay in the residual. Call it before the next choose().
  /// @throws ContractError if there is nothing to move back
  virtual void give_back() = 0;

  // ---- The residual, in the context's memory: one number per element of the tensor.

  /// Returns the loss scale of the residual: that of the last step, or 1 before the first step.
  virtual float scale() const = 0;

  /// Returns the unsent gradients of a tensor. Writable, to restore a checkpoint.
  virtual std::span<float> residual(std::size_t tensor) = 0;
  /// Returns the velocities of a tensor. Empty if momentum is not corrected.
  virtual std::span<float> velocity(std::size_t tensor) = 0;

  // ---- For `chunks`.

  /// Returns the L1 norm of each chunk of the residual, before the last take() moved elements out
  /// of it. In the context's memory. Empty for other sparsifiers.
  virtual std::span<double> norms() = 0;
  /// Sets the chunks to send in later steps. Without a call, all chunks are sent.
  /// @param chunks  increasing
  /// @throws ContractError if a chunk does not exist
  virtual void choose(std::span<const Index> chunks) = 0;

 protected:
  Sparsifier() = default;
};

/// Creates a sparsifier with an empty residual.
/// @param context  copied; its memory resource and stream outlive the sparsifier
/// @param tensors  dense tensors of f32, f16 or bf16
/// @param options  the rule and its settings
/// @throws InputError naming the tensor or option and the fix: a dtype that is not supported, an
///     invalid size or option, or a chunk larger than all tensors together
/// @throws BudgetError
/// @throws std::bad_alloc
std::unique_ptr<Sparsifier> make_sparsifier(const Context& context, std::vector<TensorSpec> tensors,
                                            const SparsifierOptions& options);

/// Returns a share of `all`, rounded up, in [0, all]. Ignores the binary rounding error of decimal
/// fractions: 0.01 of 100 is 1.
/// @throws InputError if `share` is not finite or `all` is negative
Index count_of_share(double share, Index all);

/// Returns the indices of the `count` chunks with the largest norms, increasing. Of equal norms,
/// the first is preferred. NaN is larger than any number, so that an invalid gradient is sent and
/// noticed.
std::vector<Index> largest_chunks(std::span<const double> norms, Index count);

/// Returns "top_k", "threshold" or "chunks".
std::string_view name_of(Selecting selecting);

}  // namespace sparsesync
