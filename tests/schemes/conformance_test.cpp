// ctest: COST 20 DEVICES SHARDS 8 LIBRARIES sparsesync_toys SLOW exact_sums_on_every_shape
// The conformance suite of schemes, with threads as workers, and properties of schemes that need no
// network.
#include "tests/support/scheme_suite.h"

namespace sparsesync::testing {
namespace {

const std::array<std::vector<int>, 3> kSizes =
    kSanitized
        ? std::array<std::vector<int>, 3>{{{5}, {3}, {2}}}
        : std::array<std::vector<int>, 3>{{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 5, 8}, {3, 6}}};

INSTANTIATE_TEST_SUITE_P(local, SchemeSuite,
                         ::testing::ValuesIn(all_schemes_over(local_workers("local", {}), 9,
                                                              kSizes)),
                         [](const auto& each) { return each.param.variant.label; });

class Patterns : public ::testing::TestWithParam<SchemeVariant> {};

INSTANTIATE_TEST_SUITE_P(schemes, Patterns, ::testing::ValuesIn(scheme_variants()),
                         [](const auto& each) { return each.param.label; });

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const SchemeEntry& entry : all_schemes()) names.emplace_back(entry.name);
  return names;
}

// By the end of a reduce phase, information from each worker must have reached all others. Workers
// could otherwise not agree on a refused step.
TEST_P(Patterns, information_from_each_worker_reaches_all_in_the_reduce_phase) {
  HostMemory memory;
  const BucketSpec bucket = GetParam().bucket({{"t", 100, 4, DType::f32}});
  for (int size = 1; size <= 9; ++size) {
    if (!GetParam().fits(size)) continue;
    std::vector<Pattern> patterns;
    for (int rank = 0; rank < size; ++rank) {
      const auto scheme =
          GetParam().entry().create({Context(memory), &bucket, Rank{rank}, size, 1});
      patterns.push_back(scheme->pattern(Phase::reduce));
    }
    std::vector<std::vector<bool>> knows(static_cast<std::size_t>(size),
                                         std::vector<bool>(static_cast<std::size_t>(size)));
    for (std::size_t rank = 0; rank < knows.size(); ++rank) knows[rank][rank] = true;
    for (std::size_t step = 0; step < patterns[0].size(); ++step) {
      const auto before = knows;
      for (std::size_t rank = 0; rank < knows.size(); ++rank) {
        ASSERT_EQ(patterns[rank].size(), patterns[0].size());
        for (const Rank from : patterns[rank][step].from) {
          const auto& to = patterns[static_cast<std::size_t>(from.value)][step].to;
          EXPECT_TRUE(std::find(to.begin(), to.end(), Rank{static_cast<int>(rank)}) != to.end());
          for (std::size_t other = 0; other < knows.size(); ++other) {
            if (before[static_cast<std::size_t>(from.value)][other]) knows[rank][other] = true;
          }
        }
      }
    }
    for (const std::vector<bool>& of_rank : knows) {
      EXPECT_TRUE(std::all_of(of_rank.begin(), of_rank.end(), [](bool known) { return known; }))
          << size;
    }
  }
}

/// Returns the result of worker 0, converted to a dense tensor.
std::vector<float> dense_result(const BucketSpec& bucket, const Inputs& inputs) {
  const TensorSpec& tensor = bucket.tensors.front();
  std::vector<float> dense(static_cast<std::size_t>(tensor.rows * tensor.width));
  expect_no_errors(run_sessions(static_cast<int>(inputs.size()), [&](Session& session,
                                                                     HostMemory& memory) {
    const BucketId id = session.register_bucket(bucket);
    const auto rank = static_cast<std::size_t>(session.rank().value);
    session.synchronize(id, std::array{inputs[rank][0].view()});
    if (rank != 0) return;
    to_dense(Context(memory), session.result(id, 0),
             {reinterpret_cast<std::byte*>(dense.data()), tensor.dtype, tensor.rows, tensor.width});
  }));
  return dense;
}

TEST(AllGather, gives_the_same_bits_in_every_variant) {
  const TensorSpec tensor{"t", 400, 7, DType::f32};
  for (const int size : {2, 5, 8}) {
    Random random(seed());
    Inputs inputs;
    for (int worker = 0; worker < size; ++worker) {
      inputs.push_back({inexact_gradient(random, tensor, 200)});
    }
    const auto in_way = [&](Communication variant) {
      return dense_result({"b", {tensor}, "all_gather", Reduction::sum, 2, {variant}}, inputs);
    };
    EXPECT_EQ(in_way(Communication::hierarchy), in_way(Communication::ring)) << size;
    EXPECT_EQ(in_way(Communication::point_to_point), in_way(Communication::ring)) << size;
  }
}

TEST(RecursiveDoubling, sums_in_the_documented_order) {
  const TensorSpec tensor{"t", 60, 7, DType::f32};
  for (const auto& [size, paired] : {std::pair{1, 1}, {2, 2}, {3, 2}, {4, 4}, {7, 4}, {8, 8}}) {
    Random random(seed());
    Inputs inputs;
    std::vector<std::vector<float>> sums;
    for (int worker = 0; worker < size; ++worker) {
      inputs.push_back({inexact_gradient(random, tensor, 40)});
      const OwnedGradient& gradient = inputs.back()[0];
      std::vector<float>& own = sums.emplace_back(static_cast<std::size_t>(60 * 7));
      for (std::size_t i = 0; i < gradient.indices.size() * 7; ++i) {
        own[static_cast<std::size_t>(gradient.indices[i / 7]) * 7 + i % 7] =
            element_of<float>(gradient, i);
      }
    }
    const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    const auto half = static_cast<std::size_t>(paired);
    for (std::size_t rank = half; rank < sums.size(); ++rank) add(sums[rank - half], sums[rank]);
    for (std::size_t group = 1; group < half; group *= 2) {
      for (std::size_t first = 0; first < half; first += 2 * group) {
        add(sums[first], sums[first + group]);
      }
    }
    EXPECT_EQ(dense_result({"b", {tensor}, "recursive_doubling"}, inputs), sums[0]) << size;
  }
}

TEST(DenseDirect, sums_in_rank_order) {
  const TensorSpec tensor{"t", 61, 7, DType::f32};
  for (const int size : {1, 2, 3, 5, 8}) {
    Random random(seed());
    Inputs inputs;
    std::vector<float> sums(static_cast<std::size_t>(61 * 7));
    for (int worker = 0; worker < size; ++worker) {
      inputs.push_back({inexact_gradient(random, tensor, 40)});
      const OwnedGradient& gradient = inputs.back()[0];
      for (std::size_t i = 0; i < gradient.indices.size() * 7; ++i) {
        sums[static_cast<std::size_t>(gradient.indices[i / 7]) * 7 + i % 7] +=
            element_of<float>(gradient, i);
      }
    }
    for (const int rounds : {1, 3}) {
      EXPECT_EQ(dense_result({"b", {tensor}, "dense_direct", Reduction::sum, rounds}, inputs), sums)
          << size;
    }
  }
}

// Both schemes round each worker's gradient to the wire type, and add in rank order.
TEST(DenseDirect, gives_the_bits_of_sparse_ps_with_a_wire_type) {
  const TensorSpec tensor{"t", 61, 7, DType::f32};
  for (const int size : {2, 5}) {
    Random random(seed());
    Inputs inputs;
    for (int worker = 0; worker < size; ++worker) {
      inputs.push_back({inexact_gradient(random, tensor, 40)});
    }
    const auto with = [&](const char* scheme) {
      return dense_result({"b", {tensor}, scheme, Reduction::mean, 1, {.wire = DType::bf16}},
                          inputs);
    };
    EXPECT_EQ(with("dense_direct"), with("sparse_ps")) << size;
  }
}

// Ranges that are sent dense contain zeros for untouched rows. These rows must not be part of the
// result.
TEST(DynamicSplit, leaves_out_rows_that_no_worker_touched) {
  const TensorSpec tensor{"t", 100, 4, DType::f32};
  const int size = 4;
  for (const int rounds : {1, 3}) {
    expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
      const BucketId id =
          session.register_bucket({"b", {tensor}, "dynamic_split", Reduction::sum, rounds});
      // All workers touch nearly all of ranges 0 and 1. Range 2 is dense only in the union. Range 3
      // is sparse.
      std::vector<Index> rows;
      std::vector<Index> united;
      for (Index row = 0; row < 100; ++row) {
        const Index place = row % 25;
        if (row < 50 ? place != 7 : row < 75 ? place % 4 == session.rank().value : place == 3) {
          rows.push_back(row);
        }
        if (row < 50 ? place != 7 : row < 75 || place == 3) united.push_back(row);
      }
      const std::vector<float> values(rows.size() * 4, 1.0F);
      const Gradient gradient = Gradient::row_sparse(rows, std::as_bytes(std::span(values)).data());
      session.synchronize(id, std::array{gradient});
      const TensorResult result = session.result(id, 0);
      EXPECT_EQ(std::vector<Index>(result.indices.begin(), result.indices.end()), united);
      EXPECT_EQ(value_at(result.values.data, DType::f32, 4 * 6), 4);
    }));
  }
}

TEST(Registry, knows_its_schemes_and_lists_them) {
  EXPECT_GE(names().size(), 3U);
  const std::vector<std::string> sorted = names();
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
  try {
    scheme_named("telepathy");
    FAIL() << "an unknown scheme was found";
  } catch (const InputError& error) {
    for (const std::string& name : names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace sparsesync::testing
