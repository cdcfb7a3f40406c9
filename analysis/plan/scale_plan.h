// Plans over numbers of workers: the fastest scheme for each number, and the crossovers.
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

/// Zen's Theorem 1: the seconds of the two candidates for the optimal scheme.
///
/// Assumes COO with 4-byte indices, perfect balance and no latency. V is the bits of a worker's
/// rows and their indices, B the rate, and γ^k the densification of aligned groups of k workers.
///
///     T_balanced = (n-1)/n · (1 + γ^n) · V / B
///     T_hierarchy = sum of γ^(2^(i-1)) · V / B over i = 1, ..., ⌈log2 n⌉
///
/// The paper counts elements instead of rows, so that its V is 2·d·M.
struct TheoremSeconds {
  double balanced = 0;
  double hierarchy = 0;

  double optimum() const { return balanced < hierarchy ? balanced : hierarchy; }
};

/// The predictions for one number of workers.
struct WorkersPlan {
  int workers = 0;
  double densification = 1;                 // γ
  bool is_known = true;                     // whether γ is measured; extrapolated otherwise
  double densification_from_an_eighth = 1;  // γ extrapolated from an eighth of the workers
  TheoremSeconds theorem;
  std::vector<Prediction> predictions;  // one for each usable scheme, the fastest first
};

/// A number of workers from which on another scheme is the fastest.
struct Crossover {
  int workers = 0;  // smallest number of workers for which `to` is the fastest
  std::string from;
  std::string to;
};

/// One plan for each number of workers, and the crossovers between them.
struct ScalePlan {
  std::vector<WorkersPlan> plans;
  std::vector<Crossover> crossovers;
};

/// Plans a trace's bucket.
///
/// If two neighbouring numbers of workers have different fastest schemes, bisection finds the exact
/// crossovers between them. It misses a scheme that becomes the fastest twice in between.
/// @param workers   numbers of workers, increasing, 2 or more each
/// @param memory    maximum bytes of each worker's workspace; nothing: no limit
/// @param progress  called with the numbers of workers, and gaps between them, that are done, and
///                  their total
ScalePlan plan_over(
    const Outlook& outlook, const Network& network, const SchemeOptions& options,
    const std::vector<int>& workers, std::optional<double> memory = std::nullopt,
    const std::function<void(std::int64_t, std::int64_t)>& progress = [](auto, auto) {});

/// Returns `first`, `last` and the powers of two between them.
/// @pre 1 <= first <= last
std::vector<int> doublings(int first, int last);

}  // namespace sparsesync
