// two_level: dense within a node, any scheme between nodes.
//
// 1. Reduce phase, within a node: its w workers sum their dense tensors with a ring reduce-scatter.
//   The worker with index q owns the node's sums of the q-th even range of each row space's rows.
// 2. Reduce and gather phase, between nodes: the workers with index q of all nodes run another
//   scheme on their range, which is sparse again.
// 3. Gather phase, within a node: an all-gather of the sums around the ring.
//
// The reduction order within a node is index q + 1, ..., w - 1, 0, ..., q. Between nodes it is that
// of the other scheme, with nodes instead of ranks. Partial sums are sent in the type of sums, and
// rounded once when complete. If the bucket has a narrower wire type, sums are sent between nodes
// in that type.
//
// Limits: Rows that cancel within a node are not sent between nodes, but traffic() counts them,
// because index sets do not show them. Ranges are of row numbers, so the rows that most workers
// touch may lie in a single range. Then only the workers with one index send them. With a single
// node this is dense_ring. With one worker per node it is the other scheme.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/indices/locate.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/registry.h"
#include "schemes/two_level/between_nodes.h"
#include "schemes/two_level/node_ring.h"

namespace sparsesync {
namespace {

constexpr std::string_view kName = "two_level";

/// Returns the scheme that does everything if there is only one level.
std::optional<SchemeEntry> only_level(const SchemeOptions& options, int size) {
  if (options.workers_per_node == 1) return scheme_named(options.between_nodes);
  const bool has_nodes = options.workers_per_node > 1 && options.workers_per_node < size;
  return has_nodes ? std::nullopt : std::optional(scheme_named("dense_ring"));
}

class TwoLevel : public Scheme {
 public:
  explicit TwoLevel(const SchemeEnvironment& environment)
      : Scheme(environment),
        bucket_(*environment.bucket),
        seed_(environment.seed),
        division_{spaces_, Nodes(size_, bucket_.options.workers_per_node)},
        node_(division_.nodes.node_of(rank_)),
        place_(division_.nodes.place_of(rank_)),
        ring_(context_, division_, rank_, rounds_),
        bounds_(context_),
        named_(context_),
        wide_(context_),
        united_(spaces_.size()) {
    for (int node = 0; node < division_.nodes.count(); ++node) {
      alike_.push_back(division_.nodes.worker(node, place_));
    }
    for (const Round round : Round::all(rounds_)) {
      parts_.push_back(make_part(place_, round));
      inputs_.emplace_back(context_, parts_.back()->spec());
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      results_[i] = {Gradient::Layout::dense, {}, as_const(ring_.values(i))};
    }
    bounds_.reserve_exactly(2);
  }

  Pattern pattern(Phase phase) const override {
    Pattern in_node = ring_.pattern();
    Pattern between = mapped(parts_.front()->scheme().pattern(phase), alike_);
    Pattern& first = phase == Phase::reduce ? in_node : between;
    const Pattern& then = phase == Phase::reduce ? between : in_node;
    first.insert(first.end(), then.begin(), then.end());
    return first;
  }

  std::size_t pieces(Phase phase, Round round, std::size_t step) const override {
    const Scheme& between = parts_[round.position()]->scheme();
    const bool is_between = phase == Phase::gather && step < between.pattern(phase).size();
    return is_between ? between.pieces(phase, Round{}, step) : 1;
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    if (round.index == 0) {
      ring_.load(input);
      united_.assign(united_.size(), 0);
    }
    ring_.reduce_scatter(exchange, round);
    gradients_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Matrix own = ring_.sums(i, place_, round);
      gradients_.push_back(own.rows > 0 ? Gradient::dense(own.data) : Gradient::empty());
    }
    BucketInput& between = inputs_[round.position()];
    between.set(gradients_);
    const auto alike = exchange.within(alike_, Rank{node_});
    part(round).scheme().reduce(exchange, between);
  }

  void gather(Exchange& exchange) override {
    const Round round = exchange.round();
    {
      const auto alike = exchange.within(alike_, Rank{node_});
      part(round).scheme().gather(exchange);
    }
    take_sums(round);
    ring_.round_own(round, scale_);
    ring_.all_gather(exchange, round);
  }

  /// Assumes that the other indices have as many rows as this one.
  std::optional<Index> united(std::size_t space) const override {
    if (!united_[space]) return std::nullopt;
    return std::min(spaces_[space].rows, *united_[space] * division_.nodes.per_node());
  }

  void adapt(const Statistics& statistics) override {
    statistics_ = statistics;
    for (const std::unique_ptr<BetweenNodes>& part : parts_) part->adapt(division_, statistics);
  }

  std::vector<SpaceChoice> choices() const override {
    std::vector<SpaceChoice> choices(spaces_.size());
    BetweenNodes& first = *parts_.front();
    const std::vector<SpaceChoice> between = first.scheme().choices();
    for (std::size_t i = 0; i < between.size(); ++i) {
      for (const RowSpace::Member& member : first.spaces()[i].members) {
        choices[member.tensor] = between[i];
      }
    }
    return choices;
  }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    Traffic traffic(size_);
    for (const Round round : Round::all(rounds_)) {
      for (int place = 0; place < division_.nodes.per_node(); ++place) {
        ring_.count(place, round, traffic);
        std::vector<OwnedIndexSets> storage;
        const std::unique_ptr<BetweenNodes> part = adapted_part(place, round);
        const Traffic between = part->scheme().traffic(part->sets_of(division_, sets, storage));
        for (int node = 0; node < division_.nodes.count(); ++node) {
          const auto from = static_cast<std::size_t>(node);
          const std::size_t to = division_.nodes.worker(node, place).index();
          traffic.payload_sent[to] += between.payload_sent[from];
          traffic.payload_received[to] += between.payload_received[from];
          traffic.messages_sent[to] += between.messages_sent[from];
        }
      }
    }
    return traffic;
  }

  /// Returns the imbalance between nodes, with workers as servers. Combines the imbalance among
  /// workers with the same index and the imbalance of the ranges.
  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    Imbalance all;
    Imbalance total{0, 0};
    Imbalance most{0, 0};
    for (int place = 0; place < division_.nodes.per_node(); ++place) {
      std::vector<OwnedIndexSets> storage;
      const std::unique_ptr<BetweenNodes> part = adapted_part(place, {0, 1});
      const std::vector<IndexSets> of_place = part->sets_of(division_, sets, storage);
      const std::optional<Imbalance> between = part->scheme().imbalance(of_place);
      if (!between) return std::nullopt;
      Imbalance bytes{0, 0};
      for (std::size_t i = 0; i < of_place.size(); ++i) {
        const auto row = static_cast<double>(part->spaces()[i].row_bytes());
        for (const auto& set : of_place[i]) bytes.push += row * static_cast<double>(set.size());
        bytes.pull += row * static_cast<double>(united_rows(of_place[i]).size());
      }
      total = {total.push + bytes.push, total.pull + bytes.pull};
      most = {std::max(most.push, between->push * bytes.push),
              std::max(most.pull, between->pull * bytes.pull)};
    }
    if (total.push > 0) all.push = division_.nodes.per_node() * most.push / total.push;
    if (total.pull > 0) all.pull = division_.nodes.per_node() * most.pull / total.pull;
    return all;
  }

 private:
  BetweenNodes& part(Round round) { return *parts_[round.position()]; }

  std::unique_ptr<BetweenNodes> make_part(int place, Round round) const {
    return std::make_unique<BetweenNodes>(context_, division_, bucket_, place, round, node_, seed_);
  }
  /// Creates the exchange of the workers with this index, with its current options.
  std::unique_ptr<BetweenNodes> adapted_part(int place, Round round) const {
    std::unique_ptr<BetweenNodes> part = make_part(place, round);
    if (statistics_) part->adapt(division_, *statistics_);
    return part;
  }

  /// Replaces the node's sums by the sums of all nodes.
  void take_sums(Round round) {
    BetweenNodes& between = part(round);
    for (std::size_t i = 0; i < between.spaces().size(); ++i) {
      const SpaceResult result = as_sums(between.scheme().result()[i]);
      for (const RowSpace::Member& member : between.spaces()[i].members) {
        const Matrix own = ring_.sums(member.tensor, place_, round);
        if (own.rows == 0) continue;
        const bool is_only = between.spaces()[i].members.size() == 1;
        if (result.layout == Gradient::Layout::dense) {
          const ConstMatrix rows{result.values.data + member.first_row * own.row_bytes(), own.dtype,
                                 own.rows, own.width};
          copy(context_, rows.as_bytes(), own.data);
          united_[member.tensor].reset();
          continue;
        }
        // Rows may have cancelled between nodes.
        fill_zero(context_, own.as_bytes());
        const RowSparse rows =
            is_only ? RowSparse{result.indices, result.values}
                    : member_rows(result, {member.first_row, member.first_row + own.rows});
        scatter_rows(context_, rows.values, rows.indices, 0, own);
        if (united_[member.tensor]) *united_[member.tensor] += rows.values.rows;
      }
    }
  }

  /// Returns a result between nodes in the dtype of sums, converted if its wire type is narrower.
  /// Valid until the next call.
  SpaceResult as_sums(SpaceResult result) {
    const ConstMatrix crossed = result.values;
    const DType sum = sum_dtype(crossed.dtype);
    if (crossed.dtype == sum) return result;
    Matrix wide{nullptr, sum, crossed.rows, crossed.width};
    wide.data = wide_.reserve(wide.bytes()).data();
    cast(context_, crossed, wide);
    result.values = as_const(wide);
    return result;
  }

  /// Returns the rows of a result that lie in a range, relative to the start of the range. Valid
  /// until the next call.
  RowSparse member_rows(const SpaceResult& result, IndexRange range) {
    const IndexRange places = places_in(context_, result.indices, range, bounds_.first(2));
    const std::span<Index> named = named_.reserve(places.size());
    shift(context_, part_of(result.indices, places), -range.begin, named);
    ConstMatrix values = result.values;
    values.data += places.begin * values.row_bytes();
    values.rows = places.size();
    return {named, values};
  }

  BucketSpec bucket_;
  std::uint64_t seed_;
  Division division_;
  int node_;
  int place_;
  NodeRing ring_;
  std::vector<Rank> alike_;                           // [node]: the worker with this worker's index
  std::vector<std::unique_ptr<BetweenNodes>> parts_;  // [round]
  std::vector<BucketInput> inputs_;                   // [round]
  std::vector<Gradient> gradients_;
  std::optional<Statistics> statistics_;
  Buffer<Index> bounds_;
  Buffer<Index> named_;
  Buffer<std::byte> wide_;
  std::vector<std::optional<Index>> united_;  // rows in the ranges of this index
};

/// Calls see(workload) for the exchange between nodes of each index.
template <typename See>
void for_each_place(const Workload& workload, See&& see) {
  const Division division{{workload.spaces.begin(), workload.spaces.end()},
                          Nodes(workload.size, workload.options.workers_per_node)};
  for (int place = 0; place < division.nodes.per_node(); ++place) {
    const std::vector<RowSpace> spaces =
        row_spaces(on_wire(spec_between(division, workload.options, place, {})).tensors);
    const Statistics statistics =
        statistics_between(division, spaces, place, 1, workload.statistics);
    see(Workload{.spaces = spaces,
                 .size = division.nodes.count(),
                 .statistics = statistics,
                 .options = workload.options,
                 .rounds = workload.rounds});
  }
}

Cost cost(const Workload& workload) {
  if (const auto only = only_level(workload.options, workload.size)) return only->cost(workload);
  const int per_node = workload.options.workers_per_node;
  const auto ring = [&](double dense_bytes) {
    const double steps = per_node - 1.0;
    const double bytes = steps * (dense_bytes / per_node + static_cast<double>(kHeaderBytes));
    return PhaseCost{
        .steps = steps, .messages = steps, .bytes_sent = bytes, .bytes_received = bytes};
  };
  double sums = 0;
  double values = 0;
  for (const RowSpace& space : workload.spaces) {
    sums += static_cast<double>(sum_bytes(space));
    values += static_cast<double>(space.dense_bytes());
  }
  const SchemeEntry between = scheme_named(workload.options.between_nodes);
  Cost busiest;
  for_each_place(workload, [&](const Workload& of_place) {
    const Cost cost = between.cost(of_place);
    if (cost.bytes_busiest() > busiest.bytes_busiest()) busiest = cost;
  });
  Cost total{.reduce = ring(sums), .gather = ring(values)};
  total.reduce.work.added_bytes = sums * (2 * per_node - 1.0) / per_node;
  total += busiest;
  return total;
}

double workspace_bytes(const Workload& workload) {
  if (const auto only = only_level(workload.options, workload.size)) {
    return only->workspace_bytes(workload);
  }
  const SchemeEntry between = scheme_named(workload.options.between_nodes);
  double bytes = 0;
  for_each_place(workload, [&](const Workload& of_place) {
    const double of_input =  // compacted input
        sum_over_spaces(of_place, [](const RowSpace& space, const SpaceStatistics& known) {
          return known.touched_max * (static_cast<double>(space.row_bytes()) + sizeof(Index));
        });
    bytes = std::max(bytes, between.workspace_bytes(of_place) + of_input);
  });
  const double messages = workload.spaces.size() > 1 ? 2 : 1;
  for (const RowSpace& space : workload.spaces) {
    const auto sums = static_cast<double>(sum_bytes(space));
    bytes += sums + messages * sums / workload.options.workers_per_node +
             (space.is_own_sum() ? 0 : static_cast<double>(space.dense_bytes()));
  }
  return bytes;
}

void check(const SchemeOptions& options, int size) {
  std::vector<std::string_view> names;
  std::optional<SchemeEntry> between;
  for (const SchemeEntry& entry : all_schemes()) {
    if (entry.all_reduces || entry.name == kName) continue;
    names.push_back(entry.name);
    if (entry.name == options.between_nodes) between = entry;
  }
  if (!between) {
    throw InputError(fmt::format("two_level: cannot run '{}' between nodes: use one of {}",
                                 options.between_nodes, fmt::join(names, ", ")));
  }
  const int per_node = options.workers_per_node;
  if (per_node == 0) {
    throw InputError(
        "two_level: the nodes have different numbers of workers, or ranks that are not "
        "consecutive: use another scheme, or set --workers-per-node");
  }
  if (per_node < 0 || size % per_node != 0) {
    throw InputError(fmt::format(
        "two_level: {} workers per node (--workers-per-node) do not divide {} workers: use a "
        "divisor, or another scheme",
        per_node, size));
  }
  if (between->check != nullptr) between->check(options, size / per_node);
}

const SchemeRegistration registration({
    .name = kName,
    .summary = "dense ring within a node, any scheme between nodes",
    .design = {.communication = Communication::hierarchy,
               .aggregation = Aggregation::incremental,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::dense_then_sparse},
    .create = [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      if (const auto only = only_level(environment.bucket->options, environment.size)) {
        return only->create(environment);
      }
      return std::make_unique<TwoLevel>(environment);
    },
    .cost = cost,
    .workspace_bytes = workspace_bytes,
    .heeds = {SchemeOption::workers_per_node, SchemeOption::between_nodes},
    .check = check,
});

}  // namespace
}  // namespace sparsesync
