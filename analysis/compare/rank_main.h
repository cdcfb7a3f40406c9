// One worker of a comparison: it stands in for a training loop, and times and checks each step.
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

/// The reference sums of one step at a time, shared by all workers. Thread-safe.
class References {
 public:
  /// @param wire  type in which values are sent; nothing: the tensor's dtype
  References(const Trace& trace, std::optional<DType> wire) : trace_(trace), wire_(wire) {}
  /// Returns the sums of a step, computed on the first call for the step.
  /// @return one sum for each tensor; shared ownership
  std::shared_ptr<const std::vector<ReferenceSum>> of(int step);

 private:
  const Trace& trace_;
  std::optional<DType> wire_;
  std::mutex mutex_;
  int step_ = -1;
  std::shared_ptr<const std::vector<ReferenceSum>> current_;
};

/// Synchronizes the trace's gradients with a separate Session, and checks the results.
class CompareWorker {
 public:
  /// The GPU of a worker, and the GPUs of all workers of its process.
  struct Gpus {
    int own = 0;
    std::vector<int> of_process;
  };

  /// The settings that all workers of one scheme share.
  struct Task {
    const Trace& trace;
    BucketSpec bucket;
    int repeat = 1;
    std::chrono::milliseconds deadline{60'000};
    std::int64_t memory = 0;  // bytes; budget of a worker's workspace
    /// SessionOptions::late_refusals. It costs messages, so it is set only with a budget.
    bool late_refusals = false;
    /// Returns a worker's GPUs; nothing: workers are on the host.
    std::function<std::optional<Gpus>(const Transport&)> gpus_of;
    bool nccl = false;                    // whether NCCL connects the workers' GPUs
    std::optional<Network> network;       // network that `auto` plans with; nothing: it measures
    std::filesystem::path result_folder;  // empty: results are not written
    References& references;
    /// Returns the imbalance of a step. Worker 0 calls it once for each step.
    std::function<std::optional<Imbalance>(const Scheme&, int step)> imbalance_of;
    std::function<void()> step_done;
    Recording* recording = nullptr;  // records all workers' steps; null: no recording
  };

  /// @param task  outlives the worker
  explicit CompareWorker(const Task& task) : task_(task) {}

  /// Runs a warm-up on step 0 that is not counted, adapts the scheme, and runs all steps `repeat`
  /// times. Results are checked, and written, in the first repeat.
  /// @param record  receives the measurements; if a step fails, those up to it
  /// @throws what Session throws, InputError if the trace cannot be read
  void run(std::unique_ptr<Transport> transport, WorkerRecord& record);

 private:
  void load(Rank rank, int step);
  StepRecord exchange(Session& session, BucketId bucket);
  std::uint64_t hash_result(Session& session, BucketId bucket);
  /// Returns a result in host memory, also if the worker is on a GPU.
  TensorResult result_of(Session& session, BucketId bucket, std::size_t tensor);
  /// Returns the result's rows; every row if the result is dense.
  std::span<const Index> rows_of(const TensorResult& result);
  /// Compares the worker's result with the reference sums, element by element.
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
