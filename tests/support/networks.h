// Networks for planner tests.
#pragma once

#include "schemes/cost.h"

namespace sparsesync::testing {

/// A network on which CPU time dominates: sorting a row and adding it takes longer than adding it
/// in place.
inline constexpr Network kQuick{
    1e-6, 25e9, {2e-9, 1e-10, 1e-8, 1.5e-10, 2e-8, 4e-8, 8e-11, 3e-6, 5e-6}};

}  // namespace sparsesync::testing
