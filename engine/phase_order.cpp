#include "engine/phase_order.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "kernels/error.h"

namespace sparsesync {

void PhaseOrder::add(const std::string& bucket_name) {
  const BucketId id{names_.size()};
  names_.push_back(bucket_name);
  for (std::vector<OrderEntry>* order : {&order_, &next_order_}) {
    order->push_back({id, Phase::reduce});
    order->push_back({id, Phase::gather});
  }
}

void PhaseOrder::check(const std::vector<OrderEntry>& order, std::int64_t from_step) const {
  if (from_step < step_) {
    throw InputError(fmt::format(
        "an order from step {} on: step {} is next, give that or a later one", from_step, step_));
  }
  std::vector<std::array<bool, 2>> seen(names_.size());
  for (const OrderEntry& entry : order) {
    if (entry.bucket.value >= names_.size()) {
      throw InputError(fmt::format("an order with the {}: there are {} buckets", describe(entry),
                                   names_.size()));
    }
    std::array<bool, 2>& of_bucket = seen[entry.bucket.value];
    if (entry.phase == Phase::gather && !of_bucket[0]) {
      throw InputError(fmt::format("an order with the {} before its reduce", describe(entry)));
    }
    if (std::exchange(of_bucket[static_cast<std::size_t>(entry.phase)], true)) {
      throw InputError(fmt::format("an order with the {} twice", describe(entry)));
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i][0] || !seen[i][1]) {
      throw InputError(fmt::format("an order without both phases of bucket '{}'", names_[i]));
    }
  }
}

void PhaseOrder::replace(std::vector<OrderEntry> order, std::int64_t from_step) {
  next_order_ = std::move(order);
  next_order_from_ = from_step;
  begin_step();
}

void PhaseOrder::advance() {
  if (++position_ < order_.size()) return;
  position_ = 0;
  ++step_;
  begin_step();
}

void PhaseOrder::begin_step() {
  if (step_ >= next_order_from_) order_ = next_order_;
}

std::string PhaseOrder::describe(OrderEntry entry) const {
  const std::size_t number = entry.bucket.value;
  const std::string name =
      number < names_.size() ? "'" + names_[number] + "'" : fmt::format("number {}", number);
  return fmt::format("{} of bucket {}", name_of(entry.phase), name);
}

}  // namespace sparsesync
