// Python bindings of buckets and sessions.
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
    throw InputError(fmt::format("there is no reduction '{}': use 'sum' or 'mean'", reduction));
  }
  spec.reduction = reduction == "mean" ? Reduction::mean : Reduction::sum;
  if (wire) spec.options.wire = dtype_named(*wire);
  spec.announce = announce;
  spec.rounds = rounds;
  spec.count_non_finite = true;
  return spec;
}

/// Returns the device that Python named; null for the host.
/// @param given  None, a name, or a Device
/// @throws InputError for any other object, or if both a Device and `memory_bytes` are given
std::shared_ptr<PythonDevice> device_of(nb::handle given,
                                        const std::optional<std::int64_t>& memory_bytes) {
  if (given.is_none()) return nullptr;
  DeviceHandle* made = nullptr;
  if (nb::try_cast(given, made)) {
    if (memory_bytes) {
      throw InputError("memory_bytes: pass it to the Device, not to the Session");
    }
    return made->device;
  }
  std::string name;
  if (!nb::try_cast(given, name)) {
    throw InputError("device: give None, 'cpu', a GPU such as 'cuda:0', or a Device");
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
    const nb::object kept = nb::find(*session);  // close() releases the GIL: keep the object alive
    session->close();
  }
  while (PythonSession::ending() > 0) {
    const WithoutGil without_gil;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

namespace {

constexpr const char* kTensorSpec = R"doc(Name, shape and dtype of one tensor of a bucket.

Example:
    >>> import sparsesync
    >>> sparsesync.TensorSpec("embedding", rows=1000, width=64)
    TensorSpec('embedding', 1000, 64, 'f32'))doc";

constexpr const char* kTensorSpecInit = R"doc(Describes a tensor of shape `[rows, width]`.

Args:
    name: Name of the tensor, unique within a bucket.
    rows: Number of rows.
    width: Row width in elements.
    dtype: `'f32'`, `'f64'`, `'f16'`, `'bf16'` (NumPy arrays: uint16), `'i32'` or `'i64'`.

Raises:
    InputError: The dtype is unknown.)doc";

void bind_tensor_spec(nb::module_& module) {
  nb::class_<TensorSpec>(module, "TensorSpec", kTensorSpec)
      .def(
          "__init__",
          [](TensorSpec* self, std::string name, Index rows, Index width,
             const std::string& dtype) {
            new (self) TensorSpec{std::move(name), rows, width, dtype_named(dtype)};
          },
          nb::arg("name"), nb::arg("rows"), nb::arg("width"), nb::arg("dtype") = "f32",
          kTensorSpecInit)
      .def_prop_ro(
          "name", [](const TensorSpec& self) { return self.name; },
          "Name of the tensor, unique within a bucket.")
      .def_prop_ro(
          "rows", [](const TensorSpec& self) { return self.rows; }, "Number of rows.")
      .def_prop_ro(
          "width", [](const TensorSpec& self) { return self.width; }, "Row width in elements.")
      .def_prop_ro(
          "dtype", [](const TensorSpec& self) { return std::string(name_of(self.dtype)); },
          "Element type: 'f32', 'f64', 'f16', 'bf16', 'i32' or 'i64'.")
      .def("__repr__", [](const TensorSpec& self) {
        return fmt::format("TensorSpec('{}', {}, {}, '{}')", self.name, self.rows, self.width,
                           name_of(self.dtype));
      });
}

constexpr const char* kTicket = R"doc(Identifies a submitted phase, for `Session.wait()`.

`Session.announce()`, `Session.reduce()`, `Session.gather()` and `Sparsifier.reduce()` return
tickets.

Example:
    >>> import sparsesync
    >>> spec = sparsesync.TensorSpec("embedding", rows=100, width=2)
    >>> with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
    ...     bucket = session.register_bucket("bucket", [spec], scheme="balanced")
    ...     ticket = session.reduce(bucket, [None])
    ...     session.wait(ticket)
    ...     session.wait(session.gather(bucket)))doc";

void bind_ticket(nb::module_& module) {
  static_cast<void>(nb::class_<PythonTicket>(module, "Ticket", kTicket));
}

using SessionClass = nb::class_<PythonSession>;

constexpr const char* kSessionInit =
    R"doc(Opens a session over a transport, which the session then owns.

Args:
    transport: This worker's end of a network.
    deadline_s: Timeout in seconds of each wait for another worker.
    seed: Seed of the row groups; the same on all workers.
    threads: Number of threads that share the work of the kernels.
    trials: Maximum number of candidates that a bucket with the scheme `'auto'` tries.
    memory_bytes: Budget of the workspace in bytes; None is no limit. Not allowed with a `Device`,
        which has a separate budget.
    device: Device that holds gradients and results: None or `'cpu'`, a GPU such as `'cuda:0'`, or a
        `Device` that no other session uses.
    as_submitted: Whether phases run in the order in which they are submitted, instead of an agreed
        order. Give all workers the same. All of them submit phases in the same order, a step has the
        phases of a single bucket, and other buckets need not take part.

Raises:
    InputError: An argument is out of its range, or another session owns the transport or the
        device.
    DeviceError: The GPU does not exist.)doc";

constexpr const char* kClose = R"doc(Closes the session, after the phase that is running, if any.

Calling it again has no effect. Waits in other threads raise ClosedError.)doc";

void bind_session_life(SessionClass& session) {
  session
      .def(
          "__init__",
          [](PythonSession* self, TransportHandle& transport, double deadline_s, std::uint64_t seed,
             int threads, int trials, std::optional<std::int64_t> memory_bytes, nb::handle device,
             bool as_submitted) {
            new (self) PythonSession(transport, deadline_s, seed, threads, trials, memory_bytes,
                                     device_of(device, memory_bytes), as_submitted);
          },
          nb::arg("transport"), nb::arg("deadline_s") = 60.0, nb::arg("seed") = 1,
          nb::arg("threads") = 1, nb::arg("trials") = 24, nb::arg("memory_bytes") = nb::none(),
          nb::arg("device").none() = nb::none(), nb::arg("as_submitted") = false, kSessionInit,
          nb::sig("def __init__(self, transport: Transport, deadline_s: float = 60.0, seed: int = "
                  "1, threads: int = 1, trials: int = 24, memory_bytes: int | None = None, device: "
                  "str | Device | None = None, as_submitted: bool = False) -> None"))
      .def("close", &PythonSession::close, kClose)
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__", [](PythonSession& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def_prop_ro("closed", &PythonSession::closed, "Whether the session is closed.")
      .def_prop_ro("rank", &PythonSession::rank, "Rank of this worker, from 0.")
      .def_prop_ro("size", &PythonSession::size, "Number of workers (world size).")
      .def_prop_ro("step", &PythonSession::step, "Number of completed steps.");
}

constexpr const char* kRegisterBucket = R"doc(Registers tensors that are synchronized together.

All workers call it, between steps.

Args:
    name: Name of the bucket, for error messages.
    tensors: The bucket's tensors; the same on all workers.
    scheme: `'auto'`, or a name from `schemes()`.
    reduction: `'sum'` or `'mean'`.
    wire: Type in which values are sent: `'f32'`, `'f16'` or `'bf16'`; None sends the tensors'
        dtypes.
    announce: Whether every step begins with `announce()` (index prefetch).
    rounds: Number of exchanges per phase. None starts with one, and uses more if a step does not
        fit some worker's memory.

Returns:
    The bucket's number, for the other calls.

Raises:
    AgreementError: The workers' arguments differ. Raised on all workers.
    InputError: An argument is invalid.
    UnsupportedError: The transport does not support the scheme.
    BudgetError: The workspace does not fit this worker's memory.
    RefusedError: The workspace does not fit another worker's memory.)doc";

constexpr const char* kReleaseBucket =
    R"doc(Removes a bucket from the order and frees its memory, results included.

All workers call it, between steps.

Args:
    bucket: Number of the bucket.)doc";

constexpr const char* kKeepSquares =
    R"doc(Makes each reduce write the sum of squares of this worker's part of the result.

Added over all workers, it is the squared L2 norm of the result, available before the result is
gathered. All workers call it, between steps; it applies from the next step on.

Args:
    bucket: Number of the bucket.
    tensors: Number of leading tensors of the bucket to include. No tensor after them may have the
        same dtype and width as one of them.
    sum: Array that each reduce overwrites: `[1]`, dtype float64, on the session's device.

Raises:
    InputError: The array or the number of tensors is invalid.)doc";

constexpr const char* kHasSquares =
    R"doc(Returns whether the last reduce wrote the sum of `keep_squares()`.

It is False if the scheme has no sums before the gather. The same on all workers.

Args:
    bucket: Number of the bucket. Its last reduce has been waited for.

Raises:
    ContractError: No reduce is complete.)doc";

constexpr const char* kObserved = R"doc(Returns how many rows the last step touched.

Call it while no step of the bucket is under way.

Args:
    bucket: Number of the bucket.

Returns:
    A pair `(touched, united)` per group of tensors with the same dtype and width: rows touched by
    this worker, and by all workers together.)doc";

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
          nb::arg("rounds") = nb::none(), kRegisterBucket)
      .def("release_bucket", &PythonSession::release_bucket, nb::arg("bucket"), kReleaseBucket)
      .def("keep_squares", &PythonSession::keep_squares, nb::arg("bucket"), nb::arg("tensors"),
           nb::arg("sum"), kKeepSquares,
           nb::sig("def keep_squares(self, bucket: int, tensors: int, sum: "
                   "sparsesync.SupportsDLPack) -> None"))
      .def("has_squares", &PythonSession::has_squares, nb::arg("bucket"), kHasSquares)
      .def("observed", &PythonSession::observed, nb::arg("bucket"), kObserved);
}

constexpr const char* kReduce =
    R"doc(Starts a step of a bucket: submits its reduce phase (reduce-scatter).

The arrays are not copied. They must not change until the phase is over.

Args:
    bucket: Number of the bucket.
    gradients: One entry per tensor: None if no row is touched; a dense array, `[rows, width]` or
        flat, of the tensor's dtype; or a pair `(indices, values)`. `indices`: `[nnz]`, dtype int64,
        in any order; values of repeated rows are summed. `values`: `[nnz, width]`, of the tensor's
        dtype.
    streams: On a GPU, the streams that write the gradients, each a `cudaStream_t` as a number. The
        phase waits for the work that they have been given so far.

Returns:
    A ticket for `wait()`.

Raises:
    InputError: An array has the wrong shape, dtype or device.)doc";

constexpr const char* kGather =
    R"doc(Submits the gather phase (all-gather), the second half of a step.

Args:
    bucket: Number of the bucket.

Returns:
    A ticket for `wait()`.)doc";

constexpr const char* kAnnounce =
    R"doc(Starts to exchange the row indices of the coming step (index prefetch).

Call it once per step, before the reduce of a bucket that was registered with `announce=True`. The
arrays are not copied. They must not change until the phase is over.

Args:
    bucket: Number of the bucket.
    rows: One entry per tensor: None, or the rows that the step may touch: `[n]`, dtype int64, in
        any order, with repeats allowed.
    streams: As for `reduce()`.

Returns:
    A ticket for `wait()`.

Raises:
    InputError: The bucket does not announce, or an array is invalid.)doc";

constexpr const char* kWait = R"doc(Waits until a phase is over.

With `memory_bytes`, wait for the gather before the reduce. A step that is too large is then
repeated in more rounds, as long as no worker has waited for its reduce.

Args:
    ticket: The ticket of the phase.

Raises:
    InputError: This worker's gradient is invalid.
    BudgetError: The step does not fit this worker's memory.
    RefusedError: Another worker refused the step.
    PeerLostError: A worker failed.
    DeadlineError: A worker did not answer within `deadline_s` seconds.
    AbortedError: A worker aborted the session.
    OrderError: The workers submitted phases in different orders.
    ProtocolError: A message of another worker is invalid.
    ClosedError: The session was closed meanwhile.)doc";

void bind_phases(SessionClass& session) {
  session
      .def("reduce", &PythonSession::reduce, nb::arg("bucket"), nb::arg("gradients"),
           nb::arg("streams") = nb::make_tuple(0), kReduce,
           nb::sig("def reduce(self, bucket: int, gradients: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack | "
                   "tuple[sparsesync.SupportsDLPack, sparsesync.SupportsDLPack] | None], streams: "
                   "collections.abc.Sequence[int] = (0,)) -> Ticket"))
      .def("gather", &PythonSession::gather, nb::arg("bucket"), kGather)
      .def("announce", &PythonSession::announce, nb::arg("bucket"), nb::arg("rows"),
           nb::arg("streams") = nb::make_tuple(0), kAnnounce,
           nb::sig("def announce(self, bucket: int, rows: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack | None], streams: "
                   "collections.abc.Sequence[int] = (0,)) -> Ticket"))
      .def("wait", &PythonSession::wait, nb::arg("ticket"), kWait);
}

constexpr const char* kResultRows =
    R"doc(Returns the number of rows of a result; None if the result is dense.

Results are available from `wait()` for the gather until the bucket's next step begins.

Args:
    bucket: Number of the bucket.
    tensor: Index of the tensor in the bucket.

Raises:
    ContractError: No result is available.)doc";

constexpr const char* kResult = R"doc(Returns a copy of a result in host memory.

Results are available from `wait()` for the gather until the bucket's next step begins.

Args:
    bucket: Number of the bucket.
    tensor: Index of the tensor in the bucket.

Returns:
    A dense result as an array `[rows, width]`; a row-sparse result as a pair `(indices, values)`.
    `indices`: `[n]`, dtype int64, increasing. `values`: `[n, width]`. The dtype is the tensor's;
    bf16 is returned as uint16.

Raises:
    ContractError: No result is available.)doc";

constexpr const char* kCopyResult =
    R"doc(Copies a row-sparse result into arrays on the session's device.

Results are available from `wait()` for the gather until the bucket's next step begins.

Args:
    bucket: Number of the bucket.
    tensor: Index of the tensor in the bucket.
    indices: Array to overwrite: `[n]`, dtype int64, where n is `result_rows()`.
    values: Array to overwrite: `[n, width]`, of the tensor's dtype.
    stream: On a GPU, the stream that copies, after the work that it has been given so far. The host
        does not wait.

Raises:
    InputError: The result is dense, or an array does not fit.
    ContractError: No result is available.)doc";

constexpr const char* kWriteDense =
    R"doc(Writes a result into a dense array on the session's device.

Rows that are not in the result become zero. Results are available from `wait()` for the gather
until the bucket's next step begins.

Args:
    bucket: Number of the bucket.
    tensor: Index of the tensor in the bucket.
    out: Array to overwrite: `[rows, width]` or flat, of the tensor's dtype.
    stream: On a GPU, the stream that writes, after the work that it has been given so far. The host
        does not wait.

Raises:
    InputError: The array does not fit.
    ContractError: No result is available.)doc";

void bind_results(SessionClass& session) {
  session
      .def("result_rows", &PythonSession::result_rows, nb::arg("bucket"), nb::arg("tensor"),
           kResultRows)
      .def("result", &PythonSession::result, nb::arg("bucket"), nb::arg("tensor"), kResult,
           nb::sig("def result(self, bucket: int, tensor: int) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[typing.Any]] | "
                   "numpy.typing.NDArray[typing.Any]"))
      .def("copy_result", &PythonSession::copy_result, nb::arg("bucket"), nb::arg("tensor"),
           nb::arg("indices").none(), nb::arg("values").none(), nb::arg("stream") = 0, kCopyResult,
           nb::sig("def copy_result(self, bucket: int, tensor: int, indices: "
                   "sparsesync.SupportsDLPack, values: sparsesync.SupportsDLPack, stream: int = 0) "
                   "-> None"))
      .def("write_dense", &PythonSession::write_dense, nb::arg("bucket"), nb::arg("tensor"),
           nb::arg("out").none(), nb::arg("stream") = 0, kWriteDense,
           nb::sig("def write_dense(self, bucket: int, tensor: int, out: "
                   "sparsesync.SupportsDLPack, stream: int = 0) -> None"));
}

constexpr const char* kBarrier =
    R"doc(Waits for all workers. All workers call it, between steps.)doc";

constexpr const char* kAgree = R"doc(Verifies that all workers have the same (name, value) pairs.

All workers call it, between steps.

Args:
    subject: Text in front of the difference in the error message.
    statement: The pairs of this worker.

Raises:
    AgreementError: The pairs differ. Raised on all workers, with the first difference.)doc";

constexpr const char* kAllGather =
    R"doc(Gathers bytes from all workers. All workers call it, between steps.

Args:
    own: Bytes of this worker, at most 64 MiB.

Returns:
    The bytes of every worker, by rank.)doc";

constexpr const char* kBroadcast = R"doc(Overwrites an array with the array of one worker.

All workers call it, between steps.

Args:
    array: Array in host memory, of any dtype and shape; the same number of bytes on all workers.
    root: Rank of the worker that sends its array.)doc";

constexpr const char* kSetOrder =
    R"doc(Replaces the order in which phases run; the same on all workers.

All workers call it, between steps.

Args:
    order: Every phase of every bucket once, as `(bucket, phase)`; phase is `'announce'`, `'reduce'`
        or `'gather'`.
    from_step: First step to use the order. Steps of a session are counted from 0.

Raises:
    AgreementError: The workers' orders differ.
    InputError: A phase is missing, repeated or unknown.)doc";

void bind_agreements(SessionClass& session) {
  session.def("barrier", &PythonSession::barrier, kBarrier)
      .def("agree", &PythonSession::agree, nb::arg("subject"), nb::arg("statement"), kAgree)
      .def("all_gather", &PythonSession::all_gather, nb::arg("own"), kAllGather,
           nb::sig("def all_gather(self, own: bytes) -> list[bytes]"))
      .def("broadcast", &PythonSession::broadcast, nb::arg("array").none(), nb::arg("root") = 0,
           kBroadcast,
           nb::sig("def broadcast(self, array: sparsesync.SupportsDLPack, root: int = 0) -> None"))
      .def("set_order", &PythonSession::set_order, nb::arg("order"), nb::arg("from_step"),
           kSetOrder);
}

constexpr const char* kCounters = R"doc(Returns the session's total traffic so far.

Returns:
    `bytes_sent` and `bytes_received`, message headers included, `messages_sent` and
    `messages_received`.)doc";

constexpr const char* kUse = R"doc(Returns the total traffic and time of a bucket so far.

While a step of the bucket is under way, the numbers are those from before the step.

Args:
    bucket: Number of the bucket.

Returns:
    The keys of `counters()`, and `seconds` (time in the background), `index_bytes_sent` (bytes that
    encode row indices), `non_finite` (as `non_finite()`) and `last`: for each phase name, when the
    phase last began and ended, in seconds of `time.monotonic()`.)doc";

constexpr const char* kNonFinite =
    R"doc(Returns how many values of the last sums are infinite or NaN.

While a step of the bucket is under way, the number is that of the step before.

Args:
    bucket: Number of the bucket.)doc";

constexpr const char* kChoice =
    R"doc(Returns the scheme that a bucket uses, and the predictions behind it.

While a step of the bucket is under way, the answer is from before the step.

Args:
    bucket: Number of the bucket.

Returns:
    `scheme` (the current one), `settled` (whether no other scheme will be tried) and `expected`:
    the predictions of `'auto'`, best first, each with `scheme`, `seconds`, `bytes_busiest` and
    `memory_bytes`.)doc";

void bind_session_facts(SessionClass& session) {
  session
      .def("counters", &PythonSession::counters, kCounters,
           nb::sig("def counters(self) -> dict[str, int]"))
      .def("use", &PythonSession::bucket_use, nb::arg("bucket"), kUse,
           nb::sig("def use(self, bucket: int) -> dict[str, typing.Any]"))
      .def("non_finite", &PythonSession::non_finite, nb::arg("bucket"), kNonFinite)
      .def("choice", &PythonSession::choice, nb::arg("bucket"), kChoice,
           nb::sig("def choice(self, bucket: int) -> dict[str, typing.Any]"))
      .def_prop_ro("device", &PythonSession::device,
                   "Device of the session: 'cpu', or a GPU such as 'cuda:0'.")
      .def_prop_ro("memory_in_use", &PythonSession::memory_in_use,
                   "Current bytes of workspace in the device's memory.")
      .def_prop_ro("memory_high_water", &PythonSession::memory_high_water,
                   "Peak bytes of workspace in the device's memory.")
      .def_prop_ro("pinned_in_use", &PythonSession::pinned_in_use,
                   "Current bytes of pinned host memory for staging; 0 without a GPU.")
      .def_prop_ro("pinned_high_water", &PythonSession::pinned_high_water,
                   "Peak bytes of pinned host memory for staging; 0 without a GPU.")
      .def_prop_ro("allocations", &PythonSession::allocations,
                   "Number of workspace allocations so far.");
}

constexpr const char* kSession =
    R"doc(One worker's session: runs the phases of registered buckets in the background.

A step of a bucket is a reduce phase and a gather phase, after an announce phase if the bucket
announces. Every bucket takes part in every step. Phases run in one order that all workers agree on,
unless `as_submitted` is set. Calls that are marked "between steps" are made by all workers, in the
same order.

A session closes at the end of a `with` block, and before the process ends. Waits release the GIL.
Only one thread at a time may call a session, except that `wait()` and `close()` may be called
meanwhile.

The type of an error shows whether the session is over. After RefusedError, AgreementError,
InputError, UnsupportedError, BudgetError and MemoryError the next step works on all workers. After
any other error caused by a worker the session is over, and every call raises that error.

Example:
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import numpy, sparsesync
    >>> network = sparsesync.LocalNetwork(2)
    >>> spec = sparsesync.TensorSpec("embedding", rows=100, width=2)
    >>> def worker(rank):
    ...     with sparsesync.Session(network.join(rank)) as session:
    ...         bucket = session.register_bucket("bucket", [spec], scheme="balanced")
    ...         indices = numpy.array([7, 3 + rank])
    ...         values = numpy.ones((2, 2), numpy.float32)
    ...         session.reduce(bucket, [(indices, values)])
    ...         session.wait(session.gather(bucket))
    ...         return session.result(bucket, 0)
    >>> with ThreadPoolExecutor(2) as threads:
    ...     (indices, values), _ = threads.map(worker, range(2))
    >>> indices.tolist(), values.tolist()
    ([3, 4, 7], [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]))doc";

void bind_session_class(nb::module_& module) {
  SessionClass session(module, "Session", kSession, nb::is_weak_referenceable());
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
