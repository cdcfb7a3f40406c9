// A transport that Python holds before a session takes it.
#pragma once

#include <chrono>
#include <memory>

#include "python/bindings/closed.h"
#include "sparsesync/transport.h"

namespace sparsesync::python {

/// A worker's end of a network, until a session takes it.
class TransportHandle {
 public:
  /// @param network  network that the transport belongs to and that must outlive it; may be null
  TransportHandle(std::unique_ptr<Transport> transport, std::shared_ptr<void> network);
  TransportHandle(TransportHandle&&) noexcept = default;
  TransportHandle& operator=(TransportHandle&&) = delete;
  TransportHandle(const TransportHandle&) = delete;
  TransportHandle& operator=(const TransportHandle&) = delete;
  ~TransportHandle();

  /// Returns the transport.
  /// @throws InputError if a session has taken it, ClosedError in a forked process
  Transport& use() const;
  /// Checks that a session may take it.
  /// @throws as use()
  void expect_usable() const { static_cast<void>(use()); }
  /// Passes ownership to a session, which must have copied network() before.
  /// @throws as use()
  std::unique_ptr<Transport> take();
  std::shared_ptr<void> network() const { return network_; }

 private:
  Process process_;
  std::shared_ptr<void> network_;
  OfThisProcess<Transport> transport_;  // destroyed before its network
};

/// Converts a timeout from seconds.
/// @throws InputError unless it is above 0 and at most 1e9 seconds
std::chrono::milliseconds deadline_of(double seconds);

}  // namespace sparsesync::python
