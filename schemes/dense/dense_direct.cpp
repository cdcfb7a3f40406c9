// dense_direct: all-reduce of the dense tensors by direct exchange, a direct reduce-scatter
// followed by a direct all-gather.
//
// All row spaces form one flat array of elements, divided into `size` even chunks. Each worker
// sends chunk c straight to its owner c. The owner adds the chunks in rank order, rounds the sums
// once, and sends them straight to all others. Each phase is one step, so the scheme suits small
// buckets, where latency dominates. Elements are sent in the dtype of their row space in both
// phases.
//
// Source: the pairwise exchange of reduce-scatter in Thakur, Rabenseifner, Gropp, "Optimization of
// collective communication operations in MPICH", 2005. Here all messages of a phase are sent at
// once.
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"
#include "kernels/rows/rows.h"
#include "schemes/bucket.h"
#include "schemes/bucket_input.h"
#include "schemes/cost.h"
#include "schemes/dense/dense_scheme.h"
#include "schemes/dense/flat_array.h"
#include "schemes/exchange.h"
#include "schemes/pattern.h"
#include "schemes/registry.h"
#include "schemes/scheme.h"
#include "schemes/statistics.h"
#include "sparsesync/rank.h"
#include "sparsesync/transport.h"

namespace sparsesync {
namespace {

/// Receives each message of a step, of known size, directly at its destination.
class EachInPlace : public ReceiveProvider {
 public:
  /// @param places  [receive]: the destination of each message; outlives this object
  explicit EachInPlace(std::span<const std::span<std::byte>> places) : places_(places) {}
  /// @throws ProtocolError if the message has another size
  std::byte* provide(std::size_t receive, const Header& header) override {
    const std::span<std::byte> place = places_[receive];
    return InPlace(place.data(), std::ssize(place)).provide(receive, header);
  }

 private:
  std::span<const std::span<std::byte>> places_;
};

class DenseDirect : public DenseScheme {
 public:
  explicit DenseDirect(const SchemeEnvironment& environment)
      : DenseScheme(environment),
        pattern_(all_to_all(rank_, size_)),
        own_(context_),
        inbox_(context_, static_cast<std::size_t>(size_ - 1)),
        addends_(static_cast<std::size_t>(size_)) {}

  Pattern pattern(Phase) const override { return pattern_; }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    if (round.index == 0) write_gradients(input);
    const IndexRange own = chunk_of(rank_, round);
    if (size_ > 1) {
      exchange_addends(exchange, own);
      add_in_rank_order(own);
    }
    if (!own_sums_ || scale_ != 1) round_to_values(own, scale_);
  }

  void gather(Exchange& exchange) override {
    if (size_ == 1) return;
    const Round round = exchange.round();
    const std::span<std::byte> own = values_of(chunk_of(rank_, round));
    const Step& step = pattern_.front();
    payloads_.assign(step.to.size(), Payload{own.data(), std::ssize(own)});
    places_.clear();
    for (const Rank owner : step.from) places_.push_back(values_of(chunk_of(owner, round)));
    EachInPlace provider(places_);
    exchange.step(payloads_, provider, [](Rank, std::span<const std::byte>) {});
  }

  Traffic traffic(std::span<const IndexSets>) const override {
    Traffic traffic(size_);
    for (const Round round : Round::all(rounds_)) {
      for (const Rank owner : Ranks(size_)) {
        const Index bytes = flat_values_.bytes_of(chunk_of(owner, round)).size();
        for (const Rank other : peers_after(owner, size_)) {
          traffic.message(other, owner, bytes);
          traffic.message(owner, other, bytes);
        }
      }
    }
    return traffic;
  }

 private:
  /// Returns the memory of a range of elements in the array of values.
  std::span<std::byte> values_of(IndexRange elements) const {
    const IndexRange bytes = flat_values_.bytes_of(elements);
    return {value_bytes() + bytes.begin, static_cast<std::size_t>(bytes.size())};
  }

  /// Sends all other workers' chunks and receives the addends of this worker's chunk.
  /// @param own  this worker's chunk
  void exchange_addends(Exchange& exchange, IndexRange own) {
    const Round round = exchange.round();
    const std::span<std::byte> own_values = values_of(own);
    inbox_.set_limit(std::ssize(own_values));
    inbox_.expect(std::ssize(own_values));
    if (own_sums_) {
      // The sums replace this worker's addend.
      addends_[rank_.index()] = own_.reserve(std::ssize(own_values)).data();
      copy(context_, own_values, own_.data());
    } else {
      addends_[rank_.index()] = own_values.data();
      round_to_values(round.part_of(flat_sums_.elements()), 1);
    }
    payloads_.clear();
    for (const Rank owner : pattern_.front().to) {
      const std::span<const std::byte> values = values_of(chunk_of(owner, round));
      payloads_.push_back({values.data(), std::ssize(values)});
    }
    exchange.step(payloads_, inbox_, [&](Rank from, std::span<const std::byte> bytes) {
      if (bytes.size() != own_values.size()) {
        throw ProtocolError("dense_direct: a chunk of unexpected size");
      }
      addends_[from.index()] = bytes.data();
    });
  }

  /// Replaces this worker's chunk of the array of sums by the sums of `addends_`.
  /// @param own  this worker's chunk
  void add_in_rank_order(IndexRange own) {
    const std::byte* const first = values_of(own).data();
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Matrix sums = flat_sums_.piece(i, own, sums_.data());
      if (sums.width == 0) continue;
      ConstMatrix addends = as_const(flat_values_.piece(i, own, value_bytes()));
      const std::ptrdiff_t offset = addends.data - first;
      for (const Rank rank : Ranks(size_)) {
        addends.data = addends_[rank.index()] + offset;
        if (rank == Rank{0}) {
          start_sums(context_, addends, sums);
        } else {
          add(context_, addends, sums);
        }
      }
    }
  }

  Pattern pattern_;
  Buffer<std::byte> own_;  // this worker's addend of its chunk, if sums have the values' dtype
  Inbox inbox_;
  std::vector<const std::byte*> addends_;  // [worker]: its addend of this worker's chunk
  std::vector<Payload> payloads_;          // of the current step
  std::vector<std::span<std::byte>> places_;
};

Cost cost(const Workload& workload) {
  const auto size = static_cast<double>(workload.size);
  const auto sums = static_cast<double>(flat_sums(workload.spaces).bytes());
  const auto values = static_cast<double>(flat_values(workload.spaces).bytes());
  const PhaseCost phase =
      all_to_all_cost(workload.size, values / size + static_cast<double>(kHeaderBytes));
  Cost total{.reduce = phase, .gather = phase};
  // The array is written once. One chunk is copied, and n chunks are added.
  total.reduce.work.added_bytes = sums * (workload.size > 1 ? 2 + 1 / size : 1);
  total.reduce.work += work_of_writing(workload);
  return total;
}

double workspace_bytes(const Workload& workload) {
  const auto sums = static_cast<double>(flat_sums(workload.spaces).bytes());
  const auto values = static_cast<double>(flat_values(workload.spaces).bytes());
  const bool own_sums = are_own_sums(workload.spaces);
  // The addends of this worker's chunk. Its own addend has separate memory only if sums have the
  // values' dtype.
  const double addends = workload.size - (own_sums ? 0.0 : 1.0);
  const double chunk = workload.size > 1 ? values / workload.size / workload.rounds : 0;
  return sums + (own_sums ? 0 : values) + addends * chunk;
}

const SchemeRegistration registration({
    .name = "dense_direct",
    .summary = "all-reduce of the dense tensors in two steps: each chunk straight to its owner",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::dense},
    .create = make_scheme<DenseDirect>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
