// The GPU of a Python session: its memory, its streams, and their synchronization with the streams
// of the program.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/base/device_stream.h"
#include "python/bindings/closed.h"
#include "sparsesync/device.h"
#include "sparsesync/session.h"

namespace sparsesync::python {

/// A stream of the program: a cudaStream_t as a number; 0 is the GPU's default stream.
using StreamNumber = std::uintptr_t;

/// Returns the number of the GPU "cuda" (0) or "cuda:1" (1); nothing for "cpu".
/// @throws InputError for any other text
std::optional<int> gpu_named(const std::string& device);

/// The memory and the streams of one session on a GPU. The GIL guards it, and a separate lock where
/// threads call it without the GIL. Calls that allocate or wait run without the GIL or release it,
/// because a Python allocator needs it.
///
/// The session's work has a separate stream, which waits for the program's streams by events.
/// Results are written in the program's streams. The host blocks on neither.
class PythonDevice {
 public:
  /// @param stream     the program's stream for the session's work; nothing: a new stream
  /// @param allocator  None, or an object with allocate(bytes, stream), which returns an address,
  ///                   and free(address)
  /// @param budget     maximum bytes of the session's workspaces; nothing: no limit
  /// @throws DeviceError, DeviceMemoryError
  PythonDevice(int number, std::optional<StreamNumber> stream, nanobind::object allocator,
               std::optional<std::int64_t> budget);
  ~PythonDevice();
  PythonDevice(const PythonDevice&) = delete;
  PythonDevice& operator=(const PythonDevice&) = delete;

  int number() const { return number_; }
  std::string name() const;
  const std::optional<std::int64_t>& budget() const { return budget_; }
  /// Returns the memory of the workspaces.
  const CountedMemory& memory() const { return *use().memory; }
  /// Returns the pinned host memory, for staging.
  const CountedMemory& pinned() const { return use().pinned; }

  /// Passes the stream and the memory to the one session that uses them.
  /// @throws InputError if a session has them already
  OnDevice take();
  /// Connects this worker with the others by NCCL. All workers call it, without the GIL.
  /// @throws what nccl_over() throws
  std::unique_ptr<Transport> connect(std::unique_ptr<Transport> words,
                                     std::chrono::milliseconds deadline);

  /// Returns an event after all work that these streams have been given so far, and after all work
  /// that reads results. Called with the GIL, which it releases. Does not synchronize a stream.
  /// @throws InputError naming a stream that belongs to another GPU
  std::shared_ptr<const Event> after(std::span<const StreamNumber> streams);

  /// Submits work that reads results to a stream of the program. The session's next phases wait for
  /// it. Called without the GIL. Does not synchronize the stream.
  /// @throws DeviceError, DeviceMemoryError
  template <typename Work>
  void read_in(StreamNumber stream, const Work& work) {
    const DeviceGuard here(number_);
    State& state = use();
    const std::lock_guard lock(mutex_);
    state.reading.insert(stream);
    work(Context(*state.memory, stream_on(stream)));
  }
  /// Submits work of a sparsifier to the stream that all sparsifiers share, one call at a time.
  /// Called without the GIL. Does not synchronize the stream.
  /// @param before   event in a program's stream that the work waits for; null: none
  /// @param streams  the program's streams that wait for the work
  /// @throws DeviceError, DeviceMemoryError
  template <typename Work>
  void sparsify(const Event* before, std::span<const StreamNumber> streams, const Work& work) {
    const DeviceGuard here(number_);
    const std::lock_guard lock(sparsifying_);
    const Context context(*use().memory, stream_of_sparsifiers());
    if (before != nullptr) before->make_wait(context);
    try {
      work(context);
    } catch (...) {
      make_wait(streams, context);  // launched kernels still use the program's arrays
      throw;
    }
    make_wait(streams, context);
  }
  /// Copies to the host. Called without the GIL.
  void fetch(std::span<const std::byte> from, std::byte* to);

  /// Waits until no stream reads results. Called without the GIL, before the session ends.
  void settle();
  /// Frees the streams of the session, which has ended. Called without the GIL.
  void leave();

 private:
  struct State {
    std::unique_ptr<CountedMemory> memory;
    PinnedMemory pinned;
    std::unique_ptr<DeviceStream> of_session;
    std::unique_ptr<DeviceStream> joining;         // waits for the program's streams
    std::unique_ptr<DeviceStream> of_sparsifiers;  // null before the first sparsifier
    std::map<StreamNumber, std::unique_ptr<DeviceStream>> in_streams;  // the program's streams
    std::set<StreamNumber> reading;  // streams that have read results since the last event
    std::vector<std::shared_ptr<Event>> events;
    std::optional<Event> stage;  // set in one stream so that another one waits for it
  };

  /// @throws ClosedError in a forked process
  State& use() const;
  Context joining() const { return {*use().memory, *use().joining}; }

  DeviceStream& stream_of_sparsifiers();
  void make_wait(std::span<const StreamNumber> streams, const Context& behind);

  // Called with the lock held.
  DeviceStream& stream_on(StreamNumber stream);
  void join(std::span<const StreamNumber> streams);

  void* allocate(std::size_t bytes, Stream stream) const;
  void free(void* pointer) const noexcept;

  const Process process_;
  const int number_;
  const std::optional<std::int64_t> budget_;
  nanobind::object allocator_;
  // Guards a State's streams. Recursive, because allocation may run Python code that calls back.
  std::recursive_mutex mutex_;
  std::mutex sparsifying_;  // guards the stream of sparsifiers
  OfThisProcess<State> state_;
  bool taken_ = false;
};

/// The Python object of a PythonDevice, which sessions and transports share.
struct DeviceHandle {
  std::shared_ptr<PythonDevice> device;
};

}  // namespace sparsesync::python
