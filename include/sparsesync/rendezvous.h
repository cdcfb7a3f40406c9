// A rendezvous: workers find each other before they have a network.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// One worker's connection to all others, for the short texts with which they set up a network. It
/// is a star of TCP connections, with worker 0 in the center.
///
/// The connections are neither encrypted nor authenticated: use an address that only trusted
/// machines reach. Destroying the object closes this worker's connections.
/// @code
/// std::unique_ptr<Rendezvous> rendezvous =
///     meet_at("10.0.0.1:29500", Rank{rank}, size, std::chrono::minutes(1));
/// const std::vector<std::string> addresses =
///     rendezvous->all_gather(own_address, Clock::now() + std::chrono::minutes(1));
/// @endcode
class Rendezvous {
 public:
  /// Most bytes of a text.
  static constexpr std::size_t kLongestText = std::size_t{1} << 20U;

  virtual ~Rendezvous() = default;

  /// Returns this worker's rank.
  virtual Rank rank() const = 0;
  /// Returns the number of workers.
  virtual int size() const = 0;

  /// Gathers one text of each worker. All workers call it in the same order.
  ///
  /// The rendezvous has ended after an error, except InputError: later calls throw the same error.
  /// Other workers learn of the end when they wait.
  /// @param own    the text of this worker: any bytes, at most kLongestText
  /// @param until  the deadline
  /// @return the texts of all workers, by rank
  /// @throws InputError if the text is too long; nothing was sent
  /// @throws PeerLostError naming a worker that left
  /// @throws DeadlineError naming the workers that are missing
  /// @throws ProtocolError
  /// @throws Error another error of worker 0
  virtual std::vector<std::string> all_gather(const std::string& own, Clock::time_point until) = 0;
};

/// Waits until all workers have called it with the same address.
///
/// Worker 0 listens at the address until all workers are connected. It refuses and logs connections
/// of anything else. The other workers connect, and retry until worker 0 listens. A single worker
/// opens no socket.
/// @param address   "HOST:PORT" or "[IPV6]:PORT", an address of worker 0's machine
/// @param rank      this worker's rank
/// @param size      the number of workers
/// @param deadline  how long to wait. Resolving the name of a host may take longer
/// @throws InputError if an argument is invalid, or if worker 0 has another size or knows another
///     worker of this rank
/// @throws DeadlineError naming the workers that are missing
/// @throws PeerLostError naming a worker that left after it had connected
/// @throws ProtocolError if worker 0 runs another version of sparsesync, or another program listens
/// @throws Error if worker 0 cannot listen at the address, for example because the port is taken
std::unique_ptr<Rendezvous> meet_at(const std::string& address, Rank rank, int size,
                                    std::chrono::milliseconds deadline);

/// Returns a rendezvous of the workers that a transport connects already. Nothing else uses the
/// transport during a call of the rendezvous.
/// @param transport  outlives the rendezvous
std::unique_ptr<Rendezvous> rendezvous_over(Transport& transport);

}  // namespace sparsesync
