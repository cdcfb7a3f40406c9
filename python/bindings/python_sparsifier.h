// The Python object of a sparsifier.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "python/bindings/arrays.h"
#include "python/bindings/python_session.h"
#include "sparsesync/sparsifier.h"

namespace sparsesync::python {

/// A Sparsifier, and whether the last step has selected what it sends. It works in a session's
/// memory, and on a GPU in a stream that all sparsifiers of the session share. Any thread may call
/// it, without the GIL: a lock orders the calls. Phases that use it share its ownership.
class SharedSparsifier {
 public:
  /// @param device  null: the host
  /// @throws what make_sparsifier() throws
  SharedSparsifier(std::shared_ptr<PythonDevice> device, std::shared_ptr<HostMemory> memory,
                   const std::vector<TensorSpec>& tensors, const SparsifierOptions& options);

  /// Returns the tensors that its bucket is registered with.
  const std::vector<TensorSpec>& crossing() const { return sparsifier_->crossing(); }

  /// Runs work on the sparsifier.
  /// @param before   event that the work waits for; null: none
  /// @param streams  the program's streams that wait for the work
  /// @param work     called with the Sparsifier and its context
  template <typename Work>
  void call(const Event* before, std::span<const StreamNumber> streams, const Work& work) {
    const std::lock_guard lock(calls_);
    if (device_ != nullptr) {
      device_->sparsify(before, streams,
                        [&](const Context& context) { work(*sparsifier_, context); });
    } else {
      work(*sparsifier_, Context(*memory_));
    }
  }

  /// Records that a step was submitted.
  void await();
  /// Records that the step has selected what it sends.
  /// @param not_finite  number of its values that are infinite or NaN
  void has_taken(Index not_finite);
  /// Waits until the step has selected what it sends.
  /// @param most  timeout
  /// @return whether it has
  bool wait_for(std::chrono::milliseconds most);
  /// Returns the number of infinite or NaN values of the last step; 0 if it selected nothing.
  Index not_finite();
  /// Returns whether the last step's selection can be given back or undone, and records that it is:
  /// false if the step selected nothing, and from the second call on.
  bool give_back();

 private:
  enum class Step : std::uint8_t { none, awaited, taken };

  std::shared_ptr<PythonDevice> device_;
  std::shared_ptr<HostMemory> memory_;
  std::mutex calls_;  // orders the calls of the sparsifier
  std::unique_ptr<Sparsifier> sparsifier_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  Step step_ = Step::none;
  Index not_finite_ = 0;
};

/// A Sparsifier of a session's bucket. Guarded by the GIL, which long operations release.
class PythonSparsifier {
 public:
  /// @param session  outlives this
  PythonSparsifier(PythonSession& session, const std::vector<TensorSpec>& tensors,
                   const SparsifierOptions& options);
  PythonSparsifier(const PythonSparsifier&) = delete;
  PythonSparsifier& operator=(const PythonSparsifier&) = delete;

  const std::vector<TensorSpec>& crossing() const { return sparsifier_->crossing(); }
  Index chunks() const { return chunks_; }
  float scale();
  /// Waits until the last step has selected what it sends.
  Index not_finite();

  // `gradients` has for each tensor None, or all elements. `streams` are the program's streams that
  // use them.

  /// Starts a step of a bucket. On a GPU, the selection happens when the session reaches the step.
  PythonTicket reduce(Index bucket, const nanobind::sequence& gradients, const SparsifierStep& step,
                      const std::vector<StreamNumber>& streams);
  void undo(const nanobind::sequence& gradients, const std::vector<StreamNumber>& streams);
  void give_back();

  void write_norms(nanobind::handle out, StreamNumber stream);
  void choose(const std::vector<Index>& chosen);

  /// @param velocity  None to skip it
  void write_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                   StreamNumber stream);
  void read_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                  StreamNumber stream);

 private:
  /// Runs work after all work that `streams` have been given so far. Their later work waits for it.
  template <typename Work>
  void call(const std::vector<StreamNumber>& streams, const Work& work) {
    session_.behind(streams,
                    [&](const Event* before) { sparsifier_->call(before, streams, work); });
  }
  std::vector<const std::byte*> pointers_to(const nanobind::sequence& gradients,
                                            std::vector<ConstArray>& held) const;
  template <typename Given>
  Given numbers_of(nanobind::handle given, Index size, const std::string& what) const;
  template <typename Given, typename Copy>
  void copy_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                  StreamNumber stream, const Copy& copy);

  PythonSession& session_;
  std::vector<TensorSpec> tensors_;
  std::shared_ptr<SharedSparsifier> sparsifier_;
  bool corrects_momentum_;
  Index chunks_ = 0;
  std::optional<PythonTicket> last_;  // ticket of the last reduce
};

}  // namespace sparsesync::python
