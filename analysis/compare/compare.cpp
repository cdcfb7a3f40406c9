#include "analysis/compare/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <set>
#include <utility>

#include "analysis/compare/rank_main.h"
#include "analysis/compare/rank_result.h"
#include "analysis/compare/reference.h"
#include "analysis/launcher.h"
#include "analysis/trace/trace.h"
#include "engine/planner/calibration/recording.h"
#include "engine/planner/calibration/replay.h"
#include "engine/session/auto_scheme.h"
#include "engine/session/bucket_agreement.h"
#include "engine/support/json.h"
#include "engine/support/output_file.h"
#include "engine/transport/worker_threads.h"
#include "kernels/base/bits.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

/// Maximum share of the free memory that a comparison uses. The rest is for the system and other
/// programs.
constexpr double kShareOfMemory = 0.8;

/// Returns the GPU of a worker.
int gpu_of(const CompareOptions::Gpu& gpu, const Transport& transport, Rank worker) {
  if (gpu.number) return *gpu.number;
  int before = 0;
  for (Rank rank{0}; rank < worker; ++rank.value) {
    if (transport.node(rank) == transport.node(worker)) ++before;
  }
  return device_of_worker(before);
}

/// Returns the GPU of the transport's worker, and the GPUs of its process.
/// @param here  the workers of this process
CompareWorker::Gpus gpus_of(const CompareOptions::Gpu& gpu, const Transport& transport,
                            std::span<const Rank> here) {
  std::set<int> of_process;
  for (const Rank rank : here) of_process.insert(gpu_of(gpu, transport, rank));
  return {gpu_of(gpu, transport, transport.rank()), {of_process.begin(), of_process.end()}};
}

/// Available memory, and the workers that share it.
struct SharedMemory {
  double to_give = 0;  // bytes
  int workers = 0;
};

/// Returns the memory of this machine, or of one of its GPUs. Workers use GPUs in turn, and the
/// GPUs are assumed to be alike.
/// @throws DeviceError if the GPU does not exist
SharedMemory shared_memory(const std::optional<CompareOptions::Gpu>& gpu, int workers) {
  if (!gpu) return {static_cast<double>(available_memory()) * kShareOfMemory, workers};
  const std::int64_t available = device_bytes(gpu->number.value_or(0)).available;
  const int gpus = gpu->number ? 1 : device_facts().devices;
  return {static_cast<double>(available) * kShareOfMemory, ceil_div(workers, gpus)};
}

SchemeFigures skipped(std::string_view name, const std::string& reason) {
  SchemeFigures figures;
  figures.name = name;
  figures.skipped = reason;
  return figures;
}

/// Returns the schemes of these names, each once. Without names, returns all schemes and `auto`.
/// @throws InputError if a name is unknown
std::vector<SchemeEntry> schemes_of(const std::vector<std::string>& names) {
  std::vector<SchemeEntry> schemes;
  for (const std::string& name : names) {
    const bool stands = std::any_of(schemes.begin(), schemes.end(),
                                    [&](const SchemeEntry& entry) { return entry.name == name; });
    if (!stands) schemes.push_back(scheme_or_auto(name));
  }
  if (!names.empty()) return schemes;
  schemes = all_schemes();
  schemes.push_back(scheme_or_auto(kAuto));
  return schemes;
}

/// Marks a folder of results: --force does not replace any other folder.
constexpr const char* kResultMarker = ".sparsesync-result";

/// Returns whether a comparison may have written this path in its folder of results.
bool is_in_results(const std::filesystem::path& path, bool is_folder) {
  if (!is_folder && path == kResultMarker) return true;
  const std::filesystem::path folder = is_folder ? path : path.parent_path();
  const std::vector<SchemeEntry> schemes = schemes_of({});
  const bool is_of_scheme =
      std::any_of(schemes.begin(), schemes.end(),
                  [&](const SchemeEntry& entry) { return folder == entry.name; });
  return is_of_scheme && (is_folder || is_trace_file_name(path.filename().native()));
}

std::uint64_t digest(std::uint64_t hash, std::span<const Index> rows) {
  for (const Index row : rows) hash = mix64(hash ^ static_cast<std::uint64_t>(row));
  return mix64(hash ^ rows.size());
}

/// Returns the reason to skip a scheme, if the error means that it does not fit the memory or the
/// transport. Any other error is a failure: nothing.
std::optional<std::string> refusal_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const BudgetError& refused) {
    return refused.what();
  } catch (const RefusedError& refused) {
    return refused.what();
  } catch (const UnsupportedError& unsupported) {
    return unsupported.what();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (...) {
    return std::nullopt;
  }
}

/// Adds one step's share to the mean over steps.
void add_part(Prediction& mean, const Prediction& of_step, double steps) {
  mean.seconds += of_step.seconds / steps;
  mean.bytes_busiest += of_step.bytes_busiest / steps;
  for (const HostCost& cost : kHostCosts) {
    mean.work.*cost.amount += of_step.work.*cost.amount / steps;
  }
  mean.memory_bytes = std::max(mean.memory_bytes, of_step.memory_bytes);
  mean.host_seconds += of_step.host_seconds / steps;
  mean.seconds_at_best += of_step.seconds_at_best / steps;
  mean.seconds_at_worst += of_step.seconds_at_worst / steps;
  if (mean.ruled_out.empty()) mean.ruled_out = of_step.ruled_out;
}

}  // namespace

std::string_view name_of(CompareClock clock) {
  return clock == CompareClock::real ? "real" : "virtual";
}

Comparison::Comparison(Workers& workers, Trace trace, CompareOptions options)
    : workers_(workers),
      trace_(std::move(trace)),
      options_(std::move(options)),
      spaces_(row_spaces(on_wire(bucket_for({})).tensors)) {
  const TraceHeader& header = trace_.header();
  if (header.workers != workers_.size()) {
    throw InputError(fmt::format(
        "{0}: the trace has {1} workers, but this run has {2}: start {1} (mpirun -np {1}; with "
        "--transport ucx also sparsesync launch -n {1}), or make another trace",
        trace_.path().string(), header.workers, workers_.size()));
  }
  if (options_.clock == CompareClock::replayed &&
      static_cast<int>(workers_.here().size()) != workers_.size()) {
    throw InputError(
        "--clock virtual needs all workers in one process: use --transport local, or --clock real");
  }
  schemes_ = schemes_of(options_.schemes);
  check_options();
  for (int step = 0; step < header.steps; ++step) read_step(step);
}

void Comparison::read_step(int step) {
  const TraceHeader& header = trace_.header();
  const std::vector<OwnedIndexSets> of_tensors = tensor_sets(trace_, step);
  for (std::size_t tensor = 0; tensor < of_tensors.size(); ++tensor) {
    const TensorSpec& spec = header.tensors[tensor];
    const IndexSets sets = views_of(of_tensors[tensor]);
    partitioned_ideal_ += partitioned_ideal_bytes(spec.rows, spec.row_bytes(), sets) / header.steps;
    lower_bound_ += lower_bound_bytes(spec.row_bytes(), sets) / header.steps;
  }
  const std::vector<OwnedIndexSets>& of_spaces =
      sets_.emplace_back(space_sets(of_tensors, spaces_));
  Statistics& statistics = statistics_.emplace_back();
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    statistics.push_back(
        statistics_of(views_of(of_spaces[i]), spaces_[i], options_.scheme_options));
  }
}

BucketSpec Comparison::bucket_for(const SchemeEntry& entry) const {
  return {"trace",
          trace_.header().tensors,
          std::string(entry.name),
          Reduction::sum,
          std::nullopt,
          options_.scheme_options,
          options_.announce && entry.heeds.has(SchemeOption::announce)};
}

void Comparison::check_options() {
  validate(bucket_for(schemes_.front()));
  const bool told = options_.scheme_options.workers_per_node != 0;
  if (!told) options_.scheme_options.workers_per_node = workers_.per_node();
  for (const SchemeEntry& entry : schemes_) {
    std::string& unfit = unfit_.emplace_back();
    if (entry.check == nullptr) continue;
    try {
      entry.check(options_.scheme_options, workers_.size());
    } catch (const InputError& error) {
      // Skip the scheme instead if it was not requested, and only the detected nodes do not fit it.
      if (told || options_.scheme_options.workers_per_node != 0 || !options_.schemes.empty()) throw;
      SchemeOptions any_nodes = options_.scheme_options;
      any_nodes.workers_per_node = 1;
      entry.check(any_nodes, workers_.size());
      unfit = error.what();
    }
  }
  for (const SchemeOption option : options_.given) {
    const auto heeded_by = [&](const SchemeEntry& entry) {
      return heeds(entry, option, options_.scheme_options);
    };
    if (std::none_of(schemes_.begin(), schemes_.end(), heeded_by)) {
      throw InputError(
          fmt::format("--{}: none of these schemes uses it: remove it", name_of(option)));
    }
  }
}

Workload Comparison::workload(const Statistics& statistics) const {
  return {.spaces = spaces_,
          .size = workers_.size(),
          .statistics = statistics,
          .options = options_.scheme_options};
}

std::optional<Network> Comparison::network() const {
  if (options_.network) return options_.network;
  const LocalLink& link = options_.link;
  if (link.rate_bps) return Network{link.latency_s, *link.rate_bps};
  // A simulated link cannot be measured. Without a rate, its bytes take no time.
  constexpr double kNoTime = 1e18;
  if (options_.clock == CompareClock::replayed) return Network{link.latency_s, kNoTime};
  return std::nullopt;
}

std::vector<Prediction> Comparison::predictions(const Network& network) const {
  const auto memory = static_cast<double>(workspace_of_a_worker());
  std::vector<Prediction> means;  // in the order of the first step's
  for (const Statistics& statistics : statistics_) {
    const std::vector<Prediction> of_step =
        plan({spaces_, workers_.size(), statistics, network, options_.scheme_options,
              workers_.has_all_reduce() || options_.nccl, options_.announce, memory});
    if (means.empty()) {
      for (const Prediction& prediction : of_step) means.push_back({prediction.variant});
    }
    for (Prediction& mean : means) {  // every step has a prediction of every variant
      add_part(mean, *prediction_of(of_step, mean.variant),
               static_cast<double>(statistics_.size()));
    }
  }
  std::stable_sort(means.begin(), means.end(), is_better);
  return means;
}

double Comparison::bytes_beside_workspaces() const {
  const int on_this_machine = workers_.on_this_machine();
  const double processes =
      static_cast<double>(on_this_machine) / static_cast<double>(workers_.here().size());
  // While the next step's reference sums are computed, those of the last step are in use.
  const double answers_kept = trace_.header().steps > 1 ? 2 : 1;
  constexpr double kIndexBytes = sizeof(Index);
  constexpr double kAnswerBytes = 2 * sizeof(double);  // per element of a ReferenceSum
  double most = 0;
  for (const Statistics& of_step : statistics_) {
    double bytes = 0;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      double row = 0;
      for (const RowSpace::Member& member : spaces_[i].members) {
        const TensorSpec& tensor = trace_.header().tensors[member.tensor];
        row = std::max(row, static_cast<double>(tensor.row_bytes()));
      }
      const SpaceStatistics& known = of_step[i];
      const double input = kIndexBytes + row;
      const double answer = kIndexBytes + kAnswerBytes * static_cast<double>(spaces_[i].width);
      const double result = kIndexBytes + (options_.gpu ? row : 0);  // values are in the workspace
      bytes += on_this_machine * (known.touched_mean * input + known.united * result);
      bytes += processes * (answers_kept * known.united * answer + known.touched_max * input);
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::int64_t Comparison::workspace_of_a_worker() const {
  if (options_.memory) return *options_.memory;
  const SharedMemory shared = shared_memory(options_.gpu, workers_.on_this_machine());
  const double to_give = shared.to_give - (options_.gpu ? 0 : bytes_beside_workspaces());
  return static_cast<std::int64_t>(std::max(0.0, to_give) / shared.workers);
}

ControlChannel::Statement Comparison::statement() const {
  const TraceHeader& header = trace_.header();
  ControlChannel::Statement statement{
      {"the trace's number of steps", fmt::format("{}", header.steps)},
      {"the trace's seed", fmt::format("{}", header.seed)}};
  for (const TensorSpec& tensor : header.tensors) {
    statement.emplace_back(
        fmt::format("tensor '{}'", tensor.name),
        fmt::format("{} x {} {}", tensor.rows, tensor.width, name_of(tensor.dtype)));
  }
  for (std::size_t step = 0; step < sets_.size(); ++step) {
    std::uint64_t hash = 0;
    for (const OwnedIndexSets& of_space : sets_[step]) {
      for (const std::vector<Index>& set : of_space) hash = digest(hash, set);
    }
    statement.emplace_back(fmt::format("the digest of the rows touched at step {}", step),
                           fmt::format("{:016x}", hash));
  }
  std::vector<std::string_view> names;
  for (const SchemeEntry& entry : schemes_) names.push_back(entry.name);
  statement.emplace_back("--schemes", fmt::format("{}", fmt::join(names, ",")));
  for (auto& [what, value] : statement_of(options_.scheme_options)) {
    statement.emplace_back(what, value);
  }
  statement.emplace_back("--announce", options_.announce ? "given" : "not given");
  statement.emplace_back("--repeat", fmt::format("{}", options_.repeat));
  statement.emplace_back("--memory", options_.memory ? fmt::format("{}", *options_.memory) : "all");
  statement.emplace_back("--deadline", fmt::format("{} ms", options_.deadline.count()));
  const Network network = options_.network.value_or(Network{});
  std::string known = fmt::format("{} s, {} bits/s", network.latency_s, network.rate_bps);
  for (const HostCost& cost : kHostCosts) {
    known += fmt::format(", {} {}", cost.name, network.host.*cost.seconds);
  }
  statement.emplace_back("--network", known);
  statement.emplace_back("--result", options_.result ? "given" : "not given");
  return statement;
}

std::optional<std::string> Comparison::reason_to_skip(double bytes_of_a_worker) const {
  const SharedMemory shared = shared_memory(options_.gpu, workers_.on_this_machine());
  const double beside = bytes_beside_workspaces();
  const SharedMemory host = shared_memory(std::nullopt, workers_.on_this_machine());
  if (options_.memory && beside / host.workers > static_cast<double>(*options_.memory)) {
    return fmt::format(
        "needs about {:.0f} bytes for each worker's inputs and reference sums, --memory allows {}",
        beside / host.workers, *options_.memory);
  }
  if (options_.memory && bytes_of_a_worker > static_cast<double>(*options_.memory)) {
    return fmt::format("needs about {:.0f} bytes of workspace for each worker, --memory allows {}",
                       bytes_of_a_worker, *options_.memory);
  }
  const double needed = bytes_of_a_worker * shared.workers;
  const double on_host = beside + (options_.gpu ? 0 : needed);
  if (on_host > host.to_give) {
    return fmt::format(
        "needs about {:.1f} GB for inputs, reference sums and workspace of {} workers, this "
        "machine has {:.1f} GB available",
        on_host / 1e9, host.workers, host.to_give / 1e9);
  }
  if (options_.gpu && needed > shared.to_give) {
    return fmt::format(
        "needs about {:.1f} GB of workspace for {} workers, this GPU has {:.1f} GB available",
        needed / 1e9, shared.workers, shared.to_give / 1e9);
  }
  return std::nullopt;
}

std::vector<MemoryNeed> Comparison::memory_needs() const {
  std::vector<MemoryNeed> needs;
  for (std::size_t i = 0; i < schemes_.size(); ++i) {
    const SchemeEntry& entry = schemes_[i];
    if (!unfit_[i].empty()) {
      needs.push_back({std::string(entry.name), 0, unfit_[i]});
      continue;
    }
    double bytes = 0;
    double least = 0;  // with the most rounds that a step which is too large is split into
    for (const Statistics& statistics : statistics_) {
      Workload of_step = workload(statistics);
      bytes = std::max(bytes, entry.workspace_bytes(of_step));
      of_step.rounds = kMostRounds;
      least = std::max(least, entry.workspace_bytes(of_step));
    }
    needs.push_back({std::string(entry.name), bytes, reason_to_skip(least)});
  }
  return needs;
}

std::vector<WorkerRecord> Comparison::run_workers(const SchemeEntry& entry, References& references,
                                                  const std::filesystem::path& result_folder,
                                                  Recording* recording) {
  const auto imbalance_of = [&](const Scheme& scheme, int step) {
    std::vector<IndexSets> sets;
    for (const OwnedIndexSets& of_space : sets_[static_cast<std::size_t>(step)]) {
      sets.push_back(views_of(of_space));
    }
    return scheme.imbalance(sets);
  };
  const auto gpus_of_worker =
      [&](const Transport& transport) -> std::optional<CompareWorker::Gpus> {
    if (!options_.gpu) return std::nullopt;
    return gpus_of(*options_.gpu, transport, workers_.here());
  };
  std::atomic<std::int64_t> done = 0;
  const CompareWorker::Task task{.trace = trace_,
                                 .bucket = bucket_for(entry),
                                 .repeat = options_.repeat,
                                 .deadline = options_.deadline,
                                 .memory = workspace_of_a_worker(),
                                 .late_refusals = options_.memory.has_value(),
                                 .gpus_of = gpus_of_worker,
                                 .nccl = options_.nccl,
                                 .network = network(),
                                 .result_folder = result_folder,
                                 .references = references,
                                 .imbalance_of = imbalance_of,
                                 .step_done = [&] { ++done; },
                                 .recording = recording};
  // Connect all workers before the first one begins. If a worker fails at once, the others then see
  // that it left, instead of waiting for it to join.
  std::vector<std::unique_ptr<Transport>> ends = workers_.connect();
  if (recording != nullptr) {
    for (std::unique_ptr<Transport>& end : ends) end = recording->wrap(std::move(end));
  }
  const std::int64_t in_all = std::ssize(ends) * options_.repeat * trace_.header().steps;
  std::vector<WorkerRecord> records(ends.size());
  const std::vector<std::exception_ptr> errors = run_in_threads(
      std::move(ends),
      [&](std::unique_ptr<Transport>& end, std::size_t place) {
        const Rank rank = end->rank();
        try {
          CompareWorker(task).run(std::move(end), records[place]);
        } catch (const AbortedError& aborted) {
          if (aborted.peer() != rank) throw;
          // This worker ran out of memory in the middle of a step.
          records[place].refusal = aborted.what();
        }
      },
      [&] {
        if (options_.progress) options_.progress(std::string(entry.name), done, in_all);
      });
  for (const WorkerRecord& record : records) {
    if (record.refusal) return {record};
  }
  if (const std::exception_ptr cause = first_cause(errors)) {
    records.front().refusal = refusal_in(cause);
    if (!records.front().refusal) std::rethrow_exception(cause);
  }
  return records;
}

std::vector<WorkerRecord> Comparison::gather(std::vector<WorkerRecord> records) {
  if (records.size() == static_cast<std::size_t>(workers_.size())) return records;
  std::vector<WorkerRecord> all;
  for (const std::string& text : workers_.all_gather(text_of(records.front()))) {
    all.push_back(record_from(text));
  }
  return all;
}

SchemeFigures Comparison::measure(const SchemeEntry& entry, References& references,
                                  const std::filesystem::path& result_folder) {
  std::optional<Recording> recording;
  if (options_.clock == CompareClock::replayed) recording.emplace(workers_.size());
  const std::vector<WorkerRecord> records =
      gather(run_workers(entry, references, result_folder, recording ? &*recording : nullptr));
  for (const WorkerRecord& record : records) {
    if (record.refusal) return skipped(entry.name, *record.refusal);
  }
  SchemeFigures figures = figures_of(entry, records);
  StepTimes times;
  if (recording) {
    std::vector<RecordedStep> steps = recording->take_steps();
    // The first steps are not counted: the warm-up, which allocates, and the trials of `auto`.
    const auto counted = static_cast<std::ptrdiff_t>(options_.repeat) * trace_.header().steps;
    steps.erase(steps.begin(), steps.end() - counted);
    const RecordedRun run{trace_.header().steps, std::move(steps)};
    times = replayed_times(run, options_.link);
    figures.recorded = std::make_shared<const RecordedRun>(run);
  } else {
    times = times_of(measured_seconds(records));
  }
  figures.seconds_median = times.median;
  figures.seconds_min = times.min;
  return figures;
}

CompareReport Comparison::run() {
  CompareReport report{.trace = trace_.header(),
                       .repeat = options_.repeat,
                       .clock = options_.clock,
                       .link = options_.link,
                       .wire = options_.scheme_options.wire,
                       .announce = options_.announce,
                       .partitioned_ideal_bytes = partitioned_ideal_,
                       .lower_bound_bytes = lower_bound_,
                       .schemes = {}};
  std::optional<OutputDirectory> results;
  std::filesystem::path staging;  // folder that all workers write to
  if (options_.result) {
    std::string named;
    workers_.together([&] {
      if (!workers_.leads()) return;
      results.emplace(*options_.result, options_.force, OwnNames{kResultMarker, is_in_results});
      OutputFile marker(results->staging() / kResultMarker, false);
      marker.write(fmt::format("{}\n", trace_.path().string()));
      marker.commit();
      named = std::filesystem::absolute(results->staging()).string();
    });
    staging = workers_.all_gather(named).front();
  }
  References references(trace_, options_.scheme_options.wire);  // shared by all schemes
  const std::vector<MemoryNeed> needs = memory_needs();
  for (std::size_t i = 0; i < schemes_.size(); ++i) {
    // Memory differs between machines: if one has to skip the scheme, all do.
    for (const std::string& reason : workers_.all_gather(needs[i].skipped.value_or(""))) {
      if (reason.empty()) continue;
      report.schemes.push_back(skipped(schemes_[i].name, reason));
      break;
    }
    if (report.schemes.size() > i) continue;
    std::filesystem::path folder;
    if (options_.result) {
      folder = staging / std::string(schemes_[i].name);
      workers_.together([&] {
        std::error_code failed;
        if (workers_.leads()) std::filesystem::create_directory(folder, failed);
        if (failed) {
          throw IoError(fmt::format("cannot create {}: {}", in_quotes(folder.native()),
                                    with_mend_of_system(failed.value())));
        }
      });
    }
    report.schemes.push_back(measure(schemes_[i], references, folder));
  }
  workers_.together([&] {
    if (results) results->commit();
  });
  return report;
}

}  // namespace sparsesync
