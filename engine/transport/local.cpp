// The timing model. The time at which a message leaves is computed when it is posted, because only
// its sender uses the outgoing link. The receiver schedules chunks on its incoming link in order of
// arrival, and only chunks that have arrived by now. Messages that other workers post later also
// arrive later, so the schedule never changes.
//
// A payload is copied as soon as its send and its receive are posted. Only the arrival is delayed
// in real time.
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

/// Allowance for late timers. We measured wake-ups that were 70 us late, and 50 us later still with
/// the kernel's default timer slack.
constexpr std::chrono::microseconds kTimersAreLate{150};

/// A posted message that is not complete, stored at its receiver.
struct Message {
  enum class Payload : std::uint8_t { posted, copying, copied };
  Header header;
  const std::byte* data = nullptr;
  std::uint64_t group = 0;  // the sender's group
  // The sender's context, and an event after which its device has written the payload. Both belong
  // to the sender's group, which outlives the message.
  const Context* context = nullptr;
  const Event* ready = nullptr;
  Time leaves;                 // when its first byte is sent
  std::int64_t scheduled = 0;  // bytes scheduled on the receiver's link
  Payload payload = Payload::posted;
  Time complete = Time::max();

  std::int64_t bytes() const { return kHeaderBytes + static_cast<std::int64_t>(header.bytes); }
};

/// A receive of a group. It waits for its message, and then for the message's last byte.
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
  std::optional<Event> ready;  // after the device work before the group; kept for reuse
  std::vector<Waiting> receives;
  ReceiveProvider* provider = nullptr;
  std::vector<Rank> unread;  // receivers that have not copied their payload yet
  Time sent;                 // when the last byte has been sent
};

/// One worker's endpoint.
struct Endpoint {
  bool left = false;
  bool withdraws = false;  // after an error: only waits for readers of its memory
  std::condition_variable changed;
  std::map<std::uint64_t, Group> groups;
  std::vector<std::list<Message>> incoming;  // [sender] oldest first
  // Used groups and messages, kept for reuse of their memory.
  std::vector<std::map<std::uint64_t, Group>::node_type> old_groups;
  std::list<Message> old_messages;  // received here
  Time link_in_free;
  Time link_out_free;
  std::uint64_t next_group = 1;
  TransportCounters counters;
};

}  // namespace

/// State of all endpoints, guarded by `mutex`. Payloads are copied without the lock.
struct LocalNetwork::State {
  State(int workers, LocalLink of_each, std::optional<int> per_node)
      : size(workers),
        link(of_each),
        workers_per_node(per_node.value_or(workers)),
        ends(Rank{workers}.index()) {
    for (Endpoint& end : ends) {
      end.incoming.resize(ends.size());
      // Preallocates messages, because a steady state must not allocate. Each peer may be a phase
      // ahead, or the left neighbour a whole ring. The lead depends on timing.
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

  /// Returns when the next unscheduled byte reaches the receiver's link.
  Time next_in(const Message& message) const {
    return message.leaves + on_link(message.scheduled) + latency();
  }

  void throw_if_aborted() const {
    if (aborted) throw_aborted(aborter, abort_reason);
  }
  void throw_if_over(const Endpoint& end) const {
    throw_if_aborted();
    if (end.withdraws) throw Error("this worker's transport failed earlier");
  }

  const int size;
  const LocalLink link;
  const int workers_per_node;
  std::mutex mutex;
  std::deque<Endpoint> ends;
  const int most_watching = static_cast<int>(std::thread::hardware_concurrency()) - 1;
  int watching = 0;  // endpoints that poll the clock instead of sleeping
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
    lock.unlock();  // before the notified workers wake up
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
    schedule_arrivals(now);
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
  /// Withdraws this worker's messages after an error, because their memory may then be freed at
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

  /// Removes messages whose copy has not begun, waits for copies in progress, and forgets all
  /// groups. Providers and memory may be freed afterwards.
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

  /// Appends a message from this worker to the receiver's list.
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
      state_.throw_if_aborted();  // again: the aborter may have left since
      const Time now = Clock::now();
      schedule_arrivals(now);
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

  /// Waits until `wake`, or until an earlier notification. Timers wake a thread late, which would
  /// make the simulated link slower, so the last part of the wait polls the clock. The number of
  /// polling threads leaves one core for other work. A polling thread notices changes by other
  /// workers only at `wake`.
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

  /// Returns the oldest message from a worker that is not matched with a receive.
  std::optional<std::list<Message>::iterator> first_unmatched(Rank from) {
    std::list<Message>& messages = end_.incoming[from.index()];
    const auto found = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
      return message.payload == Message::Payload::posted;
    });
    return found == messages.end() ? std::nullopt : std::optional(found);
  }

  /// Whether the next unmatched message from a worker belongs to this group.
  bool is_next_from(Rank from, GroupId id) const {
    const auto end = end_.groups.find(id.value);
    return std::none_of(end_.groups.begin(), end, [&](const auto& earlier) {
      const std::vector<Waiting>& receives = earlier.second.receives;
      return std::any_of(receives.begin(), receives.end(), [&](const Waiting& receive) {
        return receive.from.value == from.value && !receive.matched;
      });
    });
  }

  /// Whether a receive can be matched with a message now.
  bool work_waits() {
    for (auto& [id, group] : end_.groups) {
      for (const Waiting& receive : group.receives) {
        if (!receive.matched && first_unmatched(receive.from)) return true;
      }
    }
    return false;
  }

  /// Matches the first receive in posting order that has a message, and copies the payload without
  /// the lock. Each call starts at the first receive: while the lock was open, a message may have
  /// arrived for an earlier receive.
  /// @return whether a receive was matched
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

  /// Copies a payload. Between devices the host does not wait: the receiver's later work waits for
  /// the sender's earlier work, and the sender's later work waits for the copy.
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

  /// Marks a payload as copied. Notifies the sender after the last payload of its group.
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

  /// Schedules all chunks that have arrived by now on the incoming link, in order of arrival.
  void schedule_arrivals(Time now) {
    // Without a rate a message is one chunk.
    const std::int64_t chunk =
        state_.link.rate_bps ? kLinkChunkBytes : std::numeric_limits<std::int64_t>::max();
    while (true) {
      Message* earliest = nullptr;
      for (std::list<Message>& messages : end_.incoming) {
        const auto unscheduled =
            std::find_if(messages.begin(), messages.end(),
                         [](const Message& message) { return message.complete == Time::max(); });
        if (unscheduled == messages.end()) continue;
        if (earliest == nullptr || state_.next_in(*unscheduled) < state_.next_in(*earliest)) {
          earliest = &*unscheduled;
        }
      }
      if (earliest == nullptr || state_.next_in(*earliest) > now) return;
      const std::int64_t bytes = std::min(chunk, earliest->bytes() - earliest->scheduled);
      end_.link_in_free =
          std::max(end_.link_in_free, state_.next_in(*earliest)) + state_.on_link(bytes);
      earliest->scheduled += bytes;
      if (earliest->scheduled == earliest->bytes()) earliest->complete = end_.link_in_free;
    }
  }

  /// Returns a lower bound on a message's completion time. Later messages may arrive in between and
  /// delay it.
  Time earliest_completion(const Message& message) const {
    if (message.complete != Time::max()) return message.complete;
    return std::max(end_.link_in_free, state_.next_in(message)) +
           state_.on_link(message.bytes() - message.scheduled);
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
  std::optional<Event> read_;  // after this worker's device has read the last payload
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
