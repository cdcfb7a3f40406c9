// ctest: NEEDS CUDA DEVICES NCCL SLOW SchemeSuite
// Transport `nccl` among threads of this process: the conformance suites of transports and of
// schemes, and features of NCCL. They run on several GPUs, on the emulated device, or on one GPU
// that ranks may share (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL 2.30 or later).
#include "sparsesync/transports/nccl.h"

#include <gmock/gmock.h>

#include <limits>
#include <thread>

#include "tests/support/scheme_suite.h"
#include "tests/support/transport_suite.h"

#if defined(SPARSESYNC_CUDA_EMULATED)
#include "engine/transport/nccl_library.h"
#include "tests/emulated_cuda/controls.h"
#endif

namespace sparsesync::testing {
namespace {

/// Resets the transport at the end of a scope, also after an exception, before its memory is
/// released.
struct Leaving {
  std::unique_ptr<Transport>& transport;
  ~Leaving() { transport.reset(); }
};

/// Returns workers that are threads with GPUs, connected through a network of this process.
WorkersUnderTest nccl_workers(std::chrono::milliseconds deadline = kDeadline) {
  WorkersUnderTest workers = local_workers("nccl", {});
  workers.has_all_reduce = true;
  workers.run = [run = workers.run, deadline](int size, const WorkersUnderTest::Body& body) {
    return run(size, [&](std::unique_ptr<Transport>& transport) {
      TestMemory memory;
      TestMemory pinned;
      const Leaving leaving{transport};
      transport = nccl_over(std::move(transport), {0, &memory, &pinned, deadline});
      body(transport);
    });
  };
  return workers;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SchemeSuite);

// Only on GPUs, because NCCL has nothing to connect on the host.
INSTANTIATE_TEST_SUITE_P(nccl, TransportSuite,
                         ::testing::ValuesIn(on_cuda() ? std::vector{nccl_workers()}
                                                       : std::vector<WorkersUnderTest>{}),
                         [](const auto& each) { return each.param.name; });

const std::array<std::vector<int>, 3> kSizes =
    kSanitized ? std::array<std::vector<int>, 3>{{{1, 4}, {3}, {2}}}
               : std::array<std::vector<int>, 3>{{{1, 2, 3, 5, 8}, {4}, {3}}};

INSTANTIATE_TEST_SUITE_P(nccl, SchemeSuite,
                         ::testing::ValuesIn(on_cuda() ? all_schemes_over(nccl_workers(), 8, kSizes)
                                                       : std::vector<SchemeUnderTest>{}),
                         [](const auto& each) { return each.param.variant.label; });

/// An NCCL network, if the device under test has one.
class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  }
  static void expect_sums(int size) {
    expect_no_errors(nccl_workers().run(size, [&](std::unique_ptr<Transport>& transport) {
      TestMemory memory;
      const DeviceUnderTest device(false, &memory);
      std::vector<float> elements{1, 2, static_cast<float>(transport->rank().value)};
      transport->all_reduce(device.context(memory), DType::f32,
                            std::as_writable_bytes(std::span(elements)), Clock::now() + kDeadline);
      const auto all = static_cast<float>(size);
      EXPECT_EQ(elements, (std::vector<float>{all, 2 * all, all * (all - 1) / 2}));
      // Before its stream is destroyed, whose waits it checks.
      transport.reset();
    }));
  }
};

TEST_F(Nccl, one_worker_connects_and_sums) {
  expect_sums(1);
}

// scripts/gpu-run runs this test first, because NCCL may not let two ranks share a GPU.
TEST_F(Nccl, two_workers_connect_and_sum) {
  expect_sums(2);
}

// A worker that cannot join reports it, and the others do not wait for it.
TEST_F(Nccl, a_worker_without_its_gpu_is_lost_to_the_others) {
  const auto errors = local_workers("local", {}).run(2, [](std::unique_ptr<Transport>& transport) {
    TestMemory memory;
    const int device = transport->rank() == Rank{1} ? 1000 : 0;
    nccl_over(std::move(transport), {device, &memory, &memory, kDeadline});
  });
  EXPECT_TRUE(is<PeerLostError>(errors[0])) << text_of(errors[0]);
  EXPECT_TRUE(is<DeviceError>(errors[1]));
  EXPECT_THAT(text_of(errors[1]), ::testing::HasSubstr("no GPU 1000"));
}

#if defined(SPARSESYNC_CUDA_EMULATED)
TEST_F(Nccl, different_versions_are_both_named_on_all_workers) {
  const auto errors = local_workers("local", {}).run(3, [](std::unique_ptr<Transport>& transport) {
    TestMemory memory;
    if (transport->rank() == Rank{1}) emulated_cuda::nccl_behavior().version = 22809;
    nccl_over(std::move(transport), {0, &memory, &memory, kDeadline});
  });
  for (const std::exception_ptr& error : errors) {
    EXPECT_TRUE(is<AgreementError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), ::testing::HasSubstr("the version of NCCL"));
    EXPECT_THAT(text_of(error), ::testing::HasSubstr("2.30.7"));
    EXPECT_THAT(text_of(error), ::testing::HasSubstr("2.28.9"));
  }
}

constexpr int kForever = std::numeric_limits<int>::max();

/// Exchanges a message with another worker.
void exchange_with(Transport& transport, Rank other) {
  const std::vector<std::byte> data(100);
  Taker taker(1);
  const std::array sends{Send{other, data.data(), std::ssize(data)}};
  const GroupId group = transport.post(own_context(), {}, sends, std::array{Receive{other}}, taker);
  ASSERT_TRUE(transport.next(group, soon()));
  transport.finish(group, soon());
  synchronize(own_context());
}

/// Runs an all-reduce of device memory.
void all_reduce(Transport& transport, const Context& context, Clock::time_point until) {
  std::vector<float> elements(100, 1);
  transport.all_reduce(context, DType::f32, std::as_writable_bytes(std::span(elements)), until);
}

TEST_F(Nccl, a_call_in_progress_rejects_all_others) {
  const nccl::Library& library = nccl::library();
  nccl::UniqueId id{};
  library.get_unique_id(&id);
  nccl::Comm comm = nullptr;
  nccl::Config config;
  float element = 3;
  const auto sum = [&] {
    return library.all_reduce(&element, &element, 1, nccl::kFloat32, nccl::kSum, comm,
                              static_cast<cudaStream_t>(own_context().stream().handle));
  };
  const auto expect_in_progress = [&] {
    constexpr nccl::Result kInvalidArgument = 4;
    nccl::Result state = nccl::kSuccess;
    int count = 0;
    for (int poll = 0; poll < emulated_cuda::nccl_behavior().polls; ++poll) {
      EXPECT_EQ(library.comm_count(comm, &count), kInvalidArgument);
      EXPECT_EQ(sum(), kInvalidArgument);
      EXPECT_EQ(library.comm_finalize(comm), kInvalidArgument);
      EXPECT_EQ(library.comm_destroy(comm), kInvalidArgument);
      EXPECT_EQ(library.comm_get_async_error(comm, &state), nccl::kSuccess);
      EXPECT_EQ(state, nccl::kInProgress);
    }
    EXPECT_EQ(library.comm_get_async_error(comm, &state), nccl::kSuccess);
    EXPECT_EQ(state, nccl::kSuccess);
    EXPECT_EQ(library.comm_count(comm, &count), nccl::kSuccess);
  };
  ASSERT_EQ(library.comm_init_rank_config(&comm, 1, id, 0, &config), nccl::kInProgress);
  expect_in_progress();
  ASSERT_EQ(sum(), nccl::kInProgress);
  expect_in_progress();
  ASSERT_EQ(library.comm_finalize(comm), nccl::kInProgress);
  expect_in_progress();
  EXPECT_EQ(library.comm_destroy(comm), nccl::kSuccess);
  EXPECT_EQ(emulated_cuda::nccl_communicators(), 0);
  own_context().device_stream()->record_work();
  synchronize(own_context());
}

TEST_F(Nccl, a_group_that_connects_watches_only_its_workers) {
  const WorkersUnderTest workers = nccl_workers(std::chrono::seconds(10));
  const auto wait_for_counter = [&](int value) {
    while (workers.counter() < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto errors = workers.run(3, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == Rank{2}) return wait_for_counter(2);
    exchange_with(*transport, Rank{1 - transport->rank().value});
    ++workers.counter();
    if (transport->rank() == Rank{1}) return wait_for_counter(3);
    emulated_cuda::nccl_behavior().polls = kForever;
    try {
      exchange_with(*transport, Rank{2});
    } catch (...) {
      ++workers.counter();
      throw;
    }
    ++workers.counter();
  });
  EXPECT_TRUE(is<PeerLostError>(errors[0])) << text_of(errors[0]);
  EXPECT_THAT(text_of(errors[0]), ::testing::HasSubstr("worker 2"));
  EXPECT_FALSE(errors[1]) << text_of(errors[1]);
}

TEST_F(Nccl, an_error_that_a_later_poll_reports_ends_the_wait) {
  const WorkersUnderTest workers = nccl_workers();
  const auto errors = workers.run(2, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == Rank{1}) {
      while (workers.counter() < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    constexpr int kInternalError = 3;
    Taker taker(1);
    const std::array receives{Receive{Rank{1}}};
    const GroupId group = transport->post(own_context(), {}, {}, receives, taker);
    emulated_cuda::nccl_behavior().async_error = {.polls = 20, .result = kInternalError};
    try {
      transport->next(group, Clock::now() + std::chrono::seconds(10));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("NCCL: emulated error"));
      EXPECT_EQ(emulated_cuda::nccl_communicators(), 1) << "only the other worker's may remain";
    }
    ++workers.counter();
    transport->post(own_context(), {}, {}, receives, taker);
  });
  EXPECT_TRUE(is<DeviceError>(errors[0])) << text_of(errors[0]);
  EXPECT_THAT(text_of(errors[0]), ::testing::HasSubstr("failed earlier"));
  EXPECT_FALSE(errors[1]) << text_of(errors[1]);
}

TEST_F(Nccl, a_communicator_that_does_not_finalize_is_aborted) {
  expect_no_errors(nccl_workers().run(1, [&](std::unique_ptr<Transport>& transport) {
    emulated_cuda::nccl_behavior().polls = kForever;
    transport.reset();
    EXPECT_EQ(emulated_cuda::nccl_communicators(), 0);
  }));
}

TEST_F(Nccl, an_abort_that_does_not_end_continues_without_its_worker) {
  const auto errors = local_workers("local", {}).run(1, [](std::unique_ptr<Transport>& transport) {
    constexpr std::chrono::seconds kEnding{10};
    emulated_cuda::nccl_behavior().ending = kEnding;
    TestMemory memory;
    TestMemory pinned;
    transport = nccl_over(std::move(transport), {0, &memory, &pinned, kDeadline});
    emulated_cuda::nccl_behavior().polls = kForever;
    const Clock::time_point begin = Clock::now();
    const Leaving leaving{transport};
    EXPECT_THROW(all_reduce(*transport, own_context(), begin + std::chrono::milliseconds(50)),
                 DeadlineError);
    EXPECT_LT(Clock::now() - begin, kEnding);
  });
  expect_no_errors(errors);
  while (emulated_cuda::nccl_communicators() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Before NCCL 2.19, only the thread of a call in progress can abort it.
TEST_F(Nccl, an_old_version_aborts_in_the_thread_of_the_call) {
  const auto errors = local_workers("local", {}).run(1, [](std::unique_ptr<Transport>& transport) {
    emulated_cuda::nccl_behavior().version = 21805;
    TestMemory memory;
    TestMemory pinned;
    transport = nccl_over(std::move(transport), {0, &memory, &pinned, kDeadline});
    const Leaving leaving{transport};
    emulated_cuda::nccl_behavior().polls = kForever;
    all_reduce(*transport, own_context(), Clock::now() + std::chrono::milliseconds(50));
  });
  EXPECT_TRUE(is<DeadlineError>(errors[0])) << text_of(errors[0]);
  EXPECT_EQ(emulated_cuda::nccl_communicators(), 0);
}

TEST_F(Nccl, an_abort_does_not_invalidate_the_programs_capture) {
  expect_no_errors(nccl_workers().run(1, [](std::unique_ptr<Transport>& transport) {
    TestMemory memory;
    const DeviceUnderTest of_program(false, &memory);
    // A thread of the library, in which no call invalidates the capture.
    own_context().device_stream()->make_current();
    emulated_cuda::nccl_behavior().polls = kForever;
    emulated_cuda::begin_capture(of_program.device_stream()->stream().handle);
    EXPECT_THROW(all_reduce(*transport, own_context(), Clock::now()), DeadlineError);
    EXPECT_TRUE(emulated_cuda::end_capture());
  }));
}

TEST_F(Nccl, waits_after_an_error_are_for_work_of_this_process) {
  expect_no_errors(nccl_workers().run(2, [](std::unique_ptr<Transport>& transport) {
    const Rank other{1 - transport->rank().value};
    Taker taker(1);
    const GroupId group = transport->post(own_context(), {}, {}, std::array{Receive{other}}, taker);
    if (transport->rank() == Rank{1}) {
      EXPECT_THROW(transport->next(group, soon()), PeerLostError);
      return;
    }
    EXPECT_THROW(transport->next(group, Clock::now() + std::chrono::milliseconds(50)),
                 DeadlineError);
    int polls = 0;
    emulated_cuda::enqueue_waiting(static_cast<cudaStream_t>(own_context().stream().handle),
                                   [&] { return ++polls > 3; });
    own_context().device_stream()->record_work();
    own_context().device_stream()->synchronize();
  }));
}

TEST_F(Nccl, the_thread_that_connected_may_end) {
  const auto errors = local_workers("local", {}).run(1, [](std::unique_ptr<Transport>& transport) {
    TestMemory memory;
    TestMemory pinned;
    const Leaving leaving{transport};
    std::thread connecting([&] {
      transport = nccl_over(std::move(transport), {0, &memory, &pinned, kDeadline});
    });
    connecting.join();
    all_reduce(*transport, own_context(), soon());
  });
  expect_no_errors(errors);
}

TEST_F(Nccl, a_replaced_stream_is_not_watched) {
  expect_no_errors(nccl_workers().run(1, [&](std::unique_ptr<Transport>& transport) {
    TestMemory memory;
    const DeviceUnderTest first(false, &memory);
    const DeviceUnderTest second(false, &memory);
    for (const DeviceUnderTest* device : {&first, &second}) {
      all_reduce(*transport, device->context(memory), soon());
    }
    transport.reset();
    int polls = 0;
    emulated_cuda::enqueue_waiting(
        static_cast<cudaStream_t>(first.device_stream()->stream().handle),
        [&] { return ++polls > 3; });
    first.device_stream()->record_work();
    first.device_stream()->synchronize();
  }));
}
#endif

TEST(NcclText, names_the_version_or_the_reason_why_there_is_none) {
  EXPECT_THAT(nccl_text(), ::testing::MatchesRegex("[0-9]+[.][0-9]+[.][0-9]+|[(].+[)]"));
}

}  // namespace
}  // namespace sparsesync::testing
