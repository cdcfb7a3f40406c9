// Exceptions: errors that a caller can act on, and broken contracts.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "sparsesync/rank.h"

namespace sparsesync {

/// Base class of errors that a caller can act on. The message is one line that says what failed,
/// where, and how to fix it.
/// @code
/// try {
///   session.synchronize(bucket, gradients);
/// } catch (const RefusedError& error) {
///   // Another worker rejected the step. The session still works: skip the step.
/// } catch (const InputError& error) {
///   // This worker rejected the step because of its gradients. The others throw RefusedError.
/// } catch (const BudgetError& error) {
///   // This worker rejected the step because of its memory. The others throw RefusedError.
/// } catch (const Error& error) {
///   std::fprintf(stderr, "%s\n", error.what());  // other errors between workers end the session
/// }
/// @endcode
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reports unusable input: a file, an option, or an index outside its tensor.
class InputError : public Error {
 public:
  using Error::Error;
};

/// Reports a failed write at run time, for example because the disk is full.
class IoError : public Error {
 public:
  using Error::Error;
};

/// Reports an allocation that would exceed a memory budget. Nothing was allocated.
class BudgetError : public Error {
 public:
  /// @param needed bytes that would have been in use; std::int64_t's maximum if the size cannot be
  ///     represented
  /// @param budget bytes that may be in use
  /// @param what   the purpose of the memory
  BudgetError(std::int64_t needed, std::int64_t budget, const std::string& what);
  std::int64_t needed() const { return needed_; }
  std::int64_t budget() const { return budget_; }

 private:
  std::int64_t needed_;
  std::int64_t budget_;
};

/// Reports inconsistent data from the network or a file. No part of the data was used.
class CorruptDataError : public Error {
 public:
  using Error::Error;
};

/// Reports that a GPU is missing or has failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// Reports that GPU memory, or host memory that a GPU reaches, is exhausted. Nothing was allocated.
class DeviceMemoryError : public std::bad_alloc {
 public:
  // NOLINTNEXTLINE(bugprone-throw-keyword-missing): it is kept, not thrown
  explicit DeviceMemoryError(const std::string& what) : what_(what) {}
  const char* what() const noexcept override { return what_.what(); }

 private:
  // A runtime_error copies without throwing. A std::string does not.
  std::runtime_error what_;
};

/// Reports a broken contract: a bug in the calling program or in the library.
class ContractError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// ---- Errors between workers. Each ends the session on all workers, except RefusedError,
// AgreementError and UnsupportedError.

/// Base class of errors that one worker caused. `peer()` is that worker.
class PeerError : public Error {
 public:
  PeerError(Rank peer, const std::string& what) : Error(what), peer_(peer) {}
  Rank peer() const { return peer_; }

 private:
  Rank peer_;
};

/// Reports that a worker left, or that the network lost it.
class PeerLostError : public PeerError {
 public:
  using PeerError::PeerError;
};

/// Reports that a worker ended the session. The message names the worker and its reason; it may be
/// the calling worker.
class AbortedError : public PeerError {
 public:
  using PeerError::PeerError;
};

/// Reports that another worker rejected a step. The next step works. The rejecting worker throws
/// the cause instead: InputError, BudgetError or std::bad_alloc.
class RefusedError : public PeerError {
 public:
  RefusedError(Rank peer, std::string reason);
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Reports that workers disagree, for example about a tensor's shape. Nothing was changed on any
/// worker. The message names the item and both values.
class AgreementError : public Error {
 public:
  using Error::Error;
};

/// Reports a wait that reached its deadline.
class DeadlineError : public Error {
 public:
  using Error::Error;
};

/// Reports a submitted phase that waited until its deadline because an earlier phase of the order
/// was never submitted.
class OrderError : public Error {
 public:
  using Error::Error;
};

/// Reports that a transport is unavailable here, or that it lacks a required feature.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// Reports an unexpected message: the workers are out of step, or run different versions.
class ProtocolError : public Error {
 public:
  using Error::Error;
};

}  // namespace sparsesync
