#include "python/bindings/python_session.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <utility>

#include "engine/session/registered_bucket.h"
#include "engine/support/log.h"
#include "kernels/base/dtype.h"
#include "kernels/base/threads.h"
#include "kernels/rows/rows.h"
#include "python/bindings/gil.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

std::uint64_t next_session_number() {
  static std::atomic<std::uint64_t> next = 1;
  return next++;
}

SessionOptions options_of(double deadline_s, std::uint64_t seed, int threads, int trials,
                          std::optional<std::int64_t> memory_bytes, bool as_submitted) {
  if (threads < 1) throw InputError(fmt::format("{} threads: give 1 or more", threads));
  if (trials < 0) throw InputError(fmt::format("{} trials: give 0 or more", trials));
  if (memory_bytes && *memory_bytes < 0) {
    throw InputError(fmt::format("a budget of {} bytes: give 0 or more", *memory_bytes));
  }
  SessionOptions options{deadline_of(deadline_s), seed, threads};
  options.trials = trials;
  options.as_submitted = as_submitted;
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

/// Returns whether an array has rows × width elements and a matching shape: its first dimension is
/// the rows, or it is flat.
template <typename AnyArray>
bool has_shape(const AnyArray& array, Index rows, Index width) {
  if (static_cast<Index>(array.size()) != rows * width) return false;
  return width == 1 || array.ndim() == 1 ||
         (array.ndim() > 1 && static_cast<Index>(array.shape(0)) == rows);
}

/// Verifies dtype and shape of values.
/// @param rows  number of rows to expect
/// @throws InputError if they do not match
template <typename AnyArray>
void expect_values(const AnyArray& values, const TensorSpec& tensor, Index rows,
                   const std::string& what) {
  const DType dtype = dtype_of(values.dtype(), what);
  if (dtype != tensor.dtype) {
    throw InputError(fmt::format("{}: values of {}, but {} was registered", what, name_of(dtype),
                                 name_of(tensor.dtype)));
  }
  if (!has_shape(values, rows, tensor.width)) {
    throw InputError(fmt::format("{}: an array of {} elements, not of {} rows of {}", what,
                                 values.size(), rows, tensor.width));
  }
}

std::string named(const TensorSpec& tensor) {
  return fmt::format("tensor '{}'", tensor.name);
}

BucketId id_of(Index bucket) {
  return {static_cast<std::size_t>(bucket)};
}
/// Converts to the clock of Python's time.monotonic(), in seconds.
double seconds_of(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}
std::size_t index(Phase phase) {
  return static_cast<std::size_t>(phase);
}

bool is_over(Session& session, const Session::Ticket& ticket) {
  try {
    return session.wait_for(ticket, std::chrono::milliseconds(0));
  } catch (const std::exception&) {  // wait() reports it
    return true;
  }
}

/// The threads that are ending a session.
struct Endings {
  Process process;
  int threads = 0;
};

/// Guarded by the GIL.
Endings& endings() {
  static Endings all;
  return all;
}

std::byte* bytes_of(const Array& array) {
  return static_cast<std::byte*>(array.data());
}

}  // namespace

PythonSession::PythonSession(TransportHandle& transport, double deadline_s, std::uint64_t seed,
                             int threads, int trials, std::optional<std::int64_t> memory_bytes,
                             std::shared_ptr<PythonDevice> device, bool as_submitted)
    : number_(next_session_number()),
      network_(transport.network()),
      device_(std::move(device)),
      memory_(std::make_shared<HostMemory>(device_ == nullptr ? memory_bytes : std::nullopt)) {
  if (device_ != nullptr) memory_bytes = device_->budget();
  SessionOptions options =
      options_of(deadline_s, seed, threads, trials, memory_bytes, as_submitted);
  transport.expect_usable();
  if (device_ != nullptr) options.device = device_->take();
  session_ = of_this_process(std::make_unique<Session>(transport.take(), *memory_, options));
  thread_ = session_->thread();
  open().insert(this);
}

PythonSession::~PythonSession() {
  open().erase(this);
  close();
}

void PythonSession::close() {
  closing_ = true;
  const std::thread::id own = std::this_thread::get_id();
  if (!process_.forked()) {
    if (own == thread_) return end_elsewhere();
    const WithoutGil without_gil;
    std::unique_lock lock(calls_mutex_);
    // Garbage collection may call close() inside another call of this thread.
    if (closer_ == own) return;
    if (std::find(callers_.begin(), callers_.end(), own) != callers_.end()) {
      calls_close_ = true;
      return;
    }
    calls_ended_.wait(lock, [&] { return callers_.empty() && closer_ == std::thread::id(); });
    closer_ = own;
    lock.unlock();
    end(session_, device_.get(), network_);
    lock.lock();
    closer_ = {};
    calls_ended_.notify_all();
  }
  const std::vector<Held> last = std::exchange(held_, {});
}

void PythonSession::end(OfThisProcess<Session>& session, PythonDevice* device,
                        std::shared_ptr<void>& network) {
  const bool on_gpu = session != nullptr && device != nullptr;
  if (on_gpu) device->settle();
  session.reset();
  network.reset();
  if (on_gpu) device->leave();
}

void PythonSession::end_elsewhere() {
  {
    const std::lock_guard lock(calls_mutex_);
    if (closer_ != std::thread::id()) return;
    calls_close_ = true;
    if (!callers_.empty()) return;
  }
  if (session_ == nullptr) return;
  auto parts =
      std::make_unique<Parts>(Parts{memory_, device_, std::move(buckets_), std::exchange(held_, {}),
                                    std::move(network_), std::move(session_)});
  const auto run = [left = parts.get()] {
    end(left->session, left->device.get(), left->network);
    const WithGil with_gil;
    delete left;
    --endings().threads;
  };
  try {
    start_thread("the end of a session", run).detach();
    ++endings().threads;
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("cannot end a session: {}", error.what()));
  }
  static_cast<void>(parts.release());
}

std::size_t PythonSession::register_bucket(const BucketSpec& spec) {
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
  buckets_[bucket] = Bucket{spec};
  return bucket;
}

void PythonSession::release_bucket(Index bucket) {
  expect_bucket(bucket);
  expect_none_registers();
  under_way([&](Session& session) {
    if (device_ != nullptr) device_->settle();  // the program's streams may still read results
    session.release_bucket(id_of(bucket));
  });
  at(bucket).released = true;
}

std::vector<std::pair<Index, Index>> PythonSession::observed(Index bucket) {
  expect_bucket(bucket);
  expect_none_registers();
  std::vector<std::pair<Index, Index>> rows;
  for (const ObservedRows& space : use().observed(id_of(bucket))) {
    rows.emplace_back(space.touched, space.united);
  }
  return rows;
}

void PythonSession::keep_squares(Index bucket, Index tensors, nb::handle sum) {
  const Bucket& of = at(bucket);
  const std::string problem = squares_problem(of.spec, tensors);
  if (!problem.empty()) throw InputError("keep_squares: " + problem);
  expect_none_registers();
  Array place = writable_of(sum, "keep_squares", this->place());
  if (place.dtype() != nb::dtype<double>() || place.size() != 1) {
    throw InputError("keep_squares: give a sum of one float64");
  }
  auto* const at_place = reinterpret_cast<double*>(bytes_of(place));
  under_way([&](Session& session) {
    session.keep_squares(id_of(bucket), static_cast<std::size_t>(tensors), at_place);
  });
  at(bucket).squares = std::move(place);
}

bool PythonSession::has_squares(Index bucket) {
  Bucket& of = at(bucket);
  expect_none_registers();
  const std::optional<Session::Ticket>& reduce = of.last[index(Phase::reduce)];
  if (!reduce || !is_over(use(), *reduce)) {
    throw ContractError(
        fmt::format("bucket '{}' has no squares: they are available from wait() for a step's "
                    "reduce until the next reduce begins",
                    of.spec.name));
  }
  return use().has_squares(id_of(bucket));
}

void PythonSession::set_order(const std::vector<std::pair<Index, std::string>>& order,
                              std::int64_t from_step) {
  std::vector<OrderEntry> entries;
  for (const auto& [bucket, name] : order) {
    expect_bucket(bucket);
    const std::optional<Phase> phase = name == "announce" ? std::optional(Phase::announce)
                                       : name == "reduce" ? std::optional(Phase::reduce)
                                       : name == "gather" ? std::optional(Phase::gather)
                                                          : std::nullopt;
    if (!phase) {
      throw InputError(fmt::format("there is no phase '{}': use announce, reduce or gather", name));
    }
    entries.push_back({id_of(bucket), *phase});
  }
  under_way([&](Session& session) { session.set_order(entries, from_step); });
}

PythonTicket PythonSession::announce(Index bucket, const nb::sequence& rows,
                                     const std::vector<StreamNumber>& streams) {
  const std::vector<TensorSpec>& tensors = one_for_each_tensor(bucket, rows);
  std::vector<Gradient> views;
  Arrays held;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const nb::object given = rows[i];
    if (given.is_none()) {
      views.push_back(Gradient::rows({}));
      continue;
    }
    held.indices.push_back(indices_of(given, named(tensors[i]), place()));
    views.push_back(Gradient::rows(span_of(held.indices.back())));
  }
  held.after = event_behind(streams);
  return submit(bucket, Phase::announce, views, std::move(held));
}

PythonTicket PythonSession::reduce(Index bucket, const nb::sequence& gradients,
                                   const std::vector<StreamNumber>& streams) {
  const std::vector<TensorSpec>& tensors = one_for_each_tensor(bucket, gradients);
  std::vector<Gradient> views;
  Arrays held;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    views.push_back(gradient_of(tensors[i], nb::object(gradients[i]), held));
  }
  held.after = event_behind(streams);
  return submit(bucket, Phase::reduce, views, std::move(held));
}

void PythonSession::expect_tensors(Index bucket, const std::vector<TensorSpec>& tensors) {
  const Bucket& of = at(bucket);
  if (of.spec.tensors != tensors) {
    throw InputError(fmt::format(
        "bucket '{}' has other tensors than the sparsifier: register it with `crossing`",
        of.spec.name));
  }
}

PythonTicket PythonSession::reduce_from(Index bucket, std::shared_ptr<GradientSource> source,
                                        std::vector<ConstArray> arrays) {
  Arrays held;
  held.values = std::move(arrays);
  held.source = std::move(source);
  return submit(bucket, Phase::reduce, {}, std::move(held));
}

void PythonSession::wait(const PythonTicket& ticket) {
  if (ticket.session != number_) throw InputError("the ticket belongs to another session");
  try {
    wait_until([&](Session& session) { return session.wait_for(ticket.ticket, kSignals); });
  } catch (...) {
    forget_what_is_final();
    throw;
  }
  forget_what_is_final();
}

std::optional<Index> PythonSession::result_rows(Index bucket, Index tensor) {
  const TensorResult result = result_of(bucket, tensor);
  if (result.layout == Gradient::Layout::dense) return std::nullopt;
  return std::ssize(result.indices);
}

nb::object PythonSession::result(Index bucket, Index tensor) {
  const UnderWay call(*this);
  TensorResult result = result_of(bucket, tensor);
  std::vector<Index> indices;
  std::vector<std::byte> values;
  if (device_ != nullptr) {
    const WithoutGil without_gil;
    indices.resize(result.indices.size());
    device_->fetch(std::as_bytes(result.indices),
                   std::as_writable_bytes(std::span(indices)).data());
    values.resize(result.values.as_bytes().size());
    device_->fetch(result.values.as_bytes(), values.data());
    result.indices = indices;
    result.values.data = values.data();
  }
  if (result.layout == Gradient::Layout::dense) return new_values(result.values);
  return nb::make_tuple(new_indices(result.indices), new_values(result.values));
}

void PythonSession::copy_result(Index bucket, Index tensor, nb::handle indices_given,
                                nb::handle values_given, StreamNumber stream) {
  const TensorSpec& spec = tensor_at(bucket, tensor);
  const Array indices = writable_of(indices_given, named(spec) + ", indices", place());
  const Array values = writable_of(values_given, named(spec) + ", values", place());
  const UnderWay call(*this);
  const TensorResult result = result_of(bucket, tensor);
  if (result.layout == Gradient::Layout::dense) {
    throw InputError(fmt::format("{}: its result is dense: use write_dense()", named(spec)));
  }
  const Index rows = std::ssize(result.indices);
  if (indices.dtype() != nb::dtype<Index>() || indices.ndim() != 1 ||
      static_cast<Index>(indices.shape(0)) != rows) {
    throw InputError(
        fmt::format("{}, indices: give int64 [{}], as result_rows() returns", named(spec), rows));
  }
  expect_values(values, spec, rows, named(spec));
  const WithoutGil without_gil;
  read(stream, [&](const Context& context) {
    copy(context, std::as_bytes(result.indices), bytes_of(indices));
    copy(context, result.values.as_bytes(), bytes_of(values));
  });
}

void PythonSession::write_dense(Index bucket, Index tensor, nb::handle given, StreamNumber stream) {
  const TensorSpec& spec = tensor_at(bucket, tensor);
  const Array out = writable_of(given, named(spec), place());
  expect_values(out, spec, spec.rows, named(spec));
  const Matrix into{bytes_of(out), spec.dtype, spec.rows, spec.width};
  const UnderWay call(*this);
  const TensorResult result = result_of(bucket, tensor);
  const WithoutGil without_gil;
  read(stream, [&](const Context& context) { to_dense(context, result, into); });
}

void PythonSession::barrier() {
  under_way([](Session& session) { session.barrier(); });
}

void PythonSession::agree(const std::string& subject,
                          const std::vector<std::pair<std::string, std::string>>& statement) {
  under_way([&](Session& session) { session.agree(subject, statement); });
}

nb::list PythonSession::all_gather(const nb::bytes& own) {
  std::vector<std::string> all;
  const std::string mine(own.c_str(), own.size());
  under_way([&](Session& session) { all = session.all_gather(mine); });
  nb::list given;
  for (const std::string& each : all) given.append(nb::bytes(each.data(), each.size()));
  return given;
}

void PythonSession::broadcast(nb::handle given, int root) {
  if (root < 0 || root >= size()) {
    throw InputError(fmt::format("there is no worker {} among {}", root, size()));
  }
  const Array array = writable_of(given, "array");
  const std::span<std::byte> bytes{static_cast<std::byte*>(array.data()), array.nbytes()};
  under_way([&](Session& session) { session.broadcast(bytes, Rank{root}); });
}

nb::dict PythonSession::counters() {
  const UnderWay call(*this);
  TransportCounters counters;
  {
    // The thread that holds the transport's lock may be waiting for the GIL.
    const WithoutGil without_gil;
    counters = session_->counters();
  }
  return dict_of(counters);
}

nb::dict PythonSession::bucket_use(Index bucket) {
  const Seen& seen = look_at(bucket);
  nb::dict dict = dict_of(seen.use.crossed);
  dict["seconds"] = seen.use.seconds;
  dict["index_bytes_sent"] = seen.index_bytes_sent;
  dict["non_finite"] = seen.non_finite;
  nb::dict last;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const PhaseTime& time = seen.use.last[phase];
    if (time.ended == Clock::time_point()) continue;
    last[name_of(static_cast<Phase>(phase))] =
        nb::make_tuple(seconds_of(time.began), seconds_of(time.ended));
  }
  dict["last"] = last;
  return dict;
}

nb::dict PythonSession::choice(Index bucket) {
  const Seen& seen = look_at(bucket);
  nb::dict dict;
  dict["scheme"] = seen.scheme;
  dict["settled"] = seen.settled;
  nb::list expected;
  for (const Prediction& each : seen.expected) {
    nb::dict of;
    of["scheme"] = each.variant.scheme;
    of["seconds"] = each.seconds;
    of["bytes_busiest"] = each.bytes_busiest;
    of["memory_bytes"] = each.memory_bytes;
    expected.append(of);
  }
  dict["expected"] = expected;
  return dict;
}

int PythonSession::ending() {
  return endings().process.forked() ? 0 : endings().threads;
}

std::set<PythonSession*>& PythonSession::open() {
  static std::set<PythonSession*> sessions;
  return sessions;
}

PythonSession::UnderWay::UnderWay(PythonSession& of) : of_(of) {
  of_.expect_open();
  const std::lock_guard lock(of_.calls_mutex_);
  of_.callers_.push_back(std::this_thread::get_id());
}

PythonSession::UnderWay::~UnderWay() {
  bool closes = false;
  {
    const std::lock_guard lock(of_.calls_mutex_);
    std::vector<std::thread::id>& callers = of_.callers_;
    callers.erase(std::find(callers.begin(), callers.end(), std::this_thread::get_id()));
    closes = callers.empty() && of_.calls_close_;
    of_.calls_ended_.notify_all();
  }
  if (closes) of_.close();
}

void PythonSession::expect_open() const {
  process_.expect("Session");
  if (closing_ || session_ == nullptr) throw_closed("Session");
}

void PythonSession::expect_none_registers() const {
  if (registering_ > 0) {
    throw ContractError("another thread is registering a bucket: wait until it has finished");
  }
}

Session& PythonSession::use() {
  expect_open();
  return *session_;
}

PythonSession::Bucket& PythonSession::at(Index bucket) {
  expect_open();
  if (bucket < 0 || bucket >= std::ssize(buckets_)) {
    throw InputError(fmt::format("there is no bucket {}", bucket));
  }
  Bucket& found = buckets_[static_cast<std::size_t>(bucket)];
  if (found.released) throw InputError(fmt::format("bucket '{}' was released", found.spec.name));
  return found;
}

const TensorSpec& PythonSession::tensor_at(Index number, Index tensor) {
  const Bucket& bucket = at(number);
  if (tensor < 0 || tensor >= std::ssize(bucket.spec.tensors)) {
    throw InputError(fmt::format("there is no tensor {} in bucket '{}'", tensor, bucket.spec.name));
  }
  return bucket.spec.tensors[static_cast<std::size_t>(tensor)];
}

const std::vector<TensorSpec>& PythonSession::one_for_each_tensor(Index bucket,
                                                                  const nb::sequence& given) {
  const Bucket& of = at(bucket);
  if (nb::len(given) != of.spec.tensors.size()) {
    throw InputError(
        fmt::format("bucket '{}': {} arrays for {} tensors: give one for each, or None",
                    of.spec.name, nb::len(given), of.spec.tensors.size()));
  }
  return of.spec.tensors;
}

TensorResult PythonSession::result_of(Index number, Index tensor) {
  expect_tensor(number, tensor);
  const Bucket& bucket = at(number);
  const std::int64_t begun =
      std::max(bucket.submitted[index(Phase::announce)], bucket.submitted[index(Phase::reduce)]);
  const std::optional<Session::Ticket>& gather = bucket.last[index(Phase::gather)];
  if (!gather || begun != bucket.submitted[index(Phase::gather)] ||
      !use().wait_for(*gather, std::chrono::milliseconds(0))) {
    throw ContractError(
        fmt::format("bucket '{}' has no result: it is available from wait() for a step's gather "
                    "until the next step begins",
                    bucket.spec.name));
  }
  expect_none_registers();
  return use().result(id_of(number), static_cast<std::size_t>(tensor));
}

const PythonSession::Seen& PythonSession::look_at(Index number) {
  Bucket& bucket = at(number);
  expect_none_registers();
  Session& session = use();
  for (const std::optional<Session::Ticket>& ticket : bucket.last) {
    if (ticket && !session.is_final(*ticket)) return bucket.seen;
  }
  const BucketId id = id_of(number);
  bucket.seen = {session.use(id),           session.index_bytes_sent(id), session.non_finite(id),
                 session.chosen(id).scheme, session.settled(id),          session.predictions(id)};
  return bucket.seen;
}

std::shared_ptr<const Event> PythonSession::event_behind(const std::vector<StreamNumber>& streams) {
  return device_ == nullptr ? nullptr : device_->after(streams);
}

Gradient PythonSession::gradient_of(const TensorSpec& tensor, nb::handle given,
                                    Arrays& held) const {
  if (given.is_none()) return Gradient::empty();
  const std::string what = named(tensor);
  if (!nb::isinstance<nb::tuple>(given)) {
    held.values.push_back(array_of(given, what, place()));
    expect_values(held.values.back(), tensor, tensor.rows, what);
    return Gradient::dense(static_cast<const std::byte*>(held.values.back().data()));
  }
  const auto pair = nb::borrow<nb::tuple>(given);
  if (nb::len(pair) != 2) {
    throw InputError(fmt::format("{}: a row-sparse gradient is (indices, values)", what));
  }
  held.indices.push_back(indices_of(pair[0], what + ", indices", place()));
  held.values.push_back(array_of(pair[1], what + ", values", place()));
  const ConstIndices& indices = held.indices.back();
  const ConstArray& values = held.values.back();
  expect_values(values, tensor, static_cast<Index>(indices.size()), what);
  return Gradient::row_sparse(span_of(indices), static_cast<const std::byte*>(values.data()));
}

PythonTicket PythonSession::submit(Index number, Phase phase,
                                   const std::vector<Gradient>& gradients, Arrays arrays) {
  Bucket& bucket = at(number);
  forget_what_is_final();
  if (phase == (bucket.spec.announce ? Phase::announce : Phase::reduce) && registering_ == 0) {
    static_cast<void>(look_at(number));
  }
  // The session reads arrays as soon as they are submitted: reserve first, so that nothing can fail
  // before they are held.
  if (held_.size() == held_.capacity()) held_.reserve(2 * held_.size() + 1);
  const Session::Ticket ticket =
      arrays.source != nullptr ? use().submit(id_of(number), *arrays.source)
                               : use().submit(id_of(number), phase, gradients, arrays.after.get());
  ++bucket.submitted[index(phase)];
  bucket.last[index(phase)] = ticket;
  if (!arrays.indices.empty() || !arrays.values.empty() || arrays.after != nullptr ||
      arrays.source != nullptr) {
    held_.push_back({ticket, std::move(arrays)});
  }
  return {ticket, number_};
}

void PythonSession::forget_what_is_final() {
  if (closing_) return;  // close() does it, when nothing runs
  std::vector<Held>
      over;  // destroyed last: destroying arrays runs Python code, which may call back
  for (std::size_t i = 0; i < held_.size();) {
    if (use().is_final(held_[i].ticket)) {
      over.push_back(std::move(held_[i]));
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

}  // namespace sparsesync::python
