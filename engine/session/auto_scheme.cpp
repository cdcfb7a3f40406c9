#include "engine/session/auto_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "engine/session/bucket_agreement.h"
#include "engine/session/registered_bucket.h"
#include "engine/support/log.h"
#include "kernels/base/host_copy.h"

namespace sparsesync {
namespace {

/// Steps after which the rows are recorded again even without a drift, because a dense result hides
/// the union.
constexpr std::int64_t kLongestAdopted = 1000;
/// Relative change of the union's size that counts as a drift.
constexpr double kDrift = 0.25;
/// Relative time by which another scheme must be faster than the adopted one.
constexpr double kHysteresis = 0.03;
/// CPU time of a trial, in seconds. Caches and branch predictors warm up in its first steps,
/// so that short steps need more of them.
constexpr double kTrialSeconds = 0.02;
constexpr double kShortestTrial = 3;  // steps
constexpr double kLongestTrial = 40;  // steps

/// Returns the number of steps of a trial.
/// @param host_seconds  predicted CPU time of a step
std::size_t trial_length(double host_seconds) {
  return static_cast<std::size_t>(
      std::clamp(kTrialSeconds / host_seconds, kShortestTrial, kLongestTrial));
}

/// Checks the options for all schemes. A plan would silently rule out a scheme whose options are
/// not valid.
void check_for_all_schemes(const SchemeOptions& options, int size) {
  SchemeOptions checked = options;
  // 0 means that the nodes have different numbers of workers, which is not an error.
  if (checked.workers_per_node == 0) checked.workers_per_node = 1;
  for (const SchemeEntry& entry : all_schemes()) {
    if (entry.check != nullptr) entry.check(checked, size);
  }
}

}  // namespace

SchemeEntry scheme_or_auto(std::string_view name) {
  if (name == kAuto) {
    SchemeEntry entry = scheme_named(AutoScheme::kFirstScheme);
    entry.name = kAuto;
    entry.summary = "picks the scheme that is expected to be fastest";
    for (const SchemeEntry& other : all_schemes()) entry.heeds.add(other.heeds);
    entry.heeds.remove(SchemeOption::pattern);  // `auto` chooses the pattern
    entry.check = check_for_all_schemes;
    return entry;
  }
  try {
    return scheme_named(name);
  } catch (const InputError& unknown) {
    throw InputError(fmt::format("{}, {}", unknown.what(), kAuto));
  }
}

Stopwatch* AutoScheme::begin_phase(Phase phase, ControlChannel& control) {
  const bool begins_step = bucket_.begins_with(phase);
  if (begins_step && is_review_due()) review(control);
  if (state_ != State::trialing) return nullptr;
  if (begins_step) trial_.reduce = trial_.gather = {};
  return phase == Phase::gather ? &trial_.gather : &trial_.reduce;
}

void AutoScheme::end_phase(Phase phase) {
  const bool is_sampling = state_ == State::sampling || state_ == State::trial_interrupted;
  if (phase == Phase::reduce && is_sampling) record_rows();
  if (phase == Phase::gather) count_step();
}

void AutoScheme::adapt(ControlChannel& control) {
  switch (state_) {
    case State::rows_recorded:
    case State::trial_complete:
      return review(control);
    case State::trialing:
      state_ = State::trial_interrupted;
      return;
    case State::adopted:
      state_ = State::sampling;
      return;
    case State::sampling:
    case State::trial_interrupted:
      return;
  }
}

/// Records the rows that this worker touched. It records none if it has not enough memory: the
/// review then depends on the other workers' rows.
void AutoScheme::record_rows() {
  state_ = State::rows_recorded;
  const std::span<const RowSpace> spaces = bucket_.spaces();
  recorded_rows_.resize(spaces.size());
  const auto record_none = [&](const char* reason) {
    for (std::vector<Index>& rows : recorded_rows_) rows.clear();
    log(LogLevel::info, fmt::format("bucket '{}': the rows of this worker are not recorded: {}",
                                    bucket_.spec().name, reason));
  };
  try {
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      const std::span<const Index> touched = bucket_.input().coalesced(i).indices;
      recorded_rows_[i].resize(touched.size());
      fetch_numbers(bucket_.context(), touched, recorded_rows_[i]);
    }
  } catch (const BudgetError& budget) {
    record_none(budget.what());
  } catch (const std::bad_alloc&) {
    record_none("out of memory");
  }
}

/// Counts a complete step of a trial or of the adopted scheme.
void AutoScheme::count_step() {
  if (state_ == State::trialing) {
    trial_.seconds.push_back(
        {.reduce = trial_.reduce.seconds(), .gather = trial_.gather.seconds()});
    if (trial_.seconds.size() == trial_.length) state_ = State::trial_complete;
  } else if (state_ == State::adopted) {
    ++adopted_->steps;
    if (adopted_->steps >= kLongestAdopted || has_drifted()) state_ = State::sampling;
  }
}

/// Whether the last step's union differs from the one that was reviewed. The same on all workers:
/// a dense result does not count, because each worker estimates its union differently.
bool AutoScheme::has_drifted() const {
  for (std::size_t i = 0; i < findings_.statistics.size(); ++i) {
    const SpaceResult& result = bucket_.scheme().result()[i];
    if (result.layout == Gradient::Layout::dense) continue;
    const auto rows = static_cast<double>(result.indices.size());
    const double reviewed = findings_.statistics[i].united;
    if (std::abs(rows - reviewed) > kDrift * std::max(1.0, reviewed)) return true;
  }
  return false;
}

/// Chooses the scheme of the next steps. All workers call this function together, before a step of
/// the bucket begins.
void AutoScheme::review(ControlChannel& control) {
  if (state_ == State::rows_recorded) {
    review_rows(control);
  } else {
    review_trial(control);
  }
  predict();
  if (!start_trial(control)) adopt_best(control);
  bucket_.adapt(findings_.statistics);
  extend_signature(std::array{bucket_.chosen().label()});
}

void AutoScheme::review_rows(ControlChannel& control) {
  const RowSamples samples = exchange_samples(control, recorded_rows_);
  findings_.workers = static_cast<int>(samples.messages.size());
  findings_.statistics = statistics_from(samples, bucket_.spaces(), bucket_.spec().options);
  findings_.refused.clear();  // other rows may need less memory
  extend_signature(samples.messages);
}

void AutoScheme::review_trial(ControlChannel& control) {
  // The first step allocated the scheme's workspace.
  const TrialTimes times = exchange_trial_times(control, std::span(trial_.seconds).subspan(1));
  extend_signature(times.messages);
  findings_.trials.push_back(
      {.variant = bucket_.chosen(),
       .took = times.median,
       .expected = context_.network.host.seconds(prediction_of_chosen().work)});
  log(LogLevel::info,
      fmt::format("bucket '{}': {} needs {:.2f} times the expected CPU time", bucket_.spec().name,
                  bucket_.chosen().label(), findings_.trials.back().over_expected()));
}

void AutoScheme::predict() {
  findings_.predictions = plan({.spaces = bucket_.spaces(),
                                .size = findings_.workers,
                                .statistics = findings_.statistics,
                                .network = context_.network,
                                .options = bucket_.spec().options,
                                .has_all_reduce = context_.has_all_reduce,
                                .announce = bucket_.spec().announce,
                                .memory = context_.memory,
                                .trials = findings_.trials});
  for (Prediction& prediction : findings_.predictions) {
    const bool is_refused =
        std::ranges::find(findings_.refused, prediction.variant) != findings_.refused.end();
    if (is_refused) prediction.ruled_out = "a worker lacks memory for it";
  }
  std::stable_sort(findings_.predictions.begin(), findings_.predictions.end(), is_better);
}

/// Starts a trial of the first scheme that is worth one and that all workers have memory for.
/// @return whether there is such a scheme
bool AutoScheme::start_trial(ControlChannel& control) {
  if (findings_.trials.size() >= static_cast<std::size_t>(context_.trials)) return false;
  for (const SchemeVariant& variant : worth_a_trial(findings_.predictions)) {
    if (!change_to(variant, control)) continue;
    trial_ = {.length = trial_length(prediction_of_chosen().host_seconds)};
    trial_.seconds.reserve(trial_.length);
    state_ = State::trialing;
    return true;
  }
  return false;
}

/// Adopts the scheme with the shortest predicted time that all workers have memory for, or keeps
/// the adopted one if it is nearly as fast.
void AutoScheme::adopt_best(ControlChannel& control) {
  const std::vector<Prediction>& predictions = findings_.predictions;
  const Prediction* const adopted =
      adopted_ ? prediction_of(predictions, adopted_->variant) : nullptr;
  const bool stays = adopted != nullptr && adopted->ruled_out.empty() &&
                     adopted->seconds <= (1 + kHysteresis) * predictions.front().seconds;
  if (!stays || !change_to(adopted->variant, control)) {
    for (const Prediction& prediction : predictions) {
      if (!prediction.ruled_out.empty() || change_to(prediction.variant, control)) break;
    }
  }
  adopted_ = {.variant = bucket_.chosen()};
  state_ = State::adopted;
  for (const Prediction& prediction : predictions) {
    if (!prediction.ruled_out.empty()) continue;
    log(LogLevel::debug,
        fmt::format("bucket '{}': {} is expected to take {:.3g} s, {} trials", bucket_.spec().name,
                    prediction.variant.label(), prediction.seconds, prediction.trials));
  }
  log(LogLevel::info,
      fmt::format("bucket '{}': adopts {}", bucket_.spec().name, bucket_.chosen().label()));
}

/// Changes the scheme on all workers, or on none.
/// @return whether all workers have the memory for it
bool AutoScheme::change_to(const SchemeVariant& variant, ControlChannel& control) {
  if (variant == bucket_.chosen()) return true;
  const SchemeVariant before = bucket_.chosen();
  const Change change{.subject = variant.label(), .make = [&] { bucket_.change_scheme(variant); }};
  const Change back{
      .subject = fmt::format("bucket '{}', scheme {}", bucket_.spec().name, before.label()),
      .make = [&] { bucket_.change_scheme(before); }};
  if (agree_to_change(control, change, back)) return true;
  findings_.refused.push_back(variant);
  return false;
}

/// @pre a review has predicted
const Prediction& AutoScheme::prediction_of_chosen() const {
  return *prediction_of(findings_.predictions, bucket_.chosen());
}

void AutoScheme::extend_signature(std::span<const std::string> agreed) {
  for (const std::string& text : agreed) {
    bucket_.signature = signature_after(bucket_.signature, text);
  }
}

}  // namespace sparsesync
