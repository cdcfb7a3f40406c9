// ctest: NEEDS EMULATED_CUDA
// compare on several GPUs: the GPUs that can access the memory of its workers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "analysis/compare/compare.h"
#include "analysis/launcher.h"
#include "analysis/trace/generate.h"
#include "tests/emulated_cuda/controls.h"

namespace sparsesync::testing {
namespace {

class ComparedOnDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    emulated_cuda::limits().reaches_all_memory = false;
    emulated_cuda::limits().reaches_peers = true;
    emulated_cuda::take_pools();
  }
  void TearDown() override { emulated_cuda::limits() = {}; }
};

// Four workers share three GPUs. The first and the last worker use GPU 0.
TEST_F(ComparedOnDevices, maps_its_pools_on_the_gpus_of_its_process) {
  emulated_cuda::limits().devices = 3;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("sparsesync_peers_" + std::to_string(::getpid()));
  const auto run = [&](int workers, std::optional<int> gpu) {
    GenerateOptions generated;
    generated.width = 4;
    generated.workers = workers;
    generated.steps = 1;
    write_trace(synthetic_trace(100, 0.1, 0.8, generated), folder, true);
    CompareOptions options;
    options.schemes = {"balanced"};
    options.repeat = 1;
    options.memory = 10'000'000;
    options.gpu = CompareOptions::Gpu{gpu};
    LocalWorkers local(workers, {});
    const CompareReport report = Comparison(local, Trace::open(folder), options).run();
    EXPECT_TRUE(report.schemes.at(0).correct) << report.schemes.at(0).first_difference;
    const std::vector<emulated_cuda::PoolAccess> pools = emulated_cuda::take_pools();
    EXPECT_EQ(std::ssize(pools), 2 * workers);
    std::set<std::pair<int, int>> mapped;
    for (const auto& [device, peers] : pools) {
      for (const int peer : peers) mapped.emplace(device, peer);
    }
    return mapped;
  };
  using Mapped = std::set<std::pair<int, int>>;
  EXPECT_EQ(run(4, std::nullopt), (Mapped{{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}}));
  EXPECT_EQ(run(2, std::nullopt), (Mapped{{0, 1}, {1, 0}}));
  EXPECT_EQ(run(2, 1), Mapped{});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sparsesync::testing
