// Streams and events of a GPU: the queue of a context's work, and points in it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sparsesync/context.h"

namespace sparsesync {

class DeviceWatch;   // of the implementation
struct DeviceTimes;  // of benches
class Mark;

/// One worker's work on one GPU: a stream, and what operations need beside it, which is kept from
/// one to the next. Calls come from one thread at a time.
///
/// Operations on a GPU cannot throw what they find out there: a code of indices that is damaged,
/// say. They note it, and synchronize() throws it: every operation that synchronizes the stream
/// does so by it.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  virtual Stream stream() const = 0;
  /// The GPU's number.
  virtual int device() const = 0;
  /// Makes the GPU the current one of a thread that works for the queue. Each such thread calls it
  /// before it first uses the queue. From then on the thread's calls do not invalidate CUDA graphs
  /// that other threads capture.
  /// @throws DeviceError
  virtual void make_current() const = 0;
  /// Work was given to the stream by somebody else than operations: a network.
  virtual void note_work() = 0;
  /// Waits until all work is done, if there was any since it last waited.
  /// @throws CorruptDataError, ContractError as noted by an operation, the first one; DeviceError
  virtual void synchronize() = 0;
  /// Waits until all work before a mark in this stream is done.
  /// @throws DeviceError
  virtual void wait_for(const Mark& mark) = 0;
  /// Has every wait of the host ask `watch`, which outlives that; null: nobody.
  virtual void watch(DeviceWatch* watch) = 0;
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

/// How a queue works.
struct DeviceQueueOptions {
  int device = 0;
  bool checked = false;
  /// A stream of the caller's, which outlives the queue; nothing: one of its own.
  std::optional<Stream> stream = std::nullopt;
  /// Times the queue's work; outlives the queue. Null: nothing is timed.
  DeviceTimes* times = nullptr;
};

/// @param memory  of the device, for scratch; outlives the queue
/// @param pinned  of the host, that the device reaches; outlives the queue
/// @throws as expect_device(), DeviceMemoryError, BudgetError, InputError if the stream is one of
///         another GPU
std::unique_ptr<DeviceQueue> make_device_queue(MemoryResource& memory, MemoryResource& pinned,
                                               const DeviceQueueOptions& options = {});

/// A point in the work of a context: what it stands before can wait for all work before it. Nothing
/// on a CPU, where work is done when an operation returns.
class Mark {
 public:
  /// Allocates once; may be set again and again.
  explicit Mark(const Context& context);
  ~Mark();
  Mark(Mark&&) noexcept;
  Mark& operator=(Mark&&) = delete;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  /// Stands behind all work that the context was given so far. Does not synchronize the stream.
  void set(const Context& context);
  /// The same of a stream that is not ours, on the GPU that the mark was made for.
  void set(Stream stream);
  /// Lets the work that the context is given from now on wait for the mark. Does not synchronize
  /// the stream. Of a mark that was never set: nothing.
  void make_wait(const Context& context) const;
  /// The same of a stream that is not ours, on the GPU that the mark was made for.
  void make_wait(Stream stream) const;
  /// Lets the host wait for all work before it.
  void wait() const;

  class Event;
  /// Null on a CPU.
  const Event* event() const { return event_.get(); }

 private:
  std::unique_ptr<Event> event_;  // null on a CPU
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
