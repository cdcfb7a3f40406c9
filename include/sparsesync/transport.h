// The Transport interface: the network as schemes and sessions use it.
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

/// The clock of all deadlines.
using Clock = std::chrono::steady_clock;

// ---- Messages.

/// Precedes each payload on the wire, in little-endian byte order.
///
/// A payload is memory of the context that its group is posted with, on both workers. The payload
/// of a rejection is host memory.
struct Header {
  std::uint32_t channel = 0;    ///< 0: control; 1 + b: bucket b
  std::uint32_t flags = 0;      ///< kLast, kRefused
  std::uint64_t sequence = 0;   ///< number of the step within its channel
  std::uint64_t signature = 0;  ///< hash of the agreed shapes, options and choices
  std::uint64_t bytes = 0;      ///< size of the payload

  static constexpr std::uint32_t kLast = 1;  ///< flag: this is the last round
  /// Flag: the sender rejects the step; the payload is the reason.
  static constexpr std::uint32_t kRefused = 2;
};
/// Size of a header in bytes.
inline constexpr std::int64_t kHeaderBytes = sizeof(Header);
static_assert(kHeaderBytes == 32);

/// Holds the size of a payload, which may still be in the context's memory.
class PayloadBytes {
 public:
  PayloadBytes(std::int64_t bytes) : bytes_(bytes) {}  // NOLINT(google-explicit-constructor)
  PayloadBytes(Count count) : count_(count) {}         // NOLINT(google-explicit-constructor)
  /// Returns the size in bytes. Synchronizes the context's stream if the size is not known yet.
  std::int64_t resolve(const Context& context) const {
    return count_ ? sparsesync::resolve(context, *count_) : bytes_;
  }

 private:
  std::int64_t bytes_ = 0;
  std::optional<Count> count_;
};

/// Describes a send of a group. The sender keeps the memory unchanged until finish().
struct Send {
  Rank to;                              ///< receiving worker
  const std::byte* data = nullptr;      ///< the payload
  PayloadBytes bytes{std::int64_t{0}};  ///< size of the payload
};

/// Describes a receive of a group: the next message from a worker.
struct Receive {
  Rank from;  ///< sending worker
};

/// Supplies the memory that a payload is received into, once its header has arrived. Inbox in
/// schemes/exchange.h is an example.
class ReceiveProvider {
 public:
  virtual ~ReceiveProvider() = default;
  /// Returns memory for a payload.
  /// @param receive  index of the receive in its group
  /// @param header   the header that arrived
  /// @return memory of at least `header.bytes` bytes, valid until finish(); null to discard the
  ///     payload
  /// @throws Error to reject the message. The group has then failed, and the caller aborts the
  ///     transport
  virtual std::byte* provide(std::size_t receive, const Header& header) = 0;
};

/// Describes a completed receive.
struct Arrival {
  std::size_t receive = 0;             ///< index of the receive in its group
  Header header;                       ///< the header that arrived
  std::span<const std::byte> payload;  ///< in the memory of the ReceiveProvider
};

/// Counts headers and payloads sent between different workers.
struct TransportCounters {
  std::int64_t bytes_sent = 0;      ///< headers and payloads
  std::int64_t bytes_received = 0;  ///< headers and payloads
  std::int64_t messages_sent = 0;
  std::int64_t messages_received = 0;

  /// Adds the counts of `more`.
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

/// Identifies a posted group until its finish() has returned.
struct GroupId {
  std::uint64_t value = 0;
};

/// One worker's endpoint of a network. Destroying it leaves the network.
///
/// Programs get one from LocalNetwork::join(), MpiWorld::join(), nccl_over() or transport_over(),
/// and pass it to a Session:
/// @code
/// LocalNetwork network(2);
/// std::unique_ptr<Transport> endpoint = network.join(Rank{0});
/// @endcode
/// To support another network, implement this class. tests/support/transport_suite.h has the tests
/// that every implementation passes.
///
/// **Threads.** All calls except abort() come from one thread.
///
/// **Order.** Messages between two workers arrive in the order in which they were sent. All workers
/// post groups in the same order.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Returns this worker's rank.
  virtual Rank rank() const = 0;
  /// Returns the number of workers.
  virtual int size() const = 0;
  /// Returns the number of the machine that a worker runs on. Workers on the same machine have the
  /// same number.
  virtual int node(Rank worker) const = 0;

  /// Starts all sends and receives of a group. Does not wait for them. Synchronizes the context's
  /// stream if the size of a send is not known yet.
  ///
  /// Each message's header is `expected` with the payload's size. A received header must have the
  /// same channel, sequence and signature.
  ///
  /// On a GPU, sent bytes are read after the work that the context has now. Work submitted after
  /// next() sees the received bytes. Work submitted after finish() may overwrite the sent bytes.
  /// @param context   the context of all payloads
  /// @param expected  the header, without a size
  /// @param sends     to other workers; copied
  /// @param receives  from other workers; copied
  /// @param provider  outlives finish()
  /// @throws AbortedError
  /// @throws PeerLostError
  virtual GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
                       std::span<const Receive> receives, ReceiveProvider& provider) = 0;

  /// Waits for a receive of the group that was not returned yet.
  /// @param group  the group
  /// @param until  the deadline
  /// @return the receive, or nothing if all were returned. Its payload stays valid until the
  ///     provider's memory is reused
  /// @throws PeerLostError
  /// @throws DeadlineError
  /// @throws AbortedError
  /// @throws ProtocolError
  /// @throws Error the errors of the provider
  virtual std::optional<Arrival> next(GroupId group, Clock::time_point until) = 0;

  /// Returns whether next() would return a receive without waiting. A transport that does not know
  /// returns false.
  virtual bool has_arrival(GroupId /*group*/) { return false; }

  /// Waits until the group's sends are done, and forgets the group. All its receives were returned
  /// before.
  /// @param group  the group
  /// @param until  the deadline
  /// @throws PeerLostError
  /// @throws DeadlineError
  /// @throws AbortedError
  virtual void finish(GroupId group, Clock::time_point until) = 0;

  /// Ends the transport on all workers. Present and later waits of any worker throw AbortedError
  /// with this reason. Any thread may call it, also after an error. Only the first call has an
  /// effect.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// Checks the state of the network and of some workers, without waiting.
  /// @throws AbortedError if the network has ended
  /// @throws PeerLostError if one of these workers left
  virtual void expect_alive(std::span<const Rank> /*others*/) {}

  /// Returns the traffic of this worker since it joined.
  virtual TransportCounters counters() const = 0;

  /// Returns whether groups may use contexts on a GPU, with payloads in that GPU's memory.
  virtual bool reaches_devices() const { return false; }

  /// Returns whether the network has a native all-reduce.
  virtual bool has_all_reduce() const { return false; }
  /// Replaces each element by its sum over all workers, in a reduction order that the network
  /// chooses. All workers call it while no group is posted. Synchronizes the context's stream.
  ///
  /// The network does not report its traffic. The transport counts all_reduce_bytes() in each
  /// direction and no messages.
  /// @param context   the context of `elements`
  /// @param dtype     a dtype whose sums have the same dtype, see sum_dtype()
  /// @param elements  of `dtype`, aligned for it; undefined after an error
  /// @param until     the deadline
  /// @throws ContractError if !has_all_reduce()
  /// @throws PeerLostError
  /// @throws DeadlineError
  /// @throws AbortedError
  virtual void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                          Clock::time_point until);
};

}  // namespace sparsesync
