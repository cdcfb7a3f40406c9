// The all-gather of messages: one of each worker to all workers, in one of three ways. What
// all_gather does with rows, and a pull with sums.
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

/// Memory of messages: those that one worker sends, and those that come to it. Phases of a scheme
/// that follow each other may use the same.
struct MessageRoom {
  MessageRoom(const Context& context, int size)
      : sent(context), received(context, static_cast<std::size_t>(size - 1)) {}
  Buffer<std::byte> sent;
  Inbox received;  // one from each other worker
};

/// Moves one message of each worker to all others. Keeps its memory.
///
/// `ring`: size - 1 steps, in each of which a worker passes on what came last. `hierarchy`: Bruck's
/// all-gather (Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all
/// communications in multiport message-passing systems", 1997, section 4), ceil(log2 n) steps for
/// any size: the i-th sends the first 2^i messages held, at most as many as are still missing, to
/// the worker 2^i further on. They follow each other in one payload, each from a multiple of 16
/// bytes on; as each says itself how long it is, nothing more is said. `point_to_point`: one step.
class MessageGather {
 public:
  /// @param room  for messages, but heads that cross ahead; outlives this; null: its own
  MessageGather(const Context& context, Rank rank, int size, Communication pattern,
                MessageRoom* room = nullptr);

  /// The steps of one round.
  Pattern pattern() const;

  /// Room for this worker's message, at a multiple of 16 bytes; what run() gave is no longer valid.
  /// @throws BudgetError
  std::span<std::byte> own(std::int64_t bytes);

  /// What a message took of the bytes that it was read from.
  struct Extent {
    std::int64_t bytes = 0;
    std::int64_t index_bytes = 0;  // of them those that are no values
  };
  /// Reads the message of a worker at the head of bytes that are not trusted: others may follow it.
  using Read = FunctionView<Extent(Rank worker, std::span<const std::byte> bytes)>;

  /// Walks the pattern, once own() was written.
  /// @param limit  bytes that no message exceeds
  /// @param read   called once for each worker's message, the own one first, in any order; the
  ///               bytes stay valid until own()
  /// @throws CorruptDataError if bytes are left over; what `read` and Exchange::step() throw
  void run(Exchange& exchange, std::int64_t limit, const Read& read);

  /// What becomes of messages in two pieces.
  struct Pieces {
    Read head;                        // takes all bytes that it is given
    FunctionView<void()> heads_came;  // once, before the first body
    FunctionView<void(Rank worker, std::span<const std::byte> bytes)> body;
  };
  /// The same point to point, where all heads cross ahead of all bodies.
  /// @param own_head  bytes of the own message's head
  /// @param limit     bytes that no piece exceeds
  /// @throws CorruptDataError if bytes of a head are left over; what `read` and Exchange::step()
  ///         throw
  void run_in_pieces(Exchange& exchange, std::int64_t own_head, std::int64_t limit,
                     const Pieces& read);

 private:
  void pass_around(Exchange& exchange, const Read& read);
  void send_to_each(Exchange& exchange, const Read& read);
  void send_doubling(Exchange& exchange, std::int64_t limit, const Read& read);
  /// The worker whose message is held at a place, and the other way about: places count backwards
  /// from this worker, in the order in which messages come from the left.
  Rank held_of(int place) const { return ring_neighbour(rank_, -place, size_); }
  int place_of(Rank worker) const { return ring_neighbour(rank_, -worker.value, size_).value; }
  void read_whole(int place, std::span<const std::byte> message, const Read& read);

  struct Held {
    std::span<const std::byte> message;
    std::int64_t index_bytes = 0;
    std::int64_t end = 0;  // in `all_`, of what this one and those before it take
  };

  Context context_;
  Rank rank_;
  int size_;
  Communication pattern_;
  std::unique_ptr<MessageRoom> own_room_;
  MessageRoom& room_;
  Buffer<std::byte>& all_;  // the own message; in a hierarchy the others behind it
  std::int64_t own_bytes_ = 0;
  Inbox heads_;
  Buffer<std::byte> spill_;                  // what came when `all_` was full
  std::vector<Buffer<std::byte>> outgrown_;  // views of them are given out
  std::vector<Held> held_;                   // [place]
  std::vector<Payload> payloads_;
  std::vector<Payload> body_payloads_;
};

/// What crosses where worker w's message has bytes[w] bytes, exactly, as a whole.
void count_gather(Communication pattern, std::span<const std::int64_t> bytes, Traffic& traffic);

/// Bytes of the workers' messages, without their numbers.
struct GatheredBytes {
  double total = 0;
  double smallest = 0;  // of one worker
  double largest = 0;
};

/// What it is expected to cost. Around the ring whoever passes on all but the smallest has most to
/// do; the largest takes size - 1 messages, one after another, to be everywhere.
/// @param spaces  row spaces: each has 16 bytes of numbers in each message
PhaseCost gather_cost(Communication pattern, int size, const GatheredBytes& bytes,
                      std::size_t spaces);

}  // namespace sparsesync
