// How time passes: a message's way out is fixed when it is posted, because only its sender uses
// that link. Its way in is settled by the receiver, chunk by chunk in order of arrival, and only
// for chunks that have arrived by now: what another worker posts later arrives later, so nothing
// settled has to be changed. Payloads are copied as soon as both sides are there; only the arrival
// is waited for.
#include "sparsesync/transports/local.h"
#include "kernels/base/error.h"
#include "schemes/transport.h"
#include "sparsesync/transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>

#include "kernels/base/device_stream.h"

namespace sparsesync {
namespace {

using Time = Clock::time_point;

/// Than they were set for: 70 us, and 50 more where nobody asked the kernel for better, were seen.
constexpr std::chrono::microseconds kTimersAreLate{150};

/// A message that was posted and is not complete yet, at its receiver.
struct Message {
  enum class Payload : std::uint8_t { posted, copying, copied };
  Header header;
  const std::byte* data = nullptr;
  std::uint64_t group = 0;  // the sender's
  // Of that group, which outlives the message: what it was posted with, and where the sender's
  // device has written the payload.
  const Context* context = nullptr;
  const Event* ready = nullptr;
  Time leaves;               // when its first byte goes out
  std::int64_t settled = 0;  // bytes whose way in is settled
  Payload payload = Payload::posted;
  Time complete = Time::max();

  std::int64_t bytes() const { return kHeaderBytes + static_cast<std::int64_t>(header.bytes); }
};

/// A receive of a group: waits for its message, then for the message's last byte.
struct Waiting {
  Rank from;
  std::list<Message>::iterator message;
  bool matched = false;
  bool returned = false;
  std::span<const std::byte> payload;
};

struct Group {
  Header expected;
  std::optional<Context> context;
  std::optional<Event> ready;  // of the work before the group; kept
  std::vector<Waiting> receives;
  ReceiveProvider* provider = nullptr;
  std::vector<Rank> unread;  // where a payload goes that was not copied yet
  Time sent;                 // when the last byte has gone out
};

/// One worker's end of the network.
struct Endpoint {
  bool left = false;
  bool withdraws = false;  // after an error: takes no more part, and waits for its memory's readers
  std::condition_variable changed;
  std::map<std::uint64_t, Group> groups;
  std::vector<std::list<Message>> incoming;  // from each worker, oldest first
  // What was used: its memory serves again.
  std::vector<std::map<std::uint64_t, Group>::node_type> old_groups;
  std::list<Message> old_messages;  // that came here
  Time link_in_free;
  Time link_out_free;
  std::uint64_t next_group = 1;
  TransportCounters counters;
};

}  // namespace

/// All of it is guarded by `mutex`, but payloads are copied without it.
struct LocalNetwork::State {
  State(int workers, LocalLink of_each, std::optional<int> per_node)
      : size(workers),
        link(of_each),
        workers_per_node(per_node.value_or(workers)),
        ends(Rank{workers}.index()) {
    for (Endpoint& end : ends) {
      end.incoming.resize(ends.size());
      // Everybody may be a phase ahead, or the left neighbour a whole ring: how far somebody is
      // depends on time, and a steady state must not.
      end.old_messages.resize(4 * ends.size());
    }
  }

  Clock::duration on_link(std::int64_t bytes) const {
    if (!link.rate_bps) return Clock::duration::zero();
    return seconds(static_cast<double>(bytes) * 8 / *link.rate_bps);
  }
  static Clock::duration seconds(double value) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
  }
  Clock::duration latency() const { return seconds(link.latency_s); }

  /// When the next byte to be settled reaches the receiver's link.
  Time next_in(const Message& message) const {
    return message.leaves + on_link(message.settled) + latency();
  }

  void throw_if_aborted() const {
    if (aborted) throw_aborted(aborter, abort_reason);
  }
  void throw_if_over(const Endpoint& end) const {
    throw_if_aborted();
    if (end.withdraws) throw Error("this worker's end of the network failed before");
  }

  const int size;
  const LocalLink link;
  const int workers_per_node;
  std::mutex mutex;
  std::deque<Endpoint> ends;
  const int most_watching = static_cast<int>(std::thread::hardware_concurrency()) - 1;
  int watching = 0;  // ends that watch the clock rather than sleep
  bool aborted = false;
  Rank aborter;
  std::string abort_reason;
};

namespace {

class LocalTransport : public Transport {
 public:
  using State = LocalNetwork::State;

  LocalTransport(State& state, Rank rank)
      : state_(state), rank_(rank), end_(state.ends[rank.index()]) {}

  ~LocalTransport() override {
    std::unique_lock lock(state_.mutex);
    end_.left = true;
    withdraw(lock);
  }

  Rank rank() const override { return rank_; }
  int size() const override { return state_.size; }
  int node(Rank worker) const override { return worker.value / state_.workers_per_node; }

  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    std::unique_lock lock(state_.mutex);
    const GroupId id = withdrawing_on_error(
        lock, [&] { return start(context, expected, sends, receives, provider); });
    lock.unlock();  // for those that wake up
    for (const Send& send : sends) state_.ends[send.to.index()].changed.notify_all();
    return id;
  }

  std::optional<Arrival> next(GroupId id, Time until) override {
    std::unique_lock lock(state_.mutex);
    return withdrawing_on_error(lock, [&] { return wait_for_receive(lock, group_of(id), until); });
  }

  bool has_arrival(GroupId id) override {
    const std::lock_guard lock(state_.mutex);
    if (state_.aborted || end_.withdraws) return false;
    const Time now = Clock::now();
    settle(now);
    const std::vector<Waiting>& receives = end_.groups.at(id.value).receives;
    return std::any_of(receives.begin(), receives.end(), [&](const Waiting& receive) {
      if (receive.returned) return false;
      if (receive.matched) return receive.message->complete <= now;
      const auto message = first_unmatched(receive.from);
      return message && (*message)->complete <= now && is_next_from(receive.from, id);
    });
  }

  void finish(GroupId id, Time until) override {
    std::unique_lock lock(state_.mutex);
    withdrawing_on_error(lock, [&] { wait_for_sends(lock, group_of(id), until); });
    end_.old_groups.push_back(end_.groups.extract(id.value));
  }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(state_.mutex);
    if (state_.aborted) return;
    state_.aborted = true;
    state_.aborter = rank_;
    state_.abort_reason = reason;
    for (Endpoint& end : state_.ends) end.changed.notify_all();
  }

  void expect_alive(std::span<const Rank> others) override {
    const std::lock_guard lock(state_.mutex);
    state_.throw_if_aborted();
    for (const Rank peer : others) {
      if (state_.ends[peer.index()].left) throw_lost(peer);
    }
  }

  TransportCounters counters() const override {
    const std::lock_guard lock(state_.mutex);
    return end_.counters;
  }

  bool reaches_devices() const override { return true; }

 private:
  /// After an error nobody reads this worker's memory any more: its groups' owners may be gone at
  /// once.
  template <typename Body>
  std::invoke_result_t<Body> withdrawing_on_error(std::unique_lock<std::mutex>& lock,
                                                  const Body& body) {
    try {
      return body();
    } catch (...) {
      withdraw(lock);
      throw;
    }
  }

  /// Takes back what nobody has begun to copy, waits for copies that were begun, and forgets what
  /// was posted: providers and memory may be gone at once.
  void withdraw(std::unique_lock<std::mutex>& lock) {
    for (Endpoint& other : state_.ends) {
      other.incoming[rank_.index()].remove_if(
          [](const Message& message) { return message.payload == Message::Payload::posted; });
      other.changed.notify_all();
    }
    end_.withdraws = true;
    end_.changed.wait(lock, [&] { return !is_being_read(); });
    end_.groups.clear();
  }

  GroupId start(const Context& context, const Header& expected, std::span<const Send> sends,
                std::span<const Receive> receives, ReceiveProvider& provider) {
    state_.throw_if_over(end_);
    const std::uint64_t id = end_.next_group++;
    Group& group = new_group(id);
    group.expected = expected;
    group.context.emplace(context);
    group.provider = &provider;
    if (context.device() != Device::cpu) {
      if (!group.ready) group.ready.emplace(context);
      group.ready->set(context);
    }
    group.receives.clear();
    group.unread.clear();
    for (const Receive& receive : receives) {
      expect_peer(receive.from, rank_, state_.size);
      group.receives.push_back({receive.from, {}, false, false, {}});
    }
    Time out = std::max(Clock::now(), end_.link_out_free);
    for (const Send& send : sends) {
      expect_peer(send.to, rank_, state_.size);
      Endpoint& peer = state_.ends[send.to.index()];
      if (peer.left) throw_lost(send.to);
      Message& message = new_message(peer);
      message.header = expected;
      message.header.bytes = static_cast<std::uint64_t>(send.bytes.resolve(context));
      message.data = send.data;
      message.group = id;
      message.context = &*group.context;
      message.ready = group.ready ? &*group.ready : nullptr;
      message.leaves = out;
      out += state_.on_link(message.bytes());
      ++end_.counters.messages_sent;
      end_.counters.bytes_sent += message.bytes();
      group.unread.push_back(send.to);
    }
    end_.link_out_free = out;
    group.sent = out;
    return {id};
  }

  Group& group_of(GroupId id) {
    state_.throw_if_over(end_);
    return end_.groups.at(id.value);
  }

  Group& new_group(std::uint64_t id) {
    if (end_.old_groups.empty()) return end_.groups[id];
    std::map<std::uint64_t, Group>::node_type node = std::move(end_.old_groups.back());
    end_.old_groups.pop_back();
    node.key() = id;
    return end_.groups.insert(std::move(node)).position->second;
  }

  /// From here, the last that its receiver has.
  Message& new_message(Endpoint& receiver) {
    std::list<Message>& messages = receiver.incoming[rank_.index()];
    std::list<Message>& old = receiver.old_messages;
    if (old.empty()) return messages.emplace_back();
    messages.splice(messages.end(), old, old.begin());
    return messages.back() = {};
  }

  std::optional<Arrival> wait_for_receive(std::unique_lock<std::mutex>& lock, Group& group,
                                          Time until) {
    while (true) {
      state_.throw_if_aborted();
      while (copy_next_payload(lock)) {
      }
      state_.throw_if_aborted();  // while the lock was open; and who aborted may have left since
      const Time now = Clock::now();
      settle(now);
      Time wake = until;
      bool waits = false;
      for (std::size_t i = 0; i < group.receives.size(); ++i) {
        Waiting& receive = group.receives[i];
        if (receive.returned) continue;
        waits = true;
        if (!receive.matched) {
          if (state_.ends[receive.from.index()].left && !first_unmatched(receive.from))
            throw_lost(receive.from);
        } else if (receive.message->complete <= now) {
          return complete(receive, i);
        } else {
          wake = std::min(wake, earliest_completion(*receive.message));
        }
      }
      if (!waits) return std::nullopt;
      if (now >= until) throw_deadline_of(group);
      if (!work_waits()) wait_until(lock, wake);
    }
  }

  void wait_for_sends(std::unique_lock<std::mutex>& lock, Group& group, Time until) {
    while (true) {
      state_.throw_if_aborted();
      const Time now = Clock::now();
      if (group.unread.empty() && now >= group.sent) return;
      for (const Rank to : group.unread) {
        if (state_.ends[to.index()].left) throw_lost(to);
      }
      if (now >= until) throw_deadline_of(group);
      wait_until(lock, group.unread.empty() ? std::min(group.sent, until) : until);
    }
  }

  /// Until then, or earlier. Timers wake a thread late, which a link in real time would seem slower
  /// by: the last of the way is watched, by no more threads at once than leave a core for work.
  /// What others change meanwhile is seen when it ends.
  void wait_until(std::unique_lock<std::mutex>& lock, Time wake) {
    if (Clock::now() < wake - kTimersAreLate) {
      end_.changed.wait_until(lock, wake - kTimersAreLate);
    } else if (state_.watching >= state_.most_watching) {
      end_.changed.wait_until(lock, wake);
    } else {
      ++state_.watching;
      lock.unlock();
      while (Clock::now() < wake) std::this_thread::yield();
      lock.lock();
      --state_.watching;
    }
  }

  bool is_being_read() const {
    return std::any_of(state_.ends.begin(), state_.ends.end(), [&](const Endpoint& other) {
      const std::list<Message>& messages = other.incoming[rank_.index()];
      return std::any_of(messages.begin(), messages.end(), [](const Message& message) {
        return message.payload == Message::Payload::copying;
      });
    });
  }

  /// The oldest message from that worker that no receive has taken.
  std::optional<std::list<Message>::iterator> first_unmatched(Rank from) {
    std::list<Message>& messages = end_.incoming[from.index()];
    const auto found = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
      return message.payload == Message::Payload::posted;
    });
    return found == messages.end() ? std::nullopt : std::optional(found);
  }

  /// Whether the group's receive is the one that the next unmatched message is for.
  bool is_next_from(Rank from, GroupId id) const {
    const auto end = end_.groups.find(id.value);
    return std::none_of(end_.groups.begin(), end, [&](const auto& earlier) {
      const std::vector<Waiting>& receives = earlier.second.receives;
      return std::any_of(receives.begin(), receives.end(), [&](const Waiting& receive) {
        return receive.from.value == from.value && !receive.matched;
      });
    });
  }

  /// Whether some receive could take a message now.
  bool work_waits() {
    for (auto& [id, group] : end_.groups) {
      for (const Waiting& receive : group.receives) {
        if (!receive.matched && first_unmatched(receive.from)) return true;
      }
    }
    return false;
  }

  /// Gives the first receive that can have it its message, in the order of posting, and copies the
  /// payload; the lock is open meanwhile. Looks from the first receive on each time: while the lock
  /// was open a message may have come for one that stands before.
  bool copy_next_payload(std::unique_lock<std::mutex>& lock) {
    for (auto& [id, group] : end_.groups) {
      for (std::size_t i = 0; i < group.receives.size(); ++i) {
        Waiting& receive = group.receives[i];
        if (receive.matched) continue;
        const auto found = first_unmatched(receive.from);
        if (!found) continue;
        Message& message = **found;
        check_header(receive.from, group.expected, message.header);
        receive.message = *found;
        receive.matched = true;
        message.payload = Message::Payload::copying;
        lock.unlock();
        std::byte* to = nullptr;
        try {
          to = group.provider->provide(i, message.header);
          if (to != nullptr && message.header.bytes > 0) take(*group.context, message, to);
        } catch (...) {
          lock.lock();
          copied(message, receive.from);
          throw;
        }
        lock.lock();
        receive.payload = {to, to == nullptr ? 0 : message.header.bytes};
        copied(message, receive.from);
        return true;
      }
    }
    return false;
  }

  /// Copies a payload. From one device to another nobody waits: the receiver's work from now on
  /// waits for the sender's before, and the sender's from now on for the copy.
  void take(const Context& own, const Message& message, std::byte* to) {
    if (is_on_host(own, message.header)) {
      std::memcpy(to, message.data, message.header.bytes);
      return;
    }
    message.ready->make_wait(own);
    copy_from(*message.context, {message.data, message.header.bytes}, own, to);
    if (!read_) read_.emplace(own);
    read_->set(own);
    read_->make_wait(*message.context);
  }

  /// Tells the sender that its memory is no longer read, once it is none of the group's.
  void copied(Message& message, Rank from) {
    message.payload = Message::Payload::copied;
    Endpoint& sender = state_.ends[from.index()];
    bool was_last = false;
    if (const auto group = sender.groups.find(message.group); group != sender.groups.end()) {
      std::vector<Rank>& unread = group->second.unread;
      unread.erase(std::find(unread.begin(), unread.end(), rank_));
      was_last = unread.empty();
    }
    if (was_last || sender.withdraws) sender.changed.notify_all();
  }

  /// Settles the way in of all chunks that have arrived by now, in order of arrival.
  void settle(Time now) {
    // Without a rate a message is one chunk.
    const std::int64_t chunk =
        state_.link.rate_bps ? kLinkChunkBytes : std::numeric_limits<std::int64_t>::max();
    while (true) {
      Message* earliest = nullptr;
      for (std::list<Message>& messages : end_.incoming) {
        const auto unsettled =
            std::find_if(messages.begin(), messages.end(),
                         [](const Message& message) { return message.complete == Time::max(); });
        if (unsettled == messages.end()) continue;
        if (earliest == nullptr || state_.next_in(*unsettled) < state_.next_in(*earliest)) {
          earliest = &*unsettled;
        }
      }
      if (earliest == nullptr || state_.next_in(*earliest) > now) return;
      const std::int64_t bytes = std::min(chunk, earliest->bytes() - earliest->settled);
      end_.link_in_free =
          std::max(end_.link_in_free, state_.next_in(*earliest)) + state_.on_link(bytes);
      earliest->settled += bytes;
      if (earliest->settled == earliest->bytes()) earliest->complete = end_.link_in_free;
    }
  }

  /// No message completes before this; later ones may come in between and delay it.
  Time earliest_completion(const Message& message) const {
    if (message.complete != Time::max()) return message.complete;
    return std::max(end_.link_in_free, state_.next_in(message)) +
           state_.on_link(message.bytes() - message.settled);
  }

  Arrival complete(Waiting& receive, std::size_t place) {
    receive.returned = true;
    ++end_.counters.messages_received;
    end_.counters.bytes_received += receive.message->bytes();
    const Header header = receive.message->header;
    end_.old_messages.splice(end_.old_messages.end(), end_.incoming[receive.from.index()],
                             receive.message);
    return {place, header, receive.payload};
  }

  [[noreturn]] void throw_deadline_of(const Group& group) const {
    std::vector<Rank> silent = group.unread;
    for (const Waiting& receive : group.receives) {
      if (!receive.returned) silent.push_back(receive.from);
    }
    throw_deadline(rank_, std::move(silent));
  }

  State& state_;
  Rank rank_;
  Endpoint& end_;
  std::optional<Event> read_;  // where this worker's device has read the last payload
};

}  // namespace

LocalNetwork::LocalNetwork(int size, LocalLink link, std::optional<int> workers_per_node)
    : state_(std::make_unique<State>(size, link, workers_per_node)) {}

LocalNetwork::~LocalNetwork() = default;

std::unique_ptr<Transport> LocalNetwork::join(Rank rank) {
  SPARSESYNC_EXPECT(rank.value, >=, 0);
  SPARSESYNC_EXPECT(rank.value, <, state_->size);
  return std::make_unique<LocalTransport>(*state_, rank);
}

}  // namespace sparsesync
