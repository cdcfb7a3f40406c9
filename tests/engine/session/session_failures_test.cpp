// ctest: NOT_QUICK
// Failures of a Session: mismatched or invalid registrations, refused steps, and lost workers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/session/progress_thread.h"
#include "engine/support/log.h"
#include "schemes/transport.h"
#include "sparsesync/session.h"
#include "tests/engine/session/session_cases.h"
#include "tests/support/forwarding_transport.h"
#include "tests/support/networks.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

/// Runs three sessions, one of which has a memory budget of `budget` bytes.
std::vector<std::exception_ptr> run_with_poor_worker(
    Rank poor, std::int64_t budget, const std::function<void(Session&, HostMemory&)>& body) {
  return run_sessions(local_workers("local", {}), 3, body, [=](Rank rank) {
    return SessionStart{{kDeadline, 1}, rank == poor ? std::optional(budget) : std::nullopt};
  });
}

TEST(Session, all_workers_report_a_mismatch_at_registration_with_both_values) {
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
      {"the number of rounds is automatic on worker 0 and 2 on worker 1",
       [](BucketSpec& b) { b.rounds = 2; }},
      {"the bucket's name is 'embeddings' on worker 0 and 'other' on worker 1",
       [](BucketSpec& b) { b.name = "other"; }},
  };
  for (const Change& change : changes) {
    std::atomic<int> reported = 0;
    expect_no_errors(run_sessions(3, [&](Session& session, HostMemory&) {
      BucketSpec spec = same;
      if (session.rank().value == 1) change.apply(spec);
      try {
        session.register_bucket(spec);
      } catch (const AgreementError& error) {
        EXPECT_NE(std::string(error.what()).find(change.expected), std::string::npos)
            << error.what();
        ++reported;
      }
      // Nothing was registered, and the session is still usable.
      const BucketId id = session.register_bucket(same);
      EXPECT_EQ(id.value, 0U);
    }));
    EXPECT_EQ(reported, 3) << change.expected;
  }
}

TEST(Session, different_seeds_are_reported) {
  const auto errors = run_sessions(
      local_workers("local", {}), 2,
      [&](Session& session, HostMemory&) {
        session.register_bucket({"b", {kTensor}});
      },
      [](Rank rank) {
        return SessionStart{{kDeadline, static_cast<std::uint64_t>(rank.value) + 1}};
      });
  for (const auto& error : errors) {
    EXPECT_TRUE(is<AgreementError>(error));
    EXPECT_NE(text_of(error).find("the seed is 1 on worker 0 and 2 on worker 1"), std::string::npos)
        << text_of(error);
  }
}

TEST(Session, an_invalid_bucket_is_an_error_on_all_workers_and_changes_nothing) {
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

TEST(Session, a_statement_that_is_too_long_is_rejected_on_all_workers_and_changes_nothing) {
  const std::string most(std::size_t{64} << 20U, 'x');
  const std::string more = most + "y";
  std::atomic<int> reported = 0;
  const auto expect_refused = [&](const std::function<void()>& call, int worker) {
    try {
      call();
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("worker {} contributes ", worker)),
                std::string::npos)
          << error.what();
      ++reported;
    }
  };
  expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
    const bool last = session.rank() == Rank{1};
    expect_refused([&] { session.all_gather(last ? more : "short"); }, 1);
    expect_refused([&] { session.all_gather(more); }, 0);
    const std::string name = last ? more.substr(0, most.size() / 4) : "t";  // appears four times
    expect_refused([&] { session.register_bucket({"b", {{name, 10, 4, DType::f32}}}); }, 1);
    const std::vector<std::string> all = session.all_gather(last ? most : "short");
    EXPECT_TRUE(all[1] == most && all[0] == "short");
    EXPECT_EQ(session.register_bucket({"b", {kTensor}}).value, 0U);
  }));
  EXPECT_EQ(reported, 6);
}

TEST(Session, reasons_of_other_workers_are_shown_without_control_characters) {
  const std::string hostile = "\x1b[31mred\x9b\nsecond line";
  const std::string shown = R"(\x1b[31mred\x9b\x0asecond line)";
  EXPECT_EQ(std::string(RefusedError(Rank{3}, hostile).what()),
            "worker 3 refused the step: " + shown);
  try {
    throw_aborted(Rank{3}, hostile);
  } catch (const AbortedError& error) {
    EXPECT_EQ(std::string(error.what()), "worker 3 ended the session: " + shown);
  }
  ::testing::internal::CaptureStderr();
  log(LogLevel::warning, hostile);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "sparsesync: warning: " + shown + "\n");
}

TEST(Session, a_budget_that_is_too_small_on_one_worker_is_reported_by_all_at_registration) {
  const auto errors =
      run_with_poor_worker(Rank{1}, 100'000, [&](Session& session, HostMemory& memory) {
        const bool poor = session.rank() == Rank{1};
        try {
          session.register_bucket({"big", {{"t", 100'000, 4, DType::f32}}, "dense_ring"});
          ADD_FAILURE() << "registered a bucket that exceeds a budget";
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
  const TensorSpec tensor{"t", 1'000'000, 16, DType::f32};
  const auto errors = run_with_poor_worker(Rank{2}, 2'000'000, [&](Session& session, HostMemory&) {
    const int rank = session.rank().value;
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
        EXPECT_THROW(session.wait(gathered), BudgetError);
      } else {
        EXPECT_THROW(session.wait(reduced), RefusedError);
        EXPECT_THROW(session.wait(gathered), RefusedError);
      }
      EXPECT_EQ(session.rounds(id), 1);  // more do not help: the sums alone are too large
    }
  });
  expect_no_errors(errors);
}

/// Peak memory and final number of rounds of a worker in steps_in_rounds().
struct RoundsSeen {
  std::int64_t high_water = 0;
  int rounds = 0;
  std::string error;
};

/// Runs three steps of rows that all workers touch and checks each result. The second step is
/// larger than the others. Worker 2 has `budget`, and worker 1 submits its gradients through a
/// source.
RoundsSeen steps_in_rounds(std::optional<std::int64_t> budget, std::optional<int> rounds,
                           const std::string& scheme = "balanced") {
  constexpr int kWidth = 32;
  const TensorSpec tensor{"t", 1'000'000, kWidth, DType::f32};
  std::vector<RoundsSeen> seen(3);
  const auto start = [&](Rank rank) {
    SessionStart own{{kDeadline, 1}, rank == Rank{2} ? budget : std::nullopt};
    own.options.network = kQuick;  // so that `auto` makes the same choice in each run,
    own.options.trials = 0;        // which must not depend on measured times
    return own;
  };
  const auto body = [&](Session& session, HostMemory& memory) {
    RoundsSeen& own = seen[session.rank().index()];
    BucketSpec spec{"b", {tensor}, scheme};
    spec.rounds = rounds;
    const BucketId id = session.register_bucket(spec);
    std::vector<Index> rows(20'000);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<Index>(7 * i);
    const std::vector<float> ones(rows.size() * kWidth, 1.0F);
    for (const std::size_t touched : {std::size_t{100}, rows.size(), std::size_t{100}}) {
      const std::array gradients{Gradient::row_sparse(
          std::span(rows).first(touched), reinterpret_cast<const std::byte*>(ones.data()))};
      CountingSource source({gradients.begin(), gradients.end()});
      try {
        if (session.rank() == Rank{1}) {
          synchronize_from(session, id, source);
          EXPECT_EQ(source.calls, 1) << "a restarted step must not call the source again";
        } else {
          session.synchronize(id, gradients);
        }
      } catch (const PeerError& error) {
        own.error = error.what();
        continue;
      } catch (const BudgetError& error) {
        own.error = error.what();
        continue;
      }
      const TensorResult sum = session.result(id, 0);
      ASSERT_TRUE(std::equal(sum.indices.begin(), sum.indices.end(), rows.begin(),
                             rows.begin() + static_cast<std::ptrdiff_t>(touched)));
      const auto* const values = reinterpret_cast<const float*>(sum.values.data);
      ASSERT_TRUE(std::all_of(values, values + touched * kWidth, [](float v) { return v == 3; }));
    }
    own.high_water = memory.high_water();
    own.rounds = session.rounds(id);
  };
  expect_no_errors(run_sessions(local_workers("local", {}), 3, body, start));
  for (const RoundsSeen& each : seen) {
    EXPECT_EQ(each.rounds, seen[2].rounds);
    EXPECT_EQ(each.error.empty(), seen[2].error.empty()) << each.error << seen[2].error;
  }
  return seen[2];
}

TEST(Session, a_step_that_exceeds_a_budget_runs_in_several_rounds_with_every_sparse_scheme) {
  for (const char* const scheme :
       {"all_gather", "balanced", "owned", "recursive_doubling", "sparse_ps", "split_all_gather"}) {
    SCOPED_TRACE(scheme);
    const RoundsSeen freely = steps_in_rounds(std::nullopt, std::nullopt, scheme);
    EXPECT_EQ(freely.rounds, 1);
    const std::int64_t budget = steps_in_rounds(std::nullopt, 64, scheme).high_water * 11 / 10;
    ASSERT_LT(budget, freely.high_water * 95 / 100);
    const RoundsSeen bounded = steps_in_rounds(budget, std::nullopt, scheme);
    EXPECT_EQ(bounded.error, "");
    EXPECT_GT(bounded.rounds, 1);
    EXPECT_LE(bounded.high_water, budget);
    // If the number of rounds is given, the step is refused, and the next one works.
    const RoundsSeen refused = steps_in_rounds(budget, 1, scheme);
    EXPECT_NE(refused.error.find("budget"), std::string::npos) << refused.error;
    EXPECT_EQ(refused.rounds, 1);
  }
}

TEST(Session, auto_uses_several_rounds_if_a_step_exceeds_a_budget) {
  const std::int64_t budget =
      steps_in_rounds(std::nullopt, std::nullopt, "auto").high_water * 3 / 4;
  const RoundsSeen bounded = steps_in_rounds(budget, std::nullopt, "auto");
  EXPECT_EQ(bounded.error, "");
  EXPECT_GT(bounded.rounds, 1);
  EXPECT_LE(bounded.high_water, budget);
}

TEST(Session, a_budget_that_is_exceeded_after_the_first_send_ends_the_session_on_all_workers) {
  const TensorSpec tensor{"t", 100'000, 64, DType::f32};
  std::atomic<int> registered = 0;
  // Worker 1 has nothing to send, and too little memory for the messages of the others.
  const auto start = [](Rank rank) {
    SessionStart own{{kDeadline, 1}, rank == Rank{1} ? std::optional(400'000) : std::nullopt};
    own.options.late_refusals = false;
    return own;
  };
  const auto body = [&](Session& session, HostMemory&) {
    const int rank = session.rank().value;
    const BucketId id = session.register_bucket({"b", {tensor}, "balanced"});
    ++registered;  // otherwise the session might end while another worker registers
    while (registered < 3) std::this_thread::yield();
    std::vector<Index> rows(20'000);
    std::iota(rows.begin(), rows.end(), Index{0});
    const std::vector<float> ones(rows.size() * 64, 1.0F);
    const std::array gradients{
        rank == 1 ? Gradient::empty()
                  : Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(ones.data()))};
    try {
      const auto reduced = session.submit(id, Phase::reduce, gradients);
      const auto gathered = session.submit(id, Phase::gather);  // the session may have ended by now
      session.wait(reduced);
      session.wait(gathered);
      ADD_FAILURE() << "worker " << rank << " did not fail";
    } catch (const AbortedError& error) {
      EXPECT_EQ(error.peer().value, 1);
      EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
    }
    // An ended session stays ended, with the same error.
    EXPECT_THROW(session.wait(session.submit(id, Phase::reduce, gradients)), Error);
    EXPECT_THROW(session.barrier(), Error);
  };
  expect_no_errors(run_sessions(local_workers("local", {}), 3, body, start));
}

/// A transport that fails to allocate in one post() call, on request.
class PoorTransport : public ForwardingTransport {
 public:
  PoorTransport(std::unique_ptr<Transport> network, std::atomic<bool>& is_poor)
      : ForwardingTransport(std::move(network)), is_poor_(is_poor) {}
  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    if (is_poor_.exchange(false)) throw BudgetError(1000, 0, "the message's copy");
    return ForwardingTransport::post(context, expected, sends, receives, provider);
  }

 private:
  std::atomic<bool>& is_poor_;
};

TEST(Session, a_transport_without_memory_ends_the_session_on_all_workers) {
  for (const bool late : {false, true}) {
    std::atomic<bool> is_poor = false;
    const auto errors = local_workers("local", {}).run(2, [&](std::unique_ptr<Transport>& end) {
      HostMemory memory;
      SessionOptions options{kDeadline, 1};
      options.late_refusals = late;
      if (end->rank() == Rank{1}) end = std::make_unique<PoorTransport>(std::move(end), is_poor);
      Session session(std::move(end), memory, options);
      const BucketId id = session.register_bucket({"b", {kTensor}, "balanced"});
      session.barrier();
      if (session.rank() == Rank{1}) is_poor = true;
      session.synchronize(id, std::vector{Gradient::empty()});
    });
    EXPECT_TRUE(is<AbortedError>(errors[0])) << text_of(errors[0]);
    EXPECT_FALSE(is<ProtocolError>(errors[1])) << text_of(errors[1]);
    for (const std::exception_ptr& error : errors) {
      EXPECT_NE(text_of(error).find("the message's copy"), std::string::npos) << text_of(error);
    }
  }
}

TEST(Session, work_between_steps_that_waits_for_a_gather_names_it) {
  SessionOptions options{std::chrono::milliseconds(200), 1};
  options.as_submitted = true;
  const Case one({"one", {kTensor}}, 1, 1);
  expect_no_errors(run_sessions(
      1,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(one.spec);
        const std::vector<Gradient> gradients = one.of(session);
        session.submit(id, Phase::reduce, gradients);
        try {
          session.barrier();
          FAIL() << "did not wait for the gather";
        } catch (const OrderError& error) {
          EXPECT_NE(std::string(error.what()).find("waits for the gather of bucket 'one'"),
                    std::string::npos)
              << error.what();
        }
      },
      options));
}

TEST(ProgressThread, an_exception_of_a_phase_ends_the_session) {
  LocalNetwork network(1);
  const auto transport = network.join(Rank{0});
  ProgressThread thread(*transport, kDeadline, false, [](OrderEntry, const ProgressThread::Input&) {
    throw DeviceError("an event that cannot be waited for");
    return PhaseOutcome{};
  });
  thread.between_steps([&] { thread.add_bucket("b", false); });
  const auto phase =
      thread.submit({BucketId{0}, Phase::reduce}, std::vector{Gradient::empty()}, nullptr);
  const std::exception_ptr error = thread.wait_until_over(*phase);
  EXPECT_NE(text_of(error).find("an event that cannot be waited for"), std::string::npos);
  EXPECT_THROW(thread.between_steps([] {}), Error);
}

TEST(Session, a_predecessor_that_is_not_submitted_is_a_typed_error) {
  const std::vector<Case> cases = four_cases(2);
  const auto errors = run_sessions(2,
                                   [&](Session& session, HostMemory&) {
                                     const std::vector<BucketId> ids = register_all(session, cases);
                                     const std::vector<Gradient> gradients = cases[1].of(session);
                                     session.wait(session.submit(ids[1], Phase::reduce, gradients));
                                   },
                                   // Enough time to register on a loaded machine.
                                   {std::chrono::milliseconds(5000), 1});
  for (const auto& error : errors) {
    EXPECT_TRUE(is<OrderError>(error) || is<AbortedError>(error)) << text_of(error);
    EXPECT_NE(text_of(error).find("reduce of bucket 'a'"), std::string::npos) << text_of(error);
  }
}

TEST(Session, a_worker_that_never_joins_causes_a_deadline_error) {
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

TEST(Session, workers_with_different_orders_of_buckets_get_an_out_of_step_error) {
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
  EXPECT_TRUE(errors[1]) << "worker 1 did not fail";
}

TEST(Session, a_step_whose_source_fails_is_refused_at_once_and_the_next_one_works) {
  constexpr int kSize = 3;
  const Case inputs({"b", {kTensor}}, kSize, 1);
  const std::vector<std::exception_ptr> failures{
      std::make_exception_ptr(InputError("no")),
      std::make_exception_ptr(BudgetError(2, 1, "no")),
      std::make_exception_ptr(DeviceMemoryError("no")),
      std::make_exception_ptr(std::bad_alloc()),
  };
  for (const bool late : {false, true}) {
    SessionOptions options{kDeadline};
    options.late_refusals = late;
    const auto body = [&](Session& session, HostMemory&) {
      const BucketId id = session.register_bucket(inputs.spec);
      CountingSource source(inputs.of(session));
      for (const std::exception_ptr& failure : failures) {
        if (session.rank() == Rank{1}) {
          source.error = failure;
          EXPECT_THROW(synchronize_from(session, id, source), std::exception);
          source.error = nullptr;
        } else {
          EXPECT_THROW(synchronize_from(session, id, source), RefusedError);
        }
        EXPECT_EQ(session.rounds(id), 1) << "the step was retried in more rounds";
        synchronize_from(session, id, source);
        inputs.check(session, id);
      }
      EXPECT_EQ(source.calls, 2 * std::ssize(failures));
    };
    expect_no_errors(run_sessions(kSize, body, options));
  }
}

TEST(Session, a_wrong_number_of_gradients_is_rejected) {
  const Case inputs({"b", {kTensor, {"u", 9, 1, DType::f32}}}, 2, 1);
  expect_no_errors(run_sessions(2, [&](Session& session, HostMemory&) {
    const BucketId id = session.register_bucket(inputs.spec);
    const auto ticket = session.submit(id, Phase::reduce, std::array{Gradient::empty()});
    const auto gathered = session.submit(id, Phase::gather);
    EXPECT_THROW(session.wait(ticket), InputError);
    EXPECT_THROW(session.wait(gathered), InputError);
    session.wait(session.submit(id, Phase::reduce, inputs.of(session)));
    session.wait(session.submit(id, Phase::gather));
    inputs.check(session, id);
  }));
}

}  // namespace
}  // namespace sparsesync::testing
