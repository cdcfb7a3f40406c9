// two_level in a session: nodes as reported by the transport, and statistics of its sparsity.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "engine/session/bucket_agreement.h"
#include "schemes/registry.h"
#include "sparsesync/session.h"
#include "tests/engine/session/session_cases.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

/// Runs threads of one process as workers, with `workers_per_node` on each node.
std::vector<std::exception_ptr> run_on_nodes(int size, int workers_per_node,
                                             const std::function<void(Session&)>& body) {
  return run_sessions(local_workers("local", {}, workers_per_node), size,
                      [&](Session& session, HostMemory&) { body(session); });
}

BucketSpec bucket_of(const TensorSpec& tensor, const std::string& scheme) {
  return {"b", {tensor}, scheme};
}

TEST(TwoLevel, uses_the_nodes_that_the_transport_reports) {
  const Case inputs(bucket_of({"t", 40, 4, DType::f32}, "two_level"), 6, 1);
  expect_no_errors(run_on_nodes(6, 2, [&](Session& session) {
    const BucketId id = session.register_bucket(inputs.spec);
    const std::int64_t before = session.counters().messages_sent;
    inputs.synchronize(session, id);
    // In each phase, one message around the ring of two, and two to the other nodes.
    EXPECT_EQ(session.counters().messages_sent - before, 2 * (1 + 2));
    session.barrier();
  }));
}

TEST(TwoLevel, needs_nodes_of_equal_size_or_an_option) {
  const TensorSpec tensor{"t", 40, 4, DType::f32};
  expect_no_errors(run_on_nodes(5, 2, [&](Session& session) {
    try {
      session.register_bucket(bucket_of(tensor, "two_level"));
      ADD_FAILURE() << "accepted nodes of 2, 2 and 1 workers";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("--workers-per-node"), std::string::npos)
          << error.what();
    }
    BucketSpec told = bucket_of(tensor, "two_level");
    told.options.workers_per_node = 5;
    const BucketId one_node = session.register_bucket(told);
    const BucketId no_nodes = session.register_bucket(bucket_of(tensor, "balanced"));
    session.synchronize(one_node, std::array{Gradient::empty()});
    session.synchronize(no_nodes, std::array{Gradient::empty()});
    session.barrier();
  }));
}

TEST(TwoLevel, rejects_invalid_options_in_one_line_with_a_fix) {
  const auto refusal = [](int per_node, const std::string& between, Index block = 256) {
    SchemeOptions options;
    options.workers_per_node = per_node;
    options.between_nodes = between;
    options.block = block;
    try {
      scheme_named("two_level").check(options, 6);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const int fits : {1, 2, 3, 6}) EXPECT_EQ(refusal(fits, "sparse_ps"), "");
  const auto expect_said = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  };
  expect_said(refusal(4, "balanced"), {"4", "6 workers", "divisor"});
  expect_said(refusal(-1, "balanced"), {"-1"});
  expect_said(refusal(12, "balanced"), {"12"});
  for (const char* const no_scheme : {"telepathy", "two_level", "dense_native", ""}) {
    expect_said(refusal(2, no_scheme), {no_scheme, "use one of", "balanced", "sparse_ps"});
    EXPECT_EQ(refusal(2, no_scheme).find("two_level,"), std::string::npos);
  }
  expect_said(refusal(2, "block_ps", 0), {"block_ps", "0 elements"});
}

// Few wide rows: columns must be divided among the nodes. The dense result does not show the number
// of rows.
TEST(TwoLevel, adapts_to_the_rows_that_are_sent_between_nodes) {
  const TensorSpec tensor{"t", 20'000, 64, DType::f32};
  Random random(seed());
  const Case inputs(bucket_of(tensor, "two_level"), 8, random, 40);
  expect_no_errors(run_on_nodes(8, 2, [&](Session& session) {
    const BucketId id = session.register_bucket(inputs.spec);
    inputs.synchronize(session, id);
    session.adapt(id);
    const SpaceChoice choice = session.choices(id)[0];
    EXPECT_EQ(choice.row_groups, 1);
    EXPECT_EQ(choice.column_slices, 4);
    session.barrier();
  }));
}

/// A transport that only reports nodes.
class OnlyNodes : public Transport {
 public:
  explicit OnlyNodes(std::vector<int> nodes) : nodes_(std::move(nodes)) {}
  Rank rank() const override { return {}; }
  int size() const override { return static_cast<int>(nodes_.size()); }
  int node(Rank worker) const override { return nodes_[static_cast<std::size_t>(worker.value)]; }
  GroupId post(const Context&, const Header&, std::span<const Send>, std::span<const Receive>,
               ReceiveProvider&) override {
    return {};
  }
  std::optional<Arrival> next(GroupId, Clock::time_point) override { return std::nullopt; }
  void finish(GroupId, Clock::time_point) override {}
  void abort(const std::string&) noexcept override {}
  TransportCounters counters() const override { return {}; }

 private:
  std::vector<int> nodes_;
};

TEST(Nodes, must_have_equally_many_workers_of_consecutive_ranks) {
  const auto workers = [](std::vector<int> nodes) {
    return workers_of_a_node(OnlyNodes(std::move(nodes)));
  };
  EXPECT_EQ(workers({7}), 1);
  EXPECT_EQ(workers({0, 0, 0, 0}), 4);
  EXPECT_EQ(workers({0, 0, 2, 2, 4, 4}), 2);
  EXPECT_EQ(workers({5, 1, 3}), 1);
  EXPECT_EQ(workers({0, 0, 1}), 0);
  EXPECT_EQ(workers({0, 1, 1}), 0);
  EXPECT_EQ(workers({0, 1, 0, 1}), 0);
  EXPECT_EQ(workers({0, 0, 1, 1, 0, 0}), 0);
  EXPECT_EQ(workers({0, 0, 1, 2}), 0);
  EXPECT_EQ(workers({0, 0, 1, 1, 1, 1}), 0);
}

}  // namespace
}  // namespace sparsesync::testing
