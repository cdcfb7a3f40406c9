// Sums a sparse gradient over four workers. Each worker is a thread of this program.
//   threads
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <sparsesync/all_reduce.h>
#include <sparsesync/transports/local.h>

using namespace sparsesync;

namespace {

constexpr Index kRows = 1'000'000;  // rows of an embedding
constexpr Index kWidth = 2;

void work(int rank, std::unique_ptr<Transport> transport) {
  SparseAllReduce<float> all_reduce(std::move(transport), kRows, kWidth);
  // This worker's batch touched row 7, which all batches touch, and row 100 + rank.
  const std::vector<Index> indices{7, 100 + rank};
  const std::vector<float> values{1, 2, 3, 4};  // [indices.size(), kWidth]
  const SparseRows<float> sum = all_reduce(indices, values);
  // All workers get the same rows, in increasing order, with the same bits.
  std::printf("worker %d has %zu rows; row 7 is %g %g\n", rank, sum.indices.size(), sum.values[0],
              sum.values[1]);
}

}  // namespace

int main() {
  LocalNetwork network(4);
  std::vector<std::jthread> workers;
  for (int rank = 0; rank < 4; ++rank) workers.emplace_back(work, rank, network.join(Rank{rank}));
}
