// The errors that sparsesync throws: a family that a caller can act on, and broken contracts.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "sparsesync/rank.h"

namespace sparsesync {

/// Is an error that a caller can act on. The text is one line: what, where, how to mend it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Input that cannot be used: a file, an option, an index outside its tensor.
class InputError : public Error {
 public:
  using Error::Error;
};

/// The system refused to write at run time: a full disk, a device that fails.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A memory budget that would be exceeded. Nothing was allocated.
class BudgetError : public Error {
 public:
  /// @param needed bytes that would have been in use, or std::int64_t's maximum where not even
  ///               the size can be represented
  /// @param budget bytes that may be in use
  BudgetError(std::int64_t needed, std::int64_t budget, const std::string& what);
  std::int64_t needed() const { return needed_; }
  std::int64_t budget() const { return budget_; }

 private:
  std::int64_t needed_;
  std::int64_t budget_;
};

/// Bytes from the network or from a file that are not what they say. Nothing was used.
class CorruptDataError : public Error {
 public:
  using Error::Error;
};

/// A GPU that is missing or fails.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// Memory of a GPU, or memory that it reaches, that is not available. Nothing was allocated.
class DeviceMemoryError : public std::bad_alloc {
 public:
  // NOLINTNEXTLINE(bugprone-throw-keyword-missing): it is kept, not thrown
  explicit DeviceMemoryError(const std::string& what) : what_(what) {}
  const char* what() const noexcept override { return what_.what(); }

 private:
  // May be copied without a throw, as a string may not.
  std::runtime_error what_;
};

/// A broken contract: a bug in the caller or in the library, not a state of the world.
class ContractError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// ---- Between workers. After any of them but RefusedError and AgreementError the session is over
// on all workers.

/// An error that one worker caused.
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

/// A worker ended the session, this one or another; the text says who and why.
class AbortedError : public PeerError {
 public:
  using PeerError::PeerError;
};

/// A worker refused a step. All workers know; the next step works.
class RefusedError : public PeerError {
 public:
  RefusedError(Rank peer, std::string reason);
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Workers that disagree. Nothing was changed, on any of them; the text names the thing and both
/// sides.
class AgreementError : public Error {
 public:
  using Error::Error;
};

/// A wait that reached its deadline.
class DeadlineError : public Error {
 public:
  using Error::Error;
};

/// A phase that was submitted waited, until the deadline, behind one that was not.
class OrderError : public Error {
 public:
  using Error::Error;
};

/// A transport lacks what it was asked for.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// A message that is not the expected one: workers out of step, or of another version.
class ProtocolError : public Error {
 public:
  using Error::Error;
};

}  // namespace sparsesync
