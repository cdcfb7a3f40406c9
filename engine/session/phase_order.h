// The order in which all workers run phases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/session/queue.h"
#include "sparsesync/bucket.h"

namespace sparsesync {

/// Iterates over the order, step after step. A step runs every entry once, unless phases run as
/// submitted: then it runs the phases of one bucket.
class PhaseOrder {
 public:
  /// @param as_submitted  SessionOptions::as_submitted
  explicit PhaseOrder(bool as_submitted) : as_submitted_(as_submitted) {}

  /// Appends the phases of a new bucket.
  void add(const std::string& bucket_name, bool announces);
  /// Removes the phases of a bucket. Call it between steps.
  void remove(BucketId bucket);

  /// Checks a phase before it is submitted.
  /// @pre the bucket was added
  /// @throws InputError if the bucket was released, if it does not announce and the phase is its
  ///         announce, or if phases run as submitted and the bucket's next phase is another one
  void check(OrderEntry entry) const;
  /// Notes that a phase was submitted, after it was checked.
  void note_submission(OrderEntry entry);
  /// Checks an order before it replaces this one.
  /// @param from_step  first step of the new order, on the scale of step()
  /// @throws InputError if phases run as submitted; or unless `order` has every phase of every
  ///         bucket once, each announce before its reduce and each reduce before its gather, and
  ///         `from_step` has not begun
  void check(const std::vector<OrderEntry>& order, std::int64_t from_step) const;
  /// Replaces the order from a step on. Call it between steps, with an order that was checked.
  /// @param from_step  first step of the new order, on the scale of step()
  void replace(std::vector<OrderEntry> order, std::int64_t from_step);

  /// Whether no step has begun and not ended.
  bool between_steps() const { return as_submitted_ ? begun_ == 0 : position_ == 0; }
  /// Returns the number of complete steps.
  std::int64_t step() const { return step_; }
  /// Whether it is unknown which entry runs next.
  bool empty() const { return as_submitted_ ? submissions_.empty() : order_.empty(); }
  /// Returns the entry that runs next.
  /// @pre not empty()
  OrderEntry next() const { return as_submitted_ ? submissions_[0] : order_[position_]; }
  /// Returns the entry whose submission the current step waits for.
  /// @pre a step has begun, or not empty()
  OrderEntry awaited() const;
  /// Returns how to avoid that a step waits for a submission, for messages.
  const char* advice() const {
    return as_submitted_ ? "submit the gather of each reduce"
                         : "submit every entry of the order once a step, empty if unused";
  }
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
    Phase next = Phase::reduce;  // next phase to submit, if phases run as submitted

    Phase first() const { return announces ? Phase::announce : Phase::reduce; }
  };
  const bool as_submitted_;
  std::vector<Bucket> buckets_;
  Queue<OrderEntry> submissions_;  // that have not run, if phases run as submitted
  std::size_t begun_ = 0;          // buckets with a phase that ran before their gather did
  std::vector<OrderEntry> order_;
  std::vector<OrderEntry> next_order_;
  std::int64_t next_order_from_ = 0;
  std::size_t position_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace sparsesync
