// Memory in which one allocation fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "kernels/base/context.h"
#include "kernels/base/error.h"

namespace sparsesync::testing {

/// The failure of an allocation: a budget error or std::bad_alloc.
enum class Failure : std::uint8_t { budget, out_of_memory };

/// Memory in which one allocation fails and later ones succeed.
class FailingMemory : public MemoryResource {
 public:
  explicit FailingMemory(MemoryResource& memory) : memory_(memory) {}

  /// Makes the k-th allocation from now fail; 1 is the next one.
  void fail(std::int64_t k, Failure failure) {
    failure_ = failure;
    left_ = k;
  }
  /// Returns whether the allocation has failed.
  bool has_failed() const { return left_ <= 0; }
  void stop_failing() { left_ = 0; }

  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) override {
    if (left_ > 0 && --left_ == 0) {
      if (failure_ == Failure::out_of_memory) throw std::bad_alloc();
      throw BudgetError(static_cast<std::int64_t>(bytes), 0,
                        "an allocation that the test lets fail");
    }
    return memory_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                  Stream stream) noexcept override {
    memory_.deallocate(pointer, bytes, alignment, stream);
  }
  bool has_to_spare(std::size_t) const override { return false; }

 private:
  MemoryResource& memory_;
  Failure failure_ = Failure::budget;
  std::atomic<std::int64_t> left_ = 0;
};

}  // namespace sparsesync::testing
