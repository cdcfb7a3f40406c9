// What connects workers: threads of one process, processes of MPI, and point-to-point calls that
// Python has.
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

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// The bytes of a call as Python sees them: a tensor of uint8 on the same memory.
using Bytes = nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<1>, nb::device::cpu>;

/// Calls that an object of Python has. The session's thread takes the GIL to start a call and to
/// wait for one; the object gives it back while it waits.
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

  Call send(Rank to, Lane lane, std::span<const std::byte> bytes) override {
    return start("send", to, lane, const_cast<std::byte*>(bytes.data()), bytes.size());
  }

  Call receive(Rank from, Lane lane, std::span<std::byte> bytes) override {
    return start("receive", from, lane, bytes.data(), bytes.size());
  }

  Outcome wait(Call call, Clock::time_point until) override {
    const WithGil with_gil;
    return outcome_of(until, [&] { calls_.attr("wait")(call, seconds_to(until)); });
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
    // The memory itself: without an owner it would be copied by default.
    return Bytes(reinterpret_cast<std::uint8_t*>(data), {size}, nb::handle())
        .cast(nb::rv_policy::reference);
  }

  static double seconds_to(Clock::time_point until) {
    return std::chrono::duration<double>(until - Clock::now()).count();
  }

  Call start(const char* name, Rank peer, Lane lane, std::byte* data, std::size_t size) {
    const WithGil with_gil;
    try {
      return nb::cast<Call>(
          calls_.attr(name)(peer.value, static_cast<int>(lane), bytes_at(data, size)));
    } catch (nb::python_error& error) {
      log_error(name, error);
      throw_lost(peer);
    }
  }

  /// What goes wrong before the deadline is a worker that is lost; networks don't say more.
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
    log(LogLevel::info, std::string("the process group failed ") + doing + ": " + error.what());
  }

  nb::object calls_;
  const bool has_all_reduce_;
};

/// Each is a thread.
constexpr int kMostLocalWorkers = 1024;

/// A LocalNetwork that gives each end once.
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
          fmt::format("a network of {} workers: 1 to {} are possible", workers, kMostLocalWorkers));
    }
    return std::make_unique<LocalNetwork>(workers, link);
  }

  Process process_;
  std::shared_ptr<LocalNetwork> network_;
  std::vector<bool> joined_;  // [rank]
};

/// An MpiWorld that can be closed before Python ends. MPI is left when the last end is gone, too.
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
  /// Those that were not destroyed yet.
  static std::set<PythonMpiWorld*>& open() {
    static std::set<PythonMpiWorld*> worlds;
    return worlds;
  }

  Process process_;
  std::shared_ptr<MpiWorld> world_;
};

/// What a transport over NCCL needs beside itself.
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
  if (!transport_) throw InputError("a session has this transport: ask the session, or join again");
  return *transport_;
}

std::unique_ptr<Transport> TransportHandle::take() {
  expect_usable();
  network_.reset();  // the session has it
  return std::unique_ptr<Transport>(transport_.release());
}

void close_worlds() {
  PythonMpiWorld::close_all();
}

std::chrono::milliseconds deadline_of(double seconds) {
  constexpr double kMost = 1e9;  // 30 years
  if (!(seconds > 0 && seconds <= kMost)) {
    throw InputError(
        fmt::format("a deadline of {} s: more than 0, and at most {:.0e}", seconds, kMost));
  }
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
}

namespace {

void bind_transport(nb::module_& module) {
  nb::class_<TransportHandle>(module, "Transport",
                              "A worker's end of a network, until a Session takes it.")
      .def_prop_ro(
          "rank", [](const TransportHandle& self) { return self.use().rank().value; },
          "Which worker it is, from 0.")
      .def_prop_ro(
          "size", [](const TransportHandle& self) { return self.use().size(); },
          "How many workers there are.")
      .def_prop_ro(
          "nodes",
          [](const TransportHandle& self) {
            const Transport& transport = self.use();
            std::vector<int> nodes;
            for (const Rank worker : Ranks(transport.size()))
              nodes.push_back(transport.node(worker));
            return nodes;
          },
          "The machine of each worker: equal numbers mean the same one.")
      .def_prop_ro(
          "reaches_devices",
          [](const TransportHandle& self) { return self.use().reaches_devices(); },
          "Whether it moves what is in the memory of GPUs; else it goes by way of the host.")
      .def("all_gather", &all_gather, nb::arg("own"), nb::arg("deadline_s") = 60.0,
           "All workers. What each of them gave, by rank; 64 MiB at most. deadline_s: seconds that "
           "it "
           "waits for them.",
           nb::sig("def all_gather(self, own: bytes, deadline_s: float = 60.0) -> list[bytes]"));
}

void bind_local_network(nb::module_& module) {
  nb::class_<PythonLocalNetwork>(module, "LocalNetwork",
                                 "Connects workers that are threads of this process: 1,024 at "
                                 "most. Each takes its end with join(rank), once.")
      .def(nb::init<int, const std::optional<double>&, double>(), nb::arg("workers"),
           nb::arg("rate_bps") = nb::none(), nb::arg("latency_s") = 0.0,
           "rate_bps (bits a second), latency_s (seconds): of each worker's link, in each "
           "direction; unshaped if not given.")
      .def("join", &PythonLocalNetwork::join, nb::arg("rank"),
           "The end of worker `rank`, from 0, for its Session.");
}

void bind_mpi_world(nb::module_& module) {
  nb::class_<PythonMpiWorld>(
      module, "MpiWorld",
      "The processes that mpirun started. Initializes MPI if nobody did; one for each process. "
      "Closed at the end of a `with` block, and before the process ends.")
      .def(nb::init<double, bool, std::optional<double>>(), nb::arg("deadline_s") = 60.0,
           nb::arg("program_calls_mpi") = false, nb::arg("leaving_s") = nb::none(),
           "deadline_s: seconds that MPI_Init, each join() and closing wait for the other "
           "processes. "
           "program_calls_mpi: whether the program calls MPI, too, while sessions are open. "
           "leaving_s: seconds that closing waits for them, if not deadline_s.")
      .def_prop_ro(
          "rank", [](const PythonMpiWorld& self) { return self.use().rank().value; },
          "Which process this is, from 0.")
      .def_prop_ro(
          "size", [](const PythonMpiWorld& self) { return self.use().size(); },
          "How many processes there are.")
      .def("close", &PythonMpiWorld::close,
           "Leaves MPI, once all sessions over it are closed; safe to call again.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> MpiWorld"))
      .def(
          "__exit__", [](PythonMpiWorld& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("join", &PythonMpiWorld::join, nb::arg("deadline_s") = nb::none(),
           "A new network of all processes; all of them call it. deadline_s: seconds that it waits "
           "for them, if not those of the MpiWorld.");
}

void bind_nccl_over(nb::module_& module) {
  module.def(
      "nccl_over", &nccl_over_words, nb::arg("words"), nb::arg("device"),
      nb::arg("deadline_s") = 60.0,
      "Connects workers on GPUs, one each, by NCCL; all of them call it. words: a transport "
      "between "
      "the same workers, for what is the host's; it is taken. device: of the Session that is to "
      "have the transport. deadline_s: seconds of connecting, and of waits for the GPU. Raises "
      "DeviceError where NCCL is not there or does not connect them, AgreementError where workers "
      "have different ones.");
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
      nb::arg("calls"), nb::arg("rank"), nb::arg("nodes"),
      "A transport over an object's send(rank, lane, tensor) and receive(rank, lane, tensor), "
      "which return a number, wait(number, seconds), withdraw(), close(), has_all_reduce and "
      "all_reduce(dtype, tensor, seconds).\n\nnodes: the machine of each worker.");
}

}  // namespace

void bind_transports(nb::module_& module) {
  bind_transport(module);
  bind_local_network(module);
  bind_mpi_world(module);
  bind_nccl_over(module);
  bind_transport_over(module);
}

}  // namespace sparsesync::python
