// Libraries that ucx_library_test loads instead of UCX, each with one fault: FAKE_UCX_OLD is
// version 1.9, FAKE_UCX_INCOMPLETE lacks most functions, and FAKE_UCX_WITHOUT_SETTINGS rejects all
// settings.
#include <ucp/api/ucp.h>

// NOLINTBEGIN(readability-identifier-naming,misc-use-internal-linkage): UCX names and calls these
extern "C" {

void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = 1;
#if defined(FAKE_UCX_OLD)
  *minor = 9;
#else
  *minor = 99;
#endif
  *release = 0;
}

#if defined(FAKE_UCX_WITHOUT_SETTINGS)

const char* ucp_get_version_string() {
  return "1.99.0";
}
const char* ucs_status_string(ucs_status_t /*status*/) {
  return "a status";
}
ucs_status_t ucp_config_read(const char* /*prefix*/, const char* /*file*/, ucp_config_t** config) {
  *config = nullptr;
  return UCS_OK;
}
ucs_status_t ucp_config_modify(ucp_config_t* /*config*/, const char* /*name*/,
                               const char* /*value*/) {
  return UCS_ERR_INVALID_PARAM;
}

// Never called.
#define FAKE_FUNCTION(name)          \
  void name##_fake() __asm__(#name); \
  void name##_fake() {}
FAKE_FUNCTION(ucp_config_release)
FAKE_FUNCTION(ucp_init_version)
FAKE_FUNCTION(ucp_cleanup)
FAKE_FUNCTION(ucp_context_query)
FAKE_FUNCTION(ucp_worker_create)
FAKE_FUNCTION(ucp_worker_destroy)
FAKE_FUNCTION(ucp_worker_get_address)
FAKE_FUNCTION(ucp_worker_release_address)
FAKE_FUNCTION(ucp_worker_query)
FAKE_FUNCTION(ucp_worker_get_efd)
FAKE_FUNCTION(ucp_worker_arm)
FAKE_FUNCTION(ucp_worker_progress)
FAKE_FUNCTION(ucp_worker_set_am_recv_handler)
FAKE_FUNCTION(ucp_worker_flush_nbx)
FAKE_FUNCTION(ucp_ep_create)
FAKE_FUNCTION(ucp_ep_close_nbx)
FAKE_FUNCTION(ucp_ep_flush_nbx)
FAKE_FUNCTION(ucp_am_send_nbx)
FAKE_FUNCTION(ucp_request_check_status)
FAKE_FUNCTION(ucp_request_free)
FAKE_FUNCTION(ucp_request_cancel)

#endif

}  // extern "C"
// NOLINTEND(readability-identifier-naming,misc-use-internal-linkage)
