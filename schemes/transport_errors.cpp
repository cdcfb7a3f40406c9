#include "schemes/transport_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/printable.h"

namespace sparsesync {

void throw_lost(Rank peer) {
  throw PeerLostError(peer, fmt::format("worker {} left while others wait for it", peer.value));
}

void throw_deadline(Rank self, std::vector<Rank> silent) {
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  std::vector<int> numbers;
  for (const Rank worker : silent) numbers.push_back(worker.value);
  throw DeadlineError(
      fmt::format("worker {0} waited for worker {1} until the deadline: see what worker {1} does, "
                  "or give a longer deadline (--deadline; in Python deadline=)",
                  self.value, fmt::join(numbers, ", ")));
}

void throw_aborted(Rank aborter, const std::string& reason) {
  throw AbortedError(
      aborter, fmt::format("worker {} ended the session: {}", aborter.value, printable(reason)));
}

}  // namespace sparsesync
