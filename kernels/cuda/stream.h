// The CUDA implementation of DeviceStream, and the scratch memory of kernels.
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
  outside_range,   // An index code has an index outside its range.
  not_increasing,  // The indices of an index code do not increase.
  wrong_count,     // An index code has another number of indices than announced.
  no_row_there,    // A position holds no row.
  row_of_another,  // A row does not belong to its partition.
  not_in_union,    // Aggregate: the union lacks an index.
};

/// Host memory that kernels write a Fault to (record_fault()). The host reads it after a
/// synchronization. If several threads write, one of their faults remains.
using FaultWord = std::uint32_t;

/// A stream with staging memory for copies, scratch memory, and the word that kernels record faults
/// in.
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
  /// Returns the number of multiprocessors of the GPU.
  int multiprocessors() const { return multiprocessors_; }
  /// Returns the word that kernels record faults in.
  FaultWord* faults() const { return faults_; }
  /// Counts kernel launches.
  void count_launch(int launches = 1) {
    counters_.launches += launches;
    record_work();
  }
  /// Counts copies and fills.
  void count_copy(int copies = 1) {
    counters_.copies += copies;
    record_work();
  }

  /// Copies from the host. `from` may be reused immediately.
  void upload(std::span<const std::byte> from, std::byte* to);
  /// Copies to the host and waits for the copy.
  void download(std::span<const std::byte> from, std::byte* to);

  /// Times the work submitted to the stream during its lifetime, if the stream has DeviceTimes.
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

  /// Opens a scratch scope for an operation. Scopes may nest.
  void open_scratch() { ++scratch_depth_; }
  /// Closes the scratch scope. The operation no longer needs its scratch memory.
  void close_scratch() noexcept;
  /// Allocates scratch memory, aligned to 256 bytes, until the outermost scope closes. In a checked
  /// stream, a red zone follows each slice. If something was written there, synchronize() throws
  /// ContractError after the outermost operation and names the slice.
  /// @throws BudgetError, DeviceMemoryError
  std::byte* scratch(std::size_t bytes);

 private:
  static constexpr std::size_t kStagingBytes = std::size_t{1} << 18;  // per half

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
  cudaEvent_t end_ = nullptr;  // marks the end of all work so far
  DeviceTimes* times_ = nullptr;
  std::array<cudaEvent_t, 2> timing_{};  // null without DeviceTimes
  CancellationCheck* cancellation_check_ = nullptr;
  // Whether work was submitted since synchronize() last waited. Another stream's thread may set it,
  // when this stream is made to wait for an event.
  std::atomic<bool> has_work_ = true;
  FaultWord* faults_ = nullptr;
  Counters counters_;

  // Pinned memory for copies, in two halves. An event signals when a half may be reused.
  std::byte* staging_ = nullptr;
  std::array<cudaEvent_t, 2> half_free_{};
  std::size_t half_ = 0;
  std::size_t half_used_ = 0;

  // Scratch is allocated from the last block. Blocks are joined into one when no scratch is in use.
  std::vector<Block> blocks_;
  std::size_t block_used_ = 0;
  int scratch_depth_ = 0;

  // Red zones of a checked stream.
  struct RedZone {
    std::size_t slice_bytes = 0;
    std::span<std::byte> bytes;
  };
  std::vector<RedZone> red_zones_;  // red zones of the slices in use
  std::string overwritten_;         // message that synchronize() throws; empty: none
};

/// Returns the CUDA stream of a context on a GPU. Does not synchronize the stream.
inline CudaStream& stream_of(const Context& context) {
  return static_cast<CudaStream&>(*context.device_stream());
}

/// Temporary memory of an operation. The next operation on the stream may overwrite it; stream
/// order keeps both correct. Memory is kept between operations, so steady state allocates nothing.
class Scratch {
 public:
  explicit Scratch(const Context& context) : stream_(stream_of(context)) { stream_.open_scratch(); }
  ~Scratch() { stream_.close_scratch(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Allocates uninitialized memory, aligned to 256 bytes.
  /// @throws BudgetError, DeviceMemoryError
  template <typename T>
  std::span<T> allocate(Index count) {
    return {reinterpret_cast<T*>(stream_.scratch(static_cast<std::size_t>(count) * sizeof(T))),
            static_cast<std::size_t>(count)};
  }

  /// Copies data from the host into new scratch memory.
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
