// This worker's own rows as a message, with their values or without: where the schemes begin in
// which nobody has a part of his own.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "schemes/bucket.h"
#include "schemes/message/message.h"

namespace sparsesync {

class BucketInput;  // schemes/bucket_input.h

/// Writes a round's rows as a message; keeps its memory from one round to the next.
class OwnRows {
 public:
  OwnRows(const Context& context, std::span<const RowSpace> spaces);

  /// Finds a round's rows. Synchronizes the stream.
  /// @param specs  one for each row space; row_bytes of a dtype as write() is given; where
  ///               there can be no rows of values, indices cross alone
  /// @return bytes of the message
  /// @throws BudgetError, InputError as BucketInput::coalesced()
  std::int64_t find(std::span<const SectionSpec> specs, BucketInput& input);

  /// Writes the message of the rows that were found. Does not synchronize the stream.
  /// @param dtypes  what each row space's values cross as: its dtype or its sums'
  void write(std::span<const SectionSpec> specs, BucketInput& input, std::span<const DType> dtypes,
             std::span<std::byte> message);

  /// After find(): what a message has of each row space.
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
