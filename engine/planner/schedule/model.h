// MODEL.json: a model as its training is simulated: layers, what their passes take, and what of
// their gradients must cross.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
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

/// The text of the file: {"name", "layers": [{"name", "forward_s", "backward_s", "bytes"} or {...,
/// "sparse": {"rows", "width", "nnz", "densification": {"2": ..., ...}}}], "provenance": {...}}.
std::string model_json(const Model& model,
                       const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads such a file. What it says beyond the above is not looked at.
/// @throws InputError if the file cannot be read; if something is missing or makes no sense: the
///                    text names it
Model read_model(const std::filesystem::path& path);

}  // namespace sparsesync
