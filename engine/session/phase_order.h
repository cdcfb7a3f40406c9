// The order in which all workers run the phases of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparsesync/bucket.h"

namespace sparsesync {

/// Iterates over the order, step after step. A step runs every entry once.
class PhaseOrder {
 public:
  /// Appends the phases of a new bucket.
  void add(const std::string& bucket_name, bool announces);
  /// Removes the phases of a bucket. Call it between steps.
  void remove(BucketId bucket);

  /// Checks a phase before it is submitted.
  /// @pre the bucket was added
  /// @throws InputError if the bucket was released, or if it does not announce and the phase is its
  ///         announce
  void check(OrderEntry entry) const;
  /// Checks an order before it replaces this one.
  /// @param from_step  first step of the new order, on the scale of step()
  /// @throws InputError unless `order` has every phase of every bucket once, each announce before
  ///         its reduce and each reduce before its gather, and `from_step` has not begun
  void check(const std::vector<OrderEntry>& order, std::int64_t from_step) const;
  /// Replaces the order from a step on. Call it between steps, with an order that was checked.
  /// @param from_step  first step of the new order, on the scale of step()
  void replace(std::vector<OrderEntry> order, std::int64_t from_step);

  /// Whether no entry of the current step has run yet.
  bool between_steps() const { return position_ == 0; }
  /// Returns the number of complete steps.
  std::int64_t step() const { return step_; }
  bool empty() const { return order_.empty(); }
  /// Returns the entry that runs next.
  /// @pre not empty()
  OrderEntry next() const { return order_[position_]; }
  /// Advances to the next entry. After the last entry, the next step begins.
  void advance();

  /// Describes an entry for messages: "reduce of bucket 'x'".
  std::string describe(OrderEntry entry) const;

 private:
  void begin_step();

  /// A bucket's properties that affect the order.
  struct Bucket {
    std::string name;
    bool announces = false;
    bool removed = false;
  };
  std::vector<Bucket> buckets_;
  std::vector<OrderEntry> order_;
  std::vector<OrderEntry> next_order_;
  std::int64_t next_order_from_ = 0;
  std::size_t position_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace sparsesync
