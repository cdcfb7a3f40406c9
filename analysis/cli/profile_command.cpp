// `sparsesync profile`: density, overlap between workers, and skew of a trace's gradients.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "analysis/profile/profile.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

struct ProfileArguments {
  std::string trace;
  std::string partitions;
  std::string json;
};

ProfileOptions options_from(const ProfileArguments& given) {
  constexpr std::int64_t kMostPartitions = 1 << 20;
  ProfileOptions options;
  options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (given.partitions.empty()) return options;
  options.partitions.clear();
  for (const std::string& text : between_commas("--partitions", given.partitions)) {
    options.partitions.push_back(
        static_cast<int>(parse_count("--partitions", text, 1, kMostPartitions)));
  }
  std::sort(options.partitions.begin(), options.partitions.end());
  options.partitions.erase(std::unique(options.partitions.begin(), options.partitions.end()),
                           options.partitions.end());
  return options;
}

std::string percent(double share) {
  return fmt::format("{:.4g}%", 100 * share);
}

/// Draws a number as a bar; the largest number takes 40 characters.
std::string bar(double number, double largest) {
  constexpr double kLongest = 40;
  const double length = largest > 0 ? kLongest * number / largest : 0;
  return std::string(static_cast<std::size_t>(number > 0 ? std::max(1.0, length) : 0), '#');
}

/// Formats pairs as two rows: the numbers, and below each its value.
template <typename Pairs, typename Format>
std::string two_rows(std::string title, const std::string& what, const Pairs& pairs,
                     Format&& format) {
  std::vector<Table::Column> columns{{std::move(title), Table::Align::left}};
  std::vector<std::string> cells{what};
  for (const auto& [number, value] : pairs) {
    columns.push_back({fmt::format("{}", number)});
    cells.push_back(format(value));
  }
  Table table(std::move(columns));
  table.add_row(std::move(cells));
  return table.text() + "\n";
}

std::string overlap_picture(const OverlapDistribution& overlap) {
  Table table(
      {{"overlap of two workers", Table::Align::left}, {"pairs"}, {"", Table::Align::left}});
  const auto most =
      static_cast<double>(*std::max_element(overlap.histogram.begin(), overlap.histogram.end()));
  for (std::size_t i = 0; i < overlap.histogram.size(); ++i) {
    const auto pairs = overlap.histogram[i];
    if (pairs == 0) continue;
    constexpr double kBins = OverlapDistribution::kBins;
    table.add_row({fmt::format("{:.2f} to {:.2f}", static_cast<double>(i) / kBins,
                               static_cast<double>(i + 1) / kBins),
                   format_count(pairs), bar(static_cast<double>(pairs), most)});
  }
  return table.text() + "\n";
}

std::string touch_picture(const TensorProfile& profile) {
  Table table({{"touches per row", Table::Align::left}, {"rows"}, {"", Table::Align::left}});
  double most = 0;
  const auto& histogram = profile.touch_histogram;
  for (const auto& [times, rows] : histogram) {
    if (times > 0) most = std::max(most, static_cast<double>(rows));
  }
  for (const auto& [times, rows] : histogram) {
    const std::string range =
        times < 2 ? fmt::format("{}", times)
                  : fmt::format("{} to {}", format_count(times), format_count(2 * times - 1));
    table.add_row({range, format_count(rows),
                   times > 0 ? bar(static_cast<double>(rows), most) : "(not drawn)"});
  }
  return table.text() + "\n";
}

std::string hot_rows(const TensorProfile& profile) {
  if (profile.hot_rows.empty()) return "no row is touched\n\n";
  Table table({{"hot row"}, {"share of all touches"}, {"so far"}});
  double so_far = 0;
  for (const CountedRow& hot : profile.hot_rows) {
    so_far += profile.share_of(hot);
    table.add_row({format_count(hot.row), percent(profile.share_of(hot)), percent(so_far)});
  }
  return table.text() + "\n";
}

/// Returns the tables of one tensor.
std::string profile_table(const TensorSpec& tensor, const TensorProfile& profile) {
  std::string text =
      fmt::format("{}: {} rows of width {}, {}\n\n", shortened(tensor.name),
                  format_count(tensor.rows), format_count(tensor.width), name_of(tensor.dtype));
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<25}{}\n", what, value);
  };
  const Spread& rows = profile.row_density;
  line("row density",
       fmt::format("{} ({} to {})", percent(rows.mean), percent(rows.min), percent(rows.max)));
  line("density of elements", percent(profile.density));
  line("overlap of two workers", profile.overlap.pairs > 0
                                     ? fmt::format("{:.3f}, standard deviation {:.3f}",
                                                   profile.overlap.mean, profile.overlap.stdev)
                                     : "- (one worker)");
  line("Zipf exponent", profile.zipf
                            ? fmt::format("{:.3f} (95% interval {:.3f} to {:.3f})", profile.zipf->s,
                                          profile.zipf->ci.low, profile.zipf->ci.high)
                            : "- (these touches do not determine it)");
  line("drift from first step",
       profile.drift.size() > 1
           ? fmt::format("{:.3f} at the second, {:.3f} at the last: constant if all steps "
                         "draw rows alike",
                         profile.drift[1], profile.drift.back())
           : "- (one step)");
  text += '\n';
  const auto times = [](double ratio) { return fmt::format("{:.3f}", ratio); };
  text += two_rows("workers", "densification", profile.densification, times);
  text += two_rows("even ranges", "skewness", profile.skewness, times);
  text += two_rows("elements of a block", "blocks not zero", profile.blocks, percent);
  if (profile.overlap.pairs > 0) text += overlap_picture(profile.overlap);
  text += touch_picture(profile);
  text += hot_rows(profile);
  return text;
}

void run_profile(const ProfileArguments& given) {
  ProfileOptions options = options_from(given);
  const Trace trace = Trace::open(given.trace);
  JsonOutput json(given.json);
  Progress progress("profiling");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<TensorProfile> profiles = profile(trace, options);
  progress.erase();
  const TraceHeader& header = trace.header();
  std::string text = fmt::format("{} worker{}, {} step{}\n\n", format_count(header.workers),
                                 header.workers == 1 ? "" : "s", format_count(header.steps),
                                 header.steps == 1 ? "" : "s");
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    text += profile_table(header.tensors[i], profiles[i]);
  }
  print(json.tables(), text);
  Json provenance = provenance_json();
  provenance["trace"] = given.trace;
  provenance["seed"] = header.seed;
  json.write(profile_json(header, profiles, provenance));
}

}  // namespace

void add_profile_command(CLI::App& app) {
  auto given = std::make_shared<ProfileArguments>();
  CLI::App& command = *app.add_subcommand(
      "profile", "Measure a trace's sparsity: density, overlap, densification, skewness, hot rows");
  command.add_option("trace", given->trace, "Folder of the trace")->type_name("TRACE")->required();
  command
      .add_option("--partitions", given->partitions,
                  "Numbers of even row ranges to report skewness for (default: 8,16,64,128)")
      ->type_name("P,...");
  add_json(command, given->json);
  command.footer(
      "docs/tools/profile.md defines each measure. A touch is one worker using a row in one step.\n"
      "Example:\n"
      "  sparsesync profile TRACE --json profile.json\n"
      "  python -m sparsesync.report profile.json -o page.html");
  command.callback([given] { run_profile(*given); });
}

}  // namespace sparsesync
