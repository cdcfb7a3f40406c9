// Streams, events and memory. One lock guards the whole device, so it runs one piece of work at a
// time.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"
#include "tests/emulated_cuda/controls.h"
#include "tests/emulated_cuda/reach.h"

namespace sparsesync::emulated_cuda {

namespace {
class Machine;
}  // namespace

/// An event of a stream. A query runs the stream up to the event.
class Event {
 public:
  int device = 0;
  cudaStream_t stream = nullptr;
  std::uint64_t place = 0;  // pieces of work submitted before the event
  // Time at which they were done; null if it is not recorded.
  std::shared_ptr<std::chrono::steady_clock::time_point> at;
};

class Stream {
 public:
  std::deque<std::function<bool()>> waiting;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
  bool busy = false;
  int device = 0;
};

class Pool {
 public:
  std::shared_ptr<PoolAccess> access;
};

namespace {

// State of the calling thread.
thread_local int chosen_device = 0;
thread_local std::vector<int> pushed_contexts;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

int current_device() {
  return pushed_contexts.empty() ? chosen_device : pushed_contexts.back();
}

/// Keeps an error for cudaGetLastError(), as every call of the runtime does.
cudaError_t remember(cudaError_t result) {
  if (result != cudaSuccess && result != cudaErrorNotReady) last_error = result;
  return result;
}

class Machine {
 public:
  static Machine& the() {
    static Machine machine;
    return machine;
  }

  std::recursive_mutex mutex;
  Limits limits;
  std::set<int> contexts;                          // GPUs that have a context
  std::vector<std::shared_ptr<PoolAccess>> pools;  // not yet returned by take_pools()
  std::set<const void*> kernels;                   // kernels of the program's module
  std::map<int, std::set<const void*>> loaded;     // loaded kernels by GPU
  const Stream* captured = nullptr;                // stream that is captured into a graph
  bool is_capture_valid = true;

  void make_context(int device) {
    const std::lock_guard lock(mutex);
    contexts.insert(device);
  }

  /// Checks a call that might wait or allocate. While a stream is being captured, it is an error
  /// that invalidates the capture, except in threads whose mode is relaxed.
  cudaError_t unsafe_call() {
    const std::lock_guard lock(mutex);
    contexts.insert(current_device());
    if (captured == nullptr || capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    is_capture_valid = false;
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  std::set<Stream*> streams;
  std::vector<std::unique_ptr<Stream>> gone;  // destroyed streams whose events may still be queried
  std::size_t in_use = 0;
  struct Block {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
  };
  std::map<const void*, Block> blocks;
  /// Memory that is released once streams have reached these points.
  struct Freed {
    void* pointer;
    std::vector<std::pair<const Stream*, std::uint64_t>> until;
  };
  std::vector<Freed> freed;

  cudaError_t allocate(void** pointer, std::size_t bytes, cudaMemoryType type,
                       int device = current_device()) {
    const std::lock_guard lock(mutex);
    if (type == cudaMemoryTypeDevice) {
      if (limits.allocations_until_failure && (*limits.allocations_until_failure)-- == 0) {
        limits.allocations_until_failure.reset();
        return cudaErrorMemoryAllocation;
      }
      if (in_use + bytes > limits.memory) return cudaErrorMemoryAllocation;
      in_use += bytes;
    }
    // Aligned to 256 bytes, as on a GPU. AddressSanitizer checks the bytes past the end.
    if (posix_memalign(pointer, 256, bytes == 0 ? 1 : bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, 0xA5, bytes);
    blocks[*pointer] = {bytes, type, device};
    if (type == cudaMemoryTypeDevice && working == 0 && !shares_heap()) {
      close_memory(*pointer, bytes);
    }
    return cudaSuccess;
  }

  cudaError_t release(void* pointer) {
    const std::lock_guard lock(mutex);
    if (pointer == nullptr) return cudaSuccess;
    const auto found = blocks.find(pointer);
    if (found == blocks.end()) return cudaErrorInvalidValue;
    if (found->second.type == cudaMemoryTypeDevice) in_use -= found->second.bytes;
    open_memory(pointer, found->second.bytes);
    blocks.erase(found);
    std::free(pointer);
    return cudaSuccess;
  }

  /// Start and end of a piece of work. Only work in streams can access device memory.
  void begin_work() {
    if (++working == 1) for_device_memory(open_memory);
  }
  void end_work() {
    if (--working == 0) for_device_memory(close_memory);
  }

  /// Returns the block that contains a pointer, or null.
  const Block* block_of(const void* pointer) {
    const auto after = blocks.upper_bound(pointer);
    if (after == blocks.begin()) return nullptr;
    const auto& [begin, block] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(static_cast<const char*>(pointer) -
                                                 static_cast<const char*>(begin));
    return offset < std::max<std::size_t>(block.bytes, 1) ? &block : nullptr;
  }

 private:
  void for_device_memory(void (*act)(const void*, std::size_t)) {
    if (shares_heap()) return;
    for (const auto& [begin, block] : blocks) {
      if (block.type == cudaMemoryTypeDevice) act(begin, block.bytes);
    }
  }

  int working = 0;  // nested pieces of work, because one may run others
};

/// Returns a stream. Null is the default stream of the current device.
Stream& stream_of(cudaStream_t stream) {
  static std::deque<Stream> of_program;
  if (stream != nullptr) return *stream;
  const std::lock_guard lock(Machine::the().mutex);
  for (int device = static_cast<int>(of_program.size()); device <= current_device(); ++device) {
    of_program.emplace_back().device = device;
  }
  return of_program[static_cast<std::size_t>(current_device())];
}

/// Runs the work of a stream up to a number of pieces. The lock is held.
/// @return whether it got there. Work that waits for another stream or another worker may have to
///         wait.
bool run_up_to(Stream& stream, std::uint64_t place) {
  while (stream.done < place) {
    if (stream.busy) return true;  // it waits for one of its own later events
    stream.busy = true;
    Machine::the().begin_work();
    const bool done = stream.waiting.front()();
    Machine::the().end_work();
    stream.busy = false;
    if (!done) return false;
    stream.waiting.pop_front();
    ++stream.done;
  }
  return true;
}

/// Releases freed memory that streams no longer use. The lock is held.
void release_freed() {
  std::vector<Machine::Freed>& freed = Machine::the().freed;
  for (Machine::Freed& each : freed) {
    std::erase_if(each.until, [](const auto& at) { return at.first->done >= at.second; });
    if (each.until.empty()) Machine::the().release(each.pointer);
  }
  std::erase_if(freed, [](const Machine::Freed& each) { return each.until.empty(); });
}

/// Frees memory once the device has completed all work submitted so far. CUDA's function waits for
/// the device, which may wait for a worker that is a thread of this program.
cudaError_t free_when_done(void* pointer) {
  const std::lock_guard lock(Machine::the().mutex);
  if (pointer == nullptr) return cudaSuccess;
  if (Machine::the().block_of(pointer) == nullptr) return cudaErrorInvalidValue;
  Machine::Freed freed{pointer, {}};
  for (const Stream* const stream : Machine::the().streams) {
    if (stream->done < stream->given) freed.until.emplace_back(stream, stream->given);
  }
  Machine::the().freed.push_back(std::move(freed));
  release_freed();
  return cudaSuccess;
}

/// Runs the work of all streams until it is done or has to wait.
void run_all() {
  const std::lock_guard lock(Machine::the().mutex);
  Stream& of_program = stream_of(nullptr);
  run_up_to(of_program, of_program.given);
  for (Stream* const stream : Machine::the().streams) run_up_to(*stream, stream->given);
}

/// Waits until a stream has run up to a number of pieces.
void wait_until(Stream& stream, std::uint64_t place) {
  while (true) {
    {
      const std::lock_guard lock(Machine::the().mutex);
      if (run_up_to(stream, place)) return release_freed();
    }
    std::this_thread::yield();
  }
}

}  // namespace

Limits& limits() {
  return Machine::the().limits;
}

std::set<int> take_contexts() {
  const std::lock_guard lock(Machine::the().mutex);
  return std::exchange(Machine::the().contexts, {});
}

std::vector<PoolAccess> take_pools() {
  const std::lock_guard lock(Machine::the().mutex);
  std::vector<PoolAccess> pools;
  for (const auto& pool : std::exchange(Machine::the().pools, {})) pools.push_back(*pool);
  return pools;
}

cudaFunction_t function_of(const void* kernel) {
  const std::lock_guard lock(Machine::the().mutex);
  Machine::the().kernels.insert(kernel);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): a handle that is never written to
  return static_cast<cudaFunction_t>(const_cast<void*>(kernel));
}

bool is_loaded(const void* kernel, cudaStream_t stream) {
  const std::lock_guard lock(Machine::the().mutex);
  return Machine::the().loaded[stream_of(stream).device].contains(kernel);
}

std::size_t loaded_kernels(int device) {
  const std::lock_guard lock(Machine::the().mutex);
  return Machine::the().loaded[device].size();
}

void begin_capture(void* stream) {
  const std::lock_guard lock(Machine::the().mutex);
  Machine::the().captured = &stream_of(static_cast<cudaStream_t>(stream));
  Machine::the().is_capture_valid = true;
}
bool end_capture() {
  const std::lock_guard lock(Machine::the().mutex);
  Machine::the().captured = nullptr;
  return Machine::the().is_capture_valid;
}

void check_parameters(const void* parameters, const unsigned char* members, std::size_t bytes) {
  const std::lock_guard lock(Machine::the().mutex);
  check_reach(parameters, members, bytes,
              [](const void* address) { return Machine::the().block_of(address) != nullptr; });
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  enqueue_waiting(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

void enqueue_waiting(cudaStream_t stream, std::function<bool()> work) {
  const std::lock_guard lock(Machine::the().mutex);
  stream_of(stream).waiting.push_back(std::move(work));
  ++stream_of(stream).given;
}

}  // namespace sparsesync::emulated_cuda

namespace {
constexpr int kRuntimeVersion = 13000;
}  // namespace

using sparsesync::emulated_cuda::capture_mode;
using sparsesync::emulated_cuda::chosen_device;
using sparsesync::emulated_cuda::current_device;
using sparsesync::emulated_cuda::enqueue;
using sparsesync::emulated_cuda::enqueue_waiting;
using sparsesync::emulated_cuda::free_when_done;
using sparsesync::emulated_cuda::function_of;
using sparsesync::emulated_cuda::kProcessors;
using sparsesync::emulated_cuda::last_error;
using sparsesync::emulated_cuda::Limits;
using sparsesync::emulated_cuda::Machine;
using sparsesync::emulated_cuda::pushed_contexts;
using sparsesync::emulated_cuda::remember;
using sparsesync::emulated_cuda::run_all;
using sparsesync::emulated_cuda::run_up_to;
using sparsesync::emulated_cuda::stream_of;
using sparsesync::emulated_cuda::wait_until;

cudaError_t cudaGetDeviceCount(int* count) {
  const Limits& limits = Machine::the().limits;
  *count = 0;
  if (limits.driver_version < kRuntimeVersion) return cudaErrorInsufficientDriver;
  *count = limits.devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Machine::the().limits.devices) {
    return remember(cudaErrorInvalidDevice);
  }
  if (pushed_contexts.empty()) {
    chosen_device = device;
  } else {
    pushed_contexts.back() = device;
  }
  Machine::the().make_context(device);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrPageableMemoryAccess:
      *value = Machine::the().limits.reaches_all_memory ? 1 : 0;
      return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = Machine::the().limits.driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}

// ---- The driver API.

namespace {

CUresult emulated_initialize(unsigned) {
  return CUDA_SUCCESS;
}
CUresult emulated_get_device(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= Machine::the().limits.devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
/// Creates a context, whose address is its GPU's number plus 1.
CUresult emulated_retain(CUcontext* context, CUdevice device) {
  Machine::the().make_context(device);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device + 1));
  return CUDA_SUCCESS;
}
CUresult emulated_push(CUcontext context) {
  pushed_contexts.push_back(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
CUresult emulated_pop(CUcontext* context) {
  if (pushed_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  emulated_retain(context, pushed_contexts.back());
  pushed_contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult emulated_get_module(CUmodule* module, CUfunction function) {
  static char of_program = 0;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(&of_program);
  return CUDA_SUCCESS;
}
CUresult emulated_function_count(unsigned* count, CUmodule) {
  const std::lock_guard lock(Machine::the().mutex);
  *count = static_cast<unsigned>(Machine::the().kernels.size());
  return CUDA_SUCCESS;
}
CUresult emulated_enumerate_functions(CUfunction* functions, unsigned count, CUmodule) {
  const std::lock_guard lock(Machine::the().mutex);
  for (const void* const kernel : Machine::the().kernels) {
    if (count-- == 0) break;
    *functions++ = function_of(kernel);
  }
  return CUDA_SUCCESS;
}
CUresult emulated_load_function(CUfunction function) {
  const std::lock_guard lock(Machine::the().mutex);
  Machine::the().loaded[current_device()].insert(function);
  return CUDA_SUCCESS;
}
CUresult emulated_error_name(CUresult result, const char** name) {
  *name = result == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_INVALID_DEVICE";
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> functions{
      {"cuInit", reinterpret_cast<void*>(emulated_initialize)},
      {"cuDeviceGet", reinterpret_cast<void*>(emulated_get_device)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(emulated_retain)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(emulated_push)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(emulated_pop)},
      {"cuFuncGetModule", reinterpret_cast<void*>(emulated_get_module)},
      {"cuModuleGetFunctionCount", reinterpret_cast<void*>(emulated_function_count)},
      {"cuModuleEnumerateFunctions", reinterpret_cast<void*>(emulated_enumerate_functions)},
      {"cuFuncLoad", reinterpret_cast<void*>(emulated_load_function)},
      {"cuGetErrorName", reinterpret_cast<void*>(emulated_error_name)}};
  const auto found = functions.find(name);
  *result =
      found == functions.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  if (found != functions.end()) *function = found->second;
  return cudaSuccess;
}

// ---- The runtime, continued.

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = function_of(symbol);
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorSymbolNotFound:
      return "cudaErrorSymbolNotFound";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
  }
  return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Machine::the().make_context(current_device());
  const std::lock_guard lock(Machine::the().mutex);
  *stream = new sparsesync::emulated_cuda::Stream;
  (*stream)->device = current_device();
  Machine::the().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  const std::lock_guard lock(Machine::the().mutex);
  Machine::the().streams.erase(stream);
  Machine::the().gone.emplace_back(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = stream == nullptr ? current_device() : stream->device;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  wait_until(stream_of(stream), stream_of(stream).given);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(Machine::the().mutex);
  *status = Machine::the().captured == &stream_of(stream) ? cudaStreamCaptureStatusActive
                                                          : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = std::exchange(capture_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Machine::the().make_context(current_device());
  const std::lock_guard lock(Machine::the().mutex);
  if (event->stream == nullptr) return cudaSuccess;  // never recorded
  // Use the current state of the event. Later records do not change this wait.
  enqueue_waiting(stream,
                  [of = event->stream, place = event->place] { return run_up_to(*of, place); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Machine::the().make_context(current_device());
  *event = new sparsesync::emulated_cuda::Event;
  (*event)->device = current_device();
  if ((flags & cudaEventDisableTiming) == 0) {
    (*event)->at = std::make_shared<std::chrono::steady_clock::time_point>();
  }
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Machine::the().make_context(current_device());
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Machine::the().make_context(current_device());
  const std::lock_guard lock(Machine::the().mutex);
  if (stream_of(stream).device != event->device) return remember(cudaErrorInvalidResourceHandle);
  if (event->at) {
    sparsesync::emulated_cuda::enqueue(
        stream, [at = event->at] { *at = std::chrono::steady_clock::now(); });
  }
  event->stream = &stream_of(stream);
  event->place = event->stream->given;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(*end->at - *begin->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  if (event->stream != nullptr) wait_until(*event->stream, event->place);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  const std::lock_guard lock(Machine::the().mutex);
  if (event->stream == nullptr) return cudaSuccess;
  // A query also makes progress.
  return run_up_to(*event->stream, event->place) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(Machine::the().mutex);
  const auto& asked = stream_of(stream);
  return asked.done == asked.given ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  return remember(Machine::the().allocate(pointer, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  run_all();
  return free_when_done(pointer);
}
cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  return Machine::the().allocate(pointer, bytes, cudaMemoryTypeManaged);
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  return Machine::the().allocate(pointer, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* pointer) {
  if (const cudaError_t result = Machine::the().unsafe_call(); result != cudaSuccess) return result;
  return Machine::the().release(pointer);
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  Machine::the().make_context(current_device());
  const std::lock_guard lock(Machine::the().mutex);
  *total_bytes = Machine::the().limits.memory;
  *free_bytes = *total_bytes - std::min(*total_bytes, Machine::the().in_use);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const std::lock_guard lock(Machine::the().mutex);
  const auto* const block = Machine::the().block_of(pointer);
  *attributes = {cudaMemoryTypeUnregistered, 0};
  if (block != nullptr) *attributes = {block->type, block->device};
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  Machine::the().make_context(current_device());
  using sparsesync::emulated_cuda::PoolAccess;
  const auto access = std::make_shared<PoolAccess>(PoolAccess{properties->location.id, {}});
  *pool = new sparsesync::emulated_cuda::Pool{access};
  const std::lock_guard lock(Machine::the().mutex);
  Machine::the().pools.push_back(access);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  Machine::the().make_context(current_device());
  run_all();
  delete pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const Limits& limits = Machine::the().limits;
  if (std::min(device, peer) < 0 || std::max(device, peer) >= limits.devices) {
    return remember(cudaErrorInvalidDevice);
  }
  *can = limits.reaches_peers && device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* accesses,
                                 std::size_t count) {
  const std::lock_guard lock(Machine::the().mutex);
  for (std::size_t i = 0; i < count; ++i) {
    const int peer = accesses[i].location.id;
    int can = 0;
    const cudaError_t result = cudaDeviceCanAccessPeer(&can, peer, pool->access->device);
    if (result != cudaSuccess) return result;
    if (can == 0) return remember(cudaErrorInvalidDevice);
    pool->access->peers.insert(peer);
  }
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t) {
  Machine::the().make_context(current_device());
  return remember(
      Machine::the().allocate(pointer, bytes, cudaMemoryTypeDevice, pool->access->device));
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  Machine::the().make_context(current_device());
  enqueue(stream, [pointer] { Machine::the().release(pointer); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Machine::the().make_context(current_device());
  if (bytes == 0) return cudaSuccess;
  cudaPointerAttributes of_from{};
  cudaPointerAttributes of_to{};
  cudaPointerGetAttributes(&of_from, from);
  cudaPointerGetAttributes(&of_to, to);
  if (of_from.type == cudaMemoryTypeDevice && of_to.type == cudaMemoryTypeDevice &&
      of_from.device != of_to.device) {
    return cudaErrorInvalidValue;
  }
  if (kind == cudaMemcpyHostToDevice && of_from.type == cudaMemoryTypeUnregistered) {
    // Pageable memory is read before the call returns.
    auto held = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                    static_cast<const char*>(from) + bytes);
    enqueue(stream, [=] { std::memcpy(to, held->data(), bytes); });
    return cudaSuccess;
  }
  enqueue(stream, [=] { std::memmove(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && of_to.type == cudaMemoryTypeUnregistered) {
    return cudaStreamSynchronize(stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int device_of_to, const void* from, int device_of_from,
                                std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  for (const auto& [pointer, device] :
       {std::pair<const void*, int>(to, device_of_to), {from, device_of_from}}) {
    cudaPointerAttributes found{};
    cudaPointerGetAttributes(&found, pointer);
    if (found.type != cudaMemoryTypeDevice || found.device != device) return cudaErrorInvalidValue;
  }
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Machine::the().make_context(current_device());
  if (bytes != 0) enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
