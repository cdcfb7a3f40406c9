// The execution context: the device and stream that work runs on, and the memory that it takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesync {

/// Names the kind of device that an operation runs on.
enum class Device : std::uint8_t { cpu, cuda };

/// The stream that work goes to: a cudaStream_t. On a CPU work has ended when the operation
/// returns; the handle is null.
struct Stream {
  void* handle = nullptr;
};

/// Gives memory. std::pmr resources, budgets and other allocators are adapted to it (memory.h).
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// Memory for a piece of work on `stream`, uninitialized.
  /// @param bytes      may be 0
  /// @param alignment  a power of two
  /// @throws BudgetError if the resource has a budget and would exceed it
  /// @throws std::bad_alloc if the memory is not to be had
  virtual void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) = 0;
  /// Gives memory back; `bytes` and `alignment` as they were for allocate().
  virtual void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                          Stream stream) noexcept = 0;
  /// Takes nothing.
  /// @throws BudgetError if the resource has a budget and would exceed it with so many bytes more
  virtual void expect_room(std::size_t /*bytes*/) const {}
  /// Whether a workspace may take so many bytes beyond what it needs, for what is to come: no where
  /// a budget may be wanted for something else.
  virtual bool has_to_spare(std::size_t /*bytes*/) const { return true; }
};

class Threads;       // of the implementation
class DeviceStream;  // device_stream.h

/// Device, stream or threads, and memory resource of an operation. A view: the resource, the
/// threads and the stream outlive it. Results are the same bits on every device and whatever the
/// number of threads. The exception are NaNs that arithmetic makes or passes on: they are NaNs on
/// every device, but an f32 sum gives 0x7FFFFFFF on NVIDIA's GPUs, while x86 keeps the sign and the
/// payload of an operand.
class Context {
 public:
  explicit Context(MemoryResource& memory) : memory_(&memory) {}
  /// Work on the CPU may be cut among these threads.
  Context(MemoryResource& memory, Threads& threads) : memory_(&memory), threads_(&threads) {}
  /// Work goes to a GPU. All that operations read and write is memory of that device.
  Context(MemoryResource& memory, DeviceStream& device_stream);
  Device device() const { return device_stream_ == nullptr ? Device::cpu : Device::cuda; }
  Stream stream() const { return stream_; }
  MemoryResource& memory() const { return *memory_; }
  /// Null where the calling thread does all work.
  Threads* threads() const { return threads_; }
  /// Null on a CPU.
  DeviceStream* device_stream() const { return device_stream_; }

 private:
  Stream stream_{};
  MemoryResource* memory_;
  Threads* threads_ = nullptr;
  DeviceStream* device_stream_ = nullptr;
};

/// Synchronizes the stream: waits until all its work is done. On a CPU it is.
/// @throws what operations found on the way that they could not throw themselves, see DeviceStream
void synchronize(const Context& context);

/// A number that a kernel computes, in the context's memory until somebody needs it.
/// A view: it owns nothing.
class Count {
 public:
  explicit Count(std::int64_t* location) : location_(location) {}
  std::int64_t* location() const { return location_; }

 private:
  std::int64_t* location_;
};

/// The value of `count`. Synchronizes the context's stream.
std::int64_t resolve(const Context& context, Count count);

}  // namespace sparsesync
