// What profile prints for people.
#pragma once

#include <string>

#include "analysis/profile/profile.h"
#include "sparsesync/gradient.h"

namespace sparsesync {

/// The tables of one tensor.
std::string profile_table(const TensorSpec& tensor, const TensorProfile& profile);

}  // namespace sparsesync
