#include "kernels/cuda/driver.h"

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/cuda/check.h"

namespace sparsesync::cuda {
namespace {

template <typename Function>
void find(const char* name, Function& function) {
  constexpr unsigned kVersion = 12040;  // of CUDA, the first that has all of these functions
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
    find("cuFuncGetModule", found.get_module);
    find("cuModuleGetFunctionCount", found.function_count);
    find("cuModuleEnumerateFunctions", found.enumerate_functions);
    find("cuFuncLoad", found.load_function);
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
