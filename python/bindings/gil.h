// Python's lock, given back and taken also while the interpreter ends.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace sparsesync::python {

/// Runs a call that takes the GIL. Once the interpreter ends it is not to be had: Python
/// before 3.14 then ends the thread where it asks for it, by pthread_exit(), which unwinds the
/// stack. That must not pass a function that is noexcept, as destructors are, nor meet another
/// exception on its way: the process would be terminated. The thread stays here instead, as it does
/// in Python 3.14, until the process has ended.
template <typename Call>
auto taking_gil(const Call& call) noexcept {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    while (true) pause();
  }
}

/// Gives the GIL back for as long as it lives. (nanobind's gil_scoped_release unwinds, see above.)
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

/// Has the GIL for as long as it lives, on any thread.
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
