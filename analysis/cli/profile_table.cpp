#include "analysis/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/cli/table.h"
#include "analysis/cli/units.h"
#include "engine/support/quote.h"

namespace sparsesync {
namespace {

std::string percent(double share) {
  return fmt::format("{:.4g}%", 100 * share);
}

/// A number as a bar that takes 40 characters where it is the largest.
std::string bar(double number, double largest) {
  constexpr double kLongest = 40;
  const double length = largest > 0 ? kLongest * number / largest : 0;
  return std::string(static_cast<std::size_t>(number > 0 ? std::max(1.0, length) : 0), '#');
}

/// Two rows: numbers, and below each what was found.
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
  Table table({{"touched by so many workers' steps", Table::Align::left},
               {"rows"},
               {"", Table::Align::left}});
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

}  // namespace

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
                            ? fmt::format("{:.3f} (95% of {:.3f} to {:.3f})", profile.zipf->s,
                                          profile.zipf->ci.low, profile.zipf->ci.high)
                            : "- (these touches leave it open)");
  line("drift from first step",
       profile.drift.size() > 1
           ? fmt::format("{:.3f} at the second, {:.3f} at the last: level where steps "
                         "draw alike",
                         profile.drift[1], profile.drift.back())
           : "- (one step)");
  text += "\n";
  const auto times = [](double ratio) { return fmt::format("{:.3f}", ratio); };
  text += two_rows("workers", "densification", profile.densification, times);
  text += two_rows("even ranges", "skewness", profile.skewness, times);
  text += two_rows("elements of a block", "blocks not zero", profile.blocks, percent);
  if (profile.overlap.pairs > 0) text += overlap_picture(profile.overlap);
  text += touch_picture(profile);
  text += hot_rows(profile);
  return text;
}

}  // namespace sparsesync
