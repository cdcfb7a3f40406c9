// Objects that Python can close, and that are unusable in a forked process.
#pragma once

#include <unistd.h>

#include <memory>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace sparsesync::python {

/// Thrown on use of an object that was closed, or that belongs to the parent of a forked process.
class ClosedError : public Error {
 public:
  using Error::Error;
};

/// Throws ClosedError for a closed object.
/// @param what  the name of its class
[[noreturn]] void throw_closed(std::string_view what);

/// The process that an object was made in. An object with threads, or with locks that threads use,
/// works only there: a forked child has the object without its threads, so a wait for them would
/// never end.
class Process {
 public:
  bool forked() const { return getpid() != id_; }
  /// Verifies that this is the object's process.
  /// @param what  the name of the object's class
  /// @throws ClosedError in any other process
  void expect(std::string_view what) const;

 private:
  pid_t id_ = getpid();
};

/// Deletes an object that was made in this process; leaves any other untouched.
class DeleteInItsProcess {
 public:
  template <typename T>
  void operator()(T* object) const {
    if (!process_.forked()) delete object;
  }

 private:
  Process process_;
};

/// Owns an object with threads.
template <typename T>
using OfThisProcess = std::unique_ptr<T, DeleteInItsProcess>;

template <typename T>
OfThisProcess<T> of_this_process(std::unique_ptr<T> object) {
  return OfThisProcess<T>(object.release());
}

}  // namespace sparsesync::python
