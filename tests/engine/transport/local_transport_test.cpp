// ctest: NOT_QUICK DEVICES
// Transport `local`: the conformance suite, with and without a link, and the guarantees of a link.
#include "schemes/pattern.h"
#include "sparsesync/transports/local.h"

#include "engine/transport/staged.h"
#include "tests/support/transport_suite.h"

namespace sparsesync::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(local, TransportSuite,
                         ::testing::Values(local_workers("unshaped", {}),
                                           local_workers("shaped", {1e9, 100e-6}),
                                           local_workers("slow_start", {std::nullopt, 2e-3})),
                         [](const auto& each) { return each.param.name; });

/// Returns workers whose network can access only host memory.
WorkersUnderTest staged_workers() {
  WorkersUnderTest workers = local_workers("staged", {});
  workers.run = [run = workers.run](int size, const WorkersUnderTest::Body& body) {
    HostMemory pinned;  // outlives all transports
    return run(size, [&](std::unique_ptr<Transport>& transport) {
      transport = staged(std::move(transport), pinned);
      body(transport);
    });
  };
  return workers;
}

INSTANTIATE_TEST_SUITE_P(staged, TransportSuite, ::testing::Values(staged_workers()),
                         [](const auto& each) { return each.param.name; });

/// Sends `bytes` from worker 0 to every other worker at once. Returns the seconds until the last
/// one has received everything.
double seconds_to_send(int size, LocalLink link, std::int64_t bytes) {
  LocalNetwork network(size, link);
  HostMemory memory;
  const Context context(memory);
  std::atomic<int> ready = 0;
  Clock::time_point begin;
  std::vector<Clock::time_point> ends(static_cast<std::size_t>(size));
  expect_no_errors(run_transports(network, size, [&](std::unique_ptr<Transport>& transport) {
    const std::vector<std::byte> data(static_cast<std::size_t>(bytes));
    std::vector<Send> sends;
    std::vector<Receive> receives;
    if (transport->rank().value == 0) {
      for (const Rank peer : peers_after(Rank{0}, size))
        sends.push_back({peer, data.data(), bytes});
    } else {
      receives.push_back({Rank{0}});
    }
    Taker taker(1);
    ++ready;
    while (ready < size) std::this_thread::yield();
    if (transport->rank().value == 0) begin = Clock::now();
    const GroupId group = transport->post(context, {}, sends, receives, taker);
    while (transport->next(group, soon())) {
    }
    ends.at(static_cast<std::size_t>(transport->rank().value)) = Clock::now();
    transport->finish(group, soon());
  }));
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - begin).count();
}

// A link is never faster than its rate and latency allow. How much slower it is on a loaded machine
// is not tested.
TEST(LocalLink, nothing_arrives_before_rate_and_latency_allow) {
  const std::int64_t bytes = 50'000;
  const LocalLink link{20e6, 10e-3};
  const double one = static_cast<double>(bytes + kHeaderBytes) * 8 / *link.rate_bps;
  EXPECT_GE(seconds_to_send(2, link, bytes), one + link.latency_s);
  // Three messages share one outgoing link.
  EXPECT_GE(seconds_to_send(4, link, bytes), 3 * one + link.latency_s);
}

TEST(LocalTransport, an_abort_is_reported_even_if_the_worker_leaves_at_once) {
  LocalNetwork network(3, {});
  HostMemory memory;
  const Context context(memory);
  const std::array<std::byte, 8> data{};
  const auto waiting = network.join(Rank{0});
  auto aborting = network.join(Rank{1});
  const auto sending = network.join(Rank{2});
  // While worker 2's message is being copied, worker 1 aborts and leaves.
  class Meanwhile : public Taker {
   public:
    explicit Meanwhile(std::unique_ptr<Transport>& transport) : Taker(2), transport_(transport) {}
    std::byte* provide(std::size_t receive, const Header& header) override {
      transport_->abort("too much");
      transport_.reset();
      return Taker::provide(receive, header);
    }

   private:
    std::unique_ptr<Transport>& transport_;
  };
  Taker none(0);
  sending->post(context, {}, std::array{Send{Rank{0}, data.data(), std::int64_t{8}}}, {}, none);
  Meanwhile meanwhile(aborting);
  const std::array receives{Receive{Rank{1}}, Receive{Rank{2}}};
  const GroupId group = waiting->post(context, {}, {}, receives, meanwhile);
  try {
    waiting->next(group, soon());
    ADD_FAILURE() << "the abort was not reported";
  } catch (const AbortedError& error) {
    EXPECT_EQ(error.peer(), Rank{1});
    EXPECT_NE(std::string(error.what()).find("too much"), std::string::npos) << error.what();
  }
}

TEST(LocalTransport, posted_receives_are_discarded_after_an_error) {
  LocalNetwork network(2, {});
  HostMemory memory;
  const Context context(memory);
  const std::array<std::byte, 8> data{};
  const auto waiting = network.join(Rank{0});
  const auto late = network.join(Rank{1});
  const std::array receives{Receive{Rank{1}}};
  Taker none(0);
  {
    Taker gone(1);
    const GroupId group = waiting->post(context, {}, {}, receives, gone);
    EXPECT_THROW(waiting->next(group, Clock::now()), DeadlineError);
  }
  late->post(context, {}, std::array{Send{Rank{0}, data.data(), std::int64_t{8}}}, {}, none);
  Taker taker(1);
  const auto again = [&] {
    waiting->next(waiting->post(context, {}, {}, receives, taker), soon());
  };
  EXPECT_THROW(again(), Error);
  EXPECT_TRUE(taker.payloads[0].empty());
}

/// Two workers, of which worker 1 sends to worker 0.
class TwoWorkers {
 public:
  explicit TwoWorkers(LocalLink link) : network_(2, link) {}

  Transport& receiver() { return *receiver_; }
  GroupId post_receive() {
    return receiver_->post(context_, {}, {}, std::array{Receive{Rank{1}}}, taker_);
  }
  void post_send() {
    sender_->post(context_, {}, std::array{Send{Rank{0}, data_.data(), std::int64_t{8}}}, {},
                  none_);
  }

 private:
  LocalNetwork network_;
  HostMemory memory_;
  Context context_{memory_};
  std::array<std::byte, 8> data_{};
  Taker taker_{1};
  Taker none_{0};
  std::unique_ptr<Transport> receiver_ = network_.join(Rank{0});
  std::unique_ptr<Transport> sender_ = network_.join(Rank{1});
};

TEST(LocalTransport, has_an_arrival_if_next_would_not_wait) {
  TwoWorkers workers({});
  Transport& receiver = workers.receiver();
  const GroupId first = workers.post_receive();
  const GroupId second = workers.post_receive();
  EXPECT_FALSE(receiver.has_arrival(first));
  workers.post_send();
  EXPECT_TRUE(receiver.has_arrival(first));
  EXPECT_FALSE(receiver.has_arrival(second)) << "the only message is for the previous group";
  workers.post_send();
  EXPECT_TRUE(receiver.next(first, soon()));
  EXPECT_FALSE(receiver.has_arrival(first));
  EXPECT_TRUE(receiver.has_arrival(second));
  EXPECT_TRUE(receiver.next(second, soon()));
  EXPECT_FALSE(receiver.has_arrival(second));
}

TEST(LocalTransport, has_no_arrival_while_a_message_is_in_flight) {
  TwoWorkers workers({std::nullopt, 3600});
  const GroupId group = workers.post_receive();
  workers.post_send();
  EXPECT_FALSE(workers.receiver().has_arrival(group));
}

TEST(LocalLink, nodes_are_distinguished) {
  LocalNetwork network(5, {}, 2);
  const auto transport = network.join(Rank{0});
  EXPECT_EQ(transport->node(Rank{0}), transport->node(Rank{1}));
  EXPECT_NE(transport->node(Rank{1}), transport->node(Rank{2}));
  EXPECT_EQ(transport->node(Rank{4}), 2);
}

}  // namespace
}  // namespace sparsesync::testing
