// Generation of traces: from token ids, categorical fields and text, or by Zipf's law.
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

/// The options of all generators.
struct GenerateOptions {
  Index width = 32;
  DType dtype = DType::f32;
  int workers = 8;
  int steps = 1;
  std::uint64_t seed = 1;
};

/// A trace that can be written: its header, and a function that returns the rows that a worker
/// touches at a step. There is one part for each tensor, with distinct sorted rows and no values.
struct TraceSource {
  TraceHeader header;
  std::function<std::vector<TracePart>(Rank worker, int step)> parts;
};

/// Makes a trace of one tensor, "embedding", from token ids. At step s, worker w of n reads `batch`
/// tokens from position (s·n + w)·batch on, and continues at the first token after the last one.
/// @param rows     rows of the tensor; more than the largest token
/// @param sampled  number of log-uniform draws (log_uniform_draw()) to add per worker and step
/// @param source   origin of the tokens, for messages and for the header
/// @throws InputError if there are no tokens, a token is negative or >= rows (the message names its
///                    position), or an option is out of its range
TraceSource trace_from_tokens(std::vector<std::int64_t> tokens, Index rows, Index batch,
                              Index sampled, const GenerateOptions& options,
                              const std::string& source);

/// Makes a trace from categorical fields. Each column has a separate vocabulary of (largest value +
/// 1) rows. Workers read samples as they read tokens in trace_from_tokens().
/// @param fields  `[samples, fields]`
/// @param split  true: a tensor for each column, "field00", "field01", ...; false: one tensor
///               "embedding", where the rows of a column follow those of the columns before it
/// @throws InputError as trace_from_tokens(), or if the array has one dimension
TraceSource trace_from_fields(const NpyArray& fields, Index batch, bool split,
                              const GenerateOptions& options, const std::string& source);

/// Makes a trace from text: trace_from_tokens() of the ids of tokenize().
/// @throws InputError as tokenize() and trace_from_tokens()
TraceSource trace_from_text(std::span<const std::filesystem::path> paths, Index vocabulary,
                            Index batch, Index sampled, const GenerateOptions& options);

/// Makes a trace of one tensor, "embedding", by Zipf's law. In each step, each worker touches
/// round(density · rows) distinct rows, drawn independently by draw_distinct_zipf().
/// @param density  share of the rows, in [0, 1]
/// @param zipf     exponent, in [0, kMaxZipf]
/// @throws InputError if an option is out of its range
TraceSource synthetic_trace(Index rows, double density, double zipf,
                            const GenerateOptions& options);

/// Means over workers and steps of a written trace.
struct TraceSummary {
  double touched_rows_mean = 0;  // touched rows of all tensors together
  double row_density_mean = 0;   // touched rows / rows of all tensors
};

/// Writes the trace of `source`. After a failure, `path` is as it was before.
/// @param force     whether an existing trace (or an empty folder) is replaced
/// @param progress  called after each file with the files done and their total; may be empty
/// @throws InputError if `path` exists or may not be written
/// @throws IoError if the trace cannot be written
TraceSummary write_trace(const TraceSource& source, const std::filesystem::path& path, bool force,
                         const std::function<void(Index, Index)>& progress = {});

}  // namespace sparsesync
