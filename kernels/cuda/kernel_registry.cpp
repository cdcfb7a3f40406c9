#include "kernels/cuda/kernel_registry.h"

#include <cuda_runtime.h>

#include <mutex>
#include <set>
#include <vector>

#include "kernels/base/device_stream.h"
#include "kernels/cuda/driver.h"

namespace sparsesync::cuda {
namespace {

/// A static variable in a function, because other files add kernels before the variables of this
/// file are initialized.
std::vector<const void*>& kernels() {
  static std::vector<const void*> kernels;
  return kernels;
}

/// Returns the modules of all kernels, one for each source file.
std::set<CUmodule> modules() {
  std::set<CUmodule> modules;
  for (const void* const kernel : kernels()) {
    cudaFunction_t function = nullptr;
    check(cudaGetFuncBySymbol(&function, kernel), "finding a kernel");
    CUmodule module = nullptr;
    check_driver(driver().get_module(&module, function), "finding a kernel's module");
    modules.insert(module);
  }
  return modules;
}

}  // namespace

void detail::add_kernel(const void* kernel) {
  kernels().push_back(kernel);
}

// Loads all functions of each module, because CUB's kernels have no names to register. Those
// kernels are in the module of the file that calls CUB, which also contains kernels of this
// library. CUDA_MODULE_LOADING=EAGER would load them, too, but it must be set before the program's
// first CUDA call, which this library does not control.
void load_kernels(int device) {
  static std::mutex mutex;
  static std::set<int> loaded;
  const std::lock_guard lock(mutex);
  if (loaded.contains(device)) return;
  const DeviceGuard here(device);
  for (CUmodule module : modules()) {
    unsigned count = 0;
    check_driver(driver().function_count(&count, module), "counting a module's kernels");
    std::vector<CUfunction> functions(count);
    check_driver(driver().enumerate_functions(functions.data(), count, module),
                 "listing a module's kernels");
    for (CUfunction function : functions) {
      check_driver(driver().load_function(function), "loading a kernel");
    }
  }
  loaded.insert(device);
}

}  // namespace sparsesync::cuda
