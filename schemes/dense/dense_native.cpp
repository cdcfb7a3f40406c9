// dense_native: the network's native all-reduce of the dense tensors, as most programs use it
// today. Values are sent in the type of sums, and each worker rounds the sums once. The reduction
// order depends on the network, so only correctness is guaranteed, not bits.

#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/registry.h"
#include "schemes/transport.h"

namespace sparsesync {
namespace {

class DenseNative : public Scheme {
 public:
  explicit DenseNative(const SchemeEnvironment& environment)
      : Scheme(environment), none_(context_, 1) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const RowSpace& space = spaces_[i];
      sums_.emplace_back(context_).reserve_exactly(space.elements() *
                                                   element_bytes(sum_dtype(space.dtype)));
      values_.emplace_back(context_).reserve_exactly(space.is_own_sum() ? 0 : space.dense_bytes());
      results_[i] = {Gradient::Layout::dense, {}, as_const(values_of(i))};
    }
  }

  /// Returns a barrier. No worker enters the all-reduce before all are ready, so a rejection never
  /// has to reach workers inside of it.
  Pattern pattern(Phase phase) const override {
    return phase == Phase::reduce ? spreading_word(rank_, size_) : Pattern{};
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    if (round.index == 0) {
      for (std::size_t i = 0; i < spaces_.size(); ++i) input.start_sums(i, sums_of(i));
    }
    const Payload nothing;
    for (std::size_t step = 0; step < pattern_.size(); ++step) {
      exchange.step({&nothing, 1}, none_, [](Rank, std::span<const std::byte>) {});
    }
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      const Matrix sums = sums_of(i);
      const IndexRange part = round.part_of(spaces_[i].elements());
      const Index element = element_bytes(sums.dtype);
      exchange.all_reduce(sums.dtype, {sums.data + part.begin * element,
                                       static_cast<std::size_t>(part.size() * element)});
    }
  }

  void gather(Exchange& exchange) override {
    if (!exchange.round().last()) return;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      if (spaces_[i].is_own_sum() && scale_ == 1) continue;
      round_sums(context_, as_const(sums_of(i)), scale_, values_of(i));
    }
  }

  Traffic traffic(std::span<const IndexSets>) const override {
    Traffic traffic(size_);
    for (const Round round : Round::all(rounds_)) {
      for (const Rank worker : Ranks(size_)) {
        for (const Step& step : spreading_word(worker, size_)) {
          traffic.message(worker, step.to.front(), 0);
        }
      }
      for (const RowSpace& space : spaces_) {
        const Index elements = round.part_of(space.elements()).size();
        traffic.all_reduce(elements * element_bytes(sum_dtype(space.dtype)));
      }
    }
    return traffic;
  }

 private:
  Matrix sums_of(std::size_t space) {
    const RowSpace& shape = spaces_[space];
    return {sums_[space].data(), sum_dtype(shape.dtype), shape.rows, shape.width};
  }
  /// Uses the array of sums if sums have the values' dtype.
  Matrix values_of(std::size_t space) {
    const RowSpace& shape = spaces_[space];
    return {shape.is_own_sum() ? sums_[space].data() : values_[space].data(), shape.dtype,
            shape.rows, shape.width};
  }

  Pattern pattern_ = spreading_word(rank_, size_);
  Inbox none_;
  std::vector<Buffer<std::byte>> sums_;
  std::vector<Buffer<std::byte>> values_;
};

Cost cost(const Workload& workload) {
  const auto steps = static_cast<double>(spreading_word(Rank{0}, workload.size).size());
  double bytes = steps * static_cast<double>(kHeaderBytes);
  for (const RowSpace& space : workload.spaces) {
    bytes += static_cast<double>(
        all_reduce_bytes(space.elements() * element_bytes(sum_dtype(space.dtype)), workload.size));
  }
  // The latencies of a ring, which implementations use for long vectors: 2 (n - 1) messages in
  // sequence.
  return {.reduce = {.steps = steps + 2 * (workload.size - 1.0),
                     .messages = steps,
                     .bytes_sent = bytes,
                     .bytes_received = bytes},
          .gather = {}};
}

double workspace_bytes(const Workload& workload) {
  double bytes = 0;
  for (const RowSpace& space : workload.spaces) {
    const DType sum = sum_dtype(space.dtype);
    bytes += static_cast<double>(space.elements()) * static_cast<double>(element_bytes(sum));
    if (sum != space.dtype) bytes += static_cast<double>(space.dense_bytes());
  }
  return bytes;
}

const SchemeRegistration registration({
    .name = "dense_native",
    .summary = "the network's native all-reduce of the dense tensors, if it has one",
    .design = {.communication = Communication::ring,
               .aggregation = Aggregation::incremental,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::dense},
    .create = make_scheme<DenseNative>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
    .all_reduces = true,
});

}  // namespace
}  // namespace sparsesync
