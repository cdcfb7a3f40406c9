#include "sparsesync/transport.h"
#include "kernels/base/error.h"

#include <fmt/format.h>

namespace sparsesync {

void Transport::all_reduce(const Context&, DType, std::span<std::byte>, Clock::time_point) {
  throw ContractError("this transport has no all-reduce of its own");
}

std::int64_t all_reduce_bytes(std::int64_t bytes, int size) {
  return bytes / size * 2 * (size - 1) + bytes % size * 2 * (size - 1) / size;
}

void check_header(Rank from, const Header& expected, const Header& got) {
  const auto check = [&](const char* what, std::uint64_t want, std::uint64_t is) {
    if (want != is) {
      throw ProtocolError(fmt::format(
          "message from worker {}: {} {:#x} where {:#x} was expected: the workers are out of step",
          from.value, what, is, want));
    }
  };
  check("channel", expected.channel, got.channel);
  check("sequence", expected.sequence, got.sequence);
  check("signature", expected.signature, got.signature);
}

void expect_peer(Rank peer, Rank self, int size) {
  SPARSESYNC_EXPECT(peer.value, >=, 0);
  SPARSESYNC_EXPECT(peer.value, <, size);
  SPARSESYNC_EXPECT(peer.value, !=, self.value);
}

}  // namespace sparsesync
