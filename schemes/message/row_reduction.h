// Reduction of rows from several workers. Servers use it for pushed rows, and all workers for the
// rows of all_gather.
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

/// One worker's message, by row space.
struct ReceivedRows {
  ReceivedRows(const Context& context, std::size_t spaces)
      : indices(buffers<Index>(context, spaces)) {}
  std::vector<ConstSection> sections;  // views of the message
  std::vector<Buffer<Index>> indices;  // decoded
  /// Returns the rows of a row space in the message, increasing.
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

/// The sums of one row space. Each round has a range of rows that follows the range of the previous
/// round.
class SumsOfRounds {
 public:
  SumsOfRounds(const Context& context, int rounds);
  /// Returns the sums of one round, to be written.
  RowSums& of(Round round) { return sums_[round.position()]; }
  /// Returns the rows of all rounds. Valid until the sums of a round change.
  /// @throws BudgetError
  SpaceResult joined(const RowSpace& space);

 private:
  Context context_;
  std::vector<RowSums> sums_;
  RowSums joined_;
};

/// Reads messages and adds up their rows. Keeps its memory between steps.
class RowSummation {
 public:
  explicit RowSummation(const Context& context)
      : context_(context), count_(context), workspace_(context) {
    count_.reserve_exactly(1);
  }

  /// Reads a message in which each index has a row. Synchronizes the stream.
  /// @param specs     [row space]
  /// @param message   untrusted bytes
  /// @param received  becomes a view of `message`
  /// @throws CorruptDataError, BudgetError
  void read(std::span<const SectionSpec> specs, std::span<const std::byte> message,
            ReceivedRows& received);

  /// Reads a message that other bytes may follow. Synchronizes the stream.
  /// @return the size of the message, and its bytes other than values
  MessageGather::Extent read_leading(std::span<const SectionSpec> specs,
                                     std::span<const std::byte> bytes, ReceivedRows& received);

  /// Reads several messages. Synchronizes the stream only if counts cannot be derived from sizes.
  /// Derived counts are passed to `known` for verification.
  /// @param specs     [row space]
  /// @param messages  untrusted bytes
  /// @param received  [message]: becomes a view of it
  /// @param known     verifies counts
  /// @throws CorruptDataError, BudgetError
  void read_all(std::span<const SectionSpec> specs,
                std::span<const std::span<const std::byte>> messages,
                std::span<ReceivedRows> received, KnownNumbers& known);

  /// Reads this worker's own message. Does not synchronize the stream.
  /// @param specs     [row space]
  /// @param counts    the message's counts
  /// @param message   the message
  /// @param received  becomes a view of `message`
  /// @throws BudgetError
  void take_own(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                std::span<const std::byte> message, ReceivedRows& received);

  /// Computes the union of received rows of one row space. Synchronizes the stream.
  /// @param received  the messages
  /// @param space     index of the row space
  /// @param range     contains all indices
  /// @param united    receives the union
  /// @param known     counts to verify in the same synchronization; null: none
  /// @return the size of the union
  /// @throws BudgetError, CorruptDataError from the verification
  Index unite(std::span<const ReceivedRows> received, std::size_t space, IndexRange range,
              Buffer<Index>& united, KnownNumbers* known = nullptr);
  /// Adds up the rows of the last unite(), in the order of `received`. Does not synchronize the
  /// stream.
  /// @param received  the messages
  /// @param space     index of the row space
  /// @param united    the union
  /// @param scale     factor applied once to each sum
  /// @param sums      `[united.size(), width]`, with the dtype and width of the received rows
  /// @throws BudgetError
  void add_up(std::span<const ReceivedRows> received, std::size_t space,
              std::span<const Index> united, double scale, Matrix sums);

  /// Computes the union of received rows and their sums, in the order of `received`. Synchronizes
  /// the stream.
  /// @param received  the messages
  /// @param space     index of the row space
  /// @param range     contains all indices
  /// @param dtype     dtype of the received rows
  /// @param width     width of the received rows
  /// @param scale     factor applied once to each sum
  /// @param sums      receives the union and the sums
  /// @param known     as for unite()
  /// @throws the errors of unite()
  void sum(std::span<const ReceivedRows> received, std::size_t space, IndexRange range, DType dtype,
           Index width, double scale, RowSums& sums, KnownNumbers* known = nullptr);

  /// Does the same without synchronizing the stream. sums.rows becomes the capacity instead of the
  /// number of rows.
  /// @param count  receives the number of rows
  void sum_counted(std::span<const ReceivedRows> received, std::size_t space, IndexRange range,
                   DType dtype, Index width, double scale, RowSums& sums, Count count);

 private:
  /// Collects the index sets. Returns the capacity that the union needs.
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
