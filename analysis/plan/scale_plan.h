// The plan over numbers of workers: which scheme is the fastest among how many, and where that
// changes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/plan/extrapolation.h"
#include "engine/planner/scheme/plan.h"
#include "schemes/cost.h"

namespace sparsesync {

/// Zen's Theorem 1: the seconds of the two schemes of which one is optimal, with COO of 4-byte
/// indices, perfect balance and no latency: T_balanced = (n-1)/n · (1 + γ^n) · V / B and
/// T_hierarchy = sum over i = 1, ..., log2 n rounded up of γ^(2^(i-1)) · V / B, with V the bits of
/// a worker's rows and their indices, γ^k of aligned groups. (Paper: elements, so that V is 2·d·M.)
struct TheoremSeconds {
  double balanced = 0;
  double hierarchy = 0;

  double optimum() const { return balanced < hierarchy ? balanced : hierarchy; }
};

/// What is expected among one number of workers.
struct WorkersPlan {
  int workers = 0;
  double densification = 1;                 // γ: known from the trace, or told by its growth
  bool is_known = true;                     // which of them
  double densification_from_an_eighth = 1;  // Outlook
  TheoremSeconds theorem;
  std::vector<Prediction> predictions;  // one for each scheme that can be used, the fastest first
};

/// Between which numbers of workers another scheme becomes the fastest.
struct Crossover {
  int workers = 0;  // the fewest of which `to` is
  std::string from;
  std::string to;
};

/// One plan for each number of workers, and the crossovers between them.
struct ScalePlan {
  std::vector<WorkersPlan> plans;
  std::vector<Crossover> crossovers;
};

/// Plans a trace's bucket.
/// @param workers   increasing, 2 or more each. Where neighbours have another fastest, crossovers
///                 between them are found by halving, to the worker: each is one, but where the
///                 fastest comes back in between not all are found
/// @param memory    bytes of workspace of each worker; nothing: no bound
/// @param progress  called with numbers of workers and gaps between them that are done, and in all
ScalePlan plan_over(
    const Outlook& outlook, const Network& network, const SchemeOptions& options,
    const std::vector<int>& workers, std::optional<double> memory = std::nullopt,
    const std::function<void(std::int64_t, std::int64_t)>& progress = [](auto, auto) {});

/// Powers of two from `first` to `last`, and these two.
/// @pre 1 <= first <= last
std::vector<int> doublings(int first, int last);

}  // namespace sparsesync
