// What Python can close, and what a fork leaves behind in the child.
#pragma once

#include <unistd.h>

#include <memory>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace sparsesync::python {

/// What was closed, or belongs to the process that this one was forked from.
class ClosedError : public Error {
 public:
  using Error::Error;
};

/// @param what  the name of its class
/// @throws ClosedError
[[noreturn]] void throw_closed(std::string_view what);

/// The process that something was made in. What has threads, or shares locks with them, is of use
/// there alone: a child that was forked has the object without the threads, and who waits for them
/// waits forever.
class Process {
 public:
  bool forked() const { return getpid() != id_; }
  /// @param what  the name of its class
  /// @throws ClosedError if this is another one
  void expect(std::string_view what) const;

 private:
  pid_t id_ = getpid();
};

/// Deletes what was made in this process; what is another's stays as it is.
class DeleteInItsProcess {
 public:
  template <typename T>
  void operator()(T* object) const {
    if (!process_.forked()) delete object;
  }

 private:
  Process process_;
};

/// Owns what has threads.
template <typename T>
using OfThisProcess = std::unique_ptr<T, DeleteInItsProcess>;

template <typename T>
OfThisProcess<T> of_this_process(std::unique_ptr<T> object) {
  return OfThisProcess<T>(object.release());
}

}  // namespace sparsesync::python
