// ctest: DEVICES
// The device work of a synchronization: kernel launches, waits of the host, and workspace, for
// gradients like those of a language model's embedding. The counts are the same on every machine,
// so they are also tested on the emulated device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

constexpr int kSize = 8;
constexpr Index kRows = 793'471;  // rows of the embedding of LM1B's vocabulary
constexpr Index kTokens = 2560;   // tokens per worker and step

/// The gradients of all workers and their sum.
struct Gradients {
  /// Draws tokens from Zipf's law with exponent 1: ranks are uniform on a logarithmic scale.
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

  /// Computes `sum`.
  void add_up() {
    for (const OwnedGradient& each : of) sum.add(each);
  }

  TensorSpec tensor;
  std::vector<OwnedGradient> of;  // by worker
  double touched = 0;             // mean number of touched rows per worker
  double in_union = 0;
  ExactSum sum;
};

/// The device work of a phase.
struct PhaseWork {
  DeviceStream::Counters counted;
  std::string name;
};

DeviceStream::Counters difference(const DeviceStream::Counters& after,
                                  const DeviceStream::Counters& before) {
  return {after.launches - before.launches, after.copies - before.copies,
          after.synchronizations - before.synchronizations};
}

/// A worker of a test with its device and session.
class Worker {
 public:
  Worker(std::unique_ptr<Transport> transport, bool checked)
      : device_(checked, &memory_), session_(std::move(transport), host(), options(device_)) {}

  Session& session() { return session_; }
  /// Returns the memory of its workspaces.
  HostMemory& memory() { return memory_; }

  /// Runs a phase and returns its device work.
  template <typename Submit>
  PhaseWork phase(const std::string& name, const Submit& submit) {
    const DeviceStream::Counters before = counters();
    session_.wait(submit(session_));
    return {difference(counters(), before), name};
  }

 private:
  DeviceStream::Counters counters() const {
    return device_.device_stream() == nullptr ? DeviceStream::Counters{}
                                              : device_.device_stream()->counters();
  }
  HostMemory& host() { return on_cuda() ? words_ : memory_; }
  SessionOptions options(const DeviceUnderTest& device) {
    SessionOptions options{kDeadline, 1};
    if (on_cuda()) options.device = OnDevice{device.device_stream(), &memory_, &words_};
    return options;
  }

  HostMemory words_;
  TestMemory memory_;
  DeviceUnderTest device_;
  Session session_;
};

/// Runs body(worker) as each of the workers.
/// @param checked  whether to wait for each operation on a GPU
template <typename Body>
void run_workers(bool checked, const Body& body) {
  expect_no_errors(
      local_workers("local", {}).run(kSize, [&](std::unique_ptr<Transport>& transport) {
        Worker worker(std::move(transport), checked);
        body(worker);
      }));
}

/// A scheme and the limits of its phases.
struct Aim {
  std::string scheme;
  bool announce = false;
  struct Counts {
    std::int64_t launches = 25;
    std::int64_t synchronizations = 2;
  };
  Counts reduce{};
  Counts gather{};
  Counts announced{};

  std::string name() const { return announce ? scheme + "_announced" : scheme; }
  const Counts& of(const std::string& phase) const {
    return phase == "reduce" ? reduce : phase == "gather" ? gather : announced;
  }
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest requires this name
void PrintTo(const Aim& aim, std::ostream* out) {
  *out << aim.name();
}

/// The target is 25 launches and 2 waits, one of them at the end of a phase. A phase needs another
/// wait for each additional exchange or count that its next step depends on. Examples are a union
/// if indices are exchanged first, the serial memory if rows are hashed, and each union in
/// recursive doubling.
std::vector<Aim> aims() {
  const Aim::Counts sets_first{25, 4};
  return {{"balanced", false},
          {"balanced", true, {}, {}, sets_first},
          {"owned", false, {30, 5}},
          {"owned", true, {}, {}, sets_first},
          {"balanced_hash", false, {25, 3}},
          {"sparse_ps", false},
          {"all_gather", false, {25, 3}},
          {"recursive_doubling", false, {25, 5}}};
}

/// A worker of a test in its second step. Workspaces grow in the first one.
class Step {
 public:
  Step(Worker& worker, const Gradients& gradients, const std::string& scheme, bool announce)
      : worker_(worker),
        given_{gradients.of[worker.session().rank().index()].view()},
        rows_{Gradient::rows(given_[0].indices())} {
    BucketSpec spec{"b", {gradients.tensor}, scheme};
    spec.announce = announce;
    id_ = worker.session().register_bucket(spec);
    run(announce);
    worker.session().adapt(id_);
  }

  /// Returns the device work of each phase.
  std::vector<PhaseWork> run(bool announce) {
    std::vector<PhaseWork> phases;
    if (announce) {
      phases.push_back(worker_.phase(
          "announce", [&](Session& session) { return session.announce(id_, rows_); }));
    }
    phases.push_back(worker_.phase(
        "reduce", [&](Session& session) { return session.submit(id_, Phase::reduce, given_); }));
    phases.push_back(worker_.phase(
        "gather", [&](Session& session) { return session.submit(id_, Phase::gather); }));
    return phases;
  }

  TensorResult result() { return worker_.session().result(id_, 0); }

 private:
  Worker& worker_;
  std::array<Gradient, 1> given_;
  std::array<Gradient, 1> rows_;
  BucketId id_{};
};

/// Describes the work of a phase that exceeds a limit; "" if none does.
std::string excess(const PhaseWork& work, const Aim::Counts& aim) {
  if (work.counted.launches <= aim.launches &&
      work.counted.synchronizations <= aim.synchronizations) {
    return "";
  }
  return work.name + ": " + std::to_string(work.counted.launches) + " launches, " +
         std::to_string(work.counted.synchronizations) + " synchronizations where " +
         std::to_string(aim.launches) + " and " + std::to_string(aim.synchronizations) +
         " are aimed at";
}

class DeviceWork : public ::testing::TestWithParam<Aim> {
 protected:
  void SetUp() override {
    if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  }
};

INSTANTIATE_TEST_SUITE_P(schemes, DeviceWork, ::testing::ValuesIn(aims()),
                         [](const auto& each) { return each.param.name(); });

TEST_P(DeviceWork, of_a_phase_is_a_few_launches_and_waits) {
  const Aim& aim = GetParam();
  Gradients gradients(16);
  gradients.add_up();
  run_workers(false, [&](Worker& worker) {
    Step step(worker, gradients, aim.scheme, aim.announce);
    for (const PhaseWork& work : step.run(aim.announce)) {
      EXPECT_EQ(excess(work, aim.of(work.name)), "");
    }
    if (worker.session().rank() == Rank{0}) {
      EXPECT_EQ(gradients.sum.difference(step.result()), "");
    }
  });
}

// Negative test of the test above: a stream that waits for each operation must exceed the limit.
TEST_F(DeviceWork, with_more_waits_is_detected) {
  const Gradients gradients(16);
  run_workers(true, [&](Worker& worker) {
    for (const PhaseWork& work : Step(worker, gradients, "balanced", false).run(false)) {
      EXPECT_NE(excess(work, {}).find("synchronizations where 25 and 2"), std::string::npos);
      EXPECT_NE(excess(work, {3, 1000}).find("launches"), std::string::npos);
    }
  });
}

// ---- Workspace.

/// Returns the workspace limit of a worker of `balanced` in bytes, without input and result. It is
/// 1.5 times the rows that the mean worker touched and the rows of the union, plus one seventh of a
/// byte per row of the tensor.
double workspace_aim(const Gradients& gradients) {
  const auto row_bytes = static_cast<double>(gradients.tensor.width) * sizeof(float);
  return 1.5 * (gradients.touched + gradients.in_union) * row_bytes +
         static_cast<double>(kRows) / 7;
}

/// Returns the largest workspace of any worker that also allocates `bytes_beside` bytes.
double workspace_of(const Gradients& gradients, std::int64_t bytes_beside) {
  std::array<double, kSize> most{};
  run_workers(false, [&](Worker& worker) {
    const Context context(worker.memory());
    Buffer<std::byte> beside(context);
    beside.reserve_exactly(bytes_beside);
    Step step(worker, gradients, "balanced", false);
    step.run(false);
    const TensorResult result = step.result();
    most[worker.session().rank().index()] =
        static_cast<double>(worker.memory().high_water() - result.values.bytes()) -
        static_cast<double>(result.indices.size_bytes());
  });
  return *std::max_element(most.begin(), most.end());
}

TEST(Workspace, of_balanced_is_proportional_to_the_rows) {
  const Gradients gradients(512);
  const double bytes = workspace_of(gradients, 0);
  EXPECT_LE(bytes, workspace_aim(gradients))
      << gradients.touched << " rows touched, " << gradients.in_union << " in the union";
}

// Negative test: a copy of the tensor would exceed the limit.
TEST(Workspace, that_is_larger_is_detected) {
  const Gradients gradients(16);
  EXPECT_GT(workspace_of(gradients, kRows * 16 * static_cast<std::int64_t>(sizeof(float))),
            workspace_aim(gradients));
}

}  // namespace
}  // namespace sparsesync::testing
