#include "schemes/transport.h"

#include <fmt/format.h>

namespace sparsesync {

void Transport::check_header(Rank from, const Header& expected, const Header& got) {
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

std::vector<Rank> peers_after(Rank rank, int size) {
  std::vector<Rank> peers;
  for (int step = 1; step < size; ++step) peers.push_back(Rank{(rank.value + step) % size});
  return peers;
}

}  // namespace sparsesync
