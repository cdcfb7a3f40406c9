// Checks of memory access, as on a machine with a GPU. Kernels cannot access stacks or variables of
// the program. They cannot access the host's heap either, unless `new` returns memory for both in a
// test (SPARSESYNC_TEST_DEVICE=cuda). The host cannot access device memory; only work in streams
// does. The checks need AddressSanitizer, which knows every address.
#pragma once

#include <cstddef>

namespace sparsesync::emulated_cuda {

/// Returns whether all memory from `new` is also memory of the device.
bool shares_heap();

/// Aborts the program if a kernel is given an address that it cannot access. On this machine, the
/// kernel would work.
/// @param parameters  parameters of the kernel, as stored in memory
/// @param members     the same number of bytes: all ones where a parameter has a member, and not
///         padding
/// @param is_of_cuda  whether the runtime allocated the memory at an address
void check_reach(const void* parameters, const unsigned char* members, std::size_t bytes,
                 bool (*is_of_cuda)(const void*));

/// Denies the host access to this memory, or permits it again.
void close_memory(const void* memory, std::size_t bytes);
void open_memory(const void* memory, std::size_t bytes);

}  // namespace sparsesync::emulated_cuda
