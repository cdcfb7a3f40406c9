#include "engine/planner/scheme/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/planner/calibration/fit.h"

namespace sparsesync {
namespace {

/// Bounds on the CPU time, relative to the expected time. Disturbances and unfavourable memory
/// addresses only make trials longer, and rarely affect several of them.
struct Doubt {
  double at_best = 1;
  double at_worst = 1;
};
constexpr std::array kDoubts{Doubt{0.5, 2}, Doubt{0.75, 1}, Doubt{0.85, 1},
                             Doubt{0.93, 1}};  // [number of trials]

/// Returns the median ratio of CPU time to expected time in trials. It applies to variants without
/// a trial.
double typical_over_expected(std::span<const Trial> trials) {
  if (trials.empty()) return 1;
  std::vector<double> over_expected;
  for (const Trial& trial : trials) over_expected.push_back(trial.over_expected());
  return median(std::move(over_expected));
}

/// Explains why a scheme cannot be used. Empty if it can.
std::string reason_against(const PlanQuestion& question, const SchemeEntry& entry,
                           const SchemeOptions& options, double memory) {
  if (entry.all_reduces && !question.has_all_reduce) {
    return "this transport has no all-reduce of its own";
  }
  if (question.announce && !entry.heeds.has(SchemeOption::announce)) {
    return "does not use announced rows";
  }
  if (question.memory && memory > *question.memory) {
    return fmt::format("needs about {:.0f} bytes of workspace, and {:.0f} are available", memory,
                       *question.memory);
  }
  if (entry.check == nullptr) return "";
  try {
    entry.check(options, question.size);
  } catch (const InputError& unfit) {
    return unfit.what();
  }
  return "";
}

/// A scheme with a pattern, and its cost.
struct Candidate {
  SchemeEntry entry;
  SchemeOptions options;
  SchemeVariant variant;
  Cost cost;
  double memory_bytes = 0;
};

std::vector<Candidate> candidates_of(const PlanQuestion& question) {
  std::vector<Candidate> all;
  const auto add = [&](const SchemeEntry& entry, const SchemeOptions& options) {
    const Workload workload{.spaces = question.spaces,
                            .size = question.size,
                            .statistics = question.statistics,
                            .options = options};
    all.push_back({entry, options, variant_of(entry, options), entry.cost(workload),
                   entry.workspace_bytes(workload)});
  };
  for (const SchemeEntry& entry : all_schemes()) {
    SchemeOptions options = question.options;
    if (!entry.heeds.has(SchemeOption::pattern)) {
      add(entry, options);
      continue;
    }
    for (const Communication pattern : kCommunications) {
      options.pattern = pattern;
      add(entry, options);
    }
  }
  return all;
}

/// Trials of a variant, or of variants with the same cost: between two workers, all patterns are
/// the same.
struct Trials {
  int count = 0;
  const Trial* quickest = nullptr;
};

Trials trials_of(const Candidate& candidate, std::span<const Candidate> all,
                 std::span<const Trial> trials) {
  Trials found;
  for (const Trial& trial : trials) {
    const auto other = std::ranges::find(all, trial.variant, &Candidate::variant);
    if (other == all.end() || other->cost != candidate.cost) continue;
    ++found.count;
    const bool is_quicker =
        found.quickest == nullptr || trial.over_expected() < found.quickest->over_expected();
    if (is_quicker) found.quickest = &trial;
  }
  return found;
}

/// @param typical  typical_over_expected() of the trials
Prediction predict(const PlanQuestion& question, const Candidate& candidate,
                   std::span<const Candidate> all, double typical) {
  const Cost& cost = candidate.cost;
  Prediction prediction{candidate.variant};
  const Trials tried = trials_of(candidate, all, question.trials);
  prediction.trials = tried.count;
  const HostSeconds expected = cost.host_seconds(question.network.host);
  const HostSeconds host =
      tried.quickest != nullptr
          ? tried.quickest->took * (expected.total() / tried.quickest->expected)
          : expected * typical;
  prediction.seconds = cost.seconds(question.network, host);
  prediction.bytes_busiest = cost.bytes_busiest();
  prediction.memory_bytes = candidate.memory_bytes;
  prediction.work = cost.all_work();
  prediction.host_seconds = host.total();
  const auto place = static_cast<std::size_t>(prediction.trials);
  const Doubt doubt = place < kDoubts.size() ? kDoubts[place] : Doubt{};
  prediction.seconds_at_best = cost.seconds(question.network, host * doubt.at_best);
  prediction.seconds_at_worst = cost.seconds(question.network, host * doubt.at_worst);
  prediction.ruled_out =
      reason_against(question, candidate.entry, candidate.options, candidate.memory_bytes);
  return prediction;
}

}  // namespace

SchemeVariant variant_of(const SchemeEntry& entry, const SchemeOptions& options) {
  SchemeVariant variant{std::string(entry.name)};
  if (entry.heeds.has(SchemeOption::pattern)) variant.pattern = options.pattern;
  return variant;
}

SchemeOptions options_for(const SchemeVariant& variant, SchemeOptions options) {
  options.pattern = variant.pattern.value_or(options.pattern);
  return options;
}

bool is_better(const Prediction& a, const Prediction& b) {
  if (a.ruled_out.empty() != b.ruled_out.empty()) return a.ruled_out.empty();
  return a.seconds < b.seconds;
}

std::vector<Prediction> plan(const PlanQuestion& question) {
  const std::vector<Candidate> candidates = candidates_of(question);
  const double typical = typical_over_expected(question.trials);
  std::vector<Prediction> predictions;
  for (const Candidate& candidate : candidates) {
    predictions.push_back(predict(question, candidate, candidates, typical));
  }
  std::stable_sort(predictions.begin(), predictions.end(), is_better);
  return predictions;
}

const Prediction* prediction_of(std::span<const Prediction> predictions,
                                const SchemeVariant& variant) {
  const auto found = std::ranges::find(predictions, variant, &Prediction::variant);
  return found == predictions.end() ? nullptr : &*found;
}

std::vector<SchemeVariant> worth_a_trial(std::span<const Prediction> predictions) {
  std::vector<SchemeVariant> variants;
  if (predictions.empty()) return variants;
  const Prediction& first = predictions.front();
  const auto can_be = [](const Prediction& prediction) { return prediction.ruled_out.empty(); };
  const auto others = predictions.subspan(1);
  const bool may_fall_behind =
      first.seconds_at_worst > first.seconds &&
      std::any_of(others.begin(), others.end(), [&](const Prediction& other) {
        return can_be(other) && other.seconds_at_best < first.seconds_at_worst;
      });
  if (can_be(first) && may_fall_behind) variants.push_back(first.variant);
  for (const Prediction& other : others) {
    const bool may_improve = other.seconds_at_best < other.seconds;
    const bool may_go_ahead = may_improve && other.seconds_at_best < first.seconds;
    if (can_be(other) && may_go_ahead) variants.push_back(other.variant);
  }
  return variants;
}

}  // namespace sparsesync
