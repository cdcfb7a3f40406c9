// The Python module `sparsesync._native`: bindings of the library.
#include <nanobind/nanobind.h>

#include "engine/support/log.h"
#include "python/bindings/bindings.h"

NB_MODULE(_native, module) {
  // Python does not destroy every live object when it shuts down, which is not a leak.
  nanobind::set_leak_warnings(false);
  module.doc() = "Native code of the package sparsesync: sessions, transports, kernels.";
  sparsesync::python::bind_errors(module);
  sparsesync::set_log_level_from_environment();
  sparsesync::python::bind_kernels(module);
  sparsesync::python::bind_device(module);
  sparsesync::python::bind_transports(module);
  sparsesync::python::bind_session(module);
  sparsesync::python::bind_schedules(module);
  sparsesync::python::bind_sparsifiers(module);
  sparsesync::python::bind_facts(module);
#if defined(SPARSESYNC_PYTHON_EMULATED)
  sparsesync::python::bind_emulated(module);
#endif
  // The threads of sessions and worlds must end before the interpreter does.
  nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function([] {
    sparsesync::python::close_sessions();
    sparsesync::python::close_worlds();
  }));
}
