// The residual that all sparsifiers keep, and the step around it: a sparsifier adds what it
// selects.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/topk/residual.h"
#include "sparsesync/sparsifier.h"

namespace sparsesync {

/// Keeps what was not sent, in f32; derived classes select what is sent.
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
  /// @param round_to  elements of the residual are a multiple of it; those behind the tensors' are
  /// 0
  ResidualSparsifier(const Context& context, std::vector<TensorSpec> tensors,
                     SparsifierOptions options, Index round_to = 1);

  /// Moves what to send from the residual to taken_.
  virtual void select(const SparsifierStep& step) = 0;
  /// Adds what select() took to what is owed again.
  virtual void put_back() = 0;

  const Context& context() const { return context_; }
  const SparsifierOptions& options() const { return options_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  /// The residual of all tensors, one after another, padded to `round_to`.
  std::span<float> residual() { return residual_.first(padded_); }
  /// Counts values that are not finite.
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

/// Selecting::top_k. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_top_k(const Context& context, std::vector<TensorSpec> tensors,
                                       const SparsifierOptions& options);
/// Selecting::threshold. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_threshold(const Context& context, std::vector<TensorSpec> tensors,
                                           const SparsifierOptions& options);
/// Selecting::chunks. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_coarse_grained(const Context& context,
                                                std::vector<TensorSpec> tensors,
                                                const SparsifierOptions& options);

}  // namespace sparsesync
