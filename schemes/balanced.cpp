// balanced: our own scheme. Rows are cut into groups by a keyed bijection and columns into slices,
// so that every worker owns an equal part of every step without any exchange beforehand (design:
// "Our own schemes").
//
// Push: each worker sends each server its rows of the server's group, the server's slice of their
// values. Pull: each server sends all workers its slice of its group's sums, and its share of the
// group's indices: the c servers of a group divide the range of positions among them. Sums are made
// in rank order.
#include <algorithm>

#include "kernels/aggregate.h"
#include "kernels/locate.h"
#include "kernels/partition.h"
#include "kernels/rows.h"
#include "schemes/grid_plan.h"
#include "schemes/message.h"
#include "schemes/scheme.h"

namespace sparsesync {
namespace {

/// What is thought of a row space before a step was seen: a row in a hundred, half of them shared.
SpaceStatistics first_guess(const RowSpace& space, int size) {
  const double touched = std::max(1.0, static_cast<double>(space.rows) / 100);
  return {touched, touched, std::min(static_cast<double>(space.rows), touched * (1 + size) / 2)};
}

class Balanced : public Scheme {
 public:
  explicit Balanced(const SchemeEnvironment& environment)
      : context_(environment.context),
        spaces_(row_spaces(environment.bucket->tensors)),
        rank_(environment.rank.value),
        size_(environment.size),
        rounds_(environment.bucket->rounds),
        seed_(environment.seed),
        scale_(scale_of(environment)),
        peers_(peers_after(environment.rank, environment.size)),
        outbox_(context_),
        push_inbox_(context_, peers_.size()),
        counts_(context_),
        sort_workspace_(context_),
        aggregate_workspace_(context_),
        results_(spaces_.size()) {
    counts_.reserve(1);
    for (int round = 0; round < rounds_; ++round) {
      pull_inboxes_.emplace_back(context_, peers_.size());
      pulled_.emplace_back(static_cast<std::size_t>(size_));
    }
    for (int worker = 0; worker < size_; ++worker) pushed_.emplace_back(context_, spaces_.size());
    Statistics guesses;
    for (const RowSpace& space : spaces_) {
      guesses.push_back(first_guess(space, size_));
      storage_.emplace_back(context_, rounds_, size_);
    }
    choose(guesses);
  }

  Pattern pattern(Phase) const override { return all_to_all(Rank{rank_}, size_); }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    if (round.index == 0) sort_input(input);
    find_selections(round);
    specs_.clear();
    for (const GridPlan& plan : plans_) specs_.push_back(plan.push_section(round));
    push_inbox_.set_limit(largest_message_bytes(specs_));
    const std::vector<Payload> payloads = pack_pushes(input);
    if (!payloads.empty()) {
      exchange.step(payloads, push_inbox_, [&](Rank from, std::span<const std::byte> message) {
        read_push(from.value, message);
      });
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) sum_pushes(round, i);
  }

  void gather(Exchange& exchange) override {
    const Round round = exchange.round();
    Inbox& inbox = pull_inboxes_[static_cast<std::size_t>(round.index)];
    const std::vector<Payload> payloads = pack_pull(round);
    std::int64_t limit = 0;
    for (const Rank peer : peers_) {
      limit = std::max(limit, largest_message_bytes(pull_sections(round, peer.value)));
    }
    inbox.set_limit(limit);
    if (!payloads.empty()) {
      exchange.step(payloads, inbox, [&](Rank from, std::span<const std::byte> message) {
        read_pull(round, from.value, message);
      });
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      name_rows(round, i);
      if (round.last()) place_rows(i);
    }
  }

  std::span<const SpaceResult> result() const override { return results_; }

  void adapt(const Statistics& statistics) override { choose(statistics); }

  std::vector<SpaceChoice> choices() const override { return choices_; }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    return balanced_traffic(plans_, size_, rounds_, sets);
  }
  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    return balanced_imbalance(plans_, size_, sets);
  }

 private:
  /// One worker's push to this server, and the positions that it names.
  struct Push {
    Push(const Context& context, std::size_t spaces) {
      for (std::size_t i = 0; i < spaces; ++i) positions.emplace_back(context);
    }
    std::vector<ConstSection> sections;
    std::vector<Buffer<Index>> positions;
  };

  /// What this server owns of one row space after one round.
  struct Sums {
    explicit Sums(const Context& context) : positions(context), values(context) {}
    Buffer<Index> positions;
    Buffer<std::byte> values;
    Index rows = 0;
    std::span<const Index> indices() const {
      return {positions.data(), static_cast<std::size_t>(rows)};
    }
  };

  /// Workspace of one row space.
  struct SpaceStorage {
    SpaceStorage(const Context& context, int rounds, int size)
        : positions(context),
          sources(context),
          group_begin(context),
          counts(context),
          order(context),
          slots(context),
          indices(context),
          values(context) {
      group_begin.reserve_exactly(size + 1);
      for (int round = 0; round < rounds; ++round) {
        sums.emplace_back(context);
        rows.emplace_back(context);
        row_count.push_back(0);
      }
      for (int group = 0; group < size; ++group) shares.emplace_back(context);
    }
    // The input, partitioned.
    Index input_rows = 0;
    Buffer<Index> positions;
    Buffer<Index> sources;
    Buffer<Index> group_begin;
    Buffer<Index> counts;
    std::vector<Index> bounds;  // of each group's positions that the round moves, on the host
    std::vector<Sums> sums;     // [round]
    // The pull: the positions of each server's share; then each round's rows, group after group.
    std::vector<Buffer<Index>> shares;
    std::vector<Buffer<Index>> rows;
    std::vector<Index> row_count;
    // The result.
    Buffer<Index> order;
    Buffer<Index> slots;
    Buffer<Index> indices;
    Buffer<std::byte> values;
  };

  /// The cheapest grid for each row space.
  void choose(const Statistics& statistics) {
    plans_.clear();
    choices_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Grid grid = cheapest_grid(spaces_[i], size_, statistics[i]);
      const GridPlan& plan = plans_.emplace_back(spaces_[i], static_cast<int>(i), grid, seed_);
      const Index universe = plan.groups().universe();
      const auto count = static_cast<Index>(statistics[i].touched_mean / grid.row_groups);
      choices_.push_back({std::string(name_of(cheapest_code(universe, std::min(count, universe)))),
                          grid.row_groups, grid.column_slices});
    }
  }

  std::vector<SectionSpec> pull_sections(Round round, int server) const {
    std::vector<SectionSpec> specs;
    for (const GridPlan& plan : plans_) specs.push_back(plan.pull_section(round, server));
    return specs;
  }

  void sort_input(BucketInput& input) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const std::span<const Index> rows = input.coalesced(i).indices;
      SpaceStorage& storage = storage_[i];
      storage.input_rows = static_cast<Index>(rows.size());
      partition(context_, plans_[i].groups(), rows, storage.positions.reserve(storage.input_rows),
                storage.sources.reserve(storage.input_rows), group_begin(i), sort_workspace_);
    }
  }

  std::span<Index> group_begin(std::size_t space) {
    return {storage_[space].group_begin.data(),
            static_cast<std::size_t>(plans_[space].grid().row_groups) + 1};
  }

  /// Finds, in each group, the positions that a round moves: the one synchronization of a push.
  void find_selections(Round round) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      SpaceStorage& storage = storage_[i];
      storage.bounds.resize(2 * static_cast<std::size_t>(plans_[i].grid().row_groups));
      const std::span<Index> counts =
          storage.counts.reserve(static_cast<Index>(storage.bounds.size()));
      locate_in_groups(context_,
                       {storage.positions.data(), static_cast<std::size_t>(storage.input_rows)},
                       group_begin(i), plans_[i].range(round), counts);
      fetch(context_, std::as_bytes(counts), reinterpret_cast<std::byte*>(storage.bounds.data()));
    }
  }

  /// This worker's positions in a server's group that the round moves, and where their rows are in
  /// the input.
  struct Selection {
    std::span<const Index> positions;
    std::span<const Index> sources;
  };
  Selection selection(std::size_t space, int server) const {
    const SpaceStorage& storage = storage_[space];
    const auto group = static_cast<std::size_t>(plans_[space].group_of(server));
    const Index begin = storage.bounds[2 * group];
    const auto count = static_cast<std::size_t>(storage.bounds[2 * group + 1] - begin);
    return {{storage.positions.data() + begin, count}, {storage.sources.data() + begin, count}};
  }

  /// A message for each server, the own one among them: it is read where it stands.
  std::vector<Payload> pack_pushes(BucketInput& input) {
    std::vector<std::vector<SectionCounts>> counts;
    std::vector<std::int64_t> begins{0};
    std::vector<Rank> servers = peers_;
    servers.push_back(Rank{rank_});
    for (const Rank server : servers) {
      std::vector<SectionCounts>& of_server = counts.emplace_back();
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        const auto rows = static_cast<Index>(selection(i, server.value).positions.size());
        of_server.push_back({rows, rows});
      }
      begins.push_back(begins.back() + round_up<Index>(message_bytes(specs_, of_server), 16));
    }
    const std::span<std::byte> all = outbox_.reserve(begins.back());
    std::vector<Payload> payloads;
    for (std::size_t place = 0; place < servers.size(); ++place) {
      const int server = servers[place].value;
      const std::int64_t bytes = message_bytes(specs_, counts[place]);
      const std::span<std::byte> message =
          all.subspan(static_cast<std::size_t>(begins[place]), static_cast<std::size_t>(bytes));
      lay_out(context_, specs_, counts[place], message, sections_);
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        const Selection chosen = selection(i, server);
        encode(context_, sections_[i].code, specs_[i].range, chosen.positions,
               sections_[i].indices);
        gather_rows(context_, input.coalesced(i).values, chosen.sources,
                    plans_[i].first_column(server),
                    {sections_[i].values.data(), spaces_[i].dtype, counts[place][i].rows,
                     plans_[i].slice_width()});
      }
      if (server == rank_) {
        read_push(rank_, message);
      } else {
        payloads.push_back({message.data(), bytes, index_bytes(specs_, counts[place])});
      }
    }
    return payloads;
  }

  void read_push(int worker, std::span<const std::byte> message) {
    Push& push = pushed_[static_cast<std::size_t>(worker)];
    read_layout(context_, specs_, message, push.sections);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const ConstSection& section = push.sections[i];
      if (section.counts.indices != section.counts.rows) {
        throw CorruptDataError("balanced: a push whose indices and rows differ in number");
      }
      decode(context_, section.code, specs_[i].range, section.indices,
             push.positions[i].reserve(section.counts.indices));
    }
  }

  Sums& sums_of(Round round, std::size_t space) {
    return storage_[space].sums[static_cast<std::size_t>(round.index)];
  }

  void sum_pushes(Round round, std::size_t space) {
    const GridPlan& plan = plans_[space];
    std::vector<std::span<const Index>> sets;
    std::vector<RowSparse> parts;
    Index total = 0;
    for (const Push& push : pushed_) {
      const ConstSection& section = push.sections[space];
      const std::span<const Index> positions(push.positions[space].data(),
                                             static_cast<std::size_t>(section.counts.rows));
      sets.push_back(positions);
      parts.push_back(
          {positions,
           {section.values.data(), spaces_[space].dtype, section.counts.rows, plan.slice_width()}});
      total += section.counts.rows;
    }
    Sums& sums = sums_of(round, space);
    const IndexRange range = plan.range(round);
    const std::span<Index> united = sums.positions.reserve(std::min(total, range.size()));
    const Count count(counts_.data());
    unite(context_, range, sets, united, count, aggregate_workspace_);
    sums.rows = resolve(context_, count);
    const Matrix out{sums.values.reserve(sums.rows * plan.slice_bytes()).data(),
                     spaces_[space].dtype, sums.rows, plan.slice_width()};
    aggregate(context_, united.first(static_cast<std::size_t>(sums.rows)), parts, scale_, out,
              aggregate_workspace_);
  }

  /// The same message for all; it is read where it stands for the own part.
  std::vector<Payload> pack_pull(Round round) {
    const std::vector<SectionSpec> specs = pull_sections(round, rank_);
    std::vector<Index> bounds(2 * spaces_.size());
    const std::span<Index> located = counts_.reserve(static_cast<Index>(bounds.size()));
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      locate(context_, sums_of(round, i).indices(), specs[i].range, located.subspan(2 * i, 2));
    }
    fetch(context_, std::as_bytes(located), reinterpret_cast<std::byte*>(bounds.data()));
    std::vector<SectionCounts> counts;
    std::vector<std::span<const Index>> shares;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const auto begin = static_cast<std::size_t>(bounds[2 * i]);
      const auto end = static_cast<std::size_t>(bounds[2 * i + 1]);
      shares.push_back(sums_of(round, i).indices().subspan(begin, end - begin));
      counts.push_back({static_cast<Index>(shares.back().size()), sums_of(round, i).rows});
    }
    const std::int64_t bytes = message_bytes(specs, counts);
    // A message of its own for each round: results are read from it after the last one.
    while (pull_outboxes_.size() <= static_cast<std::size_t>(round.index)) {
      pull_outboxes_.emplace_back(context_);
    }
    const std::span<std::byte> message =
        pull_outboxes_[static_cast<std::size_t>(round.index)].reserve(bytes);
    lay_out(context_, specs, counts, message, sections_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Sums& sums = sums_of(round, i);
      encode(context_, sections_[i].code, specs[i].range, shares[i], sections_[i].indices);
      copy(context_, {sums.values.data(), sections_[i].values.size()}, sections_[i].values.data());
    }
    read_pull(round, rank_, message);
    return std::vector<Payload>(peers_.size(), {message.data(), bytes, index_bytes(specs, counts)});
  }

  void read_pull(Round round, int server, std::span<const std::byte> message) {
    const std::vector<SectionSpec> specs = pull_sections(round, server);
    std::vector<ConstSection>& sections =
        pulled_[static_cast<std::size_t>(round.index)][static_cast<std::size_t>(server)];
    read_layout(context_, specs, message, sections);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      decode(
          context_, sections[i].code, specs[i].range, sections[i].indices,
          storage_[i].shares[static_cast<std::size_t>(server)].reserve(sections[i].counts.indices));
    }
  }

  /// Joins the shares of each group and turns positions into rows.
  void name_rows(Round round, std::size_t space) {
    const GridPlan& plan = plans_[space];
    SpaceStorage& storage = storage_[space];
    const std::vector<std::vector<ConstSection>>& pulled =
        pulled_[static_cast<std::size_t>(round.index)];
    Index total = 0;
    for (int server = 0; server < size_; ++server) {
      total += pulled[static_cast<std::size_t>(server)][space].counts.indices;
    }
    const std::span<Index> rows =
        storage.rows[static_cast<std::size_t>(round.index)].reserve(total);
    storage.row_count[static_cast<std::size_t>(round.index)] = total;
    std::size_t filled = 0;
    for (int group = 0; group < plan.grid().row_groups; ++group) {
      const std::size_t before = filled;
      const int first = group * plan.grid().column_slices;
      for (int server = first; server < first + plan.grid().column_slices; ++server) {
        const auto count = static_cast<std::size_t>(
            pulled[static_cast<std::size_t>(server)][space].counts.indices);
        rows_at(context_, plan.groups(), group,
                {storage.shares[static_cast<std::size_t>(server)].data(), count},
                rows.subspan(filled, count));
        filled += count;
      }
      for (int server = first; server < first + plan.grid().column_slices; ++server) {
        const Index of_server = pulled[static_cast<std::size_t>(server)][space].counts.rows;
        if (of_server != static_cast<Index>(filled - before)) {
          throw CorruptDataError("balanced: the shares of a group do not add up to its rows");
        }
      }
    }
  }

  /// Brings the rows of all rounds and groups into increasing order, each slice to its columns.
  void place_rows(std::size_t space) {
    const RowSpace& shape = spaces_[space];
    const GridPlan& plan = plans_[space];
    SpaceStorage& storage = storage_[space];
    Index total = 0;
    for (const Index count : storage.row_count) total += count;
    const std::span<Index> indices = storage.indices.reserve(total);
    const std::span<Index> order = storage.order.reserve(total);
    const std::span<Index> slots = storage.slots.reserve(total);
    std::size_t filled = 0;
    for (std::size_t round = 0; round < storage.rows.size(); ++round) {
      const std::span<const Index> rows(storage.rows[round].data(),
                                        static_cast<std::size_t>(storage.row_count[round]));
      copy(context_, std::as_bytes(rows), reinterpret_cast<std::byte*>(indices.data() + filled));
      filled += rows.size();
    }
    sort_with_order(context_, indices, order, shape.rows, sort_workspace_);
    invert(context_, order, slots);
    const Matrix out{storage.values.reserve(total * shape.row_bytes()).data(), shape.dtype, total,
                     shape.width};
    std::size_t first = 0;
    for (const std::vector<std::vector<ConstSection>>& pulled : pulled_) {
      for (int group = 0; group < plan.grid().row_groups; ++group) {
        std::size_t rows = 0;
        for (int slice = 0; slice < plan.grid().column_slices; ++slice) {
          const int server = group * plan.grid().column_slices + slice;
          const ConstSection& section = pulled[static_cast<std::size_t>(server)][space];
          rows = static_cast<std::size_t>(section.counts.rows);
          scatter_rows(
              context_,
              {section.values.data(), shape.dtype, section.counts.rows, plan.slice_width()},
              slots.subspan(first, rows), plan.first_column(server), out);
        }
        first += rows;
      }
    }
    results_[space] = {Gradient::Layout::row_sparse, indices, as_const(out)};
  }

  Context context_;
  std::vector<RowSpace> spaces_;
  int rank_;
  int size_;
  int rounds_;
  std::uint64_t seed_;
  double scale_;
  std::vector<Rank> peers_;
  std::vector<GridPlan> plans_;
  std::vector<SpaceChoice> choices_;
  std::vector<SectionSpec> specs_;  // of this round's pushes
  std::vector<Section> sections_;
  Buffer<std::byte> outbox_;
  Inbox push_inbox_;
  std::vector<Push> pushed_;  // [worker]
  std::vector<Buffer<std::byte>> pull_outboxes_;
  std::vector<Inbox> pull_inboxes_;                             // [round]
  std::vector<std::vector<std::vector<ConstSection>>> pulled_;  // [round][server][row space]
  std::vector<SpaceStorage> storage_;
  Buffer<Index> counts_;
  SortWorkspace sort_workspace_;
  AggregateWorkspace aggregate_workspace_;
  std::vector<SpaceResult> results_;
};

const SchemeRegistration registration({
    "balanced",
    "row groups by a keyed bijection x column slices: equal parts, no exchange before the push",
    {Communication::point_to_point, Aggregation::one_shot, Partition::parallelism,
     Balance::balanced, "cheapest of COO, Elias-Fano and bitmap"},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return std::make_unique<Balanced>(environment);
    },
    balanced_cost,
    balanced_workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
