// The conformance suite of schemes: every scheme x dtype x shape x number of workers ends with the
// exact sum, the same bits on all workers, and moves exactly the bytes that its own account says.
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
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
  std::vector<TensorSpec> tensors;  // dtype is filled in, where one is given
  std::function<OwnedGradient(Random&, const TensorSpec&, int worker, int size)> make;
  int rounds = 1;
  bool dense_fits = true;
  bool finite = true;  // else not for integers
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
       },
       1,
       true,
       false},
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
/// @param dtype  of all tensors; nothing: their own
void check_scheme(const SchemeEntry& entry, Shape shape, std::optional<DType> dtype, int size,
                  std::uint64_t seed) {
  SCOPED_TRACE(::testing::Message()
               << entry.name << ", " << (dtype ? name_of(*dtype) : "several dtypes") << ", "
               << shape.name << ", " << size << " workers, seed " << seed);
  for (TensorSpec& tensor : shape.tensors) tensor.dtype = dtype.value_or(tensor.dtype);
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

/// Every number of workers for f32; some for the others, which take the same ways.
std::vector<int> sizes_for(DType dtype) {
  if (dtype == DType::f32) return {1, 2, 3, 4, 5, 6, 7, 8, 9};
  if (dtype == DType::bf16) return {1, 2, 5, 8};
  return {3, 6};
}

TEST_P(SchemeSuite, exact_sums_on_every_shape_dtype_and_number_of_workers) {
  for (const std::uint64_t seed : seeds()) {
    for (const Shape& shape : shapes()) {
      if (is_dense() && !shape.dense_fits) continue;  // refuses_what_does_not_fit, below
      for (const DType dtype : kDTypes) {
        if (is_integer(dtype) && !shape.finite) continue;
        for (const int size : sizes_for(dtype)) check_scheme(entry(), shape, dtype, size, seed);
      }
    }
  }
}

TEST_P(SchemeSuite, every_dtype_in_one_bucket) {
  // Odd sizes: what follows a narrow type is not where it would lie by itself.
  const Shape shape{"mixed",
                    {{"a", 7, 3, DType::f16},
                     {"b", 50, 1, DType::f64},
                     {"c", 9, 3, DType::f32},
                     {"d", 3, 1, DType::bf16},
                     {"e", 5, 1, DType::i64},
                     {"f", 3, 3, DType::i32},
                     {"g", 11, 3, DType::f16}},
                    [](Random& random, const TensorSpec& tensor, int, int) {
                      return some_rows(random, tensor, 40);
                    }};
  for (int size = 1; size <= 9; ++size) {
    for (const int rounds : {1, 4}) {
      Shape cut = shape;
      cut.rounds = rounds;
      check_scheme(entry(), cut, std::nullopt, size, seed());
    }
  }
}

/// What the workers of `inputs` end with, made dense, by a bucket of one tensor; the same on all.
template <typename T>
std::vector<T> dense_result(const std::string& scheme, const TensorSpec& tensor,
                            Reduction reduction, const Inputs& inputs) {
  const auto size = static_cast<int>(inputs.size());
  const auto elements = static_cast<std::size_t>(tensor.rows * tensor.width);
  std::vector<std::vector<T>> dense(inputs.size(), std::vector<T>(elements));
  expect_no_errors(run_sessions(size, [&](Session& session, HostMemory& memory) {
    const auto rank = static_cast<std::size_t>(session.rank().value);
    const BucketId id = session.register_bucket({"b", {tensor}, scheme, reduction, 1});
    session.wait(session.submit(id, Phase::reduce, std::array{inputs[rank][0].view()}));
    session.wait(session.submit(id, Phase::gather));
    to_dense(Context(memory), session.result(id, 0),
             {reinterpret_cast<std::byte*>(dense[rank].data()), tensor.dtype, tensor.rows,
              tensor.width});
  }));
  for (const std::vector<T>& of_worker : dense) {
    EXPECT_EQ(std::memcmp(of_worker.data(), dense[0].data(), elements * sizeof(T)), 0);
  }
  return dense[0];
}

template <typename T>
T element_of(const OwnedGradient& gradient, std::size_t element) {
  T value;
  std::memcpy(&value, gradient.values.data() + element * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void expect_integers_to_wrap(const std::string& scheme) {
  const TensorSpec tensor{"t", 6, 3, ValueTraits<T>::dtype};
  Random random(seed());
  for (const int size : {1, 2, 5}) {
    Inputs inputs;
    std::vector<std::uint64_t> expected(18);
    for (int worker = 0; worker < size; ++worker) {
      OwnedGradient gradient;
      gradient.indices = {5, 0, 3, 0};  // repeats wrap too
      for (std::size_t i = 0; i < 12; ++i) {
        const T value = std::numeric_limits<T>::max() - static_cast<T>(random.below(5));
        gradient.values.resize((i + 1) * sizeof(T));
        std::memcpy(gradient.values.data() + i * sizeof(T), &value, sizeof(T));
        expected[static_cast<std::size_t>(gradient.indices[i / 3]) * 3 + i % 3] +=
            static_cast<std::uint64_t>(value);
      }
      inputs.push_back({std::move(gradient)});
    }
    const std::vector<T> sums = dense_result<T>(scheme, tensor, Reduction::sum, inputs);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(sums[i], static_cast<T>(expected[i])) << size << " workers, element " << i;
    }
  }
}

TEST_P(SchemeSuite, integers_wrap) {
  expect_integers_to_wrap<std::int32_t>(GetParam());
  expect_integers_to_wrap<std::int64_t>(GetParam());
}

/// The very bits of (the sum in the sum type) · (1 / n in the sum type), rounded once.
template <typename T>
void expect_mean(const std::string& scheme) {
  using Sum = typename ValueTraits<T>::Sum;
  const TensorSpec tensor{"t", 100, 4, ValueTraits<T>::dtype};
  for (const int size : {1, 3, 4}) {
    Random random(seed());
    Inputs inputs;
    std::vector<Sum> sums(400);
    for (int worker = 0; worker < size; ++worker) {
      inputs.push_back({some_rows(random, tensor, 50)});
      const OwnedGradient& gradient = inputs.back()[0];
      for (std::size_t i = 0; i < gradient.indices.size() * 4; ++i) {
        sums[static_cast<std::size_t>(gradient.indices[i / 4]) * 4 + i % 4] +=
            ValueTraits<T>::widen(element_of<T>(gradient, i));
      }
    }
    const std::vector<T> means = dense_result<T>(scheme, tensor, Reduction::mean, inputs);
    const Sum scale = Sum{1} / static_cast<Sum>(size);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const T expected = ValueTraits<T>::narrow(sums[i] * scale);
      EXPECT_EQ(std::memcmp(&means[i], &expected, sizeof(T)), 0)
          << name_of(tensor.dtype) << ", " << size << " workers, element " << i;
    }
  }
}

TEST_P(SchemeSuite, a_mean_is_one_multiplication_after_the_sum) {
  expect_mean<float>(GetParam());
  expect_mean<double>(GetParam());
  expect_mean<f16>(GetParam());
  expect_mean<bf16>(GetParam());
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
