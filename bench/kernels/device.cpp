#include "bench/kernels/device.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "bench/kernels/inputs.h"
#include "kernels/base/error.h"
#include "sparsesync/device.h"

#if defined(SPARSESYNC_WITH_CUDA)
#include <cuda_runtime.h>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernel_registry.h"
#endif

namespace sparsesync::bench {

namespace {

bool wants_cuda() {
  const char* const device =
      std::getenv("SPARSESYNC_BENCH_DEVICE");  // NOLINT(concurrency-mt-unsafe)
  if (device == nullptr) return false;
  if (std::string_view(device) != "cuda") {
    std::fprintf(stderr, "SPARSESYNC_BENCH_DEVICE is '%s'; set it to cuda or unset it\n", device);
    std::exit(2);  // NOLINT(concurrency-mt-unsafe): nothing has begun
  }
  try {
    expect_device(0);
  } catch (const DeviceError& error) {
    constexpr int kSkipped = 77;
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(kSkipped);  // NOLINT(concurrency-mt-unsafe)
  }
  return true;
}

}  // namespace

bool on_cuda() {
  static const bool wanted = wants_cuda();
  return wanted;
}

#if defined(SPARSESYNC_WITH_CUDA)

struct StreamClock::Events {
  Events() {
    for (cudaEvent_t* event : {&begin, &end}) {
      cuda::check(cudaEventCreateWithFlags(event, cudaEventDefault), "making an event");
    }
  }
  ~Events() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

void StreamClock::start() {
  if (!events_) return;
  cuda::check(
      cudaEventRecord(events_->begin, static_cast<cudaStream_t>(device_stream_->stream().handle)),
      "recording an event");
}

double StreamClock::stop() {
  if (!events_) return 0;
  cuda::check(
      cudaEventRecord(events_->end, static_cast<cudaStream_t>(device_stream_->stream().handle)),
      "recording an event");
  cuda::check(cudaEventSynchronize(events_->end), "waiting for the device");
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, events_->begin, events_->end), "timing");
  device_stream_->synchronize();  // throws errors of earlier operations
  return static_cast<double>(milliseconds) * 1e-3;
}

#else

struct StreamClock::Events {};
// NOLINTBEGIN(readability-convert-member-functions-to-static): of the others' shape
void StreamClock::start() {}
double StreamClock::stop() {
  return 0;
}
// NOLINTEND(readability-convert-member-functions-to-static)

#endif

StreamClock::StreamClock(DeviceStream* device_stream)
    : device_stream_(device_stream),
      events_(device_stream == nullptr ? nullptr : std::make_unique<Events>()) {}

StreamClock::~StreamClock() = default;

Workplace::Workplace(Index threads) {
  if (on_cuda()) {
    memory_ = std::make_unique<DeviceMemory>(0);
    pinned_ = std::make_unique<PinnedMemory>();
    device_stream_ = make_device_stream(*memory_, *pinned_);
    device_stream_->make_current();
    context_ = std::make_unique<Context>(*memory_, *device_stream_);
  } else {
    memory_ = std::make_unique<HostMemory>();
    threads_ = std::make_unique<Threads>(static_cast<int>(threads));
    context_ = std::make_unique<Context>(*memory_, *threads_);
  }
  clock_ = std::make_unique<StreamClock>(device_stream_.get());
}

Workplace::~Workplace() {
  for (const Block& block : blocks_) {
    memory_->deallocate(block.data, block.bytes, 256, context_->stream());
  }
}

std::byte* Workplace::take(std::size_t bytes) {
  auto* const data = static_cast<std::byte*>(memory_->allocate(bytes, 256, context_->stream()));
  blocks_.push_back({data, bytes});
  return data;
}

void Workplace::hold() {
#if defined(SPARSESYNC_WITH_CUDA)
  // a host submits a kernel in 3 us, and an operation has up to 25 kernels
  constexpr int kMicroseconds = 100;
  cuda::spin(cuda::stream_of(context()), kMicroseconds);
#endif
}

void timed(benchmark::internal::Benchmark* row) {
  constexpr int kIterations = 20;
  if (!on_cuda()) return;
  row->UseManualTime();
  row->Iterations(is_small() ? 1 : kIterations);
}

}  // namespace sparsesync::bench
