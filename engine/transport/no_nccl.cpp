// Stubs of the transport `nccl` for a build without CUDA.
#include "kernels/base/device_stream.h"
#include "sparsesync/transports/nccl.h"

namespace sparsesync {

std::unique_ptr<Transport> nccl_over(std::unique_ptr<Transport>, const NcclOptions& options) {
  expect_device(options.device);
  return nullptr;
}

std::string nccl_text() {
  return "(this build has no CUDA)";
}

}  // namespace sparsesync
