#include "engine/transport/ucx/context.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/support/log.h"
#include "kernels/base/error.h"

namespace sparsesync::ucx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInfiniband = "/sys/class/infiniband";

/// Returns a variable of the environment, or an empty string.
std::string from_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

/// Lists the machine's network interfaces, sorted, as UCX names them.
std::vector<std::string> machine_interfaces() {
  std::vector<std::string> names;
  if (struct if_nameindex* const all = if_nameindex()) {
    for (const auto* each = all; each->if_index != 0; ++each) names.emplace_back(each->if_name);
    if_freenameindex(all);
  }
  std::error_code ignored;  // a machine without InfiniBand has no such folder
  for (const auto& device : fs::directory_iterator(kInfiniband, ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      names.push_back(device.path().filename().string() + ":" + port.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Whether this machine has the interface `name`. UCX itself resolves "all" and ranges such as
/// "mlx5_[0-3]:1".
bool has_interface(const std::string& name, const std::vector<std::string>& existing) {
  return name == "all" || name.find('[') != std::string::npos ||
         std::find(existing.begin(), existing.end(), name) != existing.end();
}

/// Checks that this machine has each interface of a list. A list that starts with ^ excludes
/// interfaces.
void check_interfaces(std::string_view list, const char* source) {
  if (!list.empty() && list.front() == '^') list.remove_prefix(1);
  const std::vector<std::string> existing = machine_interfaces();
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name(list.substr(begin, end - begin));
    if (!has_interface(name, existing)) {
      throw InputError(fmt::format("{}: this machine has no network interface '{}': choose from {}",
                                   source, name, fmt::join(existing, ", ")));
    }
    begin = end + 1;
  }
}

/// A setting of UCX.
struct Setting {
  std::array<const char*, 2> names;  // alternatives: spellings of several versions
  const char* variable;              // of the environment; nullptr: the environment does not win
  const char* value;
  bool required;
};

// UCX 1.17 added the prefix TCP_. Versions before 1.21 accept every name and ignore unknown ones.
constexpr std::array<Setting, 4> kSettings{{
    // A worker that connects to a lost peer would block for minutes.
    {{"TCP_CONN_NB", "CONN_NB"}, "UCX_TCP_CONN_NB", "y", true},
    // Shared memory is otherwise unusable for endpoints that report lost peers.
    {{"MM_ERROR_HANDLING", nullptr}, nullptr, "y", true},
    // Shared memory notices a lost peer only by this check. UCX's default is 20 s.
    {{"KEEPALIVE_INTERVAL", nullptr}, "UCX_KEEPALIVE_INTERVAL", "200ms", true},
    // UCX logs to standard output, where programs write their results.
    {{"LOG_LEVEL", nullptr}, "UCX_LOG_LEVEL", "fatal", false},
}};

/// Applies a setting in each spelling, unless the environment has it.
void apply(ucp_config_t* config, const Setting& setting) {
  if (setting.variable != nullptr && !from_environment(setting.variable).empty()) return;
  bool accepted = false;
  for (const char* name : setting.names) {
    accepted |= name != nullptr && library().config_modify(config, name, setting.value) == UCS_OK;
  }
  if (!accepted && setting.required) {
    throw Error(fmt::format("UCX {} has no setting {}: install UCX 1.13 to 1.22", version_text(),
                            setting.names[0]));
  }
}

/// Returns the transports to use, or an empty string if UCX_TLS applies.
///
/// A process that is killed while it creates POSIX shared memory leaves a file in /dev/shm: 10 of
/// 200 that were killed in their first 30 ms. With System V shared memory, one of 200 leaves a
/// segment. The times of steps are the same within their spread.
std::string chosen_transports(const std::string& asked) {
  if (!asked.empty() || !from_environment("UCX_TLS").empty()) return asked;
  return "^posix";
}

/// Initializes UCX with the settings of this file and `options`.
ucp_context_h create_context(const ContextOptions& options) {
  const Library& ucx = library();
  ucp_config_t* read = nullptr;
  check(ucx.config_read(nullptr, nullptr, &read), "ucp_config_read");
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config(read,
                                                                            ucx.config_release);
  for (const Setting& setting : kSettings) apply(config.get(), setting);
  if (!options.interfaces.empty()) {
    check(ucx.config_modify(config.get(), "NET_DEVICES", options.interfaces.c_str()),
          "ucp_config_modify of NET_DEVICES");
  }
  if (const std::string transports = chosen_transports(options.transports); !transports.empty()) {
    check(ucx.config_modify(config.get(), "TLS", transports.c_str()), "ucp_config_modify of TLS");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  check(ucx.init_version(kOldest.major, kOldest.minor, &params, config.get(), &context),
        "ucp_init");
  return context;
}

/// Creates the worker of a context.
ucp_worker_h create_worker(ucp_context_h context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = library().worker_create(context, &params, &worker);
  const std::string ports = from_environment("UCX_TCP_PORT_RANGE");
  if (status == UCS_ERR_BUSY && !ports.empty()) {
    throw Error(fmt::format(
        "all TCP ports of UCX_TCP_PORT_RANGE '{}' are in use: widen the range or unset it", ports));
  }
  check(status, "ucp_worker_create");
  return worker;
}

/// Copies the address of a worker.
std::string address_of(ucp_worker_h worker) {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  check(library().worker_get_address(worker, &address, &size), "ucp_worker_get_address");
  std::string bytes(reinterpret_cast<const char*>(address), size);
  library().worker_release_address(worker, address);
  return bytes;
}

/// Returns the event descriptor of a worker. Programs that this process starts do not inherit it.
int event_descriptor_of(ucp_worker_h worker) {
  int descriptor = -1;
  check(library().worker_get_efd(worker, &descriptor), "ucp_worker_get_efd");
  if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(fmt::format("cannot set FD_CLOEXEC on UCX's event descriptor: {}",
                            std::generic_category().message(errno)));
  }
  return descriptor;
}

}  // namespace

std::string choose_interfaces(const std::string& asked) {
  struct Source {
    const char* name;
    std::string interfaces;
  };
  const std::array<Source, 3> sources{
      {{"interfaces", asked},
       {"UCX_NET_DEVICES", from_environment("UCX_NET_DEVICES")},
       {"GLOO_SOCKET_IFNAME", from_environment("GLOO_SOCKET_IFNAME")}}};
  for (const Source& source : sources) {
    if (source.interfaces.empty()) continue;
    check_interfaces(source.interfaces, source.name);
    return source.interfaces;
  }
  return "";
}

Context::Context(const ContextOptions& options)
    : interfaces_(choose_interfaces(options.interfaces)),
      context_(create_context({.interfaces = interfaces_, .transports = options.transports}),
               library().cleanup),
      worker_(create_worker(context_.get()), library().worker_destroy),
      address_(address_of(worker_.get())),
      event_descriptor_(event_descriptor_of(worker_.get())) {
  if (log_enabled(LogLevel::info)) {
    log(LogLevel::info, fmt::format("UCX {} over {}", version_text(),
                                    interfaces_.empty() ? "all interfaces" : interfaces_));
  }
}

}  // namespace sparsesync::ucx
