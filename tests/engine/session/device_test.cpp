// ctest: DEVICES
// Sessions on a GPU: memory resources, the stream, errors that the GPU reports later, and a steady
// state without allocations.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/session/gpu_worker.h"
#include "engine/transport/worker_threads.h"  // IWYU pragma: keep: for the emulated device
#include "kernels/indices/index_code.h"
#include "kernels/indices/sort.h"  // IWYU pragma: keep: for the emulated device
#include "kernels/rows/rows.h"
#include "sparsesync/device.h"
#include "sparsesync/transports/nccl.h"          // IWYU pragma: keep: for the emulated device
#include "tests/engine/session/session_cases.h"  // IWYU pragma: keep: for the emulated device
#include "tests/support/devices.h"
#include "tests/support/failing_memory.h"  // IWYU pragma: keep: for the emulated device
#include "tests/support/scheme_shapes.h"
#include "tests/support/scheme_variants.h"
#include "tests/support/workers.h"

#if defined(SPARSESYNC_CUDA_EMULATED)
#include "tests/emulated_cuda/controls.h"
#endif

namespace sparsesync::testing {
namespace {

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  }
};

TEST_F(DeviceTest, device_memory_is_counted_and_limited) {
  DeviceMemory memory(0, 1000);
  void* const a = memory.allocate(600, 256, {});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 256, 0U);
  try {
    memory.allocate(401, 64, {});
    FAIL() << "exceeded the budget";
  } catch (const BudgetError& error) {
    EXPECT_EQ(error.needed(), 1001);
  }
  memory.deallocate(a, 600, 256, {});
  EXPECT_EQ(memory.in_use(), 0);
  EXPECT_EQ(memory.high_water(), 600);
  const DeviceBytes bytes = device_bytes(0);
  EXPECT_GT(bytes.available, 0);
  EXPECT_LE(bytes.available, bytes.total);
}

TEST_F(DeviceTest, running_out_of_device_memory_is_a_typed_error_that_changes_nothing) {
  DeviceMemory memory(0);
  const auto too_much = static_cast<std::size_t>(device_bytes(0).total) + 1;
  EXPECT_THROW(memory.allocate(too_much, 256, {}), DeviceMemoryError);
  EXPECT_EQ(memory.in_use(), 0);
  void* const a = memory.allocate(100, 256, {});
  memory.deallocate(a, 100, 256, {});
}

TEST_F(DeviceTest, pinned_memory_is_accessible_to_host_and_device) {
  PinnedMemory pinned;
  DeviceMemory memory(0);
  const DeviceUnderTest device(false);
  const Context context = device.context(memory);
  Buffer<std::byte> there(context);
  auto* const here = static_cast<std::byte*>(pinned.allocate(64, 64, {}));
  std::fill_n(here, 64, std::byte{7});
  copy(context, {here, 64}, there.reserve(64).data());
  synchronize(context);
  std::fill_n(here, 64, std::byte{0});
  copy(context, there.first(64), here);
  synchronize(context);
  EXPECT_TRUE(std::all_of(here, here + 64, [](std::byte byte) { return byte == std::byte{7}; }));
  pinned.deallocate(here, 64, 64, {});
}

TEST_F(DeviceTest, a_borrowed_allocator_respects_the_budget) {
  DeviceMemory upstream(0);
  BorrowedMemory memory(
      {[&](std::size_t bytes, Stream stream) { return upstream.allocate(bytes, 256, stream); },
       [&](void* pointer, std::size_t bytes, Stream stream) {
         upstream.deallocate(pointer, bytes, 256, stream);
       }},
      1000);
  void* const a = memory.allocate(900, 64, {});
  EXPECT_EQ(upstream.in_use(), 900);
  EXPECT_THROW(memory.allocate(101, 64, {}), BudgetError);
  memory.deallocate(a, 900, 64, {});
  EXPECT_EQ(upstream.in_use(), 0);
}

TEST_F(DeviceTest, the_error_of_a_missing_device_names_it) {
  HostMemory memory;
  try {
    make_device_stream(memory, memory, {1000, false, std::nullopt});
    FAIL() << "created a stream on a missing device";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("no GPU 1000"), std::string::npos) << error.what();
  }
  EXPECT_THROW(DeviceMemory(-1), DeviceError);
  EXPECT_THROW(device_bytes(1000), DeviceError);
}

/// Two GPUs if the device is emulated. Each can access only its own memory.
class SeveralDevices : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
#if defined(SPARSESYNC_CUDA_EMULATED)
    emulated_cuda::limits().devices = 2;
    emulated_cuda::limits().reaches_all_memory = false;
#endif
    if (!IsSkipped() && device_facts().devices < 2) GTEST_SKIP() << "needs two GPUs";
  }
  void TearDown() override {
#if defined(SPARSESYNC_CUDA_EMULATED)
    emulated_cuda::limits() = {};
#endif
  }
};

/// A GPU that can access only its own memory, like most GPUs.
class OnlyDeviceMemory : public DeviceTest {
#if defined(SPARSESYNC_CUDA_EMULATED)
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulated_cuda::limits().reaches_all_memory = false;
  }
  void TearDown() override {
    emulated_cuda::limits() = {};
  }
#endif
};

// An H200 rejected Gradient::rows() here, because it has no values that a GPU could access.
TEST_F(OnlyDeviceMemory, rows_are_announced_without_values) {
  const TensorSpec tensor{"t", 1000, 4, DType::f32};
  const std::vector<Index> rows{3, 500, 999};
  const std::vector<float> ones(rows.size() * 4, 1.0F);
  expect_no_errors(local_workers("local", {}).run(2, [&](std::unique_ptr<Transport>& transport) {
    GpuWorker gpu(0, std::nullopt, 1);
    HostMemory words;
    SessionOptions options{kDeadline, 1};
    options.device = gpu.on_device();
    Session session(std::move(transport), words, options);
    BucketSpec spec{"b", {tensor}, "balanced"};
    spec.announce = true;
    const BucketId id = session.register_bucket(spec);
    const Gradient gradient = gpu.place(0, rows, std::as_bytes(std::span(ones)));
    const std::array announced{Gradient::rows(gradient.indices())};
    session.wait(session.announce(id, announced));
    session.synchronize(id, std::array{gradient});
    const TensorResult sum = gpu.fetch(0, session.result(id, 0));
    EXPECT_TRUE(std::equal(sum.indices.begin(), sum.indices.end(), rows.begin(), rows.end()));
    const auto* const values = reinterpret_cast<const float*>(sum.values.data);
    EXPECT_TRUE(std::all_of(values, values + ones.size(), [](float v) { return v == 2; }));
  }));
}

TEST_F(SeveralDevices, bytes_are_copied_from_one_gpu_to_another) {
  PinnedMemory pinned;
  DeviceMemory memory(0);
  DeviceMemory memory_of_other(1);
  const auto device_stream = make_device_stream(memory, pinned, {0, false, std::nullopt});
  const auto other = make_device_stream(memory_of_other, pinned, {1, false, std::nullopt});
  const Context here(memory, *device_stream);
  const Context there(memory_of_other, *other);
  auto* const bytes = static_cast<std::byte*>(pinned.allocate(128, 64, {}));
  std::fill_n(bytes, 64, std::byte{7});
  std::fill_n(bytes + 64, 64, std::byte{0});
  Buffer<std::byte> sent(there);
  copy(there, {bytes, 64}, sent.reserve(64).data());
  Event ready(there);
  ready.set(there);
  ready.make_wait(here);
  Buffer<std::byte> received(here);
  copy_from(there, sent.first(64), here, received.reserve(64).data());
  copy(here, received.first(64), bytes + 64);
  synchronize(here);
  EXPECT_TRUE(std::equal(bytes, bytes + 64, bytes + 64));
  pinned.deallocate(bytes, 128, 64, {});
}

#if defined(SPARSESYNC_CUDA_EMULATED)
/// Several GPUs that can access each other's memory.
class Peers : public SeveralDevices {
 protected:
  void SetUp() override {
    SeveralDevices::SetUp();
    emulated_cuda::limits().devices = 4;
    emulated_cuda::limits().reaches_peers = true;
    emulated_cuda::take_pools();
  }
};

// The driver maps each growth of a pool on each GPU that has access to it.
TEST_F(Peers, a_pool_is_mapped_only_on_the_named_gpus) {
  DeviceMemory(1);
  DeviceMemory(1, 1000, std::array{0, 1, 3});
  GpuWorker(2, std::nullopt, 1);
  GpuWorker(2, std::nullopt, 1, std::array{1, 2});
  std::vector<std::pair<int, std::set<int>>> found;
  for (const auto& [device, peers] : emulated_cuda::take_pools()) found.emplace_back(device, peers);
  const std::set<int> none;
  EXPECT_EQ(found, (std::vector<std::pair<int, std::set<int>>>{
                       {1, none}, {1, {0, 3}}, {2, none}, {2, none}, {2, {1}}, {2, {1}}}));
  EXPECT_THROW(DeviceMemory(1, std::nullopt, std::array{4}), DeviceError);
}

TEST_F(Peers, gpus_that_cannot_access_it_are_left_out) {
  emulated_cuda::limits().reaches_peers = false;
  DeviceMemory(1, std::nullopt, std::array{0});
  EXPECT_TRUE(emulated_cuda::take_pools().at(0).peers.empty());
}

/// Synchronizes one row with two workers on a GPU. Worker 0 calls `meanwhile` during the step.
void synchronize_on(int device, const std::function<void()>& meanwhile) {
  const std::vector<Index> rows{7};
  const std::vector<float> ones(4, 1.0F);
  expect_no_errors(local_workers("local", {}).run(2, [&](std::unique_ptr<Transport>& transport) {
    GpuWorker gpu(device, std::nullopt, 1);
    HostMemory words;
    SessionOptions options{kDeadline, 1};
    options.device = gpu.on_device();
    Session session(std::move(transport), words, options);
    const BucketId id = session.register_bucket({"b", {{"t", 50, 4, DType::f32}}, "balanced"});
    const Gradient gradient = gpu.place(0, rows, std::as_bytes(std::span(ones)));
    if (session.rank() == Rank{0}) meanwhile();
    session.synchronize(id, std::array{gradient});
    EXPECT_EQ(gpu.fetch(0, session.result(id, 0)).indices.size(), 1U);
  }));
}

// A context takes 500 MB of a GPU, and fails if the GPU is in exclusive use by another process.
TEST_F(SeveralDevices, work_on_one_creates_no_context_on_another) {
  emulated_cuda::take_contexts();
  synchronize_on(1, [] {});
  {
    DeviceMemory memory(1);
    PinnedMemory pinned;
    const auto device_stream = make_device_stream(memory, pinned, {1, false, std::nullopt});
    const Context context(memory, *device_stream);
    Event event(context);
    event.set(device_stream->stream());
    device_bytes(1);
  }
  EXPECT_EQ(emulated_cuda::take_contexts(), std::set{1});
}

TEST_F(DeviceTest, a_step_does_not_invalidate_the_programs_capture) {
  DeviceMemory memory(0);
  PinnedMemory pinned;
  const auto of_program = make_device_stream(memory, pinned);
  synchronize_on(0, [&] {
    // Worker 0's thread takes the role of a program's thread that captures a graph.
    emulated_cuda::begin_capture(of_program->stream().handle);
    EXPECT_TRUE(is_captured(of_program->stream()));
  });
  EXPECT_TRUE(emulated_cuda::end_capture());
  EXPECT_FALSE(is_captured(of_program->stream()));
}

/// A kernel that is not in the library's registry.
void unregistered_kernel() {}

// CUDA would load a kernel at its first launch and may wait for the whole GPU, whose work may wait
// for another worker. The emulated device fails such a launch.
TEST_F(SeveralDevices, a_session_has_loaded_all_kernels_before_its_first_step) {
  constexpr int kDevice = 7;  // no other test uses this device
  emulated_cuda::limits().devices = kDevice + 1;
  EXPECT_EQ(emulated_cuda::loaded_kernels(kDevice), 0U);
  std::size_t loaded = 0;
  synchronize_on(kDevice, [&] { loaded = emulated_cuda::loaded_kernels(kDevice); });
  EXPECT_GT(loaded, 100U);
  EXPECT_EQ(emulated_cuda::loaded_kernels(kDevice), loaded);
}

TEST_F(DeviceTest, a_launch_of_a_kernel_that_is_not_loaded_fails) {
  TestMemory memory;
  const DeviceUnderTest device(true);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream =
      static_cast<cudaStream_t>(device.context(memory).device_stream()->stream().handle);
  EXPECT_EQ(cudaLaunchKernelEx(&config, unregistered_kernel), cudaErrorInvalidDeviceFunction);
}

// CUB checks the thread's last error, which may come from another library.
TEST_F(DeviceTest, errors_left_by_others_do_not_fail_a_sort) {
  TestMemory memory;
  const DeviceUnderTest device(true);
  const Context context = device.context(memory);
  std::vector<Index> keys{3, 1, 2};
  SortWorkspace workspace(context);
  EXPECT_NE(cudaSetDevice(1000), cudaSuccess);
  sort_keys(context, keys, 4, workspace);
  synchronize(context);
  EXPECT_EQ(keys, (std::vector<Index>{1, 2, 3}));
}
#endif

#if defined(SPARSESYNC_WITH_CUDA)
/// Runs a step of two workers. Worker 1 runs out of memory at its k-th allocation. After waiting
/// for both phases, expects that the session's stream is idle.
/// @return whether the allocation failed
bool refuse_step(const Case& inputs, std::int64_t k) {
  bool has_failed = false;
  expect_no_errors(local_workers("local", {}).run(2, [&](std::unique_ptr<Transport>& transport) {
    const bool is_poor = transport->rank() == Rank{1};
    GpuWorker gpu(0, std::nullopt, 1);
    OnDevice device = gpu.on_device();
    FailingMemory memory(*device.memory);
    device.memory = &memory;
    HostMemory words;
    SessionOptions options{kDeadline, 1};
    options.device = device;
    options.late_refusals = true;
    Session session(std::move(transport), words, options);
    const BucketId id = session.register_bucket(inputs.spec);
    session.barrier();
    if (is_poor) memory.fail(k, Failure::budget);
    const std::vector<Gradient> gradients = inputs.of(session);
    const Session::Ticket reduced = session.submit(id, Phase::reduce, gradients);
    const Session::Ticket gathered = session.submit(id, Phase::gather);
    for (const Session::Ticket& ticket : {gathered, reduced}) {
      try {
        session.wait(ticket);
      } catch (const RefusedError&) {
      } catch (const BudgetError&) {
      }
    }
    EXPECT_EQ(cudaStreamQuery(static_cast<cudaStream_t>(device.stream->stream().handle)),
              cudaSuccess)
        << inputs.spec.scheme << ", allocation " << k << ", worker " << session.rank().value;
    if (!is_poor) return;
    has_failed = memory.has_failed();
    memory.stop_failing();
  }));
  return has_failed;
}

// After the wait, a program may release the memory of its gradients.
TEST_F(DeviceTest, nothing_of_a_refused_step_runs_after_the_wait) {
  for (const char* const scheme : {"balanced", "owned", "all_gather"}) {
    BucketSpec spec{"b", {{"t", 300, 8, DType::f32}, {"u", 90, 2, DType::bf16}}, scheme};
    spec.rounds = 1;
    const Case inputs(spec, 2, 1);
    std::int64_t k = 1;
    while (refuse_step(inputs, k) && !HasFailure()) ++k;
    EXPECT_GT(k, 3) << scheme;
  }
}
#endif

TEST_F(DeviceTest, a_session_warns_of_a_single_connection) {
  const auto warnings = [] {
    ::testing::internal::CaptureStderr();
    expect_no_errors(local_workers("local", {}).run(2, [](std::unique_ptr<Transport>& transport) {
      GpuWorker gpu(0, std::nullopt, 1);
      HostMemory words;
      SessionOptions options{kDeadline, 1};
      options.device = gpu.on_device();
      const Session session(std::move(transport), words, options);
    }));
    const std::string text = ::testing::internal::GetCapturedStderr();
    std::size_t count = 0;
    const std::string_view warning = "CUDA_DEVICE_MAX_CONNECTIONS=1:";
    for (std::size_t at = text.find(warning); at != std::string::npos;
         at = text.find(warning, at + 1)) {
      ++count;
    }
    return count;
  };
  // The workers are not running when the environment changes. NOLINTBEGIN(concurrency-mt-unsafe)
  EXPECT_EQ(warnings(), 0U);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_EQ(warnings(), 2U);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
  EXPECT_EQ(warnings(), 0U);
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  // NOLINTEND(concurrency-mt-unsafe)
}

// Each worker uses a separate GPU, in one process.
TEST_F(SeveralDevices, workers_on_several_gpus_get_the_sum) {
  constexpr int kSize = 2;
  const TensorSpec tensor{"t", 1000, 4, DType::f32};
  const std::vector<Index> rows{3, 500, 999};
  const std::vector<float> ones(rows.size() * 4, 1.0F);
  LocalNetwork network(kSize);
  const auto errors = run_transports(network, kSize, [&](std::unique_ptr<Transport>& transport) {
    GpuWorker gpu(transport->rank().value, std::nullopt, 1);
    HostMemory words;
    SessionOptions options{kDeadline, 1};
    options.device = gpu.on_device();
    Session session(std::move(transport), words, options);
    const BucketId id = session.register_bucket({"b", {tensor}, "balanced"});
    session.synchronize(id, std::array{gpu.place(0, rows, std::as_bytes(std::span(ones)))});
    const TensorResult sum = gpu.fetch(0, session.result(id, 0));
    EXPECT_TRUE(std::equal(sum.indices.begin(), sum.indices.end(), rows.begin(), rows.end()));
    const auto* const values = reinterpret_cast<const float*>(sum.values.data);
    EXPECT_TRUE(std::all_of(values, values + ones.size(), [](float v) { return v == 2; }));
  });
  expect_no_errors(errors);
}

TEST_F(SeveralDevices, a_stream_of_another_gpu_is_rejected) {
  DeviceMemory memory(0);
  PinnedMemory pinned;
  DeviceMemory memory_of_other(1);
  const auto other = make_device_stream(memory_of_other, pinned, {1, false, std::nullopt});
  try {
    make_device_stream(memory, pinned, {0, false, other->stream()});
    FAIL() << "accepted a stream of another GPU";
  } catch (const InputError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "the stream belongs to GPU 1, but the work is on GPU 0: pass a stream of GPU 0, or none");
  }
  make_device_stream(memory_of_other, pinned, {1, false, other->stream()});
}

TEST_F(SeveralDevices, gradients_on_another_gpu_are_rejected_and_the_next_step_works) {
  const TensorSpec tensor{"t", 50, 4, DType::f32};
  expect_no_errors(local_workers("local", {}).run(2, [&](std::unique_ptr<Transport>& transport) {
    HostMemory words;
    PinnedMemory pinned;
    DeviceMemory memory(0);
    DeviceMemory memory_of_other(1);
    const auto device_stream = make_device_stream(memory, pinned, {0, false, std::nullopt});
    const auto other = make_device_stream(memory_of_other, pinned, {1, false, std::nullopt});
    const bool is_wrong = transport->rank() == Rank{1};
    SessionOptions options{kDeadline, 1};
    options.device = OnDevice{device_stream.get(), &memory, &pinned};
    Session session(std::move(transport), words, options);
    const BucketId id = session.register_bucket({"b", {tensor}, "balanced"});
    const auto refused = [&](const Gradient& gradient, const std::string& text) {
      try {
        session.synchronize(id, std::array{is_wrong ? gradient : Gradient::empty()});
        ADD_FAILURE() << "accepted a gradient on another GPU";
      } catch (const InputError& error) {
        EXPECT_TRUE(is_wrong);
        EXPECT_EQ(std::string(error.what()), text);
      } catch (const RefusedError& error) {
        EXPECT_FALSE(is_wrong);
        EXPECT_EQ(error.reason(), text);
      }
    };
    const Context there(memory_of_other, *other);
    Buffer<std::byte> dense(there);
    refused(Gradient::dense(dense.reserve(50 * 4 * 4).data()),
            "a gradient's values: the memory is on GPU 1, but the work is on GPU 0: copy it there");
    const std::vector<Index> row{7};
    Buffer<std::byte> value(there);
    refused(
        Gradient::row_sparse(row, value.reserve(16).data()),
        "a gradient's indices: the memory is on the host, but the work is on GPU 0: copy it there");
    session.synchronize(id, std::array{Gradient::empty()});
    EXPECT_TRUE(session.result(id, 0).indices.empty());
  }));
}

// The next synchronization throws a fault that a kernel found, once. Work then continues.
TEST_F(DeviceTest, the_next_synchronization_reports_a_fault) {
  TestMemory memory;
  const DeviceUnderTest device(false);
  const Context context = device.context(memory);
  const std::vector<std::uint32_t> wrong{3, 900, 5};
  std::vector<Index> indices(3);
  decode(context, IndexCode::coo, {0, 100}, std::as_bytes(std::span(wrong)), indices);
  decode(context, IndexCode::coo, {0, 100}, std::as_bytes(std::span(wrong)), indices);
  std::vector<Index> one(1);
  number(context, one);
  EXPECT_THROW(resolve(context, Count(one.data())), CorruptDataError);
  EXPECT_EQ(resolve(context, Count(one.data())), 0);
  const std::vector<std::uint32_t> right{3, 5, 99};
  decode(context, IndexCode::coo, {0, 100}, std::as_bytes(std::span(right)), indices);
  synchronize(context);
  EXPECT_EQ(indices, (std::vector<Index>{3, 5, 99}));
}

TEST_F(DeviceTest, an_event_orders_two_streams) {
  TestMemory memory;
  const DeviceUnderTest first(false);
  const DeviceUnderTest second(false);
  const Context one = first.context(memory);
  const Context two = second.context(memory);
  std::vector<Index> source(1 << 16);
  std::vector<Index> numbers(source.size());
  std::vector<Index> shifted(source.size());
  number(one, source);
  Event written(one);
  written.make_wait(two);  // never recorded, so there is nothing to wait for
  for (Index round = 0; round < 5; ++round) {
    shift(one, source, 10 * round, numbers);
    written.set(one);
    if (round % 2 == 0) {
      written.make_wait(two);
    } else {
      written.make_wait(two.stream());
    }
    shift(two, numbers, 1, shifted);
    synchronize(two);
    EXPECT_EQ(shifted.back(), std::ssize(source) - 1 + 10 * round + 1);
  }
  synchronize(one);
}

/// Draws a step's gradients of four tensors: coalesced, reversed and dense.
std::vector<OwnedGradient> inputs_of(Random& random, const std::vector<TensorSpec>& tensors) {
  std::vector<OwnedGradient> own;
  for (const TensorSpec& tensor : tensors) own.push_back(some_rows(random, tensor, 60));
  std::reverse(own[1].indices.begin(), own[1].indices.end());
  own[3].layout = Gradient::Layout::dense;
  own[3].values.assign(static_cast<std::size_t>(tensors[3].rows * tensors[3].width * 2),
                       std::byte{0});
  return own;
}

class DeviceSteadyState : public ::testing::TestWithParam<SchemeVariant> {};

INSTANTIATE_TEST_SUITE_P(schemes, DeviceSteadyState, ::testing::ValuesIn(scheme_variants()),
                         [](const auto& each) { return each.param.label; });

TEST_P(DeviceSteadyState, allocates_nothing) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  const SchemeVariant& variant = GetParam();
  constexpr int kSize = 4;
  if (variant.entry().all_reduces || variant.announce || !variant.fits(kSize)) {
    GTEST_SKIP() << "not applicable to this scheme";
  }
  const std::vector<TensorSpec> tensors{{"a", 900, 8, DType::f32},
                                        {"b", 300, 3, DType::bf16},
                                        {"c", 200, 8, DType::f32},
                                        {"d", 40, 3, DType::bf16}};
  Random random(seed());
  Inputs inputs;
  for (int worker = 0; worker < kSize; ++worker) inputs.push_back(inputs_of(random, tensors));
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory& memory) {
    const auto rank = static_cast<std::size_t>(session.rank().value);
    const BucketId id = session.register_bucket(variant.bucket(tensors, 2));
    std::vector<Gradient> gradients;
    for (const OwnedGradient& gradient : inputs[rank]) gradients.push_back(gradient.view());
    session.synchronize(id, gradients);
    session.adapt(id);
    for (int i = 0; i < 3; ++i) session.synchronize(id, gradients);
    const std::int64_t before = memory.allocations();
    for (int i = 0; i < 5; ++i) session.synchronize(id, gradients);
    EXPECT_EQ(memory.allocations() - before, 0) << variant.label << ", worker " << rank;
  }));
}

/// Memory in which one allocation fails.
class FailingOnce : public MemoryResource {
 public:
  explicit FailingOnce(MemoryResource& upstream) : upstream_(upstream) {}
  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream) override {
    if (fails) {
      fails = false;
      throw DeviceMemoryError("memory of the device: out of memory");
    }
    return upstream_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                  Stream stream) noexcept override {
    upstream_.deallocate(pointer, bytes, alignment, stream);
  }
  bool fails = false;

 private:
  MemoryResource& upstream_;
};

// Before the first send, all workers agree on the failure, and the next step works.
TEST_F(DeviceTest, out_of_memory_before_the_first_send_is_agreed_and_the_next_step_works) {
  constexpr int kSize = 3;
  const TensorSpec tensor{"t", 500, 4, DType::f32};
  Random random(seed());
  ExactSum sum(tensor);
  Inputs inputs;
  for (int worker = 0; worker < kSize; ++worker) {
    inputs.push_back({some_rows(random, tensor, 100)});
    sum.add(inputs.back()[0]);
  }
  expect_no_errors(
      local_workers("local", {}).run(kSize, [&](std::unique_ptr<Transport>& transport) {
        HostMemory words;
        TestMemory counted;
        FailingOnce memory(counted);
        const DeviceUnderTest device(false);
        SessionOptions options{kDeadline, 1};
        options.device = OnDevice{device.device_stream(), &memory, &words};
        Session session(std::move(transport), words, options);
        const auto rank = static_cast<std::size_t>(session.rank().value);
        BucketSpec spec{"b", {tensor}, "balanced"};
        spec.rounds = 1;  // otherwise it would be retried in two rounds
        const BucketId id = session.register_bucket(spec);
        memory.fails = rank == 1;  // in the first step, which allocates its workspaces
        try {
          session.synchronize(id, std::array{inputs[rank][0].view()});
          ADD_FAILURE() << "worker " << rank << " completed the step";
        } catch (const DeviceMemoryError&) {
          EXPECT_EQ(rank, 1U);
        } catch (const RefusedError& refused) {
          EXPECT_EQ(refused.peer(), Rank{1});
          EXPECT_NE(refused.reason().find("out of memory"), std::string::npos) << refused.what();
        }
        session.synchronize(id, std::array{inputs[rank][0].view()});
        EXPECT_EQ(sum.difference(session.result(id, 0)), "");
      }));
}

// After the first send, the session ends on all workers, at the latest in the next step.
TEST_F(DeviceTest, out_of_memory_after_the_first_send_ends_the_session_on_all_workers) {
  constexpr int kSize = 3;
  const TensorSpec tensor{"t", 500, 4, DType::f32};
  Random random(seed());
  Inputs inputs;
  for (int worker = 0; worker < kSize; ++worker) {
    inputs.push_back({some_rows(random, tensor, 100)});
  }
  const auto errors =
      local_workers("local", {}).run(kSize, [&](std::unique_ptr<Transport>& transport) {
        HostMemory words;
        TestMemory counted;
        FailingOnce memory(counted);
        const DeviceUnderTest device(false);
        SessionOptions options{kDeadline, 1};
        options.device = OnDevice{device.device_stream(), &memory, &words};
        Session session(std::move(transport), words, options);
        const auto rank = static_cast<std::size_t>(session.rank().value);
        const BucketId id = session.register_bucket({"b", {tensor}, "balanced"});
        const auto reduced = session.submit(id, Phase::reduce, std::array{inputs[rank][0].view()});
        session.wait(reduced);
        memory.fails = rank == 1;  // a gather phase cannot be undone
        session.wait(session.submit(id, Phase::gather));
        // If worker 1 had sent its rows before it failed, the gather phase of the others succeeded.
        session.wait(session.submit(id, Phase::reduce, std::array{inputs[rank][0].view()}));
      });
  // The exception type must be one that ends the session.
  EXPECT_TRUE(is<AbortedError>(errors[1])) << text_of(errors[1]);
  EXPECT_NE(text_of(errors[1]).find("worker 1 ended the session"), std::string::npos);
  EXPECT_NE(text_of(errors[1]).find("out of memory"), std::string::npos) << text_of(errors[1]);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_TRUE(is<AbortedError>(errors[rank]) || is<PeerLostError>(errors[rank]))
        << text_of(errors[rank]);
  }
}

#if defined(SPARSESYNC_CUDA_EMULATED)

/// Limits of the emulated device that a test changes. The destructor restores them.
class Machine {
 public:
  ~Machine() { emulated_cuda::limits() = before_; }
  emulated_cuda::Limits* operator->() { return &emulated_cuda::limits(); }

 private:
  emulated_cuda::Limits before_ = emulated_cuda::limits();
};

/// Expects that every call that starts work on a GPU fails with this message.
void expect_refusal(const std::string& text) {
  HostMemory memory;
  const DeviceFacts facts = device_facts();
  EXPECT_EQ(facts.problem, text);
  EXPECT_EQ(facts.devices, 0);
  EXPECT_TRUE(facts.compiled_in);
  const std::vector<std::function<void()>> attempts{
      [&] { make_device_stream(memory, memory); },
      [] { DeviceMemory(0); },
      [] { device_bytes(0); },
      [] { device_of_worker(0); },
      [] { GpuWorker(0, std::nullopt, 1); },
      [&] {
        nccl_over(nullptr, {0, &memory, &memory, kDeadline});
      },
  };
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    try {
      attempts[i]();
      ADD_FAILURE() << "attempt " << i << " did not fail";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.what(), text) << "attempt " << i;
    }
  }
}

TEST_F(DeviceTest, without_a_driver_every_call_fails_and_names_the_reason) {
  Machine machine;
  machine->driver_version = 0;
  expect_refusal("no GPU: this machine has no CUDA driver");
}

TEST_F(DeviceTest, the_error_of_an_old_driver_names_both_versions) {
  Machine machine;
  machine->driver_version = 12040;
  expect_refusal(
      "no GPU: the driver supports CUDA 12.4, but the library needs CUDA 13.0: install a newer "
      "driver");
}

TEST_F(DeviceTest, a_driver_without_a_gpu_is_an_error) {
  Machine machine;
  machine->devices = 0;
  expect_refusal("no GPU: cudaErrorNoDevice");
}

TEST_F(DeviceTest, a_newer_driver_works) {
  Machine machine;
  machine->driver_version = 14010;
  EXPECT_EQ(device_facts().problem, "");
  EXPECT_NO_THROW(DeviceMemory(0));
}

// Workers of a machine are assigned to its GPUs round-robin.
TEST_F(DeviceTest, workers_are_assigned_to_gpus_round_robin) {
  Machine machine;
  machine->devices = 3;
  for (int worker = 0; worker < 7; ++worker) EXPECT_EQ(device_of_worker(worker), worker % 3);
}

// An allocation failure of the CUDA runtime is a typed error, changes no count, and the next
// allocation succeeds.
TEST_F(DeviceTest, running_out_of_device_memory_is_typed_and_temporary) {
  Machine machine;
  DeviceMemory memory(0);
  machine->allocations_until_failure = 1;
  void* const a = memory.allocate(100, 256, {});
  EXPECT_THROW(memory.allocate(200, 256, {}), DeviceMemoryError);
  EXPECT_EQ(memory.in_use(), 100);
  EXPECT_EQ(memory.high_water(), 100);
  void* const b = memory.allocate(200, 256, {});
  EXPECT_EQ(memory.in_use(), 300);
  memory.deallocate(a, 100, 256, {});
  memory.deallocate(b, 200, 256, {});
}

#endif

}  // namespace
}  // namespace sparsesync::testing
