// CUDA implementations of fetch() and upload().
#include "kernels/base/host_copy.h"

#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

void fetch(const Context& context, std::span<const std::byte> from, std::byte* to) {
  stream_of(context).download(from, to);
}

void upload(const Context& context, std::span<const std::byte> from, std::byte* to) {
  stream_of(context).upload(from, to);
}

}  // namespace sparsesync::cuda
