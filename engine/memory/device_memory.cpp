// GPU memory and pinned host memory from the CUDA runtime.
#include "sparsesync/device.h"

#include <algorithm>
#include <limits>

#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"
#include "kernels/cuda/driver.h"

namespace sparsesync {
namespace {

/// CUDA does not allocate 0 bytes, so an empty allocation has 1 byte.
std::size_t at_least_one(std::size_t bytes) {
  return std::max<std::size_t>(bytes, 1);
}

}  // namespace

DeviceMemory::DeviceMemory(int device, std::optional<std::int64_t> budget,
                           std::span<const int> peers)
    : CountedMemory(budget), device_(device) {
  expect_device(device);
  for (const int peer : peers) expect_device(peer);
  const DeviceGuard here(device);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  cuda::check(cudaMemPoolCreate(&pool, &properties), "creating a pool of device memory");
  pool_ = pool;
  // The pool keeps freed memory. Returning it to the driver would synchronize the device.
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  cuda::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
              "setting a pool's release threshold");
  for (const int peer : peers) share_with(peer);
}

/// Maps the pool on a GPU with peer access, so that transports in this process can copy from it.
void DeviceMemory::share_with(int peer) const {
  if (peer == device_) return;
  int reaches = 0;
  cuda::check(cudaDeviceCanAccessPeer(&reaches, peer, device_), "querying peer access");
  if (reaches == 0) return;
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, peer},
                                 cudaMemAccessFlagsProtReadWrite};
  cuda::check(cudaMemPoolSetAccess(static_cast<cudaMemPool_t>(pool_), &access, 1),
              "granting peer access to a pool");
}

DeviceMemory::~DeviceMemory() {
  cuda::on_device(device_,
                  [&] { cuda::ignore(cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool_))); });
}

void* DeviceMemory::obtain(std::size_t bytes, std::size_t alignment, Stream stream) {
  SPARSESYNC_EXPECT(alignment, <=, std::size_t{256});
  const DeviceGuard here(device_);
  void* pointer = nullptr;
  cuda::check(
      cudaMallocFromPoolAsync(&pointer, at_least_one(bytes), static_cast<cudaMemPool_t>(pool_),
                              static_cast<cudaStream_t>(stream.handle)),
      "allocating device memory");
  return pointer;
}

void DeviceMemory::give_back(void* pointer, std::size_t, std::size_t, Stream stream) noexcept {
  cuda::on_device(device_, [&] {
    cuda::ignore(cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream.handle)));
  });
}

void* PinnedMemory::obtain(std::size_t bytes, std::size_t alignment, Stream) {
  SPARSESYNC_EXPECT(alignment, <=, std::size_t{256});
  void* pointer = nullptr;
  cuda::check(cudaHostAlloc(&pointer, at_least_one(bytes), cudaHostAllocDefault),
              "allocating pinned host memory");
  return pointer;
}

void PinnedMemory::give_back(void* pointer, std::size_t, std::size_t, Stream) noexcept {
  cuda::ignore(cudaFreeHost(pointer));
}

DeviceBytes device_bytes(int device) {
  expect_device(device);
  const DeviceGuard here(device);
  std::size_t available = 0;
  std::size_t total = 0;
  cuda::check(cudaMemGetInfo(&available, &total), "querying the device's memory");
  return {static_cast<std::int64_t>(available), static_cast<std::int64_t>(total)};
}

}  // namespace sparsesync
