// Checks and counts that all transports share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsesync/errors.h"  // IWYU pragma: export
#include "sparsesync/rank.h"
#include "sparsesync/transport.h"  // IWYU pragma: export

namespace sparsesync {

/// Whether a message's payload is in the host's memory. Does not synchronize the stream.
inline bool is_on_host(const Context& context, const Header& header) {
  return context.device() == Device::cpu || (header.flags & Header::kRefused) != 0;
}

/// Bytes that each worker sends, and receives, at least in an all-reduce of so many bytes among
/// `size` workers: 2 (n - 1) / n of them.
std::int64_t all_reduce_bytes(std::int64_t bytes, int size);

// ---- For transports: one check in all of them.

/// @throws ProtocolError naming what differs
void check_header(Rank from, const Header& expected, const Header& got);
/// @param peer  in [0, size) and not the rank itself (a broken contract otherwise)
void expect_peer(Rank peer, Rank self, int size);

/// @throws PeerLostError naming who is lost
[[noreturn]] void throw_lost(Rank peer);
/// @param silent  the workers that were waited for, repeats allowed
/// @throws DeadlineError naming them
[[noreturn]] void throw_deadline(Rank self, std::vector<Rank> silent);
/// @throws AbortedError naming who ended the Session, and why
[[noreturn]] void throw_aborted(Rank aborter, const std::string& reason);

}  // namespace sparsesync
