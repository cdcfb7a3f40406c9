// Who reaches what, as on a machine with a GPU: kernels no stacks, no variables of the program and,
// unless a test's `new` is to give memory for both (SPARSESYNC_TEST_DEVICE=cuda), none of the
// host's; the host no memory of the device, which only work in streams does. Found where
// AddressSanitizer knows of each address; elsewhere nothing is.
#pragma once

#include <cstddef>

namespace sparsesync::emulated_cuda {

/// Whether all that `new` gives is memory of the device, too.
bool shares_heap();

/// Ends the program if a kernel is given the address of what it cannot reach: on this machine it
/// would work.
/// @param parameters  of the kernel, as they lie in memory
/// @param members  as many bytes: all ones where a member is, not what lies between them
/// @param is_of_cuda  whether the runtime gave the memory that an address is of
void check_reach(const void* parameters, const unsigned char* members, std::size_t bytes,
                 bool (*is_of_cuda)(const void*));

/// From here on the host does not reach this memory, or does.
void close_memory(const void* memory, std::size_t bytes);
void open_memory(const void* memory, std::size_t bytes);

}  // namespace sparsesync::emulated_cuda
