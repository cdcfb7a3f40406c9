#include "analysis/trace/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "analysis/trace/inputs.h"
#include "engine/support/log.h"
#include "engine/support/random_draws.h"
#include "kernels/base/bits.h"
#include "kernels/base/error.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

constexpr Index kMaxSampled = Index{1} << 31U;

TraceHeader header_of(std::vector<TensorSpec> tensors, const GenerateOptions& options,
                      const std::string& source) {
  return checked_header({std::move(tensors), options.workers, options.steps, source, options.seed},
                        "the trace to be made");
}

void check_range(const char* what, Index value, Index minimum, Index maximum) {
  if (value < minimum || value > maximum) {
    throw InputError(
        fmt::format("{} is {}: give a whole number from {} to {}", what, value, minimum, maximum));
  }
}

/// Returns a separate random sequence for each worker and step, so that the rows of one worker do
/// not depend on the others.
CounterRandom random_of(std::uint64_t seed, Rank worker, int step) {
  const std::uint64_t key = mix64(mix64(seed) + worker.index());
  return CounterRandom(mix64(key + static_cast<std::uint64_t>(step)));
}

TensorSpec embedding(Index rows, const GenerateOptions& options) {
  return {"embedding", rows, options.width, options.dtype};
}

/// Calls `visit` with the indices of a worker's batch in a list of `size` items that repeats
/// forever. Visits no index twice.
template <typename Visit>
void for_batch(Rank worker, int step, const GenerateOptions& options, Index batch, Index size,
               Visit&& visit) {
  const Index number = (Index{step} * options.workers + worker.value) % size;
  // The product of two numbers below 2^63 needs 126 bits.
  __extension__ using Wide = __int128;
  auto at = static_cast<Index>(Wide{number} * (batch % size) % size);
  for (Index i = 0; i < std::min(batch, size); ++i) {
    visit(static_cast<std::size_t>(at));
    if (++at == size) at = 0;
  }
}

/// Warns if the batches of all workers and steps read more items than the source has.
/// @param items  the plural name of the items
void warn_if_repeated(Index size, Index batch, const GenerateOptions& options, const char* items,
                      const std::string& source) {
  const double read = static_cast<double>(batch) * options.workers * options.steps;
  if (read <= static_cast<double>(size)) return;
  log(LogLevel::warning,
      fmt::format("{} has {} {}, and all batches together read {:.0f}: they continue at the first "
                  "one; lower --steps, --workers or --batch to read each once",
                  shortened(source), size, items, read));
}

}  // namespace

TraceSource trace_from_tokens(std::vector<std::int64_t> tokens, Index rows, Index batch,
                              Index sampled, const GenerateOptions& options,
                              const std::string& source) {
  const auto size = std::ssize(tokens);
  check_range("the number of rows", rows, 1, std::numeric_limits<Index>::max());
  check_range("the batch", batch, 1, std::numeric_limits<Index>::max());
  check_range("the number of sampled rows", sampled, 0, kMaxSampled);
  if (size == 0) throw InputError(fmt::format("{} holds no tokens", shortened(source)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= rows) {
      throw InputError(
          fmt::format("{}: the token {} at position {} is {}", shortened(source), tokens[i], i,
                      tokens[i] < 0 ? std::string("negative: tokens must be 0 or more")
                                    : fmt::format("outside the {} rows: give more", rows)));
    }
  }
  warn_if_repeated(size, batch, options, "tokens", source);
  const auto shared = std::make_shared<const std::vector<std::int64_t>>(std::move(tokens));
  const auto rows_of = [shared, size, rows, batch, sampled, options](Rank worker, int step) {
    std::vector<TracePart> parts(1);
    std::vector<Index>& touched = parts[0].indices;
    for_batch(worker, step, options, batch, size,
              [&](std::size_t at) { touched.push_back((*shared)[at]); });
    CounterRandom random = random_of(options.seed, worker, step);
    for (Index i = 0; i < sampled; ++i) touched.push_back(log_uniform_draw(random, rows));
    make_distinct(touched);
    return parts;
  };
  return {header_of({embedding(rows, options)}, options, source), rows_of};
}

TraceSource trace_from_fields(const NpyArray& fields, Index batch, bool split,
                              const GenerateOptions& options, const std::string& source) {
  check_range("the batch", batch, 1, std::numeric_limits<Index>::max());
  const std::string where = shortened(source);
  if (fields.shape.size() != 2) {
    throw InputError(
        fmt::format("{} has one dimension, not two: give an array [samples, fields]", where));
  }
  const Index samples = fields.shape[0];
  const Index columns = fields.shape[1];
  if (samples == 0 || columns == 0) throw InputError(fmt::format("{} holds no samples", where));
  std::vector<Index> sizes(static_cast<std::size_t>(columns), 0);
  for (std::size_t i = 0; i < fields.values.size(); ++i) {
    const std::int64_t value = fields.values[i];
    const std::size_t column = i % sizes.size();
    if (value < 0 || value == std::numeric_limits<std::int64_t>::max()) {
      throw InputError(fmt::format(
          "{}: the value {} of sample {}, field {} is {}", where, value, i / sizes.size(), column,
          value < 0 ? "negative: fields are numbered from 0" : "too large"));
    }
    sizes[column] = std::max(sizes[column], value + 1);
  }
  std::vector<TensorSpec> tensors;
  std::vector<Index> offsets;
  Index rows = 0;
  const int digits = std::max(2, static_cast<int>(fmt::formatted_size("{}", columns - 1)));
  for (std::size_t column = 0; column < sizes.size(); ++column) {
    offsets.push_back(split ? 0 : rows);
    if (__builtin_add_overflow(rows, sizes[column], &rows)) {
      throw InputError(fmt::format("{}: the fields have more values than can be counted", where));
    }
    if (split) {
      tensors.push_back({fmt::format("field{:0{}}", column, digits), sizes[column], options.width,
                         options.dtype});
    }
  }
  if (!split) tensors.push_back(embedding(rows, options));
  warn_if_repeated(samples, batch, options, "samples", source);

  const auto shared = std::make_shared<const std::vector<std::int64_t>>(fields.values);
  const auto rows_of = [shared, offsets, samples, batch, split, options](Rank worker, int step) {
    const std::size_t width = offsets.size();
    std::vector<TracePart> parts(split ? width : 1);
    for_batch(worker, step, options, batch, samples, [&](std::size_t sample) {
      for (std::size_t column = 0; column < width; ++column) {
        parts[split ? column : 0].indices.push_back((*shared)[sample * width + column] +
                                                    offsets[column]);
      }
    });
    for (TracePart& part : parts) make_distinct(part.indices);
    return parts;
  };
  return {header_of(std::move(tensors), options, source), rows_of};
}

TraceSource trace_from_text(std::span<const std::filesystem::path> paths, Index vocabulary,
                            Index batch, Index sampled, const GenerateOptions& options) {
  TextTokens text = tokenize(paths, vocabulary);
  std::string source = "from-text";
  for (const std::filesystem::path& path : paths) source.append(" ").append(path.string());
  return trace_from_tokens(std::move(text.ids), text.rows, batch, sampled, options, source);
}

TraceSource synthetic_trace(Index rows, double density, double zipf,
                            const GenerateOptions& options) {
  check_range("the number of rows", rows, 1, std::numeric_limits<Index>::max());
  if (!(density >= 0 && density <= 1)) {
    throw InputError(fmt::format("a density of {}: give a number from 0 to 1", density));
  }
  if (!(zipf >= 0 && zipf <= kMaxZipf)) {
    throw InputError(
        fmt::format("a Zipf exponent of {}: give a number from 0 to {}", zipf, kMaxZipf));
  }
  const double touched = std::round(density * static_cast<double>(rows));
  if (touched > static_cast<double>(kMaxDrawnRows)) {
    throw InputError(fmt::format(
        "a density of {} of {} rows is {:.0f} rows per worker: give a lower one, for at most {}",
        density, rows, touched, kMaxDrawnRows));
  }
  const Index count = std::min(static_cast<Index>(touched), rows);
  const auto rows_of = [rows, count, zipf, options](Rank worker, int step) {
    CounterRandom random = random_of(options.seed, worker, step);
    std::vector<TracePart> parts(1);
    parts[0].indices = draw_distinct_zipf(random, rows, count, zipf);
    return parts;
  };
  return {header_of({embedding(rows, options)}, options,
                    fmt::format("synthetic density={} zipf={}", density, zipf)),
          rows_of};
}

TraceSummary write_trace(const TraceSource& source, const std::filesystem::path& path, bool force,
                         const std::function<void(Index, Index)>& progress) {
  const TraceHeader& header = source.header;
  TraceWriter writer(path, header, force);
  const Index files = Index{header.workers} * header.steps;
  Index done = 0;
  double touched = 0;
  for (int step = 0; step < header.steps; ++step) {
    for (const Rank worker : Ranks(header.workers)) {
      const std::vector<TracePart> parts = source.parts(worker, step);
      for (const TracePart& part : parts) touched += static_cast<double>(part.indices.size());
      writer.write(worker, step, parts);
      ++done;
      if (progress) progress(done, files);
    }
  }
  writer.commit();
  double rows = 0;
  for (const TensorSpec& tensor : header.tensors) rows += static_cast<double>(tensor.rows);
  TraceSummary summary;
  summary.touched_rows_mean = touched / static_cast<double>(files);
  summary.row_density_mean = summary.touched_rows_mean / rows;
  return summary;
}

}  // namespace sparsesync
