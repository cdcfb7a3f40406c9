// The execution context: device, stream or threads, and memory resource of an operation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesync {

/// Names the kind of device that an operation runs on.
enum class Device : std::uint8_t { cpu, cuda };

/// Wraps the CUDA stream (cudaStream_t) that work runs on. The handle is null on a CPU, where work
/// is done when an operation returns.
struct Stream {
  void* handle = nullptr;
};

/// Allocates memory for operations. memory.h and device.h adapt std::pmr resources and other
/// allocators to this interface, and add budgets.
/// @code
/// HostMemory memory;        // a MemoryResource
/// Context context(memory);  // operations with this context allocate from it
/// @endcode
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// Allocates uninitialized memory for work on `stream`.
  /// @param bytes      may be 0
  /// @param alignment  a power of two
  /// @param stream     the stream that uses the memory first
  /// @throws BudgetError if the budget would be exceeded
  /// @throws std::bad_alloc if memory is exhausted
  virtual void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) = 0;
  /// Frees memory. `bytes` and `alignment` are those of the call of allocate().
  virtual void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                          Stream stream) noexcept = 0;
  /// Checks that the budget allows another `bytes`. Allocates nothing.
  /// @throws BudgetError if the budget would be exceeded
  virtual void expect_room(std::size_t /*bytes*/) const {}
  /// Returns whether a workspace may allocate another `bytes` in advance, beyond what it needs now.
  /// A resource with a budget returns false once the rest may be needed elsewhere.
  virtual bool has_to_spare(std::size_t /*bytes*/) const { return true; }
};

class Threads;       // internal
class DeviceStream;  // in device_stream.h

/// Bundles the device, the stream or threads, and the memory resource of an operation.
///
/// A view: the memory resource, threads and stream outlive it, and copies are cheap.
/// @code
/// HostMemory memory;
/// const Context on_cpu(memory);
/// const Context on_gpu(device_memory, *device_stream);
/// @endcode
///
/// Results have the same bits on every device and for every number of threads, except for NaNs. A
/// NaN is a NaN on every device, but its payload may differ. An f32 sum yields 0x7FFFFFFF on NVIDIA
/// GPUs, while x86 keeps the sign and payload of an operand.
class Context {
 public:
  /// Runs operations on the calling thread.
  explicit Context(MemoryResource& memory) : memory_(&memory) {}
  /// Divides work on the CPU among these threads.
  Context(MemoryResource& memory, Threads& threads) : memory_(&memory), threads_(&threads) {}
  /// Runs operations on a GPU. All memory that they access is reachable by that GPU.
  Context(MemoryResource& memory, DeviceStream& device_stream);
  Device device() const { return device_stream_ == nullptr ? Device::cpu : Device::cuda; }
  Stream stream() const { return stream_; }
  MemoryResource& memory() const { return *memory_; }
  /// Returns the threads of the CPU. Null if the calling thread does all work.
  Threads* threads() const { return threads_; }
  /// Returns the GPU's stream; null on a CPU.
  DeviceStream* device_stream() const { return device_stream_; }

 private:
  Stream stream_{};
  MemoryResource* memory_;
  Threads* threads_ = nullptr;
  DeviceStream* device_stream_ = nullptr;
};

/// Waits until all work of the stream is done. Returns at once on a CPU.
/// @throws any error that a kernel recorded; see DeviceStream
void synchronize(const Context& context);

/// Refers to a number that a kernel computes, in the context's memory. A view that owns nothing.
/// @code
/// const std::int64_t rows = resolve(context, count);  // synchronizes the stream
/// @endcode
class Count {
 public:
  explicit Count(std::int64_t* location) : location_(location) {}
  std::int64_t* location() const { return location_; }

 private:
  std::int64_t* location_;
};

/// Returns the value of `count`. Synchronizes the context's stream.
std::int64_t resolve(const Context& context, Count count);

}  // namespace sparsesync
