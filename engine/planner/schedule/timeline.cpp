#include "engine/planner/schedule/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>

namespace sparsesync {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the times at which a worker computes, merged into as few spans as possible, in order.
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
    // Spans whose gap is only a rounding error are merged.
    const double slack = 1e-12 * std::max(1.0, span.begin);
    if (!spans.empty() && span.begin <= spans.back().end + slack) {
      spans.back().end = std::max(spans.back().end, span.end);
    } else {
      spans.push_back(span);
    }
  }
  return spans;
}

// Rows of a process in the trace.
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
        // It is unknown whether the worker computes after the last step.
        if (at == busy.size()) break;
        const double until = std::min(whole.end, computes ? busy[at].end : busy[at].begin);
        parts.push_back({step, place, {now, until}, !computes});
        now = until;
      }
    }
  }
  return parts;
}

std::vector<ExposedPhase> exposed_phases(std::span<const ScheduledLayer> layers,
                                         const BucketCosts& costs, const Schedule& schedule) {
  StepClock clock(layers, costs, schedule);
  constexpr std::array kPaces{1.0};
  // The first step has no gathers of an earlier step. The last step's gathers overlap an unknown
  // next step.
  clock.step(kPaces);
  std::array<StepTimeline, 3> steps;
  for (StepTimeline& step : steps) clock.step(kPaces, &step);
  std::vector<double> seconds(schedule.order.size());
  for (const CrossedPart& part : crossed_parts(steps)) {
    if (part.step == 1 && part.is_exposed) seconds[part.place] += part.span.seconds();
  }
  const double least = 1e-9 * clock.communication_seconds();  // shorter exposure is rounding
  std::vector<ExposedPhase> exposed;
  for (std::size_t place = 0; place < seconds.size(); ++place) {
    const auto [bucket, phase] = schedule.order[place];
    if (seconds[place] > least) exposed.push_back({bucket, phase, seconds[place]});
  }
  std::ranges::stable_sort(exposed, std::greater(), &ExposedPhase::seconds);
  return exposed;
}

std::string_view why_exposed(const Schedule& schedule, std::size_t bucket, Phase phase) {
  if (phase == Phase::announce) return "the forward pass ends before its row indices are exchanged";
  const bool reduces = phase == Phase::reduce;
  if (reduces && schedule.after_backward) {
    return "the schedule reduces after the backward pass";
  }
  if (!reduces && !schedule.under_forward) return "the next forward pass waits for all gathers";
  if (schedule.buckets[bucket].first == 0) {
    return "its gradient is ready last and needed first, with no computation in between";
  }
  return reduces ? "the link still transfers it when the backward pass ends"
                 : "the next forward pass needs it before the link has transferred it";
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
