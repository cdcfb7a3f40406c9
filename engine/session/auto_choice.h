// The scheme `auto`: which scheme a bucket crosses by is chosen from what its steps show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/planner/scheme/plan.h"
#include "engine/session/control_channel.h"
#include "schemes/exchange.h"

namespace sparsesync {

class RegisteredBucket;

/// The name under which a bucket asks for it; no scheme of its own.
inline constexpr std::string_view kAuto = "auto";

/// A scheme of that name, or `auto`, whose entry is that of what it begins with.
/// @throws InputError if there is none; the text lists those that exist
SchemeEntry scheme_or_auto(std::string_view name);

/// One worker's part of the choice for one bucket. All workers come to the same: what they decide
/// by is what all of them know, and the rest they tell each other in a review.
///
/// The first step, which crosses by `balanced`, is looked at: which rows it touched. Then a review
/// tells the others a sample of them, and asks the planner. Where what processors take decides
/// between some ways, the next steps try these, some steps each, and what they took outside of
/// the transport takes the place of what was expected. Then the one expected to be fastest is
/// taken. Nothing is told or measured in the steps after; only when the union, which all know after
/// a step, has left the one that the choice was made for by a quarter, or after many steps, is a
/// step looked at again. A review leaves the present way only for one that is expected to be faster
/// by 3%; those in front are tried some times.
class AutoChoice {
 public:
  /// What all workers plan with.
  struct Ground {
    Network network;
    bool has_all_reduce = false;                  // the transport
    std::optional<double> memory = std::nullopt;  // bytes of workspace to plan with
    int trials = 0;                               // ways that are tried at most
  };

  /// @param bucket  outlives it; made with kFirstScheme
  AutoChoice(RegisteredBucket& bucket, const Ground& ground) : bucket_(bucket), ground_(ground) {}

  /// What a bucket crosses by until there was a review.
  static constexpr const char* kFirstScheme = "balanced";

  /// Before a phase of the bucket, by all workers alike: where a step begins and there is something
  /// to review, reviews it; the results of the last step are gone then.
  /// @return what the phase's time outside of the transport is to be measured by; null if nobody
  ///         wants to know
  /// @throws what Transport throws, ProtocolError
  Stopwatch* begin_phase(Phase phase, ControlChannel& control);
  /// After a phase that went well: keeps of it what a review will want to know. Synchronizes the
  /// stream.
  void end_phase(Phase phase);
  /// Between steps, by all workers alike: reviews if there is something to review; else the next
  /// step is to be looked at. The results of the last step are gone.
  /// @throws what Transport throws, ProtocolError
  void adapt(ControlChannel& control);
  /// Whether there is nothing to review, and no way is being tried.
  bool settled() const { return !looked_ && !trying_; }

  /// What the last review expected of all schemes, the best first; nothing before the first one.
  const std::vector<Prediction>& predictions() const { return predictions_; }

 private:
  void look();
  void note();
  bool awaits_review() const { return looked_ || (trying_ && took_.size() == trial_length_); }
  void review(ControlChannel& control);
  void learn_rows(ControlChannel& control);
  void learn_trial(ControlChannel& control);
  /// What is expected of the way that the bucket goes; after the first review.
  const Prediction& present() const;
  bool try_another(ControlChannel& control);
  void settle(ControlChannel& control);
  void sign(const std::string& told);
  std::vector<std::string> tell_sample(ControlChannel& control, double& share) const;
  Statistics statistics_from(const std::vector<std::string>& samples, double share) const;
  bool change_to(const Way& way, ControlChannel& control);

  RegisteredBucket& bucket_;
  Ground ground_;
  bool wanted_ = true;
  bool looked_ = false;
  std::int64_t steps_ = 0;                // since the last review
  std::vector<std::vector<Index>> rows_;  // [row space]: of the step that was looked at
  Statistics statistics_;                 // of it, as all know it; that the choice was made for
  int size_ = 1;
  std::vector<Prediction> predictions_;
  std::optional<Way> taken_;      // by the last review that settled
  bool trying_ = false;           // the present way
  std::size_t trial_length_ = 0;  // in steps
  // This worker in each step of the trial, outside of the transport.
  std::vector<HostSeconds> took_;
  Stopwatch reducing_;  // announcing too
  Stopwatch gathering_;
  std::vector<Trial> trials_;
  std::vector<Way> refused_;  // some worker has not the memory for them
};

/// What all plan with: the network of worker 0, the least workspace and the fewest trials. Called
/// by all alike.
/// @param own  what this worker would
/// @throws what Transport throws
AutoChoice::Ground agreed_ground(ControlChannel& control, const AutoChoice::Ground& own);

}  // namespace sparsesync
