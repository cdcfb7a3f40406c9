// Inputs of the scheme benchmarks, and all scheme variants.
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
  /// @param folder  contains lm1b_tokens.npy and criteo_fields.npy
  /// @param small  whether LM1B gets a small table, for tokens with small ids
  /// @throws InputError
  explicit RealInputs(const std::filesystem::path& folder, bool small = false);
  TraceSource lm1b(const GenerateOptions& options) const;
  TraceSource criteo(const GenerateOptions& options) const;

 private:
  std::vector<std::int64_t> tokens_;
  Index lm1b_rows_;
  NpyArray fields_;
};

/// A trace in a temporary folder, which the destructor removes.
class TemporaryTrace {
 public:
  /// @throws the exceptions of write_trace()
  explicit TemporaryTrace(const TraceSource& source);
  TemporaryTrace(const TemporaryTrace&) = delete;
  TemporaryTrace& operator=(const TemporaryTrace&) = delete;
  ~TemporaryTrace();
  const Trace& trace() const { return trace_; }

 private:
  std::filesystem::path folder_;
  Trace trace_;
};

/// A scheme variant and its measurements.
struct MeasuredVariant {
  SchemeVariant variant;
  std::vector<SchemeFigures> rounds;  // at least one

  /// Returns the seconds of a step: the minimum of the rounds' medians, because disturbances only
  /// lengthen a round.
  /// @param link  link on which a recorded run is replayed; in real time the link of the run counts
  double seconds(const LocalLink& link) const;
};

/// Returns every scheme with every pattern.
std::vector<SchemeVariant> all_variants();

/// Measures variants in several rounds. Each round starts with another variant and has its own
/// memory, because the addresses of buffers change short steps by some percent.
/// @param variants  known so far; the call adds variants that fit, and appends rounds to known ones
/// @param options  shared by all runs; their schemes and pattern are ignored
/// @throws Error if a result was wrong
void measure_variants(std::vector<MeasuredVariant>& variants, const Trace& trace,
                      const CompareOptions& options, int rounds,
                      const std::vector<SchemeVariant>& wanted);

/// A comparison of a trace. Its workers are threads of this process.
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
