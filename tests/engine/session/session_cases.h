// Support for tests of the Session: buckets with inputs for all workers, and their sums.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "sparsesync/session.h"
#include "tests/support/gradients.h"

namespace sparsesync::testing {

inline const TensorSpec kTensor{"t", 200, 4, DType::f32};

/// The inputs of a bucket for all workers in a step, and their sum.
struct Case {
  /// Each worker touches some rows, at most half of them.
  Case(BucketSpec of, int size, std::uint64_t salt) : Case(std::move(of)) {
    Random random(seed() + salt);
    add_inputs(random, size,
               [&](const TensorSpec& tensor) { return random.below(tensor.rows / 2); });
  }
  /// Each worker touches `rows` rows of each tensor.
  Case(BucketSpec of, int size, Random& random, Index rows) : Case(std::move(of)) {
    add_inputs(random, size, [&](const TensorSpec&) { return rows; });
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
  /// Runs this worker's part of the step and checks the sum.
  void synchronize(Session& session, BucketId id) const {
    session.synchronize(id, of(session));
    check(session, id);
  }

  BucketSpec spec;
  std::vector<std::vector<OwnedGradient>> inputs;  // [worker][tensor]
  std::vector<ExactSum> sums;                      // [tensor]

 private:
  explicit Case(BucketSpec of) : spec(std::move(of)) {
    for (const TensorSpec& tensor : spec.tensors) sums.emplace_back(tensor);
  }

  template <typename Count>
  void add_inputs(Random& random, int size, const Count& rows_of) {
    for (int worker = 0; worker < size; ++worker) {
      std::vector<OwnedGradient>& own = inputs.emplace_back();
      for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
        const TensorSpec& tensor = spec.tensors[t];
        const Index rows = rows_of(tensor);
        own.push_back(random_gradient(random, tensor, distinct_rows(random, tensor.rows, rows)));
        sums[t].add(own.back());
      }
    }
  }
};

/// Returns four buckets with three schemes.
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

/// A source that returns the same gradients in each step and counts the calls.
class CountingSource : public GradientSource {
 public:
  explicit CountingSource(std::vector<Gradient> gradients) : gradients_(std::move(gradients)) {}

  std::span<const Gradient> gradients() override {
    ++calls;
    thread = std::this_thread::get_id();
    if (error) std::rethrow_exception(error);
    return gradients_;
  }

  int calls = 0;
  std::thread::id thread;    // thread of the last call
  std::exception_ptr error;  // exception that the next calls throw

 private:
  std::vector<Gradient> gradients_;
};

/// Does the same as Session::synchronize().
inline void synchronize_from(Session& session, BucketId id, GradientSource& source) {
  const Session::Ticket reduced = session.submit(id, source);
  const Session::Ticket gathered = session.submit(id, Phase::gather);
  std::exception_ptr error;
  try {
    session.wait(gathered);
  } catch (...) {
    error = std::current_exception();
  }
  session.wait(reduced);
  if (error) std::rethrow_exception(error);
}

inline std::vector<BucketId> register_all(Session& session, const std::vector<Case>& cases) {
  std::vector<BucketId> ids;
  for (const Case& each : cases) ids.push_back(session.register_bucket(each.spec));
  return ids;
}

}  // namespace sparsesync::testing
