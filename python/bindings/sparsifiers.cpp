// Python bindings of sparsifiers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "kernels/rows/rows.h"
#include "python/bindings/bindings.h"
#include "python/bindings/python_sparsifier.h"
#include "sparsesync/session.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

Selecting selecting_named(const std::string& name) {
  for (const Selecting each : {Selecting::top_k, Selecting::threshold, Selecting::chunks}) {
    if (name == name_of(each)) return each;
  }
  throw InputError(
      fmt::format("there is no sparsifier '{}': use top_k, threshold or chunks", name));
}

template <typename Given>
Given array_at(nb::handle given, const std::string& what, Place place) {
  if constexpr (std::is_same_v<Given, Array>) {
    return writable_of(given, what, place);
  } else {
    return array_of(given, what, place);
  }
}

/// Makes a sparsifier select the elements that a step sends: when the session reaches the step, or
/// at once.
class Taking final : public GradientSource {
 public:
  /// @param gradients  the program's arrays, as for Sparsifier::take()
  /// @param written    event after which they are written; null: they are written already
  Taking(std::shared_ptr<SharedSparsifier> sparsifier, std::vector<const std::byte*> gradients,
         const SparsifierStep& step, std::shared_ptr<const Event> written)
      : sparsifier_(std::move(sparsifier)),
        gradients_(std::move(gradients)),
        step_(step),
        written_(std::move(written)) {}

  /// Selects in the calling thread. If that fails, gradients() throws the error.
  void take_at_once() noexcept {
    try {
      taken_ = take();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  std::span<const Gradient> gradients() override {
    if (error_) std::rethrow_exception(error_);
    if (!taken_) taken_ = take();
    return *taken_;
  }

 private:
  std::span<const Gradient> take() {
    std::span<const Gradient> taken;
    const auto work = [&](Sparsifier& sparsifier, const Context& context) {
      try {
        taken = sparsifier.take(gradients_, step_);
      } catch (...) {
        synchronize(context);  // launched kernels still use the gradients
        throw;
      }
      sparsifier_->has_taken(sparsifier.not_finite());
    };
    sparsifier_->call(written_.get(), {}, work);
    return taken;
  }

  std::shared_ptr<SharedSparsifier> sparsifier_;
  std::vector<const std::byte*> gradients_;
  SparsifierStep step_;
  std::shared_ptr<const Event> written_;
  std::optional<std::span<const Gradient>> taken_;
  std::exception_ptr error_;  // thrown by take_at_once()
};

}  // namespace

SharedSparsifier::SharedSparsifier(std::shared_ptr<PythonDevice> device,
                                   std::shared_ptr<HostMemory> memory,
                                   const std::vector<TensorSpec>& tensors,
                                   const SparsifierOptions& options)
    : device_(std::move(device)), memory_(std::move(memory)) {
  const auto make = [&](const Context& context) {
    sparsifier_ = make_sparsifier(context, tensors, options);
  };
  if (device_ != nullptr) {
    device_->sparsify(nullptr, {}, make);
  } else {
    make(Context(*memory_));
  }
}

void SharedSparsifier::await() {
  const std::lock_guard lock(mutex_);
  step_ = Step::awaited;
  not_finite_ = 0;
}

void SharedSparsifier::has_taken(Index not_finite) {
  const std::lock_guard lock(mutex_);
  step_ = Step::taken;
  not_finite_ = not_finite;
  changed_.notify_all();
}

bool SharedSparsifier::wait_for(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return step_ != Step::awaited; });
}

Index SharedSparsifier::not_finite() {
  const std::lock_guard lock(mutex_);
  return not_finite_;
}

bool SharedSparsifier::give_back() {
  const std::lock_guard lock(mutex_);
  return std::exchange(step_, Step::none) == Step::taken;
}

PythonSparsifier::PythonSparsifier(PythonSession& session, const std::vector<TensorSpec>& tensors,
                                   const SparsifierOptions& options)
    : session_(session), tensors_(tensors), corrects_momentum_(options.corrects_momentum) {
  session_.behind({}, [&](const Event*) {
    sparsifier_ = std::make_shared<SharedSparsifier>(session_.on_device(), session_.host_memory(),
                                                     tensors, options);
    sparsifier_->call(nullptr, {}, [&](Sparsifier& sparsifier, const Context&) {
      chunks_ = std::ssize(sparsifier.norms());
    });
  });
}

float PythonSparsifier::scale() {
  float scale = 1;
  call({}, [&](const Sparsifier& sparsifier, const Context&) { scale = sparsifier.scale(); });
  return scale;
}

Index PythonSparsifier::not_finite() {
  if (last_) {
    session_.wait_until([&](const Session& session) {
      return sparsifier_->wait_for(kSignals) || session.is_final(last_->ticket);
    });
  }
  return sparsifier_->not_finite();
}

std::vector<const std::byte*> PythonSparsifier::pointers_to(const nb::sequence& gradients,
                                                            std::vector<ConstArray>& held) const {
  if (nb::len(gradients) != tensors_.size()) {
    throw InputError(fmt::format("{} gradients for {} tensors: give one for each, or None",
                                 nb::len(gradients), tensors_.size()));
  }
  std::vector<const std::byte*> pointers;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const nb::object given = gradients[i];
    if (given.is_none()) {
      pointers.push_back(nullptr);
      continue;
    }
    const std::string what = fmt::format("tensor '{}'", tensors_[i].name);
    held.push_back(array_of(given, what, session_.place()));
    const ConstArray& array = held.back();
    const DType dtype = dtype_of(array.dtype(), what);
    const Index elements = tensors_[i].rows * tensors_[i].width;
    if (dtype != tensors_[i].dtype || static_cast<Index>(array.size()) != elements) {
      throw InputError(fmt::format("{}: {} elements of {} are given, but it has {} of {}", what,
                                   array.size(), name_of(dtype), elements,
                                   name_of(tensors_[i].dtype)));
    }
    pointers.push_back(static_cast<const std::byte*>(array.data()));
  }
  return pointers;
}

PythonTicket PythonSparsifier::reduce(Index bucket, const nb::sequence& gradients,
                                      const SparsifierStep& step,
                                      const std::vector<StreamNumber>& streams) {
  validate(step);
  session_.expect_tensors(bucket, crossing());
  std::vector<ConstArray> held;
  std::vector<const std::byte*> pointers = pointers_to(gradients, held);
  auto taking = std::make_shared<Taking>(sparsifier_, std::move(pointers), step,
                                         session_.event_behind(streams));
  sparsifier_->await();
  // On the host the gradients are written, and still in the caches: select at once.
  if (session_.on_device() == nullptr) {
    session_.behind({}, [&](const Event*) { taking->take_at_once(); });
  }
  last_ = session_.reduce_from(bucket, std::move(taking), std::move(held));
  return *last_;
}

void PythonSparsifier::undo(const nb::sequence& gradients,
                            const std::vector<StreamNumber>& streams) {
  std::vector<ConstArray> held;
  const std::vector<const std::byte*> pointers = pointers_to(gradients, held);
  if (!sparsifier_->give_back()) return;
  call(streams, [&](Sparsifier& sparsifier, const Context&) { sparsifier.undo(pointers); });
}

void PythonSparsifier::give_back() {
  if (!sparsifier_->give_back()) return;
  call({}, [](Sparsifier& sparsifier, const Context&) { sparsifier.give_back(); });
}

template <typename Given>
Given PythonSparsifier::numbers_of(nb::handle given, Index size, const std::string& what) const {
  auto array = array_at<Given>(given, what, session_.place());
  const bool is_right = static_cast<Index>(array.size()) == size;
  if (!is_right) {
    throw InputError(
        fmt::format("{}: {} numbers are given, but {} are needed", what, array.size(), size));
  }
  return array;
}

void PythonSparsifier::write_norms(nb::handle out, StreamNumber stream) {
  const auto array = numbers_of<Array>(out, chunks(), "norms");
  if (array.dtype() != nb::dtype<double>()) throw InputError("norms: give float64");
  call({stream}, [&](Sparsifier& sparsifier, const Context& context) {
    copy(context, std::as_bytes(sparsifier.norms()), static_cast<std::byte*>(array.data()));
  });
}

void PythonSparsifier::choose(const std::vector<Index>& chosen) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] < 0 || chosen[i] >= chunks() || (i > 0 && chosen[i] <= chosen[i - 1])) {
      throw InputError(fmt::format("chunk {} at position {}: chunks must increase within [0, {})",
                                   chosen[i], i, chunks()));
    }
  }
  call({}, [&](Sparsifier& sparsifier, const Context&) { sparsifier.choose(chosen); });
}

template <typename Given, typename Copy>
void PythonSparsifier::copy_state(Index tensor, nb::handle residual, nb::handle velocity,
                                  StreamNumber stream, const Copy& copy) {
  if (tensor < 0 || tensor >= std::ssize(tensors_)) {
    throw InputError(fmt::format("there is no tensor {} among {}", tensor, tensors_.size()));
  }
  const auto at = static_cast<std::size_t>(tensor);
  const auto array_of_numbers = [&](nb::handle given, Index size, const char* name) {
    const std::string what = fmt::format("tensor '{}', {}", tensors_[at].name, name);
    auto array = numbers_of<Given>(given, size, what);
    if (array.dtype() != nb::dtype<float>()) throw InputError(what + ": give float32");
    return array;
  };
  const Index size = tensors_[at].rows * tensors_[at].width;
  const auto residuals = array_of_numbers(residual, size, "residual");
  std::optional<Given> velocities;
  if (!velocity.is_none()) {
    velocities = array_of_numbers(velocity, corrects_momentum_ ? size : 0, "velocity");
  }
  call({stream}, [&](Sparsifier& sparsifier, const Context& context) {
    copy(context, std::as_writable_bytes(sparsifier.residual(at)), residuals.data());
    if (velocities) {
      copy(context, std::as_writable_bytes(sparsifier.velocity(at)), velocities->data());
    }
  });
}

void PythonSparsifier::write_state(Index tensor, nb::handle residual, nb::handle velocity,
                                   StreamNumber stream) {
  copy_state<Array>(tensor, residual, velocity, stream,
                    [](const Context& context, std::span<std::byte> state, void* out) {
                      copy(context, state, static_cast<std::byte*>(out));
                    });
}

void PythonSparsifier::read_state(Index tensor, nb::handle residual, nb::handle velocity,
                                  StreamNumber stream) {
  copy_state<ConstArray>(
      tensor, residual, velocity, stream,
      [](const Context& context, std::span<std::byte> state, const void* from) {
        copy(context, {static_cast<const std::byte*>(from), state.size()}, state.data());
      });
}

namespace {

using SparsifierClass = nb::class_<PythonSparsifier>;

constexpr const char* kSparsifierInit =
    R"doc(Makes a sparsifier with an empty residual; the same on all workers.

The residual is float32, in the memory of the session's device. On a GPU, sparsifiers work in a
separate stream: the streams of each call wait for it, and it waits for them.

Args:
    session: Session of the bucket. It outlives the sparsifier.
    tensors: Tensors of the dense gradients, of dtype f32, f16 or bf16.
    selecting: `'top_k'` sends the elements of the largest magnitude of each tensor. `'threshold'`
        sends the elements whose magnitude is `level` or more. `'chunks'` sends chunks of `chunk`
        elements of all tensors laid end to end.
    chunk: Elements per chunk.
    level: Threshold of `'threshold'`, for gradients that are not scaled.
    corrects_momentum: Whether velocities are accumulated and sent instead of gradients (momentum
        correction).
    masks_momentum: Whether the velocity of a sent element becomes 0 (momentum factor masking).
    clip: Maximum L2 norm of a tensor's gradient; longer ones are scaled down. None does not clip.
    keeps_rest: Whether unsent gradients stay in the residual. If not, they are lost.
    wire: Type in which values are sent: `'f32'`, `'f16'` or `'bf16'`. None is the dtype of their
        tensor.

Raises:
    InputError: An argument is invalid.
    BudgetError: The residual does not fit the memory.)doc";

void bind_making(SparsifierClass& sparsifier) {
  sparsifier
      .def(
          "__init__",
          [](PythonSparsifier* self, PythonSession& session, const std::vector<TensorSpec>& tensors,
             const std::string& selecting, Index chunk, float level, bool corrects_momentum,
             bool masks_momentum, std::optional<double> clip, bool keeps_rest,
             const std::optional<std::string>& wire) {
            SparsifierOptions options{selecting_named(selecting), chunk, level};
            options.corrects_momentum = corrects_momentum;
            options.masks_momentum = masks_momentum;
            options.clip = clip;
            options.keeps_rest = keeps_rest;
            if (wire) options.wire = dtype_named(*wire);
            new (self) PythonSparsifier(session, tensors, options);
          },
          nb::keep_alive<1, 2>(), nb::arg("session"), nb::arg("tensors"),
          nb::arg("selecting") = "top_k", nb::arg("chunk") = Index{1} << 15,
          nb::arg("level") = 0.0F, nb::arg("corrects_momentum") = false,
          nb::arg("masks_momentum") = true, nb::arg("clip") = nb::none(),
          nb::arg("keeps_rest") = true, nb::arg("wire") = nb::none(), kSparsifierInit)
      .def_prop_ro("crossing", &PythonSparsifier::crossing,
                   "Tensors to register the sparsifier's bucket with.")
      .def_prop_ro("chunks", &PythonSparsifier::chunks,
                   "Number of chunks; 0 if `selecting` is not 'chunks'.")
      .def_prop_ro("scale", &PythonSparsifier::scale,
                   "Loss scale of the residual: that of the last step; 1 before the first step.");
}

constexpr const char* kNotFinite = R"doc(Waits until the last reduce() has selected what it sends.

Returns:
    Number of the step's values that are infinite or NaN; 0 if the step was refused before it
    selected anything.)doc";

constexpr const char* kSparsifierReduce =
    R"doc(Starts a step of a bucket: adds gradients to the residual and sends the selected part.

On a GPU, the selection happens when the session reaches the step. If memory runs out, all workers
refuse the step, and this worker's residual stays as it was.

Args:
    bucket: Number of a bucket that was registered with `crossing`.
    gradients: One entry per tensor: None, or all elements, `[rows, width]` or flat, of the tensor's
        dtype. They must not change until `Session.wait()`.
    share: Share of each tensor's elements that `'top_k'` sends, in (0, 1].
    scale: Loss scale of the gradients. The residual is rescaled to it.
    momentum: Momentum, with `corrects_momentum`.
    nesterov: Whether the momentum is Nesterov's.
    streams: On a GPU, the streams that write the gradients.

Returns:
    A ticket for `Session.wait()`.

Raises:
    InputError: An argument is invalid, or the bucket has other tensors than `crossing`.)doc";

constexpr const char* kUndo = R"doc(Undoes the last reduce(), so that its step is skipped.

It has no effect if that reduce selected nothing. The reduce must be over.

Args:
    gradients: The gradients of that reduce, each `[rows, width]` or flat.
    streams: On a GPU, the streams that write the gradients or use their memory afterwards.)doc";

constexpr const char* kGiveBack =
    R"doc(Puts what the last reduce() sent back into the residual, because its sums are not used.

It has no effect if that reduce selected nothing. The reduce must be over.)doc";

void bind_steps(SparsifierClass& sparsifier) {
  sparsifier.def("not_finite", &PythonSparsifier::not_finite, kNotFinite)
      .def(
          "reduce",
          [](PythonSparsifier& self, Index bucket, const nb::sequence& gradients, double share,
             float scale, float momentum, bool nesterov, const std::vector<StreamNumber>& streams) {
            return self.reduce(bucket, gradients, {share, scale, momentum, nesterov}, streams);
          },
          nb::arg("bucket"), nb::arg("gradients"), nb::arg("share") = 1.0, nb::arg("scale") = 1.0F,
          nb::arg("momentum") = 0.0F, nb::arg("nesterov") = false,
          nb::arg("streams") = nb::make_tuple(0), kSparsifierReduce,
          nb::sig("def reduce(self, bucket: int, gradients: "
                  "collections.abc.Sequence[sparsesync.SupportsDLPack | None], share: float = 1.0, "
                  "scale: float = 1.0, momentum: float = 0.0, nesterov: bool = False, streams: "
                  "collections.abc.Sequence[int] = (0,)) -> Ticket"))
      .def("undo", &PythonSparsifier::undo, nb::arg("gradients"),
           nb::arg("streams") = nb::make_tuple(0), kUndo,
           nb::sig("def undo(self, gradients: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack | None], streams: "
                   "collections.abc.Sequence[int] = (0,)) -> None"))
      .def("give_back", &PythonSparsifier::give_back, kGiveBack);
}

constexpr const char* kWriteNorms =
    R"doc(Copies the L1 norm of every chunk's residual, as it was before the last reduce().

Args:
    out: Array to overwrite: `[chunks]`, dtype float64, on the session's device.
    stream: On a GPU, the stream that uses `out`.)doc";

constexpr const char* kChoose =
    R"doc(Sets the chunks that the next steps send. Before the first call, steps send all chunks.

Args:
    chunks: Indices of the chunks, increasing; the same on all workers.)doc";

constexpr const char* kWriteState =
    R"doc(Copies a tensor's residual and velocity into arrays on the session's device.

Args:
    tensor: Index of the tensor.
    residual: Array to overwrite: `[elements]`, dtype float32.
    velocity: Array to overwrite: `[elements]`, dtype float32, or `[0]` without `corrects_momentum`.
        None skips it.
    stream: On a GPU, the stream that uses these arrays.)doc";

constexpr const char* kReadState =
    R"doc(Replaces a tensor's residual and velocity by the contents of arrays.

Args:
    tensor: Index of the tensor.
    residual: `[elements]`, dtype float32, on the session's device.
    velocity: `[elements]`, dtype float32, or `[0]` without `corrects_momentum`. None leaves the
        velocity unchanged.
    stream: On a GPU, the stream that uses these arrays.)doc";

void bind_state(SparsifierClass& sparsifier) {
  sparsifier
      .def("write_norms", &PythonSparsifier::write_norms, nb::arg("out"), nb::arg("stream") = 0,
           kWriteNorms,
           nb::sig("def write_norms(self, out: sparsesync.SupportsDLPack, stream: int = 0) -> "
                   "None"))
      .def("choose", &PythonSparsifier::choose, nb::arg("chunks"), kChoose)
      .def("write_state", &PythonSparsifier::write_state, nb::arg("tensor"), nb::arg("residual"),
           nb::arg("velocity").none() = nb::none(), nb::arg("stream") = 0, kWriteState,
           nb::sig("def write_state(self, tensor: int, residual: sparsesync.SupportsDLPack, "
                   "velocity: sparsesync.SupportsDLPack | None = None, stream: int = 0) -> None"))
      .def("read_state", &PythonSparsifier::read_state, nb::arg("tensor"), nb::arg("residual"),
           nb::arg("velocity").none() = nb::none(), nb::arg("stream") = 0, kReadState,
           nb::sig("def read_state(self, tensor: int, residual: sparsesync.SupportsDLPack, "
                   "velocity: sparsesync.SupportsDLPack | None = None, stream: int = 0) -> None"));
}

constexpr const char* kSparsifier =
    R"doc(Makes dense gradients sparse: sends a part of them and keeps the rest in a residual.

In each step, call `reduce()` with a bucket that was registered with `crossing`, and then
`Session.gather()`.

Example:
    >>> import numpy, sparsesync
    >>> spec = sparsesync.TensorSpec("weight", rows=4, width=1)
    >>> with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
    ...     sparsifier = sparsesync.Sparsifier(session, [spec], selecting="top_k")
    ...     bucket = session.register_bucket("bucket", sparsifier.crossing, scheme="balanced")
    ...     gradient = numpy.array([1, -4, 2, 3], numpy.float32)
    ...     ticket = sparsifier.reduce(bucket, [gradient], share=0.5)
    ...     session.wait(session.gather(bucket))
    ...     sent, values = session.result(bucket, 0)
    ...     residual = numpy.zeros(4, numpy.float32)
    ...     sparsifier.write_state(0, residual)
    >>> sent.tolist(), values.ravel().tolist(), residual.tolist()
    ([1, 3], [-4.0, 3.0], [1.0, 0.0, 2.0, 0.0]))doc";

constexpr const char* kCountOfShare = R"doc(Returns a share of a number of elements, rounded up.

A share such as 0.01 counts as the decimal number, although it is not exact in binary: 0.01 of 100
is 1.

Args:
    share: The share.
    all: Number of elements, 0 or more.

Returns:
    A number in [0, all].

Raises:
    InputError: The share is not finite, or `all` is negative.)doc";

constexpr const char* kLargestChunks = R"doc(Returns the indices of the largest norms, increasing.

Of equal norms, the one with the lower index counts as larger. NaN counts as larger than any number,
so that errors become visible.

Args:
    norms: Norm of every chunk.
    count: Number of chunks to return.

Example:
    >>> import sparsesync
    >>> sparsesync.largest_chunks([1.0, 5.0, 3.0], 2)
    [1, 2])doc";

void bind_sparsifier(nb::module_& module) {
  SparsifierClass sparsifier(module, "Sparsifier", kSparsifier);
  bind_making(sparsifier);
  bind_steps(sparsifier);
  bind_state(sparsifier);
}

}  // namespace

void bind_sparsifiers(nb::module_& module) {
  bind_sparsifier(module);
  module.def("count_of_share", &count_of_share, nb::arg("share"), nb::arg("all"), kCountOfShare);
  module.def(
      "largest_chunks",
      [](const std::vector<double>& norms, Index count) { return largest_chunks(norms, count); },
      nb::arg("norms"), nb::arg("count"), kLargestChunks);
}

}  // namespace sparsesync::python
