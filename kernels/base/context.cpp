#include "kernels/base/context.h"

#include <span>

#include "kernels/base/device_stream.h"
#include "kernels/base/host_copy.h"

namespace sparsesync {

Context::Context(MemoryResource& memory, DeviceQueue& queue)
    : stream_(queue.stream()), memory_(&memory), queue_(&queue) {}

void synchronize(const Context& context) {
  if (context.queue() != nullptr) context.queue()->synchronize();
}

namespace detail {

void settle(const Context& context) {
  if (context.queue()->is_checked()) context.queue()->synchronize();
}

}  // namespace detail

std::int64_t resolve(const Context& context, Count count) {
  std::int64_t value = 0;
  fetch_numbers(context, {count.location(), 1}, {&value, 1});
  return value;
}

}  // namespace sparsesync
