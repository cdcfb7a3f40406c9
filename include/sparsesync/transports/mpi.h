// Transport `mpi`: each worker is a process, connected by MPI.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "sparsesync/transport.h"

namespace sparsesync {

/// How messages are cut.
struct MpiChunks {
  // Messages cross in chunks of at most this size, in turn to all peers.
  std::int64_t bytes = 16 * 1024;
  // Chunks that a worker has under way at most, to all peers together; to one peer its share of
  // them, and at least two, that the peer has not taken yet. What is under way beyond rate × round
  // trip of a link only queues there, and delays the peers' permission to send on; what is less
  // leaves the link idle. The default, 224 KiB, fills 25 Gbit/s at a round trip of 73 µs; it also
  // keeps sockets from hoarding, however large their buffers are. Links faster than the processor
  // gain from 28 to 56.
  int window = 14;
};

/// How MPI is shared with the program, and how long it may take.
struct MpiOptions {
  // Whether the program makes MPI calls of its own while the world lives.
  bool program_calls_mpi = false;
  // Timeout of each call that waits for all processes: starting, joining, and ending.
  std::chrono::milliseconds deadline{60'000};
  // Timeout of ending, if not `deadline`: a process may go on with something else for longer before
  // it ends. Joining with a longer deadline lengthens it.
  std::optional<std::chrono::milliseconds> leaving = std::nullopt;
};

/// The processes that MPI started together, and the one thread of this process that makes all MPI
/// calls: on communicators of its own, polling with back-off, so that more processes than cores
/// don't stand in each other's way. It initializes MPI if the program did not, and then finalizes
/// it. MPI_Finalize of the program first waits, until the deadline, for all workers to have left,
/// and ends the thread.
///
/// A worker that was lost, or that failed, cannot be waited for: MPI is then neither finalized nor
/// called again, and the program should end.
class MpiWorld {
 public:
  /// @throws Error          if MPI was initialized with too little thread support: at least
  ///         MPI_THREAD_SERIALIZED, and MPI_THREAD_MULTIPLE where the program makes MPI calls
  ///         meanwhile
  /// @throws DeadlineError  if a process does not come
  explicit MpiWorld(MpiOptions options = {});
  /// Waits, until the deadline, for all processes to leave what they joined.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  Rank rank() const;
  int size() const;

  /// A worker's end of a new network of all processes: each calls this, in the same order. The
  /// world outlives it. A worker that destroys its end has left: those that wait for it get
  /// PeerLostError, as they do when its process ends on a machine that they share.
  /// @param chunks  the same on all workers
  /// @throws InputError     if `chunks` is out of range
  /// @throws DeadlineError  if a process does not come
  std::unique_ptr<Transport> join(MpiChunks chunks = {}) { return join(size(), chunks); }
  /// The same for the first workers alone; the others call it, too.
  /// @param members   how many, from 1 to size()
  /// @param deadline  of the wait for the other processes; that of the options if not given
  /// @return null on the others
  /// @throws as above
  std::unique_ptr<Transport> join(int members, MpiChunks chunks,
                                  std::optional<std::chrono::milliseconds> deadline = {});

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Whether this build has MPI. Without it MpiWorld throws Error.
bool has_mpi();

}  // namespace sparsesync
