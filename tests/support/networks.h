// Networks that tests plan with.
#pragma once

#include "schemes/cost.h"

namespace sparsesync::testing {

/// Processors dominate: to sort a row and to add it up takes longer than to add it where it is.
inline constexpr Network kQuick{
    1e-6, 25e9, {2e-9, 1e-10, 1e-8, 1.5e-10, 2e-8, 4e-8, 8e-11, 3e-6, 5e-6}};

}  // namespace sparsesync::testing
