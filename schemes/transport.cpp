#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"
#include "schemes/transport.h"

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
          "message from worker {}: {} is {:#x} instead of {:#x}: the workers are out of step",
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

void throw_lost(Rank peer) {
  throw PeerLostError(peer, fmt::format("worker {} left while others wait for it", peer.value));
}

void throw_deadline(Rank self, std::vector<Rank> silent) {
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  std::vector<int> numbers;
  for (const Rank worker : silent) numbers.push_back(worker.value);
  throw DeadlineError(
      fmt::format("worker {0} waited for worker {1} until the deadline: check that worker {1} "
                  "runs, or set a longer deadline (--deadline, in Python deadline=, in C++ "
                  "SessionOptions::deadline)",
                  self.value, fmt::join(numbers, ", ")));
}

void throw_aborted(Rank aborter, const std::string& reason) {
  throw AbortedError(
      aborter, fmt::format("worker {} ended the session: {}", aborter.value, printable(reason)));
}

}  // namespace sparsesync
