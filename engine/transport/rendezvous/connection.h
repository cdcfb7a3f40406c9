// Messages between the workers of a rendezvous.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/transport/rendezvous/socket.h"
#include "sparsesync/rank.h"

namespace sparsesync::rendezvous {

/// Purpose of a message. From `lost` on, the text is the message of an error that the receiver
/// throws.
enum class Kind : std::uint8_t {
  hello,    // First message of a worker: its size and the version of sparsesync.
  welcome,  // Worker 0 accepts the hello.
  ready,    // All workers are connected.
  text,     // Text of worker `rank`.
  overdue,  // A worker at its deadline asks for the missing workers.
  lost,     // PeerLostError of worker `rank`
  deadline,
  input,
  protocol,
  failed,
};

/// A text, with its purpose and the rank that it is about.
struct Message {
  Kind kind{};
  Rank rank;
  std::string text;
};

/// Returns a message as it is sent.
std::string encoded(Kind kind, Rank rank, std::string_view text);

/// Messages over a non-blocking socket.
class Connection {
 public:
  Connection() = default;
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.descriptor(); }
  bool is_open() const { return descriptor() >= 0; }
  bool has_output() const { return !output_.empty(); }
  /// Returns the events to wait for.
  pollfd polled() const;

  /// Reads bytes that have arrived.
  /// @return false if the other side has left; its last messages can still be popped
  bool read();

  /// Returns the next message if all of it has arrived.
  /// @param sender   the other side, for errors
  /// @param longest  most bytes of the text
  /// @throws ProtocolError
  std::optional<Message> pop(std::string_view sender, std::size_t longest);

  /// Adds bytes to the output, which flush() sends.
  void push(std::shared_ptr<const std::string> bytes) { output_.push_back(std::move(bytes)); }
  /// Adds a message to the output.
  void push(Kind kind, Rank rank, std::string_view text);

  /// Sends output that fits into the socket. Discards the output if the other side has left.
  void flush();

 private:
  Socket socket_;
  std::string input_;
  std::deque<std::shared_ptr<const std::string>> output_;
  std::size_t sent_ = 0;  // bytes of the first output
};

}  // namespace sparsesync::rendezvous
