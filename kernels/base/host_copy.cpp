// CPU bodies of fetch and place.
#include "kernels/base/host_copy.h"

#include <cstring>

namespace sparsesync::cpu {

void fetch(const Context&, std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void place(const Context&, std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

}  // namespace sparsesync::cpu
