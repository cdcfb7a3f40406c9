// The network under an endpoint: carries packets between two workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsesync/dtype.h"
#include "sparsesync/rank.h"

namespace sparsesync::packets {

/// Takes packets out of a link's own memory, without a slot.
class Sink {
 public:
  /// Takes a packet if the link has reported all earlier ones of the peer.
  /// @return false if the packet needs a slot
  virtual bool take(std::size_t peer, std::span<const std::byte> packet) noexcept = 0;

 protected:
  ~Sink() = default;
};

/// Tells a link what it carries.
struct Layout {
  std::vector<Rank> peers;                               // [peer]
  std::vector<std::vector<std::span<std::byte>>> slots;  // [peer][slot]: memory for one packet
  std::size_t sends = 0;                                 // sends have numbers below this
  Sink* sink = nullptr;                                  // a link may offer it packets
};

/// An event that a link reports.
struct Event {
  /// `received`: a packet is in the slot. `sent`: the packet's memory may be reused. `reduced`: the
  /// all-reduce is complete. `ended`: no more packets arrive from the peer, whose process ended or
  /// is out of reach. `overrun`: the peer sent a packet for which no slot was posted.
  enum class Kind : std::uint8_t { received, sent, reduced, ended, overrun };
  Kind kind = Kind::received;
  std::size_t peer = 0;   // received, ended, overrun
  std::size_t slot = 0;   // received
  std::size_t bytes = 0;  // received: size of the packet
  std::size_t send = 0;   // sent: number of the send
};

/// Carries packets to and from each peer, in order. Only the driving thread calls it, after the
/// constructor of its Endpoint. No call waits.
class Link {
 public:
  virtual ~Link() = default;

  /// Prepares for a layout. The memory of its slots stays valid until close() has returned true.
  virtual void prepare(const Layout& layout) = 0;
  /// Posts a slot for a packet of the peer. Slots are filled in the order of the calls.
  virtual void post(std::size_t peer, std::size_t slot) = 0;
  /// Starts a send. Its memory stays unchanged until the link reports `sent`.
  /// @throws Error if the network failed
  virtual void send(std::size_t send, std::size_t peer, std::span<const std::byte> packet) = 0;
  /// Appends the events since the last call. Events of one peer are in order.
  /// @throws Error if the network failed
  virtual void poll(std::vector<Event>& events) = 0;

  /// Returns whether the network has a native all-reduce.
  virtual bool has_all_reduce() const { return false; }
  /// Starts an all-reduce in place. The memory stays valid until the link reports `reduced`.
  /// @pre has_all_reduce()
  virtual void all_reduce(DType, std::span<std::byte>) {}

  /// Returns whether a worker may close its link while others still use theirs.
  virtual bool closes_alone() const = 0;
  /// Frees the network's resources.
  /// @param quiet  whether no call is under way, no process was lost, and all peers have answered
  /// @return whether the network no longer uses any memory of the endpoint
  virtual bool close(bool quiet) = 0;
};

}  // namespace sparsesync::packets
