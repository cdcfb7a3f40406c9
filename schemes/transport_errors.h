// What goes wrong between workers: a peer that is lost, a deadline that has passed, a session that
// another worker ended. One wording for all transports.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparsesync/rank.h"

namespace sparsesync {

// After any of them but RefusedError the Session is over on all workers.

/// What one worker has caused.
class PeerError : public Error {
 public:
  PeerError(Rank peer, const std::string& what) : Error(what), peer_(peer) {}
  Rank peer() const { return peer_; }

 private:
  Rank peer_;
};

/// A worker that left, or that the network lost.
class PeerLostError : public PeerError {
 public:
  using PeerError::PeerError;
};

/// A wait that reached its deadline.
class DeadlineError : public Error {
 public:
  using Error::Error;
};

/// A worker ended the Session, this one or another; the text says who and why.
class AbortedError : public PeerError {
 public:
  using PeerError::PeerError;
};

/// Something was asked of a transport that it does not have.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// A message that is not the one that was waited for: workers out of step, or of another version.
class ProtocolError : public Error {
 public:
  using Error::Error;
};

/// @throws PeerLostError naming who is lost
[[noreturn]] void throw_lost(Rank peer);
/// @param silent  the workers that were waited for, repeats allowed
/// @throws DeadlineError naming them
[[noreturn]] void throw_deadline(Rank self, std::vector<Rank> silent);
/// @throws AbortedError naming who ended the Session, and why
[[noreturn]] void throw_aborted(Rank aborter, const std::string& reason);

}  // namespace sparsesync
