#include "kernels/base/start_thread.h"

#include <string>

#include "kernels/base/error.h"

namespace sparsesync {

void throw_not_started(std::string_view name, const std::system_error& error) {
  throw Error(std::string(name) + " could not be started: " + error.code().message() +
              ": allow more threads (ulimit -u, or the container's limit of processes) or more "
              "memory (ulimit -v), or use fewer workers and threads");
}

}  // namespace sparsesync
