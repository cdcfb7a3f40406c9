// A transport over calls that move bytes from one worker to another, such as PyTorch's ProcessGroup
// has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// The calls of a network. What it has to have is little: no way to look at a call without waiting
/// for it, none to wait for several, none to learn a message's size. All but send() are called by
/// one thread.
class PointToPoint {
 public:
  /// Leaves: who waits for this worker, or will, loses it.
  virtual ~PointToPoint() = default;

  /// Messages of different lanes don't wait for each other; those of one lane between two workers
  /// match in the order of the calls, sizes alike. A reason says why a worker ended the session.
  enum class Lane : std::uint8_t { headers, payloads, reasons };
  /// Names a call that was started, until its wait() has returned.
  using Call = std::uint64_t;

  /// Starts a send; does not wait. The bytes stay as they are until wait() has returned, or
  /// withdraw().
  /// @throws PeerLostError
  virtual Call send(Rank to, Lane lane, std::span<const std::byte> bytes) = 0;
  /// Starts a receive of so many bytes; does not wait.
  /// @throws PeerLostError
  virtual Call receive(Rank from, Lane lane, std::span<std::byte> bytes) = 0;

  /// How a wait ended.
  enum class Outcome : std::uint8_t { done, deadline, lost };
  /// Waits for a call. After another outcome than `done` only send(), withdraw() and the destructor
  /// are called.
  virtual Outcome wait(Call call, Clock::time_point until) = 0;

  /// Gives up all calls that were not waited for: from here on nobody touches their bytes.
  virtual void withdraw() noexcept = 0;

  virtual bool has_all_reduce() const = 0;
  /// As Transport has it.
  /// @pre has_all_reduce()
  virtual Outcome all_reduce(DType dtype, std::span<std::byte> elements,
                             Clock::time_point until) = 0;
};

/// A worker's end. A message is a call for its header and one for each piece of its payload, which
/// starts before the header: a header never announces a payload that could not be started.
///
/// An abort reaches those who wait for a worker that knows of it, who then know, too; the others
/// have their deadline. As every worker of a scheme sends before it waits, that is all of them. Its
/// reason has a lane of its own and always the same size, so that it is never taken for a payload.
/// Every worker waits for the others' reasons from the start: whoever loses a worker that gave one
/// throws AbortedError.
///
/// A payload that is thrown away takes the memory of one piece, whatever size its header names.
/// @param nodes  the machine of each worker
std::unique_ptr<Transport> transport_over(std::unique_ptr<PointToPoint> network, Rank rank,
                                          std::vector<int> nodes);

}  // namespace sparsesync
