// GPU functions of a build without CUDA.
#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"
#include "kernels/rows/rows.h"

namespace sparsesync {

void expect_device(int) {
  throw DeviceError("this build has no CUDA: configure it with -DSPARSESYNC_CUDA=ON");
}

std::unique_ptr<DeviceStream> make_device_stream(MemoryResource&, MemoryResource&,
                                                 const DeviceStreamOptions& options) {
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

class Event::Handle {};

Event::Event(const Context&) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
void Event::set(const Context&) {}
void Event::set(Stream) {}
void Event::make_wait(const Context&) const {}
void Event::make_wait(Stream) const {}
void Event::wait() const {}

void copy_from(const Context&, std::span<const std::byte> from, const Context& context,
               std::byte* to) {
  copy(context, from, to);
}

DeviceFacts device_facts() {
  return {false, false, std::nullopt, std::nullopt, 0, "this build has no CUDA"};
}

}  // namespace sparsesync
