// Computes the figures of a comparison from its workers' records.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "analysis/compare/compare.h"
#include "analysis/compare/rank_result.h"
#include "engine/session/auto_scheme.h"

namespace sparsesync {

SchemeFigures Comparison::figures_of(const SchemeEntry& entry,
                                     const std::vector<WorkerRecord>& records) const {
  const TraceHeader& header = trace_.header();
  SchemeFigures figures;
  figures.name = entry.name;
  figures.correct = true;
  std::string other_bits;
  const int steps_in_all = options_.repeat * header.steps;
  for (int at = 0; at < steps_in_all; ++at) {
    const auto place = static_cast<std::size_t>(at);
    const auto first_time = static_cast<std::size_t>(at % header.steps);
    std::int64_t sent_max = 0;
    std::int64_t received_max = 0;
    for (const WorkerRecord& record : records) {
      const StepRecord& seen = record.steps[place];
      sent_max = std::max(sent_max, seen.bytes_sent);
      received_max = std::max(received_max, seen.bytes_received);
      figures.bytes_total += static_cast<double>(seen.bytes_sent);
      figures.bytes_index += static_cast<double>(seen.index_bytes_sent);
      figures.messages += static_cast<double>(seen.messages_sent);
      // The result must have the same bits on all workers and in all repeats.
      if (seen.bits != records.front().steps[first_time].bits) {
        figures.correct = false;
        other_bits = fmt::format("step {}, repeat {}: the bits differ from worker 0's first result",
                                 first_time, at / header.steps);
      }
    }
    figures.bytes_sent_max += static_cast<double>(sent_max);
    figures.bytes_received_max += static_cast<double>(received_max);
    figures.non_finite += static_cast<double>(records.front().steps[place].non_finite);
  }
  // So far these are sums of whole numbers, hence exact.
  for (double* sum : {&figures.bytes_sent_max, &figures.bytes_received_max, &figures.bytes_total,
                      &figures.bytes_index, &figures.messages, &figures.non_finite}) {
    *sum /= steps_in_all;
  }
  figures.bytes_values = figures.bytes_total - figures.bytes_index -
                         figures.messages * static_cast<double>(kHeaderBytes);
  figures.rounds = records.front().rounds;
  const SchemeVariant& chosen = records.front().variant;
  if (entry.name == kAuto) figures.chosen = chosen.label();
  if (const std::optional<Network> known = network()) {
    double predicted = 0;
    for (const Statistics& statistics : statistics_) {
      Workload of_step = workload(statistics);
      of_step.options = options_for(chosen, of_step.options);
      predicted += scheme_named(chosen.scheme).cost(of_step).seconds(*known) / header.steps;
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

std::vector<double> Comparison::measured_seconds(const std::vector<WorkerRecord>& records) const {
  const int steps = trace_.header().steps;
  std::vector<double> seconds;
  for (int repeat = 0; repeat < options_.repeat; ++repeat) {
    double of_repeat = 0;
    for (int step = 0; step < steps; ++step) {
      Clock::time_point begin = Clock::time_point::max();
      Clock::time_point end = Clock::time_point::min();
      for (const WorkerRecord& record : records) {
        const StepRecord& seen = record.steps[static_cast<std::size_t>(repeat * steps + step)];
        begin = std::min(begin, seen.begin);
        end = std::max(end, seen.end);
      }
      of_repeat += std::chrono::duration<double>(end - begin).count();
    }
    seconds.push_back(of_repeat / steps);
  }
  return seconds;
}

}  // namespace sparsesync
