// Sparsifiers: make dense gradients sparse, and keep what does not cross for later steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/views.h"
#include "kernels/topk/residual.h"
#include "schemes/bucket.h"
#include "sparsesync/gradient.h"

namespace sparsesync {

/// What a sparsifier takes of what is owed.
enum class Selecting : std::uint8_t {
  /// Of each tensor so many elements, those of the largest magnitudes: DGC (Lin et al., ICLR 2018).
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
  /// What a tensor's gradient is shortened to, where its L2 norm is larger, before it joins what is
  /// owed; nothing: it is not.
  std::optional<double> clip = std::nullopt;
  /// What does not cross is kept; else it is lost.
  bool keeps_rest = true;
  /// What values cross as: f32, f16 or bf16; nothing: their tensor's type, and of chunks that of
  /// the first tensor.
  std::optional<DType> wire = std::nullopt;
};

/// What may differ from step to step; the same on all workers.
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

  /// What the bucket is registered with.
  const std::vector<TensorSpec>& crossing() const { return crossing_; }

  /// Starts a step.
  /// @param gradients  one for each tensor, all elements of it, in the context's memory, or null:
  ///                   nothing is added
  /// @return for each tensor of crossing() what crosses, in memory of the sparsifier, left as it is
  ///         until the next call. Synchronizes the stream
  /// @throws what validate() throws. BudgetError, DeviceMemoryError, std::bad_alloc: nothing is
  ///         taken then, and what is owed is what it was, but for rounding of sums
  std::span<const Gradient> take(std::span<const std::byte* const> gradients,
                                 const SparsifierStep& step);
  /// Values of the last step that are infinite or not a number: gradients, which were left out, and
  /// what is once it is rounded for the wire, which crosses so and stays owed.
  Index not_finite() const { return not_finite_; }

  /// Undoes the last take(), of the same gradients, but for rounding of sums: the step is skipped.
  /// Before the next choose().
  /// @throws ContractError where there is nothing to undo
  void undo(std::span<const std::byte* const> gradients);
  /// Gives back what the last take() took, where its sums are not used: it is owed as it was
  /// before. Before the next choose().
  /// @throws ContractError where there is nothing to give back
  void give_back();

  // ---- What is owed, in the context's memory: of each tensor as many as it has elements.

  /// That it is multiplied by: the last step's; 1 before the first one.
  float scale() const { return scale_; }

  /// What of its gradients did not cross.
  std::span<float> residual(std::size_t tensor);
  /// Empty where momentum is not corrected.
  std::span<float> velocity(std::size_t tensor);

  // ---- Of chunks.

  /// The sums of the absolute values of what was owed in each chunk before the last take() took
  /// from it, in the context's memory; none of other sparsifiers.
  virtual std::span<double> norms() { return {}; }
  /// Which chunks the next steps take, increasing; before that is said, all.
  /// @throws ContractError where there are no such chunks
  virtual void choose(std::span<const Index> chunks);

 protected:
  /// @param round_to  elements of the residual are a multiple of it; those behind the tensors' are
  /// 0
  Sparsifier(const Context& context, std::vector<TensorSpec> tensors, SparsifierOptions options,
             Index round_to = 1);

  virtual void select(const SparsifierStep& step) = 0;
  /// Adds what select() took to what is owed again.
  virtual void put_back() = 0;

  const Context& context() const { return context_; }
  const SparsifierOptions& options() const { return options_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  std::span<float> residual() { return residual_.first(padded_); }
  Count not_finite_count() { return Count(not_finite_place_.data()); }

  std::vector<TensorSpec> crossing_;
  std::vector<Gradient> taken_;  // as crossing_

 private:
  void rescale(float scale);
  void find_factors(std::span<const std::byte* const> gradients);
  /// Takes gradients that were added out again, but for rounding.
  void remove(std::span<const std::byte* const> gradients);
  std::span<float> velocity();
  ConstMatrix gradient_of(std::size_t tensor, const std::byte* data) const;
  Velocity velocity_of(std::size_t tensor, const SparsifierStep& step);

  Context context_;
  std::vector<TensorSpec> tensors_;
  SparsifierOptions options_;
  std::vector<Index> begins_;  // of each tensor in what lies end to end, and behind the last one
  Index padded_ = 0;           // elements of the residual
  Buffer<float> residual_;
  Buffer<float> velocity_;
  Buffer<Index> not_finite_place_;
  Buffer<double> squares_;
  Index not_finite_ = 0;
  bool has_taken_ = false;
  float scale_ = 1;
  SparsifierStep last_;
  std::vector<float> factors_;   // that each tensor's gradient was multiplied by
  std::vector<double> fetched_;  // squares
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
