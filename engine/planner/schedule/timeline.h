// Timelines of steps: exposed communication, and export as a Chrome trace.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/planner/schedule/schedule_simulator.h"

namespace sparsesync {

/// A part of a phase that is either hidden or exposed.
struct CrossedPart {
  std::size_t step = 0;
  std::size_t place = 0;  // index in Schedule::order
  TimeSpan span;
  bool is_exposed = false;  // whether the worker's passes wait meanwhile
};

/// Returns the phases of consecutive steps in the order of time, divided where a pass begins to
/// wait or continues.
std::vector<CrossedPart> crossed_parts(std::span<const StepTimeline> steps);

/// Steps of one schedule, with a name for the trace.
struct NamedTimeline {
  std::string name;
  const Schedule& schedule;
  std::span<const StepTimeline> steps;
};

/// Returns the exposed phases of a step in a sequence of equal steps, the longest first.
std::vector<ExposedPhase> exposed_phases(std::span<const ScheduledLayer> layers,
                                         const BucketCosts& costs, const Schedule& schedule);

/// Explains in a few words why the schedule exposes a phase.
std::string_view why_exposed(const Schedule& schedule, std::size_t bucket, Phase phase);

/// Returns a trace in Chrome's format, which ui.perfetto.dev opens. Each timeline is a process with
/// three rows: passes, hidden communication and exposed communication.
/// @param layers  names of the layers
std::string chrome_trace(std::span<const std::string> layers,
                         std::span<const NamedTimeline> timelines);

}  // namespace sparsesync
