#include "engine/transport/ucx/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/error.h"

namespace sparsesync::ucx {
namespace {

constexpr const char* kFile = "libucp.so.0";
constexpr const char* kHowToInstall =
    "install the Debian package libucx0, or run `pip install libucx-cu12` and set "
    "SPARSESYNC_UCX_LIBRARY to its folder libucx/lib";

/// Returns where `pip install sparsesync[ucx]` puts UCX: beside the folder of the Python package
/// that has this code.
std::filesystem::path beside_package() {
  Dl_info code{};
  if (dladdr(static_cast<const void*>(&kHowToInstall), &code) == 0) return kFile;
  return std::filesystem::path(code.dli_fname).parent_path().parent_path() / "libucx/lib" / kFile;
}

/// Restores the signal handlers at the end of a scope. UCX's constructors install a handler of
/// SIGHUP, and handlers of SIGILL, SIGBUS, SIGFPE and SIGSEGV if UCX_HANDLE_ERRORS is set.
class KeptSignalHandlers {
 public:
  KeptSignalHandlers() {
    for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, nullptr, &at(signal));
  }
  KeptSignalHandlers(const KeptSignalHandlers&) = delete;
  KeptSignalHandlers& operator=(const KeptSignalHandlers&) = delete;
  ~KeptSignalHandlers() {
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction now {};
      if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler != at(signal).sa_handler) {
        sigaction(signal, &at(signal), nullptr);
      }
    }
  }

 private:
  struct sigaction& at(int signal) {
    return handlers_[static_cast<std::size_t>(signal)];
  }

  std::array<struct sigaction, NSIG> handlers_{};
};

/// Adds settings that UCX reads only in its constructors to the environment, until the end of a
/// scope. A variable that is already set keeps its value.
///
/// setenv() would race with getenv() in other threads, because it reallocates the array of
/// variables. This class publishes an extended copy of the array instead. Each array outlives all
/// readers, so other threads read valid variables at any time.
class LoadingEnvironment {
 public:
  LoadingEnvironment() : before_(environ) {
    static std::vector<char*> extended;  // library() creates one object per process
    static std::array<char[32], 2> settings{{{"UCX_MEM_EVENTS=n"}, {"UCX_HANDLE_ERRORS=none"}}};
    for (char* setting : settings) {
      const std::string name(setting, std::strcspn(setting, "="));
      // NOLINTNEXTLINE(concurrency-mt-unsafe)
      if (std::getenv(name.c_str()) == nullptr) extended.push_back(setting);
    }
    for (char** variable = before_; variable != nullptr && *variable != nullptr; ++variable) {
      extended.push_back(*variable);
    }
    extended.push_back(nullptr);
    environ = ours_ = extended.data();
  }
  LoadingEnvironment(const LoadingEnvironment&) = delete;
  LoadingEnvironment& operator=(const LoadingEnvironment&) = delete;
  ~LoadingEnvironment() {
    // Another thread's setenv() has replaced the array if it differs. Its change stays.
    if (environ == ours_) environ = before_;
  }

 private:
  char** before_;
  char** ours_ = nullptr;
};

/// Returns SPARSESYNC_UCX_LIBRARY, or an empty string.
std::string configured_library() {
  const char* value = std::getenv("SPARSESYNC_UCX_LIBRARY");  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

/// Loads UCX, or finds the loaded copy. A second copy in the process would fail.
void* load() {
  if (void* const loaded = dlopen(kFile, RTLD_NOLOAD | RTLD_NOW)) return loaded;
  const KeptSignalHandlers handlers;
  const LoadingEnvironment environment;
  const std::string configured = configured_library();
  std::filesystem::path path = configured.empty() ? kFile : configured;
  std::error_code unreadable;  // dlopen() reports the reason
  if (!configured.empty() && std::filesystem::is_directory(path, unreadable)) path /= kFile;
  if (void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string reason = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
  if (configured.empty()) {
    if (void* const handle = dlopen(beside_package().c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    throw Error(fmt::format("cannot load UCX ({}): {}", reason, kHowToInstall));
  }
  throw Error(
      fmt::format("cannot load UCX from SPARSESYNC_UCX_LIBRARY '{}' ({}): set it to {} or to the "
                  "folder of this file, or unset it",
                  configured, reason, kFile));
}

/// Finds UCX's function `name`.
template <typename Function>
void find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) {
    throw Error(fmt::format("the installed UCX has no function {}: {}", name, kHowToInstall));
  }
}

/// Throws unless the library is recent enough.
void check_version(const Library& all) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  all.get_version(&major, &minor, &release);
  if (major != kOldest.major || minor < kOldest.minor) {
    throw Error(fmt::format(
        "UCX {}.{}.{} is installed, but sparsesync needs {}.{} or a later {}.x: {}", major, minor,
        release, kOldest.major, kOldest.minor, kOldest.major, kHowToInstall));
  }
}

Library open() {
  void* const handle = load();
  Library all{};
  find(handle, "ucp_get_version", all.get_version);
  check_version(all);
  find(handle, "ucp_get_version_string", all.get_version_string);
  find(handle, "ucp_config_read", all.config_read);
  find(handle, "ucp_config_modify", all.config_modify);
  find(handle, "ucp_config_release", all.config_release);
  find(handle, "ucp_init_version", all.init_version);
  find(handle, "ucp_cleanup", all.cleanup);
  find(handle, "ucp_context_query", all.context_query);
  find(handle, "ucp_worker_create", all.worker_create);
  find(handle, "ucp_worker_destroy", all.worker_destroy);
  find(handle, "ucp_worker_get_address", all.worker_get_address);
  find(handle, "ucp_worker_release_address", all.worker_release_address);
  find(handle, "ucp_worker_query", all.worker_query);
  find(handle, "ucp_worker_get_efd", all.worker_get_efd);
  find(handle, "ucp_worker_arm", all.worker_arm);
  find(handle, "ucp_worker_progress", all.worker_progress);
  find(handle, "ucp_worker_set_am_recv_handler", all.worker_set_am_recv_handler);
  find(handle, "ucp_worker_flush_nbx", all.worker_flush_nbx);
  find(handle, "ucp_ep_create", all.ep_create);
  find(handle, "ucp_ep_close_nbx", all.ep_close_nbx);
  find(handle, "ucp_ep_flush_nbx", all.ep_flush_nbx);
  find(handle, "ucp_am_send_nbx", all.am_send_nbx);
  find(handle, "ucp_request_check_status", all.request_check_status);
  find(handle, "ucp_request_free", all.request_free);
  find(handle, "ucp_request_cancel", all.request_cancel);
  find(handle, "ucs_status_string", all.status_string);  // of libucs, which libucp loads
  return all;
}

/// The outcome of loading UCX: its functions, or why they are missing.
struct Opened {
  Library functions{};
  std::string failure;
};

const Opened& opened() {
  static const Opened outcome = [] {
    Opened result;
    try {
      result.functions = open();
    } catch (const Error& error) {
      result.failure = error.what();
    }
    return result;
  }();
  return outcome;
}

}  // namespace

const Library& library() {
  if (!opened().failure.empty()) throw Error(opened().failure);
  return opened().functions;
}

std::string why_no_ucx() {
  return opened().failure;
}

Version version() {
  Version found{};
  unsigned release = 0;
  library().get_version(&found.major, &found.minor, &release);
  return found;
}

std::string version_text() {
  return library().get_version_string();
}

void check(ucs_status_t status, const char* call) {
  if (status >= UCS_OK) return;
  throw Error(fmt::format("{} of UCX {} failed: {}; set UCX_LOG_LEVEL=info to see why", call,
                          version_text(), library().status_string(status)));
}

}  // namespace sparsesync::ucx
