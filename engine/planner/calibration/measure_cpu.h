// Measures what synchronizing costs a worker's processor.
#pragma once

#include "schemes/cost.h"

namespace sparsesync {

/// Runs steps of several schemes, narrow and wide rows, few and many, between some workers that are
/// threads of this process, one at a time; records what their processors do (Recording), and fits
/// costs to it: seconds for each of what Work counts. Takes half a second or so for each `repeat`.
/// @param repeat  recorded steps of each, whose median counts; 1 or more
/// @throws what Session throws
HostCosts probe_host(int repeat);

}  // namespace sparsesync
