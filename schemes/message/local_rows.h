// Writes this worker's rows as a message, with or without values. Used by schemes that send the
// same rows to all workers.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "schemes/bucket.h"
#include "schemes/message/message.h"

namespace sparsesync {

class BucketInput;  // in schemes/bucket_input.h

/// Writes a round's rows as a message. Keeps its memory between rounds.
class OwnRows {
 public:
  OwnRows(const Context& context, std::span<const RowSpace> spaces);

  /// Selects a round's rows. Synchronizes the stream.
  /// @param specs  [row space]: row_bytes are those of the dtype passed to write(). If most_rows is
  ///     0, only indices are sent
  /// @param input  the gradients
  /// @return the size of the message in bytes
  /// @throws BudgetError, InputError as BucketInput::coalesced() does
  std::int64_t find(std::span<const SectionSpec> specs, BucketInput& input);

  /// Writes the message of the selected rows.
  /// @param specs    the same as for find()
  /// @param input    the same as for find()
  /// @param dtypes   [row space]: dtype of the sent values: the row space's, or that of its sums
  /// @param message  the bytes that find() returned
  void write(std::span<const SectionSpec> specs, BucketInput& input, std::span<const DType> dtypes,
             std::span<std::byte> message);

  /// Returns the counts of the message, by row space. Valid after find().
  std::span<const SectionCounts> counts() const { return counts_; }

 private:
  void locate_rows(std::span<const SectionSpec> specs, BucketInput& input);

  Context context_;
  std::span<const RowSpace> spaces_;
  Buffer<Index> located_;
  std::vector<Index> bounds_;
  std::vector<SectionCounts> counts_;
  std::vector<Section> sections_;
};

}  // namespace sparsesync
