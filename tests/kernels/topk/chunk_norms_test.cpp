// ctest: DEVICES
#include "kernels/topk/norms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/tree_reduction.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using ChunkNorms = OperationTest;

TEST_F(ChunkNorms, AreSumsOfAbsoluteValuesInTheReductionOrder) {
  Random random(testing::seed());
  for (const Index size : {0, 1, 31, 1000, 4097, 30000}) {
    std::vector<float> values;
    for (Index i = 0; i < size; ++i) values.push_back(static_cast<float>(random.uniform() - 0.5));
    for (const Index chunk : {1, 3, 32, 700, 5000, 17000}) {
      const Index count = (size + chunk - 1) / chunk;
      std::vector<double> norms(static_cast<std::size_t>(count), -1);
      chunk_norms(context_, values, chunk, norms);
      synchronize(context_);
      for (Index i = 0; i < count; ++i) {
        std::vector<double> sizes;
        for (Index at = i * chunk; at < std::min(size, (i + 1) * chunk); ++at) {
          sizes.push_back(std::abs(static_cast<double>(values[static_cast<std::size_t>(at)])));
        }
        ASSERT_EQ(bits_of(norms[static_cast<std::size_t>(i)]), bits_of(reduce_in_order(sizes)))
            << size << " elements, chunk " << i << " of " << chunk;
      }
    }
  }
}

TEST_F(ChunkNorms, RejectOtherNumbersOfChunks) {
  const std::vector<float> values(10);
  std::vector<double> norms(3);
  EXPECT_THROW(chunk_norms(context_, values, 3, norms), ContractError);
  EXPECT_THROW(chunk_norms(context_, values, 0, norms), ContractError);
}

}  // namespace
}  // namespace sparsesync
