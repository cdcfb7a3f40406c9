// Functions that add the parts of the Python module `sparsesync._native`.
#pragma once

#include <nanobind/nanobind.h>

namespace sparsesync::python {

/// Adds the exceptions, and their translation from C++.
void bind_errors(nanobind::module_& module);
/// Adds kernels on arrays.
void bind_kernels(nanobind::module_& module);
/// Adds transports, which connect workers.
void bind_transports(nanobind::module_& module);
/// Closes all open MPI worlds. Called when Python shuts down, after close_sessions().
void close_worlds();
/// Adds GPUs, for sessions.
void bind_device(nanobind::module_& module);
#if defined(SPARSESYNC_PYTHON_EMULATED)
/// Adds test access to the emulated GPU: tests/emulated_cuda/python_module.cpp.
void bind_emulated(nanobind::module_& module);
#endif
/// Adds buckets and sessions. Called after bind_transports() and bind_device().
void bind_session(nanobind::module_& module);
/// Closes all open sessions. Called when Python shuts down, before close_worlds().
void close_sessions();
/// Adds schedules of training steps. Called after bind_session().
void bind_schedules(nanobind::module_& module);
/// Adds sparsifiers of buckets. Called after bind_session().
void bind_sparsifiers(nanobind::module_& module);
/// Adds names of schemes, and provenance.
void bind_facts(nanobind::module_& module);

}  // namespace sparsesync::python
