// recursive_doubling (SparCML's "SSAR recursive doubling"; Renggli et al., SC 2019). In step i,
// each worker exchanges its partial sums with the worker whose rank differs in bit i, and both add
// the two up. The reduce phase does everything. Rows are sent as COO, in the type of sums.
//
// Works for any number of workers n (Rabenseifner, "Optimization of collective reduction
// operations", 2004). Let p be the largest power of two up to n. Worker p + r first sends its rows
// to worker r, and receives the result from it at the end.
//
// The reduction order is a tree. s(r) is the row of r, plus the row of worker p + r if it exists.
// Groups of 2^i neighbours are added in pairs, lower ranks first. For n = 4 the sum is (s(0) +
// s(1)) + (s(2) + s(3)). If only one side has a row, it stays unchanged. Both sides of a pair add
// in the same order, so that all workers get the same bits. Sums are rounded once at the end, or in
// each step if the bucket has a narrower wire type.
#include <algorithm>
#include <array>

#include "kernels/rows/aggregate.h"
#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/message/header_check.h"
#include "schemes/message/local_rows.h"
#include "schemes/registry.h"
#include "schemes/replicated/replicated_sum.h"

namespace sparsesync {
namespace {

/// Returns the dtype of sent partial sums: the wire type of the bucket, or else the dtype of sums.
DType partial_dtype(const RowSpace& space, const SchemeOptions& options) {
  return options.wire ? space.dtype : sum_dtype(space.dtype);
}
Index partial_row_bytes(const RowSpace& space, const SchemeOptions& options) {
  return space.width * element_bytes(partial_dtype(space, options));
}

/// The partner of each worker in each step.
struct Doubling {
  int size;
  int paired = 1;  // p: workers 0 to p - 1 exchange in pairs

  explicit Doubling(int workers) : size(workers) {
    while (2 * paired <= size) paired *= 2;
  }
  /// Returns the number of workers beyond `paired`.
  int folded() const { return size - paired; }
  /// Returns whether a worker first sends its rows to another worker.
  bool is_folded(Rank rank) const { return rank.value >= paired; }
  /// Returns whether a worker first adds another worker's rows.
  bool takes_in(Rank rank) const { return rank.value < folded(); }
  /// Returns the worker that receives a folded worker's rows, and vice versa.
  Rank partner(Rank rank) const {
    return {is_folded(rank) ? rank.value - paired : rank.value + paired};
  }
  /// Returns a worker's partner among groups of `group` workers.
  static Rank met(Rank rank, int group) { return {rank.value ^ group}; }
  /// Returns the number of workers in the partial sum of a worker, after the exchanges within
  /// groups of `group` workers.
  int summed(Rank rank, int group) const {
    const int first = rank.value / group * group;
    return group + std::clamp(folded() - first, 0, group);
  }
};

Pattern pattern_of(const Doubling& doubling, Rank rank) {
  Pattern pattern;
  const Rank other = doubling.partner(rank);
  if (doubling.folded() > 0) {
    Step& first = pattern.emplace_back();
    if (doubling.is_folded(rank)) first.to = {other};
    if (doubling.takes_in(rank)) first.from = {other};
  }
  for (int group = 1; group < doubling.paired; group *= 2) {
    Step& step = pattern.emplace_back();
    if (doubling.is_folded(rank)) continue;
    step.to = {Doubling::met(rank, group)};
    step.from = step.to;
  }
  if (doubling.folded() > 0) {
    Step& last = pattern.emplace_back();
    if (doubling.takes_in(rank)) last.to = {other};
    if (doubling.is_folded(rank)) last.from = {other};
  }
  return pattern;
}

class RecursiveDoubling : public SumsEverywhere {
 public:
  explicit RecursiveDoubling(const SchemeEnvironment& environment)
      : SumsEverywhere(environment),
        doubling_(environment.size),
        known_(context_),
        own_(context_, spaces_),
        inbox_(context_, 1),
        wide_(context_) {
    for (std::vector<ReceivedRows>& pair : pairs_) {
      messages_.emplace_back(context_);
      for (int side = 0; side < 2; ++side) pair.emplace_back(context_, spaces_.size());
    }
    for (const RowSpace& space : spaces_) {
      partial_.push_back(partial_dtype(space, environment.bucket->options));
    }
  }

  Pattern pattern(Phase phase) const override {
    return phase == Phase::reduce ? pattern_of(doubling_, rank_) : Pattern{};
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    known_.clear();
    specs_.clear();
    result_specs_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      specs_.push_back(section_spec(i, round, true));
      result_specs_.push_back(section_spec(i, round, false));
    }
    inbox_.set_limit(largest_message_bytes(specs_));
    hold_own(input);
    if (doubling_.is_folded(rank_)) {
      hand_over(exchange, round);
    } else {
      double_up(exchange, round);
    }
  }

  Traffic traffic(std::span<const IndexSets> sets) const override;

 private:
  static constexpr auto kNothing = [](Rank, std::span<const std::byte>) {};

  /// @param space    index of the row space
  /// @param round    the round
  /// @param partial  true for partial sums, false for the result
  SectionSpec section_spec(std::size_t space, Round round, bool partial) const {
    const RowSpace& shape = spaces_[space];
    const IndexRange part = round.part_of(shape.rows);
    const DType dtype = partial ? partial_[space] : shape.dtype;
    return {part, part.size(), shape.width * element_bytes(dtype), IndexCode::coo};
  }

  /// Runs a folded worker: sends its rows and receives the result.
  void hand_over(Exchange& exchange, Round round) {
    exchange.step(std::array{held_}, inbox_, kNothing);
    for (int group = 1; group < doubling_.paired; group *= 2) exchange.step({}, inbox_, kNothing);
    exchange.step({}, inbox_, [&](Rank, std::span<const std::byte> message) {
      ReceivedRows& received = pairs_[0][0];
      summation_.read(result_specs_, message, received);
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        // Copies the result without adding, so that no bit changes.
        RowSums& sums = sums_[i].of(round);
        const std::span<const Index> rows = received.named(i);
        sums.rows = std::ssize(rows);
        copy(context_, std::as_bytes(rows),
             std::as_writable_bytes(sums.indices.reserve(sums.rows)).data());
        const std::span<const std::byte> values = received.sections[i].values;
        copy(context_, values, sums.values.reserve(std::ssize(values)).data());
      }
    });
  }

  void double_up(Exchange& exchange, Round round) {
    const auto read_other = [&](Rank, std::span<const std::byte> message) {
      summation_.read_all(specs_, std::array{message}, {&pairs_[pair_][1 - side_], 1}, known_);
    };
    bool both = false;  // whether the pair has both sides, to be added
    if (doubling_.folded() > 0) {
      exchange.step({}, inbox_, read_other);
      both = doubling_.takes_in(rank_);
    }
    for (int group = 1; group < doubling_.paired; group *= 2) {
      if (both) merge(side_in(group));
      exchange.step(std::array{held_}, inbox_, read_other);
      both = true;
    }
    finish(round, std::span(pairs_[pair_]).subspan(both ? 0 : side_, both ? 2 : 1));
    if (doubling_.folded() == 0) return;
    if (doubling_.takes_in(rank_)) {
      hold_result(round);
      exchange.step(std::array{held_}, inbox_, kNothing);
    } else {
      exchange.step({}, inbox_, kNothing);
    }
  }

  /// Returns this worker's side of the exchange in which ranks differ in the bit `group`: 0 for the
  /// lower rank, 1 for the higher one.
  std::size_t side_in(int group) const { return (rank_.value & group) == 0 ? 0 : 1; }

  /// Returns memory for the next message, which becomes the held one.
  std::span<std::byte> next_message(std::span<const SectionSpec> specs, std::int64_t bytes) {
    const std::span<std::byte> message = messages_[1 - pair_].reserve(bytes);
    held_ = {message.data(), bytes, index_bytes(specs, counts_)};
    return message;
  }

  void hold_own(BucketInput& input) {
    pair_ = 0;
    // A single worker has no exchange, and uses side 0.
    side_ = doubling_.takes_in(rank_) || doubling_.size == 1 ? 0 : side_in(1);
    const std::span<std::byte> message = messages_[pair_].reserve(own_.find(specs_, input));
    own_.write(specs_, input, partial_, message);
    summation_.take_own(specs_, own_.counts(), message, pairs_[pair_][side_]);
    held_ = {message.data(), std::ssize(message), index_bytes(specs_, own_.counts())};
  }

  /// Adds up the pair, and writes the sums directly into the message that sends them.
  /// @param side  side of the next pair that receives the sums
  void merge(std::size_t side) {
    ReceivedRows& sums = pairs_[1 - pair_][side];
    counts_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Index rows =
          summation_.unite(pairs_[pair_], i, specs_[i].range, sums.indices[i], &known_);
      counts_.push_back({rows, rows});
    }
    lay_out(context_, specs_, counts_, next_message(specs_, message_bytes(specs_, counts_)),
            sections_);
    sums.sections.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Section& section = sections_[i];
      sums.sections.push_back({section.counts, section.code, section.indices, section.values});
      encode(context_, section.code, specs_[i].range, sums.named(i), section.indices);
      summation_.add_up(
          pairs_[pair_], i, sums.named(i), 1,
          {section.values.data(), partial_[i], section.counts.rows, spaces_[i].width});
    }
    pair_ = 1 - pair_;
    side_ = side;
  }

  /// Adds up `parts` into the round's result, scaled and rounded once.
  void finish(Round round, std::span<const ReceivedRows> parts) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const RowSpace& space = spaces_[i];
      RowSums& sums = sums_[i].of(round);
      const DType partial = partial_[i];
      if (partial == space.dtype) {
        summation_.sum(parts, i, specs_[i].range, partial, space.width, scale_, sums, &known_);
        continue;
      }
      sums.rows = summation_.unite(parts, i, specs_[i].range, sums.indices, &known_);
      const Matrix wide{wide_.reserve(sums.rows * specs_[i].row_bytes).data(), partial, sums.rows,
                        space.width};
      summation_.add_up(parts, i, sums.named(), 1, wide);
      round_sums(context_, as_const(wide), scale_,
                 {sums.values.reserve(sums.rows * space.row_bytes()).data(), space.dtype, sums.rows,
                  space.width});
    }
  }

  /// Writes the round's result into the held message.
  void hold_result(Round round) {
    counts_.clear();
    for (SumsOfRounds& sums : sums_) counts_.push_back({sums.of(round).rows, sums.of(round).rows});
    lay_out(context_, result_specs_, counts_,
            next_message(result_specs_, message_bytes(result_specs_, counts_)), sections_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const RowSums& sums = sums_[i].of(round);
      const Section& section = sections_[i];
      encode(context_, section.code, result_specs_[i].range, sums.named(), section.indices);
      copy(context_, {sums.values.data(), section.values.size()}, section.values.data());
    }
  }

  Doubling doubling_;
  std::vector<DType> partial_;  // [row space]: dtype of partial sums
  // Sections of the round's messages, of partial sums and of the result.
  std::vector<SectionSpec> specs_;
  std::vector<SectionSpec> result_specs_;
  std::vector<SectionCounts> counts_;
  std::vector<Section> sections_;
  KnownNumbers known_;
  OwnRows own_;
  Inbox inbox_;
  // The two sides of an exchange, lower ranks first, alternating between two pairs: the sums of one
  // pair become a side of the next.
  std::array<std::vector<ReceivedRows>, 2> pairs_;
  std::vector<Buffer<std::byte>> messages_;
  std::size_t pair_ = 0;
  std::size_t side_ = 0;
  Payload held_;
  Buffer<std::byte> wide_;  // the result before rounding
};

/// Returns the index sets of one row space after the first step: s(r) of each worker that
/// exchanges.
OwnedIndexSets first_groups(const Doubling& doubling, const IndexSets& sets) {
  OwnedIndexSets groups;
  for (const Rank rank : Ranks(doubling.paired)) {
    const std::span<const Index> own = sets[rank.index()];
    groups.push_back(doubling.takes_in(rank)
                         ? united_rows({own, sets[doubling.partner(rank).index()]})
                         : united_rows({own}));
  }
  return groups;
}

Traffic RecursiveDoubling::traffic(std::span<const IndexSets> sets) const {
  Traffic traffic(doubling_.size);
  const auto bytes_of = [&](Round round, bool partial, auto&& set_of) {
    std::vector<SectionSpec> specs;
    std::vector<SectionCounts> counts;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      specs.push_back(section_spec(i, round, partial));
      const auto rows = std::ssize(indices_in(set_of(i), specs[i].range));
      counts.push_back({rows, rows});
    }
    return message_bytes(specs, counts);
  };
  std::vector<OwnedIndexSets> groups;  // [row space][group]
  for (const IndexSets& of_space : sets) groups.push_back(first_groups(doubling_, of_space));
  for (int group = 1; group < doubling_.paired; group *= 2) {
    for (const Rank rank : Ranks(doubling_.paired)) {
      const auto held = [&](std::size_t i) -> std::span<const Index> {
        return groups[i][rank.index() / static_cast<std::size_t>(group)];
      };
      for (const Round round : Round::all(rounds_)) {
        traffic.message(rank, Doubling::met(rank, group), bytes_of(round, true, held));
      }
    }
    for (OwnedIndexSets& of_space : groups) {
      for (std::size_t i = 0; i < of_space.size() / 2; ++i) {
        of_space[i] = united_rows({of_space[2 * i], of_space[2 * i + 1]});
      }
      of_space.resize(of_space.size() / 2);
    }
  }
  for (const Rank rank : Ranks(doubling_.folded())) {
    const Rank folded = doubling_.partner(rank);
    const auto own = [&](std::size_t i) { return sets[i][folded.index()]; };
    const auto all = [&](std::size_t i) -> std::span<const Index> { return groups[i].front(); };
    for (const Round round : Round::all(rounds_)) {
      traffic.message(folded, rank, bytes_of(round, true, own));
      traffic.message(rank, folded, bytes_of(round, false, all));
    }
  }
  return traffic;
}

/// Predicts the cost of worker 0, which has the most work: if any worker is folded, worker 0
/// receives its rows.
Cost cost(const Workload& workload) {
  const Doubling doubling(workload.size);
  const bool folds = doubling.folded() > 0;
  PhaseCost all;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const RowSpace& space = workload.spaces[i];
    const SpaceStatistics& known = workload.statistics[i];
    const auto index = static_cast<double>(coo_index_bytes(space.rows));
    const auto partial = static_cast<double>(partial_row_bytes(space, workload.options));
    const double row = index + partial;
    for (int group = 1; group < doubling.paired; group *= 2) {
      const double held = united_by(known, doubling.summed(Rank{0}, group), workload.size);
      const double comes = united_by(known, doubling.summed(Rank{group}, group), workload.size);
      all.bytes_sent += row * (group == 1 ? std::max(held, known.touched_max) : held);
      all.bytes_received += row * comes;
      // Both sides are read, and the received one is added.
      const double added = held + comes;
      all.work += {.aggregated_rows = added, .aggregated_bytes = partial * added};
      all.work += work_of_union(static_cast<double>(space.rows), added);
    }
    all.work += {.encoded_rows = known.touched_max, .encoded_bytes = partial * known.touched_max};
    if (!folds) continue;
    all.bytes_sent += (index + static_cast<double>(space.row_bytes())) * known.united;
    all.bytes_received += row * known.touched_mean;
  }
  for (int group = 1; group < doubling.paired; group *= 2) ++all.messages;
  all.steps = all.messages + (folds ? 2 : 0);
  all.messages += folds ? 1 : 0;
  const double overhead = all.messages * overhead_bytes(workload.spaces.size());
  all.bytes_sent += overhead;
  all.bytes_received += overhead;
  return {.reduce = all, .gather = {}};
}

double workspace_bytes(const Workload& workload) {
  const Doubling doubling(workload.size);
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const double half = united_by(known, std::max(1, doubling.paired / 2), workload.size);
    // Held and received rows, as messages and as decoded indices; the previously held rows; the
    // result, before and after rounding.
    const auto partial = static_cast<double>(partial_row_bytes(space, workload.options));
    const bool is_rounded = partial_dtype(space, workload.options) != space.dtype;
    return 3 * half * (partial + 4 + 8) +
           known.united *
               (static_cast<double>(space.row_bytes()) + 8 + (is_rounded ? partial : 0)) +
           static_cast<double>(unite_workspace_bytes(space.rows, static_cast<Index>(2 * half)));
  });
}

const SchemeRegistration registration({
    .name = "recursive_doubling",
    .summary = "exchange of partial sums between ranks that differ in one bit (SparCML, SSAR)",
    .design = {.communication = Communication::hierarchy,
               .aggregation = Aggregation::incremental,
               .partition = Partition::centralization,
               .balance = Balance::none,
               .format = Format::coo},
    .create = make_scheme<RecursiveDoubling>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
