#include "sparsesync/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/planner/calibration/fit.h"
#include "engine/planner/schedule/model_costs.h"
#include "engine/planner/schedule/policies.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "engine/planner/schedule/timeline.h"
#include "engine/session/control_channel.h"
#include "engine/support/json.h"
#include "engine/support/log.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

constexpr double kFullBytes = 25 << 20;  // PyTorch DDP's default
// The first steps are not representative: they allocate memory, and caches are cold.
constexpr std::int64_t kWarmUp = 2;
constexpr std::int64_t kMeasured = 5;
constexpr std::int64_t kLongestBetweenReviews = 1000;
constexpr double kWorthIt = 0.97;

/// Whether the policy needs the seconds of passes and phases, not only bytes.
bool heeds_seconds(const ScheduleOptions& options) {
  const std::string& name = options.schedule;
  if (name == "lazy" || name == "dear") return !options.full_bytes;
  return name != "sequential" && name != "wfbp" && name != "merge_all";
}

Phase phase_of(const Json& number) {
  const int phase = number.get<int>();
  if (phase < 0 || phase >= static_cast<int>(kPhases)) throw InputError("unknown phase");
  return static_cast<Phase>(phase);
}

/// Whether the scheme uses announced rows.
bool announces(const ScheduleOptions& options) {
  return options.announce && (options.scheme == "auto" ||
                              scheme_named(options.scheme).heeds.has(SchemeOption::announce));
}

}  // namespace

SchedulePlanner::SchedulePlanner(Session& session, Model model, ScheduleOptions options)
    : session_(session),
      workers_(session.size()),
      model_(std::move(model)),
      options_(std::move(options)),
      policy_(schedule_policy_named(options_.schedule)),
      review_at_(kWarmUp + kMeasured) {
  for (const ModelLayer& layer : model_.layers) {
    first_touched_.push_back(layer.sparse ? layer.sparse->nnz : 0);
  }
  if (model_.layers.empty())
    throw InputError("a schedule for a model with no layers: give at least one");
  for (const std::string& scheme : {options_.scheme, options_.dense_scheme}) {
    if (scheme != "auto") static_cast<void>(scheme_named(scheme));
  }
  agree();
  if (knows_seconds() && workers_ > 1) {
    plan_with_seconds();
  } else {
    adopt(without_seconds());
  }
}

void SchedulePlanner::agree() const {
  ControlChannel::Statement statement{
      {"the schedule", options_.schedule},
      {"the number of bytes of a full bucket",
       options_.full_bytes ? fmt::format("{}", *options_.full_bytes) : "automatic"},
      {"the number of bytes of a full first bucket",
       options_.first_bytes ? fmt::format("{}", *options_.first_bytes) : "unset"},
      {"the scheme", options_.scheme},
      {"the scheme of dense gradients", options_.dense_scheme},
      {"announce", fmt::format("{}", options_.announce)},
      {"gathers during the forward pass", fmt::format("{}", options_.may_go_on_under_forward)},
      {"the number of layers", fmt::format("{}", model_.layers.size())},
      {"known times of passes", fmt::format("{}", knows_seconds())}};
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const ModelLayer& layer = model_.layers[i];
    statement.emplace_back(
        fmt::format("layer {} of the forward pass", i),
        fmt::format("'{}', {}", layer.name, layer.sparse ? "row-sparse" : "dense"));
  }
  session_.agree("the schedule", statement);
}

bool SchedulePlanner::knows_seconds() const {
  return std::ranges::any_of(model_.layers, [](const ModelLayer& layer) {
    return layer.forward_s > 0 || layer.backward_s > 0;
  });
}

bool SchedulePlanner::add_step(std::span<const double> forward_s,
                               std::span<const double> backward_s) {
  SPARSESYNC_EXPECT(forward_s.size(), ==, model_.layers.size());
  SPARSESYNC_EXPECT(backward_s.size(), ==, model_.layers.size());
  if (std::ssize(measured_) < kMeasured) measured_.emplace_back(2 * model_.layers.size());
  std::vector<double>& row = measured_[static_cast<std::size_t>(steps_ % kMeasured)];
  std::ranges::copy(forward_s, row.begin());
  std::ranges::copy(backward_s, row.begin() + static_cast<std::ptrdiff_t>(forward_s.size()));
  return ++steps_ == review_at_ && workers_ > 1;
}

void SchedulePlanner::observe(std::size_t layer, double touched, double united) {
  SparseGradient& sparse = model_.layers[layer].sparse.value();
  sparse.nnz = touched;
  sparse.densification.clear();
  if (touched > 0 && workers_ > 1) {
    // `united` also counts rows of workers that touched more than this one, so the ratio is
    // limited.
    const double gamma = std::clamp(united / touched, 1.0, static_cast<double>(workers_));
    sparse.densification[workers_] = gamma;
  }
}

std::vector<ObservedLayer> SchedulePlanner::share(std::size_t bucket,
                                                  std::span<const ObservedRows> observed) const {
  SPARSESYNC_EXPECT(bucket, <, schedule_.buckets.size());
  const LayerRange range = schedule_.buckets[bucket];
  // Layers of a bucket share a dtype, so each width has one row space.
  std::vector<Index> widths;
  std::vector<std::vector<std::size_t>> spaces;
  for (int i = range.last; i >= range.first; --i) {
    const auto layer = static_cast<std::size_t>(i);
    const Index width = model_.layers[layer].sparse.value().width;
    const auto found = std::ranges::find(widths, width);
    const auto space = static_cast<std::size_t>(found - widths.begin());
    if (found == widths.end()) {
      widths.push_back(width);
      spaces.emplace_back();
    }
    spaces[space].push_back(layer);
  }
  SPARSESYNC_EXPECT(observed.size(), ==, spaces.size());
  std::vector<ObservedLayer> shares;
  for (std::size_t space = 0; space < spaces.size(); ++space) {
    double whole = 0;
    for (const std::size_t layer : spaces[space]) whole += first_touched_[layer];
    if (whole == 0) whole = 1;
    const auto touched = static_cast<double>(observed[space].touched);
    const auto united = static_cast<double>(observed[space].united);
    for (const std::size_t layer : spaces[space]) {
      const double weight = first_touched_[layer];
      shares.push_back({layer, touched * weight / whole, united * weight / whole});
    }
  }
  return shares;
}

void SchedulePlanner::update_medians() {
  std::vector<double> of_steps(measured_.size());
  const auto median_of = [&](std::size_t place) {
    std::ranges::transform(measured_, of_steps.begin(),
                           [&](const std::vector<double>& row) { return row[place]; });
    return median(of_steps);
  };
  for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
    model_.layers[layer].forward_s = median_of(layer);
    model_.layers[layer].backward_s = median_of(model_.layers.size() + layer);
  }
}

bool SchedulePlanner::review() {
  review_at_ = steps_ + std::min(steps_, kLongestBetweenReviews);
  update_medians();
  return plan_with_seconds();
}

bool SchedulePlanner::plan_with_seconds() {
  const Network network = session_.network();
  return adopt(session_.rank() == Rank{0} ? std::optional(with_seconds(network)) : std::nullopt);
}

SchedulePlanner::Plan SchedulePlanner::without_seconds() const {
  std::vector<ScheduledLayer> layers;
  for (const ModelLayer& each : model_.layers) {
    layers.push_back(scheduled(each, announces(options_) && workers_ > 1));
  }
  const BucketCosts unknown = [](LayerRange) { return BucketSeconds{}; };
  ScheduleQuestion question{layers, unknown};
  question.full_bytes = options_.full_bytes.value_or(kFullBytes);
  question.first_bytes = options_.first_bytes;
  const bool as_lazy = heeds_seconds(options_) && options_.schedule != "dear";
  return {as_lazy ? schedule_policy_named("lazy").plan(question) : policy_.plan(question), {}};
}

SchedulePlanner::Plan SchedulePlanner::with_seconds(const Network& network) const {
  CrossingOptions crossing;
  crossing.network = network;
  // If the scheme's cost depends on the positions of rows, the plan assumes the fastest scheme.
  const bool is_predictable = options_.scheme == "auto" || is_cost_predictable(options_.scheme);
  crossing.scheme = is_predictable ? options_.scheme : "auto";
  crossing.announce = announces(options_);
  const ModelCosts costs(model_, workers_, crossing);
  const BucketCosts of_buckets = costs.costs();
  const ScheduleQuestion question{costs.layers(), of_buckets, options_.full_bytes,
                                  options_.first_bytes, options_.may_go_on_under_forward};
  Plan plan{policy_.plan(question), {}};
  double seconds = step_seconds(costs.layers(), of_buckets, plan.schedule);
  if (!schedule_.buckets.empty()) {
    const double present = step_seconds(costs.layers(), of_buckets, schedule_);
    if (seconds > kWorthIt * present) {
      plan.schedule = schedule_;
      seconds = present;
    }
  }
  const double compute = compute_seconds(costs.layers());
  plan.expected = {seconds, compute,
                   StepClock(costs.layers(), of_buckets, plan.schedule).communication_seconds(),
                   std::max(0.0, seconds - compute)};
  plan.exposed = exposed_phases(costs.layers(), of_buckets, plan.schedule);
  return plan;
}

/// Adopts the schedule that worker 0 planned.
/// @return whether the schedule changed
bool SchedulePlanner::adopt(const std::optional<Plan>& own) {
  const bool leads = session_.rank() == Rank{0};
  const std::vector<std::string> plans = session_.all_gather(leads ? packed(own.value()) : "");
  Plan plan = leads ? *own : unpacked(plans.front());
  expected_ = plan.expected;
  exposed_ = std::move(plan.exposed);
  const bool is_another = plan.schedule != schedule_;
  schedule_ = std::move(plan.schedule);
  if (leads && expected_) {
    log(LogLevel::info,
        fmt::format("schedule {}: {} buckets of {} layers, expected {:.3g} ms per step, with "
                    "{:.3g} ms of {:.3g} ms of communication exposed",
                    options_.schedule, schedule_.buckets.size(), model_.layers.size(),
                    1e3 * expected_->iteration_s, 1e3 * expected_->exposed_s,
                    1e3 * expected_->communication_s));
  }
  return is_another;
}

std::string SchedulePlanner::packed(const Plan& plan) {
  Json json{{"buckets", Json::array()},
            {"order", Json::array()},
            {"after_backward", plan.schedule.after_backward},
            {"under_forward", plan.schedule.under_forward}};
  for (const LayerRange range : plan.schedule.buckets) {
    json["buckets"].push_back({range.first, range.last});
  }
  for (const ScheduledPhase& each : plan.schedule.order) {
    json["order"].push_back({each.bucket, static_cast<int>(each.phase)});
  }
  if (plan.expected) {
    json["expected"] = {plan.expected->iteration_s, plan.expected->compute_s,
                        plan.expected->communication_s, plan.expected->exposed_s};
    json["exposed"] = Json::array();
    for (const ExposedPhase& each : plan.exposed) {
      json["exposed"].push_back({each.bucket, static_cast<int>(each.phase), each.seconds});
    }
  }
  return json.dump();
}

SchedulePlanner::Plan SchedulePlanner::unpacked(const std::string& text) const {
  Plan plan;
  try {
    const Json json = Json::parse(text);
    for (const Json& range : json.at("buckets")) {
      plan.schedule.buckets.push_back({range.at(0).get<int>(), range.at(1).get<int>()});
    }
    for (const Json& each : json.at("order")) {
      plan.schedule.order.push_back({each.at(0).get<std::size_t>(), phase_of(each.at(1))});
    }
    plan.schedule.after_backward = json.at("after_backward").get<bool>();
    plan.schedule.under_forward = json.at("under_forward").get<bool>();
    if (json.contains("expected")) {
      const Json& times = json["expected"];
      plan.expected = {times.at(0).get<double>(), times.at(1).get<double>(),
                       times.at(2).get<double>(), times.at(3).get<double>()};
      for (const Json& each : json.at("exposed")) {
        plan.exposed.push_back(
            {each.at(0).get<std::size_t>(), phase_of(each.at(1)), each.at(2).get<double>()});
        if (plan.exposed.back().bucket >= plan.schedule.buckets.size()) {
          throw InputError("unknown bucket");
        }
      }
    }
    check_schedule(plan.schedule, model_.layers.size());
  } catch (const std::exception& error) {
    throw ProtocolError(
        fmt::format("worker 0 sent no valid schedule of these layers: {}", error.what()));
  }
  return plan;
}

}  // namespace sparsesync
