// The conformance suite of schemes: every scheme x dtype x shape x number of workers ends with the
// exact sum, the same bits on all workers, and moves exactly the bytes that its own account says.
#include <array>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "schemes/scheme.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

/// What the workers put into a bucket: [worker][tensor].
using Inputs = std::vector<std::vector<OwnedGradient>>;

/// A kind of input. `make` gives one worker's gradients of one tensor.
struct Shape {
  const char* name;
  std::vector<TensorSpec> tensors;  // dtype is filled in
  std::function<OwnedGradient(Random&, const TensorSpec&, int worker, int size)> make;
  int rounds = 1;
  bool dense_fits = true;
};

OwnedGradient some_rows(Random& random, const TensorSpec& tensor, Index most) {
  const Index count = random.below(std::min(most, tensor.rows) + 1);
  return random_gradient(random, tensor, distinct_rows(random, tensor.rows, count));
}

std::vector<Shape> shapes() {
  const auto ordinary = [](Random& random, const TensorSpec& tensor, int, int) {
    return some_rows(random, tensor, 60);
  };
  const auto unsorted = [](Random& random, const TensorSpec& tensor, int, int) {
    std::vector<Index> rows;
    for (int i = 0; i < 50; ++i) rows.push_back(random.below(tensor.rows));
    return random_gradient(random, tensor, rows);
  };
  const auto dense = [](Random& random, const TensorSpec& tensor, int, int) {
    OwnedGradient gradient;
    gradient.layout = Gradient::Layout::dense;
    for (Index row = 0; row < tensor.rows; ++row) {
      const bool touched = random.below(5) == 0;
      for (Index column = 0; column < tensor.width; ++column) {
        append_value(gradient.values, tensor.dtype,
                     touched ? static_cast<double>(random.below(9) - 4) : 0);
      }
    }
    return gradient;
  };
  return {
      {"ordinary", {{"t", 1000, 8}}, ordinary},
      {"width_1", {{"t", 5000, 1}}, ordinary},
      {"width_3", {{"t", 777, 3}}, ordinary},
      {"width_1000", {{"t", 300, 1000}}, ordinary},
      {"one_row", {{"t", 1, 16}}, ordinary},
      {"one_element", {{"t", 1, 1}}, ordinary},
      {"fewer_rows_than_workers", {{"t", 3, 5}}, ordinary},
      {"everything_touched",
       {{"t", 64, 12}},
       [](Random& random, const TensorSpec& tensor, int, int) {
         return random_gradient(random, tensor, distinct_rows(random, tensor.rows, tensor.rows));
       }},
      {"empty_on_one_worker",
       {{"t", 500, 4}},
       [](Random& random, const TensorSpec& tensor, int worker, int size) {
         return worker == size - 1 ? OwnedGradient{} : some_rows(random, tensor, 40);
       }},
      {"empty_on_all_but_one",
       {{"t", 500, 4}},
       [](Random& random, const TensorSpec& tensor, int worker, int) {
         return worker == 0 ? some_rows(random, tensor, 40) : OwnedGradient{};
       }},
      {"empty_on_all",
       {{"t", 500, 4}},
       [](Random&, const TensorSpec&, int, int) { return OwnedGradient{}; }},
      {"duplicates_unsorted", {{"t", 40, 4}}, unsorted},
      {"row_0_alone",
       {{"t", 100, 4}},
       [](Random& random, const TensorSpec& tensor, int, int) {
         return random_gradient(random, tensor, {0});
       }},
      {"last_row_alone",
       {{"t", 100, 4}},
       [](Random& random, const TensorSpec& tensor, int, int) {
         return random_gradient(random, tensor, {99});
       }},
      {"a_row_that_sums_to_zero",
       {{"t", 100, 2}},
       [](Random&, const TensorSpec& tensor, int worker, int) {
         OwnedGradient gradient;
         gradient.indices = {7, 50 + worker};
         for (const double value : {1.0, -1.0, -0.0, 0.0}) {
           append_value(gradient.values, tensor.dtype, value);
         }
         return gradient;
       }},
      {"nan_and_inf",
       {{"t", 100, 2}},
       [](Random&, const TensorSpec& tensor, int worker, int) {
         OwnedGradient gradient;
         gradient.indices = {3, 9};
         for (const double value :
              {1.0, worker == 0 ? std::nan("") : 2.0,
               worker == 0 ? std::numeric_limits<double>::infinity() : 1.0, 5.0}) {
           append_value(gradient.values, tensor.dtype, value);
         }
         return gradient;
       }},
      {"dense_input", {{"t", 200, 6}}, dense},
      {"dense_and_sparse_inputs",
       {{"a", 200, 6}, {"b", 90, 6}, {"c", 10, 6}},
       [=](Random& random, const TensorSpec& tensor, int worker, int size) {
         return tensor.name == "b" ? dense(random, tensor, worker, size)
                                   : unsorted(random, tensor, worker, size);
       }},
      {"three_widths", {{"a", 1000, 4}, {"b", 300, 32}, {"c", 50, 100}}, ordinary},
      {"many_small_tensors",
       {{"a", 10, 4}, {"b", 1, 4}, {"c", 500, 4}, {"d", 33, 4}, {"e", 7, 2}, {"f", 8, 4}},
       unsorted},
      {"rounds", {{"a", 1000, 8}, {"b", 77, 3}}, ordinary, 3},
      {"more_rounds_than_rows", {{"t", 4, 2}}, ordinary, 7},
      {"beyond_2_24", {{"t", (Index{1} << 24) + 5, 1}}, ordinary, 1, false},
      {"beyond_2_33", {{"t", (Index{1} << 33) + 11, 2}}, ordinary, 2, false},
      {"beyond_2_40", {{"t", (Index{1} << 40) + 3, 4}}, ordinary, 1, false},
  };
}

/// For "beyond": neither a dense tensor nor a table of its rows fits into this.
constexpr std::int64_t kBudget = std::int64_t{48} << 20U;

std::vector<IndexSets> index_sets(const std::vector<RowSpace>& spaces, const Inputs& inputs,
                                  const std::vector<TensorSpec>& tensors,
                                  std::vector<std::vector<std::vector<Index>>>& storage) {
  storage.assign(spaces.size(), std::vector<std::vector<Index>>(inputs.size()));
  std::vector<IndexSets> sets(spaces.size());
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    for (std::size_t worker = 0; worker < inputs.size(); ++worker) {
      std::vector<Index>& rows = storage[i][worker];
      for (const RowSpace::Member& member : spaces[i].members) {
        const OwnedGradient& gradient = inputs[worker][member.tensor];
        const TensorSpec& tensor = tensors[member.tensor];
        if (gradient.layout == Gradient::Layout::dense) {
          for (Index row = 0; row < tensor.rows; ++row) {
            bool touched = false;
            for (Index c = 0; c < tensor.width; ++c) {
              touched = touched ||
                        value_at(gradient.values.data(), tensor.dtype, row * tensor.width + c) != 0;
            }
            if (touched) rows.push_back(member.first_row + row);
          }
        }
        for (const Index row : gradient.indices) rows.push_back(member.first_row + row);
      }
      std::sort(rows.begin(), rows.end());
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
      sets[i].emplace_back(rows);
    }
  }
  return sets;
}

/// Runs three steps (adapting after the first), the first and the last with the same input.
void check_scheme(const SchemeEntry& entry, Shape shape, DType dtype, int size,
                  std::uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << entry.name << ", " << name_of(dtype) << ", " << shape.name
                                    << ", " << size << " workers, seed " << seed);
  for (TensorSpec& tensor : shape.tensors) tensor.dtype = dtype;
  const BucketSpec bucket{"b", shape.tensors, std::string(entry.name), Reduction::sum,
                          shape.rounds};
  Random random(seed);
  std::vector<Inputs> steps(2);
  std::vector<std::vector<ExactSum>> sums(2);
  for (std::size_t step = 0; step < 2; ++step) {
    for (const TensorSpec& tensor : shape.tensors) sums[step].emplace_back(tensor);
    for (int worker = 0; worker < size; ++worker) {
      std::vector<OwnedGradient>& of_worker = steps[step].emplace_back();
      for (std::size_t t = 0; t < shape.tensors.size(); ++t) {
        of_worker.push_back(shape.make(random, shape.tensors[t], worker, size));
        sums[step][t].add(of_worker.back());
      }
    }
  }
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::string> first_bits(n);
  std::vector<std::string> last_bits(n);
  std::vector<std::int64_t> sent(n);
  std::vector<std::int64_t> received(n);
  std::vector<std::int64_t> messages(n);
  std::optional<Traffic> traffic;
  std::vector<std::vector<std::vector<Index>>> storage;
  const std::vector<IndexSets> sets =
      index_sets(row_spaces(shape.tensors), steps[0], shape.tensors, storage);
  const auto errors = run_sessions(
      size,
      [&](Session& session, HostMemory&) {
        const auto rank = static_cast<std::size_t>(session.rank().value);
        const BucketId id = session.register_bucket(bucket);
        for (const std::size_t step : {std::size_t{0}, std::size_t{1}, std::size_t{0}}) {
          std::vector<Gradient> gradients;
          for (const OwnedGradient& gradient : steps[step][rank])
            gradients.push_back(gradient.view());
          const TransportCounters before = session.counters();
          session.wait(session.submit(id, Phase::reduce, gradients));
          session.wait(session.submit(id, Phase::gather));
          const TransportCounters after = session.counters();
          sent[rank] = after.bytes_sent - before.bytes_sent;
          received[rank] = after.bytes_received - before.bytes_received;
          messages[rank] = after.messages_sent - before.messages_sent;
          std::string bits;
          for (std::size_t t = 0; t < shape.tensors.size(); ++t) {
            const TensorResult result = session.result(id, t);
            EXPECT_EQ(sums[step][t].difference(result), "")
                << "worker " << rank << ", tensor " << t;
            bits += bits_of(result);
          }
          if (session.step() == 1) {
            first_bits[rank] = bits;
            session.adapt(id);
          } else {
            last_bits[rank] = bits;
          }
        }
        if (rank == 0) traffic = session.scheme(id).traffic(sets);
        session.barrier();
      },
      {kDeadline, seed}, shape.dense_fits ? std::nullopt : std::optional(kBudget));
  expect_no_errors(errors);
  if (!traffic) return;
  for (std::size_t rank = 0; rank < n; ++rank) {
    EXPECT_EQ(last_bits[rank], last_bits[0]) << "worker " << rank;
    EXPECT_EQ(first_bits[rank], last_bits[0]) << "after adapting; worker " << rank;
    EXPECT_EQ(sent[rank],
              traffic->payload_sent[rank] + kHeaderBytes * traffic->messages_sent[rank]);
    EXPECT_EQ(messages[rank], traffic->messages_sent[rank]);
    const std::size_t left = rank == 0 ? n - 1 : rank - 1;
    if (entry.design.communication == Communication::ring && n > 1) {
      EXPECT_EQ(received[rank], sent[left]);
    }
  }
  EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), std::int64_t{0}),
            std::accumulate(received.begin(), received.end(), std::int64_t{0}));
}

class SchemeSuite : public ::testing::TestWithParam<std::string> {
 protected:
  static SchemeEntry entry() { return scheme_named(GetParam()); }
  static bool is_dense() { return entry().design.format == "dense"; }
  /// One seed, or many under SPARSESYNC_FULL.
  static std::vector<std::uint64_t> seeds() {
    std::vector<std::uint64_t> seeds;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread is there yet
    const bool full = std::getenv("SPARSESYNC_FULL") != nullptr;
    for (std::uint64_t i = 0; i < (full ? 20U : 1U); ++i) {
      seeds.push_back(seed() + i);
    }
    return seeds;
  }
};

TEST_P(SchemeSuite, exact_sums_on_every_shape_dtype_and_number_of_workers) {
  for (const std::uint64_t seed : seeds()) {
    for (const Shape& shape : shapes()) {
      if (is_dense() && !shape.dense_fits) continue;  // refuses_what_does_not_fit, below
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (int size = 1; size <= 9; ++size) check_scheme(entry(), shape, dtype, size, seed);
      }
    }
  }
}

TEST_P(SchemeSuite, a_mean_is_one_multiplication_after_the_sum) {
  const TensorSpec tensor{"t", 100, 4, DType::f32};
  for (const int size : {1, 3, 4}) {
    Random random(seed());
    Inputs inputs;
    for (int worker = 0; worker < size; ++worker) inputs.push_back({some_rows(random, tensor, 50)});
    expect_no_errors(run_sessions(size, [&](Session& session, HostMemory& memory) {
      const BucketId id = session.register_bucket({"b", {tensor}, GetParam(), Reduction::mean, 1});
      const std::array gradients{inputs[static_cast<std::size_t>(session.rank().value)][0].view()};
      session.wait(session.submit(id, Phase::reduce, gradients));
      session.wait(session.submit(id, Phase::gather));
      const TensorResult result = session.result(id, 0);
      // The very bits of float(sum) · float(1 / n).
      const float scale = 1.0F / static_cast<float>(size);
      std::vector<float> dense(400);
      to_dense(Context(memory), result,
               {reinterpret_cast<std::byte*>(dense.data()), DType::f32, 100, 4});
      std::vector<float> expected(400, 0.0F);
      for (const std::vector<OwnedGradient>& of_worker : inputs) {
        for (std::size_t i = 0; i < of_worker[0].indices.size(); ++i) {
          for (Index c = 0; c < 4; ++c) {
            expected[static_cast<std::size_t>(of_worker[0].indices[i] * 4 + c)] +=
                static_cast<float>(value_at(of_worker[0].values.data(), DType::f32,
                                            static_cast<Index>(i) * 4 + c));
          }
        }
      }
      for (float& value : expected) value *= scale;
      EXPECT_EQ(dense, expected);
    }));
  }
}

TEST_P(SchemeSuite, the_same_bits_in_ten_runs_where_sums_are_not_exact) {
  const TensorSpec tensor{"t", 400, 7, DType::f32};
  for (const int size : {3, 8}) {
    Random random(seed() + 5);
    Inputs inputs;
    for (int worker = 0; worker < size; ++worker) {
      OwnedGradient gradient;
      gradient.indices = distinct_rows(random, tensor.rows, 200);
      for (Index i = 0; i < 200 * tensor.width; ++i) {
        append_value(
            gradient.values, tensor.dtype,
            (random.uniform() - 0.5) * std::pow(10.0, static_cast<double>(random.below(8))));
      }
      inputs.push_back({std::move(gradient)});
    }
    std::mutex mutex;
    std::vector<std::string> all_bits;
    for (int run = 0; run < 10; ++run) {
      expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket({"b", {tensor}, GetParam(), Reduction::sum, 1});
        const std::array gradients{
            inputs[static_cast<std::size_t>(session.rank().value)][0].view()};
        session.wait(session.submit(id, Phase::reduce, gradients));
        session.wait(session.submit(id, Phase::gather));
        const std::lock_guard lock(mutex);
        all_bits.push_back(bits_of(session.result(id, 0)));
      }));
    }
    ASSERT_EQ(all_bits.size(), static_cast<std::size_t>(10 * size));
    for (const std::string& bits : all_bits) EXPECT_TRUE(bits == all_bits.front());
  }
}

// What a scheme's nature cannot hold it refuses by its budget, before anything moves; the session
// goes on.
TEST_P(SchemeSuite, refuses_what_does_not_fit) {
  if (!is_dense()) GTEST_SKIP() << GetParam() << " holds no dense tensor";
  const TensorSpec huge{"t", Index{1} << 33, 1, DType::f32};
  const TensorSpec small{"s", 10, 1, DType::f32};
  expect_no_errors(run_sessions(
      3,
      [&](Session& session, HostMemory&) {
        const TransportCounters before = session.counters();
        EXPECT_THROW(session.register_bucket({"b", {huge}, GetParam(), Reduction::sum, 1}),
                     BudgetError);
        // A few hundred bytes of agreement, no values.
        EXPECT_LT(session.counters().bytes_sent - before.bytes_sent, 2000);
        const BucketId id = session.register_bucket({"b", {small}, GetParam(), Reduction::sum, 1});
        session.wait(session.submit(id, Phase::reduce, std::array{Gradient::empty()}));
        session.wait(session.submit(id, Phase::gather));
      },
      {kDeadline, 1}, kBudget));
}

// One worker refuses a step; all know it, on every pattern of messages; the next step works.
TEST_P(SchemeSuite, a_refused_step_is_agreed_and_the_next_one_works) {
  const TensorSpec tensor{"t", 100, 4, DType::f32};
  for (const int size : {1, 2, 3, 6}) {
    for (int bad = 0; bad < size; ++bad) {
      for (const int rounds : {1, 3}) {
        SCOPED_TRACE(::testing::Message()
                     << size << " workers, worker " << bad << " refuses, " << rounds << " rounds");
        Random random(seed());
        ExactSum sum(tensor);
        Inputs inputs;
        for (int worker = 0; worker < size; ++worker) {
          inputs.push_back({some_rows(random, tensor, 50)});
          sum.add(inputs.back()[0]);
        }
        expect_no_errors(run_sessions(size, [&](Session& session, HostMemory&) {
          const int rank = session.rank().value;
          const BucketId id =
              session.register_bucket({"b", {tensor}, GetParam(), Reduction::sum, rounds});
          const Gradient good = inputs[static_cast<std::size_t>(rank)][0].view();
          const std::vector<Index> outside{3, 100};
          const std::vector<std::byte> values(32);
          const Gradient wrong = Gradient::row_sparse(outside, values.data());
          for (const bool refused : {false, true, true, false}) {
            const std::array gradients{refused && rank == bad ? wrong : good};
            const auto reduced = session.submit(id, Phase::reduce, gradients);
            const auto gathered = session.submit(id, Phase::gather);
            if (!refused) {
              session.wait(reduced);
              session.wait(gathered);
              EXPECT_EQ(sum.difference(session.result(id, 0)), "");
              continue;
            }
            try {
              session.wait(reduced);
              ADD_FAILURE() << "worker " << rank << " was not told";
            } catch (const InputError& error) {
              EXPECT_EQ(rank, bad);
              EXPECT_NE(std::string(error.what()).find("tensor 't': index 100"), std::string::npos)
                  << error.what();
            } catch (const RefusedError& error) {
              EXPECT_NE(rank, bad);
              EXPECT_EQ(error.peer().value, bad);
              EXPECT_NE(error.reason().find("index 100"), std::string::npos) << error.what();
            }
            EXPECT_THROW(session.wait(gathered), RefusedError);
          }
        }));
      }
    }
  }
}

// Word from each worker reaches all others by the end of a reduce phase: what agreement on a
// refusal needs.
TEST_P(SchemeSuite, word_from_each_worker_reaches_all_in_the_reduce_phase) {
  HostMemory memory;
  const BucketSpec bucket{"b", {{"t", 100, 4, DType::f32}}, GetParam(), Reduction::sum, 1};
  for (int size = 1; size <= 9; ++size) {
    std::vector<Pattern> patterns;
    for (int rank = 0; rank < size; ++rank) {
      const auto scheme = entry().create({Context(memory), &bucket, Rank{rank}, size, 1});
      patterns.push_back(scheme->pattern(Phase::reduce));
    }
    std::vector<std::vector<bool>> knows(static_cast<std::size_t>(size),
                                         std::vector<bool>(static_cast<std::size_t>(size)));
    for (std::size_t rank = 0; rank < knows.size(); ++rank) knows[rank][rank] = true;
    for (std::size_t step = 0; step < patterns[0].size(); ++step) {
      const auto before = knows;
      for (std::size_t rank = 0; rank < knows.size(); ++rank) {
        ASSERT_EQ(patterns[rank].size(), patterns[0].size());
        for (const Rank from : patterns[rank][step].from) {
          const auto& to = patterns[static_cast<std::size_t>(from.value)][step].to;
          EXPECT_TRUE(std::find(to.begin(), to.end(), Rank{static_cast<int>(rank)}) != to.end());
          for (std::size_t other = 0; other < knows.size(); ++other) {
            if (before[static_cast<std::size_t>(from.value)][other]) knows[rank][other] = true;
          }
        }
      }
    }
    for (const std::vector<bool>& of_rank : knows) {
      EXPECT_TRUE(std::all_of(of_rank.begin(), of_rank.end(), [](bool known) { return known; }))
          << size;
    }
  }
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const SchemeEntry& entry : all_schemes()) names.emplace_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(schemes, SchemeSuite, ::testing::ValuesIn(names()),
                         [](const auto& each) { return each.param; });

TEST(Registry, knows_its_schemes_and_lists_them) {
  EXPECT_GE(names().size(), 3U);
  const std::vector<std::string> sorted = names();
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
  try {
    scheme_named("telepathy");
    FAIL() << "found";
  } catch (const InputError& error) {
    for (const std::string& name : names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace sparsesync::testing
