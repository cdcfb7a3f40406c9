// ctest: LABELS engine
// compare: it detects incorrect results, it skips schemes that do not fit into memory, and it
// reports the bytes that were actually sent.
#include "analysis/compare/compare.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "analysis/compare/rank_result.h"
#include "analysis/launcher.h"
#include "analysis/trace/generate.h"
#include "analysis/trace/safetensors.h"
#include "engine/planner/calibration/replay.h"
#include "engine/support/json.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"

namespace sparsesync::testing {
namespace {

/// Compares schemes with as many workers as the trace has, in this process.
CompareReport compared(const Trace& trace, const CompareOptions& options) {
  LocalWorkers workers(trace.header().workers, options.link);
  return Comparison(workers, trace, options).run();
}

/// The change that a broken scheme makes to a correct result.
enum class Mutation : std::uint8_t {
  none,
  drops_a_row,
  adds_a_row_twice,
  swaps_two_owners,
  loses_one_bit
};

/// `balanced`, with a wrong result on one worker only.
template <Mutation mutation>
class Mutant : public Scheme {
 public:
  explicit Mutant(const SchemeEnvironment& environment)
      : Scheme(environment), inner_(scheme_named("balanced").create(environment)) {}
  Pattern pattern(Phase phase) const override { return inner_->pattern(phase); }
  std::size_t pieces(Phase phase, Round round, std::size_t step) const override {
    return inner_->pieces(phase, round, step);
  }
  void reduce(Exchange& exchange, BucketInput& input) override { inner_->reduce(exchange, input); }
  void gather(Exchange& exchange) override {
    inner_->gather(exchange);
    results_.assign(inner_->result().begin(), inner_->result().end());
    if (rank_ == Rank{1}) mutate(results_.front());
  }
  void adapt(const Statistics& statistics) override { inner_->adapt(statistics); }
  std::vector<SpaceChoice> choices() const override { return inner_->choices(); }
  Traffic traffic(std::span<const IndexSets> sets) const override { return inner_->traffic(sets); }
  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    return inner_->imbalance(sets);
  }

 private:
  void mutate(SpaceResult& result) {
    const auto bytes = static_cast<std::size_t>(result.values.bytes());
    const auto row = static_cast<std::size_t>(result.values.row_bytes());
    copy_.assign(result.values.data, result.values.data + bytes);
    auto* const values = reinterpret_cast<float*>(copy_.data());
    if constexpr (mutation == Mutation::drops_a_row) {
      result.indices = result.indices.first(result.indices.size() - 1);
      --result.values.rows;
    } else if constexpr (mutation == Mutation::adds_a_row_twice) {
      for (Index column = 0; column < result.values.width; ++column) values[column] *= 2;
    } else if constexpr (mutation == Mutation::swaps_two_owners) {
      std::swap_ranges(copy_.begin(), copy_.begin() + static_cast<std::ptrdiff_t>(row),
                       copy_.end() - static_cast<std::ptrdiff_t>(row));
    } else if constexpr (mutation == Mutation::loses_one_bit) {
      // Within any tolerance, but the bits differ from those of the other workers.
      values[0] = std::nextafter(values[0], 1e30F);
    }
    result.values.data = copy_.data();
  }

  std::unique_ptr<Scheme> inner_;
  std::vector<std::byte> copy_;
};

template <Mutation mutation>
SchemeRegistration mutant(const char* name) {
  SchemeEntry entry = scheme_named("balanced");
  entry.name = name;
  entry.create = [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
    return std::make_unique<Mutant<mutation>>(environment);
  };
  return SchemeRegistration(entry);
}

/// Each test has a separate temporary folder.
class Compare : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    mutant<Mutation::none>("mutant_none");
    mutant<Mutation::drops_a_row>("mutant_drops");
    mutant<Mutation::adds_a_row_twice>("mutant_twice");
    mutant<Mutation::swaps_two_owners>("mutant_swaps");
    mutant<Mutation::loses_one_bit>("mutant_bit");
  }
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("sparsesync_compare_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Trace made_trace(int workers, int steps, Index rows = 3000, Index width = 8) {
    GenerateOptions options;
    options.width = width;
    options.workers = workers;
    options.steps = steps;
    write_trace(synthetic_trace(rows, 0.05, 0.8, options), folder_ / "trace", true);
    return Trace::open(folder_ / "trace");
  }

  /// Records a trace with values whose sum is inexact in every order of addition.
  Trace recorded_trace(int workers) {
    const TraceHeader header{{{"t", 100, 3, DType::f32}}, workers, 1, "test", 5};
    TraceWriter writer(folder_ / "recorded", header, false);
    for (int worker = 0; worker < workers; ++worker) {
      TracePart part;
      for (Index row = 0; row < 40; ++row) part.indices.push_back((row * 7 + worker) % 50);
      std::vector<float> values;
      for (int i = 0; i < 120; ++i) {
        values.push_back(static_cast<float>(worker + 1) / static_cast<float>(i % 17 + 3));
      }
      part.values.resize(values.size() * sizeof(float));
      std::memcpy(part.values.data(), values.data(), part.values.size());
      writer.write(Rank{worker}, 0, std::array{part});
    }
    writer.commit();
    return Trace::open(folder_ / "recorded");
  }

  static const SchemeFigures& figures(const CompareReport& report, const std::string& name) {
    for (const SchemeFigures& each : report.schemes) {
      if (each.name == name) return each;
    }
    throw std::runtime_error("no figures for " + name);
  }

  std::filesystem::path folder_;
};

TEST_F(Compare, reports_correct_schemes_as_correct) {
  for (const int workers : {1, 2, 5}) {
    CompareOptions options;
    options.schemes = {"dense_ring", "all_gather", "balanced", "mutant_none"};
    options.repeat = 2;
    const CompareReport report = compared(made_trace(workers, 3), options);
    ASSERT_EQ(report.schemes.size(), 4U);
    for (const SchemeFigures& each : report.schemes) {
      EXPECT_FALSE(each.skipped) << *each.skipped;
      EXPECT_TRUE(each.correct) << each.name << ": " << each.first_difference;
      EXPECT_EQ(each.bytes_total, each.bytes_index + each.bytes_values + each.messages * 32);
    }
  }
}

TEST_F(Compare, detects_a_worker_with_a_wrong_result) {
  for (const bool recorded : {false, true}) {
    CompareOptions options;
    options.repeat = 1;
    options.schemes = {"mutant_none", "mutant_drops", "mutant_twice", "mutant_swaps", "mutant_bit"};
    const CompareReport report = compared(recorded ? recorded_trace(3) : made_trace(3, 1), options);
    EXPECT_TRUE(figures(report, "mutant_none").correct)
        << figures(report, "mutant_none").first_difference;
    for (const char* name : {"mutant_drops", "mutant_twice", "mutant_swaps", "mutant_bit"}) {
      EXPECT_FALSE(figures(report, name).correct) << name << (recorded ? ", recorded" : ", made");
      EXPECT_FALSE(figures(report, name).first_difference.empty());
    }
    EXPECT_NE(figures(report, "mutant_twice").first_difference.find("worker 1, step 0"),
              std::string::npos)
        << figures(report, "mutant_twice").first_difference;
  }
}

TEST_F(Compare, skips_schemes_that_do_not_fit_with_a_reason) {
  CompareOptions options;
  options.schemes = {"dense_ring", "balanced"};
  options.repeat = 1;
  options.memory = 10'000'000;
  LocalWorkers workers(3, {});
  Comparison comparison(workers, made_trace(3, 1, 200'000, 16), options);
  const std::vector<MemoryNeed> needs = comparison.memory_needs();
  ASSERT_EQ(needs.size(), 2U);
  EXPECT_TRUE(needs[0].skipped);
  EXPECT_GE(needs[0].bytes_of_a_worker, 200'000 * 16 * 4.0);
  const CompareReport report = comparison.run();
  ASSERT_TRUE(figures(report, "dense_ring").skipped);
  EXPECT_NE(figures(report, "dense_ring").skipped->find("10000000"), std::string::npos);
  // 10,000 rows of 64 bytes fit. If the session found that they do not, it would report a reason,
  // too.
  EXPECT_FALSE(figures(report, "balanced").skipped) << *figures(report, "balanced").skipped;
  EXPECT_TRUE(figures(report, "balanced").correct);
  EXPECT_LE(figures(report, "balanced").memory_bytes, 10'000'000);
}

TEST_F(Compare, a_budget_that_turns_out_too_small_during_the_run_also_skips) {
  CompareOptions options;
  options.schemes = {"balanced"};
  options.repeat = 1;
  LocalWorkers workers(2, {});
  Comparison probe(workers, made_trace(2, 1), options);
  const double need = probe.memory_needs()[0].bytes_of_a_worker;
  const std::int64_t used = probe.run().schemes[0].memory_bytes;
  ASSERT_GT(used, 0);
  // The prediction has the same order of magnitude as the actual use.
  EXPECT_LT(need, 4.0 * static_cast<double>(used) + 1e5);
  EXPECT_GT(need * 4 + 1e5, static_cast<double>(used));
}

TEST_F(Compare, inputs_and_reference_sums_count_before_they_are_created) {
  const auto expect_all_skipped = [&](Index width, std::optional<std::int64_t> memory) {
    TraceWriter writer(folder_ / "wide", {{{"t", 4, width, DType::f32}}, 2, 1, "test", 5}, true);
    TracePart part;
    part.indices.push_back(3);  // one row, which both workers touch
    for (int worker = 0; worker < 2; ++worker) writer.write(Rank{worker}, 0, std::array{part});
    writer.commit();
    CompareOptions options;
    options.schemes = {"all_gather", "balanced"};
    options.scheme_options.block = 1 << 20;  // so that few blocks are counted
    options.repeat = 1;
    options.memory = memory;
    LocalWorkers workers(2, {});
    Comparison comparison(workers, Trace::open(folder_ / "wide"), options);
    std::vector<MemoryNeed> needs = comparison.memory_needs();
    for (const MemoryNeed& need : needs) {
      EXPECT_NE(need.skipped.value_or("not skipped").find("reference sums"), std::string::npos)
          << need.scheme << ": " << need.skipped.value_or("not skipped");
      if (!need.skipped) return needs;  // a run would allocate the memory
    }
    for (const SchemeFigures& each : comparison.run().schemes) EXPECT_TRUE(each.skipped);
    return needs;
  };
  // A reference sum has 16 bytes per element and an input has 4. Three inputs are in memory at a
  // time, so they need 28 bytes together. Workspaces have 24 bytes and would fit on their own.
  const double to_give = 0.8 * static_cast<double>(available_memory());
  const std::vector<MemoryNeed> needs =
      expect_all_skipped(static_cast<Index>(to_give / 40), std::nullopt);
  for (const MemoryNeed& need : needs) EXPECT_LT(2 * need.bytes_of_a_worker, 0.8 * to_give);
  // Per worker, 16 / 2 + 4 * 3 / 2 = 14 bytes per element.
  expect_all_skipped(Index{1} << 28U, std::int64_t{3} << 30U);
}

TEST_F(Compare, a_step_that_exceeds_the_budget_runs_in_rounds) {
  constexpr int kSize = 3;
  {
    // All workers touch the same rows, so most of the memory is for the push.
    TraceWriter writer(folder_ / "same", {{{"t", 50'000, 256, DType::f32}}, kSize, 1, "test", 5},
                       false);
    TracePart part;
    for (Index row = 0; row < 7000; ++row) part.indices.push_back(7 * row);
    for (int worker = 0; worker < kSize; ++worker) {
      writer.write(Rank{worker}, 0, std::array{part});
    }
    writer.commit();
  }
  CompareOptions options;
  options.schemes = {"balanced"};
  options.repeat = 1;
  LocalWorkers workers(kSize, {});
  const auto compared_within = [&](std::int64_t memory) {
    options.memory = memory;
    return Comparison(workers, Trace::open(folder_ / "same"), options);
  };
  const double need = compared_within(1 << 30).memory_needs()[0].bytes_of_a_worker;
  const CompareReport report = compared_within(static_cast<std::int64_t>(need * 0.85)).run();
  const SchemeFigures& found = figures(report, "balanced");
  ASSERT_FALSE(found.skipped) << *found.skipped;
  EXPECT_TRUE(found.correct);
  EXPECT_GT(found.rounds, 1);
  EXPECT_LE(found.memory_bytes, *options.memory);
}

TEST_F(Compare, runs_each_scheme_once_and_reports_unknown_ones) {
  CompareOptions options;
  options.schemes = {"balanced", "balanced"};
  options.repeat = 1;
  EXPECT_EQ(compared(made_trace(2, 1), options).schemes.size(), 1U);
  options.schemes = {"telepathy"};
  EXPECT_THROW(compared(made_trace(2, 1), options), InputError);
}

TEST_F(Compare, rejects_a_trace_with_another_number_of_workers) {
  LocalWorkers workers(3, {});
  EXPECT_THROW(Comparison(workers, made_trace(2, 1), {}), InputError);
}

TEST_F(Compare, one_recorded_run_serves_many_links) {
  CompareOptions options;
  options.schemes = {"dense_ring", "all_gather", "balanced"};
  options.repeat = 2;
  options.clock = CompareClock::replayed;
  options.link = {1e6, 1e-3};
  LocalWorkers workers(4, {});
  const CompareReport report = Comparison(workers, made_trace(4, 2), options).run();
  for (const SchemeFigures& each : report.schemes) {
    EXPECT_TRUE(each.correct) << each.first_difference;
    ASSERT_NE(each.recorded, nullptr);
    EXPECT_EQ(each.recorded->recorded.size(), 4U);
    const StepTimes same = replayed_times(*each.recorded, options.link);
    EXPECT_EQ(same.median, each.seconds_median);
    EXPECT_EQ(same.min, each.seconds_min);
    EXPECT_GE(each.seconds_min, each.bytes_busiest() * 8 / 1e6);
    // At ten times the rate, a slow link takes nearly a tenth of the time.
    const StepTimes faster = replayed_times(*each.recorded, {10e6, 1e-3});
    EXPECT_GE(faster.min, each.bytes_busiest() * 8 / 10e6);
    EXPECT_LT(faster.min, each.seconds_min);
    EXPECT_GT(replayed_times(*each.recorded, {}).min, 0);
  }
  // A run on the real clock has no recording.
  options.clock = CompareClock::real;
  options.link = {};
  const SchemeFigures real = compared(made_trace(4, 2), options).schemes.front();
  EXPECT_EQ(real.recorded, nullptr);
  EXPECT_THROW(replayed_times({2, {}}, {}), InputError);
  EXPECT_THROW(replayed_times({2, {{}, {}, {}}}, {}), InputError);
}

TEST(WorkerRecords, survive_a_round_trip) {
  WorkerRecord record;
  record.steps = {{Clock::time_point{std::chrono::seconds(5)},
                   Clock::time_point{std::chrono::seconds(7)}, 1, 2, 3, 4, 5, ~std::uint64_t{0}}};
  record.first_difference = "worker 1, \xff";
  record.memory_bytes = 1 << 20;
  record.choices = {{"elias_fano", 2, 4}, {"", std::nullopt, std::nullopt}};
  record.imbalances = {{1.25, 1.5}};
  const WorkerRecord arrived = record_from(text_of(record));
  ASSERT_EQ(arrived.steps.size(), 1U);
  EXPECT_EQ(arrived.steps[0].end - arrived.steps[0].begin, std::chrono::seconds(2));
  EXPECT_EQ(arrived.steps[0].index_bytes_sent, 4);
  EXPECT_EQ(arrived.steps[0].non_finite, 5);
  EXPECT_EQ(arrived.steps[0].bits, ~std::uint64_t{0});
  EXPECT_EQ(arrived.first_difference->substr(0, 10), "worker 1, ");
  EXPECT_EQ(arrived.memory_bytes, 1 << 20);
  ASSERT_EQ(arrived.choices.size(), 2U);
  EXPECT_EQ(arrived.choices[0].column_slices, 4);
  EXPECT_FALSE(arrived.choices[1].row_groups);
  EXPECT_EQ(arrived.imbalances.at(0).pull, 1.5);
  EXPECT_FALSE(arrived.refusal);
  EXPECT_THROW(record_from("{"), ProtocolError);
  EXPECT_THROW(record_from("{}"), ProtocolError);
}

TEST_F(Compare, writes_the_result_of_every_worker) {
  CompareOptions options;
  options.schemes = {"dense_ring", "balanced"};
  options.repeat = 1;
  options.result = folder_ / "results";
  const Trace trace = made_trace(3, 2);
  compared(trace, options);
  for (const char* scheme : {"dense_ring", "balanced"}) {
    for (int worker = 0; worker < 3; ++worker) {
      for (int step = 0; step < 2; ++step) {
        const auto file = SafetensorsFile::open(folder_ / "results" / scheme /
                                                trace_file_name(Rank{worker}, step));
        const SafetensorsEntry* indices = file.find("embedding.indices");
        const SafetensorsEntry* values = file.find("embedding.values");
        ASSERT_NE(indices, nullptr);
        ASSERT_NE(values, nullptr);
        EXPECT_EQ(indices->dtype, "I64");
        EXPECT_EQ(values->dtype, "F32");
        EXPECT_EQ(values->shape, (std::vector<Index>{indices->shape[0], 8}));
      }
    }
  }
  EXPECT_THROW(compared(trace, options), InputError) << "the output folder exists already";
  options.force = true;
  compared(trace, options);
}

}  // namespace
}  // namespace sparsesync::testing
