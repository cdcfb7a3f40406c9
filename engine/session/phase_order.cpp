#include "engine/session/phase_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace sparsesync {

void PhaseOrder::add(const std::string& bucket_name, bool announces) {
  const BucketId id{buckets_.size()};
  buckets_.push_back({bucket_name, announces});
  buckets_.back().next = buckets_.back().first();
  for (std::vector<OrderEntry>* order : {&order_, &next_order_}) {
    if (announces) order->push_back({id, Phase::announce});
    order->push_back({id, Phase::reduce});
    order->push_back({id, Phase::gather});
  }
}

void PhaseOrder::remove(BucketId bucket) {
  buckets_[bucket.value].removed = true;
  for (std::vector<OrderEntry>* order : {&order_, &next_order_}) {
    std::erase_if(*order, [&](const OrderEntry& entry) { return entry.bucket == bucket; });
  }
}

void PhaseOrder::check(OrderEntry entry) const {
  SPARSESYNC_EXPECT(entry.bucket.value, <, buckets_.size());
  const Bucket& bucket = buckets_[entry.bucket.value];
  if (bucket.removed) {
    throw InputError(fmt::format("cannot run the {}: the bucket was released", describe(entry)));
  }
  if (entry.phase == Phase::announce && !bucket.announces) {
    throw InputError(
        fmt::format("bucket '{}' does not announce: register it with announce set", bucket.name));
  }
  if (as_submitted_ && entry.phase != bucket.next) {
    throw InputError(fmt::format("cannot run the {}: submit its {} first", describe(entry),
                                 name_of(bucket.next)));
  }
}

void PhaseOrder::note_submission(OrderEntry entry) {
  if (!as_submitted_) return;
  Bucket& bucket = buckets_[entry.bucket.value];
  bucket.next = entry.phase == Phase::gather
                    ? bucket.first()
                    : static_cast<Phase>(static_cast<std::size_t>(entry.phase) + 1);
  submissions_.push(entry);
}

void PhaseOrder::check(const std::vector<OrderEntry>& order, std::int64_t from_step) const {
  if (as_submitted_) {
    throw InputError("the session runs phases as they are submitted: it has no other order");
  }
  if (from_step < step_) {
    throw InputError(
        fmt::format("an order cannot start at step {}: use the next step, {}, or a later one",
                    from_step, step_));
  }
  std::vector<std::size_t> next;  // [bucket] the phase that the order must list next
  for (const Bucket& bucket : buckets_) {
    next.push_back(bucket.removed ? kPhases : bucket.announces ? 0 : 1);
  }
  for (const OrderEntry& entry : order) {
    if (entry.bucket.value >= buckets_.size()) {
      throw InputError(fmt::format("the order has the {}, but only {} buckets are registered",
                                   describe(entry), buckets_.size()));
    }
    check(entry);
    const auto phase = static_cast<std::size_t>(entry.phase);
    std::size_t& next_phase = next[entry.bucket.value];
    if (phase < next_phase) {
      throw InputError(fmt::format("the order has the {} twice", describe(entry)));
    }
    if (phase > next_phase) {
      throw InputError(fmt::format("the order has the {} before its {}", describe(entry),
                                   name_of(static_cast<Phase>(next_phase))));
    }
    ++next_phase;
  }
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (next[i] < kPhases) {
      throw InputError(fmt::format("the order lacks the {}: list all phases of all buckets",
                                   describe({{i}, static_cast<Phase>(next[i])})));
    }
  }
}

void PhaseOrder::replace(std::vector<OrderEntry> order, std::int64_t from_step) {
  next_order_ = std::move(order);
  next_order_from_ = from_step;
  begin_step();
}

OrderEntry PhaseOrder::awaited() const {
  if (!empty()) return next();
  const auto waits = [](const Bucket& bucket) { return bucket.next != bucket.first(); };
  const auto found = std::find_if(buckets_.begin(), buckets_.end(), waits);
  return {{static_cast<std::size_t>(found - buckets_.begin())}, found->next};
}

void PhaseOrder::advance() {
  if (as_submitted_) {
    const OrderEntry ran = next();
    submissions_.pop();
    if (ran.phase == buckets_[ran.bucket.value].first()) ++begun_;
    if (ran.phase != Phase::gather) return;
    --begun_;
    ++step_;
    return;
  }
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
  const std::string name = number < buckets_.size() ? "'" + buckets_[number].name + "'"
                                                    : fmt::format("number {}", number);
  return fmt::format("{} of bucket {}", name_of(entry.phase), name);
}

}  // namespace sparsesync
