// ctest: NOT_QUICK
// A rendezvous of threads, and of bare sockets that behave as strangers or as broken workers.
#include "sparsesync/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <string_view>
#include <thread>

#include "engine/support/json.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Texts = std::vector<std::string>;

constexpr milliseconds kShort{50};
constexpr std::size_t kLongestText = Rendezvous::kLongestText;
const std::string kVersion = provenance().front().second;

Clock::time_point soon_enough() {
  return Clock::now() + kDeadline;
}

/// A TCP address, and a blocking socket's calls on it.
struct Endpoint {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(bytes);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

/// A descriptor of a blocking socket. Its calls fail after kDeadline.
class Bare {
 public:
  explicit Bare(int descriptor) : descriptor_(descriptor) {
    const timeval limit{std::chrono::duration_cast<seconds>(kDeadline).count(), 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
  Bare(Bare&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Bare& operator=(Bare&&) = delete;
  ~Bare() { close(); }
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }

  int descriptor() const { return descriptor_; }

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  /// Receives some bytes; fewer if the other side closes the connection before.
  std::string receive(std::size_t bytes) const {
    std::string got(bytes, '\0');
    const ssize_t received = ::recv(descriptor_, got.data(), bytes, MSG_WAITALL);
    got.resize(static_cast<std::size_t>(std::max<ssize_t>(received, 0)));
    return got;
  }
  /// Receives until the other side closes the connection.
  std::string receive_all() const {
    std::string all;
    for (std::string got = receive(1); !got.empty(); got = receive(1)) all += got;
    return all;
  }
  /// Returns the name of this socket in log lines of the other side.
  std::string name() const {
    Endpoint own;
    getsockname(descriptor_, own.get(), &own.size);
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(own.bytes);
    return fmt::format("127.0.0.1 port {}", ntohs(v4.sin_port));
  }

 private:
  int descriptor_;
};

/// An IPv4 address that no other test uses at the same time: it contains the process's number.
struct Address {
  Endpoint endpoint;
  std::string text;
};

/// Returns a listening socket at an unused port.
std::pair<Bare, Address> listening() {
  const auto process = static_cast<std::uint32_t>(getpid());
  Address address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.endpoint.bytes);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl((127U << 24U) + (1U << 22U) + (process & ((1U << 22U) - 1)));
  address.endpoint.size = sizeof(v4);
  Bare socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(socket.descriptor(), address.endpoint.get(), address.endpoint.size), 0);
  EXPECT_EQ(::listen(socket.descriptor(), 16), 0);
  getsockname(socket.descriptor(), address.endpoint.get(), &address.endpoint.size);
  std::array<char, INET_ADDRSTRLEN> host{};
  inet_ntop(AF_INET, &v4.sin_addr, host.data(), host.size());
  address.text = fmt::format("{}:{}", host.data(), ntohs(v4.sin_port));
  return {std::move(socket), address};
}

/// Returns an address without a listener.
Address free_address() {
  return listening().second;
}

Bare accepted(const Bare& listener) {
  Bare connection(::accept(listener.descriptor(), nullptr, nullptr));
  EXPECT_GE(connection.descriptor(), 0);
  return connection;
}

/// Returns a connection, once the address has a listener.
Bare connected(Address address) {
  while (true) {
    Bare socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int result =
        ::connect(socket.descriptor(), address.endpoint.get(), address.endpoint.size);
    if (result == 0) return socket;
    std::this_thread::sleep_for(milliseconds(5));
  }
}

enum Kind : std::uint8_t {
  hello,
  welcome,
  ready,
  text,
  overdue,
  lost,
  deadline,
  input,
  protocol,
  failed
};

/// Returns a number's bytes.
template <typename Number>
std::string raw(Number number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string header(std::uint8_t kind, int rank, std::uint32_t bytes, std::uint16_t version = 1) {
  return "SpRv" + raw(version) + raw(kind) + raw(std::uint8_t{0}) + raw(rank) + raw(bytes);
}

std::string message(std::uint8_t kind, int rank, const std::string& bytes) {
  return header(kind, rank, static_cast<std::uint32_t>(bytes.size())) + bytes;
}

/// Returns all that worker 0 of 2 sends until both texts, "a" and "b", are gathered.
std::string met_and_gathered() {
  return message(welcome, 0, "") + message(ready, 0, "") + message(text, 0, "a") +
         message(text, 1, "b");
}

std::string hello_of(int rank, int size, const std::string& version = kVersion) {
  return message(hello, rank, raw(size) + version);
}

/// Returns a bare worker that worker 0 has accepted.
Bare joined(const Address& address, int rank, int size) {
  Bare worker = connected(address);
  worker.send(hello_of(rank, size));
  EXPECT_EQ(worker.receive(16), message(welcome, 0, ""));
  return worker;
}

/// Starts a worker that meets and then calls `body`.
template <typename Body>
auto start(const Address& address, int rank, int size, const Body& body) {
  return std::async(std::launch::async, [=] {
    const std::unique_ptr<Rendezvous> met = meet_at(address.text, Rank{rank}, size, kDeadline);
    return body(*met);
  });
}

Texts gather_once(Rendezvous& met) {
  return met.all_gather(fmt::format("text of {}", met.rank().value), soon_enough());
}

/// Starts a worker that gathers once.
std::future<Texts> start(const Address& address, int rank, int size) {
  return start(address, rank, size, gather_once);
}

/// Returns the error of a future or a function.
template <typename Body>
std::exception_ptr error_of(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}
template <typename Result>
std::exception_ptr error_of(std::future<Result>& future) {
  return error_of([&] { future.get(); });
}

template <typename E>
void expect_error(const std::exception_ptr& error, const std::string& text) {
  EXPECT_TRUE(is<E>(error)) << text_of(error);
  EXPECT_EQ(text_of(error), text);
}

Rank lost_peer(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& loss) {
    return loss.peer();
  } catch (...) {
    return Rank{-1};
  }
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

/// Verifies that each test closes all descriptors.
class RendezvousTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(open_descriptors(), before_); }

 private:
  std::ptrdiff_t before_ = open_descriptors();
};

/// Text of a worker in a round: empty to the longest.
std::string text_in_round(int rank, int round) {
  constexpr std::array<std::size_t, 5> kBytes{0, 1, 1000, 100'000, kLongestText};
  const std::size_t bytes = kBytes.at(static_cast<std::size_t>(rank + round) % kBytes.size());
  return std::string(bytes, static_cast<char>(rank * 16 + round));
}

TEST_F(RendezvousTest, gathers_texts_of_any_length_by_rank) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7}) {
    const Address address = free_address();
    const auto gather = [](Rendezvous& met) {
      EXPECT_EQ(met.all_gather("", soon_enough()), Texts(static_cast<std::size_t>(met.size())));
      for (int round = 0; round < 5; ++round) {
        const Texts all = met.all_gather(text_in_round(met.rank().value, round), soon_enough());
        ASSERT_EQ(std::ssize(all), met.size());
        for (int rank = 0; rank < met.size(); ++rank) {
          EXPECT_TRUE(all[static_cast<std::size_t>(rank)] == text_in_round(rank, round));
        }
      }
    };
    std::vector<std::future<void>> workers;
    for (int rank = 0; rank < size; ++rank) workers.push_back(start(address, rank, size, gather));
    for (std::future<void>& worker : workers) worker.get();
  }
}

TEST_F(RendezvousTest, workers_start_in_any_order) {
  std::vector<int> order{0, 1, 2};
  do {
    const Address address = free_address();
    std::vector<std::future<Texts>> workers;
    for (const int rank : order) {
      workers.push_back(start(address, rank, 3));
      std::this_thread::sleep_for(milliseconds(10));
    }
    for (std::future<Texts>& worker : workers) {
      EXPECT_EQ(worker.get(), (Texts{"text of 0", "text of 1", "text of 2"}));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(RendezvousTest, a_port_is_free_after_the_workers_have_met) {
  const Address address = free_address();
  const auto meet_again = [&](Rendezvous& first) {
    gather_once(first);
    const auto second = meet_at(address.text, first.rank(), 2, kDeadline);
    gather_once(first);
    return gather_once(*second);
  };
  auto one = start(address, 1, 2, meet_again);
  auto zero = start(address, 0, 2, meet_again);
  EXPECT_EQ(zero.get(), one.get());
}

TEST_F(RendezvousTest, meets_over_ipv6) {
  Endpoint endpoint;
  auto& v6 = reinterpret_cast<sockaddr_in6&>(endpoint.bytes);
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  endpoint.size = sizeof(v6);
  Bare socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(socket.descriptor(), endpoint.get(), endpoint.size) != 0) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  getsockname(socket.descriptor(), endpoint.get(), &endpoint.size);
  socket.close();
  const Address address{endpoint, fmt::format("[::1]:{}", ntohs(v6.sin6_port))};
  auto one = start(address, 1, 2);
  auto zero = start(address, 0, 2);
  EXPECT_EQ(zero.get(), (Texts{"text of 0", "text of 1"}));
  EXPECT_EQ(one.get(), (Texts{"text of 0", "text of 1"}));
}

// ---- Arguments.

TEST_F(RendezvousTest, malformed_addresses_are_refused) {
  for (const char* const address :
       {"", "host", ":5000", "host:", "host:0", "host:65536", "host:-1", "host:+1", "host: 1",
        "host:1x", "::1:5000", "[::1]", "[::1]5000", "[]:5000", "[host]:5000", "::1]:5000",
        "[::1:5000"}) {
    expect_error<InputError>(
        error_of([&] { meet_at(address, Rank{0}, 2, kShort); }),
        fmt::format("'{}' is not an address: write HOST:PORT or [IPV6]:PORT, for example "
                    "10.0.0.1:29500",
                    address));
  }
}

TEST_F(RendezvousTest, impossible_ranks_and_sizes_are_refused) {
  const auto error = [](int rank, int size) {
    return error_of([&] { meet_at("127.0.0.1:5000", Rank{rank}, size, kShort); });
  };
  expect_error<InputError>(error(2, 2), "rank 2 is not in [0, 2)");
  expect_error<InputError>(error(-1, 2), "rank -1 is not in [0, 2)");
  expect_error<InputError>(error(0, 0), "a rendezvous of 0 workers: it needs 1 to 65536");
  expect_error<InputError>(error(0, 65537), "a rendezvous of 65537 workers: it needs 1 to 65536");
}

TEST_F(RendezvousTest, a_text_that_is_too_long_is_refused_before_it_is_sent) {
  const Address address = free_address();
  const auto gather = [](Rendezvous& met) {
    expect_error<InputError>(
        error_of([&] { met.all_gather(std::string(kLongestText + 1, 'a'), soon_enough()); }),
        "a text of 1048577 bytes is too long for a rendezvous: at most 1048576 are allowed");
    return gather_once(met);
  };
  auto zero = start(address, 0, 2, gather);
  auto one = start(address, 1, 2, gather);
  EXPECT_EQ(zero.get(), one.get());
}

TEST_F(RendezvousTest, a_taken_port_is_named) {
  const auto [listener, address] = listening();
  expect_error<Error>(
      error_of([&] { meet_at(address.text, Rank{0}, 2, kDeadline); }),
      fmt::format("worker 0 cannot listen at {}: the port is taken: stop the program that uses it, "
                  "or choose another port for all workers",
                  address.text));
}

TEST_F(RendezvousTest, worker_0_listens_on_its_own_machine) {
  expect_error<Error>(error_of([] { meet_at("192.0.2.1:5000", Rank{0}, 2, kDeadline); }),
                      "worker 0 cannot listen at 192.0.2.1:5000: Cannot assign requested address: "
                      "choose an address of the machine that runs worker 0");
}

// ---- Strangers.

/// Something that connects, and the reason for which it is refused.
struct Visit {
  std::string bytes;
  std::string reason;
  std::uint8_t kind = protocol;
};

std::vector<Visit> visits() {
  return {
      {"GET / HTTP/1.0\r\n\r\n", "it does not speak the protocol of a sparsesync rendezvous"},
      {std::string(1000, '\0'), "it does not speak the protocol of a sparsesync rendezvous"},
      {header(hello, 1, 0, 2),
       "it speaks version 2 of the rendezvous protocol instead of version 1: install the same "
       "version of sparsesync for all workers"},
      {header(hello, 1, 0xFFFF'FFFFU),
       "it announced a message of 4294967295 bytes: at most 64 are allowed"},
      {message(hello, 1, "abc"), "it sent a malformed hello"},
      {message(text, 1, raw(3) + kVersion), "it sent a malformed hello"},
      {hello_of(1, 3, "0.0.1\n"),
       fmt::format("worker 1 runs sparsesync 0.0.1\\x0a, but worker 0 runs {}: install the same "
                   "version for all workers",
                   kVersion)},
      {hello_of(1, 4),
       "worker 1 is one of 4 workers, but worker 0 is one of 3: start all workers with the same "
       "size",
       input},
      {hello_of(3, 3), "rank 3 is not in [0, 3)", input},
      {hello_of(-1, 3), "rank -1 is not in [0, 3)", input},
      {hello_of(0, 3), "rank 0 is taken: start each worker with a different rank", input},
      {hello_of(2, 3), "rank 2 is taken: start each worker with a different rank", input},
  };
}

TEST_F(RendezvousTest, strangers_are_refused_with_a_reason) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  const Bare two = joined(address, 2, 3);
  const std::vector<Visit> all = visits();
  ::testing::internal::CaptureStderr();
  std::string lines;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Bare stranger = connected(address);
    stranger.send(all[i].bytes);
    EXPECT_EQ(stranger.receive_all(),
              message(all[i].kind, 0,
                      fmt::format("the rendezvous at {} refused this worker: {}", address.text,
                                  all[i].reason)));
    if (i < 5) {
      lines += fmt::format(
          "sparsesync: warning: the rendezvous at {} refused a connection from {}: {}\n",
          address.text, stranger.name(), all[i].reason);
    }
  }
  auto one = start(address, 1, 3);
  two.send(message(text, 2, "bare"));
  EXPECT_EQ(zero.get(), (Texts{"text of 0", "text of 1", "bare"}));
  EXPECT_EQ(one.get(), (Texts{"text of 0", "text of 1", "bare"}));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            lines + fmt::format("sparsesync: warning: the rendezvous at {} refused {} connections "
                                "in total\n",
                                address.text, all.size()));
}

TEST_F(RendezvousTest, silent_strangers_do_not_delay_workers) {
  const Address address = free_address();
  ::testing::internal::CaptureStderr();
  auto zero = start(address, 0, 2);
  const Bare silent = connected(address);
  Bare gone = connected(address);
  gone.send(hello_of(1, 2).substr(0, 10));
  gone.close();
  const Bare half = connected(address);
  half.send(hello_of(1, 2).substr(0, 21));
  for (int i = 0; i < 2; ++i) {  // worker 0 serves the others between two connections
    const Bare loud = connected(address);
    loud.send("x");
    EXPECT_NE(loud.receive_all(), "");
  }
  auto one = start(address, 1, 2);
  EXPECT_EQ(zero.get(), (Texts{"text of 0", "text of 1"}));
  EXPECT_EQ(one.get(), (Texts{"text of 0", "text of 1"}));
  EXPECT_EQ(silent.receive_all(), "");
  EXPECT_EQ(half.receive_all(), "");
  const std::string lines = ::testing::internal::GetCapturedStderr();
  const auto count = [&](const std::string& line) {
    std::size_t found = 0;
    for (std::size_t at = lines.find(line); at != std::string::npos; at = lines.find(line, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("it did not identify itself\n"), 2U) << lines;
  EXPECT_EQ(count("it disconnected before it identified itself\n"), 1U) << lines;
}

TEST_F(RendezvousTest, a_thousand_connections_do_not_exhaust_descriptors) {
  const Address address = free_address();
  ::testing::internal::CaptureStderr();
  auto zero = start(address, 0, 2);
  for (int batch = 0; batch < 4; ++batch) {
    std::vector<Bare> silent;
    for (int i = 0; i < 249; ++i) silent.push_back(connected(address));
    const Bare last = connected(address);  // connections are accepted in order
    last.send("x");
    EXPECT_NE(last.receive_all(), "");
    for (int i = 0; i < 100; ++i) EXPECT_EQ(silent[static_cast<std::size_t>(i)].receive_all(), "");
    if (batch < 3) continue;
    auto one = start(address, 1, 2);
    EXPECT_EQ(zero.get(), (Texts{"text of 0", "text of 1"}));
    EXPECT_EQ(one.get(), (Texts{"text of 0", "text of 1"}));
  }
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("refused 1000 connections in total\n"),
            std::string::npos);
}

/// Lowers the limit of descriptors to those in use, as long as it lives.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const Bare lowest(::dup(STDIN_FILENO));
    const rlimit none{static_cast<rlim_t>(lowest.descriptor()), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(RendezvousTest, strangers_leave_when_descriptors_run_out) {
  const Address address = free_address();
  auto zero = start(address, 0, 2);
  const Bare silent = connected(address);
  {  // worker 0 has accepted the silent one when it answers the next
    const Bare loud = connected(address);
    loud.send("x");
    EXPECT_NE(loud.receive_all(), "");
  }
  const std::array<Bare, 2> sockets{Bare(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                                    Bare(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const NoMoreDescriptors limit;
  Endpoint to = address.endpoint;
  EXPECT_EQ(::connect(sockets[0].descriptor(), to.get(), to.size), 0);
  EXPECT_EQ(silent.receive_all(), "");
  sockets[0].send("x");
  EXPECT_NE(sockets[0].receive_all(), "");
  const Bare last(::dup(STDIN_FILENO));
  EXPECT_EQ(::connect(sockets[1].descriptor(), to.get(), to.size), 0);
  expect_error<Error>(error_of(zero),
                      fmt::format("worker 0 cannot accept connections at {}: Too many open files: "
                                  "raise the limit of open files (ulimit -n)",
                                  address.text));
}

TEST_F(RendezvousTest, a_refused_worker_reports_the_reason) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  auto other_size = start(address, 1, 4);
  expect_error<InputError>(
      error_of(other_size),
      fmt::format("the rendezvous at {} refused this worker: worker 1 is one of 4 workers, but "
                  "worker 0 is one of 3: start all workers with the same size",
                  address.text));
  Bare one = joined(address, 1, 3);
  auto other_one = start(address, 1, 3);
  expect_error<InputError>(error_of(other_one),
                           fmt::format("the rendezvous at {} refused this worker: rank 1 is taken: "
                                       "start each worker with a different rank",
                                       address.text));
  one.close();
  error_of(zero);
}

TEST_F(RendezvousTest, no_stranger_connects_during_a_gather) {
  const Address address = free_address();
  std::promise<void> refused;
  const auto gather = [&](Rendezvous& met) {
    if (met.rank().value == 1) refused.get_future().wait();
    return gather_once(met);
  };
  auto zero = start(address, 0, 2, [&](Rendezvous& met) {
    const Bare stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Endpoint to = address.endpoint;
    EXPECT_NE(::connect(stranger.descriptor(), to.get(), to.size), 0);
    EXPECT_EQ(errno, ECONNREFUSED);
    refused.set_value();
    return gather(met);
  });
  auto one = start(address, 1, 2, gather);
  EXPECT_EQ(zero.get(), one.get());
}

// ---- Deadlines.

/// Returns the message of a DeadlineError about one worker.
std::string deadline_text(int waiting, const Address& address, int missing,
                          const std::string& detail = "") {
  return fmt::format(
      "worker {0} waited at {1} for worker {2} until the deadline{3}: check that worker {2} runs "
      "and uses this address, or set a longer deadline",
      waiting, address.text, missing, detail);
}

TEST_F(RendezvousTest, worker_0_names_workers_that_do_not_connect) {
  const Address address = free_address();
  expect_error<DeadlineError>(error_of([&] { meet_at(address.text, Rank{0}, 2, kShort); }),
                              deadline_text(0, address, 1));
  const auto named = [&](int size, const std::string& workers) {
    expect_error<DeadlineError>(
        error_of([&] { meet_at(address.text, Rank{0}, size, kShort); }),
        fmt::format("worker 0 waited at {0} for {1} until the deadline: check that {1} run and use "
                    "this address, or set a longer deadline",
                    address.text, workers));
  };
  named(4, "workers 1, 2, 3");
  named(100, "workers 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 83 more");
}

TEST_F(RendezvousTest, a_worker_without_worker_0_names_it) {
  const Address address = free_address();
  expect_error<DeadlineError>(error_of([&] { meet_at(address.text, Rank{1}, 2, kShort); }),
                              deadline_text(1, address, 0, " (Connection refused)"));
  const auto [silent, other] = listening();
  expect_error<DeadlineError>(error_of([&] { meet_at(other.text, Rank{1}, 2, kShort); }),
                              deadline_text(1, other, 0));
}

TEST_F(RendezvousTest, a_deadline_error_mentions_refused_connections) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  const Bare one = joined(address, 1, 3);
  const Bare other = connected(address);
  other.send(hello_of(2, 4));
  EXPECT_NE(other.receive_all(), "");
  one.send(message(overdue, 1, ""));
  const std::string answer = message(
      deadline, 0,
      deadline_text(1, address, 2,
                    " (1 connection was refused, the last because worker 2 is one of 4 workers, "
                    "but worker 0 is one of 3: start all workers with the same size)"));
  EXPECT_EQ(one.receive(answer.size()), answer);
  const Bare two = joined(address, 2, 3);
  one.send(message(text, 1, ""));
  two.send(message(text, 2, ""));
  EXPECT_EQ(zero.get(), (Texts{"text of 0", "", ""}));
}

TEST_F(RendezvousTest, worker_0_names_workers_that_do_not_gather) {
  const Address address = free_address();
  auto zero =
      std::async(std::launch::async, [&] { return meet_at(address.text, Rank{0}, 3, kDeadline); });
  const Bare one = joined(address, 1, 3);
  const Bare two = joined(address, 2, 3);
  const std::unique_ptr<Rendezvous> met = zero.get();
  one.send(message(text, 1, "bare"));
  const std::exception_ptr error = error_of([&] { met->all_gather("", Clock::now() - kDeadline); });
  expect_error<DeadlineError>(error, deadline_text(0, address, 2));
  for (const Bare* each : {&one, &two}) {
    EXPECT_EQ(each->receive_all(), message(ready, 0, "") + message(deadline, 0, text_of(error)));
  }
  expect_error<DeadlineError>(error_of([&] { gather_once(*met); }), text_of(error));
}

TEST_F(RendezvousTest, worker_0_does_not_wait_for_workers_that_do_not_read) {
  const Address address = free_address();
  auto zero = start(address, 0, 8, [](Rendezvous& met) {
    return error_of([&] { met.all_gather("", Clock::now() + seconds(1)); });
  });
  std::vector<Bare> others;
  for (int rank = 1; rank < 8; ++rank) others.push_back(joined(address, rank, 8));
  // All texts are larger than the buffers of a socket.
  const std::string longest = message(text, 0, std::string(kLongestText, 'a'));
  for (const Bare& each : others) each.send(longest);
  EXPECT_TRUE(is<DeadlineError>(zero.get()));
}

TEST_F(RendezvousTest, worker_0_answers_a_worker_at_its_deadline) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  const Bare one = joined(address, 1, 3);
  const std::string answer = message(deadline, 0, deadline_text(1, address, 2));
  one.send(message(overdue, 1, ""));
  EXPECT_EQ(one.receive(answer.size()), answer);
  const Bare two = joined(address, 2, 3);
  EXPECT_EQ(one.receive(16), message(ready, 0, ""));
  one.send(message(text, 1, "bare") + message(overdue, 1, ""));
  EXPECT_EQ(one.receive(answer.size()), answer);
  two.send(message(text, 2, "bare"));
  EXPECT_EQ(zero.get(), (Texts{"text of 0", "bare", "bare"}));
}

TEST_F(RendezvousTest, worker_0_names_the_missing_worker_after_another_ones_deadline) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  const std::string answer = message(deadline, 0, deadline_text(1, address, 2));
  {
    const Bare one = joined(address, 1, 3);
    one.send(message(overdue, 1, ""));
    EXPECT_EQ(one.receive(answer.size()), answer);
  }
  expect_error<DeadlineError>(error_of(zero), deadline_text(1, address, 2));
}

TEST_F(RendezvousTest, worker_0_ignores_a_question_about_an_earlier_gather) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  const Bare one = joined(address, 1, 3);
  const Bare two = joined(address, 2, 3);
  one.send(message(overdue, 1, ""));
  one.send(message(text, 1, "b"));
  two.send(message(text, 2, "c"));
  EXPECT_EQ(zero.get(), (Texts{"text of 0", "b", "c"}));
  EXPECT_EQ(one.receive_all(), message(ready, 0, "") + message(text, 0, "text of 0") +
                                   message(text, 1, "b") + message(text, 2, "c"));
}

// ---- Lost and broken workers.

std::string lost_text(int worker, const Address& address) {
  return fmt::format("worker {} left the rendezvous at {}: see its error for the cause", worker,
                     address.text);
}

void expect_lost(const std::exception_ptr& error, int worker, const Address& address) {
  expect_error<PeerLostError>(error, lost_text(worker, address));
  EXPECT_EQ(lost_peer(error), Rank{worker});
}

TEST_F(RendezvousTest, a_worker_that_leaves_is_named_by_all_others) {
  for (const int leaving : {0, 1, 3}) {
    const Address address = free_address();
    std::vector<std::future<void>> workers;
    for (int rank = 0; rank < 4; ++rank) {
      workers.push_back(start(address, rank, 4, [=](Rendezvous& met) {
        gather_once(met);
        if (met.rank().value == leaving) return;
        expect_lost(error_of([&] { gather_once(met); }), leaving, address);
        expect_lost(error_of([&] { gather_once(met); }), leaving, address);
      }));
    }
    for (std::future<void>& worker : workers) worker.get();
  }
}

TEST_F(RendezvousTest, a_worker_that_leaves_before_all_have_met_is_named) {
  const Address address = free_address();
  auto zero = start(address, 0, 4);
  const Bare two = joined(address, 2, 4);
  joined(address, 1, 4).close();
  expect_lost(error_of(zero), 1, address);
  EXPECT_EQ(two.receive_all(), message(lost, 1, lost_text(1, address)));
}

TEST_F(RendezvousTest, a_worker_that_leaves_within_its_text_is_named) {
  const Address address = free_address();
  auto zero = start(address, 0, 3);
  Bare one = joined(address, 1, 3);
  auto two = start(address, 2, 3);
  EXPECT_EQ(one.receive(16), message(ready, 0, ""));
  one.send(message(text, 1, std::string(kLongestText, 'a')).substr(0, kLongestText / 2));
  one.close();
  expect_lost(error_of(zero), 1, address);
  expect_lost(error_of(two), 1, address);
}

TEST_F(RendezvousTest, a_worker_that_leaves_within_the_result_fails_the_next_gather) {
  const Address address = free_address();
  const auto gather = [=](Rendezvous& met) {
    const std::string longest(kLongestText, 'a');
    EXPECT_EQ(met.all_gather(longest, soon_enough()), Texts(4, longest));
    expect_lost(error_of([&] { gather_once(met); }), 1, address);
  };
  auto zero = start(address, 0, 4, gather);
  Bare one = joined(address, 1, 4);
  auto two = start(address, 2, 4, gather);
  auto three = start(address, 3, 4, gather);
  EXPECT_EQ(one.receive(16), message(ready, 0, ""));
  one.send(message(text, 1, std::string(kLongestText, 'a')));
  EXPECT_EQ(one.receive(16), header(text, 0, kLongestText));
  one.close();
  zero.get();
  two.get();
  three.get();
}

TEST_F(RendezvousTest, a_worker_that_breaks_the_protocol_ends_the_rendezvous) {
  for (const auto& [bytes, fault] : std::vector<std::pair<std::string, std::string>>{
           {"garbage", "worker 1 does not speak the protocol of a sparsesync rendezvous"},
           {header(text, 1, 0xFFFF'FFFFU),
            "worker 1 announced a message of 4294967295 bytes: at most 1048576 are allowed"},
           {message(text, 1, "") + message(text, 1, ""),
            "worker 1 sent an unexpected message to the rendezvous at "},
           {message(failed, 1, ""), "worker 1 sent an unexpected message to the rendezvous at "},
           {message(99, 1, ""), "worker 1 sent an unexpected message to the rendezvous at "}}) {
    const Address address = free_address();
    auto zero = start(address, 0, 3);
    const Bare one = joined(address, 1, 3);
    auto two = start(address, 2, 3);
    EXPECT_EQ(one.receive(16), message(ready, 0, ""));
    one.send(bytes);
    const std::string text = fault + (fault.ends_with("at ") ? address.text : "");
    expect_error<ProtocolError>(error_of(zero), text);
    expect_error<ProtocolError>(error_of(two), text);
    EXPECT_EQ(one.receive_all(), message(protocol, 0, text));
  }
}

// ---- A worker, against a bare worker 0.

/// Returns the error of worker 1 of 2 if worker 0 sends these bytes. Then worker 0 closes the
/// connection.
std::exception_ptr error_after(const Bare& listener, const Address& address,
                               const std::string& bytes) {
  auto one = start(address, 1, 2);
  const Bare connection = accepted(listener);
  EXPECT_EQ(connection.receive(hello_of(1, 2).size()), hello_of(1, 2));
  connection.send(bytes);
  ::shutdown(connection.descriptor(), SHUT_WR);
  return error_of(one);
}

TEST_F(RendezvousTest, a_worker_reports_what_listens_instead_of_worker_0) {
  const auto [listener, address] = listening();
  const std::string met = message(welcome, 0, "") + message(ready, 0, "");
  const auto expect_protocol_error = [&](const std::string& bytes, const std::string& fault) {
    expect_error<ProtocolError>(error_after(listener, address, bytes),
                                fmt::format(fmt::runtime(fault), address.text));
  };
  const std::string unexpected = "worker 0 sent an unexpected message to the rendezvous at {}";
  expect_protocol_error(
      "HTTP/1.1 400 Bad Request\r\n",
      "the program that listens at {} does not speak the protocol of a sparsesync rendezvous");
  expect_protocol_error(header(welcome, 0, 0, 7),
                        "the program that listens at {} speaks version 7 of the rendezvous "
                        "protocol instead of version 1: install the same version of sparsesync "
                        "for all workers");
  expect_protocol_error(header(welcome, 0, 1U << 31U),
                        "the program that listens at {} announced a message of 2147483648 bytes: "
                        "at most 1048576 are allowed");
  expect_protocol_error(message(text, 0, ""), unexpected);
  expect_protocol_error(message(welcome, 0, "") + message(welcome, 0, ""), unexpected);
  expect_protocol_error(met + message(text, 1, ""), unexpected);
  expect_protocol_error(met + message(lost, 2, "who?"), unexpected);
  expect_protocol_error(message(protocol, 0, "a\nfox"), "a\\x0afox");
  expect_error<Error>(error_after(listener, address, met + message(failed, 0, "a fox")), "a fox");
  expect_lost(error_after(listener, address, message(welcome, 0, "")), 0, address);
  expect_lost(error_after(listener, address, met + message(text, 0, "")), 0, address);
}

TEST_F(RendezvousTest, a_worker_connects_again_until_it_is_welcome) {
  const auto [listener, address] = listening();
  auto one = start(address, 1, 2);
  for (int i = 0; i < 3; ++i) accepted(listener).close();
  const Bare connection = accepted(listener);
  connection.send(met_and_gathered());
  EXPECT_EQ(one.get(), (Texts{"a", "b"}));
}

TEST_F(RendezvousTest, a_worker_that_is_connected_to_itself_connects_again) {
  const auto [listener, address] = listening();
  auto one = start(address, 1, 2);
  {
    const Bare connection = accepted(listener);
    connection.send(hello_of(1, 2));
    EXPECT_EQ(connection.receive_all(), hello_of(1, 2));
  }
  const Bare connection = accepted(listener);
  connection.send(met_and_gathered());
  EXPECT_EQ(one.get(), (Texts{"a", "b"}));
}

TEST_F(RendezvousTest, a_worker_at_its_deadline_asks_worker_0) {
  const auto [listener, address] = listening();
  auto one = start(address, 1, 2, [](Rendezvous& met) {
    return error_of([&] { met.all_gather("mine", Clock::now()); });
  });
  const Bare connection = accepted(listener);
  connection.send(message(welcome, 0, "") + message(ready, 0, ""));
  EXPECT_EQ(connection.receive_all(),
            hello_of(1, 2) + message(text, 1, "mine") + message(overdue, 1, ""));
  expect_error<DeadlineError>(one.get(), deadline_text(1, address, 0));
}

}  // namespace
}  // namespace sparsesync::testing
