// Checks, errors and byte counts shared by all transports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsesync/errors.h"  // IWYU pragma: export
#include "sparsesync/rank.h"
#include "sparsesync/transport.h"  // IWYU pragma: export

namespace sparsesync {

/// Returns whether a message's payload is in host memory.
inline bool is_on_host(const Context& context, const Header& header) {
  return context.device() == Device::cpu || (header.flags & Header::kRefused) != 0;
}

/// Returns the bytes that each worker at least sends, and receives, in an all-reduce of `bytes`
/// bytes among `size` workers: 2 (n - 1) / n · bytes.
std::int64_t all_reduce_bytes(std::int64_t bytes, int size);

// ---- Checks for implementations of Transport.

/// Verifies a received header.
/// @throws ProtocolError naming the field that differs
void check_header(Rank from, const Header& expected, const Header& got);
/// Verifies that `peer` is in [0, size) and is not `self`.
/// @throws ContractError
void expect_peer(Rank peer, Rank self, int size);

/// @throws PeerLostError naming the lost worker
[[noreturn]] void throw_lost(Rank peer);
/// @param self    this worker
/// @param silent  the workers that were waited for, repeats allowed
/// @throws DeadlineError naming them
[[noreturn]] void throw_deadline(Rank self, std::vector<Rank> silent);
/// @throws AbortedError naming the worker that ended the session, and its reason
[[noreturn]] void throw_aborted(Rank aborter, const std::string& reason);

}  // namespace sparsesync
