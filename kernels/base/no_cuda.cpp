// What a build without CUDA says of GPUs.
#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"
#include "kernels/rows/rows.h"

namespace sparsesync {

void expect_device(int) {
  throw DeviceError("this build has no CUDA: configure it with -DSPARSESYNC_CUDA=ON");
}

std::unique_ptr<DeviceQueue> make_device_queue(MemoryResource&, MemoryResource&,
                                               const DeviceQueueOptions& options) {
  expect_device(options.device);
  return nullptr;
}

DeviceGuard::DeviceGuard(int device) {
  expect_device(device);
}
DeviceGuard::~DeviceGuard() = default;

bool is_captured(Stream) {
  return false;
}

class Mark::Event {};

Mark::Mark(const Context&) {}
Mark::~Mark() = default;
Mark::Mark(Mark&&) noexcept = default;
void Mark::set(const Context&) {}
void Mark::set(Stream) {}
void Mark::make_wait(const Context&) const {}
void Mark::make_wait(Stream) const {}
void Mark::wait() const {}

void copy_from(const Context&, std::span<const std::byte> from, const Context& context,
               std::byte* to) {
  copy(context, from, to);
}

DeviceFacts device_facts() {
  return {false, false, std::nullopt, std::nullopt, 0, "this build has no CUDA"};
}

}  // namespace sparsesync
