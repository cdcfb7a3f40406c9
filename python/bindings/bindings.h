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
/// Buckets and sessions. After bind_transports().
void bind_session(nanobind::module_& module);
/// Closes what is open, because Python ends. Before close_worlds().
void close_sessions();
/// Traces, profile, compare and plan.
void bind_tools(nanobind::module_& module);

}  // namespace sparsesync::python
