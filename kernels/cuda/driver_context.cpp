#include "kernels/cuda/driver_context.h"

#include <map>
#include <mutex>

#include "kernels/cuda/driver.h"

namespace sparsesync::cuda {
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
  check_driver(driver().get_device(&handle, device), "choosing a device");
  CUcontext context = nullptr;
  check_driver(driver().retain(&context, handle), "making a GPU's context");
  retained.emplace(device, context);
  return context;
}

}  // namespace

void push_context(int device) {
  check_driver(driver().push(primary_context(device)), "choosing a device");
}

void pop_context() noexcept {
  CUcontext context = nullptr;
  driver().pop(&context);
}

}  // namespace sparsesync::cuda
