// Adapts point-to-point calls, such as those of PyTorch's ProcessGroup, to a Transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// The calls that a network must provide. It need not poll a call, wait for whichever of several
/// calls ends first, or report a message's size.
///
/// One thread makes all calls, except start() without receives, which any thread may call. Pass an
/// implementation to transport_over().
/// @code
/// class MyNetwork : public PointToPoint { ... };
/// Session session(transport_over(std::make_unique<MyNetwork>(), Rank{rank}, nodes), memory);
/// @endcode
class PointToPoint {
 public:
  /// Leaves the network. Workers that wait for this worker, now or later, find that it is lost.
  virtual ~PointToPoint() = default;

  /// Names an independent sequence of messages. Messages of different lanes do not wait for each
  /// other. Within a lane, sends and receives between two workers match in the order of the calls,
  /// and their sizes are equal. The lane `reasons` carries why a worker ended the session.
  enum class Lane : std::uint8_t { headers, payloads, reasons };
  /// Identifies a started call until its wait() has returned.
  using Call = std::uint64_t;

  /// Describes a receive of exactly `bytes.size()` bytes.
  struct Incoming {
    Rank from;
    Lane lane;
    std::span<std::byte> bytes;
  };
  /// Describes a send. The bytes stay unchanged until wait() or withdraw() has returned.
  struct Outgoing {
    Rank to;
    Lane lane;
    std::span<const std::byte> bytes;
  };
  /// Starts all receives, then all sends, in their order. Does not wait.
  /// @param receives  the receives
  /// @param sends     the sends
  /// @param started   appended to: each call that was started, also before an error
  /// @throws PeerLostError
  virtual void start(std::span<const Incoming> receives, std::span<const Outgoing> sends,
                     std::vector<Call>& started) = 0;

  /// Names the result of a wait.
  enum class Outcome : std::uint8_t { done, deadline, lost };
  /// Holds the result of a wait for several calls.
  struct Waited {
    Outcome outcome = Outcome::done;
    std::size_t done = 0;  ///< number of calls before the first that is not done
  };
  /// Waits for calls, one after the other, up to the first that is not done. Then only start()
  /// without receives, wait() for its calls, withdraw() and the destructor are called.
  /// @param calls  the calls
  /// @param until  the deadline
  virtual Waited wait(std::span<const Call> calls, Clock::time_point until) = 0;

  /// Cancels all calls that were not waited for. Their memory is not accessed after this returns.
  virtual void withdraw() noexcept = 0;

  /// Returns whether the network has a native all-reduce.
  virtual bool has_all_reduce() const = 0;
  /// Sums elements over all workers, as Transport::all_reduce() does.
  /// @pre has_all_reduce()
  virtual Outcome all_reduce(DType dtype, std::span<std::byte> elements,
                             Clock::time_point until) = 0;
};

/// Returns a worker's endpoint of a point-to-point network.
///
/// A message is one call for its header with the first 2,016 bytes of its payload, and one for each
/// chunk of the rest. Counters do not count the padding of shorter payloads. A chunk is at most
/// 4 MiB. The chunks are started before the header, so a header never announces a payload that
/// could not be started. A discarded payload needs the memory of one chunk, whatever its size.
///
/// One start() starts all sends of a group and the receives of its headers. Another one starts the
/// receives of a payload, once its header has arrived.
///
/// An abort reaches every worker that waits for a worker that knows of the abort. This includes all
/// workers of a scheme, because each sends before it waits. Other waits end at their deadline.
/// Reasons have a separate lane and a fixed size, so a reason is never mistaken for a payload. Each
/// worker receives reasons from the start: if it loses a worker that sent one, it throws
/// AbortedError.
/// @param network  the calls; owned by the transport
/// @param rank     this worker's rank
/// @param nodes    [rank]: number of the worker's machine
std::unique_ptr<Transport> transport_over(std::unique_ptr<PointToPoint> network, Rank rank,
                                          std::vector<int> nodes);

}  // namespace sparsesync
