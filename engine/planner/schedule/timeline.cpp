#include "engine/planner/schedule/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sparsesync {
namespace {

using Json = nlohmann::ordered_json;

/// The times at which a worker computes, as few as they can be, in order.
std::vector<TimeSpan> computing(std::span<const StepTimeline> steps) {
  std::vector<TimeSpan> passes;
  for (const StepTimeline& step : steps) {
    passes.insert(passes.end(), step.forward.begin(), step.forward.end());
    passes.insert(passes.end(), step.backward.begin(), step.backward.end());
  }
  std::ranges::sort(passes, {}, &TimeSpan::begin);
  std::vector<TimeSpan> spans;
  for (const TimeSpan& span : passes) {
    if (span.end <= span.begin) continue;
    // What differs by rounding alone goes on.
    const double slack = 1e-12 * std::max(1.0, span.begin);
    if (!spans.empty() && span.begin <= spans.back().end + slack) {
      spans.back().end = std::max(spans.back().end, span.end);
    } else {
      spans.push_back(span);
    }
  }
  return spans;
}

// Rows of a process.
constexpr int kPasses = 0;
constexpr int kHidden = 1;
constexpr int kExposed = 2;

Json event(std::string name, int process, int row, const TimeSpan& span) {
  constexpr double kMicroseconds = 1e6;
  return {{"name", std::move(name)},
          {"ph", "X"},
          {"pid", process},
          {"tid", row},
          {"ts", span.begin * kMicroseconds},
          {"dur", span.seconds() * kMicroseconds}};
}

Json naming(const char* what, int process, int row, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", row}, {"args", {{"name", name}}}};
}

}  // namespace

std::vector<CrossedPart> crossed_parts(std::span<const StepTimeline> steps) {
  const std::vector<TimeSpan> busy = computing(steps);
  std::vector<CrossedPart> parts;
  std::size_t at = 0;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    for (std::size_t place = 0; place < steps[step].crossed.size(); ++place) {
      const TimeSpan& whole = steps[step].crossed[place];
      double now = whole.begin;
      while (now < whole.end) {
        while (at < busy.size() && busy[at].end <= now) ++at;
        const bool computes = at < busy.size() && busy[at].begin <= now;
        // After the last step nobody knows what the worker does.
        if (at == busy.size()) break;
        const double until = std::min(whole.end, computes ? busy[at].end : busy[at].begin);
        parts.push_back({step, place, {now, until}, !computes});
        now = until;
      }
    }
  }
  return parts;
}

std::string chrome_trace(std::span<const std::string> layers,
                         std::span<const NamedTimeline> timelines) {
  Json events = Json::array();
  for (int process = 0; process < std::ssize(timelines); ++process) {
    const NamedTimeline& timeline = timelines[static_cast<std::size_t>(process)];
    events.push_back(naming("process_name", process, 0, timeline.name));
    events.push_back(naming("thread_name", process, kPasses, "passes"));
    events.push_back(naming("thread_name", process, kHidden, "communication, hidden"));
    events.push_back(naming("thread_name", process, kExposed, "communication, exposed"));
    for (const StepTimeline& step : timeline.steps) {
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        events.push_back(event(layers[layer] + " forward", process, kPasses, step.forward[layer]));
      }
      for (std::size_t layer = layers.size(); layer-- > 0;) {
        events.push_back(
            event(layers[layer] + " backward", process, kPasses, step.backward[layer]));
      }
    }
    for (const CrossedPart& part : crossed_parts(timeline.steps)) {
      const auto [bucket, phase] = timeline.schedule.order[part.place];
      const LayerRange range = timeline.schedule.buckets[bucket];
      const std::string& first = layers[static_cast<std::size_t>(range.first)];
      const std::string of =
          range.size() == 1
              ? first
              : fmt::format("{} to {}", first, layers[static_cast<std::size_t>(range.last)]);
      events.push_back(event(fmt::format("{} of {}", name_of(phase), of), process,
                             part.is_exposed ? kExposed : kHidden, part.span));
    }
  }
  const Json trace{{"traceEvents", events}, {"displayTimeUnit", "ms"}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sparsesync
