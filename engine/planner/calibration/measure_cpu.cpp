#include "engine/planner/calibration/measure.h"

#include <array>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "engine/planner/calibration/fit.h"
#include "engine/planner/calibration/recording.h"
#include "engine/planner/calibration/replay.h"
#include "engine/planner/scheme/plan.h"
#include "engine/support/random_draws.h"
#include "engine/transport/worker_threads.h"
#include "schemes/registry.h"
#include "sparsesync/memory.h"
#include "sparsesync/session.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {
namespace {

constexpr std::chrono::seconds kDeadline{60};

struct Shape {
  int workers = 2;
  Index rows = 1;
  Index touched = 1;  // touched by each worker
  Index width = 1;
};
// Together, these shapes make every cost matter: per row, per byte, per message and per step.
constexpr std::array kShapes{
    Shape{4, Index{1} << 20U, 20'000, 1}, Shape{2, Index{1} << 19U, 6'000, 1},
    Shape{4, Index{1} << 17U, 4'000, 16}, Shape{8, Index{1} << 13U, 64, 16},
    Shape{4, Index{1} << 14U, 1'500, 128}};

const std::array kVariants{SchemeVariant{"dense_ring"},
                           SchemeVariant{"all_gather", Communication::ring},
                           SchemeVariant{"all_gather", Communication::point_to_point},
                           SchemeVariant{"recursive_doubling"},
                           SchemeVariant{"sparse_ps"},
                           SchemeVariant{"balanced"},
                           SchemeVariant{"owned"}};

/// Rows of all workers in one step, and their bucket.
class ProbeStep {
 public:
  ProbeStep(const Shape& shape, const SchemeVariant& variant) {
    constexpr double kZipf = 0.6;  // some rows are touched by many workers, most by one
    spec_.name = "probe";
    spec_.tensors = {{"rows", shape.rows, shape.width, DType::f32}};
    spec_.scheme = variant.scheme;
    spec_.options = options_for(variant, {});
    for (int worker = 0; worker < shape.workers; ++worker) {
      CounterRandom random(static_cast<std::uint64_t>(worker));
      rows_.push_back(draw_distinct_zipf(random, shape.rows, shape.touched, kZipf));
    }
    values_.assign(static_cast<std::size_t>(shape.touched * shape.width), 1.0F);
  }

  int workers() const { return static_cast<int>(rows_.size()); }
  const BucketSpec& bucket() const { return spec_; }
  Gradient gradient(Rank worker) const {
    return Gradient::row_sparse(rows_[worker.index()],
                                reinterpret_cast<const std::byte*>(values_.data()));
  }

  /// Returns the expected CPU work of the bottleneck worker.
  Work work() const {
    const std::vector<RowSpace> spaces = row_spaces(spec_.tensors);
    const Statistics statistics{
        statistics_of({rows_.begin(), rows_.end()}, spaces.front(), spec_.options)};
    return scheme_named(spec_.scheme)
        .cost({.spaces = spaces,
               .size = workers(),
               .statistics = statistics,
               .options = spec_.options})
        .all_work();
  }

 private:
  BucketSpec spec_;
  std::vector<std::vector<Index>> rows_;  // [worker]
  std::vector<float> values_;             // the same for every worker
};

/// Runs one worker: a warm-up step, and then `repeat` recorded steps.
void run_worker(const ProbeStep& step, std::unique_ptr<Transport> transport, Recording& recording,
                int repeat) {
  HostMemory memory;
  SessionOptions options;
  options.deadline = kDeadline;
  Session session(std::move(transport), memory, options);
  const BucketId bucket = session.register_bucket(step.bucket());
  const std::array gradients{step.gradient(session.rank())};
  session.synchronize(bucket, gradients);
  session.adapt(bucket);
  for (int i = 0; i < repeat; ++i) {
    session.barrier();
    recording.begin_step(session.rank(), Clock::now() + kDeadline);
    session.synchronize(bucket, gradients);
    recording.end_step(session.rank());
  }
  // No worker leaves while others still work.
  session.barrier();
}

TimedWork timed(const ProbeStep& step, int repeat) {
  LocalNetwork network(step.workers());
  Recording recording(step.workers());
  std::vector<std::unique_ptr<Transport>> ends;
  for (const Rank rank : Ranks(step.workers())) {
    ends.push_back(recording.wrap(network.join(rank)));
  }
  const auto errors =
      run_in_threads(std::move(ends), [&](std::unique_ptr<Transport>& end, std::size_t) {
        run_worker(step, std::move(end), recording, repeat);
      });
  if (const std::exception_ptr cause = first_cause(errors)) std::rethrow_exception(cause);
  // Replays the steps on infinitely fast links.
  return {step.work(), replayed_times({1, recording.take_steps()}, LocalLink{}).median};
}

}  // namespace

HostCosts probe_host(int repeat) {
  std::vector<TimedWork> samples;
  for (const Shape& shape : kShapes) {
    for (const SchemeVariant& variant : kVariants)
      samples.push_back(timed(ProbeStep(shape, variant), repeat));
  }
  return fit_host(samples);
}

}  // namespace sparsesync
