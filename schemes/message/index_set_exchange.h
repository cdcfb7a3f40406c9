// The index sets ahead: every worker tells all others which rows it touched, and no values.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "schemes/exchange.h"
#include "schemes/message/header_check.h"
#include "schemes/message/local_rows.h"
#include "schemes/message/message.h"
#include "schemes/message/message_gather.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// One round's exchange of index sets, of all row spaces at once; keeps its memory from one step to
/// the next. One step of the pattern all_to_all(): the bytes of a ring, in one latency.
class IndexSetExchange {
 public:
  IndexSetExchange(const SchemeEnvironment& environment, std::span<const RowSpace> spaces);

  /// Synchronizes the stream.
  /// @param input  its rows are what is told; their values are not looked at
  /// @throws CorruptDataError, BudgetError, what Exchange::step() throws
  void run(Exchange& exchange, BucketInput& input);

  /// After run(): the rows of one row space that each worker touched in the round's range, this
  /// one among them. A view, valid until the next run().
  const IndexSets& sets(std::size_t space) const { return sets_[space]; }

 private:
  void read(Rank worker, std::span<const std::byte> message);
  void read_all();
  void add_jobs(Rank worker);

  Context context_;
  std::span<const RowSpace> spaces_;  // the scheme's
  OwnRows own_;
  MessageGather gather_;
  std::vector<SectionSpec> specs_;
  std::vector<SectionCounts> counts_;
  std::vector<ConstSection> sections_;
  std::vector<std::span<const std::byte>> messages_;  // [worker]
  KnownNumbers numbers_;
  std::vector<DecodeJob> jobs_;
  std::vector<std::vector<Buffer<Index>>> indices_;  // [row space][worker]
  std::vector<IndexSets> sets_;                      // [row space]
};

/// What a round's message of index sets is made of, one for each row space.
std::vector<SectionSpec> set_sections(std::span<const RowSpace> spaces, Round round);

}  // namespace sparsesync
