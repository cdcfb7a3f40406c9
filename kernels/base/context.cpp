#include "kernels/base/context.h"

#include <span>

#include "kernels/base/device_stream.h"
#include "kernels/base/host_copy.h"

namespace sparsesync {

Context::Context(MemoryResource& memory, DeviceStream& device_stream)
    : stream_(device_stream.stream()), memory_(&memory), device_stream_(&device_stream) {}

void synchronize(const Context& context) {
  if (context.device_stream() != nullptr) context.device_stream()->synchronize();
}

namespace detail {

void synchronize_if_checked(const Context& context) {
  if (context.device_stream()->is_checked()) context.device_stream()->synchronize();
}

}  // namespace detail

std::int64_t resolve(const Context& context, Count count) {
  std::int64_t value = 0;
  fetch_numbers(context, {count.location(), 1}, {&value, 1});
  return value;
}

}  // namespace sparsesync
