#include "engine/planner/schedule/merge.h"

#include <algorithm>
#include <limits>
#include <span>

namespace sparsesync {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Whether a layer may share a bucket with the layer before it.
bool may_join(std::span<const ScheduledLayer> layers, int layer) {
  const auto place = static_cast<std::size_t>(layer);
  return layer > 0 && place < layers.size() && layers[place].kind == layers[place - 1].kind;
}

/// Returns the buckets that `next` describes: next[i] is the layer after the bucket that begins
/// with layer i.
std::vector<LayerRange> cut_at(const std::vector<int>& next) {
  std::vector<LayerRange> buckets;
  for (int layer = 0; layer + 1 < std::ssize(next); layer = next[static_cast<std::size_t>(layer)]) {
    buckets.push_back({layer, next[static_cast<std::size_t>(layer)] - 1});
  }
  std::ranges::reverse(buckets);
  return buckets;
}

}  // namespace

std::vector<LayerRange> each_layer(std::span<const ScheduledLayer> layers) {
  std::vector<LayerRange> buckets;
  for (int layer = static_cast<int>(layers.size()) - 1; layer >= 0; --layer) {
    buckets.push_back({layer, layer});
  }
  return buckets;
}

std::vector<LayerRange> merge_all(std::span<const ScheduledLayer> layers) {
  return merge_until_full(layers, kNever);
}

std::vector<LayerRange> merge_until_full(std::span<const ScheduledLayer> layers, double full_bytes,
                                         std::optional<double> first_bytes) {
  std::vector<LayerRange> buckets;
  double bytes = 0;
  int last = static_cast<int>(layers.size()) - 1;
  for (int layer = last; layer >= 0; --layer) {
    bytes += layers[static_cast<std::size_t>(layer)].bytes;
    const double full = buckets.empty() ? first_bytes.value_or(full_bytes) : full_bytes;
    if (bytes < full && may_join(layers, layer)) continue;
    buckets.push_back({layer, last});
    last = layer - 1;
    bytes = 0;
  }
  return buckets;
}

std::vector<LayerRange> merge_greedily(const ScheduleQuestion& question) {
  const std::vector<double> ready = ready_seconds(question.layers);
  const auto seconds = [&](LayerRange range) { return question.costs(range).values(); };
  std::vector<LayerRange> buckets;
  LayerRange waiting{static_cast<int>(question.layers.size()) - 1,
                     static_cast<int>(question.layers.size()) - 1};
  double free = 0;  // when the link is free
  const auto begins = [&] {
    return std::max(free, ready[static_cast<std::size_t>(waiting.first)]);
  };
  for (int layer = waiting.first - 1; layer >= 0; --layer) {
    if (may_join(question.layers, layer + 1)) {
      const LayerRange joined{layer, waiting.last};
      const double saved = seconds(waiting) + seconds({layer, layer}) - seconds(joined);
      if (ready[static_cast<std::size_t>(layer)] - begins() < saved) {
        waiting = joined;
        continue;
      }
    }
    free = begins() + seconds(waiting);
    buckets.push_back(waiting);
    waiting = {layer, layer};
  }
  buckets.push_back(waiting);
  return buckets;
}

std::vector<LayerRange> merge_exactly(const ScheduleQuestion& question) {
  const std::vector<double> ready = ready_seconds(question.layers);
  const int layers = static_cast<int>(ready.size());
  std::vector<double> crossed(ready.size() + 1, 0);  // F
  std::vector<int> next(ready.size() + 1, layers);
  // [layer after a bucket]: when a bucket of later layers up to there ended. A bucket with more
  // layers ends no earlier.
  std::vector<double> no_sooner(ready.size() + 1, 0);
  for (int layer = layers - 1; layer >= 0; --layer) {
    const double from = ready[static_cast<std::size_t>(layer)];
    double best = kNever;
    int& chosen = next[static_cast<std::size_t>(layer)];
    const auto look_at = [&](int behind) {
      const double takes = question.costs({layer, behind - 1}).values();
      const double ends = std::max(crossed[static_cast<std::size_t>(behind)], from) + takes;
      no_sooner[static_cast<std::size_t>(behind)] = ends;
      if (ends < best) {
        best = ends;
        chosen = behind;
      }
      return from + takes;
    };
    look_at(layer + 1);
    const int cut_before = next[static_cast<std::size_t>(layer) + 1];
    bool joins = may_join(question.layers, layer + 1);
    if (joins) look_at(cut_before);
    for (int behind = layer + 2; joins && behind <= layers; ++behind) {
      joins = may_join(question.layers, behind);
      if (no_sooner[static_cast<std::size_t>(behind)] >= best) continue;
      // A longer bucket takes at least as long, and begins no earlier than it is ready.
      if (look_at(behind) >= best) break;
      if (crossed[static_cast<std::size_t>(behind)] <= from) break;
    }
    crossed[static_cast<std::size_t>(layer)] = best;
  }
  return cut_at(next);
}

std::vector<double> sizes_to_try(std::span<const ScheduledLayer> layers) {
  constexpr double kStep = 1.5;
  double smallest = kNever;
  double all = 0;
  for (const ScheduledLayer& layer : layers) {
    if (layer.bytes > 0) smallest = std::min(smallest, layer.bytes);
    all += layer.bytes;
  }
  std::vector<double> sizes{0};
  double size = smallest;
  while (size <= all * kStep) {
    sizes.push_back(size);
    size *= kStep;
  }
  return sizes;
}

namespace {

/// Searches for the fastest merging: see merge_for_overlap().
class OverlapSearch {
 public:
  OverlapSearch(const ScheduleQuestion& question, double grain)
      : question_(question), ready_(ready_seconds(question.layers)), labels_(ready_.size() + 1) {
    for (const ScheduledLayer& layer : question.layers) forward_ += layer.forward_s;
    for (const double size : sizes_to_try(question.layers)) {
      std::vector<LayerRange> buckets = merge_until_full(question.layers, size);
      const double seconds = step_of(buckets);
      if (seconds >= least_) continue;
      least_ = seconds;
      best_ = std::move(buckets);
    }
    grain_ = std::max(least_ * grain, std::numeric_limits<double>::min());
    first_ = question.costs({0, 0});
    before_.resize(ready_.size());
    for (int layer = 1, run = 0; layer < layers(); ++layer) {
      const BucketSeconds& runs = before_[static_cast<std::size_t>(run)];
      const BucketSeconds of_run = question.costs({run, layer - 1});
      before_[static_cast<std::size_t>(layer)] = {0, runs.reduce + of_run.reduce,
                                                  runs.gather + of_run.gather};
      if (!may_join(question.layers, layer)) run = layer;
    }
  }

  std::vector<LayerRange> best() {
    labels_.back().push_back({});
    double remaining = 0;
    for (int layer = layers() - 1; layer >= 0; --layer) {
      remaining += question_.layers[static_cast<std::size_t>(layer)].forward_s;
      label(layer, remaining);
    }
    const Label* label = nullptr;
    for (const Label& each : labels_.front()) {
      if (each.reduced + each.gathered >= least_) continue;
      least_ = each.reduced + each.gathered;
      label = &each;
    }
    return label == nullptr ? best_ : buckets_of(*label);
  }

 private:
  /// A merging of the layers from a given one to the last.
  struct Label {
    double reduced = 0;   // F
    double gathered = 0;  // H
    int behind = 0;       // the layer after its first bucket
    int rest = 0;         // index in labels_[behind]: the merging of the other layers
  };

  int layers() const { return static_cast<int>(ready_.size()); }

  double step_of(const std::vector<LayerRange>& buckets) const {
    Label label;
    double remaining = 0;
    for (const LayerRange range : buckets) {
      for (int layer = range.first; layer <= range.last; ++layer) {
        remaining += question_.layers[static_cast<std::size_t>(layer)].forward_s;
      }
      const BucketSeconds takes = question_.costs(range);
      label.reduced =
          std::max(label.reduced, ready_[static_cast<std::size_t>(range.first)]) + takes.reduce;
      label.gathered = std::max(label.gathered, remaining) + takes.gather;
    }
    return label.reduced + label.gathered;
  }

  void label(int layer, double remaining) {
    const double from = ready_[static_cast<std::size_t>(layer)];
    // Lower bounds on the phases of earlier layers: of all together, and of the first layer alone.
    const BucketSeconds& before = before_[static_cast<std::size_t>(layer)];
    const BucketSeconds first = layer > 0 ? first_ : BucketSeconds{};
    const auto is_worthwhile = [&](double reduced, double gathered) {
      return std::max(reduced + before.reduce, ready_.front() + first.reduce) +
                 std::max(gathered + before.gather, forward_ + first.gather) <
             least_;
    };
    found_.clear();
    bool joins = true;
    for (int behind = layer + 1; joins; ++behind) {
      joins = may_join(question_.layers, behind);
      const std::vector<Label>& rests = labels_[static_cast<std::size_t>(behind)];
      if (rests.empty()) continue;
      const BucketSeconds takes = question_.costs({layer, behind - 1});
      if (!is_worthwhile(std::max(rests.front().reduced, from) + takes.reduce,
                         std::max(rests.back().gathered, remaining) + takes.gather)) {
        continue;
      }
      for (int rest = 0; rest < std::ssize(rests); ++rest) {
        const Label& of_rest = rests[static_cast<std::size_t>(rest)];
        const double reduced = std::max(of_rest.reduced, from) + takes.reduce;
        const double gathered = std::max(of_rest.gathered, remaining) + takes.gather;
        if (is_worthwhile(reduced, gathered)) note({reduced, gathered, behind, rest}, from);
      }
    }
    double least = kNever;
    for (const Label& label : found_) {
      if (label.gathered >= least) continue;
      least = label.gathered;
      labels_[static_cast<std::size_t>(layer)].push_back(label);
    }
  }

  /// Records a label. Among labels with nearly equal F, keeps the one with the smallest H.
  void note(const Label& label, double from) {
    const auto place = static_cast<std::size_t>((label.reduced - from) / grain_);
    if (place >= found_.size()) found_.resize(place + 1, {kNever, kNever});
    if (label.gathered < found_[place].gathered) found_[place] = label;
  }

  std::vector<LayerRange> buckets_of(const Label& of_first) const {
    std::vector<LayerRange> buckets;
    const Label* label = &of_first;
    for (int layer = 0; layer < layers();) {
      buckets.push_back({layer, label->behind - 1});
      layer = label->behind;
      label = &labels_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(label->rest)];
    }
    std::ranges::reverse(buckets);
    return buckets;
  }

  const ScheduleQuestion& question_;
  std::vector<double> ready_;
  double forward_ = 0;
  BucketSeconds first_;
  // [layer]: cost of all layers before it, in as few buckets as possible
  std::vector<BucketSeconds> before_;
  double least_ = kNever;
  double grain_ = 0;
  std::vector<LayerRange> best_;
  std::vector<std::vector<Label>> labels_;  // [layer], in the order of F
  std::vector<Label> found_;                // [F in units of grain_]
};

}  // namespace

std::vector<LayerRange> merge_for_overlap(const ScheduleQuestion& question, double grain) {
  return OverlapSearch(question, grain).best();
}

}  // namespace sparsesync
