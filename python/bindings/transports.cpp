// Python bindings of transports: between threads of one process, between processes of MPI or UCX,
// and over point-to-point calls of a Python object.
#include "python/bindings/transports.h"
#include "python/bindings/link.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/session/control_channel.h"
#include "engine/support/log.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_device.h"
#include "schemes/transport.h"
#include "sparsesync/memory.h"
#include "sparsesync/transports/local.h"
#include "sparsesync/transports/mpi.h"
#include "sparsesync/transports/process_group.h"
#include "sparsesync/transports/ucx.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// The bytes of a call: a torch tensor of uint8 on the same memory.
using Bytes = nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<1>, nb::device::cpu>;

/// The point-to-point calls of a Python object. The session's thread acquires the GIL to start a
/// call and to wait for one; the object releases it while it waits.
class PythonCalls : public PointToPoint {
 public:
  explicit PythonCalls(nb::object calls)
      : calls_(std::move(calls)), has_all_reduce_(nb::cast<bool>(calls_.attr("has_all_reduce"))) {}

  ~PythonCalls() override {
    const WithGil with_gil;
    try {
      calls_.attr("close")();
    } catch (nb::python_error& error) {
      log_error("closing", error);
    }
    calls_.reset();
  }

  void start(std::span<const Incoming> receives, std::span<const Outgoing> sends,
             std::vector<Call>& started) override {
    if (receives.empty() && sends.empty()) return;
    const WithGil with_gil;
    nb::list numbers;
    try {
      nb::list receive_calls;
      for (const auto& [from, lane, bytes] : receives) {
        receive_calls.append(nb::make_tuple(from.value, static_cast<int>(lane),
                                            bytes_at(bytes.data(), bytes.size())));
      }
      nb::list send_calls;
      for (const auto& [to, lane, bytes] : sends) {
        auto* const data = const_cast<std::byte*>(bytes.data());
        send_calls.append(
            nb::make_tuple(to.value, static_cast<int>(lane), bytes_at(data, bytes.size())));
      }
      calls_.attr("start")(receive_calls, send_calls, numbers);
      append(numbers, started);
    } catch (nb::python_error& error) {
      log_error("starting", error);
      append(numbers, started);
      const std::size_t failed = std::min(numbers.size(), receives.size() + sends.size() - 1);
      throw_lost(failed < receives.size() ? receives[failed].from
                                          : sends[failed - receives.size()].to);
    }
  }

  Waited wait(std::span<const Call> calls, Clock::time_point until) override {
    if (calls.empty()) return {};
    const WithGil with_gil;
    nb::list done;
    const Outcome outcome = outcome_of(until, [&] {
      nb::list numbers;
      for (const Call call : calls) numbers.append(call);
      calls_.attr("wait")(numbers, seconds_to(until), done);
    });
    return {outcome, done.size()};
  }

  void withdraw() noexcept override {
    const WithGil with_gil;
    try {
      calls_.attr("withdraw")();
    } catch (nb::python_error& error) {
      log_error("withdrawing", error);
    }
  }

  bool has_all_reduce() const override { return has_all_reduce_; }

  Outcome all_reduce(DType dtype, std::span<std::byte> elements, Clock::time_point until) override {
    const WithGil with_gil;
    return outcome_of(until, [&] {
      calls_.attr("all_reduce")(std::string(name_of(dtype)),
                                bytes_at(elements.data(), elements.size()), seconds_to(until));
    });
  }

 private:
  static nb::object bytes_at(std::byte* data, std::size_t size) {
    // The tensor must share this memory; by default, nanobind copies memory without an owner.
    return Bytes(reinterpret_cast<std::uint8_t*>(data), {size}, nb::handle())
        .cast(nb::rv_policy::reference);
  }

  static double seconds_to(Clock::time_point until) {
    return std::chrono::duration<double>(until - Clock::now()).count();
  }

  static void append(const nb::list& numbers, std::vector<Call>& calls) {
    for (const nb::handle number : numbers) calls.push_back(nb::cast<Call>(number));
  }

  /// Maps the end of a call to an Outcome. An error before the deadline means that a worker is
  /// lost: networks report no details.
  template <typename Body>
  static Outcome outcome_of(Clock::time_point until, const Body& body) {
    try {
      body();
      return Outcome::done;
    } catch (nb::python_error& error) {
      if (Clock::now() >= until) return Outcome::deadline;
      log_error("waiting", error);
      return Outcome::lost;
    }
  }

  static void log_error(const char* doing, nb::python_error& error) {
    log(LogLevel::info, std::string("the process group failed (") + doing + "): " + error.what());
  }

  nb::object calls_;
  const bool has_all_reduce_;
};

/// Limit of a LocalNetwork: each worker is a thread.
constexpr int kMostLocalWorkers = 1024;

/// A LocalNetwork that returns each worker's end only once.
class PythonLocalNetwork {
 public:
  PythonLocalNetwork(int workers, const std::optional<double>& rate_bps, double latency_s)
      : network_(made(workers, link_of(rate_bps, latency_s)).release(), DeleteInItsProcess()),
        joined_(static_cast<std::size_t>(workers)) {}

  TransportHandle join(int rank) {
    process_.expect("LocalNetwork");
    if (rank < 0 || rank >= std::ssize(joined_)) {
      throw InputError(
          fmt::format("there is no worker {} in a network of {}", rank, joined_.size()));
    }
    if (joined_[static_cast<std::size_t>(rank)]) {
      throw InputError(
          fmt::format("worker {} has joined this network already: make a new LocalNetwork", rank));
    }
    std::unique_ptr<Transport> end = network_->join(Rank{rank});
    joined_[static_cast<std::size_t>(rank)] = true;
    return {std::move(end), network_};
  }

 private:
  static std::unique_ptr<LocalNetwork> made(int workers, LocalLink link) {
    if (workers < 1 || workers > kMostLocalWorkers) {
      throw InputError(
          fmt::format("a network of {} workers: give 1 to {}", workers, kMostLocalWorkers));
    }
    return std::make_unique<LocalNetwork>(workers, link);
  }

  Process process_;
  std::shared_ptr<LocalNetwork> network_;
  std::vector<bool> joined_;  // [rank]
};

/// An MpiWorld that can be closed before Python shuts down. It leaves MPI once the last transport
/// is destroyed, too.
class PythonMpiWorld {
 public:
  PythonMpiWorld(double deadline_s, bool program_calls_mpi, std::optional<double> leaving_s)
      : world_(made({program_calls_mpi, deadline_of(deadline_s),
                     leaving_s ? std::optional(deadline_of(*leaving_s)) : std::nullopt})) {
    open().insert(this);
  }
  ~PythonMpiWorld() {
    open().erase(this);
    close();
  }
  PythonMpiWorld(const PythonMpiWorld&) = delete;
  PythonMpiWorld& operator=(const PythonMpiWorld&) = delete;

  MpiWorld& use() const {
    process_.expect("MpiWorld");
    if (!world_) throw_closed("MpiWorld");
    return *world_;
  }
  TransportHandle join(std::optional<double> deadline_s) const {
    MpiWorld& world = use();
    const auto deadline = deadline_s ? std::optional(deadline_of(*deadline_s)) : std::nullopt;
    std::shared_ptr<void> kept = world_;
    std::unique_ptr<Transport> end;
    {
      const WithoutGil without_gil;
      end = world.join(world.size(), {}, deadline);
    }
    return {std::move(end), std::move(kept)};
  }
  void close() {
    std::shared_ptr<MpiWorld> last = std::move(world_);
    const WithoutGil without_gil;
    last.reset();
  }

  static void close_all() {
    while (!open().empty()) {
      PythonMpiWorld* const world = *open().begin();
      open().erase(world);
      world->close();
    }
  }

 private:
  static std::shared_ptr<MpiWorld> made(MpiOptions options) {
    const WithoutGil without_gil;
    return {new MpiWorld(options), DeleteInItsProcess()};
  }
  /// Returns all worlds that are not destroyed yet.
  static std::set<PythonMpiWorld*>& open() {
    static std::set<PythonMpiWorld*> worlds;
    return worlds;
  }

  Process process_;
  std::shared_ptr<MpiWorld> world_;
};

/// The objects that a transport over NCCL needs and that must outlive it.
struct UnderNccl {
  std::shared_ptr<void> words;
  std::shared_ptr<PythonDevice> device;
};

TransportHandle nccl_over_words(TransportHandle& words, const DeviceHandle& device,
                                double deadline_s) {
  const std::chrono::milliseconds deadline = deadline_of(deadline_s);
  auto under = std::make_shared<UnderNccl>(UnderNccl{words.network(), device.device});
  std::unique_ptr<Transport> network = words.take();
  const WithoutGil without_gil;
  return {device.device->connect(std::move(network), deadline), std::move(under)};
}

nb::list all_gather(TransportHandle& transport, const nb::bytes& own, double deadline_s) {
  const std::string mine(own.c_str(), own.size());
  const std::chrono::milliseconds deadline = deadline_of(deadline_s);
  Transport& network = transport.use();
  std::vector<std::string> all;
  {
    const WithoutGil without_gil;
    HostMemory memory;
    all = ControlChannel(network, Context(memory), deadline).all_gather(mine);
  }
  nb::list given;
  for (const std::string& each : all) given.append(nb::bytes(each.data(), each.size()));
  return given;
}

}  // namespace

TransportHandle::TransportHandle(std::unique_ptr<Transport> transport,
                                 std::shared_ptr<void> network)
    : network_(std::move(network)), transport_(of_this_process(std::move(transport))) {}

TransportHandle::~TransportHandle() {
  if (!transport_ && !network_) return;
  const WithoutGil without_gil;
  transport_.reset();
  network_.reset();
}

Transport& TransportHandle::use() const {
  process_.expect("Transport");
  if (!transport_) {
    throw InputError("a session owns this transport: use the session, or join again");
  }
  return *transport_;
}

std::unique_ptr<Transport> TransportHandle::take() {
  expect_usable();
  network_.reset();  // the session has a copy
  return std::unique_ptr<Transport>(transport_.release());
}

void close_worlds() {
  PythonMpiWorld::close_all();
}

std::chrono::milliseconds deadline_of(double seconds) {
  constexpr double kMost = 1e9;  // 30 years
  if (!(seconds > 0 && seconds <= kMost)) {
    throw InputError(
        fmt::format("a deadline of {} s: give more than 0, and at most {:.0e}", seconds, kMost));
  }
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
}

namespace {

constexpr const char* kTransport = R"doc(One worker's end of a network.

A `Session` takes ownership of it; afterwards, every call raises InputError.

Example:
    >>> import sparsesync
    >>> transport = sparsesync.LocalNetwork(2).join(1)
    >>> transport.rank, transport.size
    (1, 2))doc";

constexpr const char* kTransportAllGather =
    R"doc(Gathers bytes from all workers. All workers call it.

Args:
    own: Bytes of this worker, at most 64 MiB.
    deadline_s: Timeout in seconds of each wait for another worker.

Returns:
    The bytes of every worker, by rank.)doc";

void bind_transport(nb::module_& module) {
  nb::class_<TransportHandle>(module, "Transport", kTransport)
      .def_prop_ro(
          "rank", [](const TransportHandle& self) { return self.use().rank().value; },
          "Rank of this worker, from 0.")
      .def_prop_ro(
          "size", [](const TransportHandle& self) { return self.use().size(); },
          "Number of workers (world size).")
      .def_prop_ro(
          "nodes",
          [](const TransportHandle& self) {
            const Transport& transport = self.use();
            std::vector<int> nodes;
            for (const Rank worker : Ranks(transport.size()))
              nodes.push_back(transport.node(worker));
            return nodes;
          },
          "Machine of each worker, by rank. Equal numbers mean the same machine.")
      .def_prop_ro(
          "reaches_devices",
          [](const TransportHandle& self) { return self.use().reaches_devices(); },
          "Whether it sends directly from GPU memory. If not, data is staged in host memory.")
      .def("all_gather", &all_gather, nb::arg("own"), nb::arg("deadline_s") = 60.0,
           kTransportAllGather,
           nb::sig("def all_gather(self, own: bytes, deadline_s: float = 60.0) -> list[bytes]"));
}

constexpr const char* kLocalNetwork = R"doc(Connects workers that are threads of this process.

Every worker calls `join()` once.

Example:
    >>> import sparsesync
    >>> network = sparsesync.LocalNetwork(2, rate_bps=1e9, latency_s=50e-6)
    >>> transports = [network.join(rank) for rank in range(2)])doc";

constexpr const char* kLocalNetworkInit =
    R"doc(Makes a network, with simulated links if a rate or a latency is given.

Args:
    workers: Number of workers, 1 to 1,024.
    rate_bps: Rate of each worker's link in bits/s, per direction; None is not limited.
    latency_s: Latency of each worker's link in seconds, 0 to 3600.

Raises:
    InputError: An argument is out of its range.)doc";

constexpr const char* kLocalJoin = R"doc(Returns the end of one worker, for its session.

Args:
    rank: Rank of the worker, from 0.

Raises:
    InputError: The worker does not exist, or has joined already.)doc";

void bind_local_network(nb::module_& module) {
  nb::class_<PythonLocalNetwork>(module, "LocalNetwork", kLocalNetwork)
      .def(nb::init<int, const std::optional<double>&, double>(), nb::arg("workers"),
           nb::arg("rate_bps") = nb::none(), nb::arg("latency_s") = 0.0, kLocalNetworkInit)
      .def("join", &PythonLocalNetwork::join, nb::arg("rank"), kLocalJoin);
}

constexpr const char* kUcxOver =
    R"doc(Connects the workers of a network by UCX. All workers call it.

The existing network carries the workers' addresses, and serves `dense_native` if it can.

Example:
    >>> import sparsesync
    >>> world = sparsesync.MpiWorld()  # doctest: +SKIP
    >>> session = sparsesync.Session(sparsesync.ucx_over(world.join()))  # doctest: +SKIP

Args:
    words: A transport of the same workers, which this call takes.
    deadline_s: Timeout in seconds.
    interfaces: Network interfaces of this worker, separated by commas: "eth0" or "mlx5_0:1". Empty:
        those in UCX_NET_DEVICES, else those in GLOO_SOCKET_IFNAME, else all.

Raises:
    InputError: An interface does not exist.
    AgreementError: Workers have different versions of UCX.
    DeadlineError: A worker does not answer. The message names it and its address.
    PeerLostError: A worker ended meanwhile.
    Error: UCX is missing or fails, on this worker or another.)doc";

constexpr const char* kUcxVersion = R"doc(Returns the version of UCX, for example "1.13.1".

Raises:
    Error: UCX is missing or unusable. The message says what to install.)doc";

TransportHandle ucx_over_words(TransportHandle& words, double deadline_s,
                               const std::string& interfaces) {
  UcxOptions options;
  options.interfaces = interfaces;
  options.deadline = deadline_of(deadline_s);
  std::shared_ptr<void> below = words.network();
  std::unique_ptr<Transport> network = words.take();
  const WithoutGil without_gil;
  return {ucx_over(std::move(network), options), std::move(below)};
}

void bind_ucx(nb::module_& module) {
  module.def("ucx_over", &ucx_over_words, nb::arg("words"), nb::arg("deadline_s") = 60.0,
             nb::arg("interfaces") = "", kUcxOver);
  module.def(
      "ucx_version",
      [] {
        const std::string problem = why_no_ucx();
        if (!problem.empty()) throw Error(problem);
        return ucx_text();
      },
      kUcxVersion);
}

constexpr const char* kMpiWorld = R"doc(Connects the processes that mpirun started.

A process has at most one. It initializes MPI if the program has not. It closes at the end of a
`with` block, and before the process ends.

Example:
    >>> import sparsesync
    >>> with sparsesync.MpiWorld() as world:  # doctest: +SKIP
    ...     session = sparsesync.Session(world.join()))doc";

constexpr const char* kMpiWorldInit = R"doc(Joins the other processes.

Args:
    deadline_s: Timeout in seconds of MPI_Init, of each `join()` and of closing, which wait for the
        other processes.
    program_calls_mpi: Whether the program itself calls MPI while sessions are open.
    leaving_s: Timeout in seconds of closing; None is `deadline_s`.

Raises:
    DeadlineError: Another process did not join in time.
    UnsupportedError: Open MPI cannot be loaded. The message says why.
    Error: The program initialized MPI with too little thread support. It needs
        MPI_THREAD_SERIALIZED, and MPI_THREAD_MULTIPLE with `program_calls_mpi`.)doc";

constexpr const char* kMpiClose =
    R"doc(Leaves MPI, once all sessions over it are closed. Calling it again has no effect.)doc";

constexpr const char* kMpiJoin =
    R"doc(Returns this process's end of a new network of all processes. All processes call it.

Args:
    deadline_s: Timeout in seconds of the wait for the other processes; None is the timeout of the
        `MpiWorld`.)doc";

void bind_mpi_world(nb::module_& module) {
  nb::class_<PythonMpiWorld>(module, "MpiWorld", kMpiWorld)
      .def(nb::init<double, bool, std::optional<double>>(), nb::arg("deadline_s") = 60.0,
           nb::arg("program_calls_mpi") = false, nb::arg("leaving_s") = nb::none(), kMpiWorldInit)
      .def_prop_ro(
          "rank", [](const PythonMpiWorld& self) { return self.use().rank().value; },
          "Rank of this process, from 0.")
      .def_prop_ro(
          "size", [](const PythonMpiWorld& self) { return self.use().size(); },
          "Number of processes.")
      .def("close", &PythonMpiWorld::close, kMpiClose)
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> MpiWorld"))
      .def(
          "__exit__", [](PythonMpiWorld& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("join", &PythonMpiWorld::join, nb::arg("deadline_s") = nb::none(), kMpiJoin);
}

constexpr const char* kNcclOver =
    R"doc(Connects workers on GPUs, one GPU each, by NCCL. All workers call it.

Args:
    words: A transport between the same workers, for control messages; it is taken over.
    device: Device of the session that will use the transport.
    deadline_s: Timeout in seconds of connecting, and of waits for the GPU.

Returns:
    A transport that sends directly from GPU memory.

Raises:
    DeviceError: NCCL is unavailable or cannot connect the workers.
    AgreementError: The workers have different versions of NCCL.)doc";

constexpr const char* kTransportOver =
    R"doc(Makes a transport over the point-to-point calls of a Python object.

Args:
    calls: An object with `start(receives, sends, started)`, which starts a call for each
        `(rank, lane, tensor)`, first the receives, and appends its number to the list `started`;
        `wait(numbers, seconds, done)`, which waits for calls in turn and appends the number of each
        to the list `done`; `withdraw()`, which gives up all calls; `close()`; `has_all_reduce`; and
        `all_reduce(dtype, tensor, seconds)`. A tensor is a torch tensor `[bytes]`, dtype uint8.
    rank: Rank of this worker.
    nodes: Machine of each worker, by rank. Equal numbers mean the same machine.

Raises:
    InputError: The rank does not exist.)doc";

void bind_nccl_over(nb::module_& module) {
  module.def("nccl_over", &nccl_over_words, nb::arg("words"), nb::arg("device"),
             nb::arg("deadline_s") = 60.0, kNcclOver);
}

void bind_transport_over(nb::module_& module) {
  module.def(
      "transport_over",
      [](nb::object calls, int rank, std::vector<int> nodes) {
        if (rank < 0 || static_cast<std::size_t>(rank) >= nodes.size()) {
          throw InputError(fmt::format("there is no worker {} among {}", rank, nodes.size()));
        }
        return TransportHandle{transport_over(std::make_unique<PythonCalls>(std::move(calls)),
                                              Rank{rank}, std::move(nodes)),
                               nullptr};
      },
      nb::arg("calls"), nb::arg("rank"), nb::arg("nodes"), kTransportOver);
}

}  // namespace

void bind_transports(nb::module_& module) {
  bind_transport(module);
  bind_local_network(module);
  bind_mpi_world(module);
  bind_ucx(module);
  bind_nccl_over(module);
  bind_transport_over(module);
}

}  // namespace sparsesync::python
