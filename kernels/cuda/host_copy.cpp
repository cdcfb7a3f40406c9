// CUDA bodies of fetch and place.
#include "kernels/base/host_copy.h"

#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

void fetch(const Context& context, std::span<const std::byte> from, std::byte* to) {
  queue_of(context).download(from, to);
}

void place(const Context& context, std::span<const std::byte> from, std::byte* to) {
  queue_of(context).upload(from, to);
}

}  // namespace sparsesync::cuda
