// The Transport interface: all that schemes and sessions know of the network.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "sparsesync/context.h"
#include "sparsesync/dtype.h"
#include "sparsesync/errors.h"  // IWYU pragma: export
#include "sparsesync/rank.h"

namespace sparsesync {

using Clock = std::chrono::steady_clock;

// ---- Messages.

/// Precedes each payload on the wire, little-endian. Payloads are memory of the context
/// that a group is posted with, at both ends; those of refusals are the host's.
struct Header {
  std::uint32_t channel = 0;    // 0: control; 1 + b: bucket b
  std::uint32_t flags = 0;      // see below
  std::uint64_t sequence = 0;   // of the step within its channel
  std::uint64_t signature = 0;  // of what was agreed: shapes, options, choices
  std::uint64_t bytes = 0;      // of the payload

  static constexpr std::uint32_t kLast = 1;     // of the last round
  static constexpr std::uint32_t kRefused = 2;  // the payload says why
};
inline constexpr std::int64_t kHeaderBytes = sizeof(Header);
static_assert(kHeaderBytes == 32);

/// A number of payload bytes that may still be in the context's memory.
class PayloadBytes {
 public:
  PayloadBytes(std::int64_t bytes) : bytes_(bytes) {}  // NOLINT(google-explicit-constructor)
  PayloadBytes(Count count) : count_(count) {}         // NOLINT(google-explicit-constructor)
  /// Synchronizes the context's stream if the number is not known yet.
  std::int64_t resolve(const Context& context) const {
    return count_ ? sparsesync::resolve(context, *count_) : bytes_;
  }

 private:
  std::int64_t bytes_ = 0;
  std::optional<Count> count_;
};

/// A send of a group. The bytes stay the sender's and must stay as they are until finish().
struct Send {
  Rank to;
  const std::byte* data = nullptr;
  PayloadBytes bytes{std::int64_t{0}};
};

/// A receive of a group: the next message of that worker.
struct Receive {
  Rank from;
};

/// Gives the memory that a payload is received into, once its header has come.
class ReceiveProvider {
 public:
  virtual ~ReceiveProvider() = default;
  /// @param receive  which of the group's receives
  /// @return room for header.bytes bytes, valid until finish(); null to have the payload thrown
  /// away
  /// @throws Error to refuse: the group has then failed and the transport is to be aborted
  virtual std::byte* provide(std::size_t receive, const Header& header) = 0;
};

/// A receive that is complete.
struct Arrival {
  std::size_t receive = 0;
  Header header;
  std::span<const std::byte> payload;
};

/// Counts the payloads and headers that were sent between different workers.
struct TransportCounters {
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t messages_sent = 0;
  std::int64_t messages_received = 0;

  TransportCounters& operator+=(const TransportCounters& more) {
    bytes_sent += more.bytes_sent;
    bytes_received += more.bytes_received;
    messages_sent += more.messages_sent;
    messages_received += more.messages_received;
    return *this;
  }
  friend TransportCounters operator-(const TransportCounters& a, const TransportCounters& b) {
    return {a.bytes_sent - b.bytes_sent, a.bytes_received - b.bytes_received,
            a.messages_sent - b.messages_sent, a.messages_received - b.messages_received};
  }
};

/// Names a posted group until its finish() has returned.
struct GroupId {
  std::uint64_t value = 0;
};

/// One worker's end of the network. All calls but abort() come from one thread. Between two workers
/// messages arrive in the order in which they were sent; groups are posted in the same order on all
/// workers.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  /// The machine a worker runs on: equal numbers mean the same one.
  virtual int node(Rank worker) const = 0;

  /// Starts all sends and receives of a group; does not wait. Synchronizes the context's stream
  /// where a send's bytes are not known yet. On a GPU bytes are read once the work that the context
  /// has now is done; work that it is given after next() sees what was received, and work after
  /// finish() may write to what was sent. A message's header is `expected` with the payload's
  /// bytes; a received one must agree with it in channel, sequence and signature.
  /// @param sends, receives  to and from other workers; copied
  /// @param provider         must outlive finish()
  /// @throws AbortedError, PeerLostError
  virtual GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
                       std::span<const Receive> receives, ReceiveProvider& provider) = 0;

  /// Waits for a receive of the group that was not returned yet; nothing when all were. Payloads
  /// stay valid until the provider's memory is used again.
  /// @throws PeerLostError, DeadlineError, AbortedError, ProtocolError, and what the provider
  /// throws
  virtual std::optional<Arrival> next(GroupId group, Clock::time_point until) = 0;

  /// Whether next() has one to return at once. A transport that cannot tell says no.
  virtual bool has_arrival(GroupId /*group*/) { return false; }

  /// Waits until the group's sends are done and forgets it. All its receives were returned.
  /// @throws PeerLostError, DeadlineError, AbortedError
  virtual void finish(GroupId group, Clock::time_point until) = 0;

  /// Ends the transport on all workers: what waits there, or will, throws AbortedError with this
  /// reason. Safe from any thread, and after a failure; the first call counts.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// Looks, without waiting, at what this worker knows of the network and of some others.
  /// @throws AbortedError if the network is over, PeerLostError if one of them left
  virtual void expect_alive(std::span<const Rank> /*others*/) {}

  virtual TransportCounters counters() const = 0;

  /// Whether groups may be posted with contexts on a GPU, whose payloads are that GPU's memory.
  virtual bool reaches_devices() const { return false; }

  /// Whether the network has an all-reduce of its own.
  virtual bool has_all_reduce() const { return false; }
  /// Each element becomes its sum over all workers, in whatever order the network likes. Called by
  /// all workers alike, while no group is posted. The network does not tell what it moves: it is
  /// counted as all_reduce_bytes() each way, and as no message. Synchronizes the context's stream.
  /// @param dtype     one that is its own sum_dtype()
  /// @param elements  of `dtype`, aligned for it; after an error they may be anything
  /// @throws ContractError if !has_all_reduce(); PeerLostError, DeadlineError, AbortedError
  virtual void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                          Clock::time_point until);
};

}  // namespace sparsesync
