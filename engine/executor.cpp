#include "engine/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/support/median.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

constexpr std::size_t kKeptSteps = 32;
constexpr std::size_t kKeptTimelines = 3;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Model model_of(const std::vector<ExecutedLayer>& layers) {
  Model model;
  for (const ExecutedLayer& layer : layers) {
    const TensorSpec& tensor = layer.tensor;
    ModelLayer& of_model = model.layers.emplace_back();
    of_model.name = tensor.name;
    of_model.forward_s = layer.forward_s;
    of_model.backward_s = layer.backward_s;
    of_model.group = static_cast<int>(tensor.dtype);
    if (layer.rows_cross) {
      of_model.sparse =
          SparseGradient{tensor.rows, tensor.width, layer.touched, layer.densification};
    } else {
      of_model.bytes =
          static_cast<double>(tensor.rows * tensor.width * element_bytes(tensor.dtype));
    }
  }
  return model;
}

}  // namespace

Executor::Executor(Session& session, std::vector<ExecutedLayer> layers,
                   const ExecutorOptions& options, OnResult on_result)
    : session_(session),
      layers_(std::move(layers)),
      options_(options),
      on_result_(std::move(on_result)),
      planner_(session, model_of(layers_), options.planning),
      forward_s_(layers_.size()),
      backward_s_(layers_.size()),
      touched_(layers_.size()),
      running_{std::vector<TimeSpan>(layers_.size()), std::vector<TimeSpan>(layers_.size()), {}},
      crossing_(running_) {
  iterations_s_.reserve(kKeptSteps);
  exposed_s_.reserve(kKeptSteps);
  make_buckets();
}

// ---- Buckets.

void Executor::make_buckets() {
  step_.emplace(planner_.schedule(), layers_.size());
  const Schedule& schedule = step_->schedule();
  for (std::size_t i = 0; i < schedule.buckets.size(); ++i) {
    const LayerRange range = schedule.buckets[i];
    BucketSpec spec;
    bool rows_cross = false;
    // In the order in which backward makes them.
    for (int layer = range.last; layer >= range.first; --layer) {
      const ExecutedLayer& each = layers_[static_cast<std::size_t>(layer)];
      rows_cross = each.rows_cross;
      TensorSpec& tensor = spec.tensors.emplace_back(each.tensor);
      if (!rows_cross) {
        tensor.rows *= tensor.width;
        tensor.width = 1;
      }
    }
    const std::string& first = spec.tensors.front().name;
    spec.name = range.size() == 1 ? first : fmt::format("{} and {} more", first, range.size() - 1);
    spec.scheme = rows_cross ? options_.planning.scheme : options_.planning.dense_scheme;
    spec.reduction = options_.reduction;
    spec.options = options_.options;
    spec.announce = step_->announces(i);
    Bucket& bucket = buckets_.emplace_back();
    bucket.id = session_.register_bucket(spec);
    bucket.gradients.resize(spec.tensors.size(), Gradient::empty());
    bucket.rows.resize(spec.tensors.size(), Gradient::rows({}));
  }
  crossed_.assign(buckets_.size(), {});
  timelines_.clear();
  std::vector<OrderEntry> order;
  for (const ScheduledPhase& each : schedule.order) {
    order.push_back({buckets_[each.bucket].id, each.phase});
  }
  session_.set_order(order, session_.step());
}

void Executor::release_buckets() {
  for (const Bucket& bucket : buckets_) session_.release_bucket(bucket.id);
  buckets_.clear();
}

/// Of a layer among its bucket's tensors.
std::size_t Executor::place_of(std::size_t layer) const {
  const LayerRange range = step_->schedule().buckets[step_->bucket_of(layer)];
  return static_cast<std::size_t>(range.last) - layer;
}

// ---- The forward pass.

void Executor::forward(std::size_t layer) {
  SPARSESYNC_EXPECT(layer, <, layers_.size());
  end_layer(Clock::now());
  if (step_->schedule().under_forward) finish(step_->bucket_of(layer));
  in_layer_ = layer;
  since_ = Clock::now();
}

void Executor::announce(std::size_t layer, std::span<const Index> rows) {
  SPARSESYNC_EXPECT(layer, <, layers_.size());
  const std::size_t bucket = step_->bucket_of(layer);
  if (!step_->announces(bucket)) return;
  finish(bucket);
  buckets_[bucket].rows[place_of(layer)] = Gradient::rows(rows);
  if (step_->announced(layer)) announce_bucket(bucket);
}

void Executor::announce_bucket(std::size_t bucket) {
  Bucket& announced = buckets_[bucket];
  // It is over when the reduce behind it is, which is waited for.
  static_cast<void>(session_.announce(announced.id, announced.rows));
  std::ranges::fill(announced.rows, Gradient::rows({}));
}

void Executor::backward() {
  const Clock::time_point now = Clock::now();
  end_layer(now);
  synchronize();  // results of layers that this forward pass did not come to
  for (const std::size_t bucket : step_->end_forward()) announce_bucket(bucket);
  std::ranges::fill(touched_, 0.0);
  since_ = Clock::now();
}

/// Notes what the layer took that the forward pass was in.
void Executor::end_layer(Clock::time_point now) {
  if (!in_layer_) return;
  forward_s_[*in_layer_] += seconds_between(since_, now);
  TimeSpan& span = running_.forward[*in_layer_];
  if (span.end == 0) span = {at(since_), at(now)};  // of several times the first
  in_layer_.reset();
}

// ---- The backward pass.

void Executor::ready(std::size_t layer, const Gradient& gradient, const Mark* after) {
  SPARSESYNC_EXPECT(layer, <, layers_.size());
  const Clock::time_point now = Clock::now();
  backward_s_[layer] = seconds_between(since_, now);
  running_.backward[layer] = {at(since_), at(now)};
  since_ = now;
  Bucket& bucket = buckets_[step_->bucket_of(layer)];
  bucket.gradients[place_of(layer)] = gradient;
  touched_[layer] = static_cast<double>(gradient.layout() == Gradient::Layout::row_sparse
                                            ? std::ssize(gradient.indices())
                                            : layers_[layer].tensor.rows);
  if (after != nullptr) bucket.after = after;
  if (const std::optional<std::size_t> complete = step_->ready(layer)) submit(*complete);
}

void Executor::submit(std::size_t bucket) {
  Bucket& submitted = buckets_[bucket];
  submitted.reduced =
      session_.submit(submitted.id, Phase::reduce, submitted.gradients, submitted.after);
  submitted.gathered = session_.submit(submitted.id, Phase::gather);
  std::ranges::fill(submitted.gradients, Gradient::empty());
  submitted.after = nullptr;
}

void Executor::end_backward() {
  for (const std::size_t bucket : step_->end_backward()) submit(bucket);
  std::swap(running_, crossing_);
  std::ranges::fill(running_.forward, TimeSpan{});
  std::ranges::fill(running_.backward, TimeSpan{});
  unfinished_ = buckets_.size();
  if (!step_->schedule().under_forward) synchronize();
  end_iteration();
  const bool is_due = planner_.add_step(forward_s_, backward_s_);
  std::ranges::fill(forward_s_, 0.0);
  std::ranges::fill(backward_s_, 0.0);
  if (!is_due) return;
  synchronize();
  observe();
  if (planner_.review()) {
    release_buckets();
    make_buckets();
  }
  step_ended_.reset();  // that was no step like others
}

/// Waits for a bucket's results, if it has some to come, and tells them.
void Executor::finish(std::size_t bucket) {
  Bucket& finished = buckets_[bucket];
  if (!finished.gathered) return;
  const Clock::time_point began = Clock::now();
  const Session::Ticket reduced = *std::exchange(finished.reduced, std::nullopt);
  const Session::Ticket gathered = *std::exchange(finished.gathered, std::nullopt);
  session_.wait(reduced);  // what it throws says more than what the gather then does
  session_.wait(gathered);
  waited_s_ += seconds_between(began, Clock::now());
  const BucketUse use = session_.use(finished.id);
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    if (static_cast<Phase>(phase) == Phase::announce && !step_->announces(bucket)) continue;
    crossed_[bucket][phase] = {at(use.last[phase].began), at(use.last[phase].ended)};
    phase_s_[phase] += use.last[phase].seconds();
  }
  const LayerRange range = step_->schedule().buckets[bucket];
  for (int layer = range.last; layer >= range.first; --layer) {
    const auto place = static_cast<std::size_t>(range.last - layer);
    on_result_(static_cast<std::size_t>(layer), session_.result(finished.id, place));
  }
  if (--unfinished_ == 0) keep_timeline();
}

/// All results of a step are there.
void Executor::keep_timeline() {
  crossing_.crossed.clear();
  for (const ScheduledPhase& each : step_->schedule().order) {
    crossing_.crossed.push_back(crossed_[each.bucket][static_cast<std::size_t>(each.phase)]);
  }
  if (timelines_.size() < kKeptTimelines) {
    timelines_.push_back(crossing_);
  } else {
    std::rotate(timelines_.begin(), timelines_.begin() + 1, timelines_.end());
    std::swap(timelines_.back(), crossing_);
  }
}

double Executor::at(Clock::time_point time) const {
  return seconds_between(made_, time);
}

void Executor::synchronize() {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) finish(bucket);
}

// ---- What steps took.

/// Tells the planner which rows the last step touched: those of each bucket's row spaces, dealt out
/// to their layers by the rows that each of them touched here.
void Executor::observe() {
  for (const Bucket& bucket : buckets_) {
    const auto number = static_cast<std::size_t>(&bucket - buckets_.data());
    const LayerRange range = step_->schedule().buckets[number];
    const auto layer_at = [&](std::size_t place) {
      return static_cast<std::size_t>(range.last) - place;
    };
    if (!layers_[layer_at(0)].rows_cross) continue;
    std::vector<TensorSpec> tensors;
    for (std::size_t place = 0; place < bucket.gradients.size(); ++place) {
      tensors.push_back(layers_[layer_at(place)].tensor);
    }
    const std::vector<ObservedRows> observed = session_.observed(bucket.id);
    const std::vector<RowSpace> spaces = row_spaces(tensors);
    for (std::size_t space = 0; space < spaces.size(); ++space) {
      double all = 0;
      for (const RowSpace::Member& member : spaces[space].members) {
        all += touched_[layer_at(member.tensor)];
      }
      for (const RowSpace::Member& member : spaces[space].members) {
        const double share = all > 0 ? touched_[layer_at(member.tensor)] / all : 0;
        planner_.observe(layer_at(member.tensor),
                         share * static_cast<double>(observed[space].touched),
                         share * static_cast<double>(observed[space].united));
      }
    }
  }
}

void Executor::end_iteration() {
  const Clock::time_point now = Clock::now();
  if (step_ended_) {
    const auto place = static_cast<std::size_t>(kept_++) % kKeptSteps;
    if (place >= iterations_s_.size()) {
      iterations_s_.push_back(0);
      exposed_s_.push_back(0);
    }
    iterations_s_[place] = seconds_between(*step_ended_, now);
    exposed_s_[place] = waited_s_;
  }
  ++steps_;
  waited_s_ = 0;
  step_ended_ = now;
}

ExecutorStatistics Executor::statistics() const {
  ExecutorStatistics statistics;
  statistics.steps = steps_;
  if (!iterations_s_.empty()) {
    statistics.iteration_s = median(iterations_s_);
    statistics.exposed_s = median(exposed_s_);
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    statistics.phase_s[phase] =
        phase_s_[phase] / static_cast<double>(std::max<std::int64_t>(1, steps_));
  }
  return statistics;
}

}  // namespace sparsesync
