// Timelines of steps: what crossed while nothing was computed, and the same as a Chrome trace.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/planner/schedule/schedule_simulator.h"

namespace sparsesync {

/// A part of something that crossed.
struct CrossedPart {
  std::size_t step = 0;
  std::size_t place = 0;  // in Schedule::order
  TimeSpan span;
  bool is_exposed = false;  // the worker's passes stood still
};

/// What crossed in some steps that follow each other, cut where a pass begins to wait or goes on.
/// In the order of time.
std::vector<CrossedPart> crossed_parts(std::span<const StepTimeline> steps);

/// Steps of one schedule, and how they are called.
struct NamedTimeline {
  std::string name;
  const Schedule& schedule;
  std::span<const StepTimeline> steps;
};

/// The text of a trace in the format of Chrome's, which ui.perfetto.dev opens: a process for each
/// timeline, with a row for the passes and one each for what crosses hidden and exposed.
/// @param layers  their names
std::string chrome_trace(std::span<const std::string> layers,
                         std::span<const NamedTimeline> timelines);

}  // namespace sparsesync
