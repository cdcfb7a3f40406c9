// Costs: what is expected from statistics is near what is counted from index sets; the grid is the
// cheapest one.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/memory.h"
#include "schemes/grid.h"
#include "schemes/scheme.h"
#include "tests/support/random.h"
#include "tests/support/scheme_variants.h"

namespace sparsesync::testing {
namespace {

struct Sets {
  std::vector<std::vector<Index>> rows;
  IndexSets views() const { return {rows.begin(), rows.end()}; }
};

Sets random_sets(Random& random, Index rows, int size, Index touched) {
  Sets sets;
  for (int worker = 0; worker < size; ++worker) {
    sets.rows.push_back(distinct_rows(random, rows, touched + random.below(touched / 10 + 1)));
  }
  return sets;
}

double busiest(const Traffic& traffic) {
  double most = 0;
  for (std::size_t worker = 0; worker < traffic.payload_sent.size(); ++worker) {
    const auto headers = static_cast<double>(kHeaderBytes * traffic.messages_sent[worker]);
    most = std::max({most, static_cast<double>(traffic.payload_sent[worker]) + headers,
                     static_cast<double>(traffic.payload_received[worker]) + headers});
  }
  return most;
}

TEST(Cost, expected_is_near_counted) {
  HostMemory memory;
  Random random(seed());
  const std::vector<TensorSpec> tensors{{"a", 50'000, 16, DType::f32},
                                        {"b", 9'000, 64, DType::f32}};
  for (const SchemeVariant& variant : scheme_variants()) {
    const SchemeEntry entry = variant.entry();
    for (const int size : {2, 4, 7, 8}) {
      if (!variant.fits(size)) continue;
      const BucketSpec bucket = variant.bucket(tensors);
      const auto scheme = entry.create({Context(memory), &bucket, Rank{0}, size, seed()});
      const Sets a = random_sets(random, 50'000, size, 2'000);
      const Sets b = random_sets(random, 9'000, size, 900);
      const std::vector<IndexSets> sets{a.views(), b.views()};
      const Statistics statistics{statistics_of(sets[0], 50'000), statistics_of(sets[1], 9'000)};
      scheme->adapt(statistics);
      const double counted = busiest(scheme->traffic(sets));
      const double expected =
          entry.cost({row_spaces(tensors), size, statistics, variant.options}).bytes_busiest();
      // Imbalance is a mean over keys: within 5% of this one; the ring's largest parts within 10%.
      EXPECT_NEAR(expected / counted, 1, 0.1) << variant.label << ", " << size << " workers";
    }
  }
}

TEST(Cost, one_worker_moves_nothing) {
  HostMemory memory;
  for (const SchemeVariant& variant : scheme_variants()) {
    if (!variant.fits(1)) continue;
    const SchemeEntry entry = variant.entry();
    const BucketSpec bucket = variant.bucket({{"t", 100, 4, DType::f32}});
    const auto scheme = entry.create({Context(memory), &bucket, Rank{0}, 1, 1});
    const std::vector<Index> rows{1, 2, 3};
    const Traffic traffic = scheme->traffic(std::vector<IndexSets>{{rows}});
    EXPECT_EQ(traffic.payload_sent[0], 0) << entry.name;
    EXPECT_EQ(traffic.messages_sent[0], 0) << entry.name;
    const Statistics statistics{{3, 3, 3}};
    EXPECT_EQ(
        entry.cost({row_spaces(bucket.tensors), 1, statistics, variant.options}).bytes_busiest(), 0)
        << entry.name;
  }
}

TEST(Cost, dense_ring_moves_2_n_minus_1_over_n_of_the_dense_bytes) {
  HostMemory memory;
  for (const int size : {2, 3, 4, 8}) {
    const BucketSpec bucket{"b", {{"t", 48, 7, DType::f32}}, "dense_ring", Reduction::sum, 1};
    const auto scheme =
        scheme_named("dense_ring").create({Context(memory), &bucket, Rank{0}, size, 1});
    const Traffic traffic = scheme->traffic({});
    for (const std::int64_t sent : traffic.payload_sent) {
      EXPECT_EQ(sent, 2 * (size - 1) * 48 * 7 * 4 / size) << size;
    }
  }
}

TEST(Cost, all_gather_moves_what_the_ring_formula_says) {
  HostMemory memory;
  Random random(seed());
  const int size = 5;
  const BucketSpec bucket{"b", {{"t", 1000, 8, DType::f32}}, "all_gather", Reduction::sum, 1};
  const auto scheme =
      scheme_named("all_gather").create({Context(memory), &bucket, Rank{0}, size, 1});
  const Sets sets = random_sets(random, 1000, size, 100);
  const Traffic traffic = scheme->traffic(std::vector<IndexSets>{sets.views()});
  for (std::size_t worker = 0; worker < 5; ++worker) {
    // Its own and all it passes on: everything but what its right neighbour had. 16 bytes of
    // numbers and at most 20 of alignment stand in each message.
    std::int64_t rows = 0;
    for (std::size_t other = 0; other < 5; ++other) {
      if (other != (worker + 1) % 5) rows += static_cast<std::int64_t>(sets.rows[other].size());
    }
    EXPECT_GE(traffic.payload_sent[worker], rows * (4 + 32));
    EXPECT_LE(traffic.payload_sent[worker], rows * (4 + 32) + 4 * 36);
    EXPECT_EQ(traffic.messages_sent[worker], 4);
  }
}

TEST(Messages, one_for_each_peer_and_phase_whatever_the_number_of_tensors) {
  HostMemory memory;
  std::vector<TensorSpec> many;
  for (int i = 0; i < 26; ++i)
    many.push_back({std::string("t").append(std::to_string(i)), 1000, 16, DType::f32});
  const std::vector<std::vector<TensorSpec>> buckets{
      {{"t", 26'000, 16, DType::f32}},
      many,
      {{"a", 100, 4, DType::f32}, {"b", 200, 32, DType::f32}, {"c", 300, 100, DType::f32}}};
  for (const SchemeVariant& variant : scheme_variants()) {
    if (!variant.fits(6)) continue;
    const SchemeEntry entry = variant.entry();
    for (const std::vector<TensorSpec>& tensors : buckets) {
      const BucketSpec bucket = variant.bucket(tensors);
      const auto scheme = entry.create({Context(memory), &bucket, Rank{0}, 6, 1});
      std::vector<IndexSets> sets;
      const std::vector<Index> rows{1, 5, 90};
      for (std::size_t i = 0; i < row_spaces(tensors).size(); ++i)
        sets.emplace_back(IndexSets(6, rows));
      const Traffic traffic = scheme->traffic(sets);
      std::size_t messages = 0;
      for (const Phase phase : {Phase::reduce, Phase::gather}) {
        for (const Step& step : scheme->pattern(phase)) messages += step.to.size();
      }
      for (const std::int64_t sent : traffic.messages_sent) {
        EXPECT_EQ(sent, static_cast<std::int64_t>(messages)) << entry.name;
      }
      if (entry.name == "balanced") {
        EXPECT_EQ(messages, 10U);
      }
    }
  }
}

TEST(Grid, divides_workers_and_width_and_keeps_slices_wide) {
  const auto slices = [](Index width, DType dtype, int size) {
    std::vector<int> all;
    for (const Grid grid : possible_grids({dtype, width, 1000, {}}, size)) {
      EXPECT_EQ(grid.row_groups * grid.column_slices, size);
      all.push_back(grid.column_slices);
    }
    return all;
  };
  EXPECT_EQ(slices(32, DType::f32, 16), (std::vector<int>{1, 2, 4, 8}));
  EXPECT_EQ(slices(128, DType::f32, 16), (std::vector<int>{1, 2, 4, 8, 16}));
  EXPECT_EQ(slices(32, DType::bf16, 16), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(slices(128, DType::f32, 7), (std::vector<int>{1}));
  EXPECT_EQ(slices(1, DType::f32, 16), (std::vector<int>{1}));
  EXPECT_EQ(slices(12, DType::f32, 12), (std::vector<int>{1, 2, 3}));
}

TEST(Grid, the_cheapest_is_the_cheapest) {
  const RowSpace space{DType::f32, 128, 793'471, {}};
  const SpaceStatistics statistics{1186, 1250, 5717};
  const Grid best = cheapest_grid(space, 8, statistics);
  for (const Grid grid : possible_grids(space, 8)) {
    EXPECT_LE(expected_cost(space, 8, statistics, best).bytes_busiest(),
              expected_cost(space, 8, statistics, grid).bytes_busiest());
  }
  // Few wide rows: columns divide evenly, rows do not.
  EXPECT_EQ(best.column_slices, 8);
  EXPECT_EQ(cheapest_grid({DType::f32, 1, 793'471, {}}, 8, statistics).column_slices, 1);
}

TEST(Statistics, the_largest_of_normal_numbers) {
  EXPECT_EQ(expected_largest_normal(1), 0);
  EXPECT_NEAR(expected_largest_normal(2), 0.5642, 0.03);
  EXPECT_NEAR(expected_largest_normal(8), 1.4236, 0.02);
  EXPECT_NEAR(expected_largest_normal(64), 2.3436, 0.03);
}

TEST(Cost, processors_handle_all_that_is_touched) {
  const std::vector<TensorSpec> tensors{{"t", 50'000, 16, DType::f32}};
  const std::vector<RowSpace> spaces = row_spaces(tensors);
  const double row = 16 * 4;
  const Statistics statistics{{2000, 2100, 6000}};
  const auto cost_of = [&](const char* scheme) {
    return scheme_named(scheme).cost({spaces, 4, statistics});
  };
  for (const char* scheme : {"balanced", "balanced_hash", "sparse_ps"}) {
    const Cost cost = cost_of(scheme);
    EXPECT_EQ(cost.reduce.encoded_bytes, 2100 * row) << scheme;
    EXPECT_NEAR(cost.reduce.aggregated_bytes, 2000 * row, 2000 * row * 0.05) << scheme;
    // Slices of columns come one by one to their places.
    const bool sliced = scheme == std::string("balanced");
    const double placed = sliced ? 6000 * row : 0;
    EXPECT_NEAR(cost.gather.encoded_bytes - placed, 1500 * row, 1500 * row * 0.05) << scheme;
    EXPECT_EQ(cost.gather.aggregated_bytes, 6000 * row) << scheme;
  }
  EXPECT_EQ(cost_of("all_gather").reduce.aggregated_bytes, 4 * 2000 * row);
  EXPECT_EQ(cost_of("all_gather").gather.aggregated_bytes, 0);
  EXPECT_EQ(cost_of("dense_ring").reduce.aggregated_bytes, 50'000 * row * 3 / 4);
}

TEST(Statistics, seconds_are_latency_and_bytes_of_each_phase) {
  Cost cost;
  cost.reduce = {3, 3, 1000, 2000};
  cost.gather = {1, 7, 500, 100};
  EXPECT_EQ(cost.bytes_busiest(), 2100);
  EXPECT_DOUBLE_EQ(cost.seconds({0.001, 8000}), 4 * 0.001 + 2.0 + 0.5);
  // Processors count where it is known what a byte costs them.
  cost.reduce.encoded_bytes = 300;
  cost.reduce.aggregated_bytes = 50;
  cost.gather.aggregated_bytes = 150;
  EXPECT_DOUBLE_EQ(cost.seconds({0.001, 8000}), 4 * 0.001 + 2.0 + 0.5);
  EXPECT_DOUBLE_EQ(cost.seconds({0.001, 8000, 0.01, 0.1}), 4 * 0.001 + 2.0 + 0.5 + 3 + 20);
  Cost twice = cost;
  twice += cost;
  EXPECT_DOUBLE_EQ(twice.seconds({0.001, 8000, 0.01, 0.1}),
                   2 * cost.seconds({0.001, 8000, 0.01, 0.1}));
}

}  // namespace
}  // namespace sparsesync::testing
