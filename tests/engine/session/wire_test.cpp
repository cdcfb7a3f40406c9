// Narrower values on the wire than in the tensor. For every scheme, the sum is within the
// documented bound, its bits are equal on all workers, and overflow to infinity is always reported.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "tests/engine/session/session_cases.h"
#include "tests/support/scheme_variants.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

class Wire : public ::testing::TestWithParam<SchemeVariant> {
 protected:
  static BucketSpec bucket(const std::vector<TensorSpec>& tensors, DType wire, int rounds = 1) {
    BucketSpec spec = GetParam().bucket(tensors, rounds);
    spec.options.wire = wire;
    return spec;
  }
};

std::vector<SchemeVariant> local_variants() {
  std::vector<SchemeVariant> variants = scheme_variants();
  std::erase_if(variants, [](const SchemeVariant& variant) { return variant.entry().all_reduces; });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(schemes, Wire, ::testing::ValuesIn(local_variants()),
                         [](const auto& each) { return each.param.label; });

// Integers whose partial sums are all exact, in tensors of several dtypes at once.
TEST_P(Wire, integers_are_exact) {
  const std::vector<TensorSpec> tensors{{"a", 300, 8, DType::f32},
                                        {"b", 50, 8, DType::f64},
                                        {"c", 70, 3, DType::f32},
                                        {"d", 9, 8, DType::f32}};
  for (const DType wire : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<TensorSpec> of_wire = tensors;
    if (wire == DType::f16) of_wire.push_back({"e", 20, 8, DType::f16});
    for (const int size : {1, 2, 3, 5, 8}) {
      if (!GetParam().fits(size)) continue;
      for (const int rounds : {1, 3}) {
        const Case inputs(bucket(of_wire, wire, rounds), size, 0);
        expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
          SCOPED_TRACE(::testing::Message()
                       << name_of(wire) << " on the wire, " << size << " workers");
          const BucketId id = session.register_bucket(inputs.spec);
          synchronize(session, id, GetParam(), inputs.of(session), of_wire);
          inputs.check(session, id);
          for (std::size_t t = 0; t < of_wire.size(); ++t) {
            EXPECT_EQ(session.result(id, t).values.dtype, of_wire[t].dtype);
          }
          EXPECT_EQ(session.non_finite(id), 0);
        }));
      }
    }
  }
}

// The error bound is w · (n + 1) · Σ|x|, where w is the unit roundoff of the wire type. Each of n
// partial sums is rounded at most once, and the sum once more. If a scheme sends only values and
// final sums, the error is at most half of it.
TEST_P(Wire, sums_are_within_the_bound_and_the_same_on_all_workers) {
  const TensorSpec tensor{"t", 200, 16, DType::f32};
  for (const DType wire : {DType::f16, DType::bf16}) {
    const double roundoff = wire == DType::f16 ? 0x1p-11 : 0x1p-8;
    for (const int size : {1, 2, 4, 7}) {
      if (!GetParam().fits(size)) continue;
      Random random(seed());
      Inputs inputs;
      std::vector<double> sums(3200);
      std::vector<double> magnitudes(3200);
      for (int worker = 0; worker < size; ++worker) {
        OwnedGradient gradient;
        gradient.indices = distinct_rows(random, tensor.rows, 120);
        for (const Index row : gradient.indices) {
          for (Index column = 0; column < tensor.width; ++column) {
            const auto value = static_cast<float>(random.uniform() - 0.5);
            append_value(gradient.values, tensor.dtype, value);
            const auto at = static_cast<std::size_t>(row * tensor.width + column);
            sums[at] += value;
            magnitudes[at] += std::abs(value);
          }
        }
        inputs.push_back({std::move(gradient)});
      }
      std::mutex mutex;
      std::vector<std::vector<float>> all;
      expect_no_errors(run_sessions(size, [&](Session& session, HostMemory& memory) {
        const auto rank = static_cast<std::size_t>(session.rank().value);
        const BucketId id = session.register_bucket(bucket({tensor}, wire));
        synchronize(session, id, GetParam(), std::array{inputs[rank][0].view()}, {tensor});
        std::vector<float> dense(sums.size());
        to_dense(Context(memory), session.result(id, 0),
                 {reinterpret_cast<std::byte*>(dense.data()), DType::f32, 200, 16});
        const std::lock_guard lock(mutex);
        all.push_back(std::move(dense));
      }));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
      double largest_error = 0;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const double error = std::abs(static_cast<double>(all[0][i]) - sums[i]);
        EXPECT_LE(error, roundoff * (size + 1) * magnitudes[i] + 0x1p-23)
            << name_of(wire) << ", element " << i;
        largest_error = std::max(largest_error, error);
      }
      EXPECT_GT(largest_error, roundoff / 16) << "no value was rounded to " << name_of(wire);
      for (const std::vector<float>& other : all) EXPECT_EQ(other, all[0]);
    }
  }
}

TEST_P(Wire, an_overflow_is_reported_by_all_workers) {
  const TensorSpec tensor{"t", 10, 2, DType::f32};
  for (const int size : {1, 2, 3}) {
    if (!GetParam().fits(size)) continue;
    expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
      const BucketId id = session.register_bucket(bucket({tensor}, DType::f16));
      // With one worker, a value overflows f16; with several, a sum does.
      const float large = size == 1 ? 70'000.0F : 60'000.0F;
      const std::vector<float> values{large, 1, 2, 3};
      const std::vector<Index> rows{4, 7};
      const std::array gradients{
          Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(values.data()))};
      synchronize(session, id, GetParam(), gradients, {tensor});
      EXPECT_EQ(session.non_finite(id), 1) << "worker " << session.rank().value;
      const std::vector<float> small{1, 1, 2, 3};
      synchronize(
          session, id, GetParam(),
          std::array{Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(small.data()))},
          {tensor});
      EXPECT_EQ(session.non_finite(id), 0);
    }));
  }
}

TEST(NonFinite, is_counted_in_the_tensors_dtype_if_the_bucket_requests_it) {
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  for (const bool counts : {true, false}) {
    expect_no_errors(run_sessions(3, [&](Session& session, HostMemory&) {
      BucketSpec spec{"bucket", {{"t", 10, 2, DType::f32}, {"integers", 10, 1, DType::i32}}};
      spec.count_non_finite = counts;
      const BucketId id = session.register_bucket(spec);
      const std::vector<float> values{session.rank() == Rank{1} ? not_a_number : 1.0F, 1};
      const std::vector<Index> rows{4};
      const std::vector<std::int32_t> integers{7};
      session.synchronize(
          id, std::array{
                  Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(values.data())),
                  Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(integers.data()))});
      EXPECT_EQ(session.non_finite(id), counts ? 1 : 0) << "worker " << session.rank().value;
      const TensorResult sum = session.result(id, 0);
      ASSERT_EQ(sum.indices.size(), 1U);
      EXPECT_TRUE(std::isnan(reinterpret_cast<const float*>(sum.values.data)[0])) << "NaN was lost";
    }));
  }
}

TEST(WireType, is_checked) {
  const auto text = [](DType dtype, DType wire) -> std::string {
    BucketSpec spec{"b", {{"t", 5, 2, dtype}}};
    spec.options.wire = wire;
    try {
      validate(spec);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  for (const DType wire : {DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(text(DType::f64, wire), "");
    EXPECT_EQ(text(wire, wire), "");
    EXPECT_NE(text(DType::i32, wire).find("tensor 't'"), std::string::npos);
  }
  EXPECT_EQ(text(DType::f32, DType::bf16), "");
  EXPECT_NE(text(DType::f16, DType::f32).find("not narrower than its f16"), std::string::npos);
  EXPECT_NE(text(DType::f16, DType::bf16).find("not narrower"), std::string::npos);
  for (const DType wire : {DType::f64, DType::i32, DType::i64}) {
    EXPECT_NE(text(DType::f64, wire).find("use f32, f16 or bf16"), std::string::npos);
  }
}

}  // namespace
}  // namespace sparsesync::testing
