#include "kernels/cuda/driver.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "kernels/base/error.h"

namespace sparsesync::cuda {

namespace {

template <typename Function>
void find(const char* name, Function& function) {
  constexpr unsigned kVersion = 12040;  // version of CUDA, the first with all of these functions
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &status),
        "finding a driver function");
  if (status != cudaDriverEntryPointSuccess) {
    throw DeviceError(fmt::format("the driver has no {}: install a newer driver", name));
  }
  function = reinterpret_cast<Function>(found);
}

}  // namespace

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // otherwise the runtime reports the error again
  const std::string text =
      fmt::format("{}: {} ({})", what, cudaGetErrorString(result), cudaGetErrorName(result));
  if (result == cudaErrorMemoryAllocation) throw DeviceMemoryError(text);
  throw DeviceError(text);
}

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

namespace {

/// @throws DeviceError
CUcontext primary_context(int device) {
  static std::mutex mutex;
  static std::map<int, CUcontext> retained;
  const std::lock_guard lock(mutex);
  const auto found = retained.find(device);
  if (found != retained.end()) return found->second;
  check_driver(driver().initialize(0), "starting the driver");
  CUdevice handle = 0;
  check_driver(driver().get_device(&handle, device), "selecting a device");
  CUcontext context = nullptr;
  check_driver(driver().retain(&context, handle), "creating a GPU's context");
  retained.emplace(device, context);
  return context;
}

}  // namespace

void push_context(int device) {
  check_driver(driver().push(primary_context(device)), "selecting a device");
}

void pop_context() noexcept {
  CUcontext context = nullptr;
  driver().pop(&context);
}

}  // namespace sparsesync::cuda
