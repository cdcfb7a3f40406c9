#include "sparsesync/transports/process_group.h"
#include "schemes/pattern.h"
#include "schemes/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/session/queue.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

using Lane = PointToPoint::Lane;
using Call = PointToPoint::Call;
using Incoming = PointToPoint::Incoming;
using Outgoing = PointToPoint::Outgoing;
using Outcome = PointToPoint::Outcome;

/// Channel of a header that announces an abort. Its flags hold the aborter's rank. The reason is
/// sent on a separate lane.
constexpr std::uint32_t kAbortChannel = 0xFFFF'FFFFU;
constexpr std::size_t kLongestReason = 1024;
/// How long a leaving worker waits for others to receive an abort.
constexpr std::chrono::seconds kFarewell{1};
/// The part of kFarewell that is spent on headers, which wake workers that wait for one.
constexpr std::chrono::milliseconds kWaking{100};
/// How long a failed worker waits for others to receive the payloads that it announced. Until then
/// they wait for nothing else, and do not notice an abort.
constexpr std::chrono::milliseconds kUntilAnnouncedIsTaken{500};
/// Bytes of a piece of a payload. A discarded payload then needs memory for one piece only. A call
/// takes tens of microseconds in Python, so smaller pieces would take longer to start than to send.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20U;

/// A header as it is sent, with the first bytes of its payload. A short message is a single call. A
/// call takes tens of microseconds in Python, and sending these bytes 16 us at 1 Gbit/s.
struct Front {
  Header header;
  std::array<std::byte, 2048 - kHeaderBytes> beginning{};
};
static_assert(sizeof(Front) == 2048);
constexpr std::uint64_t kBeginningBytes = sizeof(Front::beginning);

/// The reason of an abort, as it is sent. The seal arrives last, so a reason with a valid seal is
/// complete.
struct Reason {
  static constexpr std::uint64_t kSeal = 0x6E6F'7361'6572'2100U;

  std::uint32_t aborter = 0;
  std::uint32_t bytes = 0;
  std::array<char, kLongestReason> text{};
  std::uint64_t seal = 0;
};
static_assert(sizeof(Reason) == kLongestReason + 16);

/// Calls body(begin, bytes) for each piece of a payload after its beginning, which its front holds.
template <typename Body>
void for_each_piece(std::uint64_t bytes, const Body& body) {
  for (std::uint64_t begin = kBeginningBytes; begin < bytes; begin += kPieceBytes) {
    body(begin, static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, bytes - begin)));
  }
}

class PointToPointTransport : public Transport {
 public:
  PointToPointTransport(std::unique_ptr<PointToPoint> network, Rank rank, std::vector<int> nodes)
      : reasons_(nodes.size()),
        reason_calls_(nodes.size()),
        network_(std::move(network)),
        rank_(rank),
        nodes_(std::move(nodes)),
        untaken_(nodes_.size()) {
    reason_sends_.reserve(nodes_.size());
    header_sends_.reserve(nodes_.size());
    for (const Rank peer : peers_after(rank_, static_cast<int>(nodes_.size()))) {
      const auto reason = std::as_writable_bytes(std::span(&reasons_[peer.index()], 1));
      std::vector<Call> started;
      try {
        network_->start(std::array{Incoming{peer, Lane::reasons, reason}}, {}, started);
        reason_calls_[peer.index()] = started.front();
      } catch (const PeerLostError&) {  // the first message to or from this worker reports the loss
      }
    }
  }

  ~PointToPointTransport() override {
    const Clock::time_point until = Clock::now() + kFarewell;
    for (const Call& reason : reason_sends_) network_->wait({&reason, 1}, until);
    // The reasons have arrived. A worker that does not wait for a header reads the reason when it
    // loses this worker.
    const Clock::time_point until_woken = std::min(until, Clock::now() + kWaking);
    for (const Call& header : header_sends_) network_->wait({&header, 1}, until_woken);
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
      group.messages.resize(receives.size());
      group.fronts.resize(sends.size());
      group.sends.clear();
      incoming_.clear();
      for (std::size_t i = 0; i < receives.size(); ++i) add_receive(group, i, receives[i].from);
      for (std::size_t i = 0; i < sends.size(); ++i) {
        add_send(group, sends[i], sends[i].bytes.resolve(context), group.fronts[i]);
      }
      start(group);
      return GroupId{group.id};
    });
  }

  std::optional<Arrival> next(GroupId id, Clock::time_point until) override {
    return withdrawing_on_error([&]() -> std::optional<Arrival> {
      Group& group = group_of(id);
      if (group.returned == group.messages.size()) return std::nullopt;
      // Receives all headers first, so that all payload transfers are started.
      for (const Message& message : group.messages) take_headers_up_to(message, until);
      const std::size_t receive = group.returned++;
      const Message& message = group.messages[receive];
      wait(message.pieces, message.from, until);
      {
        const std::lock_guard lock(mutex_);
        counters_.bytes_received +=
            kHeaderBytes + static_cast<std::int64_t>(message.front.header.bytes);
        ++counters_.messages_received;
      }
      return Arrival{receive, message.front.header, message.payload};
    });
  }

  void finish(GroupId id, Clock::time_point until) override {
    withdrawing_on_error([&] {
      Group& group = group_of(id);
      const auto [outcome, done] = network_->wait(group.send_calls(), until);
      if (outcome != Outcome::done) fail(outcome, group.sends[done].to);
      group.calls.clear();
      group.id = 0;
    });
  }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (aborter_) return;
    note_abort(rank_, reason);
    send_abort();
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
      failed_ = outcome != Outcome::done;
      const Rank other{rank_.value == 0 ? 1 : 0};  // the network does not report which worker
      if (outcome == Outcome::lost) throw_lost(other);
      if (outcome == Outcome::deadline) throw_deadline(rank_, peers_after(rank_, size()));
      const std::int64_t bytes = all_reduce_bytes(std::ssize(elements), size());
      const std::lock_guard lock(mutex_);
      counters_.bytes_sent += bytes;
      counters_.bytes_received += bytes;
    });
  }

 private:
  /// A message that is being received.
  struct Message {
    Rank from;
    Front front;
    bool taken = false;
    std::span<std::byte> payload;  // destination; empty if the payload is discarded
    std::vector<Call> pieces;      // receives of the payload's pieces
  };
  /// A group that was posted.
  struct Group {
    std::uint64_t id = 0;  // 0: not in use
    Header expected;
    ReceiveProvider* provider = nullptr;
    std::vector<Message> messages;  // [receive]
    std::size_t returned = 0;       // number of messages that next() has returned
    std::vector<Front> fronts;      // [send]
    std::vector<Outgoing> sends;    // of all pieces of payloads, each payload before its front
    std::vector<Call> calls;        // receives of the fronts of `messages`, then `sends`

    std::span<const Call> send_calls() const {
      return std::span(calls).subspan(std::min(calls.size(), messages.size()));
    }
  };

  /// Withdraws all messages after an error, because their memory may then be freed at once. An
  /// abort by another worker takes precedence over the network's error.
  template <typename Body>
  auto withdrawing_on_error(const Body& body) -> decltype(body()) {
    try {
      throw_if_aborted();
      return body();
    } catch (const PeerLostError&) {
      withdraw();
      throw_if_aborted();
      throw;
    } catch (const DeadlineError&) {
      withdraw();
      throw_if_aborted();
      throw;
    } catch (...) {
      withdraw();
      throw;
    }
  }

  void withdraw() {
    if (withdrawn_) return;
    if (!failed_ && !is_aborted()) await_announced();
    const std::lock_guard lock(mutex_);
    withdrawn_ = true;
    network_->withdraw();
    if (!aborter_) read_reasons();
    if (aborter_) send_abort();  // again, because withdraw() cancelled unfinished sends
  }

  /// Waits until others have received what was announced to them. A worker that has a header waits
  /// for its payload, and notices an abort only afterwards.
  void await_announced() noexcept {
    const Clock::time_point until = Clock::now() + kUntilAnnouncedIsTaken;
    try {
      for (const std::unique_ptr<Group>& group : groups_) {
        if (network_->wait(group->send_calls(), until).outcome != Outcome::done) return;
      }
    } catch (const std::exception&) {  // the original error is reported
    }
  }

  bool is_aborted() const {
    const std::lock_guard lock(mutex_);
    return aborter_.has_value();
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

  void add_receive(Group& group, std::size_t receive, Rank from) {
    expect_peer(from, rank_, size());
    Message& message = group.messages[receive];
    message.from = from;
    message.taken = false;
    message.payload = {};
    message.pieces.clear();
    incoming_.push_back(
        {from, Lane::headers, std::as_writable_bytes(std::span(&message.front, 1))});
    untaken_[from.index()].push_left_over() = {&group, receive};
  }

  void add_send(Group& group, const Send& send, std::int64_t bytes, Front& front) const {
    expect_peer(send.to, rank_, size());
    front.header = group.expected;
    front.header.bytes = static_cast<std::uint64_t>(bytes);
    std::copy_n(send.data, std::min(front.header.bytes, kBeginningBytes), front.beginning.data());
    for_each_piece(front.header.bytes, [&](std::uint64_t begin, std::size_t bytes) {
      group.sends.push_back({send.to, Lane::payloads, {send.data + begin, bytes}});
    });
    group.sends.push_back({send.to, Lane::headers, std::as_bytes(std::span(&front, 1))});
  }

  /// Starts the receives of a group's headers, and its sends.
  void start(Group& group) {
    try {
      network_->start(incoming_, group.sends, group.calls);
    } catch (...) {
      // A payload is not received if its header was not sent.
      while (!group.send_calls().empty() &&
             group.sends[group.send_calls().size() - 1].lane != Lane::headers) {
        group.calls.pop_back();
      }
      throw;
    }
    const std::lock_guard lock(mutex_);
    for (const Front& front : group.fronts) {
      counters_.bytes_sent += kHeaderBytes + static_cast<std::int64_t>(front.header.bytes);
      ++counters_.messages_sent;
    }
  }

  /// Receives the header of a message, after those of the same worker's earlier messages.
  void take_headers_up_to(const Message& message, Clock::time_point until) {
    Queue<std::pair<Group*, std::size_t>>& untaken = untaken_[message.from.index()];
    while (!message.taken) {
      const auto [group, receive] = untaken.front();
      take_header(*group, receive, until);
      untaken.pop();
    }
  }

  void take_header(Group& group, std::size_t receive, Clock::time_point until) {
    Message& message = group.messages[receive];
    const Header& header = message.front.header;
    wait({&group.calls[receive], 1}, message.from, until);
    if (header.channel == kAbortChannel) hear_of_abort(message.from, header, until);
    check_header(message.from, group.expected, header);
    message.taken = true;
    if (header.bytes == 0) return;
    std::byte* const place = group.provider->provide(receive, header);
    if (place == nullptr) return throw_away(message, until);
    message.payload = {place, header.bytes};
    std::copy_n(message.front.beginning.data(), std::min(header.bytes, kBeginningBytes), place);
    incoming_.clear();
    for_each_piece(header.bytes, [&](std::uint64_t begin, std::size_t bytes) {
      incoming_.push_back({message.from, Lane::payloads, {place + begin, bytes}});
    });
    network_->start(incoming_, {}, message.pieces);
  }

  /// Receives and discards a payload, one piece over another. It does so at once, because the same
  /// worker's later payloads follow it.
  void throw_away(const Message& message, Clock::time_point until) {
    const std::uint64_t all = message.front.header.bytes;
    nowhere_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, all)));
    for_each_piece(all, [&](std::uint64_t, std::size_t bytes) {
      std::vector<Call> piece;
      const std::span<std::byte> place = std::span(nowhere_).first(bytes);
      network_->start(std::array{Incoming{message.from, Lane::payloads, place}}, {}, piece);
      wait(piece, message.from, until);
    });
    nowhere_ = {};  // only on success: after an error the network uses it until withdraw()
  }

  [[noreturn]] void hear_of_abort(Rank from, const Header& header, Clock::time_point until) {
    const Rank aborter{static_cast<int>(header.flags)};
    if (header.bytes != 0 || !may_have_aborted(header.flags)) throw_unreadable(from);
    const std::span<const Call> reason(&reason_calls_[from.index()], 1);
    failed_ = network_->wait(reason, until).outcome != Outcome::done;
    const std::lock_guard lock(mutex_);
    if (!aborter_) {
      if (failed_) {
        note_abort(aborter, "its reason did not arrive");
      } else if (!heard_of(reasons_[from.index()])) {
        throw_unreadable(from);
      }
    }
    throw_aborted(*aborter_, reason_);
  }

  [[noreturn]] static void throw_unreadable(Rank from) {
    throw ProtocolError(fmt::format("worker {} sent a malformed abort", from.value));
  }

  /// Whether a worker may be the aborter that a message names. This worker did not abort.
  bool may_have_aborted(std::uint32_t worker) const {
    return worker < nodes_.size() && worker != static_cast<std::uint32_t>(rank_.value);
  }

  // With the lock held.

  /// Records a received reason if it is valid.
  /// @return whether it is valid
  bool heard_of(const Reason& reason) {
    if (reason.seal != Reason::kSeal || reason.bytes > kLongestReason ||
        !may_have_aborted(reason.aborter)) {
      return false;
    }
    note_abort(Rank{static_cast<int>(reason.aborter)}, {reason.text.data(), reason.bytes});
    return true;
  }

  /// Records a reason that arrived without being waited for.
  /// @pre withdrawn, so that the network no longer writes to `reasons_`
  void read_reasons() {
    for (const Reason& reason : reasons_) {
      if (heard_of(reason)) return;
    }
  }

  void note_abort(Rank aborter, std::string_view reason) {
    aborter_ = aborter;
    reason_ = whole_characters(reason, kLongestReason);
    const auto worker = static_cast<std::uint32_t>(aborter.value);
    farewell_.header = {kAbortChannel, worker, 0, 0, 0};
    sent_reason_ = {worker, static_cast<std::uint32_t>(reason_.size()), {}, Reason::kSeal};
    std::copy(reason_.begin(), reason_.end(), sent_reason_.text.begin());
  }

  /// Sends the abort to all others. The reason is sent first, so that it is available when the
  /// header arrives.
  void send_abort() noexcept {
    reason_sends_.clear();
    header_sends_.clear();
    for (const Rank peer : peers_after(rank_, size())) {
      if (peer == *aborter_) continue;
      try {
        const auto reason = std::as_bytes(std::span(&sent_reason_, 1));
        const auto header = std::as_bytes(std::span(&farewell_, 1));
        network_->start({}, std::array{Outgoing{peer, Lane::reasons, reason}}, reason_sends_);
        network_->start({}, std::array{Outgoing{peer, Lane::headers, header}}, header_sends_);
      } catch (const std::exception&) {  // an unreachable worker notices the abort by its timeout
      }
    }
  }

  /// Waits for calls to one worker.
  void wait(std::span<const Call> calls, Rank peer, Clock::time_point until) {
    const Outcome outcome = network_->wait(calls, until).outcome;
    if (outcome != Outcome::done) fail(outcome, peer);
  }

  [[noreturn]] void fail(Outcome outcome, Rank peer) {
    failed_ = true;
    if (outcome == Outcome::deadline) throw_deadline(rank_, {peer});
    throw_lost(peer);
  }

  // [rank], received from the start. Declared before the network, which may use them until it is
  // destroyed.
  std::vector<Reason> reasons_;
  std::vector<Call> reason_calls_;
  std::vector<std::byte> nowhere_;
  const std::unique_ptr<PointToPoint> network_;
  const Rank rank_;
  const std::vector<int> nodes_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Incoming> incoming_;  // receives that are being started
  std::uint64_t next_group_ = 1;
  bool failed_ = false;  // a wait for the network failed
  bool withdrawn_ = false;
  // [worker] messages whose headers have not been received, in the order in which they arrive.
  std::vector<Queue<std::pair<Group*, std::size_t>>> untaken_;

  mutable std::mutex mutex_;  // guards the members below
  TransportCounters counters_;
  std::optional<Rank> aborter_;
  std::string reason_;
  Front farewell_;
  Reason sent_reason_;
  std::vector<Call> reason_sends_;
  std::vector<Call> header_sends_;
};

}  // namespace

std::unique_ptr<Transport> transport_over(std::unique_ptr<PointToPoint> network, Rank rank,
                                          std::vector<int> nodes) {
  return std::make_unique<PointToPointTransport>(std::move(network), rank, std::move(nodes));
}

}  // namespace sparsesync
