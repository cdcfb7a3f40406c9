// All-gather of messages with different sizes, in one of three communication patterns. `all_gather`
// uses it for rows, and push-pull schemes for sums.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/function_view.h"
#include "schemes/cost.h"
#include "schemes/exchange.h"
#include "schemes/pattern.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// Memory for the message that a worker sends and those that it receives. Consecutive phases of a
/// scheme may share it.
struct MessageRoom {
  MessageRoom(const Context& context, int size)
      : sent(context), received(context, static_cast<std::size_t>(size - 1)) {}
  Buffer<std::byte> sent;
  Inbox received;  // one message from each other worker
};

/// Sends each worker's message to all others. Keeps its memory.
///
/// - `ring`: size - 1 steps. In each step a worker forwards the message that it received last.
/// - `hierarchy`: ceil(log2 n) steps, Bruck's all-gather. Step i sends the first 2^i messages to
///   the worker 2^i further on, or fewer if fewer are missing. They form one payload, each aligned
///   to 16 bytes. No sizes are sent, because each message contains its size.
/// - `point_to_point`: one step.
///
/// Source of `hierarchy`: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for
/// all-to-all communications in multiport message-passing systems", 1997, section 4.
class MessageGather {
 public:
  /// @param context  the context of all messages
  /// @param rank     this worker's rank
  /// @param size     number of workers
  /// @param pattern  the communication pattern
  /// @param room     memory for messages, except heads; outlives this object. Null: private memory
  MessageGather(const Context& context, Rank rank, int size, Communication pattern,
                MessageRoom* room = nullptr);

  /// Returns the steps of one round.
  Pattern pattern() const;

  /// Returns memory for this worker's message, aligned to 16 bytes. Invalidates the messages that
  /// run() passed on.
  /// @throws BudgetError
  std::span<std::byte> own(std::int64_t bytes);

  /// The size of a message.
  struct Extent {
    std::int64_t bytes = 0;
    std::int64_t index_bytes = 0;  // bytes other than values
  };
  /// Reads a worker's message from the start of untrusted bytes. Other messages may follow it.
  using Read = FunctionView<Extent(Rank worker, std::span<const std::byte> bytes)>;

  /// Runs the pattern, after own() was written.
  /// @param exchange  the network
  /// @param limit     largest valid size of a message, in bytes
  /// @param read      called once for each worker's message, this worker's first, the others in any
  ///     order. The bytes stay valid until own()
  /// @throws CorruptDataError if a payload has bytes after its last message; the errors of `read`
  ///     and Exchange::step()
  void run(Exchange& exchange, std::int64_t limit, const Read& read);

  /// Functions that process messages in two pieces.
  struct Pieces {
    Read head;                        // reads all bytes of a head
    FunctionView<void()> heads_came;  // called once, before the first body
    FunctionView<void(Rank worker, std::span<const std::byte> bytes)> body;
  };
  /// Runs the pattern `point_to_point` with all heads sent before all bodies.
  /// @param exchange  the network
  /// @param own_head  size of this worker's head, in bytes
  /// @param limit     largest valid size of a piece, in bytes
  /// @param read      processes the pieces
  /// @throws CorruptDataError if a head has too many bytes; the errors of `read` and
  ///     Exchange::step()
  void run_in_pieces(Exchange& exchange, std::int64_t own_head, std::int64_t limit,
                     const Pieces& read);

 private:
  void pass_around(Exchange& exchange, const Read& read);
  void send_to_each(Exchange& exchange, const Read& read);
  void send_doubling(Exchange& exchange, std::int64_t limit, const Read& read);
  /// Converts between a worker and its index in `held_`. Indices count backwards from this worker,
  /// in the order in which messages arrive from the left.
  Rank held_of(int place) const { return ring_neighbour(rank_, -place, size_); }
  int place_of(Rank worker) const { return ring_neighbour(rank_, -worker.value, size_).value; }
  void read_whole(int place, std::span<const std::byte> message, const Read& read);

  struct Held {
    std::span<const std::byte> message;
    std::int64_t index_bytes = 0;
    std::int64_t end = 0;  // offset in `all_` of the end of this message
  };

  Context context_;
  Rank rank_;
  int size_;
  Communication pattern_;
  std::unique_ptr<MessageRoom> own_room_;
  MessageRoom& room_;
  Buffer<std::byte>& all_;  // this worker's message; in a hierarchy followed by the others
  std::int64_t own_bytes_ = 0;
  Inbox heads_;
  Buffer<std::byte> spill_;                  // received data that did not fit into `all_`
  std::vector<Buffer<std::byte>> outgrown_;  // former buffers that callers still have views of
  std::vector<Held> held_;                   // [index], this worker's message first
  std::vector<Payload> payloads_;
  std::vector<Payload> body_payloads_;
};

/// Counts the exact traffic of an all-gather of whole messages. Worker w's message has bytes[w]
/// bytes.
void count_gather(Communication pattern, std::span<const std::int64_t> bytes, Traffic& traffic);

/// Bytes of the workers' messages, without their counts.
struct GatheredBytes {
  double total = 0;     // all messages
  double smallest = 0;  // smallest message
  double largest = 0;   // largest message
};

/// Predicts the cost of an all-gather. On a ring, the busiest worker forwards all messages but the
/// smallest, and the largest message is forwarded size - 1 times in sequence.
/// @param pattern  the communication pattern
/// @param size     number of workers
/// @param bytes    sizes of the messages
/// @param spaces   number of row spaces; each has 16 bytes of counts in each message
PhaseCost gather_cost(Communication pattern, int size, const GatheredBytes& bytes,
                      std::size_t spaces);

}  // namespace sparsesync
