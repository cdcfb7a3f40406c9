#include "python/bindings/link.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/base/error.h"

namespace sparsesync::python {

LocalLink link_of(const std::optional<double>& rate_bps, double latency_s) {
  if (rate_bps && !(*rate_bps >= 1 && std::isfinite(*rate_bps))) {
    throw InputError(fmt::format("a rate of {} bits/s: give 1 or more", *rate_bps));
  }
  constexpr double kMost = 3600;
  if (!(latency_s >= 0 && latency_s <= kMost)) {
    throw InputError(fmt::format("a latency of {} s: give 0 to {}", latency_s, kMost));
  }
  return {rate_bps, latency_s};
}

}  // namespace sparsesync::python
