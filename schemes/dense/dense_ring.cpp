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
#include "schemes/dense/flat_array.h"
#include "schemes/exchange.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

class DenseRing : public Scheme {
 public:
  explicit DenseRing(const SchemeEnvironment& environment)
      : Scheme(environment),
        flat_sums_(flat_sums(spaces_)),
        flat_values_(flat_values(spaces_)),
        own_sums_(are_own_sums(spaces_)),
        narrow_(environment.bucket->options.wire && !own_sums_),
        sums_(context_),
        values_(context_),
        inbox_(context_, 1) {
    // Clears the gaps between row spaces, because they are sent, too.
    fill_zero(context_, sums_.reserve_exactly(flat_sums_.bytes()));
    if (!own_sums_) fill_zero(context_, values_.reserve_exactly(flat_values_.bytes()));
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const RowSpace& space = spaces_[i];
      const std::byte* const values = flat_values_.piece(i, all(), value_bytes()).data;
      results_[i] = {Gradient::Layout::dense, {}, {values, space.dtype, space.rows, space.width}};
    }
  }

  Pattern pattern(Phase) const override { return around_the_ring(rank_, size_); }

  void reduce(Exchange& exchange, BucketInput& input) override {
    if (exchange.round().index == 0) {
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        Matrix sums = flat_sums_.piece(i, all(), sums_.data());
        sums.rows = spaces_[i].rows;
        sums.width = spaces_[i].width;
        input.start_sums(i, sums);
      }
    }
    for (int step = 0; step + 1 < size_; ++step) {
      const IndexRange outgoing = chunk(exchange.round(), -1 - step);
      const IndexRange incoming = chunk(exchange.round(), -2 - step);
      const IndexRange outgoing_bytes = crossing().bytes_of(outgoing);
      const IndexRange incoming_bytes = crossing().bytes_of(incoming);
      inbox_.set_limit(incoming_bytes.size());
      if (narrow_) round_chunk(outgoing, 1);
      const std::byte* const sums = narrow_ ? values_.data() : sums_.data();
      const std::array payload{Payload{sums + outgoing_bytes.begin, outgoing_bytes.size()}};
      exchange.step(payload, inbox_, [&](Rank, std::span<const std::byte> bytes) {
        expect_bytes(bytes, incoming_bytes.size());
        add_chunk(incoming, bytes.data());
      });
    }
    if (!own_sums_ || scale_ != 1) round_chunk(chunk(exchange.round(), 0), scale_);
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

  bool list_owned(std::vector<OwnedPart>& parts) const override {
    for (const Round round : Round::all(rounds_)) {
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        parts.push_back({i, as_const(flat_values_.piece(i, chunk(round, 0), value_bytes()))});
      }
    }
    return true;
  }

  std::optional<Imbalance> imbalance(std::span<const IndexSets>) const override {
    return Imbalance{};
  }

  Traffic traffic(std::span<const IndexSets>) const override {
    Traffic traffic(size_);
    for (const Round round : Round::all(rounds_)) {
      for (const Rank worker : Ranks(size_)) {
        const Rank right = ring_neighbour(worker, 1, size_);
        for (int step = 0; step + 1 < size_; ++step) {
          const IndexRange sums = chunk_of(worker, round, -1 - step);
          const IndexRange values = chunk_of(worker, round, -step);
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

  IndexRange all() const { return {0, flat_sums_.elements()}; }

  /// Returns the chunk of a round's part of the flat array whose owner is `steps` after `worker` on
  /// the ring.
  IndexRange chunk_of(Rank worker, Round round, int steps) const {
    const IndexRange part = round.part_of(flat_sums_.elements());
    const Round within{ring_neighbour(worker, steps, size_).value, size_};
    return within.part_of(part);
  }
  IndexRange chunk(Round round, int steps) const { return chunk_of(rank_, round, steps); }

  /// Uses the array of sums if sums have the values' dtype.
  std::byte* value_bytes() const { return own_sums_ ? sums_.data() : values_.data(); }

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

  void round_chunk(IndexRange elements, double scale) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      round_sums(context_, as_const(flat_sums_.piece(i, elements, sums_.data())), scale,
                 flat_values_.piece(i, elements, value_bytes()));
    }
  }

  FlatArray flat_sums_;
  FlatArray flat_values_;
  bool own_sums_;
  bool narrow_;  // whether partial sums are sent in the wire type
  Buffer<std::byte> sums_;
  Buffer<std::byte> values_;
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
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const double touched = workload.statistics[i].touched_max;
    total.reduce.work +=
        {.encoded_rows = touched,
         .encoded_bytes = touched * static_cast<double>(workload.spaces[i].row_bytes())};
  }
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
