// The scheme `auto`: which scheme a bucket crosses by is chosen from what its steps show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/plan.h"
#include "engine/agreement.h"
#include "engine/registered_bucket.h"

namespace sparsesync {

/// The name under which a bucket asks for it; no scheme of its own.
inline constexpr std::string_view kAuto = "auto";

/// A scheme of that name, or `auto`, whose entry is that of what it begins with.
/// @throws InputError if there is none; the text lists those that exist
SchemeEntry scheme_or_auto(std::string_view name);

/// One worker's part of the choice for one bucket. All workers come to the same: what they decide
/// by is what all of them know, and the rest they tell each other in a review.
///
/// The first step, which crosses by `balanced`, is looked at: which rows it touched. Then a review
/// tells the others a sample of them, and takes what the planner expects to be fastest. Nothing is
/// told or measured in the steps after; only when the union, which all know after a step, has left
/// the one that the choice was made for by a quarter, or after many steps, is a step looked at
/// again. A review leaves the present scheme only for one that is expected to be faster by 3%.
class AutoChoice {
 public:
  struct Ground {
    Network network;
    bool has_all_reduce = false;                  // the transport
    std::optional<double> memory = std::nullopt;  // bytes of workspace to plan with
  };

  /// @param bucket  outlives it; made with kFirstScheme
  AutoChoice(RegisteredBucket& bucket, const Ground& ground) : bucket_(bucket), ground_(ground) {}

  /// What a bucket crosses by until there was a review.
  static constexpr const char* kFirstScheme = "balanced";

  /// After a reduce phase: keeps which rows were touched, if a review wants to know. Synchronizes
  /// the stream.
  void look();
  /// After a gather phase: whether the next step is to be looked at.
  void note();
  /// Whether a step was looked at and not reviewed yet; the same on all workers.
  bool awaits_review() const { return looked_; }
  /// The next step is to be looked at. Called by all workers alike, between steps.
  void want_review() { wanted_ = true; }
  /// Called by all workers alike, before a step of the bucket begins: the results of the last one
  /// are gone.
  /// @throws what Transport throws, ProtocolError
  void review(ControlChannel& control);

  /// What the last review expected of all schemes, the best first; nothing before the first one.
  const std::vector<Prediction>& predictions() const { return predictions_; }

 private:
  std::vector<std::string> tell_sample(ControlChannel& control, double& share) const;
  Statistics statistics_from(const std::vector<std::string>& samples, double share) const;
  bool change_to(const Way& way, ControlChannel& control);

  RegisteredBucket& bucket_;
  Ground ground_;
  bool wanted_ = true;
  bool looked_ = false;
  std::int64_t steps_ = 0;                // since the last review
  std::vector<std::vector<Index>> rows_;  // [row space]: of the step that was looked at
  std::vector<double> united_;            // [row space]: that the choice was made for
  std::vector<Prediction> predictions_;
};

/// What all plan with: the network of worker 0, and the least workspace. Called by all alike.
/// @throws what Transport throws
AutoChoice::Ground agreed_ground(ControlChannel& control, const AutoChoice::Ground& own);

}  // namespace sparsesync
