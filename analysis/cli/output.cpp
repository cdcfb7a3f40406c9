#include "analysis/cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "analysis/cli/units.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json scheme_json(const SchemeFigures& figures) {
  if (figures.skipped) return {{"name", figures.name}, {"skipped", *figures.skipped}};
  Json choices = Json::array();
  for (const SpaceChoice& choice : figures.choices) {
    choices.push_back({{"index_code", text_or_null(choice.index_code)},
                       {"row_groups", or_null(choice.row_groups)},
                       {"column_slices", or_null(choice.column_slices)}});
  }
  const bool known = figures.imbalance.has_value();
  return {{"name", figures.name},
          {"bytes_busiest", figures.bytes_busiest()},
          {"bytes_sent_max", figures.bytes_sent_max},
          {"bytes_received_max", figures.bytes_received_max},
          {"bytes_total", figures.bytes_total},
          {"bytes_index", figures.bytes_index},
          {"bytes_values", figures.bytes_values},
          {"messages", figures.messages},
          {"non_finite_values", figures.non_finite},
          {"seconds_median", figures.seconds_median},
          {"seconds_min", figures.seconds_min},
          {"seconds_predicted", or_null(figures.seconds_predicted)},
          {"push_imbalance", known ? Json(figures.imbalance->push) : Json(nullptr)},
          {"pull_imbalance", known ? Json(figures.imbalance->pull) : Json(nullptr)},
          {"memory_bytes", figures.memory_bytes},
          {"rounds", figures.rounds},
          {"correct", figures.correct},
          {"chosen", text_or_null(figures.chosen)},
          {"tensors", choices}};
}

Json workers_json(const WorkersPlan& plan) {
  Json schemes = Json::array();
  for (const Prediction& each : plan.predictions) {
    schemes.push_back(
        {{"name", each.variant.scheme},
         {"pattern", each.variant.pattern ? Json(name_of(*each.variant.pattern)) : Json(nullptr)},
         {"seconds", each.seconds},
         {"bytes_busiest", each.bytes_busiest},
         {"memory_bytes", each.memory_bytes}});
  }
  return {
      {"n", plan.workers},
      {"best", schemes.empty() ? Json(nullptr) : schemes.front()["name"]},
      {"densification", plan.densification},
      {"extrapolated", !plan.is_known},
      {"densification_from_an_eighth", plan.densification_from_an_eighth},
      {"theorem", {{"balanced_s", plan.theorem.balanced}, {"hierarchy_s", plan.theorem.hierarchy}}},
      {"schemes", schemes}};
}

/// Returns an object whose keys are the first numbers of the pairs.
template <typename Pairs>
Json by_number(const Pairs& pairs) {
  Json json = Json::object();
  for (const auto& [number, value] : pairs) json[std::to_string(number)] = value;
  return json;
}

Json zipf_json(const std::optional<ZipfLaw>& law) {
  if (!law) return nullptr;
  return {{"s", law->s}, {"ci", {law->ci.low, law->ci.high}}};
}

Json tensor_json(const TensorSpec& tensor, const TraceHeader& trace, const TensorProfile& profile) {
  Json hot_rows = Json::array();
  for (const CountedRow& hot : profile.hot_rows) {
    hot_rows.push_back({{"row", hot.row}, {"share", profile.share_of(hot)}});
  }
  const Spread& row_density = profile.row_density;
  return {{"name", tensor.name},
          {"rows", tensor.rows},
          {"width", tensor.width},
          {"dtype", name_of(tensor.dtype)},
          {"workers", trace.workers},
          {"steps", trace.steps},
          {"row_density",
           {{"mean", row_density.mean},
            {"min", row_density.min},
            {"max", row_density.max},
            {"by_step", profile.row_density_of_step}}},
          {"density", profile.density},
          {"overlap",
           {{"mean", profile.overlap.mean},
            {"stdev", profile.overlap.stdev},
            {"histogram", profile.overlap.histogram},
            {"pairs", profile.overlap.pairs}}},
          {"densification", by_number(profile.densification)},
          {"skewness", by_number(profile.skewness)},
          {"blocks", by_number(profile.blocks)},
          {"hot_rows", hot_rows},
          {"drift", profile.drift},
          {"zipf", zipf_json(profile.zipf)},
          {"touch_histogram", by_number(profile.touch_histogram)}};
}

/// Returns the number of characters, not bytes: cells may contain "×".
std::size_t width_of(const std::string& cell) {
  return static_cast<std::size_t>(std::count_if(cell.begin(), cell.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(100);

}  // namespace

std::string compare_json(const CompareReport& report, const std::string& transport,
                         const Json& provenance) {
  Json schemes = Json::array();
  for (const SchemeFigures& figures : report.schemes) schemes.push_back(scheme_json(figures));
  return json_text(
      {{"tensors", tensors_json(report.trace.tensors)},
       {"workers", report.trace.workers},
       {"transport", transport},
       {"clock", name_of(report.clock)},
       {"wire", report.wire ? Json(name_of(*report.wire)) : Json(nullptr)},
       {"announce", report.announce},
       {"network",
        {{"rate_bps", or_null(report.link.rate_bps)}, {"latency_s", report.link.latency_s}}},
       {"steps", report.trace.steps},
       {"repeat", report.repeat},
       {"partitioned_ideal_bytes", report.partitioned_ideal_bytes},
       {"lower_bound_bytes", report.lower_bound_bytes},
       {"provenance", provenance},
       {"schemes", schemes}});
}

std::string plan_json(const ScalePlan& plan, const Network& network, const Json& provenance) {
  Json workers = Json::array();
  for (const WorkersPlan& each : plan.plans) workers.push_back(workers_json(each));
  Json crossovers = Json::array();
  for (const Crossover& each : plan.crossovers) {
    crossovers.push_back({{"n", each.workers}, {"from", each.from}, {"to", each.to}});
  }
  return json_text({{"network", {{"latency_s", network.latency_s}, {"rate_bps", network.rate_bps}}},
                    {"workers", workers},
                    {"crossovers", crossovers},
                    {"provenance", provenance}});
}

std::string profile_json(const TraceHeader& trace, const std::vector<TensorProfile>& profiles,
                         const Json& provenance) {
  Json tensors = Json::array();
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    tensors.push_back(tensor_json(trace.tensors[i], trace, profiles[i]));
  }
  return json_text({{"tensors", tensors}, {"provenance", provenance}});
}

void Table::add_row(std::vector<std::string> cells) {
  SPARSESYNC_EXPECT(cells.size(), ==, columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(width_of(columns_[i].title));
    for (const std::vector<std::string>& row : rows_) {
      widths[i] = std::max(widths[i], width_of(row[i]));
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string pad(widths[i] - width_of(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::left ? cell + pad : pad + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  std::size_t total = 2 * (columns_.size() - 1);
  for (const std::size_t width : widths) total += width;
  text += std::string(total, '-') + "\n";
  for (const std::vector<std::string>& row : rows_) {
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

Progress::Progress(std::string label)
    : label_(std::move(label)),
      on_terminal_(isatty(STDERR_FILENO) == 1),
      next_draw_(start_ + kPatience) {}

Progress::~Progress() {
  erase();
}

void Progress::update(std::int64_t done, std::int64_t total) {
  if (!on_terminal_) return;
  const auto now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kInterval;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string bar = render(label_, done, total, seconds);
  std::fprintf(stderr, "\r\x1b[K%s", bar.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::erase() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

std::string Progress::render(const std::string& label, std::int64_t done, std::int64_t total,
                             double seconds) {
  constexpr std::int64_t kCells = 30;
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 1.0;
  const auto full = static_cast<std::size_t>(share * static_cast<double>(kCells));
  std::string text = fmt::format("{} [{}{}] {:3.0f}%  {}", label, std::string(full, '#'),
                                 std::string(static_cast<std::size_t>(kCells) - full, '.'),
                                 100 * share, format_seconds(seconds));
  if (share > 0 && share < 1)
    text += fmt::format(", {} left", format_seconds(seconds / share - seconds));
  return text;
}

}  // namespace sparsesync
