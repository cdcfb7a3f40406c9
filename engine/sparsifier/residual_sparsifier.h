// The base class of all sparsifiers: the residual and the sequence of a step. Derived classes
// select elements.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/topk/residual.h"
#include "sparsesync/sparsifier.h"

namespace sparsesync {

/// Keeps the residual, in f32. Derived classes select the elements to send.
class ResidualSparsifier : public Sparsifier {
 public:
  const std::vector<TensorSpec>& crossing() const final { return crossing_; }
  std::span<const Gradient> take(std::span<const std::byte* const> gradients,
                                 const SparsifierStep& step) final;
  Index not_finite() const final { return not_finite_; }
  void undo(std::span<const std::byte* const> gradients) final;
  void give_back() final;
  float scale() const final { return scale_; }
  std::span<float> residual(std::size_t tensor) final;
  std::span<float> velocity(std::size_t tensor) final;
  std::span<double> norms() override { return {}; }
  void choose(std::span<const Index> chunks) override;

 protected:
  /// Allocates a residual of zeros.
  /// @param round_to  the residual is padded with zeros to a multiple of this number of elements
  ResidualSparsifier(const Context& context, std::vector<TensorSpec> tensors,
                     SparsifierOptions options, Index round_to = 1);

  /// Moves the selected elements from the residual to taken_.
  virtual void select(const SparsifierStep& step) = 0;
  /// Adds the elements that select() moved back to the residual.
  virtual void put_back() = 0;

  const Context& context() const { return context_; }
  const SparsifierOptions& options() const { return options_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  /// Returns the residual of all tensors, concatenated and padded to a multiple of `round_to`.
  std::span<float> residual() { return residual_.first(padded_); }
  /// Returns the counter of non-finite values.
  Count not_finite_count() { return Count(not_finite_place_.data()); }

  std::vector<TensorSpec> crossing_;
  std::vector<Gradient> taken_;  // one for each tensor of crossing_

 private:
  void rescale(float scale);
  void find_factors(std::span<const std::byte* const> gradients);
  /// Subtracts the gradients that the last take() added. The result differs by rounding.
  void remove(std::span<const std::byte* const> gradients);
  std::span<float> velocity();
  ConstMatrix gradient_of(std::size_t tensor, const std::byte* data) const;
  Velocity velocity_of(std::size_t tensor, const SparsifierStep& step);

  Context context_;
  std::vector<TensorSpec> tensors_;
  SparsifierOptions options_;
  std::vector<Index> begins_;  // offset of each tensor in the residual, and the end
  Index padded_ = 0;           // number of elements in the residual
  Buffer<float> residual_;
  Buffer<float> velocity_;
  Buffer<Index> not_finite_place_;
  Buffer<double> squares_;
  Index not_finite_ = 0;
  bool has_taken_ = false;
  float scale_ = 1;
  SparsifierStep last_;
  std::vector<float> factors_;   // [tensor] clipping factor of its gradient
  std::vector<double> fetched_;  // [tensor] squared norm, on the host
};

/// Creates the sparsifier Selecting::top_k. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_top_k(const Context& context, std::vector<TensorSpec> tensors,
                                       const SparsifierOptions& options);
/// Creates the sparsifier Selecting::threshold. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_threshold(const Context& context, std::vector<TensorSpec> tensors,
                                           const SparsifierOptions& options);
/// Creates the sparsifier Selecting::chunks. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_coarse_grained(const Context& context,
                                                std::vector<TensorSpec> tensors,
                                                const SparsifierOptions& options);

}  // namespace sparsesync
