// The thread that drives an endpoint over UCX.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/transport/packets/endpoint.h"
#include "engine/transport/process_watch.h"
#include "engine/transport/ucx/link.h"

namespace sparsesync::ucx {

/// Wakes a thread that waits for a descriptor.
class Alarm {
 public:
  /// @throws Error if the system has no more descriptors
  Alarm();
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// Ends the present wait, or else the next one. Any thread may call it.
  void ring() noexcept;
  /// Waits until `descriptor` is readable or the alarm rings, for `most` at most.
  void wait(int descriptor, std::chrono::milliseconds most);

 private:
  int descriptor_ = -1;
  std::atomic<bool> rung_ = false;
  std::atomic<bool> waiting_ = false;
};

/// Drives an endpoint in a thread of its own, which makes all UCX calls after the link's creation.
/// The thread sleeps while there is neither an event of UCX nor a call of the worker.
class Driver {
 public:
  /// Starts the thread, which connects to all peers.
  /// @param nodes      [rank]: number of the worker's machine
  /// @param processes  [rank]: the worker's process
  /// @param until      deadline of the connections
  /// @param leaving    limit for the wait of the destructor
  Driver(std::unique_ptr<Link> link, Rank rank, std::vector<int> nodes,
         std::vector<ProcessName> processes, packets::PacketOptions options,
         Clock::time_point until, std::chrono::milliseconds leaving);
  /// Leaves the network. Waits until all peers know it, but only for a second after an error, and
  /// closes the link. In a forked child, which has no copy of the thread, it does nothing.
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Waits until the connections are complete, or failed.
  /// @return the endpoint, and the peers that have not answered by the deadline
  /// @throws PeerLostError
  /// @throws Error an error of UCX
  std::pair<std::shared_ptr<packets::Endpoint>, std::vector<Rank>> connect();

 private:
  void run();
  void drive();
  bool settles(const Link& link, packets::Endpoint& endpoint);
  void settle(std::exception_ptr failure);

  std::unique_ptr<Link> link_;  // the thread gives it to the endpoint
  const Rank rank_;
  const std::vector<int> nodes_;
  const std::vector<ProcessName> processes_;
  const packets::PacketOptions options_;
  const Clock::time_point until_;
  const std::chrono::milliseconds leaving_;
  const std::shared_ptr<Alarm> alarm_ = std::make_shared<Alarm>();
  std::atomic<bool> stopping_ = false;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool settled_ = false;  // connected, or failed
  std::shared_ptr<packets::Endpoint> endpoint_;
  std::vector<Rank> silent_;  // peers that have not answered by the deadline
  std::exception_ptr failure_;

  std::thread thread_;
};

}  // namespace sparsesync::ucx
