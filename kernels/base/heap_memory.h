// The host's heap as a memory resource.
#pragma once

#include <new>

#include "kernels/base/context.h"

namespace sparsesync {

/// As `new` has it, without a budget and without an account: for work on the side, of the host
/// whatever device a worker is on.
class HeapMemory : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream) override {
    return ::operator new (bytes, std::align_val_t{alignment});
  }
  void deallocate(void* pointer, std::size_t, std::size_t alignment, Stream) noexcept override {
    ::operator delete (pointer, std::align_val_t{alignment});
  }
};

}  // namespace sparsesync
