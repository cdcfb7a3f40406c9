// Stubs of GPU memory for a build without CUDA: expect_device() throws.
#include "kernels/base/device_stream.h"
#include "sparsesync/device.h"

namespace sparsesync {

DeviceMemory::DeviceMemory(int device, std::optional<std::int64_t> budget, std::span<const int>)
    : CountedMemory(budget), device_(device) {
  expect_device(device);
}
DeviceMemory::~DeviceMemory() = default;

void* DeviceMemory::obtain(std::size_t, std::size_t, Stream) {
  expect_device(device_);
  return nullptr;
}
void DeviceMemory::give_back(void*, std::size_t, std::size_t, Stream) noexcept {}

void* PinnedMemory::obtain(std::size_t, std::size_t, Stream) {
  expect_device(0);
  return nullptr;
}
void PinnedMemory::give_back(void*, std::size_t, std::size_t, Stream) noexcept {}

DeviceBytes device_bytes(int device) {
  expect_device(device);
  return {};
}

}  // namespace sparsesync
