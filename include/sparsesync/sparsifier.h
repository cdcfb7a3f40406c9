// Sparsifiers: make dense gradients sparse, and keep what does not cross for later steps.
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

/// Names how a sparsifier selects what it sends from the residual.
enum class Selecting : std::uint8_t {
  /// A number of elements of each tensor, those of the largest magnitudes: DGC (Lin et al., ICLR
  /// 2018).
  top_k,
  /// The elements whose magnitude is a level or more.
  threshold,
  /// Chunks of the tensors laid end to end, the same ones on all workers: GradientFlow's
  /// coarse-grained sparse communication (Sun et al., 2019).
  chunks,
};

/// The same on all workers, and in all steps.
struct SparsifierOptions {
  Selecting selecting = Selecting::top_k;
  Index chunk = Index{1} << 15;  // elements
  float level = 0;               // of threshold, where gradients are not scaled
  /// Velocities are kept, and cross in the place of gradients (momentum correction).
  bool corrects_momentum = false;
  /// The velocity of what crosses becomes 0 (momentum factor masking); of elements alone.
  bool masks_momentum = true;
  /// Largest L2 norm with which a tensor's gradient joins the residual: longer ones are scaled
  /// down. Nothing: they are not.
  std::optional<double> clip = std::nullopt;
  /// Keeps what is not sent; else it is lost.
  bool keeps_rest = true;
  /// Type that values are sent as: f32, f16 or bf16. Nothing: their tensor's type, and of chunks
  /// that of the first tensor.
  std::optional<DType> wire = std::nullopt;
};

/// Settings that may differ from step to step; the same on all workers.
struct SparsifierStep {
  double share = 1;  // of top_k: of a tensor's elements, rounded up
  float scale = 1;   // that the loss was multiplied by, and gradients with it
  float momentum = 0;
  bool nesterov = false;
};

/// @throws InputError for a share outside (0, 1], a scale that is not positive and finite, or a
///         momentum that is negative or not finite
void validate(const SparsifierStep& step);

/// One worker's sparsifier of a bucket's tensors, whose gradients are dense. Works in its context
/// alone; calls come from one thread at a time.
///
/// In each step take() adds the gradients to what is owed, and takes out of that what crosses: a
/// bucket of crossing() carries it, by any scheme and schedule. In f32 what crosses and what stays
/// are together what was owed, exactly. What is owed is as large as the last step's gradients are:
/// where the scale of the loss changes it is multiplied along, exactly for powers of two.
class Sparsifier {
 public:
  virtual ~Sparsifier() = default;
  Sparsifier(const Sparsifier&) = delete;
  Sparsifier& operator=(const Sparsifier&) = delete;

  /// Returns the tensors to register the bucket with.
  virtual const std::vector<TensorSpec>& crossing() const = 0;

  /// Starts a step.
  /// @param gradients  one for each tensor, all elements of it, in the context's memory, or null:
  ///                   nothing is added
  /// @return for each tensor of crossing() what crosses, in memory of the sparsifier, left as it is
  ///         until the next call. Synchronizes the stream
  /// @throws what validate() throws. BudgetError, DeviceMemoryError, std::bad_alloc: nothing is
  ///         taken then, and what is owed is what it was, but for rounding of sums
  virtual std::span<const Gradient> take(std::span<const std::byte* const> gradients,
                                         const SparsifierStep& step) = 0;
  /// Values of the last step that are infinite or not a number: gradients, which were left out, and
  /// what is once it is rounded for the wire, which crosses so and stays owed.
  virtual Index not_finite() const = 0;

  /// Undoes the last take(), of the same gradients, but for rounding of sums: the step is skipped.
  /// Before the next choose().
  /// @throws ContractError where there is nothing to undo
  virtual void undo(std::span<const std::byte* const> gradients) = 0;
  /// Gives back what the last take() took, where its sums are not used: it is owed as it was
  /// before. Before the next choose().
  /// @throws ContractError where there is nothing to give back
  virtual void give_back() = 0;

  // ---- What is owed, in the context's memory: of each tensor as many as it has elements.

  /// Returns the loss scale that the residual is multiplied by: the last step's; 1 before the
  /// first one.
  virtual float scale() const = 0;

  /// Returns the unsent part of a tensor's gradients.
  virtual std::span<float> residual(std::size_t tensor) = 0;
  /// Empty where momentum is not corrected.
  virtual std::span<float> velocity(std::size_t tensor) = 0;

  // ---- Of chunks.

  /// The sums of the absolute values of what was owed in each chunk before the last take() took
  /// from it, in the context's memory; none of other sparsifiers.
  virtual std::span<double> norms() = 0;
  /// Sets the chunks that the next steps take, increasing; before the first call, all.
  /// @throws ContractError where there are no such chunks
  virtual void choose(std::span<const Index> chunks) = 0;

 protected:
  Sparsifier() = default;
};

/// A sparsifier that owes nothing yet. Does not synchronize the stream.
/// @throws InputError naming the tensor and the mend: of f64 or integers; sizes that are negative
/// or
///         cannot be counted; an option that has no meaning; chunks larger than all tensors
///         together; BudgetError, std::bad_alloc
std::unique_ptr<Sparsifier> make_sparsifier(const Context& context, std::vector<TensorSpec> tensors,
                                            const SparsifierOptions& options);

/// A share of so many, rounded up, in [0, all]. One such as 0.01, which is a little off in binary,
/// is meant as it is written: 0.01 of 100 is one.
/// @throws InputError for a share that is not finite, and for a negative `all`
Index count_of_share(double share, Index all);

/// The `count` chunks of the largest norms, increasing; of equal ones the first. NaN's come before
/// all others: where something is wrong it crosses.
std::vector<Index> largest_chunks(std::span<const double> norms, Index count);

/// "top_k", "threshold" and "chunks".
std::string_view name_of(Selecting selecting);

}  // namespace sparsesync
