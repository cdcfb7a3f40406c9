// The parts of the Python module `sparsesync._native`.
#pragma once

#include <nanobind/nanobind.h>

namespace sparsesync::python {

/// The exceptions, and what of C++ each stands for.
void bind_errors(nanobind::module_& module);
/// Kernels on arrays.
void bind_kernels(nanobind::module_& module);
/// What connects workers.
void bind_transports(nanobind::module_& module);
/// Closes what is open, because Python ends.
void close_worlds();
/// GPUs, for sessions.
void bind_device(nanobind::module_& module);
#if defined(SPARSESYNC_PYTHON_EMULATED)
/// What tests ask of the emulated GPU: tests/emulated_cuda/python_module.cpp.
void bind_emulated(nanobind::module_& module);
#endif
/// Buckets and sessions. After bind_transports() and bind_device().
void bind_session(nanobind::module_& module);
/// Closes what is open, because Python ends. Before close_worlds().
void close_sessions();
/// Schedules of training steps. After bind_session().
void bind_schedules(nanobind::module_& module);
/// Sparsifiers of buckets. After bind_session().
void bind_sparsifiers(nanobind::module_& module);
/// Names of schemes, and provenance.
void bind_facts(nanobind::module_& module);

}  // namespace sparsesync::python
