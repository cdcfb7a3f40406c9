// Sparsifiers, for Python.
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
  throw InputError(fmt::format("there is no sparsifier '{}': top_k, threshold or chunks", name));
}

template <typename Given>
Given array_at(nb::handle given, const std::string& what, Place place) {
  if constexpr (std::is_same_v<Given, Array>) {
    return writable_of(given, what, place);
  } else {
    return array_of(given, what, place);
  }
}

/// Has a sparsifier take what crosses of a step: when the step's turn has come, or at once.
class Taking final : public GradientSource {
 public:
  /// @param gradients  the program's, as Sparsifier::take() takes them
  /// @param written    where they are written; null: they are
  Taking(std::shared_ptr<SharedSparsifier> sparsifier, std::vector<const std::byte*> gradients,
         const SparsifierStep& step, std::shared_ptr<const Event> written)
      : sparsifier_(std::move(sparsifier)),
        gradients_(std::move(gradients)),
        step_(step),
        written_(std::move(written)) {}

  /// Takes in the calling thread. Where that fails, gradients() throws.
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
        synchronize(context);  // kernels that were launched still use the gradients
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
  std::exception_ptr error_;  // of take_at_once()
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
      throw InputError(fmt::format("{}: {} elements of {} where there are to be {} of {}", what,
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
  // On the host there is nothing to wait for, and the gradients are still in the caches.
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
        fmt::format("{}: {} numbers where there are to be {}", what, array.size(), size));
  }
  return array;
}

void PythonSparsifier::write_norms(nb::handle out, StreamNumber stream) {
  const auto array = numbers_of<Array>(out, chunks(), "norms");
  if (array.dtype() != nb::dtype<double>()) throw InputError("norms: f64");
  call({stream}, [&](Sparsifier& sparsifier, const Context& context) {
    copy(context, std::as_bytes(sparsifier.norms()), static_cast<std::byte*>(array.data()));
  });
}

void PythonSparsifier::choose(const std::vector<Index>& chosen) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] < 0 || chosen[i] >= chunks() || (i > 0 && chosen[i] <= chosen[i - 1])) {
      throw InputError(fmt::format("chunk {} at place {}: chunks increase within [0, {})",
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
    if (array.dtype() != nb::dtype<float>()) throw InputError(what + ": f32");
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
          nb::arg("keeps_rest") = true, nb::arg("wire") = nb::none(),
          "tensors: of f32, f16 or bf16; what is owed is f32, in the session's memory. selecting: "
          "'top_k', elements of the largest magnitudes of each tensor; 'threshold', elements of a "
          "magnitude of `level` or more; 'chunks', of `chunk` elements of all tensors laid end to "
          "end. corrects_momentum: velocities cross in the place of gradients; masks_momentum: "
          "that of an element that crosses becomes 0. clip: the largest L2 norm of a tensor's "
          "gradient. keeps_rest: what does not cross is kept. wire: the type that values cross as. "
          "On a GPU its work has a stream of its own: the streams of each call wait for it, and it "
          "for them.")
      .def_prop_ro("crossing", &PythonSparsifier::crossing, "What its bucket is registered with.")
      .def_prop_ro("chunks", &PythonSparsifier::chunks, "How many there are; 0 of elements.")
      .def_prop_ro("scale", &PythonSparsifier::scale,
                   "That what is owed is multiplied by: the last step's; 1 before it.");
}

void bind_steps(SparsifierClass& sparsifier) {
  sparsifier
      .def("not_finite", &PythonSparsifier::not_finite,
           "Waits until the last reduce() has taken what crosses. Returns how many of the step's "
           "values are infinite or not a number; 0 where it took nothing, as its step was refused.")
      .def(
          "reduce",
          [](PythonSparsifier& self, Index bucket, const nb::sequence& gradients, double share,
             float scale, float momentum, bool nesterov, const std::vector<StreamNumber>& streams) {
            return self.reduce(bucket, gradients, {share, scale, momentum, nesterov}, streams);
          },
          nb::arg("bucket"), nb::arg("gradients"), nb::arg("share") = 1.0, nb::arg("scale") = 1.0F,
          nb::arg("momentum") = 0.0F, nb::arg("nesterov") = false,
          nb::arg("streams") = nb::make_tuple(0),
          "Starts a step of a bucket. Gradients, of each tensor None or an array of all elements, "
          "[rows, width] or flat, are added to what is owed, and what crosses is taken out, on a "
          "GPU when the step's turn has come: of 'top_k' that share of each tensor's elements. "
          "Where memory runs out, all workers refuse the step, and nothing is taken here. scale: "
          "that the "
          "loss was multiplied by; what is owed follows it. streams: of a GPU, those that write "
          "the gradients, which stay as they are until wait().",
          nb::sig("def reduce(self, bucket: int, gradients: "
                  "collections.abc.Sequence[sparsesync.SupportsDLPack | None], share: float = 1.0, "
                  "scale: float = 1.0, momentum: float = 0.0, nesterov: bool = False, streams: "
                  "collections.abc.Sequence[int] = (0,)) -> Ticket"))
      .def("undo", &PythonSparsifier::undo, nb::arg("gradients"),
           nb::arg("streams") = nb::make_tuple(0),
           "Undoes the last reduce(), which is over, of the same gradients, [rows, width] or flat: "
           "the step is skipped. Nothing where it took nothing. streams: of a GPU, those that "
           "write the gradients, and use their memory afterwards.",
           nb::sig("def undo(self, gradients: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack | None], streams: "
                   "collections.abc.Sequence[int] = (0,)) -> None"))
      .def("give_back", &PythonSparsifier::give_back,
           "Gives back what the last reduce(), which is over, took, and whose sums are not used: "
           "it is owed as before. Nothing where it took nothing.");
}

void bind_state(SparsifierClass& sparsifier) {
  sparsifier
      .def("write_norms", &PythonSparsifier::write_norms, nb::arg("out"), nb::arg("stream") = 0,
           "Copies the sums of the absolute values of what was owed in each chunk before the last "
           "reduce() took from it: f64 [chunks]. stream: of a GPU, that uses `out`.",
           nb::sig("def write_norms(self, out: sparsesync.SupportsDLPack, stream: int = 0) -> "
                   "None"))
      .def("choose", &PythonSparsifier::choose, nb::arg("chunks"),
           "Which chunks the next steps take, increasing; all before that is said.")
      .def(
          "write_state", &PythonSparsifier::write_state, nb::arg("tensor"), nb::arg("residual"),
          nb::arg("velocity").none() = nb::none(), nb::arg("stream") = 0,
          "Copies what is owed of a tensor, and its velocities, to f32 [elements] each. stream: of "
          "a GPU, that uses these arrays.",
          nb::sig("def write_state(self, tensor: int, residual: sparsesync.SupportsDLPack, "
                  "velocity: sparsesync.SupportsDLPack | None = None, stream: int = 0) -> None"))
      .def("read_state", &PythonSparsifier::read_state, nb::arg("tensor"), nb::arg("residual"),
           nb::arg("velocity").none() = nb::none(), nb::arg("stream") = 0,
           "The other way: from f32 [elements] each.",
           nb::sig("def read_state(self, tensor: int, residual: sparsesync.SupportsDLPack, "
                   "velocity: sparsesync.SupportsDLPack | None = None, stream: int = 0) -> None"));
}

void bind_sparsifier(nb::module_& module) {
  SparsifierClass sparsifier(
      module, "Sparsifier",
      "What of a bucket's dense gradients crosses, and what is kept for later steps. In each step "
      "reduce() of a bucket that was registered with `crossing`, and its gather.");
  bind_making(sparsifier);
  bind_steps(sparsifier);
  bind_state(sparsifier);
}

}  // namespace

void bind_sparsifiers(nb::module_& module) {
  bind_sparsifier(module);
  module.def("count_of_share", &count_of_share, nb::arg("share"), nb::arg("all"),
             "A share of so many, rounded up; one such as 0.01 is meant as it is written.");
  module.def(
      "largest_chunks",
      [](const std::vector<double>& norms, Index count) { return largest_chunks(norms, count); },
      nb::arg("norms"), nb::arg("count"),
      "The numbers of the `count` largest norms, increasing; of equal ones the first. NaN's "
      "come before all others.");
}

}  // namespace sparsesync::python
