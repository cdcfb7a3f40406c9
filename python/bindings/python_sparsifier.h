// A sparsifier as Python holds one.
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

/// A Sparsifier, and whether the last step came to take what crosses. It works in a session's
/// memory, and on a GPU in a stream that all sparsifiers of the session share. Called without the
/// GIL, by any thread: a lock orders the calls. Phases that take from it own it, too.
class SharedSparsifier {
 public:
  /// @param device  null: the host
  /// @throws what make_sparsifier() throws
  SharedSparsifier(std::shared_ptr<PythonDevice> device, std::shared_ptr<HostMemory> memory,
                   const std::vector<TensorSpec>& tensors, const SparsifierOptions& options);

  /// Tensors that its bucket is registered with.
  const std::vector<TensorSpec>& crossing() const { return sparsifier_->crossing(); }

  /// @param before   what the work waits for; null: nothing
  /// @param streams  of the program, that wait for the work
  /// @param work     is given the Sparsifier and its context
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

  /// A step was submitted.
  void await();
  /// The step took what crosses: `not_finite` values of it are infinite or not a number.
  void has_taken(Index not_finite);
  /// Waits until the step has taken what crosses, or for so long.
  bool wait_for(std::chrono::milliseconds most);
  /// Values of the last step that are infinite or not a number; 0 where it took nothing.
  Index not_finite();
  /// Whether the last step took something, which nobody gave back so far; nobody may afterwards.
  bool give_back();

 private:
  enum class Step : std::uint8_t { none, awaited, taken };

  std::shared_ptr<PythonDevice> device_;
  std::shared_ptr<HostMemory> memory_;
  std::mutex calls_;  // of the sparsifier
  std::unique_ptr<Sparsifier> sparsifier_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Step step_ = Step::none;
  Index not_finite_ = 0;
};

/// A Sparsifier of a session's bucket. Guarded by the GIL, which is given up for what takes long.
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
  /// Waits until the last step has taken what crosses.
  Index not_finite();

  // `gradients`: of each tensor None, or all elements. `streams`: those of the program that use
  // them.

  /// Starts a step of a bucket. What crosses is taken from the gradients, on a GPU when the step's
  /// turn has come.
  PythonTicket reduce(Index bucket, const nanobind::sequence& gradients, const SparsifierStep& step,
                      const std::vector<StreamNumber>& streams);
  void undo(const nanobind::sequence& gradients, const std::vector<StreamNumber>& streams);
  void give_back();

  void write_norms(nanobind::handle out, StreamNumber stream);
  void choose(const std::vector<Index>& chosen);

  /// @param velocity  None where it is not asked for
  void write_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                   StreamNumber stream);
  void read_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                  StreamNumber stream);

 private:
  /// Does work behind what `streams` were given so far; what they are given next waits for it.
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
  std::optional<PythonTicket> last_;  // reduce
};

}  // namespace sparsesync::python
