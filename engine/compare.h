// compare: moves a trace's gradients by each scheme, really, and measures bytes, seconds and
// correctness.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/plan.h"
#include "analysis/replay.h"
#include "analysis/trace.h"
#include "engine/transport/local.h"
#include "engine/workers.h"
#include "schemes/scheme.h"

namespace sparsesync {

class Recording;
class References;
struct WorkerRecord;

enum class CompareClock : std::uint8_t {
  real,     // the machine's
  replayed  // the virtual one: a recorded run, replayed on links
};

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
  /// Bytes of workspace for each worker; nothing: what the machine has, shared out.
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

struct CompareReport {
  std::vector<TensorSpec> tensors;
  int workers = 0;
  int steps = 0;
  int repeat = 0;
  LocalLink link;
  double partitioned_ideal_bytes = 0;
  double lower_bound_bytes = 0;
  std::vector<SchemeFigures> schemes;
};

/// What a comparison will need, before it begins.
struct MemoryNeed {
  std::string scheme;
  double bytes_of_a_worker = 0;  // of workspace, as expected from the trace
  std::optional<std::string> skipped;
};

/// A comparison, prepared: the trace is checked in full and its sparsity known. Every process of
/// the workers makes the same calls.
class Comparison {
 public:
  /// @param workers  as many as the trace has; outlives the comparison
  /// @throws InputError if the trace cannot be used, or a scheme does not exist
  Comparison(Workers& workers, Trace trace, CompareOptions options);

  std::uint64_t seed() const { return trace_.header().seed; }
  /// What all processes must have alike.
  ControlChannel::Statement statement() const;

  std::vector<MemoryNeed> memory_needs() const;

  /// Bytes of a step, as the report has it.
  double lower_bound() const { return lower_bound_; }
  /// Of the trace, step by step.
  std::span<const Statistics> statistics() const { return statistics_; }
  /// What seconds are predicted from; nothing where nothing is known.
  std::optional<Network> network() const;
  /// What every scheme is expected to take, means over steps, the best first: what `auto` goes by.
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
  Workload workload(const Statistics& statistics) const;
  std::int64_t workspace_of_a_worker() const;
  std::optional<std::string> reason_to_skip(double bytes_of_a_worker) const;

  Workers& workers_;
  Trace trace_;
  CompareOptions options_;
  std::vector<SchemeEntry> schemes_;
  std::vector<std::string> unfit_;  // [scheme]: why it does not fit these workers; else empty
  std::vector<RowSpace> spaces_;
  /// Index sets by step and row space, and what they say.
  std::vector<std::vector<std::vector<std::vector<Index>>>> sets_;  // [step][space][worker]
  std::vector<Statistics> statistics_;                              // [step]
  double partitioned_ideal_ = 0;
  double lower_bound_ = 0;
};

}  // namespace sparsesync
