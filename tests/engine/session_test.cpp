// The Session: several buckets in flight, the agreed order, agreement at registration, refusals,
// failures.
#include "engine/session.h"

#include <array>
#include <atomic>
#include <numeric>

#include "engine/agreement.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

const TensorSpec kTensor{"t", 200, 4, DType::f32};

/// A bucket's inputs for all workers, and their sum.
struct Case {
  Case(BucketSpec of, int size, std::uint64_t salt) : spec(std::move(of)) {
    Random random(seed() + salt);
    for (const TensorSpec& tensor : spec.tensors) sums.emplace_back(tensor);
    for (int worker = 0; worker < size; ++worker) {
      std::vector<OwnedGradient>& own = inputs.emplace_back();
      for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
        const Index rows = spec.tensors[t].rows;
        own.push_back(random_gradient(random, spec.tensors[t],
                                      distinct_rows(random, rows, random.below(rows / 2))));
        sums[t].add(own.back());
      }
    }
  }
  std::vector<Gradient> of(const Session& session) const {
    std::vector<Gradient> gradients;
    for (const OwnedGradient& own : inputs[static_cast<std::size_t>(session.rank().value)]) {
      gradients.push_back(own.view());
    }
    return gradients;
  }
  void check(Session& session, BucketId id) const {
    for (std::size_t t = 0; t < sums.size(); ++t) {
      EXPECT_EQ(sums[t].difference(session.result(id, t)), "")
          << spec.name << " on worker " << session.rank().value;
    }
  }
  BucketSpec spec;
  std::vector<std::vector<OwnedGradient>> inputs;
  std::vector<ExactSum> sums;
};

/// Four buckets of three schemes.
std::vector<Case> four_cases(int size) {
  std::vector<Case> cases;
  cases.emplace_back(BucketSpec{"a", {kTensor}, "balanced"}, size, 1);
  cases.emplace_back(BucketSpec{"b", {{"t", 50, 3, DType::f32}}, "dense_ring"}, size, 2);
  cases.emplace_back(
      BucketSpec{"c", {{"t", 300, 8, DType::bf16}, {"u", 90, 2, DType::f32}}, "all_gather"}, size,
      3);
  cases.emplace_back(BucketSpec{"d", {{"t", 120, 16, DType::f32}}, "balanced", Reduction::sum, 2},
                     size, 4);
  return cases;
}

std::vector<BucketId> register_all(Session& session, const std::vector<Case>& cases) {
  std::vector<BucketId> ids;
  for (const Case& each : cases) ids.push_back(session.register_bucket(each.spec));
  return ids;
}

TEST(Session, four_buckets_in_flight_and_gathers_in_reverse_order) {
  for (const int size : {1, 2, 3, 5}) {
    const std::vector<Case> cases = four_cases(size);
    expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
      const std::vector<BucketId> ids = register_all(session, cases);
      std::vector<OrderEntry> order;
      for (const BucketId id : ids) order.push_back({id, Phase::reduce});
      for (std::size_t i = ids.size(); i-- > 0;) order.push_back({ids[i], Phase::gather});
      session.set_order(order, 0);
      for (int step = 0; step < 3; ++step) {
        std::vector<std::vector<Gradient>> gradients;
        std::vector<Session::Ticket> tickets;
        for (std::size_t i = 0; i < ids.size(); ++i) {
          gradients.push_back(cases[i].of(session));
          tickets.push_back(session.submit(ids[i], Phase::reduce, gradients.back()));
        }
        for (const Session::Ticket& ticket : tickets) session.wait(ticket);
        for (std::size_t i = ids.size(); i-- > 0;)
          session.wait(session.submit(ids[i], Phase::gather));
        for (std::size_t i = 0; i < ids.size(); ++i) cases[i].check(session, ids[i]);
        EXPECT_EQ(session.step(), step + 1);
      }
    }));
  }
}

TEST(Session, a_reduce_between_the_phases_of_another_bucket) {
  constexpr int kSize = 3;
  const std::vector<Case> cases = four_cases(kSize);
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
    const std::vector<BucketId> ids = register_all(session, cases);
    const auto phase = [&](std::size_t i, Phase which) { return OrderEntry{ids[i], which}; };
    const std::vector<OrderEntry> order{phase(0, Phase::reduce), phase(1, Phase::reduce),
                                        phase(0, Phase::gather), phase(2, Phase::reduce),
                                        phase(3, Phase::reduce), phase(3, Phase::gather),
                                        phase(1, Phase::gather), phase(2, Phase::gather)};
    session.set_order(order, 0);
    std::vector<std::vector<Gradient>> gradients;
    for (const Case& each : cases) gradients.push_back(each.of(session));
    for (const OrderEntry& entry : order) {
      session.wait(entry.phase == Phase::reduce
                       ? session.submit(entry.bucket, entry.phase, gradients[entry.bucket.value])
                       : session.submit(entry.bucket, entry.phase));
    }
    for (std::size_t i = 0; i < ids.size(); ++i) cases[i].check(session, ids[i]);
  }));
}

TEST(Session, calls_in_any_order_are_posted_in_the_agreed_one) {
  constexpr int kSize = 4;
  const std::vector<Case> cases = four_cases(kSize);
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
    const std::vector<BucketId> ids = register_all(session, cases);
    std::vector<std::vector<Gradient>> gradients;
    for (const Case& each : cases) gradients.push_back(each.of(session));
    for (int step = 0; step < 4; ++step) {
      std::vector<Session::Ticket> tickets;
      // Each worker calls in an order of its own, and two steps ahead.
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::size_t which =
            (i + static_cast<std::size_t>(session.rank().value + step)) % ids.size();
        tickets.push_back(session.submit(ids[which], Phase::gather));
        tickets.push_back(session.submit(ids[which], Phase::reduce, gradients[which]));
      }
      if (step % 2 == 0) continue;
      // The last step's tickets are enough: phases are done in order.
      for (const Session::Ticket& ticket : tickets) session.wait(ticket);
      for (std::size_t i = 0; i < ids.size(); ++i) cases[i].check(session, ids[i]);
    }
    EXPECT_EQ(session.step(), 4);
  }));
}

TEST(Session, an_order_can_change_at_a_later_step) {
  const std::vector<Case> cases = four_cases(2);
  expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
    const std::vector<BucketId> ids = register_all(session, cases);
    std::vector<std::vector<Gradient>> gradients;
    for (const Case& each : cases) gradients.push_back(each.of(session));
    std::vector<OrderEntry> reversed;
    for (std::size_t i = ids.size(); i-- > 0;) {
      reversed.push_back({ids[i], Phase::reduce});
      reversed.push_back({ids[i], Phase::gather});
    }
    session.set_order(reversed, 2);
    for (int step = 0; step < 4; ++step) {
      for (std::size_t at = 0; at < ids.size(); ++at) {
        const std::size_t i = step < 2 ? at : ids.size() - 1 - at;
        // Waiting at once shows that this one is next.
        session.wait(session.submit(ids[i], Phase::reduce, gradients[i]));
        session.wait(session.submit(ids[i], Phase::gather));
        cases[i].check(session, ids[i]);
      }
    }
    EXPECT_THROW(session.set_order(reversed, 3), InputError);
    std::vector<OrderEntry> wrong = reversed;
    std::swap(wrong[0], wrong[1]);
    EXPECT_THROW(session.set_order(wrong, 9), InputError);
    wrong = reversed;
    wrong.pop_back();
    EXPECT_THROW(session.set_order(wrong, 9), InputError);
    wrong = reversed;
    wrong.push_back(reversed.back());
    EXPECT_THROW(session.set_order(wrong, 9), InputError);
    wrong.back().bucket.value = 99;
    EXPECT_THROW(session.set_order(wrong, 9), InputError);
  }));
}

TEST(Session, orders_that_differ_are_an_error_on_all_workers_and_change_nothing) {
  const std::vector<Case> cases = four_cases(3);
  expect_no_errors(run_sessions(3, [&](Session& session, HostMemory&) {
    const std::vector<BucketId> ids = register_all(session, cases);
    std::vector<OrderEntry> order;
    for (const BucketId id : ids) order.push_back({id, Phase::reduce});
    for (const BucketId id : ids) order.push_back({id, Phase::gather});
    if (session.rank().value == 2) std::swap(order[0], order[1]);
    try {
      session.set_order(order, 0);
      ADD_FAILURE() << "agreed";
    } catch (const AgreementError& error) {
      EXPECT_NE(std::string(error.what())
                    .find("entry 0 is reduce of bucket 'a' on worker 0 and reduce of "
                          "bucket 'b' on worker 2"),
                std::string::npos)
          << error.what();
    }
    session.wait(session.submit(ids[0], Phase::reduce, cases[0].of(session)));
    session.wait(session.submit(ids[0], Phase::gather));
    cases[0].check(session, ids[0]);
  }));
}

TEST(Session, whatever_differs_at_registration_is_named_with_both_sides_on_all_workers) {
  const BucketSpec same{"embeddings", {kTensor, {"u", 10, 2, DType::f32}}, "balanced"};
  struct Change {
    const char* expected;
    std::function<void(BucketSpec&)> apply;
  };
  const std::vector<Change> changes{
      {"tensor 't': width is 4 on worker 0 and 8 on worker 1",
       [](BucketSpec& b) { b.tensors[0].width = 8; }},
      {"tensor 'u': rows is 10 on worker 0 and 11 on worker 1",
       [](BucketSpec& b) { b.tensors[1].rows = 11; }},
      {"tensor 't': dtype is f32 on worker 0 and bf16 on worker 1",
       [](BucketSpec& b) { b.tensors[0].dtype = DType::bf16; }},
      {"the name of tensor 1 is 'u' on worker 0 and 'v' on worker 1",
       [](BucketSpec& b) { b.tensors[1].name = "v"; }},
      {"the number of tensors is 2 on worker 0 and 1 on worker 1",
       [](BucketSpec& b) { b.tensors.pop_back(); }},
      {"the scheme is balanced on worker 0 and all_gather on worker 1",
       [](BucketSpec& b) { b.scheme = "all_gather"; }},
      {"the reduction is sum on worker 0 and mean on worker 1",
       [](BucketSpec& b) { b.reduction = Reduction::mean; }},
      {"the number of rounds is 1 on worker 0 and 2 on worker 1",
       [](BucketSpec& b) { b.rounds = 2; }},
      {"the bucket's name is 'embeddings' on worker 0 and 'other' on worker 1",
       [](BucketSpec& b) { b.name = "other"; }},
  };
  for (const Change& change : changes) {
    std::atomic<int> told = 0;
    expect_no_errors(run_sessions(3, [&](Session& session, HostMemory&) {
      BucketSpec spec = same;
      if (session.rank().value == 1) change.apply(spec);
      try {
        session.register_bucket(spec);
      } catch (const AgreementError& error) {
        EXPECT_NE(std::string(error.what()).find(change.expected), std::string::npos)
            << error.what();
        ++told;
      }
      // Nothing was registered; the session goes on.
      const BucketId id = session.register_bucket(same);
      EXPECT_EQ(id.value, 0U);
    }));
    EXPECT_EQ(told, 3) << change.expected;
  }
}

TEST(Session, seeds_that_differ_are_named) {
  LocalNetwork network(2, {});
  const auto errors = run_transports(network, 2, [&](std::unique_ptr<Transport>& transport) {
    HostMemory memory;
    const auto own_seed = static_cast<std::uint64_t>(transport->rank().value) + 1;
    Session session(std::move(transport), memory, {kDeadline, own_seed});
    session.register_bucket({"b", {kTensor}});
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(is<AgreementError>(error));
    EXPECT_NE(text_of(error).find("the seed is 1 on worker 0 and 2 on worker 1"), std::string::npos)
        << text_of(error);
  }
}

TEST(Session, a_bucket_that_cannot_be_is_an_error_on_all_workers_and_changes_nothing) {
  expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
    const std::vector<BucketSpec> wrong{
        {"b", {}},
        {"b", {{"t", 0, 4, DType::f32}}},
        {"b", {{"t", 4, 0, DType::f32}}},
        {"b", {{"t", -4, 4, DType::f32}}},
        {"b", {{"", 4, 4, DType::f32}}},
        {"b", {kTensor, kTensor}},
        {"b", {{"t", Index{1} << 60, 8, DType::f32}}},
        {"b", {{"t", Index{1} << 31, Index{1} << 31, DType::f32}}},
        {"b", {kTensor}, "telepathy"},
        {"b", {kTensor}, "balanced", Reduction::sum, 0},
        {"b", {{"t", 4, 4, DType::i32}}, "balanced", Reduction::mean},
    };
    for (const BucketSpec& spec : wrong) EXPECT_THROW(session.register_bucket(spec), InputError);
    EXPECT_EQ(session.register_bucket({"b", {kTensor}}).value, 0U);
  }));
}

TEST(Session, a_budget_that_one_worker_lacks_is_known_to_all_at_registration) {
  LocalNetwork network(3, {});
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    const bool poor = transport->rank().value == 1;
    HostMemory memory(poor ? std::optional<std::int64_t>(100'000) : std::nullopt);
    Session session(std::move(transport), memory, {kDeadline, 1});
    try {
      session.register_bucket({"big", {{"t", 100'000, 4, DType::f32}}, "dense_ring"});
      ADD_FAILURE() << "registered";
    } catch (const BudgetError& error) {
      EXPECT_TRUE(poor);
      EXPECT_GE(error.needed(), 1'600'000);
      EXPECT_EQ(error.budget(), 100'000);
    } catch (const RefusedError& error) {
      EXPECT_FALSE(poor);
      EXPECT_EQ(error.peer().value, 1);
    }
    if (poor) {
      EXPECT_LE(memory.high_water(), 100'000);
    }
    const BucketId id =
        session.register_bucket({"small", {{"t", 10, 4, DType::f32}}, "dense_ring"});
    session.wait(session.submit(id, Phase::reduce, std::array{Gradient::empty()}));
    session.wait(session.submit(id, Phase::gather));
  });
  expect_no_errors(errors);
}

TEST(Session,
     a_budget_that_a_step_exceeds_before_its_first_send_is_agreed_and_the_next_step_works) {
  LocalNetwork network(3, {});
  const TensorSpec tensor{"t", 1'000'000, 16, DType::f32};
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    const int rank = transport->rank().value;
    HostMemory memory(rank == 2 ? std::optional<std::int64_t>(2'000'000) : std::nullopt);
    Session session(std::move(transport), memory, {kDeadline, 1});
    const BucketId id = session.register_bucket({"b", {tensor}, "balanced"});
    std::vector<Index> rows(50'000);
    std::iota(rows.begin(), rows.end(), Index{0});
    const std::vector<float> ones(rows.size() * 16, 1.0F);
    const auto* values = reinterpret_cast<const std::byte*>(ones.data());
    const std::span<const Index> few(rows.data(), 10);
    for (const bool much : {false, true, false}) {
      const std::array gradients{
          Gradient::row_sparse(much && rank == 2 ? std::span<const Index>(rows) : few, values)};
      const auto reduced = session.submit(id, Phase::reduce, gradients);
      const auto gathered = session.submit(id, Phase::gather);
      if (!much) {
        session.wait(reduced);
        session.wait(gathered);
        EXPECT_EQ(session.result(id, 0).indices.size(), 10U);
      } else if (rank == 2) {
        EXPECT_THROW(session.wait(reduced), BudgetError);
        EXPECT_THROW(session.wait(gathered), RefusedError);
      } else {
        EXPECT_THROW(session.wait(reduced), RefusedError);
        EXPECT_THROW(session.wait(gathered), RefusedError);
      }
    }
  });
  expect_no_errors(errors);
}

TEST(Session, a_budget_that_is_exceeded_after_the_first_send_ends_the_session_on_all_workers) {
  LocalNetwork network(3, {});
  const TensorSpec tensor{"t", 100'000, 64, DType::f32};
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    const int rank = transport->rank().value;
    // Worker 1 has nothing to send, and no room for what the others send it.
    HostMemory memory(rank == 1 ? std::optional<std::int64_t>(400'000) : std::nullopt);
    Session session(std::move(transport), memory, {kDeadline, 1});
    const BucketId id = session.register_bucket({"b", {tensor}, "balanced"});
    std::vector<Index> rows(20'000);
    std::iota(rows.begin(), rows.end(), Index{0});
    const std::vector<float> ones(rows.size() * 64, 1.0F);
    const std::array gradients{
        rank == 1 ? Gradient::empty()
                  : Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(ones.data()))};
    const auto reduced = session.submit(id, Phase::reduce, gradients);
    const auto gathered = session.submit(id, Phase::gather);
    try {
      session.wait(reduced);
      session.wait(gathered);
      ADD_FAILURE() << "worker " << rank << " was not told";
    } catch (const BudgetError&) {
      EXPECT_EQ(rank, 1);
    } catch (const AbortedError& error) {
      EXPECT_EQ(error.peer().value, 1);
      EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
    }
    // Over is over, with the same error.
    EXPECT_THROW(session.wait(session.submit(id, Phase::reduce, gradients)), Error);
    EXPECT_THROW(session.barrier(), Error);
  });
  expect_no_errors(errors);
}

TEST(Session, a_predecessor_that_is_not_submitted_is_a_typed_error) {
  const std::vector<Case> cases = four_cases(2);
  const auto errors = run_sessions(2,
                                   [&](Session& session, HostMemory&) {
                                     const std::vector<BucketId> ids = register_all(session, cases);
                                     const std::vector<Gradient> gradients = cases[1].of(session);
                                     session.wait(session.submit(ids[1], Phase::reduce, gradients));
                                   },
                                   {std::chrono::milliseconds(200), 1});
  for (const auto& error : errors) {
    EXPECT_TRUE(is<OrderError>(error) || is<AbortedError>(error)) << text_of(error);
    EXPECT_NE(text_of(error).find("reduce of bucket 'a'"), std::string::npos) << text_of(error);
  }
}

TEST(Session, a_worker_that_never_comes_is_a_deadline) {
  LocalNetwork network(3, {});
  std::atomic<int> over = 0;
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank().value == 2) {
      while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    HostMemory memory;
    Session session(std::move(transport), memory, {std::chrono::milliseconds(200), 1});
    try {
      session.register_bucket({"b", {kTensor}});
    } catch (...) {
      ++over;
      throw;
    }
    ++over;
  });
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_TRUE(is<DeadlineError>(errors[rank]) || is<AbortedError>(errors[rank]))
        << text_of(errors[rank]);
  }
}

TEST(Session, a_worker_that_leaves_in_the_middle_is_a_typed_error_on_all_others) {
  for (const char* scheme : {"dense_ring", "all_gather", "balanced"}) {
    const Case inputs({"b", {kTensor}, scheme}, 4, 1);
    const auto errors = run_sessions(4, [&](Session& session, HostMemory&) {
      const BucketId id = session.register_bucket(inputs.spec);
      const std::vector<Gradient> gradients = inputs.of(session);
      session.wait(session.submit(id, Phase::reduce, gradients));
      if (session.rank().value == 3) return;
      session.wait(session.submit(id, Phase::gather));
      session.barrier();
    });
    EXPECT_FALSE(errors[3]);
    for (const std::size_t rank : {0U, 1U, 2U}) {
      EXPECT_TRUE(is<PeerLostError>(errors[rank]) || is<AbortedError>(errors[rank]))
          << scheme << ", worker " << rank << ": " << text_of(errors[rank]);
    }
  }
}

TEST(Session, workers_with_other_schedules_of_buckets_are_out_of_step_and_told) {
  const std::vector<Case> cases = four_cases(2);
  const auto errors = run_sessions(2, [&](Session& session, HostMemory&) {
    if (session.rank().value == 0) {
      const BucketId id = session.register_bucket(cases[0].spec);
      session.wait(session.submit(id, Phase::reduce, cases[0].of(session)));
    } else {
      session.barrier();
      session.barrier();
    }
  });
  EXPECT_TRUE(is<ProtocolError>(errors[0]) || is<AbortedError>(errors[0]) ||
              is<AgreementError>(errors[0]))
      << text_of(errors[0]);
  EXPECT_TRUE(errors[1]) << "worker 1 was not told";
}

TEST(Session, a_wrong_number_of_gradients_is_refused) {
  const Case inputs({"b", {kTensor, {"u", 9, 1, DType::f32}}}, 2, 1);
  expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
    const BucketId id = session.register_bucket(inputs.spec);
    const auto ticket = session.submit(id, Phase::reduce, std::array{Gradient::empty()});
    const auto gathered = session.submit(id, Phase::gather);
    EXPECT_THROW(session.wait(ticket), Error);
    EXPECT_THROW(session.wait(gathered), RefusedError);
    session.wait(session.submit(id, Phase::reduce, inputs.of(session)));
    session.wait(session.submit(id, Phase::gather));
    inputs.check(session, id);
  }));
}

TEST(Session, a_step_in_one_call_has_the_sum_and_a_refused_one_leaves_the_next_alone) {
  constexpr int kSize = 3;
  const Case inputs({"b", {kTensor}}, kSize, 10);
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
    const BucketId id = session.register_bucket(inputs.spec);
    session.synchronize(id, inputs.of(session));
    inputs.check(session, id);
    const std::array<Index, 1> outside{kTensor.rows};
    const std::array<std::byte, 16> values{};
    if (session.rank().value == 1) {
      EXPECT_THROW(
          session.synchronize(id, std::array{Gradient::row_sparse(outside, values.data())}),
          InputError);
    } else {
      EXPECT_THROW(session.synchronize(id, inputs.of(session)), RefusedError);
    }
    session.synchronize(id, inputs.of(session));
    inputs.check(session, id);
    EXPECT_EQ(session.step(), 3);
  }));
}

TEST(Session, adapting_changes_the_grid_alike_on_all_workers_and_not_the_result) {
  const TensorSpec wide{"t", 20'000, 64, DType::f32};
  constexpr int kSize = 4;
  const Case inputs({"b", {wide}}, kSize, 9);
  std::array<std::vector<SpaceChoice>, kSize> before;
  std::array<std::vector<SpaceChoice>, kSize> after;
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
    const auto rank = static_cast<std::size_t>(session.rank().value);
    const BucketId id = session.register_bucket(inputs.spec);
    before.at(rank) = session.choices(id);
    for (int step = 0; step < 2; ++step) {
      session.wait(session.submit(id, Phase::reduce, inputs.of(session)));
      session.wait(session.submit(id, Phase::gather));
      inputs.check(session, id);
      session.adapt(id);
    }
    after.at(rank) = session.choices(id);
  }));
  for (const std::vector<SpaceChoice>& choices : after) {
    ASSERT_EQ(choices.size(), 1U);
    EXPECT_EQ(choices[0].row_groups, after[0][0].row_groups);
    EXPECT_EQ(choices[0].column_slices, after[0][0].column_slices);
    EXPECT_EQ(*choices[0].row_groups * *choices[0].column_slices, kSize);
  }
}

TEST(Session, a_session_that_is_destroyed_gives_up_what_waits) {
  HostMemory memory;
  LocalNetwork network(1, {});
  Session session(network.join(Rank{0}), memory, {kDeadline, 1});
  const BucketId id = session.register_bucket({"b", {kTensor}});
  const BucketId other = session.register_bucket({"c", {kTensor}});
  EXPECT_NE(id, other);
  session.submit(other, Phase::reduce, std::array{Gradient::empty()});
}

}  // namespace
}  // namespace sparsesync::testing
