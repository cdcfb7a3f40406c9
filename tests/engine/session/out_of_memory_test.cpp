// ctest: COST 30 NOT_QUICK
// Memory runs out at any allocation of any scheme, on one worker. There are three possible
// outcomes. The step succeeds, all workers refuse it and the next one succeeds, or the session ends
// on all workers. The type of the exception states the outcome.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sparsesync/errors.h"
#include "tests/engine/session/session_cases.h"
#include "tests/support/failing_memory.h"
#include "tests/support/scheme_variants.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

constexpr int kWorkers = 4;
constexpr Rank kPoor{1};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t kStride = 5;  // sanitizers are slow; other builds fail every allocation
#else
constexpr std::int64_t kStride = 1;
#endif

/// The outcome of a step on one worker.
enum class Outcome : std::uint8_t { works, is_refused, session_is_over };

Outcome outcome_of(const std::function<void()>& step) {
  try {
    step();
    return Outcome::works;
  } catch (const RefusedError&) {
  } catch (const BudgetError&) {
  } catch (const std::bad_alloc&) {
  } catch (const Error&) {
    return Outcome::session_is_over;
  }
  return Outcome::is_refused;
}

/// Runs a step whose phases are all submitted before a wait, so that the session can restart it.
void synchronize_at_once(Session& session, BucketId id, const Case& inputs) {
  const std::vector<Gradient> gradients = inputs.of(session);
  std::vector<std::vector<Index>> rows;
  std::vector<Gradient> announced;
  for (std::size_t i = 0; inputs.spec.announce && i < gradients.size(); ++i) {
    rows.push_back(touched_rows(gradients[i], inputs.spec.tensors[i]));
    announced.push_back(Gradient::rows(rows.back()));
  }
  if (inputs.spec.announce) session.announce(id, announced);
  session.synchronize(id, gradients);
  inputs.check(session, id);
}

struct Seen {
  bool failed = false;             // whether the allocation failed
  std::vector<Outcome> outcomes;   // outcomes of the failing step, by rank
  std::vector<Outcome> next_ones;  // outcomes of the next step, by rank
};

/// Runs two steps of a bucket. In the first one, the k-th allocation of worker 1 fails.
Seen run_out(const std::vector<Case>& steps, bool late, Failure failure, std::int64_t k) {
  Seen seen{false, std::vector(kWorkers, Outcome::works), std::vector(kWorkers, Outcome::works)};
  const WorkersUnderTest workers = local_workers("local", {});
  const auto errors = workers.run(kWorkers, [&](std::unique_ptr<Transport>& transport) {
    const std::size_t rank = transport->rank().index();
    TestMemory host;
    FailingMemory memory(host);
    SessionOptions options{kDeadline, 1};
    options.late_refusals = late;
    Session session(std::move(transport), memory, options);
    const BucketId id = session.register_bucket(steps[0].spec);
    // Otherwise the session might end while another worker registers.
    ++workers.counter();
    while (workers.counter() < kWorkers) std::this_thread::yield();
    const bool is_poor = session.rank() == kPoor;
    if (is_poor) memory.fail(k, failure);
    seen.outcomes[rank] = outcome_of([&] { synchronize_at_once(session, id, steps[0]); });
    if (is_poor) {
      seen.failed = memory.has_failed();
      memory.stop_failing();
    }
    seen.next_ones[rank] = outcome_of([&] {
      synchronize_at_once(session, id, steps[1]);
      session.barrier();
    });
  });
  expect_no_errors(errors);
  return seen;
}

void expect_all(const std::vector<Outcome>& outcomes, Outcome outcome, const std::string& where) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(static_cast<int>(outcomes[rank]), static_cast<int>(outcome))
        << where << ": worker " << rank;
  }
}

void expect_one_end(const Seen& seen, bool late, const std::string& where) {
  const Outcome of_poor = seen.outcomes[kPoor.index()];
  if (of_poor == Outcome::session_is_over) {
    EXPECT_FALSE(late) << where << ": the session is over";
    // Other workers may have completed the failing step, if they had all that they needed.
    expect_all(seen.next_ones, Outcome::session_is_over, where + ", the next step");
    return;
  }
  expect_all(seen.outcomes, of_poor, where);
  expect_all(seen.next_ones, Outcome::works, where + ", the next step");
}

/// Fails each allocation of a step in turn, or every kStride-th one. Returns the approximate number
/// of allocations.
std::int64_t fail_each(const SchemeVariant& variant, std::optional<int> rounds, bool late,
                       Failure failure) {
  BucketSpec spec = variant.bucket(
      {{"t", 300, 8, DType::f32}, {"u", 90, 2, DType::bf16}, {"v", 40, 8, DType::f32}});
  spec.rounds = rounds;
  const std::vector<Case> steps{{spec, kWorkers, 1}, {spec, kWorkers, 2}};
  for (std::int64_t k = 1;; k += kStride) {
    const std::string where =
        fmt::format("{} in {} rounds, allocation {}", variant.label, rounds.value_or(0), k);
    const Seen seen = run_out(steps, late, failure, k);
    expect_one_end(seen, late, where);
    if (!seen.failed) return k - 1;
    if (::testing::Test::HasFailure()) return k;
  }
}

class OutOfMemoryOf : public ::testing::TestWithParam<SchemeVariant> {};

TEST_P(OutOfMemoryOf, one_outcome_for_all_workers_with_late_refusals) {
  const SchemeVariant& variant = GetParam();
  fail_each(variant, 1, true, Failure::budget);
  fail_each(variant, std::nullopt, true, Failure::budget);
  fail_each(variant, 2, true, Failure::out_of_memory);
}

TEST_P(OutOfMemoryOf, one_outcome_for_all_workers_with_early_refusals) {
  fail_each(GetParam(), std::nullopt, false, Failure::budget);
}

TEST(OutOfMemory, workspaces_of_sparse_schemes_grow_in_a_step) {
  EXPECT_GT(fail_each({"owned", "owned"}, 1, true, Failure::budget), 5);
}

std::string label_of(const ::testing::TestParamInfo<SchemeVariant>& info) {
  return info.param.label;
}
/// Returns the variants that support this number of workers and this transport.
std::vector<SchemeVariant> variants() {
  std::vector<SchemeVariant> all = scheme_variants();
  std::erase_if(all, [](const SchemeVariant& each) {
    return !each.fits(kWorkers) || each.scheme == "dense_native";
  });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Schemes, OutOfMemoryOf, ::testing::ValuesIn(variants()), label_of);

}  // namespace
}  // namespace sparsesync::testing
