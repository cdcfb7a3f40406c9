// What the tests of the Session share: buckets with inputs for all workers.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/session.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

inline const TensorSpec kTensor{"t", 200, 4, DType::f32};

/// A bucket's inputs for all workers, and their sum.
struct Case {
  Case(BucketSpec of, int size, std::uint64_t salt) : spec(std::move(of)) {
    Random random(seed() + salt);
    for (const TensorSpec& tensor : spec.tensors) sums.emplace_back(tensor);
    for (int worker = 0; worker < size; ++worker) {
      std::vector<OwnedGradient>& own = inputs.emplace_back();
      for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
        const Index rows = spec.tensors[t].rows;
        own.push_back(random_gradient(random, spec.tensors[t],
                                      distinct_rows(random, rows, random.below(rows / 2))));
        sums[t].add(own.back());
      }
    }
  }
  std::vector<Gradient> of(const Session& session) const {
    std::vector<Gradient> gradients;
    for (const OwnedGradient& own : inputs[static_cast<std::size_t>(session.rank().value)]) {
      gradients.push_back(own.view());
    }
    return gradients;
  }
  void check(Session& session, BucketId id) const {
    for (std::size_t t = 0; t < sums.size(); ++t) {
      EXPECT_EQ(sums[t].difference(session.result(id, t)), "")
          << spec.name << " on worker " << session.rank().value;
    }
  }
  BucketSpec spec;
  std::vector<std::vector<OwnedGradient>> inputs;
  std::vector<ExactSum> sums;
};

/// Four buckets of three schemes.
inline std::vector<Case> four_cases(int size) {
  std::vector<Case> cases;
  cases.emplace_back(BucketSpec{"a", {kTensor}, "balanced"}, size, 1);
  cases.emplace_back(BucketSpec{"b", {{"t", 50, 3, DType::f32}}, "dense_ring"}, size, 2);
  cases.emplace_back(
      BucketSpec{"c", {{"t", 300, 8, DType::bf16}, {"u", 90, 2, DType::f32}}, "all_gather"}, size,
      3);
  cases.emplace_back(BucketSpec{"d", {{"t", 120, 16, DType::f32}}, "balanced", Reduction::sum, 2},
                     size, 4);
  return cases;
}

inline std::vector<BucketId> register_all(Session& session, const std::vector<Case>& cases) {
  std::vector<BucketId> ids;
  for (const Case& each : cases) ids.push_back(session.register_bucket(each.spec));
  return ids;
}

}  // namespace sparsesync::testing
