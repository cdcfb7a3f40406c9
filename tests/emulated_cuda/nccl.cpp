// The sends and receives of a group run when their stream reaches them, and then wait for each
// other, as in NCCL. If the peer never posts its group, the group waits until its communicator is
// aborted. A call of a non-blocking communicator is in progress until a poll finds it complete.
// Until then its work is not in the stream, and the communicator rejects all calls but
// ncclCommAbort().
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "emulated_nccl.h"
#include "tests/emulated_cuda/controls.h"

namespace sparsesync::emulated_cuda {

namespace {
std::atomic<int> communicators = 0;
}  // namespace

NcclBehavior& nccl_behavior() {
  static thread_local NcclBehavior behavior;
  return behavior;
}

int nccl_communicators() {
  return communicators;
}

}  // namespace sparsesync::emulated_cuda

namespace sparsesync::nccl {
namespace {

constexpr Result kInvalid = 4;

/// From this version, ncclCommAbort() also waits for a call in progress in another thread.
constexpr int kAbortsOtherThreads = 21900;

/// A message in flight.
struct Mail {
  const void* from = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<bool> taken;
  // Set if the sender was aborted, so that the message never arrives.
  std::shared_ptr<std::atomic<bool>> aborted;
};

/// A collective, with the data that its ranks have contributed so far.
struct Collective {
  std::vector<std::vector<std::byte>> given;
  std::size_t came = 0;
  std::size_t left = 0;
};

/// State shared by the ranks of a communicator. The device's lock guards it, except while ranks
/// join.
struct World {
  int size = 0;
  std::map<std::pair<int, int>, std::deque<Mail>> mail;  // [from, to]
  std::map<std::uint64_t, Collective> collectives;
};

std::mutex mutex;  // guards the table below
std::map<std::array<char, 128>, std::weak_ptr<World>>& worlds() {
  static std::map<std::array<char, 128>, std::weak_ptr<World>> all;
  return all;
}

}  // namespace

/// The communicator of one rank.
struct OpaqueComm {
  OpaqueComm() { ++emulated_cuda::communicators; }
  ~OpaqueComm() { --emulated_cuda::communicators; }
  OpaqueComm(const OpaqueComm&) = delete;
  OpaqueComm& operator=(const OpaqueComm&) = delete;

  std::shared_ptr<World> world;
  int rank = 0;
  bool blocking = true;
  emulated_cuda::NcclBehavior behavior = emulated_cuda::nccl_behavior();
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<Result>> error = std::make_shared<std::atomic<Result>>(kSuccess);
  std::uint64_t collectives = 0;
  bool finalized = false;

  // The call in progress.
  std::optional<int> polls_left;
  std::function<void()> rest;             // work that the call still has to do
  std::optional<std::thread::id> caller;  // set until ensure_ready()
};

namespace {

/// The calls of a group on one rank.
struct Calls {
  struct Call {
    void* memory;
    std::size_t bytes;
    int peer;
  };
  OpaqueComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Call> sends;
  std::vector<Call> receives;
};
thread_local bool in_group = false;
thread_local Result group_error = kSuccess;
thread_local Calls calls;

/// Rejects a call while another one is in progress. It also completes the previous call, which must
/// come from the same thread. Before NCCL 2.27 the state of a group is stored in its caller's
/// thread. Before 2.25 a poll does not complete a group; only the next call does.
Result ensure_ready(OpaqueComm& comm) {
  if (comm.polls_left) return kInvalid;
  if (*comm.error != kSuccess) return *comm.error;
  if (comm.caller && *comm.caller != std::this_thread::get_id()) return kInvalid;
  comm.caller.reset();
  return kSuccess;
}

/// Runs the work now if the communicator is blocking, otherwise with the poll that finds it
/// complete.
Result start_call(OpaqueComm& comm, std::function<void()> work) {
  if (comm.blocking) {
    work();
    return kSuccess;
  }
  comm.polls_left = emulated_cuda::nccl_behavior().polls;
  comm.rest = std::move(work);
  comm.caller = std::this_thread::get_id();
  return kInProgress;
}

void enqueue_calls(const Calls& posted) {
  struct State {
    Calls calls;
    bool posted = false;
    std::vector<std::shared_ptr<bool>> taken;
  };
  const auto state = std::make_shared<State>();
  state->calls = posted;
  const OpaqueComm& comm = *state->calls.comm;
  emulated_cuda::enqueue_waiting(state->calls.stream, [state, world = comm.world, rank = comm.rank,
                                                       aborted = comm.aborted, error = comm.error] {
    if (*aborted) return true;
    if (!std::exchange(state->posted, true)) {
      for (const Calls::Call& send : state->calls.sends) {
        state->taken.push_back(std::make_shared<bool>(false));
        world->mail[{rank, send.peer}].push_back(
            {send.memory, send.bytes, state->taken.back(), aborted});
      }
    }
    std::vector<Calls::Call>& receives = state->calls.receives;
    while (!receives.empty()) {
      std::deque<Mail>& mail = world->mail[{receives.front().peer, rank}];
      if (mail.empty() || *mail.front().aborted) return false;
      if (mail.front().bytes != receives.front().bytes) {
        *error = kInvalid;
        return false;
      }
      std::memcpy(receives.front().memory, mail.front().from, mail.front().bytes);
      *mail.front().taken = true;
      mail.pop_front();
      receives.erase(receives.begin());
    }
    return std::all_of(state->taken.begin(), state->taken.end(),
                       [](const std::shared_ptr<bool>& taken) { return *taken; });
  });
}

Result get_version(int* version) {
  *version = emulated_cuda::nccl_behavior().version;
  return kSuccess;
}

Result get_unique_id(UniqueId* id) {
  static std::uint64_t next = 1;
  const std::lock_guard lock(mutex);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::memcpy(id->bytes, &next, sizeof(next));
  ++next;
  return kSuccess;
}

Result comm_init(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  std::array<char, 128> key{};
  std::memcpy(key.data(), id.bytes, key.size());
  const std::lock_guard lock(mutex);
  std::shared_ptr<World> world = worlds()[key].lock();
  if (world == nullptr) {
    world = std::make_shared<World>();
    world->size = ranks;
    worlds()[key] = world;
  }
  auto* const made = new OpaqueComm;
  made->world = world;
  made->rank = rank;
  made->blocking = config->blocking != 0;
  *comm = made;
  return start_call(*made, [] {});
}

Result comm_count(Comm comm, int* count) {
  if (const Result result = ensure_ready(*comm); result != kSuccess) return result;
  *count = comm->world->size;
  return kSuccess;
}
Result comm_finalize(Comm comm) {
  if (const Result result = ensure_ready(*comm); result != kSuccess) return result;
  if (std::exchange(comm->finalized, true)) return kInvalid;
  return start_call(*comm, [] {});
}
/// Makes a CUDA call that a capture forbids, like NCCL, and returns when the communicator is freed.
void end_communicator(Comm comm) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventSynchronize(event);
  cudaEventDestroy(event);
  std::this_thread::sleep_for(comm->behavior.ending);
  delete comm;
}
Result comm_destroy(Comm comm) {
  if (const Result result = ensure_ready(*comm); result != kSuccess) return result;
  end_communicator(comm);
  return kSuccess;
}
Result comm_abort(Comm comm) {
  if (comm->polls_left && *comm->caller != std::this_thread::get_id() &&
      comm->behavior.version < kAbortsOtherThreads) {
    return kInvalid;  // NCCL would free memory that the call in progress uses
  }
  *comm->aborted = true;
  end_communicator(comm);
  return kSuccess;
}
Result get_async_error(Comm comm, Result* error) {
  std::optional<emulated_cuda::NcclBehavior::AsyncError>& failure =
      emulated_cuda::nccl_behavior().async_error;
  if (failure && failure->polls-- == 0) {
    *comm->error = failure->result;
    failure.reset();
  }
  *error = *comm->error;
  if (*error != kSuccess || !comm->polls_left) return kSuccess;
  if ((*comm->polls_left)-- > 0) {
    *error = kInProgress;
    return kSuccess;
  }
  comm->polls_left.reset();
  std::exchange(comm->rest, {})();
  return kSuccess;
}
const char* get_error_string(Result result) {
  return result == kInvalid ? "invalid argument" : "emulated error";
}

Result group_start() {
  in_group = true;
  return kSuccess;
}
Result group_end() {
  in_group = false;
  const Calls posted = std::exchange(calls, {});
  const Result error = std::exchange(group_error, kSuccess);
  if (error != kSuccess || posted.comm == nullptr) return error;
  return start_call(*posted.comm, [posted] { enqueue_calls(posted); });
}
Result group_call(DataType type, Comm comm, cudaStream_t stream) {
  if (type != kInt8 || !in_group) return kInvalid;
  if (const Result result = ensure_ready(*comm); result != kSuccess) return group_error = result;
  calls.comm = comm;
  calls.stream = stream;
  return kSuccess;
}
Result send(const void* from, std::size_t count, DataType type, int peer, Comm comm,
            cudaStream_t stream) {
  if (const Result result = group_call(type, comm, stream); result != kSuccess) return result;
  calls.sends.push_back({const_cast<void*>(from), count, peer});
  return kSuccess;
}
Result recv(void* to, std::size_t count, DataType type, int peer, Comm comm, cudaStream_t stream) {
  if (const Result result = group_call(type, comm, stream); result != kSuccess) return result;
  calls.receives.push_back({to, count, peer});
  return kSuccess;
}

template <typename T>
void add_up(const Collective& all, void* to) {
  const std::size_t count = all.given.front().size() / sizeof(T);
  std::vector<T> sum(count);
  for (const std::vector<std::byte>& given : all.given) {
    for (std::size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, given.data() + i * sizeof(T), sizeof(T));
      sum[i] = static_cast<T>(sum[i] + value);
    }
  }
  if (count > 0) std::memcpy(to, sum.data(), count * sizeof(T));
}

Result all_reduce(const void* from, void* to, std::size_t count, DataType type, int, Comm comm,
                  cudaStream_t stream) {
  if (const Result result = ensure_ready(*comm); result != kSuccess) return result;
  const std::size_t element = type == kFloat64 || type == kInt64 ? 8 : 4;
  const std::uint64_t number = comm->collectives++;
  return start_call(*comm, [=, world = comm->world, rank = static_cast<std::size_t>(comm->rank),
                            aborted = comm->aborted] {
    emulated_cuda::enqueue_waiting(stream, [=] {
      if (*aborted) return true;
      Collective& all = world->collectives[number];
      all.given.resize(static_cast<std::size_t>(world->size));
      std::vector<std::byte>& own = all.given[rank];
      if (own.empty()) {
        // One additional byte shows that this rank has arrived, even without data.
        own.resize(count * element + 1);
        if (count > 0) std::memcpy(own.data(), from, count * element);
        ++all.came;
      }
      if (all.came < all.given.size()) return false;
      switch (type) {
        case kFloat32:
          add_up<float>(all, to);
          break;
        case kFloat64:
          add_up<double>(all, to);
          break;
        case kInt32:
          add_up<std::uint32_t>(all, to);
          break;
        default:
          add_up<std::uint64_t>(all, to);
      }
      if (++all.left == all.given.size()) world->collectives.erase(number);
      return true;
    });
  });
}

}  // namespace

Library emulated_nccl() {
  return {.get_version = get_version,
          .get_unique_id = get_unique_id,
          .comm_init_rank_config = comm_init,
          .comm_count = comm_count,
          .comm_finalize = comm_finalize,
          .comm_destroy = comm_destroy,
          .comm_abort = comm_abort,
          .comm_get_async_error = get_async_error,
          .get_error_string = get_error_string,
          .group_start = group_start,
          .group_end = group_end,
          .send = send,
          .recv = recv,
          .all_reduce = all_reduce};
}

}  // namespace sparsesync::nccl
