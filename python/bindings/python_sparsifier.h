// A sparsifier as Python holds one.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <span>
#include <vector>

#include "engine/sparsifier/sparsifier.h"
#include "python/bindings/arrays.h"
#include "python/bindings/python_session.h"

namespace sparsesync::python {

/// A Sparsifier of a session's bucket, in the session's memory. On a GPU it works in the stream of
/// the program that it was made for; the streams that each call names, which use its arrays, and
/// that one wait for each other. Guarded by the GIL, which is given up for what takes long.
class PythonSparsifier {
 public:
  /// @param session  outlives this
  PythonSparsifier(PythonSession& session, const std::vector<TensorSpec>& tensors,
                   const SparsifierOptions& options, StreamNumber stream);
  PythonSparsifier(const PythonSparsifier&) = delete;
  PythonSparsifier& operator=(const PythonSparsifier&) = delete;

  const std::vector<TensorSpec>& crossing() const { return sparsifier_->crossing(); }
  Index not_finite() const { return sparsifier_->not_finite(); }
  float scale() const { return sparsifier_->scale(); }
  Index chunks() { return std::ssize(sparsifier_->norms()); }

  // Of each tensor None, or all elements; streams of the program that use them.

  void take(const nanobind::sequence& gradients, const SparsifierStep& step,
            const std::vector<StreamNumber>& streams);
  void undo(const nanobind::sequence& gradients, const std::vector<StreamNumber>& streams);
  void give_back();
  /// Starts a step of a bucket with what was taken.
  PythonTicket reduce(Index bucket);

  void write_norms(nanobind::handle out, StreamNumber stream);
  void choose(const std::vector<Index>& chosen);

  /// @param velocity  None where it is not asked for
  void write_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                   StreamNumber stream);
  void read_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                  StreamNumber stream);

 private:
  std::vector<const std::byte*> pointers_to(const nanobind::sequence& gradients,
                                            std::vector<ConstArray>& held) const;
  template <typename Given>
  Given numbers_of(nanobind::handle given, Index size, const std::string& what) const;
  template <typename Given, typename Copy>
  void copy_state(Index tensor, nanobind::handle residual, nanobind::handle velocity,
                  StreamNumber stream, const Copy& copy);

  PythonSession& session_;
  std::vector<TensorSpec> tensors_;
  StreamNumber stream_;
  std::shared_ptr<Sparsifier> sparsifier_;  // a phase that reads what was taken keeps it
  std::span<const Gradient> taken_;
};

}  // namespace sparsesync::python
