// GradientSource: gives a step its gradients when the session comes to the step's reduce.
#pragma once

#include <span>

#include "schemes/bucket.h"

namespace sparsesync {

/// Gives a step its gradients once the session comes to the step's reduce: finding them may take
/// long, and who submits them does not wait for it.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  /// Called in the session's thread, in each step until it has returned once.
  /// @return one for each tensor, written, in memory as of Session::submit(), unchanged until the
  ///         reduce or the gather is waited for, whichever is first
  /// @throws InputError, BudgetError, DeviceMemoryError, std::bad_alloc: all workers refuse the
  ///         step. Anything else ends the session
  virtual std::span<const Gradient> gradients() = 0;
};

}  // namespace sparsesync
