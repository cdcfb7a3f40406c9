// Events are processed in the order of virtual time. Ties keep the order in which they were added.
// At time t, all messages posted before t are known, and so are all chunks that arrive before t.
// Only these chunks are scheduled on the incoming link, in order of arrival and then of the
// sender's rank.
#include "engine/planner/calibration/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "engine/planner/calibration/fit.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

using Kind = RecordedEvent::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t index(std::int32_t number) {
  return static_cast<std::size_t>(number);
}

struct Message {
  std::int32_t sender_group = 0;
  std::int64_t bytes = 0;
  double leaves = 0;           // when its first byte is sent
  std::int64_t scheduled = 0;  // bytes scheduled on the receiver's link
  double complete = kNever;
  bool matched = false;    // with a receive
  std::int32_t group = 0;  // the receiver's group, if it is matched
};

/// Messages from one worker to another, in the order of posting.
struct Stream {
  std::vector<Message> messages;
  std::size_t unscheduled = 0;         // index of the first message that is not complete
  std::vector<std::int32_t> receives;  // groups of the posted receives
  std::size_t matched = 0;             // number of matched messages
};

struct Handling {
  std::vector<double> seconds;  // in the order of the messages
  std::size_t taken = 0;
};

struct Group {
  double sent = 0;          // when the last byte has been sent
  std::int64_t unread = 0;  // messages that their receivers have not read
  std::size_t untaken = 0;  // posted receives without a taken message
  /// Complete and not taken messages: (time, sender). A heap with the earliest on top.
  std::vector<std::pair<double, std::int32_t>> ready;
  /// Recorded handling times, by sender.
  std::map<std::int32_t, Handling> handling;
};

enum class Waits : std::uint8_t { no, for_message, for_reader };

struct Worker {
  std::span<const RecordedEvent> events;
  std::size_t at = 0;
  Waits waits = Waits::no;
  std::uint64_t runs = 0;  // wake-ups for an earlier run are stale
  bool done = false;
  double end = 0;
  double link_out_free = 0;
  double link_in_free = 0;
  std::map<std::int32_t, Group> groups;
  std::vector<Stream> from;  // [sender]
  /// (arrival time, sender) of each sender's next chunk. A heap with the earliest on top.
  std::vector<std::pair<double, std::int32_t>> arriving;
  /// Matched messages that are not read: (sender, the sender's group).
  std::vector<std::pair<std::int32_t, std::int32_t>> unread;
};

[[noreturn]] void refuse(const std::string& what) {
  throw InputError(fmt::format("a record {}: record the step again", what));
}

class Simulation {
 public:
  Simulation(const RecordedStep& step, const LocalLink& link) : link_(link) {
    if (link.rate_bps && !(*link.rate_bps > 0)) {
      throw InputError(fmt::format("a link of {} bits/s: give a rate above 0", *link.rate_bps));
    }
    if (!(link.latency_s >= 0) || !std::isfinite(link.latency_s)) {
      throw InputError(
          fmt::format("a link with a latency of {} s: give 0 or more", link.latency_s));
    }
    workers_.resize(step.workers.size());
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      workers_[rank].events = step.workers[rank];
      workers_[rank].from.resize(workers_.size());
      read_handling(static_cast<std::int32_t>(rank));
    }
  }

  std::vector<double> run() {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      wake(0, static_cast<std::int32_t>(rank));
    }
    while (!wakes_.empty()) {
      const auto [time, order, rank, runs] = wakes_.top();
      wakes_.pop();
      if (workers_[index(rank)].runs == runs) work(rank, time);
    }
    std::vector<double> ends;
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (!workers_[rank].done) throw_stuck(static_cast<std::int32_t>(rank));
      ends.push_back(workers_[rank].end);
    }
    return ends;
  }

 private:
  /// Checks a worker's events, and records the handling time of each message.
  void read_handling(std::int32_t rank) {
    Worker& worker = workers_[index(rank)];
    for (const RecordedEvent& event : worker.events) {
      const auto fail = [&](const std::string& what) {
        refuse(fmt::format("in which worker {} {}", rank, what));
      };
      if (!(event.seconds >= 0) || !std::isfinite(event.seconds)) {
        fail(fmt::format("computes for {} s", event.seconds));
      }
      if (event.bytes < 0) fail(fmt::format("sends {} bytes", event.bytes));
      if (event.kind == Kind::compute || event.kind == Kind::finish) continue;
      if (event.peer < 0 || index(event.peer) >= workers_.size() || event.peer == rank) {
        fail(fmt::format("has the peer worker {} of {}", event.peer, workers_.size()));
      }
      if (event.kind == Kind::take) {
        worker.groups[event.group].handling[event.peer].seconds.push_back(event.seconds);
      }
    }
  }

  double on_link(std::int64_t bytes) const {
    return link_.rate_bps ? static_cast<double>(bytes) * 8 / *link_.rate_bps : 0;
  }

  /// Returns when the next unscheduled byte reaches the receiver's link.
  double next_in(const Message& message) const {
    return message.leaves + on_link(message.scheduled) + link_.latency_s;
  }

  void wake(double time, std::int32_t rank) {
    wakes_.emplace(time, next_order_++, rank, workers_[index(rank)].runs);
  }

  /// Processes a worker's events until it computes or waits.
  void work(std::int32_t rank, double now) {
    Worker& worker = workers_[index(rank)];
    ++worker.runs;
    worker.waits = Waits::no;
    while (worker.at < worker.events.size()) {
      const RecordedEvent& event = worker.events[worker.at];
      double seconds = 0;
      switch (event.kind) {
        case Kind::compute:
          seconds = event.seconds;
          break;
        case Kind::send:
          send(rank, event, now);
          break;
        case Kind::receive:
          ++worker.groups[event.group].untaken;
          worker.from[index(event.peer)].receives.push_back(event.group);
          match(rank, event.peer, now);
          break;
        case Kind::take:
          if (const std::optional<double> handled = take(rank, event.group, now)) {
            seconds = *handled;
            break;
          }
          return;
        case Kind::finish:
          if (!finish(rank, event.group, now)) return;
          break;
      }
      ++worker.at;
      if (seconds > 0) {
        wake(now + seconds, rank);
        return;
      }
    }
    worker.done = true;
    worker.end = now;
  }

  void send(std::int32_t rank, const RecordedEvent& event, double now) {
    Worker& worker = workers_[index(rank)];
    Worker& receiver = workers_[index(event.peer)];
    Group& group = worker.groups[event.group];
    Message message;
    message.sender_group = event.group;
    message.bytes = event.bytes;
    message.leaves = std::max(now, worker.link_out_free);
    worker.link_out_free = message.leaves + on_link(event.bytes);
    group.sent = worker.link_out_free;
    ++group.unread;
    Stream& stream = receiver.from[index(rank)];
    stream.messages.push_back(message);
    if (stream.unscheduled + 1 == stream.messages.size()) {
      add_arriving(receiver, next_in(message), rank);
    }
    match(event.peer, rank, now);
    if (receiver.waits == Waits::for_message) {
      wake(std::max(now, soonest(receiver, message)), event.peer);
    }
  }

  /// Matches messages and receives of a stream.
  void match(std::int32_t rank, std::int32_t sender, double now) {
    Worker& worker = workers_[index(rank)];
    Stream& stream = worker.from[index(sender)];
    while (stream.matched < std::min(stream.messages.size(), stream.receives.size())) {
      Message& message = stream.messages[stream.matched];
      message.matched = true;
      message.group = stream.receives[stream.matched++];
      worker.unread.emplace_back(sender, message.sender_group);
      if (message.complete != kNever) add_ready(worker, message, sender);
    }
    if (worker.waits == Waits::for_message) read(worker, now);
  }

  /// Marks all matched messages as read: their receiver waits for a message.
  void read(Worker& worker, double now) {
    for (const auto& [sender, number] : worker.unread) {
      Worker& peer = workers_[index(sender)];
      Group& group = peer.groups[number];
      --group.unread;
      const bool waits =
          peer.waits == Waits::for_reader && !peer.done && peer.events[peer.at].group == number;
      if (group.unread == 0 && waits) wake(std::max(now, group.sent), sender);
    }
    worker.unread.clear();
  }

  /// Takes the next message of a group.
  /// @return the seconds that handling it takes; no value if the worker has to wait
  std::optional<double> take(std::int32_t rank, std::int32_t number, double now) {
    Worker& worker = workers_[index(rank)];
    Group& group = worker.groups[number];
    if (group.untaken == 0) {
      refuse(
          fmt::format("in which worker {} takes more messages of a group than it receives", rank));
    }
    read(worker, now);
    schedule_arrivals(worker, now);
    if (!group.ready.empty() && group.ready.front().first <= now) {
      Handling& handling = group.handling[group.ready.front().second];
      if (handling.taken == handling.seconds.size()) {
        refuse(fmt::format("in which worker {} does not take the message that worker {} sent", rank,
                           group.ready.front().second));
      }
      std::pop_heap(group.ready.begin(), group.ready.end(), std::greater<>());
      group.ready.pop_back();
      --group.untaken;
      return handling.seconds[handling.taken++];
    }
    worker.waits = Waits::for_message;
    double soon = group.ready.empty() ? kNever : group.ready.front().first;
    for (const auto& [time, sender] : worker.arriving) {
      const Stream& stream = worker.from[index(sender)];
      soon = std::min(soon, soonest(worker, stream.messages[stream.unscheduled]));
    }
    // Rounding must not cause endless wake-ups at the same time.
    if (soon != kNever) wake(std::max(soon, std::nextafter(now, kNever)), rank);
    return std::nullopt;
  }

  bool finish(std::int32_t rank, std::int32_t number, double now) {
    Worker& worker = workers_[index(rank)];
    const Group& group = worker.groups[number];
    if (group.unread == 0 && group.sent <= now) return true;
    worker.waits = Waits::for_reader;
    if (group.unread == 0) wake(group.sent, rank);
    return false;
  }

  static void add_arriving(Worker& worker, double time, std::int32_t sender) {
    worker.arriving.emplace_back(time, sender);
    std::push_heap(worker.arriving.begin(), worker.arriving.end(), std::greater<>());
  }

  static void add_ready(Worker& worker, const Message& message, std::int32_t sender) {
    auto& ready = worker.groups[message.group].ready;
    ready.emplace_back(message.complete, sender);
    std::push_heap(ready.begin(), ready.end(), std::greater<>());
  }

  /// Schedules all chunks that have arrived before now on the incoming link.
  void schedule_arrivals(Worker& worker, double now) {
    const std::int64_t chunk =
        link_.rate_bps ? kLinkChunkBytes : std::numeric_limits<std::int64_t>::max();
    while (!worker.arriving.empty()) {
      const auto [time, sender] = worker.arriving.front();
      // Without a rate, chunks do not delay each other, and a chunk that arrives now is available
      // now.
      if (link_.rate_bps ? time >= now : time > now) return;
      std::pop_heap(worker.arriving.begin(), worker.arriving.end(), std::greater<>());
      worker.arriving.pop_back();
      Stream& stream = worker.from[index(sender)];
      Message& message = stream.messages[stream.unscheduled];
      const std::int64_t bytes = std::min(chunk, message.bytes - message.scheduled);
      worker.link_in_free = std::max(worker.link_in_free, time) + on_link(bytes);
      message.scheduled += bytes;
      if (message.scheduled == message.bytes) {
        message.complete = worker.link_in_free;
        if (message.matched) add_ready(worker, message, sender);
        ++stream.unscheduled;
      }
      if (stream.unscheduled < stream.messages.size()) {
        add_arriving(worker, next_in(stream.messages[stream.unscheduled]), sender);
      }
    }
  }

  /// Returns a lower bound on a message's completion time. Other messages may delay it.
  double soonest(const Worker& worker, const Message& message) const {
    return std::max(worker.link_in_free, next_in(message)) +
           on_link(message.bytes - message.scheduled);
  }

  [[noreturn]] void throw_stuck(std::int32_t rank) const {
    const Worker& worker = workers_[index(rank)];
    const bool for_message = worker.waits == Waits::for_message;
    const RecordedEvent& event = worker.events[worker.at];
    refuse(fmt::format(
        "that cannot end: worker {} waits {} of its group {}", rank,
        for_message ? fmt::format("for a message (in the run it was worker {}'s)", event.peer)
                    : std::string("for the readers of what it sent"),
        event.group));
  }

  LocalLink link_;
  std::vector<Worker> workers_;
  /// (time, order of the request, worker, the worker's run).
  using Wake = std::tuple<double, std::uint64_t, std::int32_t, std::uint64_t>;
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes_;
  std::uint64_t next_order_ = 0;
};

}  // namespace

std::vector<double> replay(const RecordedStep& step, const LocalLink& link) {
  return Simulation(step, link).run();
}

double replayed_seconds(const RecordedStep& step, const LocalLink& link) {
  const std::vector<double> ends = replay(step, link);
  return ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
}

StepTimes times_of(const std::vector<double>& seconds) {
  return {median(seconds), *std::min_element(seconds.begin(), seconds.end())};
}

StepTimes replayed_times(const RecordedRun& run, const LocalLink& link) {
  const std::size_t steps = run.steps > 0 ? index(run.steps) : 0;
  if (steps == 0 || run.recorded.size() < steps || run.recorded.size() % steps != 0) {
    throw InputError(
        fmt::format("a recorded run of {} steps, not a multiple of {}: record it again",
                    run.recorded.size(), run.steps));
  }
  std::vector<double> seconds;
  for (std::size_t first = 0; first < run.recorded.size(); first += steps) {
    double all = 0;
    for (std::size_t step = first; step < first + steps; ++step) {
      all += replayed_seconds(run.recorded[step], link);
    }
    seconds.push_back(all / run.steps);
  }
  return times_of(seconds);
}

RecordedTraffic traffic_of(std::span<const RecordedEvent> events) {
  RecordedTraffic traffic;
  for (const RecordedEvent& event : events) {
    traffic.compute_seconds += event.seconds;
    if (event.kind == Kind::send) {
      traffic.bytes_sent += event.bytes;
      ++traffic.messages_sent;
    } else if (event.kind == Kind::receive) {
      ++traffic.messages_received;
    }
  }
  return traffic;
}

}  // namespace sparsesync
