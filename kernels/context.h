// The execution context: where an operation runs and where its scratch comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/error.h"

namespace sparsesync {

enum class Device : std::uint8_t { cpu };

/// The queue that work goes to. On a CPU work runs at once, in the calling thread; the handle is
/// null.
struct Stream {
  void* handle = nullptr;
};

/// Where memory comes from. An interface of this floor: std::pmr, budgets and others are adapted to
/// it.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// @param bytes  may be 0
  /// @param alignment  a power of two
  /// @throws BudgetError if the resource has a budget and would exceed it
  /// @throws std::bad_alloc if the memory is not to be had
  virtual void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) = 0;
  /// `pointer`, `bytes` and `alignment` as they were for allocate().
  virtual void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                          Stream stream) noexcept = 0;
};

/// Device, stream and memory resource of an operation. A view: the resource outlives it.
class Context {
 public:
  explicit Context(MemoryResource& memory) : memory_(&memory) {}
  Device device() const { return device_; }
  Stream stream() const { return stream_; }
  MemoryResource& memory() const { return *memory_; }

 private:
  Device device_ = Device::cpu;
  Stream stream_{};
  MemoryResource* memory_;
};

/// An operation of this floor: called as its bodies are, it runs the one of the context's device.
/// The only place where a device is told apart. Each header declares the bodies and the operation
/// beside them.
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
