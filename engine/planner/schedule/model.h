// A model as schedules see it: layers, the seconds of their passes, and their gradients.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/views.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// The gradient of an embedding: rows of f32.
struct SparseGradient {
  Index rows = 0;
  Index width = 0;
  double nnz = 0;  // rows that a worker touches
  /// γ of so many workers: rows that they touch together, over nnz. That of 1 is 1.
  std::map<int, double> densification = {};

  /// Rows that so many workers touch together: a power of their number between those that are
  /// known, and beyond them as between the last two; no more than there are. Where none are known,
  /// all touch others, as far as there are.
  double united(double workers) const;
  /// What is expected among so many. How rows are spread over ranges is not told.
  SpaceStatistics statistics(int workers) const;
};

/// A layer: parameters whose gradients become ready together.
struct ModelLayer {
  std::string name;
  double forward_s = 0;
  double backward_s = 0;
  double bytes = 0;                                     // of its dense gradient
  std::optional<SparseGradient> sparse = std::nullopt;  // in the place of that
  // Not in the file: layers that differ in these never cross together.
  int group = 0;
  bool announces = true;  // whether its rows are told ahead, where rows are
};

/// Layers in the order of the forward pass; their gradients become ready the other way round.
struct Model {
  std::string name;
  std::vector<ModelLayer> layers;  // one at least
};

}  // namespace sparsesync
