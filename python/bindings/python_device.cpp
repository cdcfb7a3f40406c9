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
  return {reinterpret_cast<void*>(stream)};  // NOLINT(performance-no-int-to-ptr): Python's number
}

/// Returns the first line of a Python exception's message.
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
  throw InputError(
      fmt::format("there is no device '{}': use cpu, cuda, or a GPU such as cuda:0", device));
}

PythonDevice::PythonDevice(int number, std::optional<StreamNumber> stream, nb::object allocator,
                           std::optional<std::int64_t> budget)
    : number_(number), budget_(budget), allocator_(std::move(allocator)) {
  expect_device(number);
  if (budget && *budget < 0) {
    throw InputError(fmt::format("a budget of {} bytes: give 0 or more", *budget));
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
  // The last owner may have released the GIL.
  const WithGil with_gil;
  state_.reset();
  allocator_.reset();
}

std::string PythonDevice::name() const {
  return fmt::format("cuda:{}", number_);
}

OnDevice PythonDevice::take() {
  if (std::exchange(taken_, true)) {
    throw InputError("this Device belongs to another session: make a new Device");
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

/// Makes streams of the program wait for all work that the context has been given so far.
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
  } catch (const std::exception& error) {  // the device has failed: no work is left to wait for
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

/// Makes later work in `joining` wait for these streams, and for all streams that read results.
void PythonDevice::join(std::span<const StreamNumber> streams) {
  State& state = use();
  state.reading.insert(streams.begin(), streams.end());
  for (const StreamNumber stream : state.reading) {
    try {
      if (is_captured(handle_of(stream))) {
        throw UnsupportedError(
            fmt::format("{}: the current stream is being captured into a CUDA graph, which cannot "
                        "contain the synchronization of gradients: run backward() outside "
                        "torch.cuda.graph()",
                        name()));
      }
      state.stage->set(handle_of(stream));
    } catch (const UnsupportedError&) {
      state.reading.erase(stream);
      throw;
    } catch (const DeviceError& error) {
      state.reading.erase(stream);
      throw InputError(
          fmt::format("stream {:#x} is not a stream of {}: give the stream of the arrays ({})",
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
    log(LogLevel::warning, std::string("cannot free memory of the device: ") + error.what());
  }
}

namespace {

constexpr const char* kDevice = R"doc(A GPU for one session.

The session's work runs in a separate stream. It waits for the program's streams by events, so the
host does not block.

Example:
    >>> import sparsesync
    >>> device = sparsesync.Device(0, memory_bytes=2**30)  # doctest: +SKIP
    >>> session = sparsesync.Session(transport, device=device)  # doctest: +SKIP)doc";

constexpr const char* kDeviceInit =
    R"doc(Selects a GPU, and the stream and memory of a session on it.

Args:
    number: Number of the GPU.
    stream: A `cudaStream_t` of the GPU, as a number, for the session's work alone. None creates
        one.
    allocator: An object with `allocate(bytes, stream)`, which returns an address, and
        `free(address)`, such as torch's allocator. The session's threads call it. None uses a new
        memory pool, which no other GPU can access.
    memory_bytes: Budget of the workspace in bytes; None is no limit.

Raises:
    DeviceError: The GPU does not exist.
    InputError: The budget is negative.)doc";

constexpr const char* kDeviceFacts =
    R"doc(Returns the CUDA and NCCL support of this build and machine.

The call loads NCCL. Import torch first if the program uses both, so that torch's NCCL library is
found.

Returns:
    `compiled_in` (whether the build has CUDA), `emulated` (whether it is a test build whose GPU is
    the host), `devices` (number of GPUs), `problem` (why there is no GPU, or an empty string),
    `nccl` (version of NCCL, or None) and `nccl_problem` (why there is no NCCL, or an empty string).

Example:
    >>> import sparsesync
    >>> sorted(sparsesync.device_facts())
    ['compiled_in', 'devices', 'emulated', 'nccl', 'nccl_problem', 'problem'])doc";

}  // namespace

void bind_device(nb::module_& module) {
  nb::class_<DeviceHandle>(module, "Device", kDevice)
      .def(
          "__init__",
          [](DeviceHandle* self, int number, std::optional<StreamNumber> stream,
             nb::object allocator, std::optional<std::int64_t> memory_bytes) {
            new (self) DeviceHandle{
                std::make_shared<PythonDevice>(number, stream, std::move(allocator), memory_bytes)};
          },
          nb::arg("number") = 0, nb::arg("stream") = nb::none(),
          nb::arg("allocator").none() = nb::none(), nb::arg("memory_bytes") = nb::none(),
          kDeviceInit,
          nb::sig("def __init__(self, number: int = 0, stream: int | None = None, allocator: "
                  "object | None = None, memory_bytes: int | None = None) -> None"))
      .def_prop_ro(
          "number", [](const DeviceHandle& self) { return self.device->number(); },
          "Number of the GPU.")
      .def_prop_ro(
          "name", [](const DeviceHandle& self) { return self.device->name(); },
          "Name of the GPU, such as 'cuda:0'.");
  module.def(
      "device_facts", [] { return dict_of(device_facts()); }, kDeviceFacts,
      nb::sig("def device_facts() -> dict[str, typing.Any]"));
}

}  // namespace sparsesync::python
