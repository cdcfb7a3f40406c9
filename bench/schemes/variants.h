// What the benches of schemes share: their inputs, and every way that these can be synchronized.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "analysis/compare/compare.h"
#include "analysis/launcher.h"
#include "analysis/trace/generate.h"
#include "analysis/trace/inputs.h"
#include "analysis/trace/trace.h"
#include "engine/planner/scheme/plan.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {

/// The real inputs, read once.
class RealInputs {
 public:
  /// @param folder  has lm1b_tokens.npy and criteo_fields.npy
  /// @param small   whether LM1B's table is to be a small one, for tokens that are small
  /// @throws InputError
  explicit RealInputs(const std::filesystem::path& folder, bool small = false);
  TraceSource lm1b(const GenerateOptions& options) const;
  TraceSource criteo(const GenerateOptions& options) const;

 private:
  std::vector<std::int64_t> tokens_;
  Index lm1b_rows_;
  NpyArray fields_;
};

/// A trace in a folder that goes with this object.
class TemporaryTrace {
 public:
  /// @throws what write_trace() throws
  explicit TemporaryTrace(const TraceSource& source);
  TemporaryTrace(const TemporaryTrace&) = delete;
  TemporaryTrace& operator=(const TemporaryTrace&) = delete;
  ~TemporaryTrace();
  const Trace& trace() const { return trace_; }

 private:
  std::filesystem::path folder_;
  Trace trace_;
};

/// One way to synchronize a trace, and what that took.
struct MeasuredVariant {
  SchemeVariant variant;
  std::vector<SchemeFigures> rounds;  // one at least

  /// Of a step: the least of the rounds' medians. What disturbs a round only ever makes it longer.
  /// @param link  that a recorded run is replayed on; in real time that of the run counts
  double seconds(const LocalLink& link) const;
};

/// Every scheme with every pattern.
std::vector<SchemeVariant> all_variants();

/// Runs some ways, in rounds of which each begins elsewhere, with memory of its own: where buffers
/// happen to lie makes some percent of a short step.
/// @param ways     known so far: gets those that fit, or rounds of those that it has
/// @param options  that all runs share; schemes and pattern are of no account
/// @throws Error if a result was wrong
void measure_variants(std::vector<MeasuredVariant>& variants, const Trace& trace,
                      const CompareOptions& options, int rounds,
                      const std::vector<SchemeVariant>& wanted);

/// A comparison of a trace with workers of its own, in this process.
class LocalComparison {
 public:
  LocalComparison(const Trace& trace, const CompareOptions& options);
  Comparison& operator*() { return comparison_; }
  Comparison* operator->() { return &comparison_; }

 private:
  LocalWorkers workers_;
  Comparison comparison_;
};

}  // namespace sparsesync
