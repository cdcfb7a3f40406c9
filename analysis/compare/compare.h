// compare: moves a trace's gradients by each scheme, really, and measures bytes, seconds and
// correctness.
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
  real,     // the machine's
  replayed  // the virtual one: a recorded run, replayed on links
};
/// As the command line has it: "real" or "virtual".
std::string_view name_of(CompareClock clock);

/// What is compared, and how.
struct CompareOptions {
  std::vector<std::string> schemes;  // all that are built, if none are named
  SchemeOptions scheme_options;
  std::vector<SchemeOption> given;  // of each, some scheme must heed it
  /// Rows are announced before the clock starts, to schemes that use it.
  bool announce = false;
  LocalLink link;  // of each worker, as far as it is known
  /// Where it is `replayed`, `link` is the one to replay on, and the workers are those of one
  /// process, without a link of their own.
  CompareClock clock = CompareClock::real;
  /// What seconds are predicted from; nothing: from `link`, if it has a rate.
  std::optional<Network> network;
  int repeat = 5;
  /// Gradients and sums are in the memory of GPUs: of one of this number, or of a machine's GPUs in
  /// turn. Nothing: on the host.
  struct Gpu {
    std::optional<int> number;
  };
  std::optional<Gpu> gpu;
  /// Payloads go by NCCL; what connects the workers carries words alone. Needs `gpu`.
  bool nccl = false;
  /// Bytes of workspace for each worker, and no more than that for its inputs and its part of the
  /// right answers; nothing: what the machine has, shared out.
  std::optional<std::int64_t> memory;
  std::chrono::milliseconds deadline{60'000};
  /// Writes what every worker ended with: RESULT/SCHEME/w0003.s0001.safetensors.
  std::optional<std::filesystem::path> result;
  bool force = false;  // replace a folder `result` that is there
  /// Called from the measuring thread: which scheme, steps done, steps in all.
  std::function<void(const std::string&, std::int64_t, std::int64_t)> progress;
};

/// One scheme's figures. Bytes are what crossed the port (payloads and headers between different
/// workers), means over steps.
struct SchemeFigures {
  std::string name;
  std::optional<std::string> skipped;  // why; then nothing below counts
  double bytes_sent_max = 0;           // by the worker that sent most in a step
  double bytes_received_max = 0;
  double bytes_total = 0;   // all workers'
  double bytes_index = 0;   // of those, what says which rows there are
  double bytes_values = 0;  // of those, values
  double messages = 0;      // all workers'
  double non_finite = 0;    // values of the sums, where they crossed as a narrower type
  double seconds_median = 0;
  double seconds_min = 0;
  std::optional<double> seconds_predicted;  // nothing where neither rate nor network is known
  std::optional<Imbalance> imbalance;       // means over steps
  std::int64_t memory_bytes = 0;            // workspace of the worker that needed most
  int rounds = 1;                           // that a step went in, for want of memory
  bool correct = false;
  std::string first_difference;      // where it is not correct
  std::vector<SpaceChoice> choices;  // of each tensor
  std::string chosen;                // by `auto`; else empty
  /// With the clock `replayed`: replayed_times() says what the same run takes on other links.
  std::shared_ptr<const RecordedRun> recorded;

  double bytes_busiest() const {
    return bytes_sent_max > bytes_received_max ? bytes_sent_max : bytes_received_max;
  }
};

/// What a comparison found, and of what.
struct CompareReport {
  TraceHeader trace;
  int repeat = 0;
  CompareClock clock = CompareClock::real;
  LocalLink link;
  std::optional<DType> wire;  // what values crossed as, where not as their own type
  bool announce = false;
  double partitioned_ideal_bytes = 0;
  double lower_bound_bytes = 0;
  std::vector<SchemeFigures> schemes;
};

/// What one scheme will need, before a comparison begins.
struct MemoryNeed {
  std::string scheme;
  double bytes_of_a_worker = 0;  // of workspace, as expected from the trace
  std::optional<std::string> skipped;
};

/// A comparison, prepared: the trace is checked in full and its sparsity known. Every process of
/// the workers makes the same calls.
class Comparison {
 public:
  /// Reads all index sets of the trace.
  /// @param workers  as many as the trace has; outlives the comparison
  /// @throws InputError if the trace cannot be used, a scheme does not exist, or an option does not
  ///         fit
  Comparison(Workers& workers, Trace trace, CompareOptions options);

  /// What all processes must have alike.
  ControlChannel::Statement statement() const;

  /// One for each scheme, in the order in which they run.
  std::vector<MemoryNeed> memory_needs() const;

  /// Bytes of a step, as the report has it.
  double lower_bound() const { return lower_bound_; }
  /// Of the trace, step by step.
  std::span<const Statistics> statistics() const { return statistics_; }
  /// What seconds are predicted from; nothing where nothing is known.
  std::optional<Network> network() const;
  /// What every scheme is expected to take, means over steps: what `auto` goes by.
  /// @return the best first
  std::vector<Prediction> predictions(const Network& network) const;

  /// Runs all schemes, one after another: a warm-up on step 0 that is not counted, then `repeat`
  /// times all steps. All processes get the same report.
  /// @throws Error if a worker failed
  CompareReport run();

 private:
  SchemeFigures measure(const SchemeEntry& entry, References& references,
                        const std::filesystem::path& result_folder);
  /// Runs the workers that are here.
  /// @param recording  of all of them; null where time is the machine's
  std::vector<WorkerRecord> run_workers(const SchemeEntry& entry, References& references,
                                        const std::filesystem::path& result_folder,
                                        Recording* recording);
  /// What all workers brought home, by rank.
  std::vector<WorkerRecord> gather(std::vector<WorkerRecord> records);
  SchemeFigures figures_of(const SchemeEntry& entry,
                           const std::vector<WorkerRecord>& records) const;
  /// Seconds of each repeat's mean step, by the machine's clock.
  std::vector<double> measured_seconds(const std::vector<WorkerRecord>& records) const;
  BucketSpec bucket_for(const SchemeEntry& entry) const;
  /// @throws InputError if an option does not fit
  void check_options();
  /// Reads the next step's index sets, and adds what they say.
  void read_step(int step);
  Workload workload(const Statistics& statistics) const;
  std::int64_t workspace_of_a_worker() const;
  /// Bytes that the workers of this machine keep on the host beside their workspaces, at the
  /// largest step: inputs, right answers, and rows of results.
  double bytes_beside_workspaces() const;
  std::optional<std::string> reason_to_skip(double bytes_of_a_worker) const;

  Workers& workers_;
  Trace trace_;
  CompareOptions options_;
  std::vector<SchemeEntry> schemes_;
  std::vector<std::string> unfit_;  // [scheme]: why it does not fit these workers; else empty
  std::vector<RowSpace> spaces_;
  /// Index sets by step and row space, and what they say.
  std::vector<std::vector<OwnedIndexSets>> sets_;  // [step][space]
  std::vector<Statistics> statistics_;             // [step]
  double partitioned_ideal_ = 0;
  double lower_bound_ = 0;
};

}  // namespace sparsesync
