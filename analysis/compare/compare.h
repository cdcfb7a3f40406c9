// `sparsesync compare`: synchronizes a trace's gradients with each scheme, over a real transport,
// and measures bytes, seconds and correctness.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/trace.h"
#include "engine/planner/scheme/plan.h"
#include "engine/session/control_channel.h"
#include "schemes/cost.h"
#include "schemes/registry.h"
#include "schemes/scheme.h"
#include "schemes/statistics.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {

class Recording;
class References;
class Workers;
struct RecordedRun;
struct WorkerRecord;

enum class CompareClock : std::uint8_t {
  real,     // the machine's clock
  replayed  // the virtual clock: a recorded run, replayed on simulated links
};
/// Returns the name of a clock on the command line: "real" or "virtual".
std::string_view name_of(CompareClock clock);

/// The schemes to compare, and the settings of the comparison.
struct CompareOptions {
  std::vector<std::string> schemes;  // empty: all
  SchemeOptions scheme_options;
  std::vector<SchemeOption> given;  // options that at least one of the schemes must use
  /// Whether schemes that support it receive the row indices before the clock of a step starts.
  bool announce = false;
  LocalLink link;  // link of each worker, as far as it is known
  /// With `replayed`, `link` is the simulated link. The workers must be in one process, connected
  /// by links without rate or latency.
  CompareClock clock = CompareClock::real;
  /// Network for predictions; nothing: `link`, if it has a rate.
  std::optional<Network> network;
  int repeat = 5;
  /// GPUs that hold gradients and sums: the one with this number, or each machine's GPUs in turn.
  struct Gpu {
    std::optional<int> number;
  };
  std::optional<Gpu> gpu;  // nothing: the host
  /// Whether NCCL carries the payloads. The workers' network then carries control messages only.
  /// Needs `gpu`.
  bool nccl = false;
  /// Maximum bytes of a worker's workspace, and of its inputs together with its share of the
  /// reference sums. Nothing: an equal share of 80% of the free memory.
  std::optional<std::int64_t> memory;
  std::chrono::milliseconds deadline{60'000};
  /// Folder for every worker's results: RESULT/SCHEME/w0003.s0001.safetensors.
  std::optional<std::filesystem::path> result;
  bool force = false;  // whether an existing folder `result` is replaced
  /// Called from the measuring thread with the scheme, the steps done, and their total.
  std::function<void(const std::string&, std::int64_t, std::int64_t)> progress;
};

/// One scheme's figures. Bytes count payloads and headers between different workers. They are means
/// over steps.
struct SchemeFigures {
  std::string name;
  std::optional<std::string> skipped;  // reason; the members below are then unset

  double bytes_sent_max = 0;      // sent by the worker that sends most in a step
  double bytes_received_max = 0;  // received by the worker that receives most in a step

  double bytes_total = 0;   // sent by all workers
  double bytes_index = 0;   // part of bytes_total that encodes row indices
  double bytes_values = 0;  // part of bytes_total that is values
  double messages = 0;      // sent by all workers

  double non_finite = 0;  // infinite or NaN values of the sums, with a narrower wire
  double seconds_median = 0;
  double seconds_min = 0;
  std::optional<double> seconds_predicted;  // nothing if neither rate nor network is known
  std::optional<Imbalance> imbalance;       // means over steps
  std::int64_t memory_bytes = 0;            // workspace of the worker that needs most
  int rounds = 1;                           // rounds per phase; more than 1 if memory is short
  bool correct = false;
  std::string first_difference;      // empty if correct
  std::vector<SpaceChoice> choices;  // one for each tensor
  std::string chosen;                // variant chosen by `auto`; empty for other schemes
  /// Recorded run, with the clock `replayed`: replayed_times() computes its time on other links.
  std::shared_ptr<const RecordedRun> recorded;

  double bytes_busiest() const {
    return bytes_sent_max > bytes_received_max ? bytes_sent_max : bytes_received_max;
  }
};

/// The figures of a comparison, and its settings.
struct CompareReport {
  TraceHeader trace;
  int repeat = 0;
  CompareClock clock = CompareClock::real;
  LocalLink link;
  std::optional<DType> wire;  // type in which values were sent; nothing: the tensor's dtype
  bool announce = false;
  double partitioned_ideal_bytes = 0;
  double lower_bound_bytes = 0;
  std::vector<SchemeFigures> schemes;
};

/// The memory that one scheme will need, estimated before a comparison begins.
struct MemoryNeed {
  std::string scheme;
  double bytes_of_a_worker = 0;        // workspace of one worker, estimated from the trace
  std::optional<std::string> skipped;  // reason to skip the scheme
};

/// A prepared comparison: the trace is fully checked, and its sparsity is known. Every process
/// makes the same calls.
class Comparison {
 public:
  /// Reads all index sets of the trace.
  /// @param workers  as many as the trace has; outlives the comparison
  /// @throws InputError if the trace cannot be used, a scheme does not exist, or an option does not
  ///         fit
  Comparison(Workers& workers, Trace trace, CompareOptions options);

  /// Returns the facts that must be the same in all processes.
  ControlChannel::Statement statement() const;

  /// Returns the need of each scheme, in the order in which they run.
  std::vector<MemoryNeed> memory_needs() const;

  /// Returns the lower bound of a step in bytes, as in the report.
  double lower_bound() const { return lower_bound_; }
  /// Returns the trace's statistics. [step]
  std::span<const Statistics> statistics() const { return statistics_; }
  /// Returns the network for predictions; nothing if it is unknown.
  std::optional<Network> network() const;
  /// Predicts time, bytes and memory of every scheme variant, as means over steps. `auto` uses the
  /// same predictions.
  /// @return the best variant first
  std::vector<Prediction> predictions(const Network& network) const;

  /// Runs all schemes one after another. Each runs a warm-up on step 0 that is not counted, and
  /// then all steps `repeat` times. All processes get the same report.
  /// @throws Error if a worker failed
  CompareReport run();

 private:
  SchemeFigures measure(const SchemeEntry& entry, References& references,
                        const std::filesystem::path& result_folder);
  /// Runs the workers of this process.
  /// @param recording  records all workers; null with the real clock
  std::vector<WorkerRecord> run_workers(const SchemeEntry& entry, References& references,
                                        const std::filesystem::path& result_folder,
                                        Recording* recording);
  /// Gathers the records of all workers, by rank.
  std::vector<WorkerRecord> gather(std::vector<WorkerRecord> records);
  SchemeFigures figures_of(const SchemeEntry& entry,
                           const std::vector<WorkerRecord>& records) const;
  /// Returns the mean seconds of a step in each repeat, by the machine's clock.
  std::vector<double> measured_seconds(const std::vector<WorkerRecord>& records) const;
  BucketSpec bucket_for(const SchemeEntry& entry) const;
  /// @throws InputError if an option does not fit
  void check_options();
  /// Reads the next step's index sets, and adds their statistics.
  void read_step(int step);
  Workload workload(const Statistics& statistics) const;
  std::int64_t workspace_of_a_worker() const;
  /// Returns the bytes that this machine's workers keep on the host besides their workspaces, in
  /// the largest step: inputs, reference sums, and rows of results.
  double bytes_beside_workspaces() const;
  std::optional<std::string> reason_to_skip(double bytes_of_a_worker) const;

  Workers& workers_;
  Trace trace_;
  CompareOptions options_;
  std::vector<SchemeEntry> schemes_;
  std::vector<std::string> unfit_;  // [scheme]: reason why it cannot use these nodes, or empty
  std::vector<RowSpace> spaces_;
  std::vector<std::vector<OwnedIndexSets>> sets_;  // [step][space]
  std::vector<Statistics> statistics_;             // [step]
  double partitioned_ideal_ = 0;
  double lower_bound_ = 0;
};

}  // namespace sparsesync
