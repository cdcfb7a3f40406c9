// Costs of synchronizing a model's gradients: seconds of each phase of a bucket of layers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/schedule/policies.h"
#include "schemes/cost.h"

namespace sparsesync {

/// The cost of an all-reduce: start_s + s_per_byte · m seconds for m bytes, half of them in each
/// phase.
struct AffineAllReduce {
  double start_s = 0;
  double s_per_byte = 0;
};

/// The network inside each node.
struct NodeNetwork {
  int workers = 1;  // workers per node
  Network network;
};

/// GradientFlow's coarse-grained sparse communication. A fraction of all chunks of dense gradients
/// is sent, the same chunks on all workers, and an f64 norm for each chunk.
struct CrossingChunks {
  double share = 0.1;
  Index elements = Index{1} << 15;  // elements per chunk
};

/// Returns the expected sparsity of a gradient for a number of workers. The distribution of rows
/// over ranges is unknown.
SpaceStatistics statistics_of(const SparseGradient& gradient, int workers);

/// Converts a layer for schedule policies.
/// @param announce  whether row indices are exchanged during the forward pass
ScheduledLayer scheduled(const ModelLayer& layer, bool announce);

/// Whether a model's file is enough to predict a scheme's cost: whether the cost depends only on
/// the number of touched rows, not on their positions.
/// @throws InputError if there is no such scheme
bool is_cost_predictable(const std::string& scheme);

/// Options for the costs of a model's gradients.
struct CrossingOptions {
  Network network;  // between nodes, if there are several
  std::optional<NodeNetwork> nodes = std::nullopt;
  /// Replaces networks and schemes.
  std::optional<AffineAllReduce> affine = std::nullopt;
  /// Scheme of sparse gradients, or "auto". Dense gradients use it if it is a dense scheme, and
  /// dense_ring otherwise.
  std::string scheme = "auto";
  /// Whether row indices of sparse gradients are exchanged during the forward pass.
  bool announce = false;
  /// Wire type of f32 values: f32, f16 or bf16.
  DType wire = DType::f32;
  std::optional<CrossingChunks> chunks = std::nullopt;  // no value: dense gradients are sent whole
};

/// The costs of one model for a number of workers. Dense buckets have a cost that is affine in
/// their bytes; sparse ones have the scheme's cost. If there are several nodes, dense gradients are
/// first summed inside nodes. Each worker then sends its part of that sum between nodes. Sparse
/// gradients are sent as if all workers were on different nodes.
class ModelCosts {
 public:
  /// Computes the costs of dense buckets.
  /// @param model  outlives the object
  /// @throws InputError if there is no such scheme, or its cost cannot be predicted
  ModelCosts(const Model& model, int workers, const CrossingOptions& options);

  const std::vector<ScheduledLayer>& layers() const { return layers_; }
  /// Returns the seconds of each phase of a bucket.
  /// @pre the layers have one kind
  BucketSeconds seconds(LayerRange range) const;
  /// Returns the messages that the bottleneck worker sends in a step for such a bucket.
  double messages(LayerRange range) const;
  /// Returns the scheme of such a bucket: "all_reduce" for affine costs, and "" for one worker.
  std::string scheme(LayerRange range) const;
  /// Returns seconds() as a function, valid while this object lives.
  BucketCosts costs() const {
    return [this](LayerRange range) { return seconds(range); };
  }

 private:
  /// Seconds of each phase, affine in a bucket's bytes, and messages.
  struct AffinePhases {
    BucketSeconds start;
    BucketSeconds per_byte;
    double messages = 0;
  };
  struct SparseBucket {
    BucketSeconds seconds;
    double messages = 0;
    std::string scheme;
  };

  bool is_sparse(LayerRange range) const {
    return model_.layers[static_cast<std::size_t>(range.first)].sparse.has_value();
  }
  double bytes_of(LayerRange range) const;
  AffinePhases dense_phases() const;
  const SparseBucket& sparse_bucket(LayerRange range) const;
  SparseBucket plan_sparse(LayerRange range) const;

  const Model& model_;
  int workers_;
  CrossingOptions options_;
  std::string dense_scheme_;
  std::vector<ScheduledLayer> layers_;
  std::vector<double> bytes_before_;  // [layer]: bytes of all layers before it
  AffinePhases dense_;
  mutable std::map<std::pair<int, int>, SparseBucket> sparse_;  // cache
};

}  // namespace sparsesync
