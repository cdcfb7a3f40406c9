// The control channel of a session: collectives on small data, and comparison of what workers
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// One worker's end of the control channel. All workers make the same calls in the same order.
class ControlChannel {
 public:
  /// @param deadline  timeout of each call
  ControlChannel(Transport& transport, const Context& context, Clock::duration deadline)
      : transport_(transport), context_(context), deadline_(deadline) {}

  /// Sends `own` to all other workers and receives theirs. Synchronizes the stream.
  /// @param own  any bytes, at most 64 MiB
  /// @return every worker's bytes, by rank, this worker's included
  /// @throws InputError on all workers if one worker's bytes exceed the limit. Only the length is
  ///         then sent, and the channel stays usable
  /// @throws what Transport throws
  std::vector<std::string> all_gather(const std::string& own);

  /// Copies the root's bytes to all workers, in pieces along a chain, so that each worker sends and
  /// receives them at most once. Synchronizes the stream.
  /// @param bytes  the same size on all workers; overwritten on all workers except `root`
  /// @param root   the same on all workers
  /// @throws what Transport throws, ProtocolError if the sizes differ
  void broadcast(std::span<std::byte> bytes, Rank root);

  /// A worker's statement: names of properties, each with this worker's value as text.
  using Statement = std::vector<std::pair<std::string, std::string>>;
  /// Compares every worker's statement with worker 0's. Synchronizes the stream.
  /// @param subject  begins the error message
  /// @throws AgreementError on all workers, naming the first difference; what all_gather() throws
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
