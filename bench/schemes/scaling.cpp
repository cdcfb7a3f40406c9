// Measures each scheme as workers are added, each with the same number of tokens.
//
//   scaling DATA [--width 128] [--rate 25gbit] [--latency 10us] [--out FILE]
//
// The trace is LM1B with 2 to 64 workers of 2,494 tokens, on the virtual clock.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "bench/results_text.h"
#include "engine/support/json.h"
#include "table_program.h"
#include "variants.h"

namespace sparsesync {
namespace {

/// Bytes for all workers together: the dense schemes of a large table do not fit 32 times.
constexpr std::int64_t kWorkspace = std::int64_t{8} << 30U;

struct Arguments : TableArguments {
  Index width = 128;
  double rate_bps = 25e9;
  double latency_s = 10e-6;
};

/// Figures of one variant with a number of workers.
struct Point {
  int workers = 0;
  double over_lower_bound = 0;
  double bytes = 0;  // bytes of the worker that sends or receives most
  double seconds = 0;
};

struct Series {
  std::string label;
  std::vector<Point> points;
};

class Scaling {
 public:
  explicit Scaling(const Arguments& given) : given_(given) {
    options_.clock = CompareClock::replayed;
    options_.repeat = given.repeat;
    options_.link = {given.rate_bps, given.latency_s};
  }

  void run() {
    const RealInputs inputs(given_.data, given_.small);
    Progress progress("workers");
    for (std::size_t i = 0; i < kWorkers.size(); ++i) {
      if (kWorkers[i] > given_.most_workers) break;
      progress.update(static_cast<std::int64_t>(i), static_cast<std::int64_t>(kWorkers.size()));
      measure(inputs, kWorkers[i]);
    }
    progress.erase();
  }

  std::string text() const {
    const auto titles = [&] {
      std::vector<Table::Column> columns{{"scheme", Table::Align::left}};
      for (const int workers : workers_) columns.push_back({fmt::format("n = {}", workers)});
      return columns;
    };
    Table bytes(titles());
    Table seconds(titles());
    for (const Series& variant : series_) {
      std::vector<std::string> of_bytes{variant.label};
      std::vector<std::string> of_seconds{variant.label};
      for (const int workers : workers_) {
        const Point* const point = point_of(variant, workers);
        of_bytes.push_back(point == nullptr ? "-" : fmt::format("{:.3f}", point->over_lower_bound));
        of_seconds.push_back(point == nullptr ? "-" : format_seconds(point->seconds));
      }
      bytes.add_row(of_bytes);
      seconds.add_row(of_seconds);
    }
    return fmt::format(
        "bytes of the busiest worker over the lower bound, LM1B, width {}\n{}\n"
        "seconds of a step at {}, {}, virtual clock\n{}",
        given_.width, bytes.text(), format_rate(given_.rate_bps), format_seconds(given_.latency_s),
        seconds.text());
  }

  std::string as_json() const {
    Json variants = Json::array();
    for (const Series& variant : series_) {
      Json points = Json::array();
      for (const Point& point : variant.points) {
        points.push_back({{"workers", point.workers},
                          {"bytes_busiest", point.bytes},
                          {"over_lower_bound", point.over_lower_bound},
                          {"seconds", point.seconds}});
      }
      variants.push_back({{"way", variant.label}, {"points", points}});
    }
    return results_text(
        {{"trace", "lm1b"},
         {"width", given_.width},
         {"network", {{"rate_bps", given_.rate_bps}, {"latency_s", given_.latency_s}}},
         {"repeat", given_.repeat},
         {"provenance", provenance_json()},
         {"schemes", variants}});
  }

 private:
  static const Point* point_of(const Series& variant, int workers) {
    for (const Point& point : variant.points) {
      if (point.workers == workers) return &point;
    }
    return nullptr;
  }

  void measure(const RealInputs& inputs, int workers) {
    GenerateOptions shape;
    shape.width = given_.width;
    shape.workers = workers;
    const TemporaryTrace made(inputs.lm1b(shape));
    const Trace& trace = made.trace();
    options_.memory = kWorkspace / workers;
    workers_.push_back(workers);
    const double lower_bound = LocalComparison(trace, options_)->lower_bound();
    std::vector<MeasuredVariant> variants;
    measure_variants(variants, trace, options_, 1, all_variants());
    for (const MeasuredVariant& measured : variants) {
      const std::string label = measured.variant.label();
      auto series = std::find_if(series_.begin(), series_.end(),
                                 [&](const Series& other) { return other.label == label; });
      if (series == series_.end()) series = series_.insert(series, Series{label, {}});
      const double bytes = measured.rounds.front().bytes_busiest();
      series->points.push_back(
          {workers, bytes / lower_bound, bytes, measured.seconds(options_.link)});
    }
  }

  Arguments given_;
  CompareOptions options_;
  std::vector<int> workers_;
  std::vector<Series> series_;
};

int run(int count, char** arguments) {
  CLI::App app("Measures each scheme as workers are added, on the virtual clock.", "scaling");
  Arguments given;
  given.repeat = 3;
  app.add_option("DATA", given.data, "folder with lm1b_tokens.npy and criteo_fields.npy")
      ->required();
  add_count(app, "--width", given.width, 1, 1 << 20, "elements of a row");
  add_rate(app, "--rate", given.rate_bps, "rate of each link");
  add_seconds(app, "--latency", given.latency_s, "latency of each link");
  add_table_options(app, given, "runs of each scheme; the median counts");
  return make_table<Scaling>(app, given, count, arguments);
}

}  // namespace
}  // namespace sparsesync

int main(int count, char** arguments) {
  return sparsesync::run(count, arguments);
}
