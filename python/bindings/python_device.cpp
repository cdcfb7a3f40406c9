#include "python/bindings/python_device.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "engine/support/log.h"
#include "kernels/base/host_copy.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "schemes/transport.h"
#include "sparsesync/errors.h"
#include "sparsesync/transports/nccl.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

Stream handle_of(StreamNumber stream) {
  return {reinterpret_cast<void*>(stream)};  // NOLINT(performance-no-int-to-ptr): as Python has it
}

/// The first line of what Python raised.
std::string text_of(const nb::python_error& error) {
  const std::string all = nb::str(error.value()).c_str();
  return all.substr(0, all.find('\n'));
}

nb::dict dict_of(const DeviceFacts& facts) {
  nb::dict dict;
  dict["compiled_in"] = facts.compiled_in;
  dict["emulated"] = facts.emulated;
  dict["devices"] = facts.devices;
  dict["problem"] = facts.problem;
  const std::string nccl = nccl_text();
  const bool found = !nccl.empty() && nccl.front() != '(';
  dict["nccl"] = found ? nb::object(nb::cast(nccl)) : nb::none();
  dict["nccl_problem"] = found ? std::string() : nccl.substr(1, nccl.size() - 2);
  return dict;
}

}  // namespace

std::optional<int> gpu_named(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  constexpr std::string_view kGpu = "cuda";
  if (device == kGpu) return 0;
  if (device.starts_with(kGpu) && device[kGpu.size()] == ':') {
    const std::string_view digits = std::string_view(device).substr(kGpu.size() + 1);
    int number = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size() && number >= 0) return number;
  }
  throw InputError(fmt::format("there is no device '{}': cpu, cuda or cuda:0, say", device));
}

PythonDevice::PythonDevice(int number, std::optional<StreamNumber> stream, nb::object allocator,
                           std::optional<std::int64_t> budget)
    : number_(number), budget_(budget), allocator_(std::move(allocator)) {
  expect_device(number);
  if (budget && *budget < 0) {
    throw InputError(fmt::format("a budget of {} bytes: 0 or more", *budget));
  }
  auto state = std::make_unique<State>();
  if (allocator_.is_none()) {
    state->memory = std::make_unique<DeviceMemory>(number, budget);
  } else {
    state->memory = std::make_unique<BorrowedMemory>(
        BorrowedMemory::Calls{[this](std::size_t bytes, Stream of) { return allocate(bytes, of); },
                              [this](void* pointer, std::size_t, Stream) { free(pointer); }},
        budget);
  }
  DeviceStreamOptions options{number, false, std::nullopt};
  state->joining = make_device_stream(*state->memory, state->pinned, options);
  if (stream) options.stream = handle_of(*stream);
  state->of_session = make_device_stream(*state->memory, state->pinned, options);
  state->stage.emplace(Context(*state->memory, *state->joining));
  state_ = of_this_process(std::move(state));
}

PythonDevice::~PythonDevice() {
  // Whoever was the last to hold it may have given the GIL away.
  const WithGil with_gil;
  state_.reset();
  allocator_.reset();
}

std::string PythonDevice::name() const {
  return fmt::format("cuda:{}", number_);
}

OnDevice PythonDevice::take() {
  if (std::exchange(taken_, true)) {
    throw InputError("a session works on this Device: make another one");
  }
  State& state = use();
  return {state.of_session.get(), state.memory.get(), &state.pinned};
}

std::unique_ptr<Transport> PythonDevice::connect(std::unique_ptr<Transport> words,
                                                 std::chrono::milliseconds deadline) {
  State& state = use();
  return nccl_over(std::move(words), {number_, state.memory.get(), &state.pinned, deadline});
}

std::shared_ptr<const Event> PythonDevice::after(std::span<const StreamNumber> streams) {
  State& state = use();
  const WithoutGil without_gil;
  const DeviceGuard here(number_);
  const std::lock_guard lock(mutex_);
  join(streams);
  const auto unused = std::find_if(state.events.begin(), state.events.end(),
                                   [](const auto& event) { return event.use_count() == 1; });
  const std::shared_ptr<Event> event =
      unused != state.events.end() ? *unused
                                   : state.events.emplace_back(std::make_shared<Event>(joining()));
  event->set(joining());
  return event;
}

DeviceStream& PythonDevice::stream_of_sparsifiers() {
  State& state = use();
  if (state.of_sparsifiers == nullptr) {
    state.of_sparsifiers =
        make_device_stream(*state.memory, state.pinned, {number_, false, std::nullopt});
  }
  return *state.of_sparsifiers;
}

/// Has streams of the program wait for all that the context was given so far.
void PythonDevice::make_wait(std::span<const StreamNumber> streams, const Context& behind) {
  if (streams.empty()) return;
  const std::lock_guard lock(mutex_);
  Event& stage = *use().stage;
  stage.set(behind);
  for (const StreamNumber stream : streams) stage.make_wait(handle_of(stream));
}

void PythonDevice::fetch(std::span<const std::byte> from, std::byte* to) {
  const DeviceGuard here(number_);
  const std::lock_guard lock(mutex_);
  sparsesync::fetch(joining(), from, to);
}

void PythonDevice::settle() {
  try {
    const DeviceGuard here(number_);
    const std::lock_guard lock(mutex_);
    join({});
    synchronize(joining());
  } catch (const std::exception& error) {  // the device has failed: it does nothing any more
    log(LogLevel::info, std::string("leaving a GPU: ") + error.what());
  }
}

void PythonDevice::leave() {
  std::optional<DeviceGuard> here;
  try {
    here.emplace(number_);
  } catch (const DeviceError& error) {
    log(LogLevel::info, std::string("leaving a GPU: ") + error.what());
  }
  const std::lock_guard lock(mutex_);
  use().in_streams.clear();
  use().of_session.reset();
}

PythonDevice::State& PythonDevice::use() const {
  process_.expect("Device");
  return *state_;
}

/// What `joining` is given from here on waits for these streams, and for those that read results.
void PythonDevice::join(std::span<const StreamNumber> streams) {
  State& state = use();
  state.reading.insert(streams.begin(), streams.end());
  for (const StreamNumber stream : state.reading) {
    try {
      if (is_captured(handle_of(stream))) {
        throw UnsupportedError(
            fmt::format("{}: the current stream is being captured into a CUDA graph, which cannot "
                        "hold a synchronization of gradients: run backward() outside "
                        "torch.cuda.graph()",
                        name()));
      }
      state.stage->set(handle_of(stream));
    } catch (const UnsupportedError&) {
      state.reading.erase(stream);
      throw;
    } catch (const DeviceError& error) {
      state.reading.erase(stream);
      throw InputError(fmt::format("stream {:#x} is not one of {}: give that of its arrays ({})",
                                   stream, name(), error.what()));
    }
    state.stage->make_wait(joining());
  }
  state.reading.clear();
}

DeviceStream& PythonDevice::stream_on(StreamNumber stream) {
  State& state = use();
  std::unique_ptr<DeviceStream>& device_stream = state.in_streams[stream];
  if (device_stream == nullptr) {
    device_stream =
        make_device_stream(*state.memory, state.pinned, {number_, false, handle_of(stream)});
  }
  return *device_stream;
}

void* PythonDevice::allocate(std::size_t bytes, Stream stream) const {
  const WithGil with_gil;
  try {
    const nb::object given = allocator_.attr("allocate")(
        std::max<std::size_t>(bytes, 1), reinterpret_cast<StreamNumber>(stream.handle));
    return handle_of(nb::cast<StreamNumber>(given)).handle;
  } catch (const nb::python_error& error) {
    throw DeviceMemoryError(text_of(error));
  }
}

void PythonDevice::free(void* pointer) const noexcept {
  const WithGil with_gil;
  try {
    allocator_.attr("free")(reinterpret_cast<StreamNumber>(pointer));
  } catch (const nb::python_error& error) {
    log(LogLevel::warning, std::string("giving memory of the device back: ") + error.what());
  }
}

void bind_device(nb::module_& module) {
  nb::class_<DeviceHandle>(
      module, "Device",
      "A GPU for one Session. Its work has a stream of its own, which waits for the program's by "
      "events; the host waits for neither.")
      .def(
          "__init__",
          [](DeviceHandle* self, int number, std::optional<StreamNumber> stream,
             nb::object allocator, std::optional<std::int64_t> memory_bytes) {
            new (self) DeviceHandle{
                std::make_shared<PythonDevice>(number, stream, std::move(allocator), memory_bytes)};
          },
          nb::arg("number") = 0, nb::arg("stream") = nb::none(),
          nb::arg("allocator").none() = nb::none(), nb::arg("memory_bytes") = nb::none(),
          "number: of the GPU. stream: a cudaStream_t of that GPU for the session's work, which "
          "nothing else uses; its own if not given. allocator: an object whose allocate(bytes, "
          "stream) returns an address and whose free(address) takes it back, such as torch's; "
          "called by the session's threads. If not given, a pool of its own, which no other GPU "
          "accesses. memory_bytes: a budget for the workspace, or none. Raises DeviceError where "
          "there is no such GPU.",
          nb::sig("def __init__(self, number: int = 0, stream: int | None = None, allocator: "
                  "object | None = None, memory_bytes: int | None = None) -> None"))
      .def_prop_ro(
          "number", [](const DeviceHandle& self) { return self.device->number(); },
          "The GPU's number.")
      .def_prop_ro(
          "name", [](const DeviceHandle& self) { return self.device->name(); }, "As 'cuda:0'.");
  module.def(
      "device_facts", [] { return dict_of(device_facts()); },
      "What this build and this machine have of CUDA: compiled_in, emulated (a build for tests, "
      "whose GPU is the host), devices (how many GPUs), problem (why there is none), nccl (its "
      "version, or None) and nccl_problem. Opens NCCL: import torch first, where both are wanted, "
      "so that its own is found.",
      nb::sig("def device_facts() -> dict[str, typing.Any]"));
}

}  // namespace sparsesync::python
