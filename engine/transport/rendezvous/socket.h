// TCP sockets of a rendezvous.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <span>
#include <string>

#include "sparsesync/transport.h"

namespace sparsesync::rendezvous {

/// Returns the description of an error number.
std::string text_of(int error);

/// Whether a call on a non-blocking socket should be repeated after poll().
bool would_block();

/// Waits for events until the deadline, or shorter.
void poll_until(std::span<pollfd> polled, Clock::time_point until);

/// Owns a descriptor. -1: none.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int descriptor() const { return descriptor_; }
  /// Closes the descriptor, if there is one.
  void close();

 private:
  int descriptor_ = -1;
};

/// Host and port of a rendezvous.
struct Address {
  std::string host;
  std::string port;
};

/// Splits HOST:PORT or [IPV6]:PORT.
/// @throws InputError
Address parse(const std::string& text);

/// Returns a listening socket.
/// @param text  the address as the program wrote it, for errors
/// @throws Error
Socket listen_at(const std::string& text, const Address& address);

/// Returns a connected socket; none with a description in `obstacle` if nothing listens.
Socket connect_to(const Address& address, Clock::time_point until, std::string& obstacle);

/// Returns the numeric address and port of a socket's other side.
std::string name_of(const sockaddr_storage& address, socklen_t bytes);

}  // namespace sparsesync::rendezvous
