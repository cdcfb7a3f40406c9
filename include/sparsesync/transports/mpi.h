// Transport `mpi`: workers are processes, connected by MPI.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "sparsesync/transport.h"
#include "sparsesync/transports/chunks.h"

namespace sparsesync {

/// Configures how the library shares MPI with the program, and its timeouts.
struct MpiOptions {
  /// Whether the program makes MPI calls while the MpiWorld exists.
  bool program_calls_mpi = false;
  /// Timeout of each call that waits for all processes: construction, join() and destruction.
  std::chrono::milliseconds deadline{60'000};
  /// Timeout of destruction; nothing: `deadline`. Set it if a process may continue with other work
  /// for longer before it ends. A join() with a longer deadline raises it.
  std::optional<std::chrono::milliseconds> leaving = std::nullopt;
};

/// Represents the processes that MPI started together.
///
/// @code
/// MpiWorld world;
/// HostMemory memory;
/// Session session(world.join(), memory);
/// @endcode
/// The complete program is examples/cpp/mpi.cpp.
///
/// Open MPI is loaded at run time: the copy that the process has loaded already, or libmpi.so.40.
/// MPICH does not work.
///
/// One thread of this process makes all MPI calls, on private communicators. It polls with
/// back-off, so that more processes than cores do not slow each other down. The program may use MPI
/// beside it if MpiOptions::program_calls_mpi is set.
///
/// The constructor initializes MPI if the program did not, and the destructor then finalizes it. If
/// the program initialized MPI, its MPI_Finalize first waits, up to the timeout, until all workers
/// have left, and ends the thread.
///
/// After a worker was lost, MPI is neither finalized nor called again, because it would wait for
/// that worker. End the program then. After another error, for example DeadlineError, all workers
/// may call join() again if all their processes still run.
class MpiWorld {
 public:
  /// Starts the thread, and waits for all processes.
  /// @throws UnsupportedError if why_no_mpi() has a reason
  /// @throws Error if MPI was initialized with too little thread support: it needs
  ///     MPI_THREAD_SERIALIZED, or MPI_THREAD_MULTIPLE with MpiOptions::program_calls_mpi
  /// @throws DeadlineError if a process does not arrive in time
  explicit MpiWorld(MpiOptions options = {});
  /// Waits, up to the timeout, until all processes have left the networks that they joined.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  /// Returns this process's rank.
  Rank rank() const;
  /// Returns the number of processes.
  int size() const;

  /// Creates a network of all processes and returns this worker's endpoint. All processes call it,
  /// in the same order. The world outlives the endpoint.
  ///
  /// A worker leaves by destroying its endpoint. Workers that wait for it then throw PeerLostError.
  /// They also do so if its process ends, if they are on the same machine.
  /// @param chunks  the same on all workers
  /// @throws InputError if `chunks` is out of range
  /// @throws DeadlineError if a process does not arrive in time
  std::unique_ptr<Transport> join(Chunks chunks = {}) { return join(size(), chunks); }
  /// Creates a network of the first `members` processes. The other processes call it, too.
  /// @param members   number of workers, from 1 to size()
  /// @param chunks    the same on all workers
  /// @param deadline  timeout of the wait for the other processes; nothing: MpiOptions::deadline
  /// @return the endpoint; null on processes that are not members
  /// @throws Error the errors of the other join()
  std::unique_ptr<Transport> join(int members, Chunks chunks,
                                  std::optional<std::chrono::milliseconds> deadline = {});

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Returns whether this process can use MPI.
bool has_mpi();

/// Returns why this process cannot use MPI, or an empty string if it can.
std::string why_no_mpi();

/// Returns the version of MPI, such as "Open MPI v4.1.4". Without MPI, returns the reason in
/// parentheses.
std::string mpi_text();

}  // namespace sparsesync
