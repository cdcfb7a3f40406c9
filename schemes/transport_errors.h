// One wording for all transports of what goes wrong between workers.
#pragma once

#include <string>
#include <vector>

#include "sparsesync/errors.h"  // IWYU pragma: export
#include "sparsesync/rank.h"

namespace sparsesync {

/// @throws PeerLostError naming who is lost
[[noreturn]] void throw_lost(Rank peer);
/// @param silent  the workers that were waited for, repeats allowed
/// @throws DeadlineError naming them
[[noreturn]] void throw_deadline(Rank self, std::vector<Rank> silent);
/// @throws AbortedError naming who ended the Session, and why
[[noreturn]] void throw_aborted(Rank aborter, const std::string& reason);

}  // namespace sparsesync
