// What a model's gradients cost to cross: seconds of each phase of a bucket of its layers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/schedule/policies.h"
#include "schemes/cost.h"

namespace sparsesync {

/// An all-reduce of m bytes takes start_s + s_per_byte · m, half of it each phase.
struct AffineAllReduce {
  double start_s = 0;
  double s_per_byte = 0;
};

/// Workers that have nodes, each of which has a network of its own.
struct NodeNetwork {
  int workers = 1;  // of a node
  Network network;
};

/// Of dense gradients a share of all chunks crosses, the same ones of all workers, and in their
/// turn an f64 for each chunk: GradientFlow's coarse-grained sparse communication.
struct CrossingChunks {
  double share = 0.1;
  Index elements = Index{1} << 15;  // of a chunk
};

/// Returns the sparsity that is expected of a gradient among so many workers. How rows are spread
/// over ranges is not known.
SpaceStatistics statistics_of(const SparseGradient& gradient, int workers);

/// The layer as schedules have it.
/// @param announce  whether rows are told ahead
ScheduledLayer scheduled(const ModelLayer& layer, bool announce);

/// Whether what a scheme costs follows from what a model's file says: from how many rows are
/// touched, wherever they lie.
/// @throws InputError if there is no such scheme
bool cost_can_be_told(const std::string& scheme);

/// How gradients cross.
struct CrossingOptions {
  Network network;  // between nodes, where there are any
  std::optional<NodeNetwork> nodes = std::nullopt;
  /// In the place of networks and schemes.
  std::optional<AffineAllReduce> affine = std::nullopt;
  /// Of sparse gradients a scheme's name or "auto"; dense ones cross by it where it is a dense one,
  /// else by the ring.
  std::string scheme = "auto";
  /// Sparse gradients' rows are told under the forward pass.
  bool announce = false;
  /// What values of f32 cross as: f32, f16 or bf16.
  DType wire = DType::f32;
  std::optional<CrossingChunks> chunks = std::nullopt;  // none: dense gradients cross whole
};

/// The costs of one model among some workers. Dense buckets cost what is affine in their bytes;
/// sparse ones what the scheme's own cost says. Where there are nodes and more workers than one
/// has, dense gradients are summed inside nodes first, and what crosses between nodes is each
/// worker's part of that; sparse ones cross as if all were between nodes.
class ModelCosts {
 public:
  /// @param model  outlives it
  /// @throws InputError if there is no such scheme, or it cannot be told what it costs
  ModelCosts(const Model& model, int workers, const CrossingOptions& options);

  const std::vector<ScheduledLayer>& layers() const { return layers_; }
  /// @pre layers of one kind
  BucketSeconds seconds(LayerRange range) const;
  /// That the busiest worker sends in a step for such a bucket.
  double messages(LayerRange range) const;
  /// The scheme that such a bucket crosses by; "all_reduce" of affine costs, and "" on one worker.
  std::string scheme(LayerRange range) const;
  /// seconds(), while this lives.
  BucketCosts costs() const {
    return [this](LayerRange range) { return seconds(range); };
  }

 private:
  /// Seconds of a phase, and messages, that are affine in a bucket's bytes.
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
  std::vector<double> bytes_before_;  // [layer]: of all before it
  AffinePhases dense_;
  mutable std::map<std::pair<int, int>, SparseBucket> sparse_;  // asked for so far
};

}  // namespace sparsesync
