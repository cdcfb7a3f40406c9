// What sparsifiers share that take elements by their magnitudes.
#pragma once

#include <vector>

#include "engine/sparsifier/residual_sparsifier.h"
#include "kernels/topk/topk.h"

namespace sparsesync {

/// Each tensor crosses as one of rows of one element.
class OfElements : public ResidualSparsifier {
 protected:
  OfElements(const Context& context, std::vector<TensorSpec> tensors,
             const SparsifierOptions& options);

  /// The cut of a tensor, in the context's memory.
  MagnitudeCut* cut(std::size_t tensor) { return &cuts_.first(std::ssize(tensors()))[tensor]; }

  /// A number of each tensor, in the context's memory, for whoever counts.
  std::span<Index> counts() { return counts_.first(std::ssize(tensors())); }

  /// Finds the cut of each tensor.
  /// @param room  receives how many elements each takes at the most
  virtual void find_cuts(const SparsifierStep& step, std::span<Index> room) = 0;

 private:
  struct Elements {
    explicit Elements(const Context& context)
        : indices(context), values(context), velocities(context) {}
    Buffer<Index> indices;
    Buffer<std::byte> values;
    Buffer<float> velocities;  // where they are masked
    Index count = 0;
  };
  void select(const SparsifierStep& step) final;
  void put_back() final;
  /// @param taken_out  tensors whose counts are known by now; others have none
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
