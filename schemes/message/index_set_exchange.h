// All-gather of index sets: every worker sends the rows that it touched, without values, to all
// others.
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

/// Exchanges one round's index sets of all row spaces. Keeps its memory between steps. Uses one
/// step of the pattern all_to_all(), which sends as many bytes as a ring, with a single latency.
class IndexSetExchange {
 public:
  IndexSetExchange(const SchemeEnvironment& environment, std::span<const RowSpace> spaces);

  /// Exchanges the index sets. Synchronizes the stream.
  /// @param exchange  the network
  /// @param input     its rows are sent; its values are not read
  /// @throws CorruptDataError, BudgetError, and the errors of Exchange::step()
  void run(Exchange& exchange, BucketInput& input);

  /// Returns the rows of a row space that each worker, including this one, touched in the round's
  /// range. A view, valid from run() until the next run().
  const IndexSets& sets(std::size_t space) const { return sets_[space]; }

 private:
  void read(Rank worker, std::span<const std::byte> message);
  void read_all();
  void add_jobs(Rank worker);

  Context context_;
  std::span<const RowSpace> spaces_;  // row spaces of the scheme
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

/// Returns the sections of a round's message of index sets, by row space.
std::vector<SectionSpec> set_sections(std::span<const RowSpace> spaces, Round round);

}  // namespace sparsesync
