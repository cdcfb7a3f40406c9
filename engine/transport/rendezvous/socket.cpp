#include "engine/transport/rendezvous/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <system_error>
#include <utility>

#include "kernels/base/printable.h"

namespace sparsesync::rendezvous {
namespace {

using std::chrono::milliseconds;

/// How long a worker waits for an address that does not answer.
constexpr milliseconds kConnecting{5000};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Returns the addresses of a host; null with a description in `obstacle` if there are none.
Addresses resolve(const Address& address, std::string& obstacle) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) {
    obstacle = fmt::format("{} cannot be resolved: {}", in_quotes(address.host),
                           error == EAI_SYSTEM ? text_of(errno) : gai_strerror(error));
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

/// Returns a new non-blocking socket that sends small messages at once; none on failure.
Socket open_socket(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                         address.ai_protocol));
  if (socket.descriptor() < 0) return socket;
  const int on = 1;
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

}  // namespace

std::string text_of(int error) {
  return std::system_category().message(error);
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

void poll_until(std::span<pollfd> polled, Clock::time_point until) {
  constexpr milliseconds kLongestWait{60'000};
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  const auto wait = static_cast<int>(std::clamp(left, milliseconds(0), kLongestWait).count());
  if (::poll(polled.data(), polled.size(), wait) >= 0) return;
  if (errno != EINTR) throw Error(fmt::format("poll() failed: {}", text_of(errno)));
  for (pollfd& each : polled) each.revents = 0;
}

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  other.close();
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Address parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    Address address{text.substr(0, colon), text.substr(colon + 1)};
    std::string& host = address.host;
    const bool is_bracketed = host.starts_with('[') && host.ends_with(']');
    if (is_bracketed) host = host.substr(1, host.size() - 2);
    std::uint16_t port = 0;
    const char* const end = address.port.data() + address.port.size();
    const auto [stop, error] = std::from_chars(address.port.data(), end, port);
    const bool is_host = !host.empty() && host.find_first_of("[]\0", 0, 3) == std::string::npos &&
                         (host.find(':') != std::string::npos) == is_bracketed;
    if (is_host && error == std::errc() && stop == end && port != 0) return address;
  }
  throw InputError(fmt::format(
      "{} is not an address: write HOST:PORT or [IPV6]:PORT, for example 10.0.0.1:29500",
      in_quotes(text)));
}

Socket listen_at(const std::string& text, const Address& address) {
  std::string obstacle;
  const Addresses addresses = resolve(address, obstacle);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    Socket socket = open_socket(*each);
    int error = socket.descriptor() < 0 ? errno : 0;
    if (error == 0 && (::bind(socket.descriptor(), each->ai_addr, each->ai_addrlen) != 0 ||
                       ::listen(socket.descriptor(), SOMAXCONN) != 0)) {
      error = errno;
    }
    if (error == 0) return socket;
    if (error == EADDRINUSE) {
      throw Error(
          fmt::format("worker 0 cannot listen at {}: the port is taken: stop the program that uses "
                      "it, or choose another port for all workers",
                      text));
    }
    obstacle = text_of(error);
  }
  throw Error(fmt::format(
      "worker 0 cannot listen at {}: {}: choose an address of the machine that runs worker 0", text,
      obstacle));
}

Socket connect_to(const Address& address, Clock::time_point until, std::string& obstacle) {
  const Addresses addresses = resolve(address, obstacle);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    Socket socket = open_socket(*each);
    int error = socket.descriptor() < 0 ? errno : 0;
    if (error == 0 && ::connect(socket.descriptor(), each->ai_addr, each->ai_addrlen) != 0) {
      error = errno;
    }
    if (error == EINPROGRESS) {
      const Clock::time_point attempt = std::min(until, Clock::now() + kConnecting);
      pollfd polled{socket.descriptor(), POLLOUT, 0};
      do poll_until({&polled, 1}, attempt);
      while (polled.revents == 0 && Clock::now() < attempt);
      error = ETIMEDOUT;
      socklen_t bytes = sizeof(error);
      if (polled.revents != 0) {
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      }
    }
    if (error == 0) return socket;
    obstacle = text_of(error);
  }
  return {};
}

std::string name_of(const sockaddr_storage& address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host.data(), host.size(),
              port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  return fmt::format("{} port {}", host.data(), port.data());
}

}  // namespace sparsesync::rendezvous
