#include "engine/transport/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "kernels/base/error.h"

#if defined(SPARSESYNC_CUDA_EMULATED)
#include <emulated_nccl.h>
#endif

namespace sparsesync::nccl {
namespace {

#if defined(SPARSESYNC_CUDA_EMULATED)

Library open() {
  return emulated_nccl();
}

#else

template <typename Function>
void take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(
        fmt::format("the installed NCCL has no {}: install NCCL 2.18 or later", name));
  }
}

Library open() {
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw DeviceError(fmt::format(
        "cannot load NCCL ({}): install it, or add its folder to LD_LIBRARY_PATH", dlerror()));
  }
  Library all{};
  take(handle, "ncclGetVersion", all.get_version);
  take(handle, "ncclGetUniqueId", all.get_unique_id);
  take(handle, "ncclCommInitRankConfig", all.comm_init_rank_config);
  take(handle, "ncclCommCount", all.comm_count);
  take(handle, "ncclCommFinalize", all.comm_finalize);
  take(handle, "ncclCommDestroy", all.comm_destroy);
  take(handle, "ncclCommAbort", all.comm_abort);
  take(handle, "ncclCommGetAsyncError", all.comm_get_async_error);
  take(handle, "ncclGetErrorString", all.get_error_string);
  take(handle, "ncclGroupStart", all.group_start);
  take(handle, "ncclGroupEnd", all.group_end);
  take(handle, "ncclSend", all.send);
  take(handle, "ncclRecv", all.recv);
  take(handle, "ncclAllReduce", all.all_reduce);
  return all;
}

#endif

}  // namespace

const Library& library() {
  static const Library opened = open();
  return opened;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace sparsesync::nccl
