#include "schemes/push_pull/push_pull.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/host_copy.h"
#include "kernels/indices/locate.h"
#include "kernels/rows/compact.h"
#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/message/header_check.h"
#include "schemes/message/message.h"
#include "schemes/message/message_gather.h"
#include "schemes/message/message_writer.h"
#include "schemes/message/row_reduction.h"
#include "schemes/push_pull/cost.h"
#include "schemes/push_pull/gathered_rows.h"
#include "schemes/push_pull/partitioned_rows.h"

namespace sparsesync {
namespace {

std::vector<RowSpace> spaces_of(const Placements& placements) {
  std::vector<RowSpace> spaces;
  for (const std::unique_ptr<Placement>& placement : placements) {
    spaces.push_back(placement->space());
  }
  return spaces;
}

class PushPull : public Scheme {
 public:
  PushPull(const SchemeEnvironment& environment, Placements placements, Communication pulling)
      : Scheme(environment, spaces_of(placements)),
        peers_(peers_after(rank_, size_)),
        placements_(std::move(placements)),
        pulling_(pulling),
        more_rounds_may_help_(environment.more_rounds_may_help),
        divided_(context_, placements_, size_),
        room_(context_, size_),
        outbox_(context_, rank_, size_, room_.sent),
        messages_(static_cast<std::size_t>(size_)),
        known_(context_),
        counts_(context_),
        gathered_(context_),
        places_(context_),
        summation_(context_) {
    for (int round = 0; round < rounds_; ++round) {
      // Pulls start after all pushes, so the first round's pull reuses the memory of pushes.
      pulls_.emplace_back(context_, rank_, size_, pulling_, round == 0 ? &room_ : nullptr);
      pulled_.emplace_back(static_cast<std::size_t>(size_));
    }
    for (int worker = 0; worker < size_; ++worker) pushed_.emplace_back(context_, spaces_.size());
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      storage_.emplace_back(context_, rounds_, size_);
    }
  }

  Pattern pattern(Phase phase) const override {
    return phase == Phase::reduce ? all_to_all(rank_, size_) : pulls_.front().pattern();
  }

  std::size_t pieces(Phase phase, Round, std::size_t) const override {
    return phase == Phase::gather && in_pieces_ ? 2 : 1;
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    known_.clear();
    divided_.find(round, input);
    room_.received.set_limit(largest_message_bytes(sections_of(round, rank_, Phase::reduce)));
    pack_pushes(round, input);
    take_push(round, rank_, outbox_.own());
    if (size_ > 1) {
      if (round.index == 0) expect_memory();
      exchange.step(
          outbox_.payloads(), room_.received,
          [&](Rank from, std::span<const std::byte> message) { take_push(round, from, message); });
    }
    if (!fetches_at_once(context_)) {
      summation_.read_all(sections_of(round, rank_, Phase::reduce), messages_, pushed_, known_);
    }
    sum_pushes(round);
  }

  void gather(Exchange& exchange) override {
    const Round round = exchange.round();
    const std::int64_t head = pack_pull(round);
    std::int64_t limit = 0;
    for (const Rank peer : peers_) {
      limit = std::max(limit, largest_message_bytes(sections_of(round, peer, Phase::gather)));
    }
    if (in_pieces_) {
      pull_of(round).run_in_pieces(exchange, head, limit,
                                   {[&](Rank server, std::span<const std::byte> bytes) {
                                      return take_pull(round, server, bytes);
                                    },
                                    [&] {
                                      if (defers()) read_pulls(round);
                                      order_rows(round);
                                    },
                                    [&](Rank server, std::span<const std::byte> bytes) {
                                      read_body(sections_of(round, server, Phase::gather), bytes,
                                                pulled(round, server));
                                      if (round.last() && !defers()) place_values(round, server);
                                    }});
      if (round.last() && defers()) place_all_values(round);
      return;
    }
    pull_of(round).run(exchange, limit, [&](Rank server, std::span<const std::byte> bytes) {
      return take_pull(round, server, bytes);
    });
    if (defers()) read_pulls(round);
    order_rows(round);
    if (round.last()) place_all_values(round);
  }

  bool list_owned(std::vector<OwnedPart>& parts) const override {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      for (const RowSums& sums : storage_[i].sums) {
        parts.push_back(
            {i, {sums.values.data(), spaces_[i].dtype, sums.rows, placements_[i]->slice_width()}});
      }
    }
    return true;
  }

  void adapt(const Statistics& statistics) override {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      placements_[i]->adapt(statistics[i]);
      const double touched = statistics[i].touched_mean;
      storage_[i].union_of_a_row = touched > 0 ? statistics[i].united / touched : 0;
    }
    // Excluded for sections that may be dense, because their touched rows are only known from the
    // values.
    in_pieces_ =
        pulling_ == Communication::point_to_point && !densifies() &&
        pulls_in_pieces({.spaces = spaces_, .size = size_, .statistics = statistics}, rounds_);
  }

  std::vector<SpaceChoice> choices() const override {
    std::vector<SpaceChoice> choices;
    for (const std::unique_ptr<Placement>& placement : placements_) {
      choices.push_back(placement->choice());
    }
    return choices;
  }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    return push_pull_traffic(placements_, size_, rounds_, {pulling_, in_pieces_}, sets);
  }
  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    return push_pull_imbalance(placements_, size_, sets);
  }

 private:
  /// Workspace of one row space.
  struct SpaceStorage {
    SpaceStorage(const Context& context, int rounds, int size) : pulled(context, rounds, size) {
      for (int round = 0; round < rounds; ++round) sums.emplace_back(context);
      shares.resize(sums.size());
      for (int i = 0; i < rounds * size; ++i) kept.emplace_back(context);
    }
    Index most_united = 0;      // largest number of rows in a result; the memory for them exists
    double union_of_a_row = 0;  // rows of the union per row of this worker; 0: unknown
    std::vector<RowSums> sums;  // [round]
    // [round]: positions of the sums whose indices this server sends
    std::vector<IndexRange> shares;
    std::vector<Buffer<std::byte>> kept;  // [round][server]: nonzero rows of a dense section
    PulledRows pulled;
  };

  /// Returns the sections of a message to a server (reduce) or from it (gather), by row space.
  /// Valid until the next call.
  std::span<const SectionSpec> sections_of(Round round, Rank server, Phase phase) {
    specs_.clear();
    for (const std::unique_ptr<Placement>& placement : placements_) {
      specs_.push_back(phase == Phase::reduce ? placement->push_section(round, server)
                                              : placement->pull_section(round, server));
    }
    return specs_;
  }

  DividedRows::Selection selection(std::size_t space, Rank server) const {
    return divided_.selection(space, placements_[space]->group_of(server));
  }

  /// Returns the layout of the message to a server. Valid until the next call.
  Outbox::Contents describe_push(Round round, Rank server) {
    const std::span<const SectionSpec> specs = sections_of(round, server, Phase::reduce);
    counts_of_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      counts_of_.push_back(crossing(specs[i], std::ssize(selection(i, server).indices)));
    }
    return {specs, counts_of_};
  }

  void pack_pushes(Round round, BucketInput& input) {
    gathers_.resize(spaces_.size());
    for (std::vector<GatherJob>& of_space : gathers_) of_space.clear();
    encodes_.clear();
    outbox_.pack([&](Rank server) { return describe_push(round, server); },
                 [&](Rank server, const Outbox::Contents& push, std::span<const Section> sections) {
                   for (std::size_t i = 0; i < spaces_.size(); ++i) {
                     write_push(server, i, input.coalesced(i).values, push.specs[i], sections[i]);
                   }
                 });
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      gather_rows_all(context_, input.coalesced(i).values, gathers_[i]);
    }
    encode_all(context_, encodes_);
  }

  /// Checks the memory budget while the step can still be rejected. Assumes that the other workers'
  /// pushes are as large as this worker's push to itself, and that sums will follow.
  void expect_memory() {
    room_.received.expect(std::ssize(outbox_.own()));
    double bytes = 0;
    double pulled = 0;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const double sums = expected_sums(i);
      pulled += sums * static_cast<double>(spaces_[i].row_bytes());
      const double more = sums - static_cast<double>(storage_[i].most_united);
      const PulledOrder order = pulled_order(placements_[i]->keeps_order(), rounds_);
      if (more > 0) bytes += sums_workspace_bytes(spaces_[i], size_, more, order);
    }
    // Pulls reuse the memory of pushes.
    const double sent = pulled / size_;
    bytes += std::max(0.0, sent - static_cast<double>(room_.sent.capacity()));
    bytes += std::max(0.0, pulled - sent - static_cast<double>(room_.received.capacity()));
    if (bytes > 0) context_.memory().expect_room(static_cast<std::size_t>(bytes));
  }

  /// Returns the number of rows of the result to expect: the likely number if more rounds are
  /// possible, or else the smallest possible number.
  double expected_sums(std::size_t space) const {
    const SpaceStorage& storage = storage_[space];
    const auto own = static_cast<double>(divided_.rows(space));
    if (!more_rounds_may_help_) return own;
    const auto rows = static_cast<double>(spaces_[space].rows);
    // No step was seen yet. Assumes that workers draw their rows independently.
    if (storage.union_of_a_row == 0) return rows * (1 - std::pow(1 - own / rows, size_));
    return std::min(rows, own * storage.union_of_a_row);
  }

  void write_push(Rank server, std::size_t space, ConstMatrix values, const SectionSpec& spec,
                  const Section& section) {
    const DividedRows::Selection chosen = selection(space, server);
    Matrix rows{section.values.data(), spaces_[space].dtype, std::ssize(chosen.indices),
                placements_[space]->slice_width()};
    const Index first_column = placements_[space]->first_column(server);
    if (rows.rows < section.counts.rows) {
      rows.data = gathered_.reserve(rows.bytes()).data();
      gather_rows(context_, values, chosen.sources, first_column, rows);
      return write_dense(spec, chosen.indices, as_const(rows), section);
    }
    gathers_[space].push_back({chosen.sources, first_column, rows});
    encodes_.push_back({section.code, spec.range, chosen.indices, section.indices});
  }

  /// Writes all rows of a section's range, with zeros for missing rows.
  void write_dense(const SectionSpec& spec, std::span<const Index> indices, ConstMatrix rows,
                   const Section& section) {
    const std::span<Index> places = places_.reserve(rows.rows);
    shift(context_, indices, -spec.range.begin, places);
    fill_zero(context_, section.values);
    scatter_rows(context_, rows, places, 0,
                 {section.values.data(), rows.dtype, section.counts.rows, rows.width});
  }

  /// Reads a pushed message, or keeps it to be read together with the others.
  void take_push(Round round, Rank worker, std::span<const std::byte> message) {
    messages_[worker.index()] = message;
    if (!fetches_at_once(context_)) return;
    summation_.read(sections_of(round, rank_, Phase::reduce), message, pushed_[worker.index()]);
  }

  RowSums& sums_of(Round round, std::size_t space) {
    return storage_[space].sums[round.position()];
  }

  /// Adds up the pushed rows, and selects the sums whose indices this server will send. Fetches the
  /// numbers of rows to the host at the end.
  void sum_pushes(Round round) {
    // Four numbers per row space: 0 and the number of sums, as the bounds of a group, and the
    // bounds of the selected sums.
    constexpr Index kNumbers = 4;
    const std::span<Index> counted = counts_.reserve(kNumbers * std::ssize(spaces_));
    fill_zero(context_, std::as_writable_bytes(counted));
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Placement& placement = *placements_[i];
      RowSums& sums = sums_of(round, i);
      const std::span<Index> numbers = counted.subspan(i * kNumbers, kNumbers);
      summation_.sum_counted(pushed_, i, placement.range(round, placement.group_of(rank_)),
                             spaces_[i].dtype, placement.slice_width(), scale_, sums,
                             Count(numbers.data() + 1));
      locate_in_groups(context_, sums.named(), numbers.first(2), placement.share(round, rank_),
                       numbers.last(2));
    }
    fetched_.resize(counted.size());
    known_.verify(std::array{std::as_bytes(std::span<const Index>(counted))},
                  std::as_writable_bytes(std::span(fetched_)));
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const std::span<const Index> numbers = std::span(fetched_).subspan(i * kNumbers, kNumbers);
      sums_of(round, i).rows = numbers[1];
      storage_[i].shares[round.position()] = {numbers[2], numbers[3]};
    }
  }

  /// Returns the all-gather of a round. Rounds do not share one, because the result is read from
  /// all of them after the last round.
  MessageGather& pull_of(Round round) { return pulls_[round.position()]; }

  std::vector<std::vector<ConstSection>>& pulled_of(Round round) {
    return pulled_[round.position()];
  }
  std::vector<ConstSection>& pulled(Round round, Rank server) {
    return pulled_of(round)[server.index()];
  }

  bool densifies() const {
    return std::any_of(placements_.begin(), placements_.end(), [](const auto& placement) {
      return placement->pull_section(Round{}, Rank{0}).densifies;
    });
  }

  /// Writes the message of sums that goes to all other workers.
  /// @return the size of its head in bytes
  std::int64_t pack_pull(Round round) {
    const std::size_t spaces = spaces_.size();
    const std::span<const SectionSpec> specs = sections_of(round, rank_, Phase::gather);
    counts_of_.clear();
    for (std::size_t i = 0; i < spaces; ++i) {
      const Index rows = sums_of(round, i).rows;
      counts_of_.push_back(specs[i].densifies
                               ? crossing(specs[i], rows)
                               : SectionCounts{storage_[i].shares[round.position()].size(), rows});
    }
    lay_out(context_, specs, counts_of_, pull_of(round).own(message_bytes(specs, counts_of_)),
            sections_);
    encodes_.clear();
    for (std::size_t i = 0; i < spaces; ++i) {
      Placement& placement = *placements_[i];
      const RowSums& sums = sums_of(round, i);
      if (sums.rows < counts_of_[i].rows) {
        write_dense(specs[i], sums.named(),
                    {sums.values.data(), spaces_[i].dtype, sums.rows, placement.slice_width()},
                    sections_[i]);
        continue;
      }
      const std::span<const Index> share =
          part_of(sums.named(), storage_[i].shares[round.position()]);
      encodes_.push_back({sections_[i].code, specs[i].range,
                          placement.renumber(context_, placement.group_of(rank_), share),
                          sections_[i].indices});
      copy(context_, {sums.values.data(), sections_[i].values.size()}, sections_[i].values.data());
    }
    encode_all(context_, encodes_);
    return head_bytes(specs, counts_of_);
  }

  /// Returns whether pulled messages are kept until all have arrived, and read together. Otherwise
  /// messages are forwarded, or read while others are in flight.
  bool defers() const {
    return !fetches_at_once(context_) && pulling_ == Communication::point_to_point && !densifies();
  }

  /// Reads a pulled message, or its head; other messages may follow it. The first call has this
  /// worker's own message.
  MessageGather::Extent take_pull(Round round, Rank server, std::span<const std::byte> bytes) {
    messages_[server.index()] = bytes;
    if (!defers())
      return in_pieces_ ? read_pull_head(round, server, bytes) : read_pull(round, server, bytes);
    const bool is_own = server == rank_;
    return {std::ssize(bytes),
            is_own ? index_bytes(sections_of(round, rank_, Phase::gather), counts_of_) : 0};
  }

  /// Reads all pulled messages with one synchronization, the second one of a pull.
  void read_pulls(Round round) {
    const std::size_t spaces = spaces_.size();
    known_.fetch(spaces, messages_, counts_read_);
    decodes_.clear();
    for (const Rank server : Ranks(size_)) {
      const std::span<const SectionSpec> specs = sections_of(round, server, Phase::gather);
      const std::span<const SectionCounts> counts =
          std::span(counts_read_).subspan(server.index() * spaces, spaces);
      std::vector<ConstSection>& sections = pulled(round, server);
      if (in_pieces_) {
        take_head(specs, counts, messages_[server.index()], sections);
      } else {
        take_layout(specs, counts, messages_[server.index()], sections);
      }
      for (std::size_t i = 0; i < spaces; ++i) add_decode(server, i, specs[i], sections[i]);
    }
    decode_all(context_, decodes_);
  }

  void add_decode(Rank server, std::size_t space, const SectionSpec& spec,
                  const ConstSection& section) {
    decodes_.push_back(
        {section.code, spec.range, section.indices, share_of(server, space, section)});
  }

  /// @param round   the round
  /// @param server  the sender
  /// @param bytes   other messages may follow
  MessageGather::Extent read_pull(Round round, Rank server, std::span<const std::byte> bytes) {
    const std::span<const SectionSpec> specs = sections_of(round, server, Phase::gather);
    std::vector<ConstSection>& sections = pulled(round, server);
    const std::int64_t own = read_leading(context_, specs, bytes, counts_read_, sections);
    decodes_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      if (specs[i].densifies && sections[i].code == IndexCode::all) {
        drop_zeros(i, specs[i].range, share_of(server, i, sections[i]), kept_of(round, server, i),
                   sections[i]);
      } else {
        add_decode(server, i, specs[i], sections[i]);
      }
    }
    decode_all(context_, decodes_);
    return {own, index_bytes(specs, counts_read_)};
  }

  MessageGather::Extent read_pull_head(Round round, Rank server, std::span<const std::byte> bytes) {
    const std::span<const SectionSpec> specs = sections_of(round, server, Phase::gather);
    std::vector<ConstSection>& sections = pulled(round, server);
    read_head(context_, specs, bytes, counts_read_, sections);
    decodes_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      add_decode(server, i, specs[i], sections[i]);
    }
    decode_all(context_, decodes_);
    return {std::ssize(bytes), index_bytes(specs, counts_read_)};
  }

  std::span<Index> share_of(Rank server, std::size_t space, const ConstSection& section) {
    return storage_[space].pulled.share(server, section.counts.indices);
  }

  Buffer<std::byte>& kept_of(Round round, Rank server, std::size_t space) {
    return storage_[space]
        .kept[round.position() * static_cast<std::size_t>(size_) + server.index()];
  }

  /// Removes the zero rows of a dense section, because no worker may have touched them.
  void drop_zeros(std::size_t space, IndexRange range, std::span<Index> share,
                  Buffer<std::byte>& kept, ConstSection& section) {
    if (section.counts.rows != section.counts.indices) {
      throw CorruptDataError("a dense section whose indices and rows differ in number");
    }
    const Index row_bytes = placements_[space]->slice_bytes();
    const ConstMatrix dense{section.values.data(), spaces_[space].dtype, section.counts.rows,
                            placements_[space]->slice_width()};
    const std::span<std::byte> values = kept.reserve(dense.bytes());
    const Count count(counts_.reserve(1).data());
    compact(context_, dense, range.begin, share,
            {values.data(), dense.dtype, dense.rows, dense.width}, count);
    const Index rows = resolve(context_, count);
    section.counts = {rows, rows};
    section.values = values.first(static_cast<std::size_t>(rows * row_bytes));
  }

  /// Computes row numbers, once all indices of a round have arrived. After the last round, also
  /// sorts the rows of the result and scatters the values of the earlier rounds.
  void order_rows(Round round) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      PulledRows& rows = storage_[i].pulled;
      rows.name(context_, round, *placements_[i], pulled_of(round), i);
      if (!round.last()) continue;
      results_[i] = rows.sort(context_, *placements_[i]);
      const Index united = results_[i].values.rows;
      storage_[i].most_united = std::max(storage_[i].most_united, united);
      if (divided_.rows(i) > 0 && storage_[i].union_of_a_row == 0) {
        storage_[i].union_of_a_row =
            static_cast<double>(united) / static_cast<double>(divided_.rows(i));
      }
    }
    for (int earlier = 0; round.last() && earlier < round.index; ++earlier) {
      place_all_values({earlier, rounds_});
    }
  }

  /// Scatters a server's values, after order_rows() of the last round.
  void place_values(Round round, Rank server) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      storage_[i].pulled.scatter(
          context_, round, *placements_[i],
          std::array{PulledRows::Placing{server, &pulled(round, server)[i]}});
    }
  }

  /// Scatters the values of all servers.
  void place_all_values(Round round) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      placing_.clear();
      for (const Rank server : Ranks(size_))
        placing_.push_back({server, &pulled(round, server)[i]});
      storage_[i].pulled.scatter(context_, round, *placements_[i], placing_);
    }
  }

  std::vector<Rank> peers_;
  Placements placements_;
  Communication pulling_;
  bool more_rounds_may_help_;
  bool in_pieces_ = false;
  // Layout of the current message, kept so that a step does not allocate.
  std::vector<SectionSpec> specs_;
  std::vector<Section> sections_;
  std::vector<SectionCounts> counts_of_;
  std::vector<SectionCounts> counts_read_;
  std::vector<Index> fetched_;
  std::vector<std::vector<GatherJob>> gathers_;  // [row space]
  std::vector<EncodeJob> encodes_;
  std::vector<DecodeJob> decodes_;
  std::vector<PulledRows::Placing> placing_;
  DividedRows divided_;
  MessageRoom room_;
  Outbox outbox_;
  std::vector<std::span<const std::byte>> messages_;  // [worker]: messages of the current step
  KnownNumbers known_;
  std::vector<ReceivedRows> pushed_;                            // [worker]
  std::vector<MessageGather> pulls_;                            // [round]
  std::vector<std::vector<std::vector<ConstSection>>> pulled_;  // [round][server][row space]
  std::vector<SpaceStorage> storage_;
  Buffer<Index> counts_;
  Buffer<std::byte> gathered_;  // rows of a section that is sent dense
  Buffer<Index> places_;        // positions of these rows in the section
  RowSummation summation_;
};

}  // namespace

std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment, Placements placements,
                                      Communication pulling) {
  return std::make_unique<PushPull>(environment, std::move(placements), pulling);
}

}  // namespace sparsesync
