#include "sparsesync/transports/mpi.h"

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/transport/mpi_library.h"
#include "engine/transport/mpi_link.h"
#include "engine/transport/packets/endpoint_transport.h"
#include "engine/transport/process_watch.h"
#include "kernels/base/threads.h"

namespace sparsesync {
namespace {

using mpi::check;
using packets::Endpoint;

/// Polling rate. The thread polls `polls` times without a pause. Then it pauses between polls, and
/// doubles the pause up to the longest one. With a longest pause of 500 us, a step of a small model
/// took 2.3 ms; with 80 us it takes 1.2 ms. Each hop of an all-reduce is noticed up to one pause
/// late.
struct Eagerness {
  int polls = 16;
  std::chrono::microseconds shortest_pause{20};
  std::chrono::microseconds longest_pause{80};  // if messages are expected
};
/// Polling rate for workers that share cores. A poll without a message takes CPU time from the
/// worker that would send one. After a longer pause, a poll also finds more messages.
constexpr Eagerness kSharingCores{2, std::chrono::microseconds{100},
                                  std::chrono::microseconds{500}};
constexpr std::chrono::microseconds kIdlePause{2000};
constexpr std::chrono::milliseconds kProcessWatch{20};
/// Time for a failed worker to send its last control messages.
constexpr std::chrono::milliseconds kLastWords{1000};

}  // namespace

/// State shared between the MPI thread, which makes all MPI calls, and other threads. The MPI
/// thread may be stuck in a call that waits for a missing process. It is then detached, and keeps
/// this state.
class MpiWorld::State : public std::enable_shared_from_this<MpiWorld::State> {
 public:
  explicit State(MpiOptions options)
      : options_(options), leaving_(options.leaving.value_or(options.deadline)) {}

  void start() {
    thread_ =
        start_thread("the thread that calls MPI", [self = shared_from_this()] { self->run(); });
    try {
      do_in_thread("MPI_Init", options_.deadline, [this] { initialize(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  /// Ends the MPI thread, or detaches it. Does nothing if it was ended before.
  void stop() {
    if (!thread_.joinable()) return;
    std::unique_lock lock(mutex_);
    stopping_ = true;
    poked_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, leaving_ + kLastWords, [&] { return ended_ || stuck_; });
    const bool ended = ended_;
    lock.unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

  Rank rank() const { return rank_; }
  int size() const { return size_; }

  std::unique_ptr<Transport> join(int members, Chunks chunks, std::chrono::milliseconds deadline);

  std::chrono::milliseconds deadline() const { return options_.deadline; }

  void wake() {
    {
      const std::lock_guard lock(mutex_);
      poked_ = true;
    }
    changed_.notify_all();
  }

 private:
  /// Runs `job` in the MPI thread.
  /// @throws what `job` throws, DeadlineError
  void do_in_thread(const char* what, std::chrono::milliseconds deadline,
                    std::function<void()> job) {
    std::unique_lock lock(mutex_);
    leaving_ = std::max(leaving_, deadline);
    if (stuck_) throw DeadlineError("an MPI call has not returned since an earlier timeout");
    if (ended_)
      throw Error("the program has already called MPI_Finalize: connect before that call");
    job_ = std::move(job);
    job_error_ = nullptr;
    poked_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(lock, deadline, [&] { return job_ == nullptr; })) {
      stuck_ = true;
      throw DeadlineError(
          fmt::format("{} did not end within {} s: a process is missing; check that all processes "
                      "start and join",
                      what, static_cast<double>(deadline.count()) / 1000));
    }
    if (job_error_) std::rethrow_exception(job_error_);
  }

  // ---- The MPI thread.

  void run() {
    prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; makes short pauses accurate
    int idle = 0;
    Clock::time_point watched;
    std::optional<Clock::time_point> stop_at;
    while (true) {
      bool moved = false;
      bool busy = false;
      for (const std::shared_ptr<Endpoint>& end : ends_) {
        moved = end->progress() || moved;
        busy = end->busy() || busy;
      }
      const Clock::time_point now = Clock::now();
      if (now - watched >= kProcessWatch) {
        watched = now;
        watch_.poll([&](Rank rank) {
          lost_one_ = true;
          for (const std::shared_ptr<Endpoint>& end : ends_) end->process_ended(rank);
        });
      }
      retire();
      // Runs jobs after the endpoints have made progress: a job may wait for processes that wait
      // for messages of this one.
      bool stops = false;
      run_job(stops);
      if (stops) {
        if (!stop_at) stop_at = now + (healthy_ ? leaving() : kLastWords);
        if (ends_.empty() || now >= *stop_at) break;
        busy = true;
      }
      idle = moved ? 0 : idle + 1;
      pause(idle, busy);
    }
    finalize();
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void run_job(bool& stops) {
    std::function<void()> job;
    {
      const std::lock_guard lock(mutex_);
      stops = stopping_;
      job = job_;
    }
    if (!job) return;
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    job_ = nullptr;
    job_error_ = error;
    changed_.notify_all();
  }

  void retire() {
    for (auto end = ends_.begin(); end != ends_.end();) {
      healthy_ = healthy_ && (*end)->healthy();
      if (!(*end)->retired()) {
        ++end;
        continue;
      }
      (*end)->close();
      end = ends_.erase(end);
    }
  }

  void pause(int idle, bool busy) {
    if (idle < eagerness_.polls) {
      if (idle > 0) sched_yield();
      return;
    }
    const int doublings = std::min(idle - eagerness_.polls, 10);
    const auto length = std::min(eagerness_.shortest_pause * (1 << doublings),
                                 busy ? eagerness_.longest_pause : kIdlePause);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, length, [&] { return poked_; });
    poked_ = false;
  }

  void initialize() {
    int done = 0;
    check(mpi_.initialized(&done), "MPI_Initialized");
    int level = MPI_THREAD_SINGLE;
    if (done == 0) {
      // This thread makes all calls and is MPI's main thread.
      check(mpi_.init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
      initialized_here_ = true;
    } else {
      check(mpi_.query_thread(&level), "MPI_Query_thread");
      const bool multiple = options_.program_calls_mpi;
      if (level < (multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED)) {
        throw Error(fmt::format(
            "MPI was initialized with too little thread support: call MPI_Init_thread with "
            "MPI_THREAD_{} (in Python: set mpi4py.rc.thread_level = '{}' before mpi4py.MPI is "
            "imported), or let sparsesync initialize MPI",
            multiple ? "MULTIPLE" : "SERIALIZED", multiple ? "multiple" : "serialized"));
      }
    }
    MPI_Comm world = nullptr;
    check(mpi_.comm_dup(mpi_.comm_world, &world), "MPI_Comm_dup");
    check(mpi_.comm_set_errhandler(world, mpi_.errors_return), "MPI_Comm_set_errhandler");
    check(mpi_.comm_rank(world, &rank_.value), "MPI_Comm_rank");
    check(mpi_.comm_size(world, &size_), "MPI_Comm_size");
    find_nodes(world);
    find_processes(world);
    stop_before_finalize();
    world_ = world;
  }

  /// Ends the MPI thread when the program calls MPI_Finalize, which first deletes the attributes of
  /// MPI_COMM_SELF.
  void stop_before_finalize() {
    int key = MPI_KEYVAL_INVALID;
    check(mpi_.comm_create_keyval(mpi_.comm_null_copy_fn, &State::on_finalize, &key, nullptr),
          "MPI_Comm_create_keyval");
    auto self = std::make_unique<std::weak_ptr<State>>(weak_from_this());
    check(mpi_.comm_set_attr(mpi_.comm_self, key, self.get()), "MPI_Comm_set_attr");
    static_cast<void>(self.release());  // on_finalize() deletes it
    check(mpi_.comm_free_keyval(&key), "MPI_Comm_free_keyval");
  }

  static int on_finalize(MPI_Comm, int, void* attribute, void*) {
    const std::unique_ptr<std::weak_ptr<State>> of(static_cast<std::weak_ptr<State>*>(attribute));
    const std::shared_ptr<State> state = of->lock();
    const bool by_itself = state && std::this_thread::get_id() == state->thread_.get_id();
    if (state && !by_itself) {
      state->finalized_ = true;
      state->stop();
    }
    return MPI_SUCCESS;
  }

  /// Finds the node of each worker. A node's number is its lowest rank.
  void find_nodes(MPI_Comm world) {
    MPI_Comm node = nullptr;
    check(mpi_.comm_split_type(world, MPI_COMM_TYPE_SHARED, rank_.value, mpi_.info_null, &node),
          "MPI_Comm_split_type");
    int number = 0;
    check(mpi_.allreduce(&rank_.value, &number, 1, mpi_.int_type, mpi_.min, node), "MPI_Allreduce");
    check(mpi_.comm_free(&node), "MPI_Comm_free");
    nodes_.resize(static_cast<std::size_t>(size_));
    check(mpi_.allgather(&number, 1, mpi_.int_type, nodes_.data(), 1, mpi_.int_type, world),
          "MPI_Allgather");
  }

  void find_processes(MPI_Comm world) {
    const ProcessName own = ProcessName::own();
    std::vector<ProcessName> all(static_cast<std::size_t>(size_));
    check(mpi_.allgather(&own, sizeof(own), mpi_.byte_type, all.data(), sizeof(own), mpi_.byte_type,
                         world),
          "MPI_Allgather");
    unsigned here = 0;
    for (const ProcessName& worker : all) {
      watch_.add(own, worker);
      if (own.machine != 0 && worker.machine == own.machine) ++here;
    }
    if (here > std::thread::hardware_concurrency()) eagerness_ = kSharingCores;
  }

  std::chrono::milliseconds leaving() {
    const std::lock_guard lock(mutex_);
    return leaving_;
  }

  void finalize() {
    if (!ends_.empty() || lost_one_ || world_ == nullptr) {
      // MPI must not be called any more. It may still use memory of the endpoints.
      return;
    }
    mpi_.comm_free(&world_);
    if (initialized_here_ && !finalized_) mpi_.finalize();
  }

  const mpi::Library& mpi_ = mpi::library();
  const MpiOptions options_;
  std::thread thread_;
  std::atomic<bool> finalized_ = false;  // the program called MPI_Finalize

  // Members of the MPI thread. Those that other threads read are set before start() returns.
  Rank rank_;
  int size_ = 0;
  std::vector<int> nodes_;
  MPI_Comm world_ = nullptr;
  bool initialized_here_ = false;
  ProcessWatch watch_;
  Eagerness eagerness_;
  std::vector<std::shared_ptr<Endpoint>> ends_;
  bool healthy_ = true;
  bool lost_one_ = false;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool poked_ = false;
  std::chrono::milliseconds leaving_;
  std::function<void()> job_;
  std::exception_ptr job_error_;
  bool stopping_ = false;
  bool ended_ = false;
  bool stuck_ = false;
};

std::unique_ptr<Transport> MpiWorld::State::join(int members, Chunks chunks,
                                                 std::chrono::milliseconds deadline) {
  const auto options = packets::PacketOptions::of(chunks);
  SPARSESYNC_EXPECT(members, >=, 1);
  SPARSESYNC_EXPECT(members, <=, size_);
  // Shared, because the MPI thread may still run the job after this call has timed out.
  const auto joined = std::make_shared<std::shared_ptr<Endpoint>>();
  do_in_thread("joining", deadline, [this, members, options, joined] {
    MPI_Comm own = nullptr;
    const bool is_member = rank_.value < members;
    check(mpi_.comm_split(world_, is_member ? 0 : MPI_UNDEFINED, rank_.value, &own),
          "MPI_Comm_split");
    if (!is_member) return;
    check(mpi_.comm_set_errhandler(own, mpi_.errors_return), "MPI_Comm_set_errhandler");
    const std::vector<int> nodes(nodes_.begin(), nodes_.begin() + members);
    *joined = std::make_shared<Endpoint>(std::make_unique<mpi::Link>(own), rank_, nodes, options,
                                         [self = weak_from_this()] {
                                           if (const auto state = self.lock()) state->wake();
                                         });
    ends_.push_back(*joined);
  });
  if (*joined == nullptr) return nullptr;
  return std::make_unique<packets::EndpointTransport>(std::move(*joined));
}

bool has_mpi() {
  return why_no_mpi().empty();
}

std::string why_no_mpi() {
  return mpi::why_no_mpi();
}

std::string mpi_text() {
  if (!has_mpi()) return fmt::format("({})", why_no_mpi());
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  mpi::check(mpi::library().get_library_version(text.data(), &length), "MPI_Get_library_version");
  // "Open MPI v4.1.4, package: ..."
  return text.substr(0, text.find_first_of(std::string_view(",\0", 2)));
}

MpiWorld::MpiWorld(MpiOptions options) : state_(std::make_shared<State>(options)) {
  state_->start();
}

MpiWorld::~MpiWorld() {
  state_->stop();
}

Rank MpiWorld::rank() const {
  return state_->rank();
}

int MpiWorld::size() const {
  return state_->size();
}

std::unique_ptr<Transport> MpiWorld::join(int members, Chunks chunks,
                                          std::optional<std::chrono::milliseconds> deadline) {
  return state_->join(members, chunks, deadline.value_or(state_->deadline()));
}

}  // namespace sparsesync
