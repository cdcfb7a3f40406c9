// Makes traces: from token ids, categorical fields and text, or drawn from Zipf's law.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "analysis/trace/inputs.h"
#include "analysis/trace/trace.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// What every generator takes.
struct GenerateOptions {
  Index width = 32;
  DType dtype = DType::f32;
  int workers = 8;
  int steps = 1;
  std::uint64_t seed = 1;
};

/// A trace to be: its header, and the distinct rows, sorted, that a worker touches at a step, one
/// part for each tensor, without values.
struct TraceSource {
  TraceHeader header;
  std::function<std::vector<TracePart>(Rank worker, int step)> parts;
};

/// Worker w of n takes tokens [(s·n + w)·batch, +batch) at step s, wrapping at the end, of one
/// tensor "embedding".
/// @param rows     more than the largest token
/// @param sampled  so many log-uniform draws (log_uniform_draw()) are added for each worker and
///                 step
/// @param source   where the tokens come from, for messages and for the header
/// @throws InputError if there is no token, one is negative or >= rows (its position is named), or
///                    an option is out of its range
TraceSource trace_from_tokens(std::vector<std::int64_t> tokens, Index rows, Index batch,
                              Index sampled, const GenerateOptions& options,
                              const std::string& source);

/// A sample is a row of `fields` [samples, fields]; worker w takes samples as trace_from_tokens()
/// takes tokens. Each column is a vocabulary of its own of `max + 1` rows.
/// @param split  true: a tensor for each column, "field00", "field01", ...; false: one tensor
///               "embedding", where a column begins at the sum of the sizes of those before it
/// @throws InputError as trace_from_tokens(), or if the array has one dimension
TraceSource trace_from_fields(const NpyArray& fields, Index batch, bool split,
                              const GenerateOptions& options, const std::string& source);

/// trace_from_tokens() of the ids that tokenize() gives.
/// @throws InputError as tokenize() and trace_from_tokens()
TraceSource trace_from_text(std::span<const std::filesystem::path> paths, Index vocabulary,
                            Index batch, Index sampled, const GenerateOptions& options);

/// Each worker touches round(density · rows) distinct rows of one tensor "embedding", drawn by
/// draw_distinct_zipf(), anew for each worker and step.
/// @param density  share of the rows, in [0, 1]
/// @param zipf     exponent, in [0, kMaxZipf]
/// @throws InputError if an option is out of its range
TraceSource synthetic_trace(Index rows, double density, double zipf,
                            const GenerateOptions& options);

/// Means over workers and steps of a trace that was written.
struct TraceSummary {
  double touched_rows_mean = 0;  // of all tensors together
  double row_density_mean = 0;   // touched rows over the rows of all tensors
};

/// Writes the trace of `source`. If it fails, nothing is left at `path` that was not there before.
/// @param force     replace a trace (or an empty folder) of that name
/// @param progress  called with (files done, files in all) after each file; may be empty
/// @throws InputError if `path` may not be written to
/// @throws IoError if it cannot be written
TraceSummary write_trace(const TraceSource& source, const std::filesystem::path& path, bool force,
                         const std::function<void(Index, Index)>& progress = {});

}  // namespace sparsesync
