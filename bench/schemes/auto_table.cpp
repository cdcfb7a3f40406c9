// Compares the choice of `auto` with the best fixed scheme, and predicted with measured seconds.
//
//   auto_table [DATA] [--clock virtual|real] [--out FILE]
//
// The grid covers traces, worker counts, widths and links. docs/performance/schemes.md explains the
// table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "bench/results_text.h"
#include "engine/planner/calibration/fit.h"
#include "engine/planner/calibration/measure.h"
#include "engine/session/auto_scheme.h"
#include "engine/support/json.h"
#include "table_program.h"
#include "variants.h"

namespace sparsesync {
namespace {

struct Arguments : TableArguments {
  std::string clock = "virtual";
};

/// A trace with a given number of workers. It gives one cell of the table for every link.
struct Input {
  std::string name;
  int workers = 2;
  Index width = 1;
  std::function<TraceSource(const GenerateOptions&)> source;
};

constexpr std::array<Index, 3> kWidths{1, 16, 128};
constexpr std::array kZipf{0.0, 0.6, 1.2};
constexpr std::array kLinks{LocalLink{100e6, 1e-3}, LocalLink{100e6, 5e-6}, LocalLink{1e9, 200e-6},
                            LocalLink{10e9, 1e-3},  LocalLink{25e9, 10e-6}, LocalLink{100e9, 5e-6}};
// Links on which threads of a small machine can wait in real time accurately.
constexpr std::array kRealLinks{LocalLink{100e6, 1e-3}, LocalLink{200e6, 200e-6},
                                LocalLink{1e9, 200e-6}};
constexpr int kMostRealWorkers = 8;

/// Returns the bytes of workspace for each worker. Schemes that do not fit are excluded, also for
/// `auto`. These are the dense schemes for the largest tables with 16 workers and more. They would
/// dominate the run time of this benchmark and be far slower than the best.
std::int64_t workspace(int workers) {
  constexpr std::int64_t kTogether = std::int64_t{4} << 30U;
  constexpr std::int64_t kLeast = std::int64_t{160} << 20U;
  return std::max(kTogether / workers, kLeast);
}

/// Density and number of rows of a synthetic tensor, by width. Denser tensors have fewer rows. A
/// cell then takes more than latency, and 64 copies of its tensor fit into the machine's memory.
struct Density {
  double density = 0;
  std::array<Index, kWidths.size()> rows{};
};
constexpr std::array kDensities{
    Density{1e-4, {1 << 24, 1 << 21, 1 << 18}}, Density{1e-3, {1 << 23, 1 << 21, 1 << 18}},
    Density{0.01, {1 << 21, 1 << 20, 1 << 17}}, Density{0.1, {1 << 20, 1 << 17, 1 << 15}},
    Density{0.5, {1 << 20, 1 << 17, 1 << 14}}};

/// Returns the real traces with every worker count, and each synthetic trace once. No pair of
/// worker count and width occurs twice among the synthetic ones, and both small and large worker
/// counts meet every Zipf exponent.
/// @param real  null: synthetic traces only
std::vector<Input> inputs(const RealInputs* real, bool small) {
  std::vector<Input> all;
  for (std::size_t i = 0; real != nullptr && i < kWorkers.size(); ++i) {
    const int workers = kWorkers[i];
    const auto lm1b = [real](const GenerateOptions& options) { return real->lm1b(options); };
    const auto criteo = [real](const GenerateOptions& options) { return real->criteo(options); };
    all.push_back({"lm1b", workers, 128, lm1b});
    all.push_back({"lm1b", workers, kWidths[i % 2], lm1b});
    all.push_back({"criteo", workers, kWidths[i % 3], criteo});
  }
  for (std::size_t d = 0; d < kDensities.size(); ++d) {
    for (std::size_t z = 0; z < kZipf.size(); ++z) {
      const std::size_t w = (d + z) % kWidths.size();
      const Index rows = kDensities[d].rows[w] / (small ? 64 : 1);
      const double density = kDensities[d].density;
      const double zipf = kZipf[z];
      all.push_back({fmt::format("{:g}% zipf {}", density * 100, zipf),
                     kWorkers[(d + 2 * z) % kWorkers.size()], kWidths[w],
                     [=](const GenerateOptions& options) {
                       return synthetic_trace(rows, density, zipf, options);
                     }});
    }
  }
  return all;
}

struct CellVariant {
  SchemeVariant variant;
  double seconds = 0;
  double predicted = 0;
  double computing = 0;  // seconds on a link that takes no time; 0 in real time
  Work work;             // as counted by the planner

  double off() const { return std::abs(predicted / seconds - 1); }
};

struct Cell {
  const Input* input = nullptr;
  LocalLink link;
  SpaceStatistics touched;  // statistics of the first step
  std::vector<CellVariant> variants;
  // Indices into `variants`: the choice of `auto`, and the fastest.
  std::size_t chosen_variant = 0;
  std::size_t best_variant = 0;

  const CellVariant& chosen() const { return variants[chosen_variant]; }
  const CellVariant& best() const { return variants[best_variant]; }
  double over_best() const { return chosen().seconds / best().seconds; }
};

class AutoTable {
 public:
  explicit AutoTable(const Arguments& given) : given_(given) {
    options_.clock = given.clock == "real" ? CompareClock::real : CompareClock::replayed;
    host_ = probe_host(15);
  }

  void run() {
    std::optional<RealInputs> real;
    if (!given_.data.empty()) real.emplace(given_.data, given_.small);
    inputs_ = inputs(real ? &*real : nullptr, given_.small);
    const int most = options_.clock == CompareClock::real
                         ? std::min(given_.most_workers, kMostRealWorkers)
                         : given_.most_workers;
    std::erase_if(inputs_, [&](const Input& input) { return input.workers > most; });
    Progress progress("cells");
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      progress.set_label(fmt::format("{}, width {}, {} workers", inputs_[i].name, inputs_[i].width,
                                     inputs_[i].workers));
      progress.update(static_cast<std::int64_t>(i), static_cast<std::int64_t>(inputs_.size()));
      measure(inputs_[i]);
    }
    progress.erase();
  }

  std::string text() const {
    Table table({{"trace", Table::Align::left},
                 {"width"},
                 {"workers"},
                 {"rate"},
                 {"latency"},
                 {"auto", Table::Align::left},
                 {"best", Table::Align::left},
                 {"seconds"},
                 {"x best"},
                 {"predicted"}});
    for (const Cell& cell : cells_) {
      table.add_row({cell.input->name, fmt::format("{}", cell.input->width),
                     fmt::format("{}", cell.input->workers), format_rate(*cell.link.rate_bps),
                     format_seconds(cell.link.latency_s), cell.chosen().variant.label(),
                     cell.best().variant.label(), format_seconds(cell.chosen().seconds),
                     fmt::format("{:.3f}", cell.over_best()),
                     fmt::format("{:.2f}", cell.chosen().predicted / cell.chosen().seconds)});
    }
    return table.text() + "\n" + summary_text();
  }

  std::string as_json() const {
    Json cells = Json::array();
    for (const Cell& cell : cells_) {
      Json variants = Json::array();
      for (const CellVariant& variant : cell.variants) {
        Json work = Json::array();
        for (const HostCost& cost : kHostCosts) work.push_back(variant.work.*cost.amount);
        variants.push_back({{"way", variant.variant.label()},
                            {"seconds", variant.seconds},
                            {"predicted", variant.predicted},
                            {"computing", variant.computing},
                            {"work", work}});
      }
      cells.push_back({{"trace", cell.input->name},
                       {"width", cell.input->width},
                       {"workers", cell.input->workers},
                       {"rate_bps", *cell.link.rate_bps},
                       {"latency_s", cell.link.latency_s},
                       {"touched_mean", cell.touched.touched_mean},
                       {"touched_max", cell.touched.touched_max},
                       {"united", cell.touched.united},
                       {"auto", cell.chosen().variant.label()},
                       {"best", cell.best().variant.label()},
                       {"over_best", cell.over_best()},
                       {"ways", variants}});
    }
    const Summary found = summary();
    return results_text({{"clock", given_.clock},
                         {"host", host_json()},
                         {"provenance", provenance_json()},
                         {"summary",
                          {{"cells", cells_.size()},
                           {"share_within_5_percent", found.within_5},
                           {"share_within_15_percent", found.within_15},
                           {"worst", found.worst},
                           {"predictions_off_median", found.off},
                           {"predictions_of_chosen_off_median", found.chosen_off},
                           {"otherwise_than_predicted", otherwise_}}},
                         {"cells", cells}});
  }

 private:
  struct Summary {
    double within_5 = 0;
    double within_15 = 0;
    double worst = 0;
    double off = 0;  // |predicted / measured - 1|, median over cells and variants
    double chosen_off = 0;
  };

  /// Returns the network as a planner knows it, if `workers` of this machine use one link each.
  Network network(const LocalLink& link, int workers) const {
    Network network{link.latency_s, *link.rate_bps, host_};
    // In real time the workers share the cores; on the virtual clock each has one.
    if (options_.clock == CompareClock::real) {
      const double share = std::max(1.0, static_cast<double>(workers) / cores());
      for (const HostCost& cost : kHostCosts) network.host.*cost.seconds *= share;
    }
    return network;
  }

  Json host_json() const {
    Json host;
    for (const HostCost& cost : kHostCosts) host[std::string(cost.name)] = host_.*cost.seconds;
    return host;
  }

  /// Returns the rounds in which the fastest candidates are measured. With few workers a step is
  /// short, so that disturbances weigh more.
  static int rounds(int workers) { return workers <= 4 ? 8 : workers <= 8 ? 4 : 2; }
  static constexpr int kFewRepeats = 5;
  /// Returns the repetitions for a step of this length. Caches and branch predictors warm up during
  /// the first ones.
  static int repeats(double seconds) {
    constexpr double kLongEnough = 0.02;
    return static_cast<int>(std::clamp(kLongEnough / seconds, double{kFewRepeats}, 61.0));
  }

  static double cores() { return std::max(1U, std::thread::hardware_concurrency()); }

  void measure(const Input& input) {
    GenerateOptions shape;
    shape.width = input.width;
    shape.workers = input.workers;
    const TemporaryTrace made(input.source(shape));
    const Trace& trace = made.trace();
    options_.memory = workspace(input.workers);
    options_.repeat = given_.repeat > 0 ? given_.repeat : kFewRepeats;
    const bool waits = options_.clock == CompareClock::real;
    const std::span<const LocalLink> links =
        waits ? std::span<const LocalLink>(kRealLinks) : kLinks;
    LocalComparison planner(trace, options_);
    const auto options_on = [&](const LocalLink& link) {
      CompareOptions options = options_;
      options.link = link;
      options.network = network(link, input.workers);
      return options;
    };
    std::vector<std::string> chosen;  // on each link
    for (const LocalLink& link : links) {
      chosen.push_back(chosen_by_session(trace, options_on(link)));
    }
    std::vector<MeasuredVariant> variants;
    std::vector<double> computing;  // seconds of each variant; empty in real time
    if (!waits) {
      // One recorded run serves all links.
      measure_variants(variants, trace, options_, 1, all_variants());
      measure_closely(variants, trace, input.workers, chosen);
      for (const MeasuredVariant& variant : variants)
        computing.push_back(variant.seconds(LocalLink{}));
    }
    for (std::size_t i = 0; i < links.size(); ++i) {
      const CompareOptions options = options_on(links[i]);
      const std::vector<Prediction> predictions = planner->predictions(*options.network);
      if (chosen[i] != predictions.front().variant.label()) ++otherwise_;
      if (waits) {
        variants.clear();
        measure_variants(variants, trace, options, 1, near_variants(predictions, chosen[i]));
      }
      Cell cell{&input, links[i], planner->statistics().front().front(), {}, 0, 0};
      add_variants(cell, variants, computing, predictions);
      choose(cell, chosen[i]);
      cells_.push_back(std::move(cell));
    }
  }

  /// Measures variants again that the first round shows to be near the fastest on some link, and
  /// those that `auto` chose. The first round may have been disturbed.
  void measure_closely(std::vector<MeasuredVariant>& variants, const Trace& trace, int workers,
                       const std::vector<std::string>& chosen) {
    if (variants.empty()) return;
    constexpr double kNear = 1.5;
    std::vector<bool> is_near(variants.size());
    for (const LocalLink& link : kLinks) {
      std::vector<double> seconds;
      for (const MeasuredVariant& variant : variants) seconds.push_back(variant.seconds(link));
      const double limit = kNear * *std::min_element(seconds.begin(), seconds.end());
      for (std::size_t i = 0; i < variants.size(); ++i)
        is_near[i] = is_near[i] || seconds[i] <= limit;
    }
    std::vector<SchemeVariant> near;
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const SchemeVariant& variant = variants[i].variant;
      const bool was_chosen =
          std::find(chosen.begin(), chosen.end(), variant.label()) != chosen.end();
      if (is_near[i] || was_chosen) near.push_back(variant);
    }
    double shortest = std::numeric_limits<double>::infinity();
    for (const MeasuredVariant& variant : variants)
      shortest = std::min(shortest, variant.seconds(LocalLink{}));
    CompareOptions options = options_;
    if (given_.repeat == 0) options.repeat = repeats(shortest);
    measure_variants(variants, trace, options, rounds(workers), near);
  }

  /// Returns the variants worth measuring. Waiting for variants that are far slower would take most
  /// of the time.
  static std::vector<SchemeVariant> near_variants(std::span<const Prediction> predictions,
                                                  const std::string& chosen) {
    constexpr double kFarBehind = 3;
    std::vector<SchemeVariant> near;
    for (const Prediction& prediction : predictions) {
      const bool is_near = prediction.seconds < kFarBehind * predictions.front().seconds ||
                           prediction.variant.label() == chosen;
      if (is_near && prediction.ruled_out.empty()) near.push_back(prediction.variant);
    }
    return near;
  }

  /// Returns the choice of a session after its trials.
  static std::string chosen_by_session(const Trace& trace, CompareOptions options) {
    options.schemes = {std::string(kAuto)};
    options.repeat = 1;
    return LocalComparison(trace, options)->run().schemes.front().chosen;
  }

  static void add_variants(Cell& cell, std::span<const MeasuredVariant> variants,
                           std::span<const double> computing,
                           std::span<const Prediction> predictions) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const Prediction* const predicted = prediction_of(predictions, variants[i].variant);
      cell.variants.push_back({variants[i].variant, variants[i].seconds(cell.link),
                               predicted->seconds, computing.empty() ? 0 : computing[i],
                               predicted->work});
    }
    for (CellVariant& variant : cell.variants) take_the_least_of_its_equals(cell, variant);
    if (cell.variants.empty())
      throw Error("no scheme fits into the workspace of " + cell.input->name);
  }

  static void choose(Cell& cell, const std::string& label) {
    const auto place = [&](auto found) {
      return static_cast<std::size_t>(found - cell.variants.begin());
    };
    cell.best_variant = place(std::min_element(
        cell.variants.begin(), cell.variants.end(),
        [](const CellVariant& a, const CellVariant& b) { return a.seconds < b.seconds; }));
    cell.chosen_variant = place(
        std::find_if(cell.variants.begin(), cell.variants.end(),
                     [&](const CellVariant& variant) { return variant.variant.label() == label; }));
    if (cell.chosen_variant == cell.variants.size()) {
      throw Error(fmt::format("auto chose {}, which could not be measured", label));
    }
  }

  /// Sets the variant's seconds to the minimum of all variants with the same code, messages and
  /// work. On one node `two_level` is `dense_ring`, and between two workers all patterns are equal.
  /// Such variants were measured once under each name.
  static void take_the_least_of_its_equals(const Cell& cell, CellVariant& variant) {
    for (const CellVariant& other : cell.variants) {
      const bool same = other.predicted == variant.predicted && other.work == variant.work;
      if (same) variant.seconds = std::min(variant.seconds, other.seconds);
    }
  }

  Summary summary() const {
    Summary found;
    std::vector<double> off;
    std::vector<double> chosen_off;
    const auto count = static_cast<double>(cells_.size());
    for (const Cell& cell : cells_) {
      found.within_5 += cell.over_best() <= 1.05 ? 1 / count : 0;
      found.within_15 += cell.over_best() <= 1.15 ? 1 / count : 0;
      found.worst = std::max(found.worst, cell.over_best());
      for (const CellVariant& variant : cell.variants) off.push_back(variant.off());
      chosen_off.push_back(cell.chosen().off());
    }
    found.off = median(off);
    found.chosen_off = median(chosen_off);
    return found;
  }

  std::string summary_text() const {
    const Summary found = summary();
    return fmt::format(
        "{} cells, {} clock: auto within 5% of the best fixed scheme in {:.1f}% of them, within "
        "15% in {:.1f}%; at worst {:.2f} times the best\n"
        "predicted seconds, median over cells: {:.1f}% off for what auto chose, {:.1f}% over all "
        "schemes\n"
        "trials led sessions to another way than the one predicted to be fastest in {} cells\n",
        cells_.size(), given_.clock, found.within_5 * 100, found.within_15 * 100, found.worst,
        found.chosen_off * 100, found.off * 100, otherwise_);
  }

  Arguments given_;
  CompareOptions options_;
  HostCosts host_;
  std::vector<Input> inputs_;
  std::vector<Cell> cells_;
  int otherwise_ = 0;
};

int run(int count, char** arguments) {
  CLI::App app("Compares `auto` with the best fixed scheme on a grid.", "auto_table");
  Arguments given;
  app.add_option(
      "DATA", given.data,
      "folder with lm1b_tokens.npy and criteo_fields.npy (default: synthetic traces only)");
  app.add_option(
         "--clock", given.clock,
         "virtual: replay recorded runs on the links; real: wait for the links, 8 workers or fewer")
      ->check(CLI::IsMember({"virtual", "real"}));
  add_table_options(app, given, "runs of each scheme in a round (default: more for short steps)");
  return make_table<AutoTable>(app, given, count, arguments);
}

}  // namespace
}  // namespace sparsesync

int main(int count, char** arguments) {
  return sparsesync::run(count, arguments);
}
