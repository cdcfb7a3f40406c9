// What the simulator says of each schedule, beside what the engine takes:
//   schedules [--workers 8] [--rate 200mbit] [--latency 200us] [--layers 12] [--steps 12]
//   [--compute 360ms] [--model MODEL.json] [--out FILE]
// Workers are threads of this process, on `local` links that are waited for in real time. A layer's
// pass sleeps until an absolute time, so that passes take what they are to take whatever the
// processors do. Forward to backward is as 1 to 2, and what crosses is as long as both together; or
// layers are those of a model's file, whose passes are stretched to what they are to take.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/progress.h"
#include "analysis/cli/table.h"
#include "analysis/cli/units.h"
#include "analysis/launcher.h"
#include "analysis/simulate/model_file.h"
#include "bench/results_text.h"
#include "engine/executor.h"
#include "engine/planner/schedule/model.h"
#include "engine/planner/schedule/model_costs.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "engine/planner/schedule/timeline.h"
#include "engine/support/json.h"
#include "engine/support/median.h"
#include "engine/support/random_draws.h"
#include "engine/transport/worker_threads.h"
#include "sparsesync/memory.h"

namespace sparsesync {
namespace {

struct Arguments {
  int workers = 8;
  int layers = 12;
  int steps = 12;
  double rate_bps = 200e6;
  double latency_s = 200e-6;
  double compute_s = 0.36;
  std::string model;
  std::string out;
};

/// What is synchronized.
struct Case {
  std::string name;
  bool rows_cross = false;
  std::string scheme = "auto";
  bool announce = false;
  std::optional<Model> model = std::nullopt;  // else layers alike
};

constexpr Index kWidth = 64;
constexpr Index kRows = 200'000;
constexpr double kHot = 1.25;

/// What a case and a schedule took.
struct Row {
  std::string of_case;
  std::string schedule;
  ExpectedStep expected;
  double forward_s = 0;                                      // of the pass
  std::optional<double> closed_form_of_dear = std::nullopt;  // of layers alike
  double iteration_s = 0;
  double reduce_s = 0;
  double gather_s = 0;
  double announce_s = 0;
  double announce_exposed_s = 0;
  double gather_exposed_s = 0;
};

/// Sleeps as passes would compute.
class Passes {
 public:
  /// Goes on from here, unless it is as good as there.
  void wait_ended(Clock::time_point began) {
    const Clock::time_point now = Clock::now();
    if (now - began > std::chrono::microseconds(100) || until_ < began - std::chrono::seconds(1)) {
      until_ = now;
    }
  }
  void compute(double seconds) {
    until_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::this_thread::sleep_until(until_);
  }

 private:
  Clock::time_point until_;
};

class Schedules {
 public:
  explicit Schedules(const Arguments& given) : given_(given) {}

  void run() {
    Progress progress("schedules");
    const auto policies = schedule_policies();
    const std::vector<Case> cases = cases_of(given_);
    const std::int64_t all = std::ssize(cases) * std::ssize(policies);
    for (const Case& each : cases) {
      for (const SchedulePolicy& policy : policies) {
        rows_.push_back(measure(each, std::string(policy.name)));
        progress.update(std::ssize(rows_), all);
      }
    }
    progress.erase();
  }

  std::string text() const {
    Table table({{"", Table::Align::left},
                 {"schedule", Table::Align::left},
                 {"simulated"},
                 {"run"},
                 {"run / simulated"},
                 {"x faster than wfbp"},
                 {"simulated"},
                 {"closed form of dear"},
                 {"gather hidden"},
                 {"announce exposed"}});
    for (const Row& row : rows_) {
      const Row& wfbp = of(row.of_case, "wfbp");
      table.add_row({row.of_case, row.schedule, format_seconds(row.expected.iteration_s),
                     format_seconds(row.iteration_s),
                     fmt::format("{:.3f}", row.iteration_s / row.expected.iteration_s),
                     fmt::format("{:.3f}", wfbp.iteration_s / row.iteration_s),
                     fmt::format("{:.3f}", wfbp.expected.iteration_s / row.expected.iteration_s),
                     row.schedule == "dear" && row.closed_form_of_dear
                         ? fmt::format("{:.3f}", *row.closed_form_of_dear)
                         : "-",
                     row.schedule == "dear" ? fmt::format("{:.0f}%", 100 * hidden(row)) : "-",
                     row.announce_s > 0
                         ? fmt::format("{:.1f}%", 100 * row.announce_exposed_s / row.announce_s)
                         : "-"});
    }
    const std::string what =
        given_.model.empty() ? fmt::format("{} layers", given_.layers) : given_.model;
    return fmt::format("{} workers, {}, {} each way, latency {}; passes of {}\n\n{}",
                       given_.workers, what, format_rate(given_.rate_bps),
                       format_seconds(given_.latency_s), format_seconds(given_.compute_s),
                       table.text());
  }

  std::string as_json() const {
    Json rows = Json::array();
    for (const Row& row : rows_) {
      const Row& wfbp = of(row.of_case, "wfbp");
      rows.push_back(
          {{"case", row.of_case},
           {"schedule", row.schedule},
           {"simulated_s", row.expected.iteration_s},
           {"run_s", row.iteration_s},
           {"run_over_simulated", row.iteration_s / row.expected.iteration_s},
           {"gain_over_wfbp", wfbp.iteration_s / row.iteration_s},
           {"simulated_gain_over_wfbp", wfbp.expected.iteration_s / row.expected.iteration_s},
           {"closed_form_of_dear",
            row.closed_form_of_dear ? Json(*row.closed_form_of_dear) : Json(nullptr)},
           {"reduce_s", row.reduce_s},
           {"gather_s", row.gather_s},
           {"gather_hidden", hidden(row)},
           {"announce_s", row.announce_s},
           {"announce_exposed_s", row.announce_exposed_s}});
    }
    return results_text({{"workers", given_.workers},
                         {"model", given_.model.empty() ? Json(nullptr) : Json(given_.model)},
                         {"layers", given_.layers},
                         {"steps", given_.steps},
                         {"rate_bps", given_.rate_bps},
                         {"latency_s", given_.latency_s},
                         {"compute_s", given_.compute_s},
                         {"rows", rows},
                         {"provenance", provenance_json()}});
  }

 private:
  static std::vector<Case> cases_of(const Arguments& given) {
    std::vector<Case> cases{
        {"dense"}, {"rows", true, "balanced"}, {"rows, announced", true, "owned", true}};
    if (given.model.empty()) return cases;
    Model model = read_model(given.model);
    double seconds = 0;
    for (const ModelLayer& layer : model.layers) seconds += layer.forward_s + layer.backward_s;
    for (ModelLayer& layer : model.layers) {
      layer.forward_s *= given.compute_s / seconds;
      layer.backward_s *= given.compute_s / seconds;
    }
    cases.erase(cases.begin());
    cases.front().name = model.name;
    cases.back().name = model.name + ", announced";
    for (Case& each : cases) each.model = model;
    return cases;
  }

  const Row& of(const std::string& of_case, const std::string& schedule) const {
    return *std::ranges::find_if(
        rows_, [&](const Row& row) { return row.of_case == of_case && row.schedule == schedule; });
  }

  /// How many times as fast as wfbp steps of many layers are by DeAR, where only what takes longer
  /// counts: docs/schedules.md.
  /// @param alone  of all layers, each by itself
  double closed_form(const BucketSeconds& alone) const {
    const double forward = given_.compute_s / 3;
    const double backward = 2 * forward;
    return (forward + std::max(backward, alone.values())) /
           (std::max(forward, alone.gather) + std::max(backward, alone.reduce));
  }

  /// Of what could hide under the forward pass, the share that did.
  static double hidden(const Row& row) {
    const double could = std::min(row.gather_s, row.forward_s);
    return could > 0 ? std::max(0.0, row.gather_s - row.gather_exposed_s) / could : 0;
  }

  /// Layers alike, each with a gradient of so many elements, or touched rows.
  Model model_of(const Case& of_case, double amount) const {
    Model model{of_case.name, {}};
    for (int i = 0; i < given_.layers; ++i) {
      ModelLayer& layer = model.layers.emplace_back();
      layer.name = fmt::format("layer {}", i);
      layer.forward_s = given_.compute_s / 3 / given_.layers;
      layer.backward_s = 2 * layer.forward_s;
      if (of_case.rows_cross) {
        layer.sparse = sparse_of(amount);
      } else {
        layer.bytes = 4 * amount;
      }
    }
    return model;
  }

  /// What all layers take to cross, each by itself.
  BucketSeconds seconds_of(const Case& of_case, const Model& model) const {
    CrossingOptions crossing;
    crossing.network = network();
    crossing.scheme = of_case.scheme;
    crossing.announce = of_case.announce;
    const BucketSeconds one = ModelCosts(model, given_.workers, crossing).seconds({0, 0});
    return {given_.layers * one.announce, given_.layers * one.reduce, given_.layers * one.gather};
  }

  Network network() const {
    Network network;
    network.rate_bps = given_.rate_bps;
    network.latency_s = given_.latency_s;
    return network;
  }

  /// Whose layers take as long to cross as the passes do.
  Model balanced_model(const Case& of_case) const {
    const auto takes = [&](double amount) {
      return seconds_of(of_case, model_of(of_case, amount)).values();
    };
    double few = 1;
    double many = 2;
    while (takes(many) < given_.compute_s) many *= 2;
    while (many - few > 1) {
      const double middle = (few + many) / 2;
      (takes(middle) < given_.compute_s ? few : many) = middle;
    }
    return model_of(of_case, std::floor(many));
  }

  static double forward_seconds(const Model& model) {
    double forward = 0;
    for (const ModelLayer& layer : model.layers) forward += layer.forward_s;
    return forward;
  }

  static std::vector<ExecutedLayer> layers_of(const Model& model) {
    std::vector<ExecutedLayer> layers;
    for (const ModelLayer& each : model.layers) {
      ExecutedLayer& layer = layers.emplace_back();
      layer.forward_s = each.forward_s;
      layer.backward_s = each.backward_s;
      layer.rows_cross = each.sparse.has_value();
      if (layer.rows_cross) {
        layer.tensor = {each.name, each.sparse->rows, each.sparse->width, DType::f32};
        layer.touched = each.sparse->nnz;
        layer.densification = each.sparse->densification;
      } else {
        layer.tensor = {each.name, static_cast<Index>(each.bytes / 4), 1, DType::f32};
      }
    }
    return layers;
  }

  /// Each worker touches so many rows, drawn from the first kHot times as many.
  SparseGradient sparse_of(double touched) const {
    SparseGradient sparse{kRows, kWidth, touched};
    for (int workers = 2; workers <= given_.workers; workers *= 2) {
      sparse.densification[workers] = kHot * (1 - std::pow(1 - 1 / kHot, workers));
    }
    return sparse;
  }

  Row measure(const Case& of_case, const std::string& schedule) const {
    const Model model = of_case.model ? *of_case.model : balanced_model(of_case);
    const std::vector<ExecutedLayer> layers = layers_of(model);
    LocalWorkers workers(given_.workers, {given_.rate_bps, given_.latency_s});
    Row row;
    row.of_case = of_case.name;
    row.schedule = schedule;
    std::mutex mutex;
    std::vector<double> iterations;
    const auto errors =
        run_in_threads(workers.connect(), [&](std::unique_ptr<Transport>& end, std::size_t place) {
          Row own = train(std::move(end), of_case, schedule, layers);
          const std::lock_guard lock(mutex);
          iterations.push_back(own.iteration_s);
          if (place != 0) return;
          own.of_case = row.of_case;
          own.schedule = row.schedule;
          row = own;
        });
    if (const std::exception_ptr error = first_cause(errors)) std::rethrow_exception(error);
    row.iteration_s = median(iterations);
    row.forward_s = forward_seconds(model);
    if (!of_case.model) row.closed_form_of_dear = closed_form(seconds_of(of_case, model));
    return row;
  }

  Row train(std::unique_ptr<Transport> end, const Case& of_case, const std::string& schedule,
            const std::vector<ExecutedLayer>& layers) const {
    HostMemory memory;
    SessionOptions options;
    options.network = network();
    options.trials = 0;
    const Rank rank = end->rank();
    Session session(std::move(end), memory, options);
    ExecutorOptions by;
    by.planning.schedule = schedule;
    by.planning.scheme = of_case.scheme;
    by.planning.announce = of_case.announce;
    Executor executor(session, layers, by, [](std::size_t, const TensorResult&) {});
    const std::vector<std::vector<Index>> rows = rows_of(layers, rank);
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Index touched = layers[i].rows_cross ? std::ssize(rows[i]) : layers[i].tensor.rows;
      values.emplace_back(static_cast<std::size_t>(touched * layers[i].tensor.width), 1.0F);
    }
    Passes passes;
    for (int step = 0; step < given_.steps; ++step) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const Clock::time_point began = Clock::now();
        executor.forward(i);
        if (of_case.announce) executor.announce(i, rows[i]);
        passes.wait_ended(began);
        passes.compute(layers[i].forward_s);
      }
      executor.backward();
      for (std::size_t i = layers.size(); i-- > 0;) {
        passes.compute(layers[i].backward_s);
        const auto* data = reinterpret_cast<const std::byte*>(values[i].data());
        executor.ready(
            i, layers[i].rows_cross ? Gradient::row_sparse(rows[i], data) : Gradient::dense(data));
      }
      const Clock::time_point began = Clock::now();
      executor.end_backward();
      passes.wait_ended(began);
    }
    executor.synchronize();
    Row row;
    row.expected = executor.planner().expected().value();
    const ExecutorStatistics statistics = executor.statistics();
    row.iteration_s = statistics.iteration_s;
    row.announce_s = statistics.phase_s[static_cast<std::size_t>(Phase::announce)];
    row.reduce_s = statistics.phase_s[static_cast<std::size_t>(Phase::reduce)];
    row.gather_s = statistics.phase_s[static_cast<std::size_t>(Phase::gather)];
    take_exposed(executor, row);
    session.barrier();
    return row;
  }

  /// Of the step before the last: what its gathers did is known.
  static void take_exposed(const Executor& executor, Row& row) {
    const std::span<const StepTimeline> steps = executor.timelines();
    for (const CrossedPart& part : crossed_parts(steps)) {
      if (part.step + 2 != steps.size() || !part.is_exposed) continue;
      const Phase phase = executor.planner().schedule().order[part.place].phase;
      if (phase == Phase::announce) row.announce_exposed_s += part.span.seconds();
      if (phase == Phase::gather) row.gather_exposed_s += part.span.seconds();
    }
  }

  /// From how many times as many rows as each worker touches they are drawn, so that all together
  /// touch so many times as many.
  double hot_of(const ExecutedLayer& layer) const {
    const double gamma =
        SparseGradient{layer.tensor.rows, 1, layer.touched, layer.densification}.united(
            given_.workers) /
        layer.touched;
    double low = 1;
    double high = static_cast<double>(layer.tensor.rows) / layer.touched;
    for (int i = 0; i < 60; ++i) {
      const double hot = (low + high) / 2;
      (hot * (1 - std::pow(1 - 1 / hot, given_.workers)) < gamma ? low : high) = hot;
    }
    return high;
  }

  std::vector<std::vector<Index>> rows_of(const std::vector<ExecutedLayer>& layers,
                                          Rank rank) const {
    std::vector<std::vector<Index>> rows;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::vector<Index>& own = rows.emplace_back();
      if (!layers[i].rows_cross) continue;
      CounterRandom random(1000 * static_cast<std::uint64_t>(rank.value) + i);
      own = draw_distinct_zipf(random, static_cast<Index>(hot_of(layers[i]) * layers[i].touched),
                               static_cast<Index>(layers[i].touched), 0);
    }
    return rows;
  }

  const Arguments& given_;
  std::vector<Row> rows_;
};

int run(int count, char** arguments) {
  Arguments given;
  CLI::App app("What the simulator says of each schedule, beside what the engine takes",
               "schedules");
  add_count(app, "--workers", given.workers, 2, 64, "threads");
  add_count(app, "--layers", given.layers, 1, 1000, "alike");
  add_count(app, "--steps", given.steps, 4, 1000, "of each schedule");
  add_rate(app, "--rate", given.rate_bps, "of each worker's link");
  add_seconds(app, "--latency", given.latency_s, "of each worker's link");
  add_seconds(app, "--compute", given.compute_s, "of both passes");
  app.add_option("--model", given.model, "Its layers in the place of layers alike")
      ->type_name("MODEL.json");
  app.add_option("--out", given.out, "JSON");
  CLI11_PARSE(app, count, arguments);
  try {
    JsonOutput json(given.out);
    Schedules schedules(given);
    schedules.run();
    print(json.tables(), schedules.text());
    json.write(schedules.as_json());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "schedules: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace sparsesync

int main(int count, char** arguments) {
  return sparsesync::run(count, arguments);
}
