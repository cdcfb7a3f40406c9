// The execution context: where an operation runs and where its scratch comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/error.h"

namespace sparsesync {

/// What an operation runs on.
enum class Device : std::uint8_t { cpu };

/// The queue that work goes to. On a CPU work has ended when the operation returns; the handle is
/// null.
struct Stream {
  void* handle = nullptr;
};

/// Where memory comes from. An interface of this floor: std::pmr, budgets and others are adapted to
/// it.
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
};

class Threads;  // kernels/threads.h

/// Device, stream or threads, and memory resource of an operation. A view: the resource and the
/// threads outlive it. Results are the same bits whatever the number of threads.
class Context {
 public:
  explicit Context(MemoryResource& memory) : memory_(&memory) {}
  /// Work on the CPU may be cut among these threads.
  Context(MemoryResource& memory, Threads& threads) : memory_(&memory), threads_(&threads) {}
  Device device() const { return device_; }
  Stream stream() const { return stream_; }
  MemoryResource& memory() const { return *memory_; }
  /// Null where the calling thread does all work.
  Threads* threads() const { return threads_; }

 private:
  Device device_ = Device::cpu;
  Stream stream_{};
  MemoryResource* memory_;
  Threads* threads_ = nullptr;
};

/// An operation of this floor: called as its bodies are, it runs the one of the context's device.
/// The only place where a device is told apart. Each header declares the bodies and, under them,
/// the operations.
template <typename Body>
class Operation;

template <typename Result, typename... Arguments>
class Operation<Result(const Context&, Arguments...)> {
 public:
  using Body = Result(const Context&, Arguments...);
  constexpr explicit Operation(Body& cpu) : cpu_(&cpu) {}

  /// @throws ContractError if the operation has no body for the context's device
  Result operator()(const Context& context, Arguments... arguments) const {
    SPARSESYNC_EXPECT(static_cast<int>(context.device()), ==, static_cast<int>(Device::cpu));
    return cpu_(context, std::forward<Arguments>(arguments)...);
  }

 private:
  Body* cpu_;
};

template <typename Result, typename... Arguments>
Operation(Result (&)(const Context&, Arguments...))
    -> Operation<Result(const Context&, Arguments...)>;

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
inline std::int64_t resolve(const Context& context, Count count) {
  SPARSESYNC_EXPECT(static_cast<int>(context.device()), ==, static_cast<int>(Device::cpu));
  return *count.location();
}

}  // namespace sparsesync
