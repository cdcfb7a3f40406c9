// One worker of a comparison: what a user's training loop would be, with a clock and a check.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "analysis/compare/rank_result.h"
#include "analysis/compare/reference.h"
#include "analysis/trace/trace.h"
#include "engine/planner/calibration/recording.h"
#include "engine/session/gpu_worker.h"
#include "sparsesync/session.h"

namespace sparsesync {

/// The right answers, one step at a time: all workers ask for the same one. Safe from several
/// threads.
class References {
 public:
  /// @param wire  what values cross as, where not as their own type
  References(const Trace& trace, std::optional<DType> wire) : trace_(trace), wire_(wire) {}
  /// @return one sum for each tensor; the caller's as long as it wants
  std::shared_ptr<const std::vector<ReferenceSum>> of(int step);

 private:
  const Trace& trace_;
  std::optional<DType> wire_;
  std::mutex mutex_;
  int step_ = -1;
  std::shared_ptr<const std::vector<ReferenceSum>> current_;
};

/// Has a Session of its own synchronize the trace's gradients, and checks what it ends with.
class CompareWorker {
 public:
  /// GPUs of a worker and of all workers of its process.
  struct Gpus {
    int own = 0;
    std::vector<int> of_process;
  };

  /// The same for all workers of one scheme.
  struct Task {
    const Trace& trace;
    BucketSpec bucket;
    int repeat = 1;
    std::chrono::milliseconds deadline{60'000};
    std::int64_t memory = 0;  // budget of the workspace, bytes
    /// As SessionOptions has them. They cost messages: only where somebody asked for a budget.
    bool late_refusals = false;
    /// The GPUs that a worker needs to know; nothing: workers are on the host.
    std::function<std::optional<Gpus>(const Transport&)> gpus_of;
    bool nccl = false;                    // connects workers on GPUs
    std::optional<Network> network;       // what `auto` plans with; nothing: it measures
    std::filesystem::path result_folder;  // empty: results are not written
    References& references;
    /// Worker 0 asks it once for each step.
    std::function<std::optional<Imbalance>(const Scheme&, int step)> imbalance_of;
    std::function<void()> step_done;
    Recording* recording = nullptr;  // of all workers' steps, where one is made
  };

  /// @param task  outlives the worker
  explicit CompareWorker(const Task& task) : task_(task) {}

  /// A warm-up on step 0 that is not counted, after which the scheme adapts; then `repeat` times
  /// all steps. Results are checked, and written, in the first repeat.
  /// @param record  what was seen so far, if a step fails
  /// @throws what Session throws, InputError if the trace cannot be read
  void run(std::unique_ptr<Transport> transport, WorkerRecord& record);

 private:
  void load(Rank rank, int step);
  StepRecord exchange(Session& session, BucketId bucket);
  std::uint64_t hash_result(Session& session, BucketId bucket);
  /// On the host, whatever device the worker is on.
  TensorResult result_of(Session& session, BucketId bucket, std::size_t tensor);
  /// The result's rows; all of them where it is dense.
  std::span<const Index> rows_of(const TensorResult& result);
  /// Compares what the worker ended with, element by element, with the right answer.
  void check(Session& session, BucketId bucket, int step, WorkerRecord& record);
  void write_result(Session& session, BucketId bucket, int step);

  const Task& task_;
  std::optional<GpuWorker> gpu_;
  int loaded_step_ = -1;
  std::vector<TracePart> parts_;
  std::vector<Gradient> gradients_;
  std::vector<Gradient> announced_;
  std::vector<Index> all_rows_;
};

}  // namespace sparsesync
