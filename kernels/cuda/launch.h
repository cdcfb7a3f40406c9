// Launches kernels, with error checks and counters. All kernels are launched through this header.
// For kernel sources only.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cuda/atomic>
#include <limits>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernel_registry.h"
#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

/// Default number of threads per block.
inline constexpr int kBlock = 256;

/// Returns the number of resident blocks per multiprocessor, for __launch_bounds__. From compute
/// capability 10 it is one fewer: ptxas needs a few more registers there, and kernels would spill 4
/// or 8 bytes.
constexpr int resident_blocks(int blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return blocks - 1;
#else
  return blocks;
#endif
}

/// Lanes per warp.
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = ~0U;

/// Largest number of blocks in a grid.
inline constexpr Index kMostBlocks = std::numeric_limits<std::int32_t>::max();

/// Launches `blocks` blocks of `threads` threads. Does nothing if there are no blocks. Does not
/// synchronize the stream.
/// @tparam kernel  is registered when the program starts, so that every stream has loaded it
/// @throws DeviceError if the kernel cannot be launched, ContractError for more than kMostBlocks
///         blocks
template <auto kernel, typename... Arguments>
void launch(const Context& context, Index blocks, int threads, Arguments&&... arguments) {
  if (blocks == 0) return;
  SPARSESYNC_EXPECT(blocks, >, Index{0});
  SPARSESYNC_EXPECT(blocks, <=, kMostBlocks);
  CudaStream& stream = stream_of(context);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream.handle();
  const CudaStream::Timed timed(stream);
  check(
      cudaLaunchKernelEx(&config, registered_kernel<kernel>, std::forward<Arguments>(arguments)...),
      "launching a kernel");
  stream.count_launch();
}

/// Sets each byte to `byte`. Does not synchronize the stream.
inline void set_bytes(const Context& context, void* memory, int byte, std::size_t bytes) {
  if (bytes == 0) return;
  CudaStream& stream = stream_of(context);
  const CudaStream::Timed timed(stream);
  check(cudaMemsetAsync(memory, byte, bytes, stream.handle()), "filling device memory");
  stream.count_copy();
}

/// Sets bytes to 0. Does not synchronize the stream.
inline void clear(const Context& context, void* memory, std::size_t bytes) {
  set_bytes(context, memory, 0, bytes);
}

/// Returns the number of blocks for a grid-stride loop over `items`: no more than keep the device
/// busy. Does not synchronize the stream.
inline Index blocks_for(const Context& context, Index items, int threads = kBlock) {
  constexpr Index kBlocksOfProcessor = 16;
  return std::min(ceil_div<Index>(items, threads),
                  kBlocksOfProcessor * stream_of(context).multiprocessors());
}

// ---- In kernels.

/// Returns the thread's index in the grid.
__device__ inline Index thread_number() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}
/// Returns the number of threads in the grid.
__device__ inline Index thread_count() {
  return static_cast<Index>(gridDim.x) * blockDim.x;
}

namespace detail {
template <typename Body>
__global__ void each(Index count, Body body) {
  for (Index i = thread_number(); i < count; i += thread_count()) body(i);
}
}  // namespace detail

/// Calls body(i) for each i in [0, count), concurrently and in any order. Does not synchronize the
/// stream.
/// @param body  [=] __device__(Index i), not inside a generic lambda
template <typename Body>
void for_each(const Context& context, Index count, Body body) {
  launch<detail::each<Body>>(context, blocks_for(context, count), kBlock, count, body);
}

/// Division of the units of rows among threads. Groups of 2^lane_bits neighbouring threads process
/// neighbouring units; each thread has up to kUnits of them. Wide rows are divided into parts, so
/// that a few rows can keep many threads busy. Pass it to kernels by value.
/// @tparam units  units per thread in a part, at most
template <int units>
struct RowCut {
  static constexpr int kUnits = units;

  explicit RowCut(Index units_of_row)
      : lane_bits(static_cast<unsigned>(
            std::min(bit_width_below(static_cast<std::uint64_t>(units_of_row)), 5))),
        parts(ceil_div<Index>(units_of_row, kUnits << lane_bits)) {}

  /// Returns the number of threads that `rows` rows need.
  Index threads(Index rows) const { return rows * parts << lane_bits; }
  /// Returns the distance between consecutive units of a thread.
  __device__ Index stride() const { return Index{1} << lane_bits; }

  /// Calls body(row, first) for each part of a row that this thread processes. The part has kUnits
  /// units from `first`, stride() apart, up to the end of the row.
  template <typename Body>
  __device__ void for_each(Index rows, Body&& body) const {
    const Index lane = thread_number() & (stride() - 1);
    for (Index part = thread_number() >> lane_bits; part < rows * parts;
         part += thread_count() >> lane_bits) {
      const Index row = parts == 1 ? part : part / parts;
      body(row, (part - row * parts) * kUnits * stride() + lane);
    }
  }

  unsigned lane_bits;
  Index parts;
};

/// Calls use(RowCut) with the division for rows of `units` units. If a warp covers a row, each
/// thread has one unit. This takes fewer registers, which is 10% of the time of a 128-byte gather
/// on an H200. For wider rows, each thread loads four units together.
template <typename Use>
void with_row_cut(Index units, Use&& use) {
  if (units <= kWarp) return use(RowCut<1>(units));
  use(RowCut<4>(units));
}

namespace detail {
template <typename Cut, typename Body>
__global__ void each_of_rows(Index rows, Index units, Cut cut, Body body) {
  cut.for_each(rows, [&](Index row, Index first) {
    for (int i = 0; i < Cut::kUnits; ++i) {
      const Index unit = first + i * cut.stride();
      if (unit < units) body(row, unit);
    }
  });
}
}  // namespace detail

/// Calls body(row, unit) for each of the `units` units of each row, concurrently and in any order.
/// Neighbouring threads have neighbouring units. Does not synchronize the stream.
/// @param body  [=] __device__(Index row, Index unit), not inside a generic lambda
template <typename Body>
void for_each_of_rows(const Context& context, Index rows, Index units, Body body) {
  if (units == 0) return;
  with_row_cut(units, [&]<typename Cut>(Cut cut) {
    launch<detail::each_of_rows<Cut, Body>>(context, blocks_for(context, cut.threads(rows)), kBlock,
                                            rows, units, cut, body);
  });
}

/// Returns the first position in [0, size) whose element is at least `bound`. Elements increase.
template <typename T, typename Bound>
__device__ Index lower_bound(const T* elements, Index size, Bound bound) {
  Index begin = 0;
  while (size > 0) {
    const Index half = size / 2;
    if (elements[begin + half] < bound) {
      begin += half + 1;
      size -= half + 1;
    } else {
      size = half;
    }
  }
  return begin;
}

/// Loads an element from any address.
template <typename T>
__device__ T load_anywhere(const std::byte* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0) {
    return *reinterpret_cast<const T*>(from);
  }
  T value;
  auto* const bytes = reinterpret_cast<std::byte*>(&value);
  for (unsigned i = 0; i < sizeof(T); ++i) bytes[i] = from[i];
  return value;
}
/// Stores an element at any address.
template <typename T>
__device__ void store_anywhere(std::byte* to, T value) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0) {
    *reinterpret_cast<T*>(to) = value;
    return;
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = bytes[i];
}

/// Records a fault in the host's memory. Several threads may call it.
__device__ inline void record_fault(FaultWord* word, Fault fault) {
  ::cuda::atomic_ref<FaultWord, ::cuda::thread_scope_system>(*word).store(
      static_cast<FaultWord>(fault), ::cuda::memory_order_relaxed);
}

}  // namespace sparsesync::cuda
