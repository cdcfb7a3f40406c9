// Buckets and sessions, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_device.h"
#include "python/bindings/python_session.h"
#include "python/bindings/transports.h"
#include "sparsesync/session.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

BucketSpec bucket_spec(const std::string& name, const std::vector<TensorSpec>& tensors,
                       const std::string& scheme, const std::string& reduction,
                       const std::optional<std::string>& wire, bool announce,
                       std::optional<int> rounds) {
  BucketSpec spec{name, tensors, scheme};
  if (reduction != "sum" && reduction != "mean") {
    throw InputError(fmt::format("there is no reduction '{}': sum or mean", reduction));
  }
  spec.reduction = reduction == "mean" ? Reduction::mean : Reduction::sum;
  if (wire) spec.options.wire = dtype_named(*wire);
  spec.announce = announce;
  spec.rounds = rounds;
  spec.count_non_finite = true;
  return spec;
}

/// @param given  None, a name, or a Device
std::shared_ptr<PythonDevice> device_of(nb::handle given,
                                        const std::optional<std::int64_t>& memory_bytes) {
  if (given.is_none()) return nullptr;
  DeviceHandle* made = nullptr;
  if (nb::try_cast(given, made)) {
    if (memory_bytes) throw InputError("memory_bytes: the Device that is given has its own");
    return made->device;
  }
  std::string name;
  if (!nb::try_cast(given, name)) {
    throw InputError("device: None, 'cpu', 'cuda:0', say, or a Device");
  }
  const std::optional<int> number = gpu_named(name);
  if (!number) return nullptr;
  return std::make_shared<PythonDevice>(*number, std::nullopt, nb::none(), memory_bytes);
}

}  // namespace

void close_sessions() {
  std::set<PythonSession*>& sessions = PythonSession::open();
  while (!sessions.empty()) {
    PythonSession* const session = *sessions.begin();
    sessions.erase(session);
    const nb::object kept = nb::find(*session);  // closing lets others run
    session->close();
  }
  while (PythonSession::ending() > 0) {
    const WithoutGil without_gil;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

namespace {

void bind_tensor_spec(nb::module_& module) {
  nb::class_<TensorSpec>(module, "TensorSpec", "A tensor of `rows` rows of `width` elements.")
      .def(
          "__init__",
          [](TensorSpec* self, std::string name, Index rows, Index width,
             const std::string& dtype) {
            new (self) TensorSpec{std::move(name), rows, width, dtype_named(dtype)};
          },
          nb::arg("name"), nb::arg("rows"), nb::arg("width"), nb::arg("dtype") = "f32",
          "name: its own within a bucket. dtype: f32, f64, f16, bf16 (in NumPy: uint16), i32 or "
          "i64.")
      .def_prop_ro(
          "name", [](const TensorSpec& self) { return self.name; }, "Its own within a bucket.")
      .def_prop_ro(
          "rows", [](const TensorSpec& self) { return self.rows; }, "How many rows there are.")
      .def_prop_ro(
          "width", [](const TensorSpec& self) { return self.width; }, "Elements of a row.")
      .def_prop_ro(
          "dtype", [](const TensorSpec& self) { return std::string(name_of(self.dtype)); },
          "f32, f64, f16, bf16, i32 or i64.")
      .def("__repr__", [](const TensorSpec& self) {
        return fmt::format("TensorSpec('{}', {}, {}, '{}')", self.name, self.rows, self.width,
                           name_of(self.dtype));
      });
}

void bind_ticket(nb::module_& module) {
  static_cast<void>(
      nb::class_<PythonTicket>(module, "Ticket", "Names a submitted phase, for Session.wait()."));
}

using SessionClass = nb::class_<PythonSession>;

void bind_session_life(SessionClass& session) {
  session
      .def(
          "__init__",
          [](PythonSession* self, TransportHandle& transport, double deadline_s, std::uint64_t seed,
             int threads, int trials, std::optional<std::int64_t> memory_bytes, nb::handle device) {
            new (self) PythonSession(transport, deadline_s, seed, threads, trials, memory_bytes,
                                     device_of(device, memory_bytes));
          },
          nb::arg("transport"), nb::arg("deadline_s") = 60.0, nb::arg("seed") = 1,
          nb::arg("threads") = 1, nb::arg("trials") = 24, nb::arg("memory_bytes") = nb::none(),
          nb::arg("device").none() = nb::none(),
          "Takes the transport. deadline_s: seconds of each wait for another worker. seed: of the "
          "row groups, the same on all workers. threads: that the kernels are cut among. trials: "
          "ways that a bucket of 'auto' tries at most. memory_bytes: a budget for the workspace, "
          "or none. device: where gradients are given and results written: 'cpu', or 'cuda:0', "
          "say, or a Device of this session's own. Raises DeviceError where there is no such GPU.",
          nb::sig("def __init__(self, transport: Transport, deadline_s: float = 60.0, seed: int = "
                  "1, threads: int = 1, trials: int = 24, memory_bytes: int | None = None, device: "
                  "str | Device | None = None) -> None"))
      .def("close", &PythonSession::close,
           "Leaves, after the phase that runs, if one does; safe to call again. Who waits in "
           "another thread gets ClosedError.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__", [](PythonSession& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def_prop_ro("closed", &PythonSession::closed, "Whether it was closed.")
      .def_prop_ro("rank", &PythonSession::rank, "Which worker this is, from 0.")
      .def_prop_ro("size", &PythonSession::size, "How many workers there are.")
      .def_prop_ro("step", &PythonSession::step, "Steps that are complete.");
}

void bind_buckets(SessionClass& session) {
  session
      .def(
          "register_bucket",
          [](PythonSession& self, const std::string& name, const std::vector<TensorSpec>& tensors,
             const std::string& scheme, const std::string& reduction,
             const std::optional<std::string>& wire, bool announce, std::optional<int> rounds) {
            return self.register_bucket(
                bucket_spec(name, tensors, scheme, reduction, wire, announce, rounds));
          },
          nb::arg("name"), nb::arg("tensors"), nb::arg("scheme") = "auto",
          nb::arg("reduction") = "sum", nb::arg("wire") = nb::none(), nb::arg("announce") = false,
          nb::arg("rounds") = nb::none(),
          "Between steps. Tensors that cross together. scheme: 'auto', or one of schemes(). "
          "reduction: 'sum' or 'mean'. wire: the type that values cross as, 'f32', 'f16' or "
          "'bf16'; their own if not given. announce: whether each step begins with announce(). "
          "rounds: so many exchanges a phase; if not given one, and more where a step is too large "
          "for "
          "some worker's memory. Returns the bucket's number. Raises AgreementError, "
          "on all workers, where they differ; UnsupportedError for a scheme that the transport is "
          "not made for; BudgetError, and RefusedError on the others, where the workspace does not "
          "fit.")
      .def("release_bucket", &PythonSession::release_bucket, nb::arg("bucket"),
           "Between steps. Takes a bucket out of the order and frees what it holds, results too.")
      .def(
          "keep_squares", &PythonSession::keep_squares, nb::arg("bucket"), nb::arg("tensors"),
          nb::arg("sum"),
          "Between steps. From the next step on each reduce writes to `sum`, f64 [1], the squares "
          "of what this worker then owns of the result, added up: of all workers together those of "
          "the whole result, before it is gathered. tensors: so many of the bucket's first ones, "
          "none of which has both dtype and width of another one.",
          nb::sig("def keep_squares(self, bucket: int, tensors: int, sum: "
                  "sparsesync.SupportsDLPack) -> None"))
      .def("has_squares", &PythonSession::has_squares, nb::arg("bucket"),
           "Whether the last reduce, which was waited for, wrote them: whether its scheme has sums "
           "before they are gathered. The same on all workers.")
      .def("observed", &PythonSession::observed, nb::arg("bucket"),
           "What its last step showed, while none is under way: of tensors alike together, rows "
           "that this worker touched and rows that all of them did.");
}

void bind_phases(SessionClass& session) {
  session
      .def(
          "reduce", &PythonSession::reduce, nb::arg("bucket"), nb::arg("gradients"),
          nb::arg("streams") = nb::make_tuple(0),
          "Starts a step of a bucket. gradients: of each tensor None (nothing touched), a dense "
          "array [rows, width] (or flat), or (indices, values): int64 [nnz], any order, repeats "
          "are summed, and [nnz, width]. They are not copied: they must not change until the phase "
          "is over. streams: of a GPU, those that write them, each a cudaStream_t as a number; the "
          "phase waits for what they were given so far.",
          nb::sig("def reduce(self, bucket: int, gradients: "
                  "collections.abc.Sequence[sparsesync.SupportsDLPack | "
                  "tuple[sparsesync.SupportsDLPack, sparsesync.SupportsDLPack] | None], streams: "
                  "collections.abc.Sequence[int] = (0,)) -> Ticket"))
      .def("gather", &PythonSession::gather, nb::arg("bucket"),
           "Starts the second half of the step.")
      .def("announce", &PythonSession::announce, nb::arg("bucket"), nb::arg("rows"),
           nb::arg("streams") = nb::make_tuple(0),
           "Tells which rows the coming step may touch: of each tensor None or int64 [n], any "
           "order, repeats allowed. Not copied: they must not change until the phase is over. "
           "streams: as for reduce().",
           nb::sig("def announce(self, bucket: int, rows: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack | None], streams: "
                   "collections.abc.Sequence[int] = (0,)) -> Ticket"))
      .def(
          "wait", &PythonSession::wait, nb::arg("ticket"),
          "Waits until a phase is over. Raises what it ended with: InputError, BudgetError here "
          "and RefusedError on the others where a gradient cannot be taken; PeerLostError, "
          "DeadlineError, AbortedError, OrderError, ProtocolError. With memory_bytes, wait for the "
          "gather before the reduce: a step that is too large begins again, in more rounds, where "
          "no worker has waited for its reduce.");
}

void bind_results(SessionClass& session) {
  session
      .def("result_rows", &PythonSession::result_rows, nb::arg("bucket"), nb::arg("tensor"),
           "Rows of the result; None where it is dense. Of this call and the three that follow: "
           "after wait() for the step's gather, until the bucket's next step begins.")
      .def("result", &PythonSession::result, nb::arg("bucket"), nb::arg("tensor"),
           "A copy of the result, on the host: (int64 [n], [n, width]), rows increasing, or [rows, "
           "width]; bf16 "
           "stands as uint16.",
           nb::sig("def result(self, bucket: int, tensor: int) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[typing.Any]] | "
                   "numpy.typing.NDArray[typing.Any]"))
      .def("copy_result", &PythonSession::copy_result, nb::arg("bucket"), nb::arg("tensor"),
           nb::arg("indices").none(), nb::arg("values").none(), nb::arg("stream") = 0,
           "Copies a row-sparse result to int64 [n] and [n, width], where n is result_rows(). "
           "stream: of a GPU, in which that is done, after what it was given so far.",
           nb::sig("def copy_result(self, bucket: int, tensor: int, indices: "
                   "sparsesync.SupportsDLPack, values: sparsesync.SupportsDLPack, stream: int = 0) "
                   "-> None"))
      .def("write_dense", &PythonSession::write_dense, nb::arg("bucket"), nb::arg("tensor"),
           nb::arg("out").none(), nb::arg("stream") = 0,
           "Writes the result as a dense tensor: [rows, width], or flat. stream: as for "
           "copy_result().",
           nb::sig("def write_dense(self, bucket: int, tensor: int, out: "
                   "sparsesync.SupportsDLPack, stream: int = 0) -> None"));
}

void bind_agreements(SessionClass& session) {
  session.def("barrier", &PythonSession::barrier, "Between steps. Waits for all workers.")
      .def("agree", &PythonSession::agree, nb::arg("subject"), nb::arg("statement"),
           "Between steps. Compares (name, value) pairs of all workers; raises AgreementError on "
           "all, naming the first difference of `subject`.")
      .def("all_gather", &PythonSession::all_gather, nb::arg("own"),
           "Between steps. What each worker gave, by rank; 64 MiB at most.",
           nb::sig("def all_gather(self, own: bytes) -> list[bytes]"))
      .def("broadcast", &PythonSession::broadcast, nb::arg("array").none(), nb::arg("root") = 0,
           "Between steps. Overwrites the array, of any type and shape, with that of worker "
           "`root`, which has as many bytes.",
           nb::sig("def broadcast(self, array: sparsesync.SupportsDLPack, root: int = 0) -> None"))
      .def("set_order", &PythonSession::set_order, nb::arg("order"), nb::arg("from_step"),
           "Between steps. Replaces the order in which phases are posted, the same on all workers: "
           "every phase of every bucket once, as (bucket, 'announce', 'reduce' or 'gather'). "
           "from_step: of this session, counted from 0.");
}

void bind_session_facts(SessionClass& session) {
  session
      .def("counters", &PythonSession::counters,
           "bytes_sent, bytes_received (headers of messages included), messages_sent, "
           "messages_received: of all that the session did so far.",
           nb::sig("def counters(self) -> dict[str, int]"))
      .def("use", &PythonSession::bucket_use, nb::arg("bucket"),
           "What a bucket has taken so far; while a step is under way, before it: as counters(), "
           "and seconds in the background, index_bytes_sent (those that said which rows there "
           "are), non_finite(), and last: when each phase, by its name, began and ended the last "
           "time, on the clock of time.monotonic().",
           nb::sig("def use(self, bucket: int) -> dict[str, typing.Any]"))
      .def("non_finite", &PythonSession::non_finite, nb::arg("bucket"),
           "Values of the last sums that are infinite or not a number; while a step is under way, "
           "of those before it.")
      .def("choice", &PythonSession::choice, nb::arg("bucket"),
           "scheme (at work), settled (whether no other is tried), expected: what 'auto' expects "
           "of each scheme, the best first (seconds, bytes_busiest, memory_bytes). While a step is "
           "under way, of before it.",
           nb::sig("def choice(self, bucket: int) -> dict[str, typing.Any]"))
      .def_prop_ro("device", &PythonSession::device, "Where it works: 'cpu', or 'cuda:0', say.")
      .def_prop_ro("memory_in_use", &PythonSession::memory_in_use,
                   "Bytes of workspace, in the memory of the device.")
      .def_prop_ro("memory_high_water", &PythonSession::memory_high_water,
                   "The most bytes of workspace that there were at a time.")
      .def_prop_ro("pinned_in_use", &PythonSession::pinned_in_use,
                   "Bytes of the host that a GPU reaches, for staging; 0 without one.")
      .def_prop_ro("pinned_high_water", &PythonSession::pinned_high_water,
                   "The most of these that there were at a time.")
      .def_prop_ro("allocations", &PythonSession::allocations,
                   "How often workspace was asked for, so far.");
}

void bind_session_class(nb::module_& module) {
  SessionClass session(
      module, "Session",
      "One worker's session: registered buckets, whose phases run in the background in one order "
      "that all workers agree on. All workers make the same calls of what is said to be between "
      "steps. Waits release the GIL. Closed at the end of a `with` block, and before the process "
      "ends. Threads call it one after another; wait() and close() may come in between.\n\nA step "
      "of a bucket is a reduce and a gather, after an announce where the bucket announces; every "
      "bucket takes part in every step. The type of an error says whether the session is over. "
      "After RefusedError, AgreementError, InputError, UnsupportedError, BudgetError and "
      "MemoryError "
      "the next step works on all workers. After other errors that workers cause the session is "
      "over, and every call raises that error.",
      nb::is_weak_referenceable());
  bind_session_life(session);
  bind_buckets(session);
  bind_phases(session);
  bind_results(session);
  bind_agreements(session);
  bind_session_facts(session);
}

}  // namespace

void bind_session(nb::module_& module) {
  bind_tensor_spec(module);
  bind_ticket(module);
  bind_session_class(module);
}

}  // namespace sparsesync::python
