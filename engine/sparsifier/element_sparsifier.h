// The base class of sparsifiers that select elements by magnitude.
#pragma once

#include <vector>

#include "engine/sparsifier/residual_sparsifier.h"
#include "kernels/topk/topk.h"

namespace sparsesync {

/// Sends each tensor as a row-sparse tensor with rows of one element.
class OfElements : public ResidualSparsifier {
 protected:
  OfElements(const Context& context, std::vector<TensorSpec> tensors,
             const SparsifierOptions& options);

  /// Returns a tensor's threshold, in the context's memory.
  MagnitudeCut* cut(std::size_t tensor) { return &cuts_.first(std::ssize(tensors()))[tensor]; }

  /// Returns one counter for each tensor, in the context's memory.
  std::span<Index> counts() { return counts_.first(std::ssize(tensors())); }

  /// Finds the threshold of each tensor.
  /// @param room  receives an upper bound on the selected elements of each tensor
  virtual void find_cuts(const SparsifierStep& step, std::span<Index> room) = 0;

 private:
  struct Elements {
    explicit Elements(const Context& context)
        : indices(context), values(context), velocities(context) {}
    Buffer<Index> indices;
    Buffer<std::byte> values;
    Buffer<float> velocities;  // velocities of the selected elements, for momentum factor masking
    Index count = 0;
  };
  void select(const SparsifierStep& step) final;
  void put_back() final;
  /// Copies the counts of selected elements to the host.
  /// @param taken_out  number of first tensors that were selected from; the other tensors' counts
  ///                   become 0
  void fetch_counts(std::size_t taken_out);
  Matrix values_of(std::size_t tensor, Index count);

  bool masks_;
  Buffer<MagnitudeCut> cuts_;
  std::vector<Elements> elements_;
  Buffer<Index> counts_;
  std::vector<Index> room_;
  std::vector<Index> fetched_;
};

}  // namespace sparsesync
