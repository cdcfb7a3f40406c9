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
#include "kernels/bijection.h"
#include "kernels/partition.h"
#include "kernels/rows.h"
#include "schemes/grid.h"
#include "schemes/message.h"
#include "schemes/scheme.h"

namespace sparsesync {
namespace {

std::span<const Index> indices_in(std::span<const Index> indices, IndexRange range) {
  const auto begin = std::lower_bound(indices.begin(), indices.end(), range.begin);
  const auto end = std::lower_bound(begin, indices.end(), range.end);
  return {begin, end};
}

IndexRange part_of(IndexRange range, Round round) {
  const IndexRange within = round.part_of(range.size());
  return {range.begin + within.begin, range.begin + within.end};
}

/// A row space on its grid: who owns what. Arithmetic alone, the same on all workers.
class Plan {
 public:
  Plan(const RowSpace& space, int number, Grid grid, std::uint64_t seed)
      : space_(space),
        grid_(grid),
        groups_(space.rows, grid.row_groups, number % grid.row_groups,
                mix64(seed + static_cast<std::uint64_t>(number))) {}

  const RowGroups& groups() const { return groups_; }
  Grid grid() const { return grid_; }
  Index slice_width() const { return space_.width / grid_.column_slices; }
  Index slice_bytes() const { return slice_width() * element_bytes(space_.dtype); }
  int group_of(int server) const { return server / grid_.column_slices; }
  int slice_of(int server) const { return server % grid_.column_slices; }
  Index first_column(int server) const { return slice_of(server) * slice_width(); }

  /// The positions that a round moves, in every group.
  IndexRange range(Round round) const { return round.part_of(groups_.universe()); }
  /// Those of them whose indices a server sends in the pull.
  IndexRange share(Round round, int server) const {
    return part_of(range(round), {slice_of(server), grid_.column_slices});
  }

  SectionSpec push_section(Round round) const {
    const IndexRange positions = range(round);
    return {positions, positions.size(), slice_bytes(), std::nullopt};
  }
  SectionSpec pull_section(Round round, int server) const {
    return {share(round, server), range(round).size(), slice_bytes(), std::nullopt};
  }

 private:
  RowSpace space_;
  Grid grid_;
  RowGroups groups_;
};

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
        scale_(environment.bucket->reduction == Reduction::mean
                   ? 1.0F / static_cast<float>(environment.size)
                   : 1.0F),
        peers_(peers_after(environment.rank, environment.size)),
        outbox_(context_),
        push_inbox_(context_, peers_.size()),
        count_(context_),
        sort_workspace_(context_),
        aggregate_workspace_(context_),
        results_(spaces_.size()) {
    count_.reserve_exactly(1);
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
    adapt(guesses);
  }

  Pattern pattern(Phase) const override { return all_to_all(Rank{rank_}, size_); }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    if (round.index == 0) sort_input(input);
    specs_.clear();
    for (const Plan& plan : plans_) specs_.push_back(plan.push_section(round));
    push_inbox_.set_limit(largest_message_bytes(specs_));
    const std::vector<Payload> payloads = pack_pushes(round, input);
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

  void adapt(const Statistics& statistics) override {
    plans_.clear();
    choices_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Grid grid = cheapest_grid(spaces_[i], size_, statistics[i]);
      const Plan& plan = plans_.emplace_back(spaces_[i], static_cast<int>(i), grid, seed_);
      const Index universe = plan.groups().universe();
      const auto count = static_cast<Index>(statistics[i].touched_mean / grid.row_groups);
      choices_.push_back({std::string(name_of(cheapest_code(universe, std::min(count, universe)))),
                          grid.row_groups, grid.column_slices});
    }
  }

  std::vector<SpaceChoice> choices() const override { return choices_; }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    Traffic traffic(size_);
    const std::vector<std::vector<Places>> pushes = places_of(sets);
    for (int number = 0; number < rounds_; ++number) {
      const Round round{number, rounds_};
      for (int server = 0; server < size_; ++server) {
        std::vector<SectionSpec> specs;
        for (const Plan& plan : plans_) specs.push_back(plan.push_section(round));
        std::vector<SectionCounts> united;
        for (std::size_t i = 0; i < plans_.size(); ++i) {
          const Places& all = pushes[static_cast<std::size_t>(size_)][i];
          const std::span<const Index> group = all.group(plans_[i].group_of(server));
          united.push_back(
              {static_cast<Index>(indices_in(group, plans_[i].share(round, server)).size()),
               static_cast<Index>(indices_in(group, plans_[i].range(round)).size())});
        }
        for (int worker = 0; worker < size_; ++worker) {
          if (worker == server) continue;
          std::vector<SectionCounts> counts;
          for (std::size_t i = 0; i < plans_.size(); ++i) {
            const Places& own = pushes[static_cast<std::size_t>(worker)][i];
            const auto rows = static_cast<Index>(
                indices_in(own.group(plans_[i].group_of(server)), plans_[i].range(round)).size());
            counts.push_back({rows, rows});
          }
          traffic.message(worker, server, message_bytes(specs, counts));
          traffic.message(server, worker, message_bytes(pull_sections(round, server), united));
        }
      }
    }
    return traffic;
  }

  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    const std::vector<std::vector<Places>> places = places_of(sets);
    const auto worst = [&](const std::vector<Places>& of) {
      double total = 0;
      double most = 0;
      for (std::size_t i = 0; i < plans_.size(); ++i) {
        total += static_cast<double>(of[i].positions.size()) *
                 static_cast<double>(spaces_[i].row_bytes());
      }
      for (int server = 0; server < size_; ++server) {
        double share = 0;
        for (std::size_t i = 0; i < plans_.size(); ++i) {
          share += static_cast<double>(of[i].group(plans_[i].group_of(server)).size()) *
                   static_cast<double>(plans_[i].slice_bytes());
        }
        most = std::max(most, share);
      }
      return total > 0 ? size_ * most / total : 1.0;
    };
    Imbalance imbalance;
    for (int worker = 0; worker < size_; ++worker) {
      imbalance.push = std::max(imbalance.push, worst(places[static_cast<std::size_t>(worker)]));
    }
    imbalance.pull = worst(places[static_cast<std::size_t>(size_)]);
    return imbalance;
  }

 private:
  /// A set of rows, partitioned.
  struct Places {
    std::vector<Index> positions;
    std::vector<Index> group_begin;
    std::span<const Index> group(int number) const {
      const auto begin = static_cast<std::size_t>(group_begin[static_cast<std::size_t>(number)]);
      const auto end = static_cast<std::size_t>(group_begin[static_cast<std::size_t>(number) + 1]);
      return std::span(positions).subspan(begin, end - begin);
    }
  };

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
  };

  /// Workspace of one row space.
  struct SpaceStorage {
    SpaceStorage(const Context& context, int rounds, int size)
        : positions(context),
          sources(context),
          group_begin(context),
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
    Buffer<Index> positions;
    Buffer<Index> sources;
    Buffer<Index> group_begin;
    std::vector<Sums> sums;  // [round]
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

  std::vector<SectionSpec> pull_sections(Round round, int server) const {
    std::vector<SectionSpec> specs;
    for (const Plan& plan : plans_) specs.push_back(plan.pull_section(round, server));
    return specs;
  }

  void sort_input(BucketInput& input) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const std::span<const Index> rows = input.coalesced(i).indices;
      SpaceStorage& storage = storage_[i];
      const auto count = static_cast<Index>(rows.size());
      partition(context_, plans_[i].groups(), rows, storage.positions.reserve(count),
                storage.sources.reserve(count), group_bounds(i), sort_workspace_);
    }
  }

  std::span<Index> group_bounds(std::size_t space) {
    return {storage_[space].group_begin.data(),
            static_cast<std::size_t>(plans_[space].grid().row_groups) + 1};
  }

  /// This worker's positions in a server's group that a round moves, and where their rows are in
  /// the input.
  struct Selection {
    std::span<const Index> positions;
    std::span<const Index> sources;
  };
  Selection select(Round round, std::size_t space, int server) {
    const std::span<const Index> bounds = group_bounds(space);
    const auto group = static_cast<std::size_t>(plans_[space].group_of(server));
    const std::span<const Index> positions(
        storage_[space].positions.data() + bounds[group],
        static_cast<std::size_t>(bounds[group + 1] - bounds[group]));
    const std::span<const Index> chosen = indices_in(positions, plans_[space].range(round));
    return {chosen,
            {storage_[space].sources.data() + (chosen.data() - storage_[space].positions.data()),
             chosen.size()}};
  }

  /// A message for each server, the own one among them: it is read where it stands.
  std::vector<Payload> pack_pushes(Round round, BucketInput& input) {
    std::vector<std::vector<SectionCounts>> counts;
    std::vector<std::int64_t> begins{0};
    std::vector<Rank> servers = peers_;
    servers.push_back(Rank{rank_});
    for (const Rank server : servers) {
      std::vector<SectionCounts>& of_server = counts.emplace_back();
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        const auto rows = static_cast<Index>(select(round, i, server.value).positions.size());
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
      lay_out(specs_, counts[place], message, sections_);
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        const Selection chosen = select(round, i, server);
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
    read_layout(specs_, message, push.sections);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const ConstSection& section = push.sections[i];
      if (section.counts.indices != section.counts.rows) {
        throw CorruptDataError("balanced: a push whose indices and rows differ in number");
      }
      decode(context_, section.code, specs_[i].range, section.indices,
             push.positions[i].reserve(section.counts.indices));
    }
  }

  void sum_pushes(Round round, std::size_t space) {
    const Plan& plan = plans_[space];
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
    Sums& sums = storage_[space].sums[static_cast<std::size_t>(round.index)];
    const IndexRange range = plan.range(round);
    const std::span<Index> united = sums.positions.reserve(std::min(total, range.size()));
    const Count count(count_.data());
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
    std::vector<SectionCounts> counts;
    std::vector<std::span<const Index>> shares;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Sums& sums = storage_[i].sums[static_cast<std::size_t>(round.index)];
      shares.push_back(
          indices_in({sums.positions.data(), static_cast<std::size_t>(sums.rows)}, specs[i].range));
      counts.push_back({static_cast<Index>(shares.back().size()), sums.rows});
    }
    const std::int64_t bytes = message_bytes(specs, counts);
    // A message of its own for each round: results are read from it after the last one.
    while (pull_outboxes_.size() <= static_cast<std::size_t>(round.index)) {
      pull_outboxes_.emplace_back(context_);
    }
    const std::span<std::byte> message =
        pull_outboxes_[static_cast<std::size_t>(round.index)].reserve(bytes);
    lay_out(specs, counts, message, sections_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Sums& sums = storage_[i].sums[static_cast<std::size_t>(round.index)];
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
    read_layout(specs, message, sections);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      decode(
          context_, sections[i].code, specs[i].range, sections[i].indices,
          storage_[i].shares[static_cast<std::size_t>(server)].reserve(sections[i].counts.indices));
    }
  }

  /// Joins the shares of each group and turns positions into rows.
  void name_rows(Round round, std::size_t space) {
    const Plan& plan = plans_[space];
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
    const Plan& plan = plans_[space];
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
    number(context_, order);
    sort_pairs(context_, indices, order, shape.rows, sort_workspace_);
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

  /// [worker][row space], and the union of all workers at [size].
  std::vector<std::vector<Places>> places_of(std::span<const IndexSets> sets) const {
    std::vector<std::vector<Places>> places(static_cast<std::size_t>(size_) + 1);
    SortWorkspace workspace(context_);
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      IndexSets with_union = sets[i];
      const std::vector<Index> all = united_rows(sets[i]);
      with_union.emplace_back(all);
      for (std::size_t worker = 0; worker < with_union.size(); ++worker) {
        const std::size_t rows = with_union[worker].size();
        std::vector<Index> sources(rows);
        Places& of = places[worker].emplace_back();
        of.positions.resize(rows);
        of.group_begin.resize(static_cast<std::size_t>(plans_[i].grid().row_groups) + 1);
        partition(context_, plans_[i].groups(), with_union[worker], of.positions, sources,
                  of.group_begin, workspace);
      }
    }
    return places;
  }

  Context context_;
  std::vector<RowSpace> spaces_;
  int rank_;
  int size_;
  int rounds_;
  std::uint64_t seed_;
  float scale_;
  std::vector<Rank> peers_;
  std::vector<Plan> plans_;
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
  Buffer<Index> count_;
  SortWorkspace sort_workspace_;
  AggregateWorkspace aggregate_workspace_;
  std::vector<SpaceResult> results_;
};

Cost cost(std::span<const RowSpace> spaces, int size, const Statistics& statistics) {
  Cost total;
  const double headers =
      (size - 1.0) * static_cast<double>(kHeaderBytes + 16 * static_cast<Index>(spaces.size()));
  const double steps = size > 1 ? 1 : 0;
  for (PhaseCost* phase : {&total.reduce, &total.gather}) {
    *phase = {steps, size - 1.0, headers, headers};
  }
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const Cost one = expected_cost(spaces[i], size, statistics[i],
                                   cheapest_grid(spaces[i], size, statistics[i]));
    total.reduce.bytes_sent += one.reduce.bytes_sent;
    total.reduce.bytes_received += one.reduce.bytes_received;
    total.gather.bytes_sent += one.gather.bytes_sent;
    total.gather.bytes_received += one.gather.bytes_received;
  }
  return total;
}

double workspace_bytes(std::span<const RowSpace> spaces, int size, const Statistics& statistics) {
  double bytes = 0;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const auto row = static_cast<double>(spaces[i].row_bytes()) + 3 * sizeof(Index);
    const SpaceStatistics& known = statistics[i];
    const Grid grid = cheapest_grid(spaces[i], size, known);
    // Pushes sent and received; own sums, as kept and as sent; the pull as received and in order.
    bytes +=
        (known.touched_max + known.touched_mean + known.united * (2.0 / size + 2)) * row +
        static_cast<double>(unite_workspace_bytes(ceil_div<Index>(spaces[i].rows, grid.row_groups),
                                                  static_cast<Index>(size * known.touched_mean)));
  }
  return bytes;
}

const SchemeRegistration registration({
    "balanced",
    "row groups by a keyed bijection x column slices: equal parts, no exchange before the push",
    {Communication::point_to_point, Aggregation::one_shot, Partition::parallelism,
     Balance::balanced, "cheapest of COO and Elias-Fano"},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return std::make_unique<Balanced>(environment);
    },
    cost,
    workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
