// A UCX context with one worker: the object that owns connections and makes progress.
#pragma once

#include <memory>
#include <string>

#include "engine/transport/ucx/library.h"  // IWYU pragma: export

namespace sparsesync::ucx {

/// Settings of a Context. An empty setting leaves the choice to UCX and its environment variables.
struct ContextOptions {
  /// Network interfaces as UCX names them, separated by commas: "eth0" or "mlx5_0:1". See
  /// choose_interfaces().
  std::string interfaces{};
  /// Transports as in UCX_TLS: "tcp,sm". If it and UCX_TLS are empty, UCX chooses all but `posix`.
  std::string transports{};
};

/// Returns the interfaces to use: `asked`, UCX_NET_DEVICES or torch's GLOO_SOCKET_IFNAME, whichever
/// is the first that is not empty. The result is empty if all are; UCX then uses every interface.
/// @throws InputError if this machine lacks an interface; UCX itself would ignore it
std::string choose_interfaces(const std::string& asked);

/// A UCX context and its worker. One thread at a time may use it.
///
/// UCX's sockets lack FD_CLOEXEC: a program that the process starts inherits them. A child that
/// outlives the process keeps its connections open, so that peers notice its end late.
/// @code
/// const ucx::Context context({.interfaces = "eth0"});
/// send_to_peers(context.address());
/// ucx::library().worker_progress(context.worker());
/// @endcode
class Context {
 public:
  /// Creates the context and the worker, for active messages with event descriptors.
  ///
  /// A variable UCX_... of the environment wins over the defaults of this class, except
  /// `MM_ERROR_HANDLING`, without which shared memory reports no lost peers.
  /// @throws InputError as choose_interfaces() does
  /// @throws Error if UCX is unusable or rejects the settings
  explicit Context(const ContextOptions& options);

  /// The worker, in UCX's single-threaded mode.
  ucp_worker_h worker() const { return worker_.get(); }

  /// The worker's address, to send to its peers: some hundred arbitrary bytes.
  const std::string& address() const { return address_; }

  /// Becomes readable on an event after ucp_worker_arm(). Call ucp_worker_progress() until it
  /// returns 0 before you arm; UCX 1.13 otherwise misses messages over shared memory. The worker
  /// owns the descriptor.
  int event_descriptor() const { return event_descriptor_; }

  /// The chosen interfaces; empty means all.
  const std::string& interfaces() const { return interfaces_; }

 private:
  std::string interfaces_;
  std::unique_ptr<ucp_context, decltype(&ucp_cleanup)> context_;
  std::unique_ptr<ucp_worker, decltype(&ucp_worker_destroy)> worker_;
  std::string address_;
  int event_descriptor_ = -1;
};

}  // namespace sparsesync::ucx
