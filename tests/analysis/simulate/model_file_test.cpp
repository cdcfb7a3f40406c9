// MODEL.json: valid files are read, and invalid ones are rejected. Also tests interpolation and
// extrapolation of the union over numbers of workers.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "analysis/simulate/training_simulator.h"
#include "engine/planner/schedule/model_costs.h"
#include "kernels/base/error.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

Model read_text(const std::string& text) {
  const Scratch scratch;
  write_all(scratch / "m.json", text);
  return read_model(scratch / "m.json");
}

/// Returns the error message for a model with one layer.
std::string error_for(const std::string& layer) {
  try {
    read_text(R"({"name": "m", "layers": [)" + layer + "]}");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Model, SurvivesARoundTrip) {
  Model model{"two \"layers\"", {}};
  model.layers.push_back({"a", 0.1, 1.0 / 3, 4096});
  model.layers.push_back({"b", 1e-9, 0, 0, SparseGradient{100, 8, 12.5, {{2, 1.5}, {4, 2.25}}}});
  const Model read = read_text(model_json(model, {{"device", "none"}}));
  EXPECT_EQ(read.name, model.name);
  ASSERT_EQ(read.layers.size(), 2U);
  EXPECT_EQ(read.layers[0].name, "a");
  EXPECT_EQ(read.layers[0].forward_s, 0.1);
  EXPECT_EQ(read.layers[0].backward_s, 1.0 / 3);
  EXPECT_EQ(read.layers[0].bytes, 4096);
  EXPECT_FALSE(read.layers[0].sparse);
  ASSERT_TRUE(read.layers[1].sparse);
  EXPECT_EQ(read.layers[1].sparse->rows, 100);
  EXPECT_EQ(read.layers[1].sparse->width, 8);
  EXPECT_EQ(read.layers[1].sparse->nnz, 12.5);
  EXPECT_EQ(read.layers[1].sparse->densification, model.layers[1].sparse->densification);
}

TEST(Model, ErrorsNameInvalidValues) {
  const std::string good = R"("name": "l", "forward_s": 1, "backward_s": 2)";
  EXPECT_EQ(error_for("{" + good + R"(, "bytes": 4})"), "");
  const auto expect = [&](const std::string& layer, const std::string& part) {
    const std::string text = error_for(layer);
    EXPECT_NE(text.find(part), std::string::npos) << layer << ": '" << text << "'";
    EXPECT_EQ(text.find('\n'), std::string::npos);
  };
  expect("{" + good + "}", "not both or neither");
  expect("{" + good + R"(, "bytes": 4, "sparse": {"rows": 1, "width": 1, "nnz": 1}})",
         "not both or neither");
  expect("{" + good + R"(, "bytes": -4})", "bytes");
  expect(R"({"name": "l", "forward_s": -1, "backward_s": 2, "bytes": 4})", "forward_s");
  expect(R"({"name": "l", "forward_s": 1, "backward_s": 1e9, "bytes": 4})", "backward_s");
  expect(R"({"name": "l", "forward_s": 1, "bytes": 4})", "backward_s");
  expect("{" + good + R"(, "sparse": {"rows": 0, "width": 1, "nnz": 0}})", "rows");
  expect("{" + good + R"(, "sparse": {"rows": 9, "width": 1, "nnz": 10}})", "nnz");
  const auto densification = [&](const std::string& text) {
    return "{" + good + R"(, "sparse": {"rows": 99, "width": 1, "nnz": 10, "densification": )" +
           text + "}}";
  };
  EXPECT_EQ(error_for(densification(R"({"2": 1.5, "8": 3})")), "");
  expect(densification(R"({"2": 2.5})"), "from 1 to the number of workers");
  expect(densification(R"({"2": 1.9, "4": 1.5})"), "decreases");
  expect(densification(R"({"two": 1.5})"), "number of workers");
  const std::string twice = "{" + good + R"(, "bytes": 4}, {)" + good + R"(, "bytes": 4})";
  expect(twice, "names must be unique");
  EXPECT_THROW(read_text(R"({"name": "m", "layers": []})"), InputError);
  EXPECT_THROW(read_text("{"), InputError);
  EXPECT_THROW(read_model("/there/is/none.json"), InputError);
}

TEST(Model, ChangedFilesAreReadOrRejected) {
  Model model{"m", {}};
  model.layers.push_back({"a", 0.1, 0.2, 4096});
  model.layers.push_back({"b", 0.1, 0.2, 0, SparseGradient{100, 8, 12.5, {{2, 1.5}, {4, 2.25}}}});
  expect_changed_files_are_read_or_refused(model_json(model, {}), [](const std::string& bytes) {
    for (const ModelLayer& layer : read_text(bytes).layers) {
      if (layer.sparse) static_cast<void>(statistics_of(*layer.sparse, 64));
    }
  });
}

TEST(Model, TheUnionGrowsAsAPowerOfTheNumberOfWorkers) {
  const SparseGradient known{1'000'000, 8, 100, {{2, 1.5}, {8, 4.5}}};
  EXPECT_NEAR(known.united(1), 100, 1e-9);
  EXPECT_NEAR(known.united(2), 150, 1e-9);
  EXPECT_NEAR(known.united(8), 450, 1e-9);
  // On a logarithmic scale, 4 is halfway from 2 to 8, and 32 is as far beyond 8 as 8 is from 2.
  EXPECT_NEAR(known.united(4), 150 * std::sqrt(3.0), 1e-9);
  EXPECT_NEAR(known.united(32), 450 * 3, 1e-9);
  double before = 0;
  for (int workers = 1; workers < 1'000'000; workers = workers * 5 / 4 + 1) {
    const double united = known.united(workers);
    EXPECT_GE(united, before);
    EXPECT_LE(united, 1'000'000);
    before = united;
  }
  EXPECT_EQ(before, 1'000'000);
  // Without known unions, all workers are assumed to touch different rows.
  const SparseGradient unknown{1000, 8, 100};
  EXPECT_NEAR(unknown.united(3), 300, 1e-9);
  EXPECT_NEAR(unknown.united(30), 1000, 1e-9);
}

TEST(Model, StatisticsAreThoseOfTheGivenRows) {
  const SparseGradient gradient{1000, 8, 100, {{2, 1.5}, {4, 2}}};
  const SpaceStatistics statistics = statistics_of(gradient, 4);
  EXPECT_EQ(statistics.touched_mean, 100);
  EXPECT_EQ(statistics.touched_max, 100);
  EXPECT_NEAR(statistics.united, 200, 1e-9);
  ASSERT_EQ(statistics.united_in_groups.size(), 2U);
  EXPECT_NEAR(statistics.united_in_groups[1], 150, 1e-9);
}

}  // namespace
}  // namespace sparsesync
