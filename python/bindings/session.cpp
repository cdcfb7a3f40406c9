// Buckets and sessions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory.h"
#include "engine/session.h"
#include "python/bindings/arrays.h"
#include "python/bindings/bindings.h"
#include "python/bindings/closed.h"
#include "python/bindings/transports.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// How often a wait looks whether a signal came, such as control-C, or the session was closed.
constexpr std::chrono::milliseconds kSignals{100};

std::uint64_t next_session_number() {
  static std::atomic<std::uint64_t> next = 1;
  return next++;
}

/// A Session::Ticket, and of which session it is.
struct PythonTicket {
  Session::Ticket ticket;
  std::uint64_t session = 0;
};

SessionOptions options_of(double deadline_s, std::uint64_t seed, int threads, int trials,
                          std::optional<std::int64_t> memory_bytes) {
  if (threads < 1) throw InputError(fmt::format("{} threads: 1 or more", threads));
  if (trials < 0) throw InputError(fmt::format("{} trials: 0 or more", trials));
  if (memory_bytes && *memory_bytes < 0) {
    throw InputError(fmt::format("a budget of {} bytes: 0 or more", *memory_bytes));
  }
  SessionOptions options{deadline_of(deadline_s), seed, threads};
  options.trials = trials;
  if (memory_bytes) options.workspace = static_cast<double>(*memory_bytes);
  return options;
}

nb::dict dict_of(const TransportCounters& counters) {
  nb::dict dict;
  dict["bytes_sent"] = counters.bytes_sent;
  dict["bytes_received"] = counters.bytes_received;
  dict["messages_sent"] = counters.messages_sent;
  dict["messages_received"] = counters.messages_received;
  return dict;
}

/// Whether an array has the shape of rows × width elements: its rows come first, or its elements
/// stand for themselves.
template <typename AnyArray>
bool has_shape(const AnyArray& array, Index rows, Index width) {
  if (static_cast<Index>(array.size()) != rows * width) return false;
  return width == 1 || array.ndim() == 1 ||
         (array.ndim() > 1 && static_cast<Index>(array.shape(0)) == rows);
}

/// @param rows  of them there are to be
template <typename AnyArray>
void expect_values(const AnyArray& values, const TensorSpec& tensor, Index rows,
                   const std::string& what) {
  const DType dtype = dtype_of(values.dtype(), what);
  if (dtype != tensor.dtype) {
    throw InputError(fmt::format("{}: values of {} where {} was registered", what, name_of(dtype),
                                 name_of(tensor.dtype)));
  }
  if (!has_shape(values, rows, tensor.width)) {
    throw InputError(fmt::format("{}: an array of {} elements that is not of {} rows of {}", what,
                                 values.size(), rows, tensor.width));
  }
}

std::string named(const TensorSpec& tensor) {
  return fmt::format("tensor '{}'", tensor.name);
}

/// A Session with what Python has to keep for it: its network, and the arrays that a phase reads.
/// All of it is guarded by the GIL, but for `calls_`.
class PythonSession {
 public:
  PythonSession(TransportHandle& transport, double deadline_s, std::uint64_t seed, int threads,
                int trials, std::optional<std::int64_t> memory_bytes)
      : number_(next_session_number()), network_(transport.network()), memory_(memory_bytes) {
    const SessionOptions options = options_of(deadline_s, seed, threads, trials, memory_bytes);
    session_ = of_this_process(std::make_unique<Session>(transport.take(), memory_, options));
    open().insert(this);
  }

  ~PythonSession() {
    open().erase(this);
    close();
  }
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  void close() {
    closing_ = true;
    if (!process_.forked()) {
      const nb::gil_scoped_release without_gil;
      std::unique_lock lock(calls_mutex_);
      calls_ended_.wait(lock, [&] { return calls_ == 0; });
      session_.reset();
      network_.reset();
    }
    held_.clear();
  }

  bool closed() const { return closing_; }

  int rank() { return use().rank().value; }
  int size() { return use().size(); }

  std::size_t register_bucket(const BucketSpec& spec) {
    ++registering_;
    std::size_t bucket = 0;
    try {
      under_way([&](Session& session) { bucket = session.register_bucket(spec).value; });
    } catch (...) {
      --registering_;
      throw;
    }
    --registering_;
    buckets_.resize(std::max(buckets_.size(), bucket + 1));
    buckets_[bucket] = Bucket{spec.name, spec.tensors, spec.announce};
    return bucket;
  }

  /// @param gradients  of each tensor: None, a dense array, or (indices, values)
  PythonTicket reduce(Index bucket, const nb::sequence& gradients) {
    const std::vector<TensorSpec>& tensors = one_for_each_tensor(bucket, gradients);
    std::vector<Gradient> views;
    Arrays held;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      views.push_back(gradient_of(tensors[i], nb::object(gradients[i]), held));
    }
    return submit(bucket, Phase::reduce, views, std::move(held));
  }

  PythonTicket gather(Index bucket) { return submit(bucket, Phase::gather, {}, {}); }

  /// @param rows  of each tensor: None, or indices
  PythonTicket announce(Index bucket, const nb::sequence& rows) {
    const std::vector<TensorSpec>& tensors = one_for_each_tensor(bucket, rows);
    std::vector<Gradient> views;
    Arrays held;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const nb::object given = rows[i];
      if (given.is_none()) {
        views.push_back(Gradient::rows({}));
        continue;
      }
      held.indices.push_back(indices_of(given, named(tensors[i])));
      views.push_back(Gradient::rows(span_of(held.indices.back())));
    }
    return submit(bucket, Phase::announce, views, std::move(held));
  }

  void wait(const PythonTicket& ticket) {
    if (ticket.session != number_) throw InputError("a ticket of another session");
    bool over = false;
    while (!over) {
      try {
        under_way([&](Session& session) { over = session.wait_for(ticket.ticket, kSignals); });
      } catch (...) {
        forget_what_is_over();
        throw;
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    forget_what_is_over();
  }

  /// Rows of the result; nothing where it is dense.
  std::optional<Index> result_rows(Index bucket, Index tensor) {
    const TensorResult result = result_of(bucket, tensor);
    if (result.layout == Gradient::Layout::dense) return std::nullopt;
    return std::ssize(result.indices);
  }

  nb::object result(Index bucket, Index tensor) {
    const UnderWay call(*this);
    const TensorResult result = result_of(bucket, tensor);
    if (result.layout == Gradient::Layout::dense) return new_values(result.values);
    return nb::make_tuple(new_indices(result.indices), new_values(result.values));
  }

  void copy_result(Index bucket, Index tensor, nb::handle indices_given, nb::handle values_given) {
    const TensorSpec& spec = tensor_at(bucket, tensor);
    const Array indices = writable_of(indices_given, named(spec) + ", indices");
    const Array values = writable_of(values_given, named(spec) + ", values");
    const UnderWay call(*this);
    const TensorResult result = result_of(bucket, tensor);
    if (result.layout == Gradient::Layout::dense) {
      throw InputError(fmt::format("{}: its result is dense: use write_dense()", named(spec)));
    }
    const Index rows = std::ssize(result.indices);
    if (indices.dtype() != nb::dtype<Index>() || indices.ndim() != 1 ||
        static_cast<Index>(indices.shape(0)) != rows) {
      throw InputError(
          fmt::format("{}, indices: give int64 [{}], as result_rows() says", named(spec), rows));
    }
    expect_values(values, spec, rows, named(spec));
    const nb::gil_scoped_release without_gil;
    copy(std::as_bytes(result.indices), indices);
    copy(result.values.as_bytes(), values);
  }

  void write_dense(Index bucket, Index tensor, nb::handle given) {
    const TensorSpec& spec = tensor_at(bucket, tensor);
    const Array out = writable_of(given, named(spec));
    expect_values(out, spec, spec.rows, named(spec));
    const Matrix into{static_cast<std::byte*>(out.data()), spec.dtype, spec.rows, spec.width};
    const UnderWay call(*this);
    const TensorResult result = result_of(bucket, tensor);
    const nb::gil_scoped_release without_gil;
    to_dense(Context(memory_), result, into);
  }

  void barrier() {
    under_way([](Session& session) { session.barrier(); });
  }

  void agree(const std::string& subject,
             const std::vector<std::pair<std::string, std::string>>& statement) {
    under_way([&](Session& session) { session.agree(subject, statement); });
  }

  nb::list all_gather(const nb::bytes& own) {
    std::vector<std::string> all;
    const std::string mine(own.c_str(), own.size());
    under_way([&](Session& session) { all = session.all_gather(mine); });
    nb::list given;
    for (const std::string& each : all) given.append(nb::bytes(each.data(), each.size()));
    return given;
  }

  void broadcast(nb::handle given, int root) {
    if (root < 0 || root >= size()) {
      throw InputError(fmt::format("there is no worker {} among {}", root, size()));
    }
    const Array array = writable_of(given, "array");
    const std::span<std::byte> bytes{static_cast<std::byte*>(array.data()), array.nbytes()};
    under_way([&](Session& session) { session.broadcast(bytes, Rank{root}); });
  }

  /// @param order  pairs of bucket and phase: "announce", "reduce" or "gather"
  void set_order(const std::vector<std::pair<Index, std::string>>& order, std::int64_t from_step) {
    std::vector<OrderEntry> entries;
    for (const auto& [bucket, name] : order) {
      static_cast<void>(at(bucket));
      const std::optional<Phase> phase = name == "announce" ? std::optional(Phase::announce)
                                         : name == "reduce" ? std::optional(Phase::reduce)
                                         : name == "gather" ? std::optional(Phase::gather)
                                                            : std::nullopt;
      if (!phase) {
        throw InputError(fmt::format("there is no phase '{}': announce, reduce or gather", name));
      }
      entries.push_back({id_of(bucket), *phase});
    }
    under_way([&](Session& session) { session.set_order(entries, from_step); });
  }

  std::int64_t step() { return use().step(); }

  nb::dict counters() { return dict_of(use().counters()); }

  nb::dict bucket_use(Index bucket) {
    const Seen& seen = look_at(bucket);
    nb::dict dict = dict_of(seen.use.crossed);
    dict["seconds"] = seen.use.seconds;
    dict["index_bytes_sent"] = seen.index_bytes_sent;
    dict["non_finite"] = seen.non_finite;
    return dict;
  }

  /// Which scheme is at work, whether it is settled, and what `auto` expects of each.
  nb::dict choice(Index bucket) {
    const Seen& seen = look_at(bucket);
    nb::dict dict;
    dict["scheme"] = seen.scheme;
    dict["settled"] = seen.settled;
    nb::list expected;
    for (const Prediction& each : seen.expected) {
      nb::dict of;
      of["scheme"] = each.way.scheme;
      of["seconds"] = each.seconds;
      of["bytes_busiest"] = each.bytes_busiest;
      of["memory_bytes"] = each.memory_bytes;
      expected.append(of);
    }
    dict["expected"] = expected;
    return dict;
  }

  std::int64_t non_finite(Index bucket) { return look_at(bucket).non_finite; }

  std::int64_t memory_in_use() const { return memory_.in_use(); }
  std::int64_t allocations() const { return memory_.allocations(); }

  /// Those that were not destroyed yet.
  static std::set<PythonSession*>& open() {
    static std::set<PythonSession*> sessions;
    return sessions;
  }

 private:
  /// What a phase reads until it is over.
  struct Arrays {
    std::vector<ConstIndices> indices;
    std::vector<ConstArray> values;
  };
  struct Held {
    Session::Ticket ticket;
    Arrays arrays;
  };

  /// What a bucket was at when none of its phases ran.
  struct Seen {
    BucketUse use;
    std::int64_t index_bytes_sent = 0;
    std::int64_t non_finite = 0;
    std::string scheme;
    bool settled = false;
    std::vector<Prediction> expected;
  };

  struct Bucket {
    std::string name;
    std::vector<TensorSpec> tensors;
    bool announces = false;
    // How often each phase was submitted, and last with which ticket.
    std::array<std::int64_t, kPhases> submitted{};
    std::array<std::optional<Session::Ticket>, kPhases> last{};
    Seen seen{};
  };

  static BucketId id_of(Index bucket) { return {static_cast<std::size_t>(bucket)}; }
  static std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

  void expect_open() const {
    process_.expect("Session");
    if (closing_) throw_closed("Session");
  }

  Session& use() {
    expect_open();
    return *session_;
  }

  /// A call that gives up the GIL while it needs the session: who closes it waits. Made and
  /// destroyed with the GIL.
  class UnderWay {
   public:
    explicit UnderWay(PythonSession& of) : of_(of) {
      of_.expect_open();
      const std::lock_guard lock(of_.calls_mutex_);
      ++of_.calls_;
    }
    ~UnderWay() {
      const std::lock_guard lock(of_.calls_mutex_);
      --of_.calls_;
      of_.calls_ended_.notify_all();
    }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    PythonSession& of_;
  };

  /// Does what takes long, without the GIL.
  template <typename Work>
  void under_way(const Work& work) {
    const UnderWay call(*this);
    const nb::gil_scoped_release without_gil;
    work(*session_);
  }

  Bucket& at(Index bucket) {
    expect_open();
    if (bucket < 0 || bucket >= std::ssize(buckets_)) {
      throw InputError(fmt::format("there is no bucket {}", bucket));
    }
    return buckets_[static_cast<std::size_t>(bucket)];
  }

  const std::vector<TensorSpec>& one_for_each_tensor(Index bucket, const nb::sequence& given) {
    const Bucket& of = at(bucket);
    if (nb::len(given) != of.tensors.size()) {
      throw InputError(
          fmt::format("bucket '{}': {} arrays for {} tensors: give one for each, or None", of.name,
                      nb::len(given), of.tensors.size()));
    }
    return of.tensors;
  }

  const TensorSpec& tensor_at(Index number, Index tensor) {
    const Bucket& bucket = at(number);
    if (tensor < 0 || tensor >= std::ssize(bucket.tensors)) {
      throw InputError(fmt::format("there is no tensor {} in bucket '{}'", tensor, bucket.name));
    }
    return bucket.tensors[static_cast<std::size_t>(tensor)];
  }

  TensorResult result_of(Index number, Index tensor) {
    static_cast<void>(tensor_at(number, tensor));
    const Bucket& bucket = at(number);
    const std::int64_t begun =
        std::max(bucket.submitted[index(Phase::announce)], bucket.submitted[index(Phase::reduce)]);
    const std::optional<Session::Ticket>& gather = bucket.last[index(Phase::gather)];
    if (!gather || begun != bucket.submitted[index(Phase::gather)] ||
        !use().wait_for(*gather, std::chrono::milliseconds(0))) {
      throw ContractError(
          fmt::format("bucket '{}' has no result: it is there from wait() for a step's gather "
                      "until the next step is begun",
                      bucket.name));
    }
    expect_none_registers();
    return use().result(id_of(number), static_cast<std::size_t>(tensor));
  }

  /// Buckets stand elsewhere afterwards.
  void expect_none_registers() const {
    if (registering_ > 0)
      throw ContractError("another thread registers a bucket: wait until it has");
  }

  static bool is_over(Session& session, const Session::Ticket& ticket) {
    try {
      return session.wait_for(ticket, std::chrono::milliseconds(0));
    } catch (const std::exception&) {  // told to who waits
      return true;
    }
  }

  /// What can be told of a bucket now: where a phase runs, of before its step.
  const Seen& look_at(Index number) {
    Bucket& bucket = at(number);
    expect_none_registers();
    Session& session = use();
    for (const std::optional<Session::Ticket>& ticket : bucket.last) {
      if (ticket && !is_over(session, *ticket)) return bucket.seen;
    }
    const BucketId id = id_of(number);
    bucket.seen = {session.use(id),        session.index_bytes_sent(id),
                   session.non_finite(id), session.chosen(id).scheme,
                   session.settled(id),    session.predictions(id)};
    return bucket.seen;
  }

  static Gradient gradient_of(const TensorSpec& tensor, nb::handle given, Arrays& held) {
    if (given.is_none()) return Gradient::empty();
    const std::string what = named(tensor);
    if (!nb::isinstance<nb::tuple>(given)) {
      held.values.push_back(array_of(given, what));
      expect_values(held.values.back(), tensor, tensor.rows, what);
      return Gradient::dense(static_cast<const std::byte*>(held.values.back().data()));
    }
    const auto pair = nb::borrow<nb::tuple>(given);
    if (nb::len(pair) != 2) {
      throw InputError(fmt::format("{}: a row-sparse gradient is (indices, values)", what));
    }
    held.indices.push_back(indices_of(pair[0], what + ", indices"));
    held.values.push_back(array_of(pair[1], what + ", values"));
    const ConstIndices& indices = held.indices.back();
    const ConstArray& values = held.values.back();
    expect_values(values, tensor, static_cast<Index>(indices.size()), what);
    return Gradient::row_sparse(span_of(indices), static_cast<const std::byte*>(values.data()));
  }

  PythonTicket submit(Index number, Phase phase, const std::vector<Gradient>& gradients,
                      Arrays arrays) {
    Bucket& bucket = at(number);
    forget_what_is_over();
    if (phase == (bucket.announces ? Phase::announce : Phase::reduce) && registering_ == 0) {
      static_cast<void>(look_at(number));
    }
    const Session::Ticket ticket = use().submit(id_of(number), phase, gradients);
    ++bucket.submitted[index(phase)];
    bucket.last[index(phase)] = ticket;
    if (!arrays.indices.empty() || !arrays.values.empty())
      held_.push_back({ticket, std::move(arrays)});
    return {ticket, number_};
  }

  void forget_what_is_over() {
    if (closing_) return;    // who closes does it, when nothing runs
    std::vector<Held> over;  // arrays run code of Python as they go: not while this changes
    for (std::size_t i = 0; i < held_.size();) {
      if (is_over(use(), held_[i].ticket)) {
        over.push_back(std::move(held_[i]));
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  static void copy(std::span<const std::byte> from, const Array& to) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }

  const std::uint64_t number_;
  const Process process_;
  std::shared_ptr<void> network_;
  HostMemory memory_;
  std::deque<Bucket> buckets_;
  std::vector<Held> held_;
  int registering_ = 0;   // calls of register_bucket()
  bool closing_ = false;  // nobody calls it any more

  std::mutex calls_mutex_;
  std::condition_variable calls_ended_;
  int calls_ = 0;  // that are under way without the GIL

  OfThisProcess<Session> session_;  // last: it reads what stands above
};

BucketSpec bucket_spec(const std::string& name, const std::vector<TensorSpec>& tensors,
                       const std::string& scheme, const std::string& reduction,
                       const std::optional<std::string>& wire, bool announce, int rounds) {
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

}  // namespace

void close_sessions() {
  std::set<PythonSession*>& sessions = PythonSession::open();
  while (!sessions.empty()) {
    PythonSession* const session = *sessions.begin();
    sessions.erase(session);
    const nb::object kept = nb::find(*session);  // closing lets others run
    session->close();
  }
}

void bind_session(nb::module_& module) {
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

  static_cast<void>(
      nb::class_<PythonTicket>(module, "Ticket", "Names a submitted phase, for Session.wait()."));

  nb::class_<PythonSession>(
      module, "Session",
      "One worker's session: registered buckets, whose phases run in the background in one order "
      "that all workers agree on. All workers make the same calls of what is said to be between "
      "steps. Waits release the GIL. Closed at the end of a `with` block, and before the process "
      "ends. Threads call it one after another; wait() and close() may come in between.\n\n"
      "A step of a bucket is a reduce and a gather, after an announce where the bucket announces; "
      "every bucket takes part in every step. After RefusedError the next step works; after other "
      "errors that workers cause the session is over, and every call raises that error.",
      nb::is_weak_referenceable())
      .def(nb::init<TransportHandle&, double, std::uint64_t, int, int,
                    std::optional<std::int64_t>>(),
           nb::arg("transport"), nb::arg("deadline_s") = 60.0, nb::arg("seed") = 1,
           nb::arg("threads") = 1, nb::arg("trials") = 24, nb::arg("memory_bytes") = nb::none(),
           "Takes the transport. deadline_s: seconds of each wait for another worker. seed: of the "
           "row "
           "groups, the same on all workers. threads: that the kernels are cut among. trials: ways "
           "that a bucket of 'auto' tries at most. memory_bytes: a budget for the workspace, or "
           "none.")
      .def("close", &PythonSession::close,
           "Leaves, after the phase that runs, if one does; safe to call again. Who waits in "
           "another "
           "thread gets ClosedError.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__", [](PythonSession& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def_prop_ro("closed", &PythonSession::closed, "Whether it was closed.")
      .def_prop_ro("rank", &PythonSession::rank, "Which worker this is, from 0.")
      .def_prop_ro("size", &PythonSession::size, "How many workers there are.")
      .def_prop_ro("step", &PythonSession::step, "Steps that are complete.")
      .def(
          "register_bucket",
          [](PythonSession& self, const std::string& name, const std::vector<TensorSpec>& tensors,
             const std::string& scheme, const std::string& reduction,
             const std::optional<std::string>& wire, bool announce, int rounds) {
            return self.register_bucket(
                bucket_spec(name, tensors, scheme, reduction, wire, announce, rounds));
          },
          nb::arg("name"), nb::arg("tensors"), nb::arg("scheme") = "auto",
          nb::arg("reduction") = "sum", nb::arg("wire") = nb::none(), nb::arg("announce") = false,
          nb::arg("rounds") = 1,
          "Between steps. Tensors that cross together. scheme: 'auto', or one of schemes(). "
          "reduction: "
          "'sum' or 'mean'. wire: the type that values cross as, 'f32', 'f16' or 'bf16'; their own "
          "if "
          "not given. announce: whether each step begins with announce(). rounds: so many "
          "exchanges a "
          "phase. Returns the bucket's number. Raises AgreementError, on all workers, where they "
          "differ; UnsupportedError for a scheme that the transport is not made for; BudgetError, "
          "and "
          "RefusedError on the others, where the workspace does not fit.")
      .def("reduce", &PythonSession::reduce, nb::arg("bucket"), nb::arg("gradients"),
           "Starts a step of a bucket. gradients: of each tensor None (nothing touched), a dense "
           "array [rows, width] (or flat), or (indices, values): int64 [nnz], any order, repeats "
           "are "
           "summed, and [nnz, width]. They are not copied: they must not change until the phase is "
           "over.",
           nb::sig("def reduce(self, bucket: int, gradients: collections.abc.Sequence["
                   "sparsesync.SupportsDLPack | tuple[sparsesync.SupportsDLPack, "
                   "sparsesync.SupportsDLPack] "
                   "| None]) -> Ticket"))
      .def("gather", &PythonSession::gather, nb::arg("bucket"),
           "Starts the second half of the step.")
      .def("announce", &PythonSession::announce, nb::arg("bucket"), nb::arg("rows"),
           "Tells which rows the coming step may touch: of each tensor None or int64 [n], any "
           "order, "
           "repeats allowed. Not copied: they must not change until the phase is over.",
           nb::sig("def announce(self, bucket: int, rows: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack | None]) -> Ticket"))
      .def("wait", &PythonSession::wait, nb::arg("ticket"),
           "Waits until a phase is over. Raises what it ended with: InputError, BudgetError here "
           "and "
           "RefusedError on the others where a gradient cannot be taken; PeerLostError, "
           "DeadlineError, "
           "AbortedError, OrderError, ProtocolError.")
      .def("result_rows", &PythonSession::result_rows, nb::arg("bucket"), nb::arg("tensor"),
           "Rows of the result; None where it is dense. Of this call and the three that follow: "
           "after "
           "wait() for the step's gather, until the bucket's next step begins.")
      .def("result", &PythonSession::result, nb::arg("bucket"), nb::arg("tensor"),
           "A copy of the result: (int64 [n], [n, width]), rows increasing, or [rows, width]; bf16 "
           "stands as uint16.",
           nb::sig("def result(self, bucket: int, tensor: int) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[typing.Any]] | numpy.typing.NDArray[typing.Any]"))
      .def(
          "copy_result", &PythonSession::copy_result, nb::arg("bucket"), nb::arg("tensor"),
          nb::arg("indices").none(), nb::arg("values").none(),
          "Copies a row-sparse result to int64 [n] and [n, width], where n is result_rows().",
          nb::sig(
              "def copy_result(self, bucket: int, tensor: int, indices: sparsesync.SupportsDLPack, "
              "values: sparsesync.SupportsDLPack) -> None"))
      .def("write_dense", &PythonSession::write_dense, nb::arg("bucket"), nb::arg("tensor"),
           nb::arg("out").none(), "Writes the result as a dense tensor: [rows, width], or flat.",
           nb::sig("def write_dense(self, bucket: int, tensor: int, out: "
                   "sparsesync.SupportsDLPack) -> None"))
      .def("barrier", &PythonSession::barrier, "Between steps. Waits for all workers.")
      .def("agree", &PythonSession::agree, nb::arg("subject"), nb::arg("statement"),
           "Between steps. Compares (name, value) pairs of all workers; raises AgreementError on "
           "all, "
           "naming the first difference of `subject`.")
      .def("all_gather", &PythonSession::all_gather, nb::arg("own"),
           "Between steps. What each worker gave, by rank; 64 MiB at most.",
           nb::sig("def all_gather(self, own: bytes) -> list[bytes]"))
      .def(
          "broadcast", &PythonSession::broadcast, nb::arg("array").none(), nb::arg("root") = 0,
          "Between steps. Overwrites the array, of any type and shape, with that of worker `root`, "
          "which has as many bytes.",
          nb::sig("def broadcast(self, array: sparsesync.SupportsDLPack, root: int = 0) -> None"))
      .def("set_order", &PythonSession::set_order, nb::arg("order"), nb::arg("from_step"),
           "Between steps. Replaces the order in which phases are posted, the same on all workers: "
           "every phase of every bucket once, as (bucket, 'announce', 'reduce' or 'gather'). "
           "from_step: "
           "of this session, counted from 0.")
      .def("counters", &PythonSession::counters,
           "bytes_sent, bytes_received (headers of messages included), messages_sent, "
           "messages_received: of all that the session did so far.",
           nb::sig("def counters(self) -> dict[str, int]"))
      .def(
          "use", &PythonSession::bucket_use, nb::arg("bucket"),
          "What a bucket has taken so far; while a step is under way, before it: as counters(), "
          "and "
          "seconds in the background, index_bytes_sent (those that said which rows there are), and "
          "non_finite().",
          nb::sig("def use(self, bucket: int) -> dict[str, typing.Any]"))
      .def("non_finite", &PythonSession::non_finite, nb::arg("bucket"),
           "Values of the last sums that are infinite or not a number; while a step is under way, "
           "of "
           "those before it.")
      .def(
          "choice", &PythonSession::choice, nb::arg("bucket"),
          "scheme (at work), settled (whether no other is tried), expected: what 'auto' expects of "
          "each scheme, the best first (seconds, bytes_busiest, memory_bytes). While a step is "
          "under "
          "way, of before it.",
          nb::sig("def choice(self, bucket: int) -> dict[str, typing.Any]"))
      .def_prop_ro("memory_in_use", &PythonSession::memory_in_use, "Bytes of workspace.")
      .def_prop_ro("allocations", &PythonSession::allocations,
                   "How often workspace was asked for, so far.");
}

}  // namespace sparsesync::python
