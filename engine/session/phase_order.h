// The order in which all workers post the phases of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparsesync/bucket.h"

namespace sparsesync {

/// Walks the order, step after step. A step posts every entry once.
class PhaseOrder {
 public:
  /// Adds the phases of a new bucket at the end.
  void add(const std::string& bucket_name, bool announces);
  /// Takes the phases of a bucket out. Between steps.
  void remove(BucketId bucket);

  /// Looks at a phase that is to be submitted.
  /// @pre the bucket was added
  /// @throws InputError if the bucket was released, or it is the announce of one that does not
  ///         announce
  void check(OrderEntry entry) const;
  /// Looks at an order that is to replace this one.
  /// @param from_step  counted as step() is
  /// @throws InputError unless `order` has every phase of every bucket once, each announce before
  ///         its reduce and each reduce before its gather, and `from_step` has not begun
  void check(const std::vector<OrderEntry>& order, std::int64_t from_step) const;
  /// Takes an order that was checked, from a step on. Between steps.
  /// @param from_step  counted as step() is
  void replace(std::vector<OrderEntry> order, std::int64_t from_step);

  /// Whether no entry of the present step was posted yet.
  bool between_steps() const { return position_ == 0; }
  /// Steps that are complete.
  std::int64_t step() const { return step_; }
  bool empty() const { return order_.empty(); }
  /// The entry to be posted next.
  /// @pre not empty()
  OrderEntry next() const { return order_[position_]; }
  /// Goes on to the entry behind it: of the next step, where it was the last.
  void advance();

  /// "reduce of bucket 'x'".
  std::string describe(OrderEntry entry) const;

 private:
  void begin_step();

  /// What the order knows of a bucket.
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
