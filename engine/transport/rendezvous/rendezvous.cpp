#include "sparsesync/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/support/log.h"
#include "engine/transport/rendezvous/connection.h"
#include "engine/transport/rendezvous/socket.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace rendezvous {
namespace {

using std::chrono::milliseconds;

/// Most connections that have not identified themselves. The oldest is closed for another one.
constexpr std::size_t kMostStrangers = 128;
/// Refused connections that are logged one by one.
constexpr int kLoggedRefusals = 5;
constexpr std::size_t kLongestHello = 64;
/// Pauses between attempts to connect. They grow, because each attempt may ask a name server.
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{1000};
/// How long a worker waits at its deadline for worker 0 to name the missing workers.
constexpr milliseconds kAnswer{500};
/// How long worker 0 sends the reason of a failure.
constexpr milliseconds kFarewell{500};

/// Throws the error that worker 0 sent.
[[noreturn]] void throw_received(const Message& message) {
  const std::string text = printable(message.text, {.longest = 2000});
  if (message.kind == Kind::lost) throw PeerLostError(message.rank, text);
  if (message.kind == Kind::deadline) throw DeadlineError(text);
  if (message.kind == Kind::input) throw InputError(text);
  if (message.kind == Kind::protocol) throw ProtocolError(text);
  throw Error(text);
}

/// Returns the kind of the message that announces an error.
Kind kind_of(const std::exception& error) {
  if (dynamic_cast<const PeerLostError*>(&error) != nullptr) return Kind::lost;
  if (dynamic_cast<const DeadlineError*>(&error) != nullptr) return Kind::deadline;
  if (dynamic_cast<const InputError*>(&error) != nullptr) return Kind::input;
  if (dynamic_cast<const ProtocolError*>(&error) != nullptr) return Kind::protocol;
  return Kind::failed;
}

/// Returns "worker 1", or "workers 1, 2 and 9 more".
std::string names_of(const std::vector<int>& workers) {
  constexpr std::size_t kNamed = 16;
  const std::size_t named = std::min(kNamed, workers.size());
  const auto end = workers.begin() + static_cast<std::ptrdiff_t>(named);
  std::string names = fmt::format("worker{} {}", workers.size() == 1 ? "" : "s",
                                  fmt::join(workers.begin(), end, ", "));
  if (named < workers.size()) names += fmt::format(" and {} more", workers.size() - named);
  return names;
}

/// Arguments of meet_at().
struct Place {
  std::string text;
  Address address;
  Rank rank;
  int size = 1;

  /// Returns the message of a DeadlineError.
  /// @param detail  facts about the wait, or empty
  std::string deadline_text(Rank waiting, const std::vector<int>& missing,
                            const std::string& detail) const {
    const std::string names = names_of(missing);
    return fmt::format(
        "worker {} waited at {} for {} until the deadline{}: check that {} {} and {} this address, "
        "or set a longer deadline",
        waiting.value, text, names, detail.empty() ? "" : fmt::format(" ({})", detail), names,
        missing.size() == 1 ? "runs" : "run", missing.size() == 1 ? "uses" : "use");
  }
  /// @throws PeerLostError
  [[noreturn]] void throw_lost(Rank peer) const {
    throw PeerLostError(
        peer, fmt::format("worker {} left the rendezvous at {}: see its error for the cause",
                          peer.value, text));
  }
};

/// Base class of both implementations. An error ends the rendezvous.
class Meeting : public Rendezvous {
 public:
  explicit Meeting(Place place) : place_(std::move(place)) {}

  Rank rank() const override { return place_.rank; }
  int size() const override { return place_.size; }

  std::vector<std::string> all_gather(const std::string& own, Clock::time_point until) override {
    if (own.size() > kLongestText) {
      throw InputError(
          fmt::format("a text of {} bytes is too long for a rendezvous: at most {} are allowed",
                      own.size(), kLongestText));
    }
    return ending_on_error([&] { return gather(own, until); });
  }

  /// Connects the workers.
  void meet(Clock::time_point until) {
    ending_on_error([&] { connect(until); });
  }

 protected:
  virtual void connect(Clock::time_point until) = 0;
  virtual std::vector<std::string> gather(const std::string& own, Clock::time_point until) = 0;
  /// Closes all connections.
  virtual void end(const std::exception& error) = 0;

  const Place& place() const { return place_; }

 private:
  template <typename Body>
  auto ending_on_error(const Body& body) -> decltype(body()) {
    if (error_) std::rethrow_exception(error_);
    try {
      return body();
    } catch (const std::exception& error) {
      error_ = std::current_exception();
      end(error);
      throw;
    }
  }

  Place place_;
  std::exception_ptr error_;
};

// ---- Worker 0.

/// Worker 0's side.
class Host : public Meeting {
 public:
  explicit Host(Place place)
      : Meeting(std::move(place)), members_(static_cast<std::size_t>(size())) {}

 protected:
  void connect(Clock::time_point until) override {
    if (size() == 1) return;
    listener_ = listen_at(place().text, place().address);
    await_members(until);
    close_listener();
    send_to_all(std::make_shared<const std::string>(encoded(Kind::ready, {}, "")), until);
  }

  std::vector<std::string> gather(const std::string& own, Clock::time_point until) override {
    members_[0].text = own;
    await_members(until);
    std::string all;
    std::vector<std::string> texts;
    for (const Rank each : Ranks(size())) {
      texts.push_back(*std::exchange(members_[each.index()].text, std::nullopt));
      all += encoded(Kind::text, each, texts.back());
    }
    send_to_all(std::make_shared<const std::string>(std::move(all)), until);
    return texts;
  }

  void end(const std::exception& error) override {
    const auto* const lost = dynamic_cast<const PeerLostError*>(&error);
    const Rank peer = lost == nullptr ? Rank{} : lost->peer();
    for (Member& member : members_) {
      if (member.connection.is_open()) member.connection.push(kind_of(error), peer, error.what());
    }
    flush_until(Clock::now() + kFarewell);
    for (Member& member : members_) member.connection = {};
    close_listener();
  }

 private:
  /// A worker. Worker 0 has no connection.
  struct Member {
    Connection connection;
    std::optional<std::string> text;  // for the current gather
    bool is_overdue = false;          // its deadline has passed
  };
  /// A connection without a hello.
  struct Stranger {
    Connection connection;
    std::string name;
  };

  /// Whether worker 0 still listens.
  bool is_meeting() const { return listener_.descriptor() >= 0; }

  /// Returns the workers that are waited for: for their connections while worker 0 listens, and for
  /// their texts afterwards.
  std::vector<int> missing() const {
    std::vector<int> workers;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      const Member& member = members_[i];
      const bool has_arrived = is_meeting() ? member.connection.is_open() : member.text.has_value();
      if (!has_arrived) workers.push_back(static_cast<int>(i));
    }
    return workers;
  }

  /// Serves all connections until no worker is missing.
  void await_members(Clock::time_point until) {
    bool is_over = false;
    for (std::vector<int> awaited = missing(); !awaited.empty(); awaited = missing()) {
      // Events may never end, so the deadline is checked after each round.
      if (is_over) throw DeadlineError(deadline_text(rank(), awaited));
      is_over = Clock::now() >= until;
      std::vector<pollfd> polled{{listener_.descriptor(), POLLIN, 0}};
      for (std::size_t i = 1; i < members_.size(); ++i) {
        polled.push_back(members_[i].connection.polled());
      }
      for (const Stranger& each : strangers_) polled.push_back(each.connection.polled());
      poll_until(polled, until);
      for (std::size_t i = 1; i < members_.size(); ++i) {
        if (polled[i].revents != 0) serve(Rank{static_cast<int>(i)});
      }
      std::vector<Stranger> unknown;
      for (std::size_t i = 0; i < strangers_.size(); ++i) {
        Stranger& stranger = strangers_[i];
        if (polled[members_.size() + i].revents == 0 || remains_stranger(stranger)) {
          unknown.push_back(std::move(stranger));
        }
      }
      strangers_ = std::move(unknown);
      if (polled[0].revents != 0) accept_stranger();
    }
  }

  std::string deadline_text(Rank waiting, const std::vector<int>& awaited) const {
    std::string detail;
    if (refused_ > 0 && is_meeting()) {
      detail = fmt::format("{} connection{} refused, the last because {}", refused_,
                           refused_ == 1 ? " was" : "s were", last_refusal_);
    }
    return place().deadline_text(waiting, awaited, detail);
  }

  /// Handles input and output of a worker.
  void serve(Rank worker) {
    Member& member = members_[worker.index()];
    member.connection.flush();
    const bool is_connected = member.connection.read();
    const std::string name = fmt::format("worker {}", worker.value);
    while (std::optional<Message> message = member.connection.pop(name, kLongestText)) {
      if (message->kind == Kind::overdue) {
        answer(worker);
      } else if (message->kind == Kind::text && !member.text) {
        member.text = std::move(message->text);
      } else {
        throw ProtocolError(fmt::format("{} sent an unexpected message to the rendezvous at {}",
                                        name, place().text));
      }
    }
    if (is_connected) return;
    if (const std::vector<int> awaited = missing(); member.is_overdue && !awaited.empty()) {
      throw DeadlineError(deadline_text(worker, awaited));
    }
    place().throw_lost(worker);
  }

  /// Sends the missing workers to a worker at its deadline. A worker without a text asked during
  /// the gather before, whose result it has since received.
  void answer(Rank worker) {
    Member& member = members_[worker.index()];
    const std::vector<int> awaited = missing();
    if (awaited.empty() || !(is_meeting() || member.text) || member.connection.has_output()) return;
    member.is_overdue = true;
    member.connection.push(Kind::deadline, {}, deadline_text(worker, awaited));
    member.connection.flush();
  }

  /// Sends bytes to all other workers.
  /// @throws DeadlineError naming workers that did not receive them
  void send_to_all(const std::shared_ptr<const std::string>& bytes, Clock::time_point until) {
    for (std::size_t i = 1; i < members_.size(); ++i) members_[i].connection.push(bytes);
    const std::vector<int> unsent = flush_until(until);
    if (!unsent.empty()) throw DeadlineError(deadline_text(rank(), unsent));
  }

  /// Sends all output. Skips workers that left: the next gather reports them.
  /// @return workers whose output is not sent at the deadline
  std::vector<int> flush_until(Clock::time_point until) {
    for (bool is_over = false;;) {
      std::vector<pollfd> polled;
      std::vector<int> unsent;
      for (std::size_t i = 1; i < members_.size(); ++i) {
        Connection& connection = members_[i].connection;
        if (connection.has_output()) connection.flush();
        if (!connection.has_output()) continue;
        polled.push_back({connection.descriptor(), POLLOUT, 0});
        unsent.push_back(static_cast<int>(i));
      }
      if (unsent.empty() || is_over) return unsent;
      is_over = Clock::now() >= until;
      poll_until(polled, until);
    }
  }

  // Connections that have not identified themselves.

  void accept_stranger() {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    Socket socket(::accept4(listener_.descriptor(), reinterpret_cast<sockaddr*>(&from), &bytes,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = socket.descriptor() < 0 ? errno : 0;
    const bool is_exhausted =
        error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    if (is_exhausted && strangers_.empty()) {
      throw Error(
          fmt::format("worker 0 cannot accept connections at {}: {}: raise the limit of "
                      "open files (ulimit -n)",
                      place().text, text_of(error)));
    }
    if (is_exhausted || strangers_.size() == kMostStrangers) {
      record_refusal(strangers_.front(), "it did not identify itself");
      strangers_.erase(strangers_.begin());
    }
    if (error == 0) strangers_.push_back({Connection(std::move(socket)), name_of(from, bytes)});
  }

  /// Reads a hello. Then the connection is a worker's, or it is refused.
  /// @return whether the hello is incomplete
  bool remains_stranger(Stranger& stranger) {
    Connection& connection = stranger.connection;
    const bool is_connected = connection.read();
    std::optional<Message> hello;
    try {
      hello = connection.pop("it", kLongestHello);
      if (hello) check_hello(*hello);
    } catch (const Error& error) {
      record_refusal(stranger, error.what());
      connection.push(
          kind_of(error), {},
          fmt::format("the rendezvous at {} refused this worker: {}", place().text, error.what()));
      connection.flush();
      return false;
    }
    if (!hello) {
      if (!is_connected) record_refusal(stranger, "it disconnected before it identified itself");
      return is_connected;
    }
    Member& member = members_[hello->rank.index()];
    member.connection = std::move(connection);
    member.connection.push(Kind::welcome, {}, "");
    serve(hello->rank);
    return false;
  }

  /// Verifies that a hello is that of a missing worker.
  /// @throws ProtocolError
  /// @throws InputError
  void check_hello(const Message& hello) const {
    std::int32_t others_size = 0;
    if (hello.kind != Kind::hello || hello.text.size() < sizeof(others_size)) {
      throw ProtocolError("it sent a malformed hello");
    }
    std::memcpy(&others_size, hello.text.data(), sizeof(others_size));
    const std::string_view version = std::string_view(hello.text).substr(sizeof(others_size));
    const int worker = hello.rank.value;
    if (version != SPARSESYNC_VERSION) {
      throw ProtocolError(
          fmt::format("worker {} runs sparsesync {}, but worker 0 runs {}: install the same "
                      "version for all workers",
                      worker, shortened(version), SPARSESYNC_VERSION));
    }
    if (others_size != size()) {
      throw InputError(
          fmt::format("worker {} is one of {} workers, but worker 0 is one of {}: start all "
                      "workers with the same size",
                      worker, others_size, size()));
    }
    if (worker < 0 || worker >= size()) {
      throw InputError(fmt::format("rank {} is not in [0, {})", worker, size()));
    }
    if (worker == 0 || members_[hello.rank.index()].connection.is_open()) {
      throw InputError(
          fmt::format("rank {} is taken: start each worker with a different rank", worker));
    }
  }

  void record_refusal(const Stranger& stranger, const std::string& reason) {
    last_refusal_ = reason;
    if (++refused_ > kLoggedRefusals) return;
    log(LogLevel::warning, fmt::format("the rendezvous at {} refused a connection from {}: {}",
                                       place().text, stranger.name, reason));
  }

  /// Refuses the remaining strangers, and frees the port.
  void close_listener() {
    if (!is_meeting()) return;
    for (const Stranger& each : strangers_) {
      if (each.connection.is_open()) record_refusal(each, "it did not identify itself");
    }
    strangers_.clear();
    listener_.close();
    if (refused_ <= kLoggedRefusals) return;
    log(LogLevel::warning, fmt::format("the rendezvous at {} refused {} connections in total",
                                       place().text, refused_));
  }

  Socket listener_;  // open while workers connect
  std::vector<Member> members_;
  std::vector<Stranger> strangers_;  // the oldest first
  int refused_ = 0;
  std::string last_refusal_;
};

// ---- Other workers.

/// The side of a worker other than worker 0.
class Guest : public Meeting {
 public:
  using Meeting::Meeting;

 protected:
  void connect(Clock::time_point until) override {
    std::string obstacle;
    for (milliseconds pause = kFirstPause; !is_welcome(until, obstacle);) {
      if (Clock::now() >= until) {
        throw DeadlineError(place().deadline_text(rank(), {0}, obstacle));
      }
      poll_until({}, std::min(until, Clock::now() + pause));
      pause = std::min(2 * pause, kLongestPause);
    }
    receive(Kind::ready, until);
  }

  std::vector<std::string> gather(const std::string& own, Clock::time_point until) override {
    answer_until_.reset();
    connection_.push(Kind::text, rank(), own);
    std::vector<std::string> texts;
    for (const Rank each : Ranks(size())) {
      Message message = receive(Kind::text, until);
      if (message.rank != each) throw_unexpected();
      texts.push_back(std::move(message.text));
    }
    return texts;
  }

  void end(const std::exception& /*error*/) override { connection_ = {}; }

 private:
  /// Tries to connect once. Worker 0 may end a connection before it has read the hello.
  bool is_welcome(Clock::time_point until, std::string& obstacle) {
    Socket socket = connect_to(place().address, until, obstacle);
    if (socket.descriptor() < 0) return false;
    const std::int32_t size = place().size;
    std::string hello(sizeof(size), '\0');
    std::memcpy(hello.data(), &size, sizeof(size));
    connection_ = Connection(std::move(socket));
    connection_.push(Kind::hello, rank(), hello + SPARSESYNC_VERSION);
    try {
      receive(Kind::welcome, until);
      return true;
    } catch (const PeerLostError&) {
      obstacle = "the connection was closed";
      return false;
    }
  }

  /// Receives the next message. At the deadline, it asks worker 0 for the missing workers.
  /// @throws Error the error that worker 0 sent
  Message receive(Kind expected, Clock::time_point until) {
    const std::string sender = fmt::format("the program that listens at {}", place().text);
    bool is_connected = true;
    for (bool is_over = false;;) {
      if (std::optional<Message> message = connection_.pop(sender, kLongestText)) {
        // A socket may connect to itself if no program listens, and then receives its hello.
        if (message->kind == Kind::hello) place().throw_lost(rank());
        if (message->rank.value < 0 || message->rank.value >= size()) throw_unexpected();
        if (message->kind >= Kind::lost) throw_received(*message);
        if (message->kind != expected) throw_unexpected();
        return *std::move(message);
      }
      if (!is_connected) place().throw_lost(Rank{0});
      if (is_over && answer_until_) {
        throw DeadlineError(place().deadline_text(rank(), {0}, ""));
      }
      if (is_over) {
        connection_.push(Kind::overdue, rank(), "");
        answer_until_ = Clock::now() + kAnswer;
      }
      const Clock::time_point end = answer_until_.value_or(until);
      is_over = Clock::now() >= end;
      pollfd polled = connection_.polled();
      poll_until({&polled, 1}, end);
      if (polled.revents == 0) continue;
      connection_.flush();
      is_connected = connection_.read();
    }
  }

  [[noreturn]] void throw_unexpected() const {
    throw ProtocolError(
        fmt::format("worker 0 sent an unexpected message to the rendezvous at {}", place().text));
  }

  Connection connection_;
  std::optional<Clock::time_point> answer_until_;  // set once worker 0 was asked
};

}  // namespace
}  // namespace rendezvous

std::unique_ptr<Rendezvous> meet_at(const std::string& address, Rank rank, int size,
                                    std::chrono::milliseconds deadline) {
  constexpr int kMostWorkers = 65536;
  if (size < 1 || size > kMostWorkers) {
    throw InputError(
        fmt::format("a rendezvous of {} workers: it needs 1 to {}", size, kMostWorkers));
  }
  if (rank.value < 0 || rank.value >= size) {
    throw InputError(fmt::format("rank {} is not in [0, {})", rank.value, size));
  }
  rendezvous::Place place{address, rendezvous::parse(address), rank, size};
  constexpr std::chrono::milliseconds kLongestDeadline = std::chrono::hours(24 * 365);
  const Clock::time_point until = Clock::now() + std::min(deadline, kLongestDeadline);
  std::unique_ptr<rendezvous::Meeting> meeting;
  if (rank.value == 0)
    meeting = std::make_unique<rendezvous::Host>(std::move(place));
  else
    meeting = std::make_unique<rendezvous::Guest>(std::move(place));
  meeting->meet(until);
  return meeting;
}

}  // namespace sparsesync
