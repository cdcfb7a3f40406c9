// What sparsifiers share that take elements by their magnitudes.
#pragma once

#include <utility>
#include <vector>

#include "engine/sparsifier/sparsifier.h"
#include "kernels/magnitude.h"

namespace sparsesync {

/// Each tensor crosses as one of rows of one element.
class OfElements : public Sparsifier {
 protected:
  OfElements(const Context& context, std::vector<TensorSpec> tensors,
             const SparsifierOptions& options);

  /// The cut of a tensor, in the context's memory.
  MagnitudeCut* cut(std::size_t tensor) { return &cuts_.first(std::ssize(tensors()))[tensor]; }

  /// Takes out of each tensor what its cut takes: as much as there is room for, at the most.
  /// @param room  of each tensor
  void take_all(std::span<const Index> room);
  void put_back() override;

 private:
  struct Elements {
    explicit Elements(const Context& context)
        : indices(context), values(context), velocities(context) {}
    Buffer<Index> indices;
    Buffer<std::byte> values;
    Buffer<float> velocities;  // where they are masked
    Index count = 0;
  };
  Matrix values_of(std::size_t tensor, Index count);

  bool masks_;
  Buffer<MagnitudeCut> cuts_;
  std::vector<Elements> elements_;
  Buffer<Index> counts_;
  std::vector<Index> fetched_;
};

}  // namespace sparsesync
