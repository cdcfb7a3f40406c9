// What a worker's link to the others is taken for, in real time and on the virtual clock.
#pragma once

#include <cstdint>
#include <optional>

namespace sparsesync {

/// The link of each worker, in each direction.
struct LocalLink {
  std::optional<double> rate_bps;  // nothing: as fast as memory
  double latency_s = 0;
};

/// What comes in over a link that has a rate comes in chunks of so many bytes, in the order of
/// their arrival, whoever sent them.
inline constexpr std::int64_t kLinkChunkBytes = 16 * 1024;

}  // namespace sparsesync
