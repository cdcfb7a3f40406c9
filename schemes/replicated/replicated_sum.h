// Base class of schemes in which every worker computes all sums, from rows sent as COO, in the
// reduce phase: all_gather and recursive_doubling. Their gather phase sends nothing.
#pragma once

#include <string>
#include <vector>

#include "kernels/indices/index_code.h"
#include "schemes/exchange.h"
#include "schemes/message/row_reduction.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// Holds the sums by round, and implements the gather phase.
class SumsEverywhere : public Scheme {
 public:
  void gather(Exchange& exchange) override {
    if (!exchange.round().last()) return;
    for (std::size_t i = 0; i < spaces_.size(); ++i) results_[i] = sums_[i].joined(spaces_[i]);
  }

  std::vector<SpaceChoice> choices() const override {
    return std::vector<SpaceChoice>(
        spaces_.size(), {std::string(name_of(IndexCode::coo)), std::nullopt, std::nullopt});
  }

 protected:
  explicit SumsEverywhere(const SchemeEnvironment& environment)
      : Scheme(environment), summation_(context_) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) sums_.emplace_back(context_, rounds_);
  }

  RowSummation summation_;
  std::vector<SumsOfRounds> sums_;  // [row space]
};

}  // namespace sparsesync
