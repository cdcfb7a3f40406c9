// A GPU as a session of Python works on it: its memory, its streams, and how they are in step with
// the streams of the program.
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

/// The number in "cuda" or "cuda:1"; nothing for "cpu".
/// @throws InputError for any other text
std::optional<int> gpu_named(const std::string& device);

/// The memory and the streams of one session on a GPU. Guarded by the GIL, and by a lock of its own
/// where threads call it without the GIL. A call that asks for memory, or waits, is made without
/// the GIL or gives it up: an allocator of Python's needs it.
///
/// The session's work has a stream of its own. It waits for the program's streams by events, and
/// results are written in the program's streams: the host waits for neither.
class PythonDevice {
 public:
  /// @param stream     of the program, for the session's work; nothing: one of its own
  /// @param allocator  None, or an object with allocate(bytes, stream), which returns an address,
  ///                   and free(address)
  /// @param budget     bytes of the session's workspaces
  /// @throws DeviceError, DeviceMemoryError
  PythonDevice(int number, std::optional<StreamNumber> stream, nanobind::object allocator,
               std::optional<std::int64_t> budget);
  ~PythonDevice();
  PythonDevice(const PythonDevice&) = delete;
  PythonDevice& operator=(const PythonDevice&) = delete;

  int number() const { return number_; }
  std::string name() const;
  const std::optional<std::int64_t>& budget() const { return budget_; }
  /// Of the workspaces.
  const CountedMemory& memory() const { return *use().memory; }
  /// Of the host, for staging.
  const CountedMemory& pinned() const { return use().pinned; }

  /// For the one session that it works for.
  /// @throws InputError if there is one already
  OnDevice take();
  /// Connects its worker with the others by NCCL. Called by all of them, without the GIL.
  /// @throws what nccl_over() throws
  std::unique_ptr<Transport> connect(std::unique_ptr<Transport> words,
                                     std::chrono::milliseconds deadline);

  /// An event behind all work that these streams were given so far, and behind all that reads
  /// results. Called with the GIL, which it gives up. Does not synchronize a stream.
  /// @throws InputError naming a stream that is not the GPU's
  std::shared_ptr<const Event> after(std::span<const StreamNumber> streams);

  /// Gives work that reads results to a stream of the program; the session's next phases wait for
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
  /// Does work of sparsifiers, in a stream of theirs, one call after another. Called without the
  /// GIL.
  /// @param before   in a program's stream, that the work waits for; null: nothing
  /// @param streams  of the program, that wait for the work
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
      make_wait(streams, context);  // kernels that were launched still use the program's arrays
      throw;
    }
    make_wait(streams, context);
  }
  /// Copies to the host. Called without the GIL.
  void fetch(std::span<const std::byte> from, std::byte* to);

  /// Waits until nothing reads results any more. Called without the GIL, before the session ends.
  void settle();
  /// Gives back what was for the session, which has ended. Called without the GIL.
  void leave();

 private:
  struct State {
    std::unique_ptr<CountedMemory> memory;
    PinnedMemory pinned;
    std::unique_ptr<DeviceStream> of_session;
    std::unique_ptr<DeviceStream> joining;         // waits for the program's streams
    std::unique_ptr<DeviceStream> of_sparsifiers;  // null: there is none yet
    std::map<StreamNumber, std::unique_ptr<DeviceStream>> in_streams;  // of the program
    std::set<StreamNumber> reading;  // streams that read results, since the last event
    std::vector<std::shared_ptr<Event>> events;
    std::optional<Event> stage;  // where a stream is, on its way to `joining`
  };

  /// @throws ClosedError in a forked process
  State& use() const;
  Context joining() const { return {*use().memory, *use().joining}; }

  DeviceStream& stream_of_sparsifiers();
  void make_wait(std::span<const StreamNumber> streams, const Context& behind);

  // With the lock held.
  DeviceStream& stream_on(StreamNumber stream);
  void join(std::span<const StreamNumber> streams);

  void* allocate(std::size_t bytes, Stream stream) const;
  void free(void* pointer) const noexcept;

  const Process process_;
  const int number_;
  const std::optional<std::int64_t> budget_;
  nanobind::object allocator_;
  // Guards a State's streams. Recursive: what asks for memory runs code of Python.
  std::recursive_mutex mutex_;
  std::mutex sparsifying_;  // guards the stream of sparsifiers
  OfThisProcess<State> state_;
  bool taken_ = false;
};

/// A PythonDevice as Python holds one; sessions and transports share it.
struct DeviceHandle {
  std::shared_ptr<PythonDevice> device;
};

}  // namespace sparsesync::python
