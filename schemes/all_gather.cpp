// all_gather (AGsparse): every worker's coalesced rows go around the ring to all others, and each
// worker adds them up in rank order. One phase: gather is empty. Rows cross as COO, by the book.
#include <algorithm>
#include <array>

#include "kernels/aggregate.h"
#include "kernels/locate.h"
#include "kernels/rows.h"
#include "schemes/message.h"
#include "schemes/row_sums.h"
#include "schemes/scheme.h"

namespace sparsesync {
namespace {

SectionSpec section_spec(const RowSpace& space, Round round) {
  const IndexRange part = round.part_of(space.rows);
  return {part, part.size(), space.row_bytes(), IndexCode::coo};
}

class AllGather : public Scheme {
 public:
  explicit AllGather(const SchemeEnvironment& environment)
      : context_(environment.context),
        spaces_(row_spaces(environment.bucket->tensors)),
        rank_(environment.rank.value),
        size_(environment.size),
        rounds_(environment.bucket->rounds),
        scale_(scale_of(environment)),
        own_(context_),
        inbox_(context_, static_cast<std::size_t>(std::max(0, size_ - 1))),
        parts_(static_cast<std::size_t>(size_)),
        counts_(context_),
        summation_(context_),
        results_(spaces_.size()) {
    for (int worker = 0; worker < size_; ++worker) {
      received_.emplace_back(context_, spaces_.size());
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      joined_.emplace_back(context_);
      std::vector<RowSums>& rounds = sums_.emplace_back();
      for (int round = 0; round < rounds_; ++round) rounds.emplace_back(context_);
    }
    counts_.reserve_exactly(static_cast<Index>(2 * spaces_.size()));
  }

  Pattern pattern(Phase phase) const override {
    return phase == Phase::reduce ? around_the_ring(Rank{rank_}, size_) : Pattern{};
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    specs_.clear();
    for (const RowSpace& space : spaces_) specs_.push_back(section_spec(space, round));
    pack_own(input);
    inbox_.set_limit(largest_message_bytes(specs_));
    for (int step = 0; step + 1 < size_; ++step) {
      const Part& forwarded = part(rank_ - step);
      const std::array payload{Payload{forwarded.message.data(),
                                       static_cast<std::int64_t>(forwarded.message.size()),
                                       forwarded.index_bytes}};
      RingInbox inbox(inbox_, static_cast<std::size_t>(step));
      exchange.step(payload, inbox, [&](Rank, std::span<const std::byte> message) {
        read_part(rank_ - 1 - step, message);
      });
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) sum_space(round.index, i);
  }

  void gather(Exchange& exchange) override {
    if (!exchange.round().last()) return;
    for (std::size_t i = 0; i < spaces_.size(); ++i) join_rounds(i);
  }

  std::span<const SpaceResult> result() const override { return results_; }
  void adapt(const Statistics&) override {}
  std::vector<SpaceChoice> choices() const override {
    return std::vector<SpaceChoice>(
        spaces_.size(), {std::string(name_of(IndexCode::coo)), std::nullopt, std::nullopt});
  }
  std::optional<Imbalance> imbalance(std::span<const IndexSets>) const override {
    return std::nullopt;
  }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    Traffic traffic(size_);
    for (int number = 0; number < rounds_; ++number) {
      const Round round{number, rounds_};
      for (int owner = 0; owner < size_; ++owner) {
        std::vector<SectionSpec> specs;
        std::vector<SectionCounts> counts;
        for (std::size_t i = 0; i < spaces_.size(); ++i) {
          const auto rows = static_cast<Index>(
              indices_in(sets[i][static_cast<std::size_t>(owner)], round.part_of(spaces_[i].rows))
                  .size());
          specs.push_back(section_spec(spaces_[i], round));
          counts.push_back({rows, rows});
        }
        for (int step = 0; step + 1 < size_; ++step) {
          traffic.message((owner + step) % size_, (owner + step + 1) % size_,
                          message_bytes(specs, counts));
        }
      }
    }
    return traffic;
  }

 private:
  /// One worker's message of this round.
  struct Part {
    std::span<const std::byte> message;
    std::int64_t index_bytes = 0;
  };

  /// Keeps what comes at step s in the inbox's place s: it is forwarded and added later.
  class RingInbox : public ReceiveProvider {
   public:
    RingInbox(Inbox& inbox, std::size_t place) : inbox_(inbox), place_(place) {}
    std::byte* provide(std::size_t, const Header& header) override {
      return inbox_.provide(place_, header);
    }

   private:
    Inbox& inbox_;
    std::size_t place_;
  };

  Part& part(int number) { return parts_[static_cast<std::size_t>(around_ring(number, size_))]; }

  void pack_own(BucketInput& input) {
    bounds_.resize(2 * spaces_.size());
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      locate(context_, input.coalesced(i).indices, specs_[i].range, {counts_.data() + 2 * i, 2});
    }
    fetch(context_, std::as_bytes(std::span(counts_.data(), bounds_.size())),
          reinterpret_cast<std::byte*>(bounds_.data()));
    counts_of_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Index rows = bounds_[2 * i + 1] - bounds_[2 * i];
      counts_of_.push_back({rows, rows});
    }
    const std::span<std::byte> message = own_.reserve(message_bytes(specs_, counts_of_));
    lay_out(context_, specs_, counts_of_, message, sections_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const RowSparse all = input.coalesced(i);
      const auto first = static_cast<std::size_t>(bounds_[2 * i]);
      encode(context_, IndexCode::coo, specs_[i].range,
             all.indices.subspan(first, static_cast<std::size_t>(counts_of_[i].rows)),
             sections_[i].indices);
      copy(context_,
           {all.values.data + bounds_[2 * i] * all.values.row_bytes(), sections_[i].values.size()},
           sections_[i].values.data());
    }
    read_part(rank_, message);
  }

  /// @param number  of the worker that it comes from, counted around the ring
  void read_part(int number, std::span<const std::byte> message) {
    const auto worker = static_cast<std::size_t>(around_ring(number, size_));
    ReceivedRows& received = received_[worker];
    summation_.read(specs_, message, received);
    Part& part = parts_[worker];
    part = {message, static_cast<std::int64_t>(message.size())};
    for (const ConstSection& section : received.sections) {
      part.index_bytes -= static_cast<std::int64_t>(section.values.size());
    }
  }

  void sum_space(int round, std::size_t space) {
    summation_.sum(received_, space, specs_[space].range, spaces_[space].dtype,
                   spaces_[space].width, scale_, sums_[space][static_cast<std::size_t>(round)]);
  }

  /// One array for each row space: the rounds' parts follow each other.
  void join_rounds(std::size_t space) {
    const RowSpace& shape = spaces_[space];
    std::vector<RowSums>& rounds = sums_[space];
    SpaceResult& result = results_[space];
    if (rounds.size() == 1) {
      const RowSums& only = rounds.front();
      result.indices = {only.indices.data(), static_cast<std::size_t>(only.rows)};
      result.values = {only.values.data(), shape.dtype, only.rows, shape.width};
      return;
    }
    Index rows = 0;
    for (const RowSums& round : rounds) rows += round.rows;
    const std::span<Index> indices = joined_[space].indices.reserve(rows);
    const std::span<std::byte> values = joined_[space].values.reserve(rows * shape.row_bytes());
    Index filled = 0;
    for (const RowSums& round : rounds) {
      copy(context_,
           std::as_bytes(std::span(round.indices.data(), static_cast<std::size_t>(round.rows))),
           reinterpret_cast<std::byte*>(indices.data() + filled));
      copy(context_,
           {round.values.data(), static_cast<std::size_t>(round.rows * shape.row_bytes())},
           values.data() + filled * shape.row_bytes());
      filled += round.rows;
    }
    result.indices = indices;
    result.values = {values.data(), shape.dtype, rows, shape.width};
  }

  Context context_;
  std::vector<RowSpace> spaces_;
  int rank_;
  int size_;
  int rounds_;
  double scale_;
  // Of the message that is being written or read: kept, so that a step allocates nothing.
  std::vector<SectionSpec> specs_;
  std::vector<Section> sections_;
  std::vector<SectionCounts> counts_of_;
  std::vector<Index> bounds_;
  Buffer<std::byte> own_;
  Inbox inbox_;
  std::vector<Part> parts_;                 // [worker]
  std::vector<ReceivedRows> received_;      // [worker]
  std::vector<std::vector<RowSums>> sums_;  // [row space][round]
  std::vector<RowSums> joined_;
  Buffer<Index> counts_;
  RowSummation summation_;
  std::vector<SpaceResult> results_;
};

Cost cost(const Workload& workload) {
  // The worker before the one that touched least passes on all other parts.
  double bytes = 0;
  double encoded = 0;
  double aggregated = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const auto row = static_cast<double>(coo_index_bytes(workload.spaces[i].rows) +
                                         workload.spaces[i].row_bytes());
    bytes += (workload.size - 1.0) * workload.statistics[i].touched_mean * row;
    const auto values = static_cast<double>(workload.spaces[i].row_bytes());
    encoded += workload.statistics[i].touched_max * values;
    aggregated += workload.size * workload.statistics[i].touched_mean * values;
  }
  const double headers =
      (workload.size - 1.0) * static_cast<double>(kHeaderBytes + 16 * workload.spaces.size());
  return {{workload.size - 1.0, workload.size - 1.0, bytes + headers, bytes + headers, encoded,
           aggregated},
          {}};
}

double workspace_bytes(const Workload& workload) {
  double bytes = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const auto values = static_cast<double>(workload.spaces[i].row_bytes());
    const double total = workload.size * workload.statistics[i].touched_mean;
    // As messages and decoded indices; as sums; as scratch.
    bytes += total * (values + 4 + 8) + workload.statistics[i].united * (values + 8) +
             static_cast<double>(
                 unite_workspace_bytes(workload.spaces[i].rows, static_cast<Index>(total)));
  }
  return bytes;
}

const SchemeRegistration registration({
    "all_gather",
    "every worker's rows to all others around a ring, added up by each (AGsparse)",
    {Communication::ring, Aggregation::one_shot, Partition::centralization, Balance::none,
     Format::coo},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return std::make_unique<AllGather>(environment);
    },
    cost,
    workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
