// Streams and events of a GPU, and the list of available GPUs.
#include "kernels/cuda/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernel_registry.h"
#include "kernels/rows/rows.h"

#if defined(SPARSESYNC_CUDA_EMULATED) && defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace sparsesync {

/// Owns a cudaEvent_t.
class Event::Handle {
 public:
  explicit Handle(int of_device) : device(of_device) {
    const DeviceGuard here(device);
    cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  }
  ~Handle() {
    cuda::on_device(device, [&] { cuda::ignore(cudaEventDestroy(event)); });
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  int device;
  cudaEvent_t event = nullptr;
};

}  // namespace sparsesync

namespace sparsesync::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

/// Size of a red zone, in addition to the padding that aligns the next slice of scratch.
constexpr std::size_t kRedZoneBytes = 256;
constexpr std::byte kRedZoneByte{0xEF};

/// Makes each access to a red zone an AddressSanitizer error. AddressSanitizer knows only the
/// memory of the emulated device.
void close_to_sanitizer(std::span<const std::byte> red_zone) {
#if defined(SPARSESYNC_CUDA_EMULATED) && defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(red_zone.data(), red_zone.size());
#else
  static_cast<void>(red_zone);
#endif
}
void open_to_sanitizer(std::span<const std::byte> red_zone) {
#if defined(SPARSESYNC_CUDA_EMULATED) && defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(red_zone.data(), red_zone.size());
#else
  static_cast<void>(red_zone);
#endif
}

/// @throws the exception for a fault
[[noreturn]] void throw_fault(Fault fault) {
  switch (fault) {
    case Fault::none:
      break;
    case Fault::outside_range:
      throw CorruptDataError("index code: an index is outside its range");
    case Fault::not_increasing:
      throw CorruptDataError("index code: indices do not increase");
    case Fault::wrong_count:
      throw CorruptDataError("index code: the number of indices differs from the announced number");
    case Fault::no_row_there:
      throw CorruptDataError("a position holds no row");
    case Fault::row_of_another:
      throw CorruptDataError("a row does not belong to this partition");
    case Fault::not_in_union:
      throw ContractError("aggregate: the union lacks an index of a part");
  }
  throw ContractError("unknown fault");
}

}  // namespace

CudaStream::CudaStream(MemoryResource& memory, MemoryResource& pinned,
                       const DeviceStreamOptions& options)
    : memory_(memory),
      pinned_(pinned),
      device_(options.device),
      checked_(options.checked),
      own_stream_(!options.stream),
      times_(options.times) {
  load_kernels(device_);
  const DeviceGuard here(device_);
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_),
        "querying the number of multiprocessors");
  if (options.stream) {
    stream_ = static_cast<cudaStream_t>(options.stream->handle);
    int of_stream = 0;
    check(cudaStreamGetDevice(stream_, &of_stream), "querying a stream's device");
    if (of_stream != device_) {
      throw InputError(
          fmt::format("the stream belongs to GPU {}, but the work is on GPU {}: pass a stream of "
                      "GPU {}, or none",
                      of_stream, device_, device_));
    }
  } else {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  for (cudaEvent_t* event : {&half_free_[0], &half_free_[1], &end_}) {
    check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
  }
  for (cudaEvent_t& event : timing_) {
    if (times_ == nullptr) break;
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), "creating an event");
  }
  staging_ = static_cast<std::byte*>(
      pinned_.allocate(2 * kStagingBytes + sizeof(std::uint32_t), kAlignment, stream()));
  faults_ = reinterpret_cast<FaultWord*>(staging_ + 2 * kStagingBytes);
  *faults_ = 0;
}

CudaStream::~CudaStream() {
  on_device(device_, [&] {
    ignore(cudaStreamSynchronize(stream_));
    release_scratch();
    pinned_.deallocate(staging_, 2 * kStagingBytes + sizeof(std::uint32_t), kAlignment, stream());
    for (const cudaEvent_t event : {half_free_[0], half_free_[1], end_}) {
      ignore(cudaEventDestroy(event));
    }
    for (const cudaEvent_t event : timing_) {
      if (event != nullptr) ignore(cudaEventDestroy(event));
    }
    if (own_stream_) ignore(cudaStreamDestroy(stream_));
  });
}

CudaStream::Timed::Timed(CudaStream& stream) : stream_(stream) {
  if (stream.times_ == nullptr) return;
  lock_ = std::unique_lock(stream.times_->one_at_a_time);
  // Exclude the work that this piece waits for, and the host's submission, from the time.
  check(cudaStreamSynchronize(stream.stream_), "waiting for the device");
  constexpr int kMicroseconds = 20;
  spin(stream, kMicroseconds);
  check(cudaEventRecord(stream.timing_[0], stream.stream_), "recording an event");
}

CudaStream::Timed::~Timed() {
  if (stream_.times_ == nullptr) return;
  float milliseconds = 0;
  // The next call reports the same failure.
  if (cudaEventRecord(stream_.timing_[1], stream_.stream_) != cudaSuccess ||
      cudaEventSynchronize(stream_.timing_[1]) != cudaSuccess ||
      cudaEventElapsedTime(&milliseconds, stream_.timing_[0], stream_.timing_[1]) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  stream_.times_->seconds += static_cast<double>(milliseconds) * 1e-3;
  ++stream_.times_->pieces;
}

void CudaStream::make_current() const {
  check(cudaSetDevice(device_), "selecting a device");
  // Otherwise calls such as cudaEventQuery() in this thread would invalidate a capture in another
  // thread.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "relaxing the capture mode");
}

void CudaStream::expect_reachable(const void* pointer, const char* what) const {
  if (pointer == nullptr) return;  // null pointer of an empty array
  cudaPointerAttributes found{};
  check(cudaPointerGetAttributes(&found, pointer), "querying the memory of a pointer");
  switch (found.type) {
    case cudaMemoryTypeManaged:
    case cudaMemoryTypeHost:
      return;
    case cudaMemoryTypeDevice:
      if (found.device == device_) return;
      throw InputError(
          fmt::format("{}: the memory is on GPU {}, but the work is on GPU {}: copy it there", what,
                      found.device, device_));
    default: {
      int reaches_all = 0;
      check(cudaDeviceGetAttribute(&reaches_all, cudaDevAttrPageableMemoryAccess, device_),
            "querying the memory that a device can access");
      if (reaches_all != 0) return;
      throw InputError(
          fmt::format("{}: the memory is on the host, but the work is on GPU {}: copy it there",
                      what, device_));
    }
  }
}

void CudaStream::synchronize() {
  if (!overwritten_.empty()) throw ContractError(std::exchange(overwritten_, {}));
  // Clear the flag before the wait, so that work that another thread records during the wait stays
  // recorded.
  if (!has_work_.exchange(false)) return;
  ++counters_.synchronizations;
  try {
    wait_for_all();
  } catch (...) {
    has_work_ = true;
    throw;
  }
  if (*faults_ == 0) return;
  const auto fault = static_cast<Fault>(*faults_);
  *faults_ = 0;
  throw_fault(fault);
}

void CudaStream::wait_for(const Event& event) {
  ++counters_.synchronizations;
  if (event.handle() != nullptr) wait_for_event(event.handle()->event);
}

/// Waits for all work submitted to the stream so far.
void CudaStream::wait_for_all() {
  if (cancellation_check_ == nullptr)
    return check(cudaStreamSynchronize(stream_), "waiting for the device");
  check(cudaEventRecord(end_, stream_), "recording an event");
  wait_for_event(end_);
}

/// Waits for an event. With a cancellation check, polls the event and the check.
void CudaStream::wait_for_event(cudaEvent_t event) {
  if (cancellation_check_ == nullptr)
    return check(cudaEventSynchronize(event), "waiting for the device");
  const Poll poll;
  while (true) {
    const cudaError_t result = cudaEventQuery(event);
    if (result == cudaSuccess) return;
    if (result != cudaErrorNotReady) check(result, "waiting for the device");
    poll.pause();
    cancellation_check_->poll(poll.since());
  }
}

/// Returns `bytes` bytes of staging memory that no copy in flight uses.
std::byte* CudaStream::next_staging(std::size_t bytes) {
  if (half_used_ + bytes > kStagingBytes) {
    check(cudaEventRecord(half_free_[half_], stream_), "recording an event");
    half_ = 1 - half_;
    half_used_ = 0;
    wait_for_event(half_free_[half_]);
  }
  std::byte* const room = staging_ + half_ * kStagingBytes + half_used_;
  half_used_ += round_up<std::size_t>(bytes, 16);
  return room;
}

void CudaStream::upload(std::span<const std::byte> from, std::byte* to) {
  while (!from.empty()) {
    const std::size_t bytes = std::min(from.size(), kStagingBytes);
    std::byte* const staged = next_staging(bytes);
    std::memcpy(staged, from.data(), bytes);
    const Timed timed(*this);
    check(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream_),
          "copying to the device");
    count_copy();
    from = from.subspan(bytes);
    to += bytes;
  }
}

void CudaStream::download(std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return synchronize();
  while (!from.empty()) {
    const std::size_t bytes = std::min(from.size(), kStagingBytes);
    std::byte* const staged = next_staging(bytes);
    {
      const Timed timed(*this);
      check(cudaMemcpyAsync(staged, from.data(), bytes, cudaMemcpyDeviceToHost, stream_),
            "copying to the host");
    }
    count_copy();
    synchronize();
    std::memcpy(to, staged, bytes);
    from = from.subspan(bytes);
    to += bytes;
  }
}

std::byte* CudaStream::scratch(std::size_t slice_bytes) {
  const std::size_t bytes =
      round_up(std::max<std::size_t>(slice_bytes, 1), kAlignment) + (checked_ ? kRedZoneBytes : 0);
  if (blocks_.empty() || block_used_ + bytes > blocks_.back().bytes) {
    // Like Buffer, allocate an eighth more than requested.
    const std::size_t slack = memory_.has_to_spare(bytes + bytes / 8) ? bytes / 8 : 0;
    const std::size_t wanted = round_up(std::max(bytes + slack, std::size_t{1} << 16), kAlignment);
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back(
        {static_cast<std::byte*>(memory_.allocate(wanted, kAlignment, stream())), wanted});
    block_used_ = 0;
  }
  std::byte* const taken = blocks_.back().data + block_used_;
  block_used_ += bytes;
  if (checked_) add_red_zone(taken, slice_bytes, bytes);
  return taken;
}

/// Fills the red zone after a slice.
/// @param with_zone  bytes from the start of the slice to the start of the next one
void CudaStream::add_red_zone(std::byte* slice, std::size_t bytes, std::size_t with_zone) {
  const std::span<std::byte> zone{slice + bytes, with_zone - bytes};
  check(cudaMemsetAsync(zone.data(), std::to_integer<int>(kRedZoneByte), zone.size(), stream_),
        "filling a red zone");
  wait_for_all();
  red_zones_.push_back({bytes, zone});
  close_to_sanitizer(zone);
}

/// Waits for the operation and searches the red zones for overwritten bytes.
void CudaStream::check_red_zones() noexcept {
  try {
    wait_for_all();
  } catch (const std::exception&) {
    // The device has failed: the next synchronization throws its error.
  }
  for (const RedZone& zone : red_zones_) open_to_sanitizer(zone.bytes);
  try {
    std::vector<std::byte> found;
    for (std::size_t slice = 0; slice < red_zones_.size() && overwritten_.empty(); ++slice) {
      const RedZone& zone = red_zones_[slice];
      found.resize(zone.bytes.size());
      check(cudaMemcpyAsync(found.data(), zone.bytes.data(), found.size(), cudaMemcpyDeviceToHost,
                            stream_),
            "reading a red zone");
      wait_for_all();
      const auto other = std::find_if(found.begin(), found.end(),
                                      [](std::byte byte) { return byte != kRedZoneByte; });
      if (other == found.end()) continue;
      overwritten_ = fmt::format(
          "scratch: a kernel wrote {} bytes past the end of slice {} of {}, which has {} "
          "bytes",
          other - found.begin(), slice + 1, red_zones_.size(), zone.slice_bytes);
    }
  } catch (const std::exception&) {
    // The device has failed: the next synchronization throws its error.
  }
  red_zones_.clear();
}

void CudaStream::close_scratch() noexcept {
  if (--scratch_depth_ > 0) return;
  if (checked_) check_red_zones();
  block_used_ = 0;
  if (blocks_.size() < 2) return;
  // Replace the blocks by one, so that the next operation allocates nothing.
  std::size_t all = 0;
  for (const Block& block : blocks_) all += block.bytes;
  release_scratch();
  try {
    blocks_.push_back({static_cast<std::byte*>(memory_.allocate(all, kAlignment, stream())), all});
  } catch (...) {
    // The next operation allocates what it needs, and throws if that fails.
    blocks_.clear();
  }
}

void CudaStream::release_scratch() noexcept {
  for (const Block& block : blocks_) {
    memory_.deallocate(block.data, block.bytes, kAlignment, stream());
  }
  blocks_.clear();
  block_used_ = 0;
}

}  // namespace sparsesync::cuda

namespace sparsesync {
namespace {

#if defined(SPARSESYNC_CUDA_EMULATED)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

/// Formats a version number of CUDA.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  cuda::push_context(device);
}

DeviceGuard::~DeviceGuard() {
  cuda::pop_context();
}

std::unique_ptr<DeviceStream> make_device_stream(MemoryResource& memory, MemoryResource& pinned,
                                                 const DeviceStreamOptions& options) {
  expect_device(options.device);
  return std::make_unique<cuda::CudaStream>(memory, pinned, options);
}

Event::Event(const Context& context) {
  if (context.device_stream() == nullptr) return;
  handle_ = std::make_unique<Handle>(context.device_stream()->device());
}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;

void Event::set(const Context& context) {
  if (!handle_) return;
  cuda::check(cudaEventRecord(handle_->event, cuda::stream_of(context).handle()),
              "recording an event");
}

void Event::set(Stream stream) {
  if (!handle_) return;
  const DeviceGuard here(handle_->device);  // a default stream belongs to this device
  cuda::check(cudaEventRecord(handle_->event, static_cast<cudaStream_t>(stream.handle)),
              "recording an event");
}

bool is_captured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle), &status),
              "querying whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

void Event::make_wait(const Context& context) const {
  if (!handle_) return;
  cuda::check(cudaStreamWaitEvent(cuda::stream_of(context).handle(), handle_->event, 0),
              "waiting for an event");
  context.device_stream()->record_work();
}

void Event::make_wait(Stream stream) const {
  if (!handle_) return;
  const DeviceGuard here(handle_->device);  // a default stream belongs to this device
  cuda::check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle), handle_->event, 0),
              "waiting for an event");
}

void Event::wait() const {
  if (handle_) cuda::check(cudaEventSynchronize(handle_->event), "waiting for an event");
}

void copy_from(const Context& source, std::span<const std::byte> from, const Context& context,
               std::byte* to) {
  if (source.device() == Device::cpu || context.device() == Device::cpu ||
      source.device_stream()->device() == context.device_stream()->device()) {
    return copy(context, from, to);
  }
  if (from.empty()) return;
  cuda::CudaStream& stream = cuda::stream_of(context);
  const cuda::CudaStream::Timed timed(stream);
  cuda::check(cudaMemcpyPeerAsync(to, stream.device(), from.data(),
                                  source.device_stream()->device(), from.size(), stream.handle()),
              "copying from another device");
  stream.count_copy();
}

DeviceFacts device_facts() {
  DeviceFacts facts;
  facts.compiled_in = true;
  facts.emulated = kEmulated;
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) facts.runtime_version = version;
  // Version 0 means that there is no driver.
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) facts.driver_version = version;
  const cudaError_t result = cudaGetDeviceCount(&facts.devices);
  if (result != cudaSuccess) {
    cudaGetLastError();
    facts.devices = 0;
  }
  if (!facts.driver_version) {
    facts.problem = "no GPU: this machine has no CUDA driver";
  } else if (result == cudaErrorInsufficientDriver) {
    facts.problem = fmt::format(
        "no GPU: the driver supports CUDA {}, but the library needs CUDA {}: install a newer "
        "driver",
        version_text(*facts.driver_version), version_text(facts.runtime_version.value_or(0)));
  } else if (result != cudaSuccess) {
    facts.problem = fmt::format("no GPU: {}", cudaGetErrorString(result));
  } else if (facts.devices == 0) {
    facts.problem = "no GPU: the driver finds no device";
  }
  return facts;
}

void expect_device(int device) {
  const DeviceFacts facts = device_facts();
  if (!facts.problem.empty()) throw DeviceError(facts.problem);
  if (device < 0 || device >= facts.devices) {
    throw DeviceError(
        fmt::format("no GPU {}: this machine has {}, numbered from 0", device, facts.devices));
  }
}

}  // namespace sparsesync
