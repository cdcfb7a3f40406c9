// dense_ring: ring all-reduce of the dense tensors, as reduce-scatter and all-gather: the
// yardstick.
//
// All row spaces form one flat array of elements, cut into `size` even chunks. Chunk c starts at
// worker c + 1 and is added to along the ring until it ends, complete, at its owner c: its order of
// summation is ranks c + 1, ..., n - 1, 0, ..., c, the same in every run. Sums travel as f32 and
// are rounded once, by the owner.
#include <array>

#include "kernels/rows.h"
#include "schemes/scheme.h"

namespace sparsesync {
namespace {

constexpr Index kSumBytes = sizeof(float);

Index elements_of(std::span<const RowSpace> spaces) {
  Index elements = 0;
  for (const RowSpace& space : spaces) elements += space.elements();
  return elements;
}

class DenseRing : public Scheme {
 public:
  explicit DenseRing(const SchemeEnvironment& environment)
      : context_(environment.context),
        spaces_(row_spaces(environment.bucket->tensors)),
        rank_(environment.rank.value),
        size_(environment.size),
        scale_(scale_of(environment)),
        rounds_(environment.bucket->rounds),
        sums_(context_),
        values_(context_),
        inbox_(context_, 1) {
    for (const RowSpace& space : spaces_) all_f32_ = all_f32_ && space.dtype == DType::f32;
    sums_.reserve_exactly(elements_of(spaces_));
    if (!all_f32_) values_.reserve_exactly(bytes_before(elements_of(spaces_)));
    for (const RowSpace& space : spaces_) {
      results_.push_back(
          {Gradient::Layout::dense, {}, {nullptr, space.dtype, space.rows, space.width}});
    }
  }

  Pattern pattern(Phase) const override { return around_the_ring(Rank{rank_}, size_); }

  void reduce(Exchange& exchange, BucketInput& input) override {
    float* const sums = sums_.data();
    if (exchange.round().index == 0) {
      fill_zero(context_, std::as_writable_bytes(
                              std::span(sums, static_cast<std::size_t>(elements_of(spaces_)))));
      float* first = sums;
      for (std::size_t i = 0; i < spaces_.size(); ++i) {
        const auto elements = static_cast<std::size_t>(spaces_[i].elements());
        input.add_to(i, {first, elements});
        first += elements;
      }
    }
    inbox_.set_limit(ceil_div<Index>(elements_of(spaces_), size_) * kSumBytes + kSumBytes);
    for (int step = 0; step + 1 < size_; ++step) {
      const IndexRange outgoing = chunk(exchange.round(), rank_ - 1 - step);
      const IndexRange incoming = chunk(exchange.round(), rank_ - 2 - step);
      const std::array payload{Payload{reinterpret_cast<const std::byte*>(sums + outgoing.begin),
                                       outgoing.size() * kSumBytes}};
      exchange.step(payload, inbox_, [&](Rank, std::span<const std::byte> bytes) {
        expect_bytes(bytes, incoming.size() * kSumBytes);
        add(context_, {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)},
            {sums + incoming.begin, static_cast<std::size_t>(incoming.size())});
      });
    }
    round_own_chunk(chunk(exchange.round(), rank_));
  }

  void gather(Exchange& exchange) override {
    std::byte* const values = value_bytes();
    for (int step = 0; step + 1 < size_; ++step) {
      const IndexRange outgoing = bytes_of(chunk(exchange.round(), rank_ - step));
      const IndexRange incoming = bytes_of(chunk(exchange.round(), rank_ - 1 - step));
      const std::array payload{Payload{values + outgoing.begin, outgoing.size()}};
      InPlace place(values + incoming.begin, incoming.size());
      exchange.step(payload, place, [&](Rank, std::span<const std::byte>) {});
    }
    if (!exchange.round().last()) return;
    Index elements = 0;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      results_[i].values.data = values + bytes_before(elements);
      elements += spaces_[i].elements();
    }
  }

  std::span<const SpaceResult> result() const override { return results_; }
  void adapt(const Statistics&) override {}
  std::vector<SpaceChoice> choices() const override {
    return std::vector<SpaceChoice>(spaces_.size());
  }
  std::optional<Imbalance> imbalance(std::span<const IndexSets>) const override {
    return Imbalance{};
  }

  Traffic traffic(std::span<const IndexSets>) const override {
    Traffic traffic(size_);
    for (int round = 0; round < rounds_; ++round) {
      for (int worker = 0; worker < size_; ++worker) {
        const int right = (worker + 1) % size_;
        for (int step = 0; step + 1 < size_; ++step) {
          const Round at{round, rounds_};
          traffic.message(worker, right, chunk(at, worker - 1 - step).size() * kSumBytes);
          traffic.message(worker, right, bytes_of(chunk(at, worker - step)).size());
        }
      }
    }
    return traffic;
  }

 private:
  /// Receives a message of a known size straight into its place.
  class InPlace : public ReceiveProvider {
   public:
    InPlace(std::byte* place, Index bytes) : place_(place), bytes_(bytes) {}
    std::byte* provide(std::size_t, const Header& header) override {
      if (header.bytes != static_cast<std::uint64_t>(bytes_)) {
        throw ProtocolError("dense_ring: a chunk of another size than was agreed");
      }
      return place_;
    }

   private:
    std::byte* place_;
    Index bytes_;
  };

  static void expect_bytes(std::span<const std::byte> payload, Index bytes) {
    if (static_cast<Index>(payload.size()) != bytes) {
      throw ProtocolError("dense_ring: a chunk of another size than was agreed");
    }
  }

  /// Chunk `number` (counted around the ring) of a round's part of the flat array.
  IndexRange chunk(Round round, int number) const {
    const IndexRange part = round.part_of(elements_of(spaces_));
    const IndexRange within = Round{around_ring(number, size_), size_}.part_of(part.size());
    return {part.begin + within.begin, part.begin + within.end};
  }

  /// Bytes that the first `elements` elements of the flat array take, in their own types.
  Index bytes_before(Index elements) const {
    Index bytes = 0;
    for (const RowSpace& space : spaces_) {
      const Index here = std::min(elements, space.elements());
      bytes += here * element_bytes(space.dtype);
      elements -= here;
    }
    return bytes;
  }
  IndexRange bytes_of(IndexRange chunk) const {
    return {bytes_before(chunk.begin), bytes_before(chunk.end)};
  }

  /// f32 sums are their own values.
  std::byte* value_bytes() const {
    return all_f32_ ? reinterpret_cast<std::byte*>(sums_.data()) : values_.data();
  }

  void round_own_chunk(IndexRange own) {
    if (all_f32_ && scale_ == 1.0F) return;
    Index first = 0;
    for (const RowSpace& space : spaces_) {
      const Index begin = std::max(own.begin, first);
      const Index end = std::min(own.end, first + space.elements());
      if (begin < end) {
        round_sums(context_, {sums_.data() + begin, static_cast<std::size_t>(end - begin)}, scale_,
                   space.dtype, value_bytes() + bytes_before(begin));
      }
      first += space.elements();
    }
  }

  Context context_;
  std::vector<RowSpace> spaces_;
  int rank_;
  int size_;
  float scale_;
  int rounds_;
  bool all_f32_ = true;
  Buffer<float> sums_;
  Buffer<std::byte> values_;
  Inbox inbox_;
  std::vector<SpaceResult> results_;
};

Cost cost(std::span<const RowSpace> spaces, int size, const Statistics&) {
  const double share = (size - 1.0) / size;
  double sum_bytes = 0;
  double value_bytes = 0;
  for (const RowSpace& space : spaces) {
    sum_bytes += static_cast<double>(space.elements() * kSumBytes);
    value_bytes += static_cast<double>(space.dense_bytes());
  }
  const auto phase = [&](double bytes) {
    const double headers = (size - 1.0) * static_cast<double>(kHeaderBytes);
    return PhaseCost{size - 1.0, size - 1.0, share * bytes + headers, share * bytes + headers};
  };
  return {phase(sum_bytes), phase(value_bytes)};
}

double workspace_bytes(std::span<const RowSpace> spaces, int size, const Statistics&) {
  double bytes = 0;
  for (const RowSpace& space : spaces) {
    const auto sums = static_cast<double>(space.elements() * kSumBytes);
    bytes += sums + (size > 1 ? sums / size : 0);
    if (space.dtype != DType::f32) bytes += static_cast<double>(space.dense_bytes());
  }
  return bytes;
}

const SchemeRegistration registration({
    "dense_ring",
    "ring all-reduce of the dense tensors: reduce-scatter, then all-gather",
    {Communication::ring, Aggregation::incremental, Partition::parallelism, Balance::balanced,
     "dense"},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return std::make_unique<DenseRing>(environment);
    },
    cost,
    workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
