// Settings of the emulated device for tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace sparsesync::emulated_cuda {

/// Number of blocks that run concurrently, each in an OS thread.
inline constexpr unsigned kProcessors = 4;

struct Limits {
  int devices = 1;
  int driver_version = 13000;      // 0: no driver
  bool reaches_all_memory = true;  // includes host memory that is neither pinned nor managed
  bool reaches_peers = false;      // whether GPUs can access each other's memory
  std::size_t memory = std::size_t{8} << 30;
  /// Number of device memory allocations that succeed before one fails; none: no failure.
  std::optional<std::int64_t> allocations_until_failure;
};

/// Returns the limits of the whole process. Do not change them while another thread uses the
/// device.
Limits& limits();

/// Returns the GPUs on which this process has created a context since the last call.
std::set<int> take_contexts();

/// The memory pool of a GPU and the other GPUs that have been given access to it.
struct PoolAccess {
  int device = 0;
  std::set<int> peers;
};
/// Returns the access to each pool created since the last call, in order of creation.
std::vector<PoolAccess> take_pools();

/// Returns the number of kernels that are loaded on a GPU.
std::size_t loaded_kernels(int device);

/// Captures a stream into a CUDA graph, like cudaStreamBeginCapture() in global mode. A call in any
/// thread that might wait or allocate invalidates the capture, unless the mode of the thread is
/// relaxed.
void begin_capture(void* stream);
/// @return whether the capture is still valid
bool end_capture();

/// Behavior of the emulated NCCL for the calling thread.
struct NcclBehavior {
  int version = 23007;  // in the format of ncclGetVersion()
  /// Number of polls for which a call of a non-blocking communicator is in progress.
  int polls = 3;
  /// Duration of ncclCommDestroy() and ncclCommAbort(). A communicator keeps the value from its
  /// creation.
  std::chrono::milliseconds ending{0};
  struct AsyncError {
    int polls;   // polls before the error
    int result;  // result of later polls
  };
  std::optional<AsyncError> async_error;
};
NcclBehavior& nccl_behavior();

/// Counts the communicators of this process that are neither destroyed nor aborted.
int nccl_communicators();

}  // namespace sparsesync::emulated_cuda
