// dense_ring: ring all-reduce of the dense tensors, a reduce-scatter followed by an all-gather. It
// is the baseline.
//
// All row spaces form one flat array of elements, divided into `size` even chunks. Chunk c starts
// at worker c + 1 and is summed along the ring until it reaches its owner c. Its reduction order is
// ranks c + 1, ..., n - 1, 0, ..., c, the same in every run. Partial sums are sent in the type of
// sums, and the owner rounds them once. If the bucket has a narrower wire type, each worker on the
// path rounds them.
#include <array>

#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/dense/dense_scheme.h"
#include "schemes/dense/flat_array.h"
#include "schemes/exchange.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

class DenseRing : public DenseScheme {
 public:
  explicit DenseRing(const SchemeEnvironment& environment)
      : DenseScheme(environment),
        narrow_(environment.bucket->options.wire && !own_sums_),
        inbox_(context_, 1) {}

  Pattern pattern(Phase) const override { return around_the_ring(rank_, size_); }

  void reduce(Exchange& exchange, BucketInput& input) override {
    if (exchange.round().index == 0) write_gradients(input);
    for (int step = 0; step + 1 < size_; ++step) {
      const IndexRange outgoing = chunk(exchange.round(), -1 - step);
      const IndexRange incoming = chunk(exchange.round(), -2 - step);
      const IndexRange outgoing_bytes = crossing().bytes_of(outgoing);
      const IndexRange incoming_bytes = crossing().bytes_of(incoming);
      inbox_.set_limit(incoming_bytes.size());
      if (narrow_) round_to_values(outgoing, 1);
      const std::byte* const sums = narrow_ ? values_.data() : sums_.data();
      const std::array payload{Payload{sums + outgoing_bytes.begin, outgoing_bytes.size()}};
      exchange.step(payload, inbox_, [&](Rank, std::span<const std::byte> bytes) {
        expect_bytes(bytes, incoming_bytes.size());
        add_chunk(incoming, bytes.data());
      });
    }
    if (!own_sums_ || scale_ != 1) round_to_values(chunk(exchange.round(), 0), scale_);
  }

  void gather(Exchange& exchange) override {
    std::byte* const values = value_bytes();
    for (int step = 0; step + 1 < size_; ++step) {
      const IndexRange outgoing = flat_values_.bytes_of(chunk(exchange.round(), -step));
      const IndexRange incoming = flat_values_.bytes_of(chunk(exchange.round(), -1 - step));
      const std::array payload{Payload{values + outgoing.begin, outgoing.size()}};
      InPlace place(values + incoming.begin, incoming.size());
      exchange.step(payload, place, [&](Rank, std::span<const std::byte>) {});
    }
  }

  Traffic traffic(std::span<const IndexSets>) const override {
    Traffic traffic(size_);
    for (const Round round : Round::all(rounds_)) {
      for (const Rank worker : Ranks(size_)) {
        const Rank right = ring_neighbour(worker, 1, size_);
        for (int step = 0; step + 1 < size_; ++step) {
          const IndexRange sums = chunk_after(worker, round, -1 - step);
          const IndexRange values = chunk_after(worker, round, -step);
          traffic.message(worker, right, crossing().bytes_of(sums).size());
          traffic.message(worker, right, flat_values_.bytes_of(values).size());
        }
      }
    }
    return traffic;
  }

 private:
  static void expect_bytes(std::span<const std::byte> payload, Index bytes) {
    if (std::ssize(payload) != bytes) {
      throw ProtocolError("dense_ring: a chunk of unexpected size");
    }
  }

  /// Returns the chunk of a round's part of the flat array whose owner is `steps` after `worker` on
  /// the ring.
  IndexRange chunk_after(Rank worker, Round round, int steps) const {
    return chunk_of(ring_neighbour(worker, steps, size_), round);
  }
  IndexRange chunk(Round round, int steps) const { return chunk_after(rank_, round, steps); }

  /// Returns the layout in which partial sums are sent.
  const FlatArray& crossing() const { return narrow_ ? flat_values_ : flat_sums_; }

  /// @param elements  the chunk
  /// @param bytes     the left neighbour's partial sum of the chunk
  void add_chunk(IndexRange elements, const std::byte* bytes) {
    const std::byte* const base = narrow_ ? values_.data() : sums_.data();
    const std::byte* const first = base + crossing().bytes_of(elements).begin;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Matrix sums = flat_sums_.piece(i, elements, sums_.data());
      if (sums.width == 0) continue;
      ConstMatrix addends = crossing().piece(i, elements, base);
      addends.data = bytes + (addends.data - first);
      add(context_, addends, sums);
    }
  }

  bool narrow_;  // whether partial sums are sent in the wire type
  Inbox inbox_;
};

Cost cost(const Workload& workload) {
  const double share = (workload.size - 1.0) / workload.size;
  const auto phase = [&](const FlatArray& array) {
    const double headers = (workload.size - 1.0) * static_cast<double>(kHeaderBytes);
    const double bytes = share * static_cast<double>(array.bytes()) + headers;
    return PhaseCost{.steps = workload.size - 1.0,
                     .messages = workload.size - 1.0,
                     .bytes_sent = bytes,
                     .bytes_received = bytes};
  };
  const FlatArray values = flat_values(workload.spaces);
  Cost total{.reduce = phase(workload.options.wire ? values : flat_sums(workload.spaces)),
             .gather = phase(values)};
  // The array is written once, and all but one chunk are added to.
  total.reduce.work.added_bytes =
      (1 + share) * static_cast<double>(flat_sums(workload.spaces).bytes());
  total.reduce.work += work_of_writing(workload);
  return total;
}

double workspace_bytes(const Workload& workload) {
  const auto sums = static_cast<double>(flat_sums(workload.spaces).bytes());
  const auto values = static_cast<double>(flat_values(workload.spaces).bytes());
  return sums + (workload.size > 1 ? sums / workload.size : 0) +
         (are_own_sums(workload.spaces) ? 0 : values);
}

const SchemeRegistration registration({
    .name = "dense_ring",
    .summary = "ring all-reduce of the dense tensors: reduce-scatter, then all-gather",
    .design = {.communication = Communication::ring,
               .aggregation = Aggregation::incremental,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::dense},
    .create = make_scheme<DenseRing>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
