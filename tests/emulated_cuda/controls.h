// What a test sets of the emulated device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace sparsesync::emulated_cuda {

/// Blocks that run at the same time, each in an OS thread.
inline constexpr unsigned kProcessors = 4;

struct Limits {
  int devices = 1;
  int driver_version = 13000;      // 0: there is none
  bool reaches_all_memory = true;  // the host's that is neither pinned nor managed, too
  bool reaches_peers = false;      // a GPU the memory of the others
  std::size_t memory = std::size_t{8} << 30;
  /// So many more allocations of device memory go well, then one fails.
  std::optional<std::int64_t> allocations_until_failure;
};

/// Of the whole process. Not while another thread uses the device.
Limits& limits();

/// GPUs that have a context in this process, since the last call.
std::set<int> take_contexts();

/// A GPU's pool of memory and the other GPUs that were given access to it.
struct PoolAccess {
  int device = 0;
  std::set<int> peers;
};
/// Access to each pool that was made since the last call, in the order in which they were made.
std::vector<PoolAccess> take_pools();

/// Kernels that are loaded on a GPU.
std::size_t loaded_kernels(int device);

/// Captures a stream into a CUDA graph, as cudaStreamBeginCapture() in global mode: a call in any
/// thread that might wait, or allocate, invalidates it, unless the thread's mode is relaxed.
void begin_capture(void* stream);
/// @return whether the capture is still valid
bool end_capture();

/// How the emulated NCCL treats the calling thread.
struct NcclBehavior {
  int version = 23007;  // as ncclGetVersion() returns it
  /// A call of a non-blocking communicator is in progress for this many polls.
  int polls = 3;
  /// ncclCommDestroy() and ncclCommAbort() take this long. A communicator keeps the value that it
  /// was made with.
  std::chrono::milliseconds ending{0};
  struct AsyncError {
    int polls;   // that find none yet
    int result;  // of the polls after them
  };
  std::optional<AsyncError> async_error;
};
NcclBehavior& nccl_behavior();

/// Counts the communicators of this process that are neither destroyed nor aborted.
int nccl_communicators();

}  // namespace sparsesync::emulated_cuda
