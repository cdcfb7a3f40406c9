// Makes traces: from token ids, categorical fields and text, or drawn from Zipf's law.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "analysis/npy.h"
#include "analysis/trace.h"
#include "kernels/views.h"

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
  std::function<std::vector<TracePart>(int worker, int step)> parts;
};

/// Worker w of n takes tokens [(s·n + w)·batch, +batch) at step s, wrapping at the end, of one
/// tensor "embedding".
/// @param rows     more than the largest token
/// @param sampled  so many log-uniform draws (log_uniform_draw()) are added for each worker and
/// step
/// @throws InputError if a token is negative or >= rows (its position is named), there is none, or
/// an
///         option is out of its range
TraceSource trace_from_tokens(std::vector<std::int64_t> tokens, Index rows, Index batch,
                              Index sampled, const GenerateOptions& options,
                              const std::string& source);

/// A sample is a row of `fields` [samples, fields]; worker w takes samples as trace_from_tokens()
/// takes tokens. Each column is a vocabulary of its own of `max + 1` rows.
/// @param split  true: a tensor for each column, "field00", "field01", ...; false: one tensor
/// "embedding",
///               where a column begins at the sum of the sizes of those before it
/// @throws InputError as trace_from_tokens(), or if the array has one dimension
TraceSource trace_from_fields(const NpyArray& fields, Index batch, bool split,
                              const GenerateOptions& options, const std::string& source);

/// trace_from_tokens() of the ids that tokenize() gives.
/// @throws InputError
TraceSource trace_from_text(std::span<const std::filesystem::path> paths, Index vocabulary,
                            Index batch, Index sampled, const GenerateOptions& options);

/// Each worker touches round(density · rows) distinct rows of one tensor "embedding", drawn by
/// draw_distinct_zipf(), anew for each worker and step.
/// @throws InputError if an option is out of its range
TraceSource synthetic_trace(Index rows, double density, double zipf,
                            const GenerateOptions& options);

/// The largest Zipf exponent that is taken: beyond it the draw is the first rows in order.
inline constexpr double kMaxZipf = 1000;
/// The most rows that a worker may touch in a synthetic trace.
inline constexpr Index kMaxDrawnRows = Index{1} << 28U;

/// Numbers from a counter and a key: the same on every machine, for each key another sequence.
class CounterRandom {
 public:
  explicit CounterRandom(std::uint64_t key) : key_(key) {}
  std::uint64_t next();
  /// In (0, 1), never 0 or 1: multiples of 2^-53.
  double uniform();
  /// From the exponential distribution of mean 1; positive.
  double exponential();

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

/// floor(exp(u · ln(rows + 1))) - 1 in [0, rows): the log-uniform candidate sampler of TensorFlow.
Index log_uniform_draw(CounterRandom& random, Index rows);

/// `count` distinct rows of [0, rows), sorted, by the law of successive draws without replacement
/// where row r has weight (r + 1)^-s: exact for every s, at a cost of O(count · log count) for any
/// number of rows.
///
/// Successive draws are the order of arrivals where row r arrives after an exponential time of rate
/// (r + 1)^-s (Efraimidis and Spirakis, IPL 97(5), 2006). The first rows, the head, get such a time
/// each. All others together are one Poisson process: its events come at the tail's total rate, and
/// each picks a row by rejection-inversion (Hörmann and Derflinger, ACM TOMACS 6(3), 1996); one
/// that came before is passed over. With a head of twice `count` rows at most 1.4 · count events
/// are expected, because half of the head at least has not arrived.
/// @param head  rows of the head; 0: chosen here
/// @pre 1 <= rows, 0 <= count <= min(rows, kMaxDrawnRows), 0 <= s <= kMaxZipf
std::vector<Index> draw_distinct_zipf(CounterRandom& random, Index rows, Index count, double s,
                                      Index head = 0);

/// Means over workers and steps of a trace that was written.
struct TraceSummary {
  double touched_rows_mean = 0;  // of all tensors together
  double row_density_mean = 0;   // touched rows over the rows of all tensors
};

/// Writes the trace of `source`.
/// @param progress  called with (files done, files in all) after each file; may be empty
/// @throws InputError, IoError; then nothing is left at `path` that was not there before
TraceSummary write_trace(const TraceSource& source, const std::filesystem::path& path, bool force,
                         const std::function<void(Index, Index)>& progress = {});

}  // namespace sparsesync
