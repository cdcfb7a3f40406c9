#include "engine/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>

#include "analysis/yardsticks.h"
#include "engine/compare_worker.h"
#include "engine/provenance.h"

namespace sparsesync {
namespace {

/// Of what the machine has, how much a comparison takes at most: inputs, answers and the system
/// need some too.
constexpr double kShareOfMemory = 0.8;

/// Stands in a folder of results: --force replaces no other folder.
constexpr const char* kResultMarker = ".sparsesync-result";

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const std::size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}

IndexSets views_of(const std::vector<std::vector<Index>>& sets) {
  return {sets.begin(), sets.end()};
}

/// Whether an error says that the scheme's nature does not fit the budget: it is then skipped, not
/// failed.
std::optional<std::string> refusal_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const BudgetError& refused) {
    return refused.what();
  } catch (const RefusedError& refused) {
    return refused.what();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (...) {
    return std::nullopt;
  }
}

/// Of several workers' errors one that the others follow from: a worker that only lost another one
/// is not it.
std::exception_ptr first_cause(const std::vector<WorkerRecord>& records) {
  std::exception_ptr consequence;
  for (const WorkerRecord& record : records) {
    if (!record.error) continue;
    try {
      std::rethrow_exception(record.error);
    } catch (const AbortedError&) {
      consequence = record.error;
    } catch (const PeerLostError&) {
      consequence = record.error;
    } catch (...) {
      return record.error;
    }
  }
  return consequence;
}

}  // namespace

Comparison::Comparison(Trace trace, CompareOptions options)
    : trace_(std::move(trace)),
      options_(std::move(options)),
      spaces_(row_spaces(trace_.header().tensors)) {
  const TraceHeader& header = trace_.header();
  if (options_.schemes.empty()) {
    schemes_ = all_schemes();
  } else {
    for (const std::string& name : options_.schemes) {
      const bool stands = std::any_of(schemes_.begin(), schemes_.end(),
                                      [&](const SchemeEntry& entry) { return entry.name == name; });
      if (!stands) schemes_.push_back(scheme_named(name));
    }
  }
  trace_.validate();
  for (int step = 0; step < header.steps; ++step) {
    auto& of_step = sets_.emplace_back(spaces_.size());
    std::vector<std::vector<std::vector<Index>>> of_tensors(header.tensors.size());
    for (int worker = 0; worker < header.workers; ++worker) {
      std::vector<TracePart> parts = trace_.load_indices(worker, step);
      for (std::size_t tensor = 0; tensor < parts.size(); ++tensor) {
        std::vector<Index>& rows = parts[tensor].indices;
        std::sort(rows.begin(), rows.end());
        rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
        of_tensors[tensor].push_back(std::move(rows));
      }
    }
    for (std::size_t tensor = 0; tensor < of_tensors.size(); ++tensor) {
      const TensorSpec& spec = header.tensors[tensor];
      const Index row_bytes = spec.width * element_bytes(spec.dtype);
      const IndexSets sets = views_of(of_tensors[tensor]);
      partitioned_ideal_ += partitioned_ideal_bytes(spec.rows, row_bytes, sets) / header.steps;
      lower_bound_ += lower_bound_bytes(row_bytes, sets) / header.steps;
    }
    Statistics& statistics = statistics_.emplace_back(spaces_.size());
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      auto& of_space = of_step[i];
      of_space.resize(static_cast<std::size_t>(header.workers));
      for (const RowSpace::Member& member : spaces_[i].members) {
        for (std::size_t worker = 0; worker < of_space.size(); ++worker) {
          for (const Index row : of_tensors[member.tensor][worker]) {
            of_space[worker].push_back(row + member.first_row);
          }
        }
      }
      for (const std::vector<Index>& set : of_space) {
        const auto touched = static_cast<double>(set.size());
        statistics[i].touched_mean += touched / header.workers;
        statistics[i].touched_max = std::max(statistics[i].touched_max, touched);
      }
      statistics[i].united = static_cast<double>(united_rows(views_of(of_space)).size());
    }
  }
}

std::optional<std::string> Comparison::reason_to_skip(double bytes_of_a_worker) const {
  const auto available = static_cast<double>(available_memory()) * kShareOfMemory;
  const int workers = trace_.header().workers;
  if (options_.memory && bytes_of_a_worker > static_cast<double>(*options_.memory)) {
    return fmt::format("needs about {:.0f} bytes of workspace for each worker, --memory allows {}",
                       bytes_of_a_worker, *options_.memory);
  }
  if (bytes_of_a_worker * workers > available) {
    return fmt::format(
        "needs about {:.1f} GB of workspace for {} workers, this machine has {:.1f} GB to give",
        bytes_of_a_worker * workers / 1e9, workers, available / 1e9);
  }
  return std::nullopt;
}

std::vector<MemoryNeed> Comparison::memory_needs() const {
  std::vector<MemoryNeed> needs;
  for (const SchemeEntry& entry : schemes_) {
    double bytes = 0;
    for (const Statistics& statistics : statistics_) {
      bytes = std::max(bytes, entry.workspace_bytes(spaces_, trace_.header().workers, statistics));
    }
    needs.push_back({std::string(entry.name), bytes, reason_to_skip(bytes)});
  }
  return needs;
}

SchemeFigures Comparison::measure(const SchemeEntry& entry, References& references,
                                  const std::filesystem::path& result_folder) {
  const TraceHeader& header = trace_.header();
  const int workers = header.workers;
  const BucketSpec bucket{"trace", header.tensors, std::string(entry.name), Reduction::sum, 1};
  const auto shared_out =
      static_cast<std::int64_t>(static_cast<double>(available_memory()) * kShareOfMemory / workers);
  const std::int64_t memory = options_.memory.value_or(shared_out);
  LocalNetwork network(workers, options_.link);
  std::vector<WorkerRecord> records(static_cast<std::size_t>(workers));
  std::atomic<std::int64_t> done = 0;
  const std::int64_t in_all = std::int64_t{workers} * options_.repeat * header.steps;
  const auto imbalance_of = [&](const Scheme& scheme, int step) {
    std::vector<IndexSets> sets;
    for (const auto& of_space : sets_[static_cast<std::size_t>(step)]) {
      sets.push_back(views_of(of_space));
    }
    return scheme.imbalance(sets);
  };
  const CompareWorker::Task task{trace_,         bucket,        options_.repeat, options_.deadline,
                                 memory,         result_folder, references,      imbalance_of,
                                 [&] { ++done; }};
  std::atomic<int> running = workers;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    // Joined here, so that a worker that fails at once is seen by the others as one that left.
    threads.emplace_back([&, rank, transport = network.join(Rank{rank})]() mutable {
      WorkerRecord& record = records[static_cast<std::size_t>(rank)];
      try {
        CompareWorker(task).run(std::move(transport), record);
      } catch (...) {
        record.error = std::current_exception();
      }
      --running;
    });
  }
  while (running > 0) {
    if (options_.progress) options_.progress(std::string(entry.name), done, in_all);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (std::thread& thread : threads) thread.join();

  SchemeFigures figures;
  figures.name = entry.name;
  if (const std::exception_ptr cause = first_cause(records)) {
    figures.skipped = refusal_in(cause);
    if (!figures.skipped) std::rethrow_exception(cause);
    return figures;
  }
  figures.correct = true;
  std::string other_bits;
  std::vector<double> seconds;
  for (int repeat = 0; repeat < options_.repeat; ++repeat) {
    double of_repeat = 0;
    for (int step = 0; step < header.steps; ++step) {
      const auto at = static_cast<std::size_t>(repeat * header.steps + step);
      Clock::time_point begin = Clock::time_point::max();
      Clock::time_point end = Clock::time_point::min();
      std::int64_t sent_max = 0;
      std::int64_t received_max = 0;
      for (const WorkerRecord& record : records) {
        const StepRecord& seen = record.steps[at];
        begin = std::min(begin, seen.begin);
        end = std::max(end, seen.end);
        sent_max = std::max(sent_max, seen.bytes_sent);
        received_max = std::max(received_max, seen.bytes_received);
        figures.bytes_total += static_cast<double>(seen.bytes_sent);
        figures.bytes_index += static_cast<double>(seen.index_bytes_sent);
        figures.messages += static_cast<double>(seen.messages_sent);
        // The same bits on all workers and in all repeats.
        if (seen.bits != records.front().steps[static_cast<std::size_t>(step)].bits) {
          figures.correct = false;
          other_bits = fmt::format("step {}, repeat {}: not the same bits as worker 0 had at first",
                                   step, repeat);
        }
      }
      figures.bytes_sent_max += static_cast<double>(sent_max);
      figures.bytes_received_max += static_cast<double>(received_max);
      of_repeat += std::chrono::duration<double>(end - begin).count();
    }
    seconds.push_back(of_repeat / header.steps);
  }
  // Sums of whole numbers so far: exact.
  for (double* sum : {&figures.bytes_sent_max, &figures.bytes_received_max, &figures.bytes_total,
                      &figures.bytes_index, &figures.messages}) {
    *sum /= options_.repeat * header.steps;
  }
  figures.bytes_values = figures.bytes_total - figures.bytes_index -
                         figures.messages * static_cast<double>(kHeaderBytes);
  figures.seconds_median = median(seconds);
  figures.seconds_min = *std::min_element(seconds.begin(), seconds.end());
  if (options_.link.rate_bps) {
    const Network network_model{options_.link.latency_s, *options_.link.rate_bps};
    double predicted = 0;
    for (const Statistics& statistics : statistics_) {
      predicted += entry.cost(spaces_, workers, statistics).seconds(network_model) / header.steps;
    }
    figures.seconds_predicted = predicted;
  }
  const std::vector<Imbalance>& imbalances = records.front().imbalances;
  if (!imbalances.empty()) {
    Imbalance mean{0, 0};
    for (const Imbalance& of_step : imbalances) {
      mean.push += of_step.push / static_cast<double>(imbalances.size());
      mean.pull += of_step.pull / static_cast<double>(imbalances.size());
    }
    figures.imbalance = mean;
  }
  for (const WorkerRecord& record : records) {
    figures.memory_bytes = std::max(figures.memory_bytes, record.memory_bytes);
    if (record.first_difference && figures.first_difference.empty()) {
      figures.first_difference = *record.first_difference;
    }
    figures.correct = figures.correct && !record.first_difference;
  }
  if (figures.first_difference.empty()) figures.first_difference = other_bits;
  figures.choices = records.front().choices;
  return figures;
}

CompareReport Comparison::run() {
  const TraceHeader& header = trace_.header();
  CompareReport report{header.tensors, header.workers,     header.steps, options_.repeat,
                       options_.link,  partitioned_ideal_, lower_bound_, {}};
  std::optional<OutputDirectory> results;
  if (options_.result) {
    results.emplace(*options_.result, options_.force, kResultMarker);
    OutputFile marker(results->staging() / kResultMarker, false);
    marker.write(fmt::format("{}\n", trace_.path().string()));
    marker.commit();
  }
  References references(trace_);  // the same for all schemes
  const std::vector<MemoryNeed> needs = memory_needs();
  for (std::size_t i = 0; i < schemes_.size(); ++i) {
    if (needs[i].skipped) {
      SchemeFigures& skipped = report.schemes.emplace_back();
      skipped.name = schemes_[i].name;
      skipped.skipped = needs[i].skipped;
      continue;
    }
    std::filesystem::path folder;
    if (results) {
      folder = results->staging() / std::string(schemes_[i].name);
      std::error_code failed;
      std::filesystem::create_directory(folder, failed);
      if (failed) throw IoError(fmt::format("{}: {}", folder.string(), failed.message()));
    }
    report.schemes.push_back(measure(schemes_[i], references, folder));
  }
  if (results) results->commit();
  return report;
}

}  // namespace sparsesync
