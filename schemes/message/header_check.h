// Numbers of messages, of several at once: those that this worker knows already are compared once
// in a phase, with what is fetched anyway.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/context.h"
#include "schemes/message/message.h"

namespace sparsesync {

/// What some messages are to say; keeps its memory from one phase to the next.
class KnownNumbers {
 public:
  explicit KnownNumbers(const Context& context) : context_(context) {}

  /// Forgets what was recorded: a phase begins.
  void clear() {
    pieces_.clear();
    expected_.clear();
  }
  /// Fetches the numbers of messages. They are not trusted: take_layout() and take_head() look at
  /// them. Synchronizes the stream.
  /// @param counts  receives those of each row space of the first message, then of the next
  /// @throws CorruptDataError if a message is too short for its numbers
  void fetch(std::size_t spaces, std::span<const std::span<const std::byte>> messages,
             std::vector<SectionCounts>& counts);

  /// Records that a message is to have these numbers; it stays where it is until verify().
  /// @pre it has as many bytes: take_layout() was called with them
  void expect(std::span<const std::byte> message, std::span<const SectionCounts> counts);
  /// Compares all that was recorded, and fetches other pieces with it. Synchronizes the stream.
  /// @param others  as fetch_pieces() takes them
  /// @param to      receives these, one behind the other
  /// @throws CorruptDataError if a message has other numbers
  void verify(std::span<const std::span<const std::byte>> others, std::span<std::byte> to);

 private:
  Context context_;
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<SectionCounts> expected_;
  std::vector<std::span<const std::byte>> all_;
  std::vector<std::byte> fetched_;
};

}  // namespace sparsesync
