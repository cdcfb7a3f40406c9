#include "engine/planner/schedule/model_costs.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "schemes/indices_first/indices_first.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

/// Returns the bytes of a layer's gradient in memory: all elements of a dense one, touched rows of
/// a sparse one.
double pool_bytes(const ModelLayer& layer) {
  if (!layer.sparse) return layer.bytes;
  return layer.sparse->nnz * static_cast<double>(layer.sparse->width * element_bytes(DType::f32));
}

/// Returns the bytes of a layer's gradient that are sent: without index codes, with chunks' norms.
double crossing_bytes(const ModelLayer& layer, const CrossingOptions& options) {
  const double elements = pool_bytes(layer) / static_cast<double>(element_bytes(DType::f32));
  const auto value_bytes = static_cast<double>(element_bytes(options.wire));
  if (layer.sparse || !options.chunks) return elements * value_bytes;
  const double chunks = elements / static_cast<double>(options.chunks->elements);
  return options.chunks->share * elements * value_bytes + chunks * sizeof(double);
}

/// Returns the cost of a dense gradient with a number of f32 elements.
Cost dense_cost(const SchemeEntry& entry, Index elements, int workers) {
  RowSpace space;
  space.width = 1;
  space.rows = elements;
  space.members = {{0, 0}};
  const Statistics statistics{{static_cast<double>(elements), static_cast<double>(elements),
                               static_cast<double>(elements)}};
  return entry.cost({.spaces = std::span(&space, 1), .size = workers, .statistics = statistics});
}

BucketSeconds seconds_of(const Cost& cost, const Network& network) {
  return {0, cost.reduce.seconds(network), cost.gather.seconds(network)};
}

bool is_dense(const std::string& scheme) {
  return scheme.starts_with("dense_");
}

/// Whether a scheme's cost depends only on the number of touched rows, not on their positions.
bool is_predictable(const SchemeEntry& entry) {
  return entry.design.balance != Balance::imbalanced && entry.design.format != Format::blocks &&
         entry.design.format != Format::dense_then_sparse;
}

}  // namespace

SpaceStatistics statistics_of(const SparseGradient& gradient, int workers) {
  SpaceStatistics statistics;
  statistics.touched_mean = gradient.nnz;
  statistics.touched_max = gradient.nnz;
  statistics.united = gradient.united(workers);
  const double alone = statistics.united - gradient.united(workers - 1);
  statistics.sent_at_least = gradient.nnz + std::max(0, workers - 2) * alone;
  for (int group = 1; group < workers; group *= 2) {
    statistics.united_in_groups.push_back(gradient.united(group));
  }
  return statistics;
}

ScheduledLayer scheduled(const ModelLayer& layer, bool announce) {
  const bool rows_cross = layer.sparse.has_value();
  const bool announces = announce && rows_cross && layer.announces;
  return {layer.forward_s, layer.backward_s, pool_bytes(layer),
          4 * layer.group + 2 * (layer.announces ? 1 : 0) + (rows_cross ? 1 : 0), announces};
}

bool is_cost_predictable(const std::string& scheme) {
  return is_predictable(scheme_named(scheme));
}

ModelCosts::ModelCosts(const Model& model, int workers, const CrossingOptions& options)
    : model_(model), workers_(workers), options_(options) {
  SPARSESYNC_EXPECT(workers, >=, 1);
  if (options.scheme != "auto") {
    const SchemeEntry entry = scheme_named(options.scheme);
    if (!is_predictable(entry)) {
      throw InputError(
          fmt::format("--scheme {}: its cost depends on the positions of rows, which a model's "
                      "file does not have: plan a trace, or simulate another scheme",
                      options.scheme));
    }
    if (options.announce && !entry.heeds.has(SchemeOption::announce)) {
      throw InputError(
          fmt::format("--announce: the scheme {} does not use it; use owned", options.scheme));
    }
  }
  if (sum_dtype(options.wire) != DType::f32) {
    throw InputError(fmt::format("--wire {}: f32, f16 or bf16", name_of(options.wire)));
  }
  dense_scheme_ = is_dense(options.scheme) ? options.scheme : "dense_ring";
  bytes_before_.push_back(0);
  for (const ModelLayer& layer : model.layers) {
    layers_.push_back(scheduled(layer, options.announce && workers > 1));
    layers_.back().bytes = crossing_bytes(layer, options);
    bytes_before_.push_back(bytes_before_.back() + layers_.back().bytes);
  }
  if (workers > 1) dense_ = dense_phases();
}

double ModelCosts::bytes_of(LayerRange range) const {
  return bytes_before_[static_cast<std::size_t>(range.last) + 1] -
         bytes_before_[static_cast<std::size_t>(range.first)];
}

ModelCosts::AffinePhases ModelCosts::dense_phases() const {
  if (options_.affine) {
    const double start = options_.affine->start_s / 2;
    const double per_byte = options_.affine->s_per_byte / 2;
    return {{0, start, start}, {0, per_byte, per_byte}, 1};
  }
  const SchemeEntry entry = scheme_named(dense_scheme_);
  // Two distant sizes determine the affine function.
  constexpr Index kFew = Index{1} << 20U;
  constexpr Index kMany = Index{1} << 30U;
  const auto seconds = [&](Index elements) {
    if (!options_.nodes || workers_ <= options_.nodes->workers) {
      const Network& network = options_.nodes ? options_.nodes->network : options_.network;
      return seconds_of(dense_cost(entry, elements, workers_), network);
    }
    const int inside = options_.nodes->workers;
    const BucketSeconds in_node = seconds_of(
        dense_cost(scheme_named("dense_ring"), elements, inside), options_.nodes->network);
    const BucketSeconds between = seconds_of(
        dense_cost(entry, elements / inside, (workers_ + inside - 1) / inside), options_.network);
    return BucketSeconds{0, in_node.reduce + between.reduce, in_node.gather + between.gather};
  };
  const BucketSeconds few = seconds(kFew);
  const BucketSeconds many = seconds(kMany);
  const auto bytes = [](Index elements) {
    return static_cast<double>(elements * element_bytes(DType::f32));
  };
  const auto line = [&](double BucketSeconds::*phase, AffinePhases& phases) {
    phases.per_byte.*phase = (many.*phase - few.*phase) / (bytes(kMany) - bytes(kFew));
    phases.start.*phase = std::max(0.0, few.*phase - phases.per_byte.*phase * bytes(kFew));
  };
  AffinePhases phases;
  line(&BucketSeconds::reduce, phases);
  line(&BucketSeconds::gather, phases);
  const Cost cost = dense_cost(entry, kFew, workers_);
  phases.messages = cost.reduce.messages + cost.gather.messages;
  return phases;
}

BucketSeconds ModelCosts::seconds(LayerRange range) const {
  if (workers_ == 1) return {};
  if (is_sparse(range) && !options_.affine) return sparse_bucket(range).seconds;
  const double bytes = bytes_of(range);
  return {0, dense_.start.reduce + dense_.per_byte.reduce * bytes,
          dense_.start.gather + dense_.per_byte.gather * bytes};
}

double ModelCosts::messages(LayerRange range) const {
  if (workers_ == 1) return 0;
  return is_sparse(range) && !options_.affine ? sparse_bucket(range).messages : dense_.messages;
}

std::string ModelCosts::scheme(LayerRange range) const {
  if (workers_ == 1) return "";
  if (options_.affine) return "all_reduce";
  return is_sparse(range) ? sparse_bucket(range).scheme : dense_scheme_;
}

const ModelCosts::SparseBucket& ModelCosts::sparse_bucket(LayerRange range) const {
  const std::pair key{range.first, range.last};
  const auto found = sparse_.find(key);
  return found != sparse_.end() ? found->second
                                : sparse_.emplace(key, plan_sparse(range)).first->second;
}

ModelCosts::SparseBucket ModelCosts::plan_sparse(LayerRange range) const {
  std::vector<TensorSpec> tensors;
  for (int layer = range.first; layer <= range.last; ++layer) {
    const ModelLayer& each = model_.layers[static_cast<std::size_t>(layer)];
    tensors.push_back({each.name, each.sparse->rows, each.sparse->width, options_.wire});
  }
  const std::vector<RowSpace> spaces = row_spaces(tensors);
  Statistics statistics;
  for (const RowSpace& space : spaces) {
    SpaceStatistics& sum = statistics.emplace_back();
    for (const RowSpace::Member& member : space.members) {
      const auto layer = static_cast<std::size_t>(range.first) + member.tensor;
      add_share(sum, statistics_of(*model_.layers[layer].sparse, workers_), 1);
    }
    sum.push_skewness = 1;  // unknown
    sum.pull_skewness = 1;
  }
  const bool is_inside = options_.nodes && workers_ <= options_.nodes->workers;
  const Network& network = is_inside ? options_.nodes->network : options_.network;
  const bool announces = layers_[static_cast<std::size_t>(range.first)].announces;
  std::optional<SparseBucket> best;
  const auto look_at = [&](const SchemeEntry& entry, Communication pattern) {
    Workload workload{.spaces = spaces, .size = workers_, .statistics = statistics};
    workload.options.pattern = pattern;
    if (options_.wire != DType::f32) workload.options.wire = options_.wire;
    workload.announced = announces;
    const Cost cost = entry.cost(workload);
    SparseBucket bucket{seconds_of(cost, network), cost.reduce.messages + cost.gather.messages,
                        std::string(entry.name)};
    if (announces) {
      const PhaseCost announced = set_exchange_cost(workload);
      bucket.seconds.announce = announced.seconds(network);
      bucket.messages += announced.messages;
    }
    if (!best || bucket.seconds.values() < best->seconds.values()) best = std::move(bucket);
  };
  for (const SchemeEntry& entry : all_schemes()) {
    const bool is_asked = options_.scheme == "auto" ? is_predictable(entry) && !entry.all_reduces
                                                    : entry.name == options_.scheme;
    if (!is_asked || (announces && !entry.heeds.has(SchemeOption::announce))) continue;
    for (const Communication pattern : kCommunications) {
      look_at(entry, pattern);
      if (!entry.heeds.has(SchemeOption::pattern)) break;
    }
  }
  SPARSESYNC_EXPECT(best.has_value(), ==, true);
  return *best;
}

}  // namespace sparsesync
