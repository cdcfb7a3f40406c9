#include "engine/session/auto_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "engine/session/bucket_agreement.h"
#include "engine/session/registered_bucket.h"
#include "engine/support/log.h"
#include "kernels/base/bits.h"
#include "kernels/base/host_copy.h"

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
/// A trial is some steps long: caches and branches learn in the first ones, of short steps more.
constexpr double kTrialSeconds = 0.02;
constexpr double kShortestTrial = 3;
constexpr double kLongestTrial = 40;

std::size_t trial_length(double host_seconds) {
  return static_cast<std::size_t>(
      std::clamp(kTrialSeconds / host_seconds, kShortestTrial, kLongestTrial));
}

constexpr std::array kParts{std::pair{&HostSeconds::reduce, &PhaseSeconds::apart},
                            std::pair{&HostSeconds::reduce, &PhaseSeconds::arriving},
                            std::pair{&HostSeconds::gather, &PhaseSeconds::apart},
                            std::pair{&HostSeconds::gather, &PhaseSeconds::arriving}};

// What workers tell each other, as their machines have it.
template <typename T>
void put(std::string& text, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T take(const std::string& text, std::size_t& at) {
  T value;
  if (text.size() - at < sizeof(value)) throw ProtocolError("a word of `auto` that cannot be read");
  std::memcpy(&value, text.data() + at, sizeof(value));
  at += sizeof(value);
  return value;
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

Stopwatch* AutoChoice::begin_phase(Phase phase, ControlChannel& control) {
  const bool begins = bucket_.begins_with(phase);
  if (begins && awaits_review()) review(control);
  if (!trying_) return nullptr;
  if (begins) reducing_ = gathering_ = {};
  return phase == Phase::gather ? &gathering_ : &reducing_;
}

void AutoChoice::end_phase(Phase phase) {
  if (phase == Phase::reduce) look();
  if (phase == Phase::gather) note();
}

void AutoChoice::adapt(ControlChannel& control) {
  if (awaits_review()) return review(control);
  wanted_ = true;
}

/// Keeps which rows were touched, if a review wants to know. A worker without the memory for it
/// tells of no rows: the review goes by those of the others.
void AutoChoice::look() {
  if (!wanted_ || looked_) return;
  looked_ = true;
  const std::span<const RowSpace> spaces = bucket_.spaces();
  rows_.resize(spaces.size());
  const auto tell_nothing = [&](const char* why) {
    for (std::vector<Index>& rows : rows_) rows.clear();
    log(LogLevel::info, fmt::format("bucket '{}': the rows of this worker are not looked at: {}",
                                    bucket_.spec().name, why));
  };
  try {
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      const std::span<const Index> touched = bucket_.input().coalesced(i).indices;
      rows_[i].resize(touched.size());
      fetch_numbers(bucket_.context(), touched, rows_[i]);
    }
  } catch (const BudgetError& budget) {
    tell_nothing(budget.what());
  } catch (const std::bad_alloc&) {
    tell_nothing("out of memory");
  }
}

/// Whether the next step is to be looked at.
void AutoChoice::note() {
  ++steps_;
  if (trying_) {
    took_.push_back({reducing_.seconds(), gathering_.seconds()});
    return;
  }
  if (!taken_ || wanted_) return;
  bool drifted = steps_ >= kLongest;
  for (std::size_t i = 0; i < statistics_.size(); ++i) {
    // All workers have the same rows; what a dense result hides is not the same guess on all.
    const SpaceResult& result = bucket_.scheme().result()[i];
    if (result.layout == Gradient::Layout::dense) continue;
    const auto now = static_cast<double>(result.indices.size());
    const double united = statistics_[i].united;
    drifted = drifted || std::abs(now - united) > kDrift * std::max(1.0, united);
  }
  wanted_ = drifted;
}

/// Called by all workers alike, before a step of the bucket begins.
void AutoChoice::review(ControlChannel& control) {
  if (looked_) {
    learn_rows(control);
  } else {
    learn_trial(control);
  }
  predictions_ =
      plan({bucket_.spaces(), size_, statistics_, ground_.network, bucket_.spec().options,
            ground_.has_all_reduce, bucket_.spec().announce, ground_.memory, trials_});
  for (Prediction& prediction : predictions_) {
    if (std::find(refused_.begin(), refused_.end(), prediction.way) == refused_.end()) continue;
    prediction.ruled_out = "a worker has not the memory for it";
  }
  std::stable_sort(predictions_.begin(), predictions_.end(), is_better);
  if (!try_another(control)) settle(control);
  bucket_.adapt(statistics_);
  sign(bucket_.chosen().label());
}

void AutoChoice::sign(const std::string& told) {
  bucket_.signature = signature_after(bucket_.signature, told);
}

void AutoChoice::learn_rows(ControlChannel& control) {
  double share = 1;
  const std::vector<std::string> samples = tell_sample(control, share);
  size_ = static_cast<int>(samples.size());
  statistics_ = statistics_from(samples, share);
  for (const std::string& sample : samples) sign(sample);
  refused_.clear();  // with other rows they may fit
  wanted_ = false;
  looked_ = false;
  trying_ = false;
}

/// The step in the middle of a trial; each part as it took the worker that took longest, for whom
/// the others wait.
void AutoChoice::learn_trial(ControlChannel& control) {
  // The first step made room for the way.
  const std::span<const HostSeconds> own_steps = std::span(took_).subspan(1);
  std::string own;
  for (const HostSeconds& step : own_steps) {
    for (const auto& [phase, part] : kParts) put(own, step.*phase.*part);
  }
  std::vector<HostSeconds> steps(own_steps.size());
  for (const std::string& text : control.all_gather(own)) {
    std::size_t at = 0;
    for (HostSeconds& step : steps) {
      for (const auto& [phase, part] : kParts) {
        double& longest = step.*phase.*part;
        longest = std::max(longest, take<double>(text, at));
      }
    }
    sign(text);
  }
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
  std::nth_element(
      steps.begin(), middle, steps.end(),
      [](const HostSeconds& a, const HostSeconds& b) { return a.total() < b.total(); });
  trials_.push_back({bucket_.chosen(), *middle, ground_.network.host.seconds(present().work)});
  log(LogLevel::info,
      fmt::format("bucket '{}': {} takes processors {:.2f} times what was expected",
                  bucket_.spec().name, bucket_.chosen().label(), trials_.back().over_expected()));
  trying_ = false;
}

const Prediction& AutoChoice::present() const {
  return *prediction_of(predictions_, bucket_.chosen());
}

/// @return whether the next steps do
bool AutoChoice::try_another(ControlChannel& control) {
  if (trials_.size() >= static_cast<std::size_t>(ground_.trials)) return false;
  for (const Way& way : worth_a_trial(predictions_)) {
    if (!change_to(way, control)) continue;
    trying_ = true;
    took_.clear();
    trial_length_ = trial_length(present().host_seconds);
    return true;
  }
  return false;
}

/// Takes the way that is expected to be fastest.
void AutoChoice::settle(ControlChannel& control) {
  const Prediction* const taken = taken_ ? prediction_of(predictions_, *taken_) : nullptr;
  const bool stays = taken != nullptr && taken->ruled_out.empty() &&
                     taken->seconds <= (1 + kHysteresis) * predictions_.front().seconds;
  if (!stays || !change_to(taken->way, control)) {
    for (const Prediction& prediction : predictions_) {
      if (!prediction.ruled_out.empty() || change_to(prediction.way, control)) break;
    }
  }
  taken_ = bucket_.chosen();
  steps_ = 0;
  for (const Prediction& prediction : predictions_) {
    if (!prediction.ruled_out.empty()) continue;
    log(LogLevel::debug,
        fmt::format("bucket '{}': {} is expected to take {:.3g} s, {} trials", bucket_.spec().name,
                    prediction.way.label(), prediction.seconds, prediction.trials));
  }
  log(LogLevel::info,
      fmt::format("bucket '{}': crosses by {}", bucket_.spec().name, taken_->label()));
}

/// @return whether all workers have the memory for it
bool AutoChoice::change_to(const Way& way, ControlChannel& control) {
  if (way == bucket_.chosen()) return true;
  const Way before = bucket_.chosen();
  const Change change{way.label(), [&] { bucket_.change_scheme(way); }};
  const Change back{fmt::format("bucket '{}', scheme {}", bucket_.spec().name, before.label()),
                    [&] { bucket_.change_scheme(before); }};
  if (agree_to_change(control, change, back)) return true;
  refused_.push_back(way);
  return false;
}

AutoChoice::Ground agreed_ground(ControlChannel& control, const AutoChoice::Ground& own) {
  struct Told {
    Network network;
    double memory = 0;
    int trials = 0;
  };
  std::string text;
  put(text,
      Told{own.network, own.memory.value_or(std::numeric_limits<double>::infinity()), own.trials});
  AutoChoice::Ground ground = own;
  double least = std::numeric_limits<double>::infinity();
  bool is_first = true;
  for (const std::string& other : control.all_gather(text)) {
    std::size_t at = 0;
    const Told theirs = take<Told>(other, at);
    if (at != other.size()) throw ProtocolError("a network that cannot be read");
    if (std::exchange(is_first, false)) ground.network = theirs.network;
    least = std::min(least, theirs.memory);
    ground.trials = std::min(ground.trials, theirs.trials);
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
    total += static_cast<double>(take<std::uint64_t>(text, at));
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
      put(sample, row);
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
      for (auto left = take<std::uint64_t>(sample, at); left > 0; --left) {
        const auto row = take<Index>(sample, at);
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
