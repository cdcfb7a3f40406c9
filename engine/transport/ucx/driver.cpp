#include "engine/transport/ucx/driver.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/base/threads.h"
#include "schemes/pattern.h"

namespace sparsesync::ucx {
namespace {

/// Time for which the thread polls after its last progress, before it sleeps. Most answers arrive
/// sooner than a sleeping thread wakes up. Meanwhile it yields its core to other threads.
constexpr std::chrono::microseconds kPolling{30};
/// Longest wait for an event. An endpoint notices the end of a peer in time, although no event
/// announces the end of its grace period.
constexpr std::chrono::milliseconds kTick{50};
/// Time between two checks whether other processes of this machine have ended.
constexpr std::chrono::milliseconds kProcessWatch{20};
/// Time for a failed worker to send its last control messages. Over shared memory their answers may
/// never arrive: a worker that is killed while it writes into another one's queue blocks the queue.
constexpr std::chrono::milliseconds kLastWords{1000};

}  // namespace

Alarm::Alarm() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw Error("cannot create an eventfd: raise the limit of open files");
}

Alarm::~Alarm() {
  close(descriptor_);
}

void Alarm::ring() noexcept {
  rung_ = true;
  if (!waiting_.exchange(false)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof(one));
}

void Alarm::wait(int descriptor, std::chrono::milliseconds most) {
  waiting_ = true;
  if (!rung_) {
    std::array<pollfd, 2> events{{{descriptor, POLLIN, 0}, {descriptor_, POLLIN, 0}}};
    poll(events.data(), events.size(), static_cast<int>(most.count()));
  }
  if (!waiting_.exchange(false)) {
    // A ring that has not written yet ends the next wait early, which is harmless.
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(descriptor_, &count, sizeof(count));
  }
  rung_ = false;
}

Driver::Driver(std::unique_ptr<Link> link, Rank rank, std::vector<int> nodes,
               std::vector<ProcessName> processes, packets::PacketOptions options,
               Clock::time_point until, std::chrono::milliseconds leaving)
    : link_(std::move(link)),
      rank_(rank),
      nodes_(std::move(nodes)),
      processes_(std::move(processes)),
      options_(options),
      until_(until),
      leaving_(leaving),
      thread_(start_thread("the thread that calls UCX", [this] { run(); })) {}

Driver::~Driver() {
  if (getpid() != processes_[rank_.index()].process) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (endpoint_) endpoint_->leave();
  }
  stopping_ = true;
  alarm_->ring();
  thread_.join();
}

std::pair<std::shared_ptr<packets::Endpoint>, std::vector<Rank>> Driver::connect() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return settled_; });
  if (failure_) std::rethrow_exception(failure_);
  return {endpoint_, silent_};
}

void Driver::run() {
  try {
    drive();
  } catch (...) {
    settle(std::current_exception());
  }
}

void Driver::drive() {
  Link& link = *link_;
  const auto endpoint = std::make_shared<packets::Endpoint>(
      std::move(link_), rank_, nodes_, options_, [alarm = alarm_] { alarm->ring(); });
  {
    const std::lock_guard lock(mutex_);
    endpoint_ = endpoint;
  }
  // UCX reports the end of a process that uses shared memory only once its parent has waited for
  // it.
  ProcessWatch watch;
  for (const ProcessName& worker : processes_) watch.add(processes_[rank_.index()], worker);
  Clock::time_point watched;
  Clock::time_point moved_at;
  bool connecting = true;
  std::optional<Clock::time_point> stop_at;
  while (true) {
    const bool moved = endpoint->progress();
    if (const Clock::time_point now = Clock::now(); now - watched >= kProcessWatch) {
      watched = now;
      watch.poll([&](Rank worker) { endpoint->process_ended(worker); });
    }
    if (connecting) connecting = !settles(link, *endpoint);
    if (stopping_) {
      // Peers learn from the rendezvous that this worker did not connect.
      if (!silent_.empty() || failure_) break;
      if (!stop_at) stop_at = Clock::now() + (endpoint->healthy() ? leaving_ : kLastWords);
      if (endpoint->retired() || Clock::now() >= *stop_at) break;
    }
    if (moved) {
      moved_at = Clock::now();
    } else if (Clock::now() - moved_at < kPolling) {
      std::this_thread::yield();
    } else if (link.arm()) {
      alarm_->wait(link.descriptor(), kTick);
    }
  }
  endpoint->close();
}

/// Notes the outcome of the connections, once it is known.
/// @return whether it is known
bool Driver::settles(const Link& link, packets::Endpoint& endpoint) {
  const std::vector<Rank> silent = link.silent();
  if (!silent.empty()) {
    try {
      // A silent worker may have failed because of a lost one that has greeted this worker.
      endpoint.expect_alive(peers_after(rank_, endpoint.size()));
    } catch (...) {
      settle(std::current_exception());
      return true;
    }
    if (Clock::now() < until_) return false;
  }
  silent_ = silent;
  settle(nullptr);
  return true;
}

void Driver::settle(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  settled_ = true;
  changed_.notify_all();
}

}  // namespace sparsesync::ucx
