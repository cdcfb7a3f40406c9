#include "analysis/plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace sparsesync {
namespace {

/// Why a scheme cannot be used; empty where it can.
std::string reason_against(const PlanQuestion& question, const SchemeEntry& entry,
                           const SchemeOptions& options, double memory) {
  if (entry.all_reduces && !question.has_all_reduce) {
    return "this transport has no all-reduce of its own";
  }
  if (question.announce && !entry.heeds.has(SchemeOption::announce)) {
    return "does not use announced rows";
  }
  if (question.memory && memory > *question.memory) {
    return fmt::format("needs about {:.0f} bytes of workspace, there are {:.0f}", memory,
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

Prediction predict(const PlanQuestion& question, const SchemeEntry& entry,
                   const SchemeOptions& options) {
  const Workload workload{question.spaces, question.size, question.statistics, options};
  const Cost cost = entry.cost(workload);
  const double memory = entry.workspace_bytes(workload);
  return {way_of(entry, options), cost.seconds(question.network),
          cost.bytes_busiest(),   memory,
          cost.all_work(),        reason_against(question, entry, options, memory)};
}

}  // namespace

std::string Way::label() const {
  return pattern ? fmt::format("{} ({})", scheme, name_of(*pattern)) : scheme;
}

Way way_of(const SchemeEntry& entry, const SchemeOptions& options) {
  Way way{std::string(entry.name)};
  if (entry.heeds.has(SchemeOption::pattern)) way.pattern = options.pattern;
  return way;
}

SchemeOptions options_for(const Way& way, SchemeOptions options) {
  options.pattern = way.pattern.value_or(options.pattern);
  return options;
}

bool is_better(const Prediction& a, const Prediction& b) {
  if (a.ruled_out.empty() != b.ruled_out.empty()) return a.ruled_out.empty();
  return a.seconds < b.seconds;
}

std::vector<Prediction> plan(const PlanQuestion& question) {
  std::vector<Prediction> predictions;
  for (const SchemeEntry& entry : all_schemes()) {
    SchemeOptions options = question.options;
    if (!entry.heeds.has(SchemeOption::pattern)) {
      predictions.push_back(predict(question, entry, options));
      continue;
    }
    for (const Communication pattern : kCommunications) {
      options.pattern = pattern;
      predictions.push_back(predict(question, entry, options));
    }
  }
  std::stable_sort(predictions.begin(), predictions.end(), is_better);
  return predictions;
}

}  // namespace sparsesync
