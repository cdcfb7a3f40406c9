#include "engine/session/auto_scheme_messages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/base/bits.h"

namespace sparsesync {
namespace {

/// Number of touched rows in the samples, over all workers. With this many rows, every number that
/// costs depend on is accurate to one percent.
constexpr double kSampledRows = 1 << 20;
/// Rows of a neighborhood. A sample has all touched rows of a neighborhood or none, so that it
/// shows which blocks are touched.
constexpr Index kNeighborhoodRows = 256;

/// Parts of a step's CPU time, in the order in which messages have them.
constexpr std::array kParts{std::pair{&HostSeconds::reduce, &PhaseSeconds::apart},
                            std::pair{&HostSeconds::reduce, &PhaseSeconds::arriving},
                            std::pair{&HostSeconds::gather, &PhaseSeconds::apart},
                            std::pair{&HostSeconds::gather, &PhaseSeconds::arriving}};

/// Appends the bytes of a value to a message, in the byte order of the machine.
template <typename T>
void append(std::string& message, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  message.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// Reads a value at an offset of a message, and advances the offset.
template <typename T>
T read(const std::string& message, std::size_t& offset) {
  T value;
  if (message.size() - offset < sizeof(value)) {
    throw ProtocolError("a message of `auto` is too short");
  }
  std::memcpy(&value, message.data() + offset, sizeof(value));
  offset += sizeof(value);
  return value;
}

/// A worker's PlanContext, without `has_all_reduce`.
struct PlanContextMessage {
  Network network;
  double memory = 0;  // infinite: unlimited
  int trials = 0;
};

/// Returns the fraction of touched rows that the samples have.
double agree_on_share(ControlChannel& control, std::span<const std::vector<Index>> rows) {
  std::uint64_t touched = 0;
  for (const std::vector<Index>& of_space : rows) touched += of_space.size();
  std::string own;
  append(own, touched);
  double total = 0;
  for (const std::string& message : control.all_gather(own)) {
    std::size_t offset = 0;
    total += static_cast<double>(read<std::uint64_t>(message, offset));
  }
  return std::min(1.0, kSampledRows / std::max(1.0, total));
}

/// Whether samples with this fraction of rows include a row. All workers sample the same
/// neighborhoods.
bool is_sampled(Index row, double share) {
  const auto neighborhood = static_cast<std::uint64_t>(row / kNeighborhoodRows);
  return share >= 1 || static_cast<double>(mix64(neighborhood)) < share * 0x1p64;
}

/// Reads the rows of one row space from a sample.
/// @throws ProtocolError if they do not increase, or are not in [0, space.rows)
std::vector<Index> read_rows(const std::string& sample, std::size_t& offset,
                             const RowSpace& space) {
  std::vector<Index> rows;
  for (auto left = read<std::uint64_t>(sample, offset); left > 0; --left) {
    const auto row = read<Index>(sample, offset);
    const bool increases = rows.empty() || row > rows.back();
    if (row < 0 || row >= space.rows || !increases) {
      throw ProtocolError("a row sample of `auto` has an invalid row");
    }
    rows.push_back(row);
  }
  return rows;
}

void scale(SpaceStatistics& statistics, double factor) {
  for (double* number : {&statistics.touched_mean, &statistics.touched_max, &statistics.united,
                         &statistics.sent_at_least}) {
    *number *= factor;
  }
  for (double& united : statistics.united_in_groups) united *= factor;
  for (SpaceStatistics& blocks : statistics.blocks) scale(blocks, factor);
  for (SpaceStatistics& nodes : statistics.nodes) scale(nodes, factor);
}

}  // namespace

PlanContext agree_on_plan_context(ControlChannel& control, const PlanContext& own) {
  constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  std::string message;
  append(message, PlanContextMessage{.network = own.network,
                                     .memory = own.memory.value_or(kUnlimited),
                                     .trials = own.trials});
  PlanContext agreed = own;
  double memory = kUnlimited;
  const std::vector<std::string> messages = control.all_gather(message);
  for (std::size_t worker = 0; worker < messages.size(); ++worker) {
    std::size_t offset = 0;
    const auto other = read<PlanContextMessage>(messages[worker], offset);
    if (offset != messages[worker].size()) {
      throw ProtocolError("a plan context of `auto` is too long");
    }
    if (worker == 0) agreed.network = other.network;
    memory = std::min(memory, other.memory);
    agreed.trials = std::min(agreed.trials, other.trials);
  }
  agreed.memory = std::isfinite(memory) ? std::optional(memory) : std::nullopt;
  return agreed;
}

RowSamples exchange_samples(ControlChannel& control, std::span<const std::vector<Index>> rows) {
  const double share = agree_on_share(control, rows);
  std::string own;
  for (const std::vector<Index>& of_space : rows) {
    const std::size_t count_offset = own.size();
    std::uint64_t count = 0;
    append(own, count);
    for (const Index row : of_space) {
      if (!is_sampled(row, share)) continue;
      append(own, row);
      ++count;
    }
    std::memcpy(own.data() + count_offset, &count, sizeof(count));
  }
  return {.messages = control.all_gather(own), .share = share};
}

Statistics statistics_from(const RowSamples& samples, std::span<const RowSpace> spaces,
                           const SchemeOptions& options) {
  std::vector<std::vector<std::vector<Index>>> rows(spaces.size());  // [row space][worker]
  for (const std::string& sample : samples.messages) {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      rows[i].push_back(read_rows(sample, offset, spaces[i]));
    }
  }
  Statistics statistics;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const IndexSets sets(rows[i].begin(), rows[i].end());
    scale(statistics.emplace_back(statistics_of(sets, spaces[i], options)), 1 / samples.share);
  }
  return statistics;
}

TrialTimes exchange_trial_times(ControlChannel& control, std::span<const HostSeconds> own) {
  std::string message;
  for (const HostSeconds& step : own) {
    for (const auto& [phase, part] : kParts) append(message, step.*phase.*part);
  }
  TrialTimes times{.messages = control.all_gather(message), .median = {}};
  std::vector<HostSeconds> steps(own.size());
  for (const std::string& other : times.messages) {
    std::size_t offset = 0;
    for (HostSeconds& step : steps) {
      for (const auto& [phase, part] : kParts) {
        double& slowest = step.*phase.*part;
        slowest = std::max(slowest, read<double>(other, offset));
      }
    }
  }
  const auto median = steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
  std::nth_element(
      steps.begin(), median, steps.end(),
      [](const HostSeconds& a, const HostSeconds& b) { return a.total() < b.total(); });
  times.median = *median;
  return times;
}

}  // namespace sparsesync
