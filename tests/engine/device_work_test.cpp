// What a synchronization asks of a worker's device: launches of kernels, waits of the host and
// workspace, for gradients like those of a language model's embedding. Counts are the same on every
// machine, so they are held where there is no GPU, too: on the emulated one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

constexpr int kSize = 8;
constexpr Index kRows = 793'471;  // of the embedding of LM1B's vocabulary
constexpr Index kTokens = 2560;   // of a worker and step

/// Gradients of all workers, and their sum.
struct Gradients {
  /// Tokens by Zipf's law with an exponent of 1: ranks are spread evenly over the logarithms.
  explicit Gradients(Index width, std::uint64_t salt = 0)
      : tensor{"embedding", kRows, width, DType::f32}, sum(tensor) {
    Random random(seed() + salt);
    std::vector<Index> united;
    for (int worker = 0; worker < kSize; ++worker) {
      std::vector<Index> rows;
      for (Index token = 0; token < kTokens; ++token) {
        const double rank = std::pow(static_cast<double>(kRows), random.uniform());
        rows.push_back(std::min(static_cast<Index>(rank) - 1, kRows - 1));
      }
      std::sort(rows.begin(), rows.end());
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
      touched += static_cast<double>(rows.size()) / kSize;
      united.insert(united.end(), rows.begin(), rows.end());
      of.push_back(random_gradient(random, tensor, std::move(rows)));
    }
    std::sort(united.begin(), united.end());
    united.erase(std::unique(united.begin(), united.end()), united.end());
    in_union = static_cast<double>(united.size());
  }

  TensorSpec tensor;
  std::vector<OwnedGradient> of;  // [worker]
  double touched = 0;             // rows, by the mean worker
  double in_union = 0;
  ExactSum sum;
};

/// What a phase took.
struct PhaseWork {
  DeviceQueue::Counters counted;
  std::string name;
};

DeviceQueue::Counters difference(const DeviceQueue::Counters& after,
                                 const DeviceQueue::Counters& before) {
  return {after.launches - before.launches, after.copies - before.copies,
          after.synchronizations - before.synchronizations};
}

/// In words, what a phase takes beyond an aim; "" if nothing.
std::string excess(const PhaseWork& work, std::int64_t launches, std::int64_t synchronizations) {
  if (work.counted.launches <= launches && work.counted.synchronizations <= synchronizations) {
    return "";
  }
  return work.name + ": " + std::to_string(work.counted.launches) + " launches, " +
         std::to_string(work.counted.synchronizations) + " synchronizations where " +
         std::to_string(launches) + " and " + std::to_string(synchronizations) + " are aimed at";
}

/// A worker of a test and what it works with.
class Worker {
 public:
  Worker(std::unique_ptr<Transport> transport, bool checked)
      : device_(checked, &memory_), session_(std::move(transport), host(), options(device_)) {}

  Session& session() { return session_; }
  const HostMemory& memory() const { return memory_; }

  /// Runs a phase and says what it took.
  template <typename Submit>
  PhaseWork phase(const std::string& name, const Submit& submit) {
    const DeviceQueue::Counters before = device_.queue()->counters();
    session_.wait(submit(session_));
    return {difference(device_.queue()->counters(), before), name};
  }

 private:
  HostMemory& host() { return on_cuda() ? words_ : memory_; }
  SessionOptions options(const DeviceUnderTest& device) {
    SessionOptions options{kDeadline, 1};
    if (on_cuda()) options.device = OnDevice{device.queue(), &memory_, &words_};
    return options;
  }

  HostMemory words_;
  HostMemory memory_{std::nullopt, device_memory()};
  DeviceUnderTest device_;
  Session session_;
};

/// Runs body(worker, rank) as each of the workers.
template <typename Body>
void run_workers(bool checked, const Body& body) {
  expect_no_errors(
      local_workers("local", {}).run(kSize, [&](std::unique_ptr<Transport>& transport) {
        const int rank = transport->rank().value;
        Worker worker(std::move(transport), checked);
        body(worker, rank);
      }));
}

/// A scheme, and what each of its phases may take.
struct Aim {
  std::string scheme;
  bool announce = false;
  std::array<std::int64_t, 2> announced{};  // launches, synchronizations
  std::array<std::int64_t, 2> reduced{};
  std::array<std::int64_t, 2> gathered{};
};

/// The phases of a step that is not the first.
std::vector<PhaseWork> phases_of(Worker& worker, int rank, const Gradients& gradients,
                                 const Aim& aim) {
  Session& session = worker.session();
  BucketSpec spec{"b", {gradients.tensor}, aim.scheme};
  spec.announce = aim.announce;
  const BucketId id = session.register_bucket(spec);
  const std::array given{gradients.of[static_cast<std::size_t>(rank)].view()};
  const std::array rows{Gradient::rows(given[0].indices())};
  std::vector<PhaseWork> phases;
  for (int step = 0; step < 2; ++step) {
    phases.clear();
    if (aim.announce) {
      phases.push_back(
          worker.phase("announce", [&](Session& own) { return own.announce(id, rows); }));
    }
    phases.push_back(worker.phase(
        "reduce", [&](Session& own) { return own.submit(id, Phase::reduce, given); }));
    phases.push_back(
        worker.phase("gather", [&](Session& own) { return own.submit(id, Phase::gather); }));
    if (step == 0) session.adapt(id);
  }
  return phases;
}

class DeviceWork : public ::testing::TestWithParam<Aim> {
 protected:
  void SetUp() override {
    if (!on_cuda()) GTEST_SKIP() << "of GPUs alone";
  }
};

INSTANTIATE_TEST_SUITE_P(schemes, DeviceWork,
                         ::testing::Values(Aim{"balanced", false, {}, {25, 2}, {25, 2}}),
                         [](const auto& each) {
                           return each.param.scheme + (each.param.announce ? "_announced" : "");
                         });

TEST_P(DeviceWork, of_a_phase_is_a_few_launches_and_waits) {
  const Aim& aim = GetParam();
  const Gradients gradients(16);
  run_workers(false, [&](Worker& worker, int rank) {
    for (const PhaseWork& work : phases_of(worker, rank, gradients, aim)) {
      const auto [launches, synchronizations] = work.name == "reduce"   ? aim.reduced
                                                : work.name == "gather" ? aim.gathered
                                                                        : aim.announced;
      EXPECT_EQ(excess(work, launches, synchronizations), "");
      if (rank == 0) {
        std::printf("%s %s: %d launches, %d copies, %d synchronizations\n", aim.scheme.c_str(),
                    work.name.c_str(), static_cast<int>(work.counted.launches),
                    static_cast<int>(work.counted.copies),
                    static_cast<int>(work.counted.synchronizations));
      }
    }
  });
}

}  // namespace
}  // namespace sparsesync::testing
