// Makes traces: from token ids, categorical fields and text, or drawn from Zipf's law.
#include "analysis/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "analysis/input_file.h"
#include "analysis/quote.h"
#include "analysis/text.h"
#include "kernels/bits.h"

namespace sparsesync {
namespace {

constexpr Index kMaxSampled = Index{1} << 31U;

TraceHeader header_of(std::vector<TensorSpec> tensors, const GenerateOptions& options,
                      const std::string& source) {
  TraceHeader header{std::move(tensors), options.workers, options.steps, source, options.seed};
  check_trace_header(header, "the trace to be made");
  return header;
}

void check_range(const char* what, Index value, Index minimum, Index maximum) {
  if (value < minimum || value > maximum) {
    throw InputError(
        fmt::format("{} is {}: give a whole number from {} to {}", what, value, minimum, maximum));
  }
}

/// Each draw has a sequence of its own, so that no worker's rows depend on another's.
CounterRandom random_of(std::uint64_t seed, int worker, int step) {
  const std::uint64_t key = mix64(mix64(seed) + static_cast<std::uint64_t>(worker));
  return CounterRandom(mix64(key + static_cast<std::uint64_t>(step)));
}

/// Where worker `worker`'s batch begins in a list of `size` items that repeats for ever.
Index batch_begin(int worker, int step, int workers, Index batch, Index size) {
  const Index number = (Index{step} * workers + worker) % size;
  // The product of two numbers below 2^63 needs 126 bits.
  __extension__ using Wide = __int128;
  return static_cast<Index>(Wide{number} * (batch % size) % size);
}

void sort_distinct(std::vector<Index>& rows) {
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
}

/// The sum of (k / first)^-s over k in [first, last], by Euler and Maclaurin: exact to rounding
/// where first is some times larger than s. Scaled by first^s, so that nothing underflows.
double scaled_power_sum(double first, double last, double s) {
  const double ratio = std::log(last / first);
  const double power = 1 - s;
  const double integral =
      first * (std::abs(power * ratio) < 1e-12 ? ratio : std::expm1(power * ratio) / power);
  const double end = std::exp(-s * ratio);  // the last term
  const double end_slope = end / last;
  const double third = s * (s + 1) * (s + 2);
  const double fifth = third * (s + 3) * (s + 4);
  const double seventh = fifth * (s + 5) * (s + 6);
  return integral + (1 + end) / 2 + s / 12 * (1 / first - end_slope) -
         third / 720 * (std::pow(first, -3) - end_slope / (last * last)) +
         fifth / 30240 * (std::pow(first, -5) - end_slope / std::pow(last, 4)) -
         seventh / 1209600 * (std::pow(first, -7) - end_slope / std::pow(last, 6));
}

/// Draws k in [first, last] with weight k^-s, by rejection-inversion: a point is drawn uniformly
/// under the curve x^-s from first - 1/2 to last + 1/2, which the bar of each k fits under because
/// the curve is convex.
class PowerSampler {
 public:
  PowerSampler(double first, double last, double s)
      : first_(first),
        last_(last),
        power_(1 - s),
        s_(s),
        low_(area(first - 0.5)),
        high_(area(last + 0.5)) {}

  double draw(CounterRandom& random) const {
    while (true) {
      const double u = low_ + random.uniform() * (high_ - low_);
      const double k = std::clamp(std::round(position(u)), first_, last_);
      if (u >= area(k + 0.5) - std::exp(-s_ * std::log(k / first_))) return k;
    }
  }

 private:
  /// The integral of (t / first)^-s over t from first to x.
  double area(double x) const {
    const double ratio = std::log(x / first_);
    return first_ * (is_logarithm() ? ratio : std::expm1(power_ * ratio) / power_);
  }
  double position(double u) const {
    const double scaled = u / first_;
    // Rounding may put power·scaled at or below -1, where the integral to infinity ends.
    return first_ * std::exp(is_logarithm()
                                 ? scaled
                                 : std::log1p(std::max(power_ * scaled, -1 + 1e-16)) / power_);
  }
  bool is_logarithm() const { return std::abs(power_) < 1e-12; }

  double first_;
  double last_;
  double power_;
  double s_;
  double low_;  // area() reads the members above
  double high_;
};

}  // namespace

std::uint64_t CounterRandom::next() {
  return mix64(key_ + mix64(counter_++));
}

double CounterRandom::uniform() {
  // 52 bits and a half: with 53 the largest would be rounded to 1.
  return (static_cast<double>(next() >> 12U) + 0.5) * 0x1p-52;
}

double CounterRandom::exponential() {
  return -std::log(uniform());
}

Index log_uniform_draw(CounterRandom& random, Index rows) {
  const double x = std::exp(random.uniform() * std::log1p(static_cast<double>(rows)));
  // Compared as doubles: x may be rounded to a number that no Index holds.
  if (x >= static_cast<double>(rows)) return rows - 1;
  return std::max<Index>(static_cast<Index>(x) - 1, 0);
}

std::vector<Index> draw_distinct_zipf(CounterRandom& random, Index rows, Index count, double s,
                                      Index head) {
  SPARSESYNC_EXPECT(rows, >=, Index{1});
  SPARSESYNC_EXPECT(count, >=, Index{0});
  SPARSESYNC_EXPECT(count, <=, rows);
  SPARSESYNC_EXPECT(count, <=, kMaxDrawnRows);
  SPARSESYNC_EXPECT((s >= 0 && s <= kMaxZipf), ==, true);
  std::vector<Index> drawn;
  if (count == 0) return drawn;
  if (count == rows) {
    drawn.resize(static_cast<std::size_t>(rows));
    std::iota(drawn.begin(), drawn.end(), Index{0});
    return drawn;
  }
  // 4·s rows and more make scaled_power_sum() exact behind the head.
  if (head == 0) head = std::max<Index>({2 * count, 1024, static_cast<Index>(std::ceil(4 * s))});
  head = std::min(head, rows);

  // Times are compared as logarithms: with a large s they go beyond what a double holds.
  struct Arrival {
    double log_time;
    Index row;
    bool operator<(const Arrival& other) const {
      return std::pair(log_time, row) < std::pair(other.log_time, other.row);
    }
  };
  std::vector<Arrival> arrivals;
  arrivals.reserve(static_cast<std::size_t>(head));
  for (Index row = 0; row < head; ++row) {
    const double log_weight = -s * std::log(static_cast<double>(row + 1));
    arrivals.push_back({std::log(random.exponential()) - log_weight, row});
  }
  const auto wanted = static_cast<std::size_t>(count);
  if (arrivals.size() > wanted) {  // no more than that many of the head can be drawn
    std::nth_element(arrivals.begin(), arrivals.begin() + count, arrivals.end());
    arrivals.resize(wanted);
  }
  drawn.reserve(wanted);
  if (head == rows) {
    for (const Arrival& arrival : arrivals) drawn.push_back(arrival.row);
    std::sort(drawn.begin(), drawn.end());
    return drawn;
  }

  std::sort(arrivals.begin(), arrivals.end());
  const auto first = static_cast<double>(head + 1);  // rank of the tail's first row
  const auto last = static_cast<double>(rows);
  const PowerSampler sampler(first, last, s);
  const double log_rate = std::log(scaled_power_sum(first, last, s)) - s * std::log(first);
  std::unordered_set<Index> seen;
  double events = random.exponential();  // the time of the tail's next event, times its rate
  auto next = arrivals.begin();
  while (drawn.size() < wanted) {
    if (next != arrivals.end() && next->log_time < std::log(events) - log_rate) {
      drawn.push_back(next->row);
      ++next;
      continue;
    }
    const auto row = static_cast<Index>(sampler.draw(random)) - 1;
    if (seen.insert(row).second) drawn.push_back(row);
    events += random.exponential();
  }
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

TraceSource trace_from_tokens(std::vector<std::int64_t> tokens, Index rows, Index batch,
                              Index sampled, const GenerateOptions& options,
                              const std::string& source) {
  const auto size = static_cast<Index>(tokens.size());
  check_range("the number of rows", rows, 1, std::numeric_limits<Index>::max());
  check_range("the batch", batch, 1, std::numeric_limits<Index>::max());
  check_range("the number of sampled rows", sampled, 0, kMaxSampled);
  if (size == 0) throw InputError(fmt::format("{} holds no tokens", printable(source)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= rows) {
      throw InputError(
          fmt::format("{}: the token {} at position {} is {}", printable(source), tokens[i], i,
                      tokens[i] < 0 ? std::string("negative: tokens are 0 or more")
                                    : fmt::format("outside the {} rows: give more", rows)));
    }
  }
  TraceSource made;
  made.header = header_of({{"embedding", rows, options.width, options.dtype}}, options, source);
  const auto shared = std::make_shared<const std::vector<std::int64_t>>(std::move(tokens));
  made.parts = [shared, size, rows, batch, sampled, options](int worker, int step) {
    std::vector<TracePart> parts(1);
    std::vector<Index>& touched = parts[0].indices;
    Index at = batch_begin(worker, step, options.workers, batch, size);
    for (Index i = 0; i < std::min(batch, size); ++i) {
      touched.push_back((*shared)[static_cast<std::size_t>(at)]);
      if (++at == size) at = 0;
    }
    CounterRandom random = random_of(options.seed, worker, step);
    for (Index i = 0; i < sampled; ++i) touched.push_back(log_uniform_draw(random, rows));
    sort_distinct(touched);
    return parts;
  };
  return made;
}

TraceSource trace_from_fields(const NpyArray& fields, Index batch, bool split,
                              const GenerateOptions& options, const std::string& source) {
  check_range("the batch", batch, 1, std::numeric_limits<Index>::max());
  const std::string where = printable(source);
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
  if (!split) tensors.push_back({"embedding", rows, options.width, options.dtype});

  TraceSource made;
  made.header = header_of(std::move(tensors), options, source);
  const auto shared = std::make_shared<const std::vector<std::int64_t>>(fields.values);
  made.parts = [shared, offsets, samples, batch, split, options](int worker, int step) {
    const std::size_t width = offsets.size();
    std::vector<TracePart> parts(split ? width : 1);
    Index at = batch_begin(worker, step, options.workers, batch, samples);
    for (Index i = 0; i < std::min(batch, samples); ++i) {
      const std::size_t begin = static_cast<std::size_t>(at) * width;
      for (std::size_t column = 0; column < width; ++column) {
        parts[split ? column : 0].indices.push_back((*shared)[begin + column] + offsets[column]);
      }
      if (++at == samples) at = 0;
    }
    for (TracePart& part : parts) sort_distinct(part.indices);
    return parts;
  };
  return made;
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
        "a density of {} of {} rows is {:.0f} rows a worker: give a lower one, for at most {}",
        density, rows, touched, kMaxDrawnRows));
  }
  const Index count = std::min(static_cast<Index>(touched), rows);
  TraceSource made;
  made.header = header_of({{"embedding", rows, options.width, options.dtype}}, options,
                          fmt::format("synthetic density={} zipf={}", density, zipf));
  made.parts = [rows, count, zipf, options](int worker, int step) {
    CounterRandom random = random_of(options.seed, worker, step);
    std::vector<TracePart> parts(1);
    parts[0].indices = draw_distinct_zipf(random, rows, count, zipf);
    return parts;
  };
  return made;
}

TraceSummary write_trace(const TraceSource& source, const std::filesystem::path& path, bool force,
                         const std::function<void(Index, Index)>& progress) {
  const TraceHeader& header = source.header;
  TraceWriter writer(path, header, force);
  const Index files = Index{header.workers} * header.steps;
  Index done = 0;
  double touched = 0;
  for (int step = 0; step < header.steps; ++step) {
    for (int worker = 0; worker < header.workers; ++worker) {
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
