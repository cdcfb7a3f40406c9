// The part of CUDA that the kernels use, executed on the host. A machine without a GPU thus runs
// the same source code as a GPU, also under the sanitizers.
//
// The threads of a block are fibers of one OS thread. They take turns at collectives, in both
// orders, so a result that depends on the order of arrival shows. Several OS threads run the blocks
// of a grid at the same time. Blocks therefore see each other's partial results, and
// ThreadSanitizer reports data races between blocks. Work submitted to a stream is deferred until a
// synchronization, so code that reads too early reads old values. This emulation says nothing about
// the speed of a kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// An OS thread runs one block at a time, with all of its fibers.
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))
#define SPARSESYNC_CUDA_EMULATED 1

// ---- Types of the runtime.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorSymbolNotFound = 500,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
};

namespace sparsesync::emulated_cuda {
class Stream;
class Event;
class Pool;
}  // namespace sparsesync::emulated_cuda
using cudaStream_t = sparsesync::emulated_cuda::Stream*;
using cudaEvent_t = sparsesync::emulated_cuda::Event*;
using cudaMemPool_t = sparsesync::emulated_cuda::Pool*;
using cudaFunction_t = struct EmulatedFunction*;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMemoryPoolsSupported = 115,
  cudaDevAttrPageableMemoryAccess = 88
};
enum cudaMemPoolAttr {
  cudaMemPoolAttrReleaseThreshold = 4,
  cudaMemPoolAttrReservedMemCurrent = 5,
  cudaMemPoolAttrUsedMemCurrent = 7
};
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone = 0 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
enum cudaMemAccessFlags { cudaMemAccessFlagsProtReadWrite = 3 };
struct cudaMemAccessDesc {
  cudaMemLocation location;
  cudaMemAccessFlags flags;
};
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  cudaMemAllocationHandleType handleTypes;
  cudaMemLocation location;
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};

enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

constexpr unsigned long long cudaEnableDefault = 0;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr unsigned cudaHostAllocDefault = 0;
constexpr unsigned cudaMemAttachGlobal = 1;

// ---- The runtime. Each function behaves like CUDA's.

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result);
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol);
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes,
                              unsigned flags = cudaMemAttachGlobal);
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* accesses,
                                 std::size_t count);
cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void* to, int device_of_to, const void* from, int device_of_from,
                                std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);

// ---- Threads.

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  constexpr dim3(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1)
      : x(of_x), y(of_y), z(of_z) {}
};
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct uint2 {
  unsigned x, y;
} __attribute__((aligned(8)));

namespace sparsesync::emulated_cuda {

/// The thread that a fiber represents. Each member is CUDA's variable of that purpose.
struct Position {
  dim3 thread;
  dim3 block;
  dim3 block_size;
  dim3 grid_size;
};
/// Returns the position of the running fiber.
const Position& position();

/// Aborts the program if a parameter of a kernel is an address that a GPU cannot access.
/// @param members  the same number of bytes: all ones where a parameter has a member
void check_parameters(const void* parameters, const unsigned char* members, std::size_t bytes);
/// Adds a kernel to the program's module, as nvcc does when it compiles one.
cudaFunction_t function_of(const void* kernel);
/// Returns whether a kernel is loaded on a stream's GPU. Launches of other kernels fail: a real GPU
/// would load the kernel now, and might wait for all of its work.
bool is_loaded(const void* kernel, cudaStream_t stream);
/// Submits work to a stream.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Submits work that may have to wait. It is called repeatedly until it returns true.
void enqueue_waiting(cudaStream_t stream, std::function<bool()> work);
/// Calls `thread` as every thread of every block.
void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread);

/// Waits for all threads of the block that have not ended.
void wait_for_block();
/// Runs the other threads of the block, and other blocks. Call it if a thread has to wait for
/// another block. On the host it does nothing.
void wait_for_other_block();
/// Sends a value of at most 8 bytes to the lanes of `mask` and receives their values.
/// @param values  receives 32 values
void exchange_in_warp(unsigned mask, std::uint64_t value, std::uint64_t* values);

template <typename T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}
template <typename T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
inline unsigned lane() {
  return position().thread.x % 32;
}

}  // namespace sparsesync::emulated_cuda

namespace sparsesync::emulated_cuda {

/// One of CUDA's variables. Its `x` is looked up when it is read.
template <dim3 Position::*which>
struct Variable {
  struct X {
    operator unsigned() const { return (position().*which).x; }
  } x;
};

}  // namespace sparsesync::emulated_cuda

inline constexpr sparsesync::emulated_cuda::Variable<&sparsesync::emulated_cuda::Position::thread>
    threadIdx{};
inline constexpr sparsesync::emulated_cuda::Variable<&sparsesync::emulated_cuda::Position::block>
    blockIdx{};
inline constexpr sparsesync::emulated_cuda::Variable<
    &sparsesync::emulated_cuda::Position::block_size>
    blockDim{};
inline constexpr sparsesync::emulated_cuda::Variable<
    &sparsesync::emulated_cuda::Position::grid_size>
    gridDim{};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  void* attrs;
  unsigned numAttrs;
};

namespace sparsesync::emulated_cuda {

/// Sets the bytes of a parameter that belong to a member to ones. The bytes between members might
/// look like an address. GCC 12 treats some members of arrays of structures as padding; these are
/// not checked.
template <typename T>
void mark_members(const T& parameter, unsigned char* members) {
  static_assert(std::is_trivially_destructible_v<T>);
  T marks(parameter);  // a separate variable: the builtin handles closures only in this form
  std::memset(static_cast<void*>(&marks), 0xFF, sizeof(T));
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&marks);
#endif
#endif
  std::memcpy(members, &marks, sizeof(T));
}

}  // namespace sparsesync::emulated_cuda

/// Launches grids and blocks of one dimension.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const unsigned blocks = config->gridDim.x;
  const unsigned threads = config->blockDim.x;
  if (blocks == 0 || blocks > 0x7FFFFFFFU || threads == 0 || threads > 1024) {
    return cudaErrorInvalidValue;
  }
  if (!sparsesync::emulated_cuda::is_loaded(reinterpret_cast<const void*>(kernel),
                                            config->stream)) {
    return cudaErrorInvalidDeviceFunction;
  }
  using Tuple = std::tuple<std::remove_cv_t<Parameters>...>;
  Tuple parameters(std::forward<Arguments>(arguments)...);
  unsigned char members[sizeof(Tuple)] = {};
  const auto mark = [&](const auto& parameter) {
    const auto at =
        reinterpret_cast<const char*>(&parameter) - reinterpret_cast<const char*>(&parameters);
    sparsesync::emulated_cuda::mark_members(parameter, members + at);
  };
  std::apply([&](const auto&... each) { (mark(each), ...); }, parameters);
  sparsesync::emulated_cuda::check_parameters(&parameters, members, sizeof(parameters));
  sparsesync::emulated_cuda::enqueue(config->stream, [=] {
    sparsesync::emulated_cuda::run_grid(dim3(blocks), dim3(threads),
                                        [&] { std::apply(kernel, parameters); });
  });
  return cudaSuccess;
}

inline void __syncthreads() {
  sparsesync::emulated_cuda::wait_for_block();
}
inline void __threadfence() {}
inline void __threadfence_block() {}

inline void __syncwarp(unsigned mask = ~0U) {
  std::uint64_t values[32];
  sparsesync::emulated_cuda::exchange_in_warp(mask, 0, values);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  using namespace sparsesync::emulated_cuda;
  std::uint64_t values[32] = {};
  exchange_in_warp(mask, to_word(value), values);
  const unsigned base = lane() & ~(static_cast<unsigned>(width) - 1);
  return from_word<T>(
      values[base + (static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1))]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using namespace sparsesync::emulated_cuda;
  std::uint64_t values[32] = {};
  exchange_in_warp(mask, to_word(value), values);
  const unsigned within = lane() & (static_cast<unsigned>(width) - 1);
  return within >= delta ? from_word<T>(values[lane() - delta]) : value;
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using namespace sparsesync::emulated_cuda;
  std::uint64_t values[32] = {};
  exchange_in_warp(mask, to_word(value), values);
  const unsigned within = lane() & (static_cast<unsigned>(width) - 1);
  return within + delta < static_cast<unsigned>(width) ? from_word<T>(values[lane() + delta])
                                                       : value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  using namespace sparsesync::emulated_cuda;
  std::uint64_t values[32] = {};
  exchange_in_warp(mask, to_word(value), values);
  const unsigned other = lane() ^ static_cast<unsigned>(lane_mask);
  return other / static_cast<unsigned>(width) == lane() / static_cast<unsigned>(width)
             ? from_word<T>(values[other])
             : value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  std::uint64_t values[32] = {};
  sparsesync::emulated_cuda::exchange_in_warp(mask, predicate != 0 ? 1 : 0, values);
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) != 0 && values[i] != 0) ballot |= 1U << i;
  }
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask ? 1 : 0;
}

// ---- Arithmetic.

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64U);
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}

// ---- Atomics: relaxed, as on a GPU.

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return std::atomic_ref(*at).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return std::atomic_ref(*at).fetch_or(value, std::memory_order_relaxed);
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return std::atomic_ref(*at).exchange(value, std::memory_order_relaxed);
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref(*at).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  const std::atomic_ref word(*at);
  T before = word.load(std::memory_order_relaxed);
  while (value < before && !word.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
  return before;
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const std::atomic_ref word(*at);
  T before = word.load(std::memory_order_relaxed);
  while (before < value && !word.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
  return before;
}
