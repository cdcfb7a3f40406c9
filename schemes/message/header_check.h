// Verification of message counts that this worker already knows. The counts of all messages of a
// phase are compared at once, in a synchronization that is necessary in any case.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/context.h"
#include "schemes/message/message.h"

namespace sparsesync {

/// Collects the expected counts of messages. Keeps its memory between phases.
class KnownNumbers {
 public:
  explicit KnownNumbers(const Context& context) : context_(context) {}

  /// Removes all expectations, at the start of a phase.
  void clear() {
    pieces_.clear();
    expected_.clear();
  }
  /// Fetches the counts of messages without validating them; take_layout() and take_head() do.
  /// Synchronizes the stream.
  /// @param spaces    number of row spaces
  /// @param messages  the messages
  /// @param counts    [message][row space]: receives the counts
  /// @throws CorruptDataError if a message is too short for its counts
  void fetch(std::size_t spaces, std::span<const std::span<const std::byte>> messages,
             std::vector<SectionCounts>& counts);

  /// Expects a message to have these counts. Its memory stays unchanged until verify().
  /// @pre the message has the size that the counts give: take_layout() was called with them
  void expect(std::span<const std::byte> message, std::span<const SectionCounts> counts);
  /// Verifies all expected counts, and fetches other memory in the same synchronization of the
  /// stream.
  /// @param others  source memory, as for fetch_pieces()
  /// @param to      receives the contents of `others`, concatenated
  /// @throws CorruptDataError if a message has other counts
  void verify(std::span<const std::span<const std::byte>> others, std::span<std::byte> to);

 private:
  Context context_;
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<SectionCounts> expected_;
  std::vector<std::span<const std::byte>> all_;
  std::vector<std::byte> fetched_;
};

}  // namespace sparsesync
