// A transport on its way from Python to a session.
#pragma once

#include <chrono>
#include <memory>

#include "python/bindings/closed.h"
#include "sparsesync/transport.h"

namespace sparsesync::python {

/// A worker's end; a session takes it.
class TransportHandle {
 public:
  /// @param network  what it is an end of, and has to outlive it; or nothing
  TransportHandle(std::unique_ptr<Transport> transport, std::shared_ptr<void> network);
  TransportHandle(TransportHandle&&) noexcept = default;
  TransportHandle& operator=(TransportHandle&&) = delete;
  TransportHandle(const TransportHandle&) = delete;
  TransportHandle& operator=(const TransportHandle&) = delete;
  ~TransportHandle();

  /// @throws InputError if a session has it, ClosedError in a forked process
  Transport& use() const;
  /// Checks that a session may take it.
  /// @throws as use()
  void expect_usable() const { static_cast<void>(use()); }
  /// Gives it to a session, which has taken network() before.
  /// @throws as use()
  std::unique_ptr<Transport> take();
  std::shared_ptr<void> network() const { return network_; }

 private:
  Process process_;
  std::shared_ptr<void> network_;
  OfThisProcess<Transport> transport_;  // goes before its network
};

/// @throws InputError if it is not above 0, or no time that a clock has
std::chrono::milliseconds deadline_of(double seconds);

}  // namespace sparsesync::python
