// Streams and events of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sparsesync/context.h"

namespace sparsesync {

class CancellationCheck;  // of the implementation
struct DeviceTimes;       // of benches
class Event;

/// One worker's stream on one GPU, with the memory that operations keep from one to the next. Calls
/// come from one thread at a time.
///
/// A kernel cannot throw an error, for example for a damaged index code. It records the error, and
/// synchronize() throws it. Every operation that synchronizes the stream calls synchronize().
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  /// The handle.
  virtual Stream stream() const = 0;
  /// The GPU's number.
  virtual int device() const = 0;
  /// Makes the GPU the current one of a thread that works for the stream. Each such thread calls it
  /// before it first uses the stream. From then on the thread's calls do not invalidate CUDA graphs
  /// that other threads capture.
  /// @throws DeviceError
  virtual void make_current() const = 0;
  /// Records that something other than an operation, such as a network, gave the stream work.
  virtual void record_work() = 0;
  /// Waits until all work is done, if there was any since it last waited.
  /// @throws CorruptDataError, ContractError as recorded by an operation, the first one;
  /// DeviceError
  virtual void synchronize() = 0;
  /// Waits until all work before an event of this stream is done.
  /// @throws DeviceError
  virtual void wait_for(const Event& event) = 0;
  /// Makes every wait of the host poll `check`, which outlives the waits; null: no check.
  virtual void set_cancellation_check(CancellationCheck* check) = 0;
  /// @param what  stands before the reason in the text
  /// @throws InputError if the GPU does not reach the memory: another one's, or the host's that is
  ///         neither pinned nor managed
  virtual void expect_reachable(const void* pointer, const char* what) const = 0;
  /// Whether each operation is waited for, and its scratch checked: errors come where they arise.
  virtual bool is_checked() const = 0;

  /// Counts of operations so far.
  struct Counters {
    std::int64_t launches = 0;          // of kernels
    std::int64_t copies = 0;            // copies and fills that are no kernels
    std::int64_t synchronizations = 0;  // of the host with the stream
  };
  virtual Counters counters() const = 0;
};

/// How a DeviceStream works.
struct DeviceStreamOptions {
  int device = 0;
  bool checked = false;
  /// The caller's CUDA stream, which outlives the DeviceStream; nothing: a new one.
  std::optional<Stream> stream = std::nullopt;
  /// Times the stream's work; outlives the DeviceStream. Null: nothing is timed.
  DeviceTimes* times = nullptr;
};

/// Makes a stream.
/// @param memory  of the device, for scratch; outlives the stream
/// @param pinned  of the host, that the device reaches; outlives the stream
/// @throws as expect_device(), DeviceMemoryError, BudgetError, InputError if the stream is one of
///         another GPU
std::unique_ptr<DeviceStream> make_device_stream(MemoryResource& memory, MemoryResource& pinned,
                                                 const DeviceStreamOptions& options = {});

/// A cudaEvent_t: a point in a stream, which later work, other streams and the host can wait for.
/// Does nothing on a CPU, where work is done when an operation returns.
class Event {
 public:
  /// Allocates once; may be set again and again.
  explicit Event(const Context& context);
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Records the event behind all work that the context was given so far. Does not synchronize the
  /// stream.
  void set(const Context& context);
  /// Records the event in a CUDA stream of the caller's, on the GPU that the event was made for.
  void set(Stream stream);
  /// Lets the work that the context is given from now on wait for the event. Does not synchronize
  /// the stream. Does nothing if the event was never set.
  void make_wait(const Context& context) const;
  /// Lets a CUDA stream of the caller's wait, on the GPU that the event was made for.
  void make_wait(Stream stream) const;
  /// Lets the host wait for all work before it.
  void wait() const;

  class Handle;
  /// Null on a CPU.
  const Handle* handle() const { return handle_.get(); }

 private:
  std::unique_ptr<Handle> handle_;  // null on a CPU
};

/// Describes the CUDA support of this build and this machine.
struct DeviceFacts {
  bool compiled_in = false;
  bool emulated = false;               // kernels run on the host: a build for tests
  std::optional<int> driver_version;   // as CUDA numbers them, 13000 for 13.0; of the driver here
  std::optional<int> runtime_version;  // that the library was built with
  int devices = 0;
  std::string problem;  // why there is no device; empty where there is one
};
/// Returns the facts of this build and this machine.
DeviceFacts device_facts();

}  // namespace sparsesync
