// UCX, loaded at run time, so that a program without UCX transports does not need it. The headers
// of UCX 1.13 suffice for later versions, because UCX only appends fields to its structures.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace sparsesync::ucx {

/// A version of UCX.
struct Version {
  unsigned major;
  unsigned minor;
};

/// The oldest version that works, and the interface that the transport asks UCX for.
inline constexpr Version kOldest{1, 13};

/// UCX's functions.
struct Library {
  decltype(&ucp_get_version) get_version;
  decltype(&ucp_get_version_string) get_version_string;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_context_query) context_query;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_query) worker_query;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_worker_flush_nbx) worker_flush_nbx;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_ep_flush_nbx) ep_flush_nbx;
  decltype(&ucp_am_send_nbx) am_send_nbx;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucp_request_free) request_free;
  decltype(&ucp_request_cancel) request_cancel;
  decltype(&ucs_status_string) status_string;
};

/// Returns UCX's functions. The first call in a process loads the library: the copy that is already
/// loaded, the file or folder that SPARSESYNC_UCX_LIBRARY names, the system's libucp.so.0, or the
/// one of PyPI's libucx packages beside the Python package. Later calls repeat its outcome.
///
/// Loading leaves the process's signal handlers and memory functions unchanged: UCX starts with
/// UCX_HANDLE_ERRORS=none and UCX_MEM_EVENTS=n, unless the environment sets these variables. A copy
/// that Open MPI loaded keeps Open MPI's settings.
/// @throws Error if UCX is missing, is older than 1.13, or lacks a function
const Library& library();

/// Returns why library() fails, or an empty string if UCX is usable.
std::string why_no_ucx();

/// Returns the version of the loaded library.
Version version();

/// Returns the version of the loaded library as text: "1.13.1".
std::string version_text();

/// Checks the status that the function `call` returned.
/// @throws Error that names the call, UCX's reason and its version, if `status` is an error
void check(ucs_status_t status, const char* call);

}  // namespace sparsesync::ucx
