// CUDA's implementation of DeviceStream, and the scratch that kernels use.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device_stream.h"
#include "kernels/base/views.h"

namespace sparsesync::cuda {

/// Faults that kernels find in their input.
enum class Fault : std::uint32_t {
  none,
  outside_range,   // a code's index outside its range
  not_increasing,  // a code's indices
  wrong_count,     // a code with another number of indices than announced
  no_row_there,    // a position that holds no row
  row_of_another,  // a row that is not of its partition
  not_in_union,    // aggregate: an index that the union does not have
};

/// Memory of the host that kernels write a Fault to (record_fault()). The host reads it after a
/// synchronization. If several threads write, one of the faults remains.
using FaultWord = std::uint32_t;

/// A stream, staging for copies, scratch, and the word that kernels record faults in.
class CudaStream : public DeviceStream {
 public:
  CudaStream(MemoryResource& memory, MemoryResource& pinned, const DeviceStreamOptions& options);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Stream stream() const override { return {stream_}; }
  int device() const override { return device_; }
  void make_current() const override;
  void synchronize() override;
  void wait_for(const Event& event) override;
  void set_cancellation_check(CancellationCheck* check) override { cancellation_check_ = check; }
  void expect_reachable(const void* pointer, const char* what) const override;
  void record_work() override { has_work_ = true; }
  bool is_checked() const override { return checked_; }
  Counters counters() const override { return counters_; }

  cudaStream_t handle() const { return stream_; }
  /// Processors that run blocks.
  int multiprocessors() const { return multiprocessors_; }
  /// Returns the word that kernels record faults in.
  FaultWord* faults() const { return faults_; }
  /// So many kernels were launched.
  void count_launch(int launches = 1) {
    counters_.launches += launches;
    record_work();
  }
  /// So many copies or fills were started.
  void count_copy(int copies = 1) {
    counters_.copies += copies;
    record_work();
  }

  /// Copies from the host. `from` may be used again at once.
  void upload(std::span<const std::byte> from, std::byte* to);
  /// Copies to the host and waits for it.
  void download(std::span<const std::byte> from, std::byte* to);

  /// Times the work that the stream is given during its lifetime, if the stream has DeviceTimes.
  class [[nodiscard]] Timed {
   public:
    explicit Timed(CudaStream& stream);
    ~Timed();
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    CudaStream& stream_;
    std::unique_lock<std::mutex> lock_;
  };

  // ---- For Scratch.

  /// An operation begins to take scratch; it may be part of another one.
  void open_scratch() { ++scratch_depth_; }
  /// It needs what it took no longer.
  void close_scratch() noexcept;
  /// At a multiple of 256 bytes, until the outermost operation closes. A checked stream has a red
  /// zone behind each slice: after the outermost operation, synchronize() throws ContractError,
  /// naming the slice, if something was written there.
  /// @throws BudgetError, DeviceMemoryError
  std::byte* scratch(std::size_t bytes);

 private:
  static constexpr std::size_t kStagingBytes = std::size_t{1} << 18;  // of each half

  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  std::byte* next_staging(std::size_t bytes);
  void release_scratch() noexcept;
  void add_red_zone(std::byte* slice, std::size_t bytes, std::size_t with_zone);
  void check_red_zones() noexcept;
  void wait_for_all();
  void wait_for_event(cudaEvent_t event);

  MemoryResource& memory_;
  MemoryResource& pinned_;
  int device_;
  bool checked_;
  bool own_stream_;
  int multiprocessors_ = 1;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t end_ = nullptr;  // of all work so far
  DeviceTimes* times_ = nullptr;
  std::array<cudaEvent_t, 2> timing_{};  // where there are times
  CancellationCheck* cancellation_check_ = nullptr;
  // Since synchronize() last waited; another stream's thread may note that this one waits for it.
  std::atomic<bool> has_work_ = true;
  FaultWord* faults_ = nullptr;
  Counters counters_;

  // What is copied from the host waits in two halves of pinned memory; an event says when a half
  // may be written again.
  std::byte* staging_ = nullptr;
  std::array<cudaEvent_t, 2> half_free_{};
  std::size_t half_ = 0;
  std::size_t half_used_ = 0;

  // Scratch is taken from the last block; blocks are joined into one when nothing is in use.
  std::vector<Block> blocks_;
  std::size_t block_used_ = 0;
  int scratch_depth_ = 0;

  // Red zones of a checked stream.
  struct RedZone {
    std::size_t slice_bytes = 0;
    std::span<std::byte> bytes;
  };
  std::vector<RedZone> red_zones_;  // behind the slices that are in use
  std::string overwritten_;         // what synchronize() throws; empty: nothing
};

/// The stream of a context on a GPU. Does not synchronize the stream.
inline CudaStream& stream_of(const Context& context) {
  return static_cast<CudaStream&>(*context.device_stream());
}

/// Memory for an operation's own use, of the stream. What one operation leaves there the next one
/// may overwrite: both are in the order of the stream. Kept from one operation to the next, so
/// steady state allocates nothing.
class Scratch {
 public:
  explicit Scratch(const Context& context) : stream_(stream_of(context)) { stream_.open_scratch(); }
  ~Scratch() { stream_.close_scratch(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Uninitialized, at a multiple of 256 bytes.
  /// @throws BudgetError, DeviceMemoryError
  template <typename T>
  std::span<T> allocate(Index count) {
    return {reinterpret_cast<T*>(stream_.scratch(static_cast<std::size_t>(count) * sizeof(T))),
            static_cast<std::size_t>(count)};
  }

  /// A copy of what is on the host.
  template <typename T>
  std::span<T> upload(std::span<const T> from) {
    const std::span<T> to = allocate<T>(std::ssize(from));
    stream_.upload(std::as_bytes(from), std::as_writable_bytes(to).data());
    return to;
  }

 private:
  CudaStream& stream_;
};

}  // namespace sparsesync::cuda
