#include "schemes/transport_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace sparsesync {

void throw_lost(Rank peer) {
  throw PeerLostError(peer, fmt::format("worker {} left while others wait for it", peer.value));
}

void throw_deadline(Rank self, std::vector<Rank> silent) {
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  std::vector<int> numbers;
  for (const Rank worker : silent) numbers.push_back(worker.value);
  throw DeadlineError(fmt::format(
      "worker {} waited for worker {} until the deadline: raise --deadline or look there",
      self.value, fmt::join(numbers, ", ")));
}

void throw_aborted(Rank aborter, const std::string& reason) {
  throw AbortedError(aborter,
                     fmt::format("worker {} ended the session: {}", aborter.value, reason));
}

}  // namespace sparsesync
