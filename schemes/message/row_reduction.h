// Rows that came from several workers, and their sums: what a server makes of its pushes, and every
// worker of what all_gather brings.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/rows/aggregate.h"
#include "schemes/bucket.h"
#include "schemes/message/header_check.h"
#include "schemes/message/message.h"
#include "schemes/message/message_gather.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// What one worker's message says, row space by row space.
struct ReceivedRows {
  ReceivedRows(const Context& context, std::size_t spaces)
      : indices(buffers<Index>(context, spaces)) {}
  std::vector<ConstSection> sections;  // views of the message
  std::vector<Buffer<Index>> indices;  // decoded
  /// The rows that it names of a row space, increasing.
  std::span<const Index> named(std::size_t space) const {
    return indices[space].first(sections[space].counts.rows);
  }
};

/// Sums of one row space: a row of values for each index.
struct RowSums {
  explicit RowSums(const Context& context) : indices(context), values(context) {}
  Buffer<Index> indices;  // increasing
  Buffer<std::byte> values;
  Index rows = 0;
  std::span<const Index> named() const { return indices.first(rows); }
};

/// The sums of one row space, round by round, each of a range of rows that follows the last one's.
class SumsOfRounds {
 public:
  SumsOfRounds(const Context& context, int rounds);
  /// Those of one round: to be summed into.
  RowSums& of(Round round) { return sums_[round.position()]; }
  /// All rounds' rows; valid until one of them is summed anew. Does not synchronize the stream.
  /// @throws BudgetError
  SpaceResult joined(const RowSpace& space);

 private:
  Context context_;
  std::vector<RowSums> sums_;
  RowSums joined_;
};

/// Reads messages and sums them up; keeps its memory from one step to the next.
class RowSummation {
 public:
  explicit RowSummation(const Context& context)
      : context_(context), count_(context), workspace_(context) {
    count_.reserve_exactly(1);
  }

  /// Reads a message in which each index has a row. It is not trusted. Synchronizes the stream.
  /// @param received  a view of `message` afterwards
  /// @throws CorruptDataError, BudgetError
  void read(std::span<const SectionSpec> specs, std::span<const std::byte> message,
            ReceivedRows& received);

  /// The same where other bytes may follow the message.
  /// @return the message's own, and how many of them are no values
  MessageGather::Extent read_leading(std::span<const SectionSpec> specs,
                                     std::span<const std::byte> bytes, ReceivedRows& received);

  /// read() of several messages. Synchronizes the stream only where numbers do not follow from
  /// bytes: those that do are `known`'s to compare.
  /// @param received  one for each message; a view of it afterwards
  /// @throws CorruptDataError, BudgetError
  void read_all(std::span<const SectionSpec> specs,
                std::span<const std::span<const std::byte>> messages,
                std::span<ReceivedRows> received, KnownNumbers& known);

  /// read() of a message that is this worker's own. Does not synchronize the stream.
  /// @param counts  its numbers
  /// @throws BudgetError
  void take_own(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                std::span<const std::byte> message, ReceivedRows& received);

  /// The union of what was received in one row space. Synchronizes the stream.
  /// @param range  all indices lie in it
  /// @param known  compared in the same synchronization; null: none
  /// @return how many of `united` there are
  /// @throws BudgetError, CorruptDataError of what is compared
  Index unite(std::span<const ReceivedRows> received, std::size_t space, IndexRange range,
              Buffer<Index>& united, KnownNumbers* known = nullptr);
  /// The sums of rows that unite() was last called with, made in the order of `received`. Does not
  /// synchronize the stream.
  /// @param scale  what the sums are multiplied by, once
  /// @param sums   united.size() rows of the dtype and width of what was received
  /// @throws BudgetError
  void add_up(std::span<const ReceivedRows> received, std::size_t space,
              std::span<const Index> united, double scale, Matrix sums);

  /// The union of what was received in one row space, and the sums, made in the order of
  /// `received`. Synchronizes the stream.
  /// @param range  all indices lie in it
  /// @param scale  what the sums are multiplied by, once
  /// @param known  as unite() takes it
  /// @throws as unite()
  void sum(std::span<const ReceivedRows> received, std::size_t space, IndexRange range, DType dtype,
           Index width, double scale, RowSums& sums, KnownNumbers* known = nullptr);

  /// The same where the host need not know yet how many rows there are: sums.rows is room for them.
  /// Does not synchronize the stream.
  /// @param count  receives how many there are
  void sum_counted(std::span<const ReceivedRows> received, std::size_t space, IndexRange range,
                   DType dtype, Index width, double scale, RowSums& sums, Count count);

 private:
  /// @return room for the union
  Index take_sets(std::span<const ReceivedRows> received, std::size_t space, IndexRange range);
  void take_parts(std::span<const ReceivedRows> received, std::size_t space, DType dtype,
                  Index width);
  void take_rows(std::span<const SectionSpec> specs, ReceivedRows& received);

  Context context_;
  std::vector<SectionCounts> counts_;
  std::vector<DecodeJob> jobs_;
  std::vector<std::span<const Index>> sets_;
  std::vector<RowSparse> parts_;
  Buffer<Index> count_;
  AggregateWorkspace workspace_;
};

}  // namespace sparsesync
