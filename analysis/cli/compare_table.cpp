#include "analysis/cli/output.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/cli/table.h"
#include "analysis/cli/units.h"

namespace sparsesync {
namespace {

/// "-" where there is nothing to divide by.
std::string ratio(double a, double b, int digits) {
  return b > 0 ? fmt::format("{:.{}f}", a / b, digits) : "-";
}

}  // namespace

std::string memory_needs_text(const std::vector<MemoryNeed>& needs, int workers) {
  std::string text = fmt::format("memory needed (workspace, {} workers on this machine):", workers);
  for (const MemoryNeed& need : needs) {
    text += fmt::format(" {} {}{}", need.scheme, format_bytes(need.bytes_of_a_worker * workers),
                        need.skipped ? " (skipped)" : "");
    text += &need == &needs.back() ? "\n" : ",";
  }
  return text;
}

std::string predictions_table(const std::vector<Prediction>& predictions) {
  Table table({{"expected", Table::Align::left},
               {"seconds"},
               {"busiest worker"},
               {"memory"},
               {"", Table::Align::left}});
  for (const Prediction& prediction : predictions) {
    table.add_row({prediction.way.label(), format_seconds(prediction.seconds),
                   format_bytes(prediction.bytes_busiest), format_bytes(prediction.memory_bytes),
                   prediction.ruled_out});
  }
  return table.text() + "\n";
}

std::string compare_heading(const CompareReport& report, std::string_view transport) {
  double dense = 0;
  for (const TensorSpec& tensor : report.trace.tensors) {
    dense += static_cast<double>(tensor.dense_bytes());
  }
  const std::string link =
      transport == "mpi"
          ? "as it is"
          : fmt::format("{}, latency {}",
                        report.link.rate_bps ? format_rate(*report.link.rate_bps) : "unshaped",
                        format_seconds(report.link.latency_s));
  return fmt::format(
      "{} workers over {} ({}, {} clock), {} step{}, median of {}\n"
      "dense gradient {}, partitioned ideal {}, lower bound {} a step for the busiest worker\n\n",
      report.trace.workers, transport, link, name_of(report.clock), report.trace.steps,
      report.trace.steps == 1 ? "" : "s", report.repeat, format_bytes(dense),
      format_bytes(report.partitioned_ideal_bytes), format_bytes(report.lower_bound_bytes));
}

std::string compare_table(const CompareReport& report) {
  std::vector<const SchemeFigures*> ran;
  std::string skipped;
  double dense_seconds = 0;
  for (const SchemeFigures& figures : report.schemes) {
    if (figures.skipped) {
      skipped += fmt::format("{} skipped: {}\n", figures.name, *figures.skipped);
      continue;
    }
    ran.push_back(&figures);
    if (figures.name == "dense_ring") dense_seconds = figures.seconds_median;
  }
  std::sort(ran.begin(), ran.end(), [](const SchemeFigures* a, const SchemeFigures* b) {
    return a->seconds_median < b->seconds_median;
  });
  Table table({{"", Table::Align::left},
               {"scheme", Table::Align::left},
               {"busiest worker"},
               {"× ideal"},
               {"seconds"},
               {"× faster than dense"},
               {"imbalance"},
               {"memory"},
               {"correct", Table::Align::left}});
  std::string overflowed;
  bool has_winner = false;  // the fastest one that is right
  for (const SchemeFigures* each : ran) {
    const SchemeFigures& of = *each;
    const bool wins = of.correct && !has_winner;
    has_winner = has_winner || wins;
    std::string name = of.chosen.empty() ? of.name : fmt::format("{}: {}", of.name, of.chosen);
    if (of.rounds > 1) name += fmt::format(" in {} rounds", of.rounds);
    table.add_row({wins ? "*" : "", std::move(name), format_bytes(of.bytes_busiest()),
                   ratio(of.bytes_busiest(), report.partitioned_ideal_bytes, 3),
                   format_seconds(of.seconds_median),
                   dense_seconds > 0 ? ratio(dense_seconds, of.seconds_median, 2) : "-",
                   of.imbalance
                       ? fmt::format("{:.3f}", std::max(of.imbalance->push, of.imbalance->pull))
                       : "-",
                   format_bytes(static_cast<double>(of.memory_bytes)), of.correct ? "yes" : "NO"});
    if (of.non_finite > 0) {
      overflowed +=
          fmt::format("{}: {} values of a step's sums are not finite: too large for --wire?\n",
                      of.name, of.non_finite);
    }
  }
  return table.text() + overflowed + skipped;
}

}  // namespace sparsesync
