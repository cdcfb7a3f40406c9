// ctest: DEVICES
// The Session: several buckets in flight, the agreed order, and adaptation.
#include "sparsesync/session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/session/session_cases.h"
#include "tests/support/flush_to_zero.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

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

TEST(Session, a_reduce_may_run_between_the_phases_of_another_bucket) {
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

TEST(Session, calls_in_any_order_run_in_the_agreed_order) {
  constexpr int kSize = 4;
  const std::vector<Case> cases = four_cases(kSize);
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
    const std::vector<BucketId> ids = register_all(session, cases);
    std::vector<std::vector<Gradient>> gradients;
    for (const Case& each : cases) gradients.push_back(each.of(session));
    for (int step = 0; step < 4; ++step) {
      std::vector<Session::Ticket> tickets;
      // Each worker calls in a different order, and two steps ahead.
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::size_t which =
            (i + static_cast<std::size_t>(session.rank().value + step)) % ids.size();
        tickets.push_back(session.submit(ids[which], Phase::gather));
        tickets.push_back(session.submit(ids[which], Phase::reduce, gradients[which]));
      }
      if (step % 2 == 0) continue;
      // Waiting for the tickets of the last step is enough, because phases complete in order.
      for (const Session::Ticket& ticket : tickets) session.wait(ticket);
      for (std::size_t i = 0; i < ids.size(); ++i) cases[i].check(session, ids[i]);
    }
    EXPECT_EQ(session.step(), 4);
  }));
}

TEST(Session, a_source_is_called_once_per_step_when_its_phase_starts) {
  constexpr int kSize = 3;
  for (const char* const scheme : {"balanced", "auto"}) {
    const Case first({"first", {kTensor}}, kSize, 1);
    const Case second({"second", {kTensor}, scheme}, kSize, 2);
    expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
      const std::vector<BucketId> ids = register_all(session, {first, second});
      CountingSource source(second.of(session));
      for (int step = 0; step < 3; ++step) {
        const Session::Ticket reduced = session.submit(ids[1], source);
        EXPECT_EQ(source.calls, step) << "called before the first bucket's phase ended";
        const std::vector<Gradient> gradients = first.of(session);
        session.submit(ids[0], Phase::reduce, gradients);
        session.submit(ids[0], Phase::gather);
        session.wait(session.submit(ids[1], Phase::gather));
        session.wait(reduced);
        EXPECT_EQ(source.calls, step + 1);
        EXPECT_EQ(source.thread, session.thread());
        first.check(session, ids[0]);
        second.check(session, ids[1]);
      }
      // A later step with gradients as arguments.
      first.synchronize(session, ids[0]);
      second.synchronize(session, ids[1]);
      EXPECT_EQ(source.calls, 3);
    }));
  }
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
        // Waiting immediately shows that this bucket is the next one.
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

/// Options of a session that runs phases as they are submitted.
SessionOptions as_submitted() {
  SessionOptions options{kDeadline, 1};
  options.as_submitted = true;
  return options;
}

TEST(Session, phases_that_run_as_submitted_need_not_include_all_buckets) {
  for (const int size : {1, 3, 4}) {
    const std::vector<Case> cases = four_cases(size);
    const Case late({"late", {kTensor}, "auto"}, size, 5);
    const auto body = [&](Session& session, HostMemory&) {
      std::vector<BucketId> ids = register_all(session, cases);
      for (int i = 0; i < 3; ++i) cases[1].synchronize(session, ids[1]);
      EXPECT_EQ(session.step(), 3);
      ids.push_back(session.register_bucket(late.spec));
      session.release_bucket(ids[1]);
      for (int i = 0; i < 40; ++i) {  // more steps than `auto` tries schemes
        late.synchronize(session, ids[4]);
        if (i % 3 == 0) cases[0].synchronize(session, ids[0]);
      }
      EXPECT_EQ(session.step(), 3 + 40 + 14);

      const std::vector<Gradient> of_2 = cases[2].of(session);
      const std::vector<Gradient> of_3 = cases[3].of(session);
      session.submit(ids[3], Phase::reduce, of_3);
      session.submit(ids[2], Phase::reduce, of_2);
      session.submit(ids[2], Phase::gather);
      session.wait(session.submit(ids[3], Phase::gather));
      cases[2].check(session, ids[2]);
      cases[3].check(session, ids[3]);
    };
    expect_no_errors(run_sessions(size, body, as_submitted()));
  }
}

TEST(Session, phases_that_run_as_submitted_are_checked) {
  const Case one({"one", {kTensor}}, 2, 1);
  const auto body = [&](Session& session, HostMemory&) {
    const BucketId id = session.register_bucket(one.spec);
    EXPECT_THROW(session.submit(id, Phase::gather), InputError);
    const std::vector<Gradient> gradients = one.of(session);
    const Session::Ticket reduced = session.submit(id, Phase::reduce, gradients);
    EXPECT_THROW(session.submit(id, Phase::reduce, gradients), InputError);
    session.wait(session.submit(id, Phase::gather));
    session.wait(reduced);
    one.check(session, id);
    EXPECT_THROW(session.set_order({{id, Phase::reduce}, {id, Phase::gather}}, 1), InputError);
    one.synchronize(session, id);
  };
  expect_no_errors(run_sessions(2, body, as_submitted()));
}

TEST(Session, a_step_in_one_call_gives_the_sum_and_a_refused_one_does_not_affect_the_next) {
  constexpr int kSize = 3;
  const Case inputs({"b", {kTensor}}, kSize, 10);
  expect_no_errors(run_sessions(kSize, [&](Session& session, HostMemory&) {
    const BucketId id = session.register_bucket(inputs.spec);
    inputs.synchronize(session, id);
    // Allocated with `new`, because a GPU cannot access the stack.
    const std::vector<Index> outside{kTensor.rows};
    const std::vector<std::byte> values(16);
    if (session.rank().value == 1) {
      EXPECT_THROW(
          session.synchronize(id, std::array{Gradient::row_sparse(outside, values.data())}),
          InputError);
    } else {
      EXPECT_THROW(session.synchronize(id, inputs.of(session)), RefusedError);
    }
    inputs.synchronize(session, id);
    EXPECT_EQ(session.step(), 3);
  }));
}

TEST(Session, adapting_changes_the_grid_equally_on_all_workers_and_not_the_result) {
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
      inputs.synchronize(session, id);
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

TEST(Session, destroying_a_session_abandons_pending_phases) {
  HostMemory memory;
  LocalNetwork network(1, {});
  Session session(network.join(Rank{0}), memory, {kDeadline, 1});
  const BucketId id = session.register_bucket({"b", {kTensor}});
  const BucketId other = session.register_bucket({"c", {kTensor}});
  EXPECT_NE(id, other);
  session.submit(other, Phase::reduce, std::array{Gradient::empty()});
}

TEST(Session, a_broadcast_sends_the_bytes_of_one_worker_to_all) {
  for (const int size : {1, 2, 5}) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, (std::size_t{5} << 20U) + 3}) {
      expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
        const Rank root{size - 1};
        std::vector<std::byte> own(bytes, std::byte{1});
        if (session.rank() == root) {
          for (std::size_t i = 0; i < bytes; ++i) own[i] = static_cast<std::byte>(i % 251);
        }
        session.broadcast(own, root);
        bool same = true;
        for (std::size_t i = 0; i < bytes; ++i) {
          same = same && own[i] == static_cast<std::byte>(i % 251);
        }
        EXPECT_TRUE(same) << bytes << " bytes, " << size << " workers";
        // Each worker sends the bytes at most once, plus headers.
        const auto most = static_cast<std::int64_t>(bytes) + 6 * kHeaderBytes;
        EXPECT_LE(session.counters().bytes_sent, most);
      }));
    }
  }
}

TEST(Session, sums_do_not_depend_on_the_floating_point_modes_of_the_caller) {
  if (!kHasFlushToZero || on_cuda()) GTEST_SKIP() << "needs a processor with a flush-to-zero mode";
  // Denormals, and a sum that is rounded up to nearest.
  const std::array<float, 3> values{1e-40F, 1.0F, 0x1.8p-24F};
  const std::array<float, 3> sums{3 * 1e-40F, 3.0F, 0x1.2p-22F};
  const std::span<const std::byte> bits = std::as_bytes(std::span(sums));
  for (const char* scheme : {"all_gather", "recursive_doubling", "balanced", "dense_ring"}) {
    expect_no_errors(local_workers("local", {}).run(3, [&](std::unique_ptr<Transport>& transport) {
      std::optional<FlushToZero> own;
      if (transport->rank() == Rank{1}) own.emplace();
      HostMemory memory;
      Session session(std::move(transport), memory, {.deadline = kDeadline, .threads = 2});
      const BucketId id = session.register_bucket({"b", {{"t", 1000, 3, DType::f32}}, scheme});
      std::vector<float> gradient;
      for (int row = 0; row < 1000; ++row) {
        gradient.insert(gradient.end(), values.begin(), values.end());
      }
      session.synchronize(id,
                          std::array{Gradient::dense(std::as_bytes(std::span(gradient)).data())});
      const TensorResult result = session.result(id, 0);
      ASSERT_EQ(result.values.rows, 1000) << scheme;
      for (Index row = 0; row < 1000; ++row) {
        // Compare bits, because in this mode a denormal equals zero.
        ASSERT_EQ(std::memcmp(result.values.data + row * 12, bits.data(), bits.size()), 0)
            << scheme << ", row " << row << " on worker " << session.rank().value;
      }
    }));
  }
}

TEST(Session, a_broadcast_of_several_sizes_is_an_error) {
  const auto errors = run_sessions(3, [&](Session& session, HostMemory&) {
    std::vector<std::byte> own(session.rank() == Rank{1} ? 100 : 200);
    session.broadcast(own, Rank{0});
  });
  EXPECT_TRUE(is<ProtocolError>(errors[1])) << text_of(errors[1]);
}

TEST(Session, all_workers_receive_the_strings_of_all_others) {
  expect_no_errors(run_sessions(4, [&](Session& session, HostMemory&) {
    const auto said_by = [](int rank) { return std::string(static_cast<std::size_t>(rank), 'x'); };
    const std::vector<std::string> all = session.all_gather(said_by(session.rank().value));
    ASSERT_EQ(all.size(), 4U);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(all[static_cast<std::size_t>(rank)], said_by(rank));
  }));
}

TEST(Session, all_workers_learn_which_of_several_statements_differs) {
  const auto errors = run_sessions(3, [&](Session& session, HostMemory&) {
    session.agree("the model", {{"layers", "2"}, {"width", session.rank() == Rank{2} ? "9" : "8"}});
  });
  for (const std::exception_ptr& error : errors) {
    EXPECT_TRUE(is<AgreementError>(error)) << text_of(error);
    EXPECT_NE(text_of(error).find("the model: width is 8 on worker 0 and 9 on worker 2"),
              std::string::npos)
        << text_of(error);
  }
}

TEST(Session, squares_are_available_before_the_gather_phase_if_the_scheme_has_sums_then) {
  const std::vector<std::string> with{"balanced",     "balanced_hash", "block_ps",
                                      "dense_direct", "dense_ring",    "dynamic_split",
                                      "owned",        "sparse_ps",     "split_all_gather"};
  // The list omits dense_native, which does not run over every transport, and two_level, which
  // behaves like the scheme between its nodes.
  std::vector<std::string> names{"all_gather", "recursive_doubling"};
  names.insert(names.end(), with.begin(), with.end());
  for (const std::string& name : names) {
    const Case step({"b", {kTensor, {"flags", 3, 1, DType::f32}}, name}, 2, 7);
    expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
      const BucketId id = session.register_bucket(step.spec);
      const auto sum = std::make_unique<double>(-1);
      session.keep_squares(id, 1, sum.get());
      const Session::Ticket reduced = session.submit(id, Phase::reduce, step.of(session));
      session.wait(reduced);
      const bool has = std::ranges::find(with, name) != with.end();
      EXPECT_EQ(session.has_squares(id), has) << name;
      const double before = *sum;
      EXPECT_EQ(before > 0, has) << name;
      session.wait(session.submit(id, Phase::gather));
      step.check(session, id);
      EXPECT_EQ(*sum, before) << name;

      session.keep_squares(id, 0, nullptr);
      *sum = -1;
      step.synchronize(session, id);
      EXPECT_EQ(*sum, -1) << name;
      EXPECT_FALSE(session.has_squares(id)) << name;
    }));
  }
}

TEST(Session, squares_of_tensors_that_share_a_row_space_with_others_are_rejected) {
  const BucketSpec spec{"b", {kTensor, {"u", 9, 4, DType::f32}, {"i", 9, 1, DType::i32}}};
  for (const std::size_t tensors : std::array<std::size_t, 5>{0, 1, 2, 3, 4}) {
    expect_no_errors(run_sessions(1, [&](Session& session, HostMemory&) {
      const BucketId id = session.register_bucket(spec);
      double sum = 0;
      const bool whole = tensors == 0 || tensors == 2;
      const auto keep = [&] { session.keep_squares(id, tensors, &sum); };
      if (whole) return keep();
      EXPECT_THROW(keep(), ContractError) << tensors;
    }));
  }
}

TEST(Session, reports_the_use_of_a_bucket) {
  const std::vector<Case> cases = four_cases(3);
  expect_no_errors(run_sessions(3, [&](Session& session, HostMemory&) {
    const std::vector<BucketId> ids = register_all(session, cases);
    TransportCounters sum;
    const TransportCounters before = session.counters();
    for (std::size_t i = 0; i < ids.size(); ++i) cases[i].synchronize(session, ids[i]);
    for (const BucketId id : ids) {
      EXPECT_GT(session.use(id).seconds, 0);
      EXPECT_GT(session.use(id).crossed.bytes_sent, 0);
      sum += session.use(id).crossed;
    }
    const TransportCounters all = session.counters() - before;
    EXPECT_EQ(sum.bytes_sent, all.bytes_sent);
    EXPECT_EQ(sum.bytes_received, all.bytes_received);
    EXPECT_EQ(sum.messages_sent, all.messages_sent);
    EXPECT_EQ(sum.messages_received, all.messages_received);
  }));
}

TEST(Session, waits_until_a_timeout) {
  const Case one(BucketSpec{"a", {kTensor}, "balanced"}, 2, 1);
  std::promise<void> waited;
  expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
    const BucketId id = session.register_bucket(one.spec);
    const std::vector<Gradient> gradients = one.of(session);
    if (session.rank() == Rank{1}) waited.get_future().wait();
    const Session::Ticket reduced = session.submit(id, Phase::reduce, gradients);
    if (session.rank() == Rank{0}) {
      // A phase cannot complete before the other worker has started it.
      EXPECT_FALSE(session.wait_for(reduced, std::chrono::milliseconds(20)));
      waited.set_value();
    }
    const Session::Ticket gathered = session.submit(id, Phase::gather);
    while (!session.wait_for(gathered, std::chrono::milliseconds(20))) {
    }
    session.wait(reduced);
    one.check(session, id);
  }));
}

}  // namespace
}  // namespace sparsesync::testing
