// Sends the largest 1% of a dense gradient's elements in each step, and keeps the rest as a
// residual (DGC).
//   sparsifier
#include <sparsesync/memory.h>
#include <sparsesync/session.h>
#include <sparsesync/sparsifier.h>
#include <sparsesync/transports/local.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

using namespace sparsesync;

namespace {

constexpr Index kElements = 10'000;

void work(std::unique_ptr<Transport> transport) {
  HostMemory memory;
  Session session(std::move(transport), memory);
  // A sparsifier converts dense gradients to sparse gradients of the tensors that it lists.
  SparsifierOptions options;
  options.selecting = Selecting::top_k;
  const auto sparsifier =
      make_sparsifier(Context(memory), {{"weights", kElements, 1, DType::f32}}, options);
  const BucketId bucket = session.register_bucket({"top_k", sparsifier->crossing()});

  std::vector<float> gradient(kElements);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(step + 1));
    }
    const std::array<const std::byte*, 1> dense{std::as_bytes(std::span(gradient)).data()};
    SparsifierStep how;
    how.share = 0.01;  // fraction of the elements to send
    session.synchronize(bucket, sparsifier->take(dense, how));
    const TensorResult sum = session.result(bucket, 0);
    // Unsent elements are not lost. A later step sends them once they have grown.
    const std::span<const float> residual = sparsifier->residual(0);
    const double kept = std::transform_reduce(residual.begin(), residual.end(), 0.0, std::plus<>(),
                                              [](float value) { return std::abs(value); });
    if (session.rank() == Rank{0}) {
      std::printf("step %d: %zu elements of %lld are sent; the residual's L1 norm is %.1f\n", step,
                  sum.indices.size(), static_cast<long long>(kElements), kept);
    }
  }
}

}  // namespace

int main() {
  LocalNetwork network(2);
  std::jthread other(work, network.join(Rank{1}));
  work(network.join(Rank{0}));
}
