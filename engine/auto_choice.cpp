#include "engine/auto_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "engine/log.h"
#include "engine/registration.h"
#include "kernels/bits.h"
#include "kernels/locate.h"

namespace sparsesync {
namespace {

/// Touched rows, of all workers together, that a review looks at. So many give every number that
/// costs are made of to a percent.
constexpr double kSample = 1 << 20;
/// Neighbours are in the sample together, so that it says which blocks are touched.
constexpr Index kNeighbours = 256;
/// Steps after which a choice is looked at again, drift or not: a dense result does not show the
/// union.
constexpr std::int64_t kLongest = 1000;
constexpr double kDrift = 0.25;
constexpr double kHysteresis = 0.03;

void put(std::string& text, std::uint64_t number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number));
  text.append(bytes, sizeof(number));
}

std::uint64_t take(const std::string& text, std::size_t& at) {
  std::uint64_t number = 0;
  if (text.size() - at < sizeof(number)) throw ProtocolError("a sample that cannot be read");
  std::memcpy(&number, text.data() + at, sizeof(number));
  at += sizeof(number);
  return number;
}

void scale(SpaceStatistics& statistics, double by) {
  for (double* number : {&statistics.touched_mean, &statistics.touched_max, &statistics.united,
                         &statistics.sent_at_least}) {
    *number *= by;
  }
  for (double& united : statistics.united_in_groups) united *= by;
  for (SpaceStatistics& blocks : statistics.blocks) scale(blocks, by);
  for (SpaceStatistics& nodes : statistics.nodes) scale(nodes, by);
}

/// What `auto` heeds must fit: a plan would quietly rule out the scheme that it does not fit.
void check_of_all(const SchemeOptions& options, int size) {
  SchemeOptions told = options;
  // That nodes are not alike is nobody's mistake.
  if (told.workers_per_node == 0) told.workers_per_node = 1;
  for (const SchemeEntry& entry : all_schemes()) {
    if (entry.check != nullptr) entry.check(told, size);
  }
}

}  // namespace

SchemeEntry scheme_or_auto(std::string_view name) {
  if (name == kAuto) {
    SchemeEntry entry = scheme_named(AutoChoice::kFirstScheme);
    entry.name = kAuto;
    entry.summary = "whichever is expected to be fastest";
    for (const SchemeEntry& other : all_schemes()) entry.heeds.add(other.heeds);
    entry.heeds.remove(SchemeOption::pattern);  // it chooses that itself
    entry.check = check_of_all;
    return entry;
  }
  try {
    return scheme_named(name);
  } catch (const InputError& unknown) {
    throw InputError(fmt::format("{}, {}", unknown.what(), kAuto));
  }
}

void AutoChoice::look() {
  if (!wanted_ || looked_) return;
  const std::span<const RowSpace> spaces = bucket_.spaces();
  rows_.resize(spaces.size());
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const std::span<const Index> touched = bucket_.input().coalesced(i).indices;
    rows_[i].resize(touched.size());
    fetch(bucket_.context(), std::as_bytes(touched), reinterpret_cast<std::byte*>(rows_[i].data()));
  }
  looked_ = true;
}

void AutoChoice::note() {
  ++steps_;
  if (united_.empty() || wanted_) return;
  bool drifted = steps_ >= kLongest;
  for (std::size_t i = 0; i < united_.size(); ++i) {
    // All workers have the same rows; what a dense result hides is not the same guess on all.
    const SpaceResult& result = bucket_.scheme().result()[i];
    if (result.layout == Gradient::Layout::dense) continue;
    const auto now = static_cast<double>(result.indices.size());
    drifted = drifted || std::abs(now - united_[i]) > kDrift * std::max(1.0, united_[i]);
  }
  wanted_ = drifted;
}

void AutoChoice::review(ControlChannel& control) {
  double share = 1;
  const std::vector<std::string> samples = tell_sample(control, share);
  const Statistics statistics = statistics_from(samples, share);
  predictions_ = plan({bucket_.spaces(), static_cast<int>(samples.size()), statistics,
                       ground_.network, bucket_.spec().options, ground_.has_all_reduce,
                       bucket_.spec().announce, ground_.memory});
  const auto present = std::find_if(
      predictions_.begin(), predictions_.end(),
      [&](const Prediction& prediction) { return prediction.way == bucket_.chosen(); });
  const bool stays = present != predictions_.end() && present->ruled_out.empty() && steps_ > 1 &&
                     present->seconds <= (1 + kHysteresis) * predictions_.front().seconds;
  for (std::size_t i = 0; !stays && i < predictions_.size(); ++i) {
    if (!predictions_[i].ruled_out.empty() || change_to(predictions_[i].way, control)) break;
  }
  bucket_.scheme().adapt(statistics);
  std::uint64_t signature = signature_after(bucket_.signature, bucket_.chosen().label());
  for (const std::string& sample : samples) signature = signature_after(signature, sample);
  bucket_.signature = signature;
  united_.clear();
  for (const SpaceStatistics& space : statistics) united_.push_back(space.united);
  steps_ = 0;
  wanted_ = false;
  looked_ = false;
  log(LogLevel::info,
      fmt::format("bucket '{}': crosses by {}", bucket_.spec().name, bucket_.chosen().label()));
}

/// @return whether all workers have the memory for it
bool AutoChoice::change_to(const Way& way, ControlChannel& control) {
  if (way == bucket_.chosen()) return true;
  const Way before = bucket_.chosen();
  const auto refused = [&](const char* why) {
    log(LogLevel::info, why);
    bucket_.change_scheme(before);
    return false;
  };
  try {
    agree_to_make(control, way.label(), [&] { bucket_.change_scheme(way); });
  } catch (const RefusedError& elsewhere) {
    return refused(elsewhere.what());
  } catch (const BudgetError& budget) {
    return refused(budget.what());
  } catch (const std::bad_alloc&) {
    return refused("out of memory");
  }
  return true;
}

AutoChoice::Ground agreed_ground(ControlChannel& control, const AutoChoice::Ground& own) {
  struct Told {
    Network network;
    double memory = 0;
  };
  static_assert(std::is_trivially_copyable_v<Told>);
  const Told told{own.network, own.memory.value_or(std::numeric_limits<double>::infinity())};
  std::string text(sizeof(told), '\0');
  std::memcpy(text.data(), &told, sizeof(told));
  AutoChoice::Ground ground = own;
  double least = told.memory;
  bool is_first = true;
  for (const std::string& other : control.all_gather(text)) {
    Told theirs;
    if (other.size() != sizeof(theirs)) throw ProtocolError("a network that cannot be read");
    std::memcpy(&theirs, other.data(), sizeof(theirs));
    if (std::exchange(is_first, false)) ground.network = theirs.network;
    least = std::min(least, theirs.memory);
  }
  ground.memory = std::isfinite(least) ? std::optional(least) : std::nullopt;
  return ground;
}

/// What each worker touched: rows whose hash, that of their neighbourhood, falls below a bound.
std::vector<std::string> AutoChoice::tell_sample(ControlChannel& control, double& share) const {
  std::string own;
  std::uint64_t touched = 0;
  for (const std::vector<Index>& rows : rows_) touched += rows.size();
  put(own, touched);
  double total = 0;
  for (const std::string& text : control.all_gather(own)) {
    std::size_t at = 0;
    total += static_cast<double>(take(text, at));
  }
  share = std::min(1.0, kSample / std::max(1.0, total));
  const auto is_in = [&](Index row) {
    const auto neighbourhood = static_cast<std::uint64_t>(row / kNeighbours);
    return static_cast<double>(mix64(neighbourhood)) < share * 0x1p64;
  };
  std::string sample;
  for (const std::vector<Index>& rows : rows_) {
    const std::size_t count_at = sample.size();
    std::uint64_t count = 0;
    put(sample, count);
    for (const Index row : rows) {
      if (share < 1 && !is_in(row)) continue;
      put(sample, static_cast<std::uint64_t>(row));
      ++count;
    }
    std::memcpy(sample.data() + count_at, &count, sizeof(count));
  }
  return control.all_gather(sample);
}

Statistics AutoChoice::statistics_from(const std::vector<std::string>& samples,
                                       double share) const {
  const std::span<const RowSpace> spaces = bucket_.spaces();
  std::vector<std::vector<std::vector<Index>>> rows(spaces.size());
  for (const std::string& sample : samples) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      std::vector<Index>& of_worker = rows[i].emplace_back();
      for (std::uint64_t left = take(sample, at); left > 0; --left) {
        const auto row = static_cast<Index>(take(sample, at));
        const bool increases = of_worker.empty() || row > of_worker.back();
        if (row < 0 || row >= spaces[i].rows || !increases) {
          throw ProtocolError("a sample with a row that cannot be");
        }
        of_worker.push_back(row);
      }
    }
  }
  Statistics statistics;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const IndexSets sets(rows[i].begin(), rows[i].end());
    scale(statistics.emplace_back(statistics_of(sets, spaces[i], bucket_.spec().options)),
          1 / share);
  }
  return statistics;
}

}  // namespace sparsesync
