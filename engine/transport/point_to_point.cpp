#include "engine/transport/point_to_point.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/queue.h"

namespace sparsesync {
namespace {

using Lane = PointToPoint::Lane;
using Call = PointToPoint::Call;
using Outcome = PointToPoint::Outcome;

/// The channel of a header that tells of an abort: its flags are the aborter's rank, its payload is
/// the reason.
constexpr std::uint32_t kAbortChannel = 0xFFFF'FFFFU;
constexpr std::size_t kLongestReason = 4000;
/// How long a worker that leaves waits for others to hear of an abort.
constexpr std::chrono::seconds kFarewell{1};

class PointToPointTransport : public Transport {
 public:
  PointToPointTransport(std::unique_ptr<PointToPoint> network, Rank rank, std::vector<int> nodes)
      : network_(std::move(network)),
        rank_(rank),
        nodes_(std::move(nodes)),
        untaken_(nodes_.size()) {}

  ~PointToPointTransport() override {
    const Clock::time_point until = Clock::now() + kFarewell;
    for (const Call farewell : farewells_) network_->wait(farewell, until);
    network_->withdraw();
  }

  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(nodes_.size()); }
  int node(Rank worker) const override { return nodes_.at(worker.index()); }

  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    return withdrawing_on_error([&] {
      Group& group = unused_group();
      group.id = next_group_++;
      group.expected = expected;
      group.provider = &provider;
      group.returned = 0;
      group.incoming.resize(receives.size());
      group.headers.assign(sends.size(), expected);
      for (std::size_t i = 0; i < receives.size(); ++i) {
        start_receive(group, i, receives[i].from);
      }
      for (std::size_t i = 0; i < sends.size(); ++i) {
        group.headers[i].bytes = static_cast<std::uint64_t>(sends[i].bytes.resolve(context));
        start_send(group, sends[i], group.headers[i]);
      }
      return GroupId{group.id};
    });
  }

  std::optional<Arrival> next(GroupId id, Clock::time_point until) override {
    return withdrawing_on_error([&]() -> std::optional<Arrival> {
      Group& group = group_of(id);
      if (group.returned == group.incoming.size()) return std::nullopt;
      // All headers first: then all payloads are on their way.
      for (const Incoming& message : group.incoming) take_headers_up_to(message, until);
      const std::size_t receive = group.returned++;
      Incoming& message = group.incoming[receive];
      if (message.header.bytes > 0) wait(message.call, message.from, until);
      {
        const std::lock_guard lock(mutex_);
        counters_.bytes_received += kHeaderBytes + static_cast<std::int64_t>(message.header.bytes);
        ++counters_.messages_received;
      }
      return Arrival{receive, message.header, message.payload};
    });
  }

  void finish(GroupId id, Clock::time_point until) override {
    withdrawing_on_error([&] {
      Group& group = group_of(id);
      for (const auto& [to, call] : group.sends) wait(call, to, until);
      group.sends.clear();
      group.id = 0;
    });
  }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (aborter_) return;
    note_abort(rank_, reason);
    tell_others();
  }

  TransportCounters counters() const override {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

  bool has_all_reduce() const override { return network_->has_all_reduce(); }

  void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                  Clock::time_point until) override {
    if (!has_all_reduce()) return Transport::all_reduce(context, dtype, elements, until);
    withdrawing_on_error([&] {
      if (size() == 1 || elements.empty()) return;
      const Outcome outcome = network_->all_reduce(dtype, elements, until);
      const Rank other{rank_.value == 0 ? 1 : 0};  // the network does not say who
      if (outcome == Outcome::lost) throw_lost(other);
      if (outcome == Outcome::deadline) throw_deadline(rank_, peers_after(rank_, size()));
      const std::int64_t bytes = all_reduce_bytes(std::ssize(elements), size());
      const std::lock_guard lock(mutex_);
      counters_.bytes_sent += bytes;
      counters_.bytes_received += bytes;
    });
  }

 private:
  /// A message that is received.
  struct Incoming {
    Rank from;
    Header header;
    Call call = 0;  // of the header; then of the payload
    bool taken = false;
    std::span<std::byte> payload;        // where it goes; empty where it is thrown away
    std::vector<std::byte> thrown_away;  // where it goes then
  };
  /// A group that was posted.
  struct Group {
    std::uint64_t id = 0;  // 0: not in use
    Header expected;
    ReceiveProvider* provider = nullptr;
    std::vector<Incoming> incoming;
    std::size_t returned = 0;     // of them, from the first on
    std::vector<Header> headers;  // of what is sent
    std::vector<std::pair<Rank, Call>> sends;
  };

  /// After an error nobody touches what was posted: its owners may be gone at once.
  template <typename Body>
  auto withdrawing_on_error(const Body& body) -> decltype(body()) {
    try {
      throw_if_aborted();
      return body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(withdrawn_, true)) {
        network_->withdraw();
        if (aborter_) tell_others();  // again: what was not heard is withdrawn, too
      }
      throw;
    }
  }

  void throw_if_aborted() const {
    const std::lock_guard lock(mutex_);
    if (aborter_) throw_aborted(*aborter_, reason_);
  }

  Group& unused_group() {
    for (const std::unique_ptr<Group>& group : groups_) {
      if (group->id == 0) return *group;
    }
    return *groups_.emplace_back(std::make_unique<Group>());
  }

  Group& group_of(GroupId id) {
    const auto found =
        std::find_if(groups_.begin(), groups_.end(),
                     [&](const std::unique_ptr<Group>& group) { return group->id == id.value; });
    SPARSESYNC_EXPECT(found != groups_.end(), ==, true);
    return **found;
  }

  void start_receive(Group& group, std::size_t receive, Rank from) {
    expect_peer(from, rank_, size());
    Incoming& message = group.incoming[receive];
    message.from = from;
    message.taken = false;
    message.payload = {};
    message.call = network_->receive(from, Lane::headers,
                                     std::as_writable_bytes(std::span(&message.header, 1)));
    untaken_[from.index()].push_left_over() = {&group, receive};
  }

  void start_send(Group& group, const Send& send, const Header& header) {
    expect_peer(send.to, rank_, size());
    const auto start = [&](Lane lane, std::span<const std::byte> bytes) {
      group.sends.emplace_back(send.to, network_->send(send.to, lane, bytes));
    };
    start(Lane::headers, std::as_bytes(std::span(&header, 1)));
    if (header.bytes > 0) start(Lane::payloads, {send.data, header.bytes});
    const std::lock_guard lock(mutex_);
    counters_.bytes_sent += kHeaderBytes + static_cast<std::int64_t>(header.bytes);
    ++counters_.messages_sent;
  }

  /// Takes the header of a message, and before it those that the same worker sent earlier.
  void take_headers_up_to(const Incoming& message, Clock::time_point until) {
    Queue<std::pair<Group*, std::size_t>>& untaken = untaken_[message.from.index()];
    while (!message.taken) {
      const auto [group, receive] = untaken.front();
      take_header(*group, receive, until);
      untaken.pop();
    }
  }

  void take_header(Group& group, std::size_t receive, Clock::time_point until) {
    Incoming& message = group.incoming[receive];
    const Header& header = message.header;
    wait(message.call, message.from, until);
    if (header.channel == kAbortChannel) hear_of_abort(message.from, header, until);
    check_header(message.from, group.expected, header);
    message.taken = true;
    if (header.bytes == 0) return;
    std::byte* const place = group.provider->provide(receive, header);
    std::span<std::byte> room{place, header.bytes};
    if (place == nullptr) {
      message.thrown_away.resize(header.bytes);
      room = message.thrown_away;
    } else {
      message.payload = room;
    }
    message.call = network_->receive(message.from, Lane::payloads, room);
  }

  [[noreturn]] void hear_of_abort(Rank from, const Header& header, Clock::time_point until) {
    const auto aborter = static_cast<int>(header.flags);
    if (header.bytes > kLongestReason || aborter < 0 || aborter >= size()) {
      throw ProtocolError("an abort that cannot be read");
    }
    std::string reason(header.bytes, '\0');
    if (!reason.empty()) {
      wait(network_->receive(from, Lane::payloads, std::as_writable_bytes(std::span(reason))), from,
           until);
    }
    const std::lock_guard lock(mutex_);
    if (!aborter_) note_abort(Rank{aborter}, reason);
    throw_aborted(Rank{aborter}, reason);
  }

  // With the lock held.

  void note_abort(Rank aborter, const std::string& reason) {
    aborter_ = aborter;
    reason_ = reason.substr(0, kLongestReason);
    farewell_ = {kAbortChannel, static_cast<std::uint32_t>(aborter.value), 0, 0, reason_.size()};
  }

  void tell_others() noexcept {
    farewells_.clear();
    for (const Rank peer : peers_after(rank_, size())) {
      try {
        farewells_.push_back(
            network_->send(peer, Lane::headers, std::as_bytes(std::span(&farewell_, 1))));
        if (reason_.empty()) continue;
        farewells_.push_back(
            network_->send(peer, Lane::payloads, std::as_bytes(std::span(reason_))));
      } catch (const PeerLostError&) {  // who is gone need not be told
      }
    }
  }

  void wait(Call call, Rank peer, Clock::time_point until) {
    switch (network_->wait(call, until)) {
      case Outcome::done:
        return;
      case Outcome::deadline:
        throw_deadline(rank_, {peer});
      case Outcome::lost:
        throw_lost(peer);
    }
  }

  const std::unique_ptr<PointToPoint> network_;
  const Rank rank_;
  const std::vector<int> nodes_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::uint64_t next_group_ = 1;
  // Of each worker, the messages whose headers were not taken, in the order in which they come.
  std::vector<Queue<std::pair<Group*, std::size_t>>> untaken_;

  mutable std::mutex mutex_;  // guards what follows
  TransportCounters counters_;
  std::optional<Rank> aborter_;
  std::string reason_;
  Header farewell_;
  std::vector<Call> farewells_;
  bool withdrawn_ = false;
};

}  // namespace

std::unique_ptr<Transport> transport_over(std::unique_ptr<PointToPoint> network, Rank rank,
                                          std::vector<int> nodes) {
  return std::make_unique<PointToPointTransport>(std::move(network), rank, std::move(nodes));
}

}  // namespace sparsesync
