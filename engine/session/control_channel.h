// Agreement: all workers tell all others what they think, on a control channel, and find what
// differs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// The control channel of one worker: every call is made by all workers, in the same order.
class ControlChannel {
 public:
  /// @param deadline  of each call
  ControlChannel(Transport& transport, const Context& context, Clock::duration deadline)
      : transport_(transport), context_(context), deadline_(deadline) {}

  /// Tells all others, and hears them. Synchronizes the stream.
  /// @param own  any bytes, 64 MiB at most
  /// @return what each worker gave, by rank; the own part among them
  /// @throws InputError on all workers alike if one gives more than that: nothing but this is sent,
  ///         and the channel goes on; what Transport throws
  std::vector<std::string> all_gather(const std::string& own);

  /// Gives all workers what one has, along a chain of them in pieces: so that each sends and
  /// receives it once. Synchronizes the stream.
  /// @param bytes  as many on all workers; overwritten on all but `root`
  /// @param root   the same on all workers
  /// @throws what Transport throws, ProtocolError where the sizes differ
  void broadcast(std::span<std::byte> bytes, Rank root);

  /// What a worker states: names of things, and what it thinks of each.
  using Statement = std::vector<std::pair<std::string, std::string>>;
  /// Compares every worker's statement with worker 0's. Synchronizes the stream.
  /// @param subject  stands before the difference in the text
  /// @throws AgreementError on all workers alike: the first difference; what all_gather() throws
  void agree(const std::string& subject, const Statement& own);

 private:
  std::vector<std::string> gathered(const std::string& own);
  void pass_on(std::span<std::byte> bytes, Rank root);

  Transport& transport_;
  Context context_;
  Clock::duration deadline_;
  std::uint64_t sequence_ = 0;
};

}  // namespace sparsesync
