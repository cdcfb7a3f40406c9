// Streams and events of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sparsesync/context.h"

namespace sparsesync {

class CancellationCheck;  // internal
struct DeviceTimes;       // internal, used by benchmarks
class Event;

/// Runs one worker's operations on a CUDA stream of one GPU, and keeps their scratch memory.
///
/// Calls come from one thread at a time. Create one with make_device_stream(); see
/// examples/cpp/cuda.cpp.
///
/// A kernel cannot throw an error, for example for a damaged index code. The kernel records the
/// error, and synchronize() throws it. Every operation that synchronizes the stream calls
/// synchronize().
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  /// Returns the CUDA stream.
  virtual Stream stream() const = 0;
  /// Returns the GPU's number.
  virtual int device() const = 0;
  /// Makes this GPU the calling thread's current one. Each thread that works on the stream calls
  /// this before it first uses the stream. From then on, the thread's calls do not invalidate CUDA
  /// graphs that other threads capture.
  /// @throws DeviceError
  virtual void make_current() const = 0;
  /// Records that something other than an operation, such as a network, added work to the stream.
  virtual void record_work() = 0;
  /// Waits until all work of the stream is done. Returns at once if there was no work since the
  /// last call.
  /// @throws CorruptDataError the first error that a kernel recorded
  /// @throws ContractError the first error that a kernel recorded
  /// @throws DeviceError
  virtual void synchronize() = 0;
  /// Waits until all work before an event of this stream is done.
  /// @throws DeviceError
  virtual void wait_for(const Event& event) = 0;
  /// Makes every wait of the host poll `check`, which outlives the waits. Null removes the check.
  virtual void set_cancellation_check(CancellationCheck* check) = 0;
  /// Verifies that the GPU can access a pointer.
  /// @param what  names the memory at the start of the error message
  /// @throws InputError if the GPU cannot access the memory: it belongs to another GPU, or it is
  ///     host memory that is neither pinned nor managed
  virtual void expect_reachable(const void* pointer, const char* what) const = 0;
  /// Returns whether the stream waits for each operation and checks its scratch memory. Errors are
  /// then thrown by the operation that caused them.
  virtual bool is_checked() const = 0;

  /// Counts operations since the stream was made.
  struct Counters {
    std::int64_t launches = 0;          ///< kernels launched
    std::int64_t copies = 0;            ///< copies and fills other than kernels
    std::int64_t synchronizations = 0;  ///< times the host waited for the stream
  };
  /// Returns the counts so far.
  virtual Counters counters() const = 0;
};

/// Configures a DeviceStream.
struct DeviceStreamOptions {
  int device = 0;        ///< the GPU's number
  bool checked = false;  ///< whether to wait after each operation, for debugging
  /// The caller's CUDA stream, which outlives the DeviceStream. Nothing: a new stream.
  std::optional<Stream> stream = std::nullopt;
  /// Records the times of the stream's work; outlives the DeviceStream. Null: no timing.
  DeviceTimes* times = nullptr;
};

/// Creates a DeviceStream.
/// @param memory  memory of the GPU, for scratch; outlives the stream
/// @param pinned  host memory that the GPU reaches; outlives the stream
/// @param options the GPU, and optionally a CUDA stream of the caller
/// @throws DeviceError if the GPU does not exist or is too old, or the build has no CUDA
/// @throws InputError if `options.stream` belongs to another GPU
/// @throws DeviceMemoryError
/// @throws BudgetError
std::unique_ptr<DeviceStream> make_device_stream(MemoryResource& memory, MemoryResource& pinned,
                                                 const DeviceStreamOptions& options = {});

/// Marks a point in a stream that later work, other streams and the host can wait for. Wraps a
/// cudaEvent_t.
///
/// On a CPU an event does nothing, because work is done when an operation returns.
/// @code
/// Event ready(context);
/// ready.set(context);  // after the kernels that write the gradients
/// session.submit(bucket, Phase::reduce, gradients, &ready);  // does not block the host
/// @endcode
class Event {
 public:
  /// Creates the event. It may be set any number of times.
  explicit Event(const Context& context);
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Records the event after all work submitted to the context so far.
  void set(const Context& context);
  /// Records the event in a CUDA stream of the caller, on the GPU of the event.
  void set(Stream stream);
  /// Makes later work of the context wait for the event. Does nothing if the event was never set.
  void make_wait(const Context& context) const;
  /// Makes a CUDA stream of the caller wait for the event, on the GPU of the event.
  void make_wait(Stream stream) const;
  /// Blocks the host until all work before the event is done.
  void wait() const;

  class Handle;  ///< internal
  /// Returns the internal handle; null on a CPU.
  const Handle* handle() const { return handle_.get(); }

 private:
  std::unique_ptr<Handle> handle_;  // null on a CPU
};

/// Describes the CUDA support of this build and this machine.
struct DeviceFacts {
  bool compiled_in = false;  ///< whether this build has CUDA
  bool emulated = false;     ///< whether kernels run on the host, in builds for tests
  /// CUDA version of this machine's driver, such as 13000 for 13.0.
  std::optional<int> driver_version;
  std::optional<int> runtime_version;  ///< CUDA version that the library was built with
  /// Number of GPUs.
  int devices = 0;
  std::string problem;  ///< why `devices` is 0; empty otherwise
};
/// Returns the CUDA support of this build and this machine.
DeviceFacts device_facts();

}  // namespace sparsesync
