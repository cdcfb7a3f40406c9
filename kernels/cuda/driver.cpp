#include "kernels/cuda/driver.h"

#include <fmt/format.h>

#include "kernels/cuda/check.h"
#include "kernels/error.h"

namespace sparsesync::cuda {
namespace {

template <typename Function>
void find(const char* name, Function& function) {
  constexpr unsigned kVersion = 12000;  // whose forms of these functions are meant
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &status),
        "finding a function of the driver");
  if (status != cudaDriverEntryPointSuccess) {
    throw DeviceError(fmt::format("the driver has no {}: install a newer driver", name));
  }
  function = reinterpret_cast<Function>(found);
}

}  // namespace

const Driver& driver() {
  static const Driver driver = [] {
    Driver found;
    find("cuInit", found.initialize);
    find("cuDeviceGet", found.get_device);
    find("cuDevicePrimaryCtxRetain", found.retain);
    find("cuCtxPushCurrent", found.push);
    find("cuCtxPopCurrent", found.pop);
    find("cuGetErrorName", found.error_name);
    return found;
  }();
  return driver;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver().error_name(result, &name);
  throw DeviceError(fmt::format("{}: {}", what, name == nullptr ? "unknown error" : name));
}

}  // namespace sparsesync::cuda
