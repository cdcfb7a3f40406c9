// Release and acquisition of Python's GIL, also while the interpreter shuts down.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace sparsesync::python {

/// Runs a call that acquires the GIL. While the interpreter shuts down, the GIL is unavailable.
/// Python before 3.14 then ends the requesting thread by pthread_exit(), which unwinds the stack.
/// If the unwinding passes a noexcept function, such as a destructor, or meets another exception,
/// it terminates the process. The thread therefore pauses here until the process has ended, as it
/// does in Python 3.14.
template <typename Call>
auto taking_gil(const Call& call) noexcept {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    while (true) pause();
  }
}

/// Releases the GIL for its lifetime. Replaces nanobind's gil_scoped_release, which unwinds as
/// described at taking_gil().
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    taking_gil([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

/// Holds the GIL for its lifetime, on any thread.
class WithGil {
 public:
  WithGil() : state_(taking_gil([] { return PyGILState_Ensure(); })) {}
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace sparsesync::python
