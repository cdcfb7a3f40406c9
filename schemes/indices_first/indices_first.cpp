#include "schemes/indices_first/indices_first.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/base/host_copy.h"
#include "kernels/indices/locate.h"
#include "kernels/partition/owners.h"
#include "kernels/rows/aggregate.h"
#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/indices_first/exchange_plan.h"
#include "schemes/message/header_check.h"
#include "schemes/message/index_set_exchange.h"
#include "schemes/message/message.h"
#include "schemes/message/message_gather.h"
#include "schemes/message/message_writer.h"

namespace sparsesync {
namespace {

/// The state of a round: index sets, the exchange plan, and the sums of rows that this worker
/// serves.
struct RoundState {
  RoundState(const SchemeEnvironment& environment, std::span<const RowSpace> spaces)
      : sets(environment, spaces), sums(buffers<std::byte>(environment.context, spaces.size())) {
    while (plans.size() < spaces.size()) plans.emplace_back(environment.context, environment.size);
  }
  IndexSetExchange sets;
  std::vector<RowPlan> plans;           // [row space]
  std::vector<Buffer<std::byte>> sums;  // [row space]
};

class ValuesAlone : public Scheme {
 public:
  ValuesAlone(const SchemeEnvironment& environment, Ownerships ownerships)
      : Scheme(environment),
        announced_(environment.bucket->announce),
        peers_(peers_after(rank_, size_)),
        ownerships_(std::move(ownerships)),
        known_(context_),
        padded_(buffers<std::byte>(context_, spaces_.size())),
        room_(context_, size_),
        outbox_(context_, rank_, size_, room_.sent),
        pushed_(static_cast<std::size_t>(size_)),
        pull_(context_, rank_, size_, Communication::point_to_point, &room_),
        places_(context_),
        counts_(context_),
        workspace_(context_),
        result_indices_(buffers<Index>(context_, spaces_.size())),
        result_values_(buffers<std::byte>(context_, spaces_.size())) {
    for (int round = 0; round < rounds_; ++round) states_.emplace_back(environment, spaces_);
    counts_.reserve_exactly(2);
  }

  Pattern pattern(Phase phase) const override {
    Pattern steps = all_to_all(rank_, size_);
    if (phase == Phase::reduce && !announced_ && size_ > 1) steps.push_back(steps.front());
    return steps;
  }

  void announce(Exchange& exchange, BucketInput& rows) override { learn_sets(exchange, rows); }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    known_.clear();
    if (!announced_) learn_sets(exchange, input);
    places_are_known_ = announced_ && round.index == 0 && are_told_unchecked(input);
    if (announced_ && round.index == 0 && !places_are_known_) expect_announced(input);
    take_values(round, input);
    pack_pushes(round);
    if (size_ > 1) {
      exchange.step(
          outbox_.payloads(), room_.received,
          [&](Rank from, std::span<const std::byte> message) { read_push(round, from, message); });
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) sum_pushes(round, i);
    known_.verify({}, {});
  }

  void gather(Exchange& exchange) override {
    const Round round = exchange.round();
    if (round.index == 0) make_room();
    std::int64_t limit = 0;
    for (const Rank peer : peers_) {
      specify_pull(round, peer);
      limit = std::max(limit, message_bytes(specs_, numbers_));
    }
    known_.clear();
    scatters_.resize(spaces_.size());
    for (std::vector<ScatterJob>& of_space : scatters_) of_space.clear();
    pack_pull(round);
    pull_.run(exchange, limit, [&](Rank server, std::span<const std::byte> message) {
      const MessageGather::Extent extent = read_pull(round, server, message);
      // On a GPU, all values are scattered together at the end.
      if (fetches_at_once(context_)) place_pulls(round);
      return extent;
    });
    place_pulls(round);
    known_.verify({}, {});
  }

  bool list_owned(std::vector<OwnedPart>& parts) const override {
    for (const RoundState& state : states_) {
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        parts.push_back({i,
                         {state.sums[i].data(), spaces_[i].dtype,
                          std::ssize(state.plans[i].served_union()), slice_width(i)}});
      }
    }
    return true;
  }

  std::vector<SpaceChoice> choices() const override {
    std::vector<SpaceChoice> choices;
    for (const std::unique_ptr<Ownership>& ownership : ownerships_) {
      const Grid grid = ownership->grid();
      choices.push_back({"sets_ahead", grid.row_groups, grid.column_slices});
    }
    return choices;
  }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    return values_alone_traffic(spaces_, ownerships_, rounds_, sets);
  }
  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    return values_alone_imbalance(traffic(sets));
  }

 private:
  RoundState& state(Round round) { return states_[round.position()]; }
  Grid grid(std::size_t space) const { return ownerships_[space]->grid(); }
  int group_of(std::size_t space, Rank server) const { return grid(space).group_of(server); }
  Index slice_width(std::size_t space) const { return grid(space).slice_width(spaces_[space]); }

  void learn_sets(Exchange& exchange, BucketInput& rows) {
    const Round round = exchange.round();
    RoundState& state = this->state(round);
    state.sets.run(exchange, rows);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      state.plans[i].make(state.sets.sets(i), round.part_of(spaces_[i].rows), rank_,
                          group_of(i, rank_), *ownerships_[i]);
    }
  }

  /// Returns the positions of the input's rows that lie in a round's range. Synchronizes the
  /// stream.
  IndexRange rows_in(Round round, std::size_t space, std::span<const Index> rows) {
    if (rounds_ == 1) return {0, std::ssize(rows)};
    return places_in(context_, rows, round.part_of(spaces_[space].rows), counts_.first(2));
  }

  /// Returns the positions of a round's rows among the rows that this worker announced.
  /// Synchronizes the stream.
  /// @throws InputError if a row was not announced
  std::span<const Index> told_places(Round round, std::size_t space, std::span<const Index> rows,
                                     const BucketInput& input) {
    const std::span<const Index> told = state(round).sets.sets(space)[rank_.index()];
    const std::span<Index> places = places_.reserve(std::ssize(rows));
    const Count count(counts_.data());
    find_places(context_, told, rows, places, count);
    const Index found = resolve(context_, count);
    if (found == std::ssize(rows)) return places;
    Index row = 0;
    fetch_numbers(context_, part_of(rows, {found, found + 1}), {&row, 1});
    const auto [tensor, of_tensor] = input.named(space, row);
    throw InputError(
        fmt::format("tensor '{}': row {} was touched and not announced: announce every row that "
                    "the step may touch, or none (in Python announce=False)",
                    tensor, of_tensor));
  }

  /// Checks that rows were announced, while the check of the input's indices is pending. Fetches
  /// both results to the host at once.
  /// @return whether both checks succeeded
  bool are_told_unchecked(BucketInput& input) {
    if (rounds_ > 1 || spaces_.size() > 1 || input.unchecked().empty()) return false;
    const std::span<const Index> rows = input.unchecked().front();
    const std::span<const Index> told = state(Round{}).sets.sets(0)[rank_.index()];
    const Count count(counts_.data());
    find_places(context_, told, rows, places_.reserve(std::ssize(rows)), count);
    const std::span<const Index> outcome = input.outcome();
    fetched_.resize(1 + outcome.size());
    fetch_pieces(
        context_,
        std::array{std::as_bytes(std::span<const Index>(counts_.first(1))), std::as_bytes(outcome)},
        std::as_writable_bytes(std::span(fetched_)).data());
    return input.verify(std::span(fetched_).subspan(1)) && fetched_[0] == std::ssize(rows);
  }

  /// Checks the rows of all rounds before the first round sends, while the step can still be
  /// rejected.
  void expect_announced(BucketInput& input) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const std::span<const Index> rows = input.coalesced(i).indices;
      for (Round round{0, rounds_}; round.index < rounds_; ++round.index) {
        told_places(round, i, part_of(rows, rows_in(round, i, rows)), input);
      }
    }
  }

  /// Finds the values of the announced rows: in the input, if it has exactly these rows, or else in
  /// a copy with zeros for announced rows that were not touched.
  void take_values(Round round, BucketInput& input) {
    values_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const RowSparse all = input.coalesced(i);
      const IndexRange part = rows_in(round, i, all.indices);
      const ConstMatrix values{all.values.data + part.begin * all.values.row_bytes(),
                               all.values.dtype, part.size(), all.values.width};
      const auto told = std::ssize(state(round).sets.sets(i)[rank_.index()]);
      if (told == part.size()) {
        values_.push_back(values);
        continue;
      }
      const Matrix padded{padded_[i].reserve(told * values.row_bytes()).data(), values.dtype, told,
                          values.width};
      fill_zero(context_, padded.as_bytes());
      scatter_rows(context_, values,
                   places_are_known_ ? places_.first(part.size())
                                     : told_places(round, i, part_of(all.indices, part), input),
                   0, padded);
      values_.push_back(as_const(padded));
    }
  }

  /// Describes a message of values. Both workers know its number of rows, rows_of(i), by row space.
  template <typename RowsOf>
  void specify(RowsOf&& rows_of) {
    specs_.clear();
    numbers_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Index rows = rows_of(i);
      const Index bytes = grid(i).slice_bytes(spaces_[i]);
      specs_.push_back({{0, 0}, rows, bytes, IndexCode::coo});
      numbers_.push_back({0, rows});
    }
  }
  void specify_push(Round round, Rank server) {
    specify([&](std::size_t i) {
      return std::ssize(state(round).plans[i].pushed(group_of(i, server)));
    });
  }
  void specify_served(Round round, Rank worker) {
    specify([&](std::size_t i) { return std::ssize(state(round).plans[i].served(worker)); });
  }
  void specify_pull(Round round, Rank server) {
    specify([&](std::size_t i) {
      return std::ssize(state(round).plans[i].pulled(group_of(i, server)));
    });
  }

  void pack_pushes(Round round) {
    gathers_.resize(spaces_.size());
    for (std::vector<GatherJob>& of_space : gathers_) of_space.clear();
    outbox_.pack(
        [&](Rank server) -> Outbox::Contents {
          specify_push(round, server);
          return {specs_, numbers_};
        },
        [&](Rank server, const Outbox::Contents&, std::span<const Section> sections) {
          for (std::size_t i = 0; i < spaces_.size(); ++i) {
            gathers_[i].push_back({state(round).plans[i].pushed(group_of(i, server)),
                                   grid(i).first_column(spaces_[i], server),
                                   {sections[i].values.data(), spaces_[i].dtype,
                                    sections[i].counts.rows, slice_width(i)}});
          }
        });
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      gather_rows_all(context_, values_[i], gathers_[i]);
    }
    read_push(round, rank_, outbox_.own());
    std::int64_t limit = 0;
    for (const Rank peer : peers_) {
      specify_served(round, peer);
      limit = std::max(limit, message_bytes(specs_, numbers_));
    }
    room_.received.set_limit(limit);
  }

  /// Reads a message whose counts both workers know.
  /// @throws CorruptDataError if the message has another size
  void read_sections(std::span<const std::byte> message, std::vector<ConstSection>& sections) {
    take_layout(specs_, numbers_, message, sections);
    known_.expect(message, numbers_);
  }

  void read_push(Round round, Rank worker, std::span<const std::byte> message) {
    specify_served(round, worker);
    read_sections(message, pushed_[worker.index()]);
  }

  void sum_pushes(Round round, std::size_t space) {
    const RowPlan& plan = state(round).plans[space];
    parts_.clear();
    for (const Rank worker : Ranks(size_)) {
      const std::span<const Index> rows = plan.served(worker);
      const ConstSection& section = pushed_[worker.index()][space];
      parts_.push_back(
          {rows,
           {section.values.data(), spaces_[space].dtype, std::ssize(rows), slice_width(space)}});
    }
    const std::span<const Index> rows = plan.served_union();
    const auto count = std::ssize(rows);
    const Index row_bytes = grid(space).slice_bytes(spaces_[space]);
    aggregate(context_, rows, parts_, scale_,
              {state(round).sums[space].reserve(count * row_bytes).data(), spaces_[space].dtype,
               count, slice_width(space)},
              workspace_);
  }

  /// Reserves memory for the result of all rounds.
  void make_room() {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      Index rows = 0;
      for (const RoundState& round : states_) {
        rows += std::ssize(round.plans[i].united());
      }
      const std::span<Index> indices = result_indices_[i].reserve(rows);
      std::size_t filled = 0;
      for (const RoundState& round : states_) {
        const std::span<const Index> united = round.plans[i].united();
        copy(context_, std::as_bytes(united),
             std::as_writable_bytes(indices.subspan(filled)).data());
        filled += united.size();
      }
      results_[i] = {Gradient::Layout::row_sparse,
                     indices,
                     {result_values_[i].reserve(rows * spaces_[i].row_bytes()).data(),
                      spaces_[i].dtype, rows, spaces_[i].width}};
    }
  }

  /// Writes the message of sums that goes to all other workers.
  void pack_pull(Round round) {
    specify_pull(round, rank_);
    lay_out(context_, specs_, numbers_, pull_.own(message_bytes(specs_, numbers_)), sections_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      copy(context_, {state(round).sums[i].data(), sections_[i].values.size()},
           sections_[i].values.data());
    }
  }

  /// Reads a server's sums, and records their destination in the result.
  MessageGather::Extent read_pull(Round round, Rank server, std::span<const std::byte> message) {
    specify_pull(round, server);
    read_sections(message, pulled_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      scatters_[i].push_back(
          {{pulled_[i].values.data(), spaces_[i].dtype, numbers_[i].rows, slice_width(i)},
           state(round).plans[i].pulled(group_of(i, server)),
           grid(i).first_column(spaces_[i], server)});
    }
    return {std::ssize(message), index_bytes(specs_, numbers_)};
  }

  /// Copies sums to their rows and columns of the result.
  void place_pulls(Round round) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      Index before = 0;
      for (std::size_t earlier = 0; earlier < round.position(); ++earlier) {
        before += std::ssize(states_[earlier].plans[i].united());
      }
      const Matrix out{result_values_[i].data() + before * spaces_[i].row_bytes(), spaces_[i].dtype,
                       std::ssize(state(round).plans[i].united()), spaces_[i].width};
      scatter_rows_all(context_, scatters_[i], out);
      scatters_[i].clear();
    }
  }

  bool announced_;
  std::vector<Rank> peers_;
  Ownerships ownerships_;
  std::vector<RoundState> states_;  // [round]
  // Layout of the current message, kept so that a step does not allocate.
  std::vector<SectionSpec> specs_;
  std::vector<SectionCounts> numbers_;
  std::vector<Index> fetched_;
  std::vector<std::vector<GatherJob>> gathers_;    // [row space]
  std::vector<std::vector<ScatterJob>> scatters_;  // [row space]
  KnownNumbers known_;
  std::vector<Section> sections_;
  std::vector<RowSparse> parts_;
  std::vector<ConstMatrix> values_;  // [row space]: values of this worker's announced rows
  std::vector<Buffer<std::byte>> padded_;
  MessageRoom room_;  // memory of the reduce phase, then of the gather phase
  Outbox outbox_;
  std::vector<std::vector<ConstSection>> pushed_;  // [worker][row space]
  MessageGather pull_;
  std::vector<ConstSection> pulled_;  // [row space]: sums of one server
  Buffer<Index> places_;
  bool places_are_known_ = false;  // for the rows of a single row space and round
  Buffer<Index> counts_;
  AggregateWorkspace workspace_;
  std::vector<Buffer<Index>> result_indices_;
  std::vector<Buffer<std::byte>> result_values_;
};

}  // namespace

std::unique_ptr<Scheme> values_alone(const SchemeEnvironment& environment, Ownerships ownerships) {
  return std::make_unique<ValuesAlone>(environment, std::move(ownerships));
}

}  // namespace sparsesync
