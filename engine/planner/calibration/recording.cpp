#include "engine/planner/calibration/recording.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "schemes/transport.h"

namespace sparsesync {
namespace {

using Kind = RecordedEvent::Kind;

}  // namespace

/// Limits the number of workers that compute at the same time.
class Recording::Turns {
 public:
  explicit Turns(int count) : free_(count) {}

  /// @throws DeadlineError
  void take(Rank worker, Clock::time_point until) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, until, [&] { return free_ > 0 || open_; })) {
      throw_deadline(worker, holders_);
    }
    --free_;  // may be negative after open()
    holders_.push_back(worker);
  }

  void give(Rank worker) {
    const std::lock_guard lock(mutex_);
    ++free_;
    holders_.erase(std::find(holders_.begin(), holders_.end(), worker));
    changed_.notify_one();
  }

  /// Lets all workers compute from now on.
  void open() noexcept {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int free_;
  bool open_ = false;
  std::vector<Rank> holders_;
};

/// One worker's record. The transport's thread uses it. Between that thread's calls, the thread
/// that begins and ends steps uses it.
struct Recording::Worker {
  struct OpenGroup {
    std::uint64_t id = 0;
    std::int32_t number = 0;
    std::vector<Rank> from;
  };

  Rank rank;
  Turns* turns = nullptr;
  bool has_turn = false;
  bool in_step = false;
  std::optional<clockid_t> thread;  // clock of the transport's thread, after its first call
  std::optional<double> since;      // time of `thread` when computing began
  std::vector<RecordedEvent> events;
  bool handles = false;  // whether it handles the last taken message
  std::int32_t next_group = 0;
  std::vector<OpenGroup> groups;
  std::vector<std::vector<RecordedEvent>> steps;

  void take_turn(Clock::time_point until) {
    turns->take(rank, until);
    has_turn = true;
  }
  void give_turn() {
    if (std::exchange(has_turn, false)) turns->give(rank);
  }

  void begin_computing() {
    handles = false;
    since = thread ? std::optional(processor_seconds(*thread)) : std::nullopt;
  }
  /// Records the time since begin_computing().
  void end_computing() {
    if (!since || !thread) return;
    const double seconds = std::max(0.0, processor_seconds(*thread) - *std::exchange(since, {}));
    if (handles) {
      events.back().seconds = seconds;
    } else if (seconds > 0) {
      events.push_back({Kind::compute, 0, 0, 0, seconds});
    }
  }
};

namespace {

class RecordingTransport : public Transport {
 public:
  RecordingTransport(std::unique_ptr<Transport> end, Recording::Turns& turns,
                     Recording::Worker& worker)
      : end_(std::move(end)), turns_(turns), worker_(worker) {}
  ~RecordingTransport() override { worker_.give_turn(); }

  Rank rank() const override { return end_->rank(); }
  int size() const override { return end_->size(); }
  int node(Rank worker) const override { return end_->node(worker); }
  TransportCounters counters() const override { return end_->counters(); }

  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    if (!worker_.thread) {
      clockid_t clock{};
      if (pthread_getcpuclockid(pthread_self(), &clock) != 0) {
        throw Error("the CPU time of a worker's thread cannot be read on this system");
      }
      worker_.thread = clock;
    }
    if (!worker_.in_step) return end_->post(context, expected, sends, receives, provider);
    worker_.end_computing();
    const GroupId id = end_->post(context, expected, sends, receives, provider);
    Recording::Worker::OpenGroup& group = worker_.groups.emplace_back();
    group.id = id.value;
    group.number = worker_.next_group++;
    for (const Send& send : sends) {
      worker_.events.push_back(
          {Kind::send, group.number, send.to.value, kHeaderBytes + send.bytes.resolve(context), 0});
    }
    for (const Receive& receive : receives) {
      group.from.push_back(receive.from);
      worker_.events.push_back({Kind::receive, group.number, receive.from.value, 0, 0});
    }
    worker_.begin_computing();
    return id;
  }

  std::optional<Arrival> next(GroupId id, Clock::time_point until) override {
    if (!worker_.in_step) return end_->next(id, until);
    worker_.end_computing();
    // A worker with a message to handle keeps its turn, because its data are in the caches.
    const bool waits = !end_->has_arrival(id);
    if (waits) worker_.give_turn();
    const std::optional<Arrival> arrival = end_->next(id, until);
    if (waits) worker_.take_turn(until);
    if (arrival) {
      const Recording::Worker::OpenGroup& group = *open_group(id);
      worker_.events.push_back(
          {Kind::take, group.number, group.from[arrival->receive].value, 0, 0});
    }
    worker_.begin_computing();
    worker_.handles = arrival.has_value();
    return arrival;
  }

  bool has_arrival(GroupId id) override { return end_->has_arrival(id); }

  void finish(GroupId id, Clock::time_point until) override {
    if (!worker_.in_step) {
      end_->finish(id, until);
      return;
    }
    worker_.end_computing();
    worker_.give_turn();
    end_->finish(id, until);
    worker_.take_turn(until);
    const auto group = open_group(id);
    worker_.events.push_back({Kind::finish, group->number, 0, 0, 0});
    worker_.groups.erase(group);
    worker_.begin_computing();
  }

  void abort(const std::string& reason) noexcept override {
    end_->abort(reason);
    turns_.open();
  }

 private:
  std::vector<Recording::Worker::OpenGroup>::iterator open_group(GroupId id) {
    const auto found = std::find_if(worker_.groups.begin(), worker_.groups.end(),
                                    [&](const auto& group) { return group.id == id.value; });
    if (found == worker_.groups.end()) {
      throw ContractError("a recorded group was posted before the step began");
    }
    return found;
  }

  std::unique_ptr<Transport> end_;
  Recording::Turns& turns_;
  Recording::Worker& worker_;
};

}  // namespace

Recording::Recording(int size, int turns) : turns_(std::make_unique<Turns>(turns)) {
  SPARSESYNC_EXPECT(turns, >=, 1);
  for (const Rank rank : Ranks(size)) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->rank = rank;
    workers_.back()->turns = turns_.get();
  }
}

Recording::~Recording() = default;

std::unique_ptr<Transport> Recording::wrap(std::unique_ptr<Transport> end) {
  Worker& worker = *workers_.at(end->rank().index());
  return std::make_unique<RecordingTransport>(std::move(end), *turns_, worker);
}

void Recording::begin_step(Rank rank, Clock::time_point until) {
  Worker& worker = *workers_.at(rank.index());
  worker.give_turn();  // held by a failed step
  worker.in_step = false;
  worker.take_turn(until);
  worker.in_step = true;
  worker.next_group = 0;
  worker.events.clear();
  worker.groups.clear();
  worker.begin_computing();
}

void Recording::end_step(Rank rank) {
  Worker& worker = *workers_.at(rank.index());
  SPARSESYNC_EXPECT(worker.in_step, ==, true);
  SPARSESYNC_EXPECT(worker.groups.size(), ==, std::size_t{0});
  worker.end_computing();
  worker.in_step = false;
  worker.steps.push_back(std::move(worker.events));
  worker.give_turn();
}

std::vector<RecordedStep> Recording::take_steps() {
  std::size_t count = workers_.empty() ? 0 : workers_.front()->steps.size();
  for (const auto& worker : workers_) count = std::min(count, worker->steps.size());
  std::vector<RecordedStep> steps(count);
  for (const auto& worker : workers_) {
    for (std::size_t step = 0; step < count; ++step) {
      steps[step].workers.push_back(std::move(worker->steps[step]));
    }
    worker->steps.clear();
  }
  return steps;
}

}  // namespace sparsesync
