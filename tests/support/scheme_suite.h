// The conformance suite of schemes, over any transport. It runs every combination of scheme, dtype,
// shape and number of workers. Every worker must receive the exact sum. The bits must be equal on
// all workers and over every transport. The bytes sent must equal the scheme's predicted traffic.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include "engine/session/registered_bucket.h"
#include "schemes/registry.h"
#include "tests/support/scheme_shapes.h"
#include "tests/support/scheme_variants.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

/// With sanitizers, every code path runs once. The numbers of workers are swept without sanitizers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// A scheme and the connection of its workers.
struct SchemeUnderTest {
  SchemeVariant variant;
  WorkersUnderTest workers;
  int most_workers = 9;
  /// Numbers of workers: all for the first dtype, some for the second, and a few for the others,
  /// which use the same code paths.
  std::array<std::vector<int>, 3> sizes;
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest requires this name
inline void PrintTo(const SchemeUnderTest& under_test, std::ostream* out) {
  *out << under_test.variant.label << " over " << under_test.workers.name;
}

class SchemeSuite : public ::testing::TestWithParam<SchemeUnderTest> {
 protected:
  static const SchemeVariant& variant() { return GetParam().variant; }
  static const std::string& name() { return variant().label; }
  static SchemeEntry entry() { return variant().entry(); }
  static const WorkersUnderTest& workers() { return GetParam().workers; }
  /// Returns those of `sizes` that can run.
  static std::vector<int> sizes(std::vector<int> sizes) {
    std::erase_if(sizes,
                  [](int size) { return size > GetParam().most_workers || !variant().fits(size); });
    return sizes;
  }
  static std::vector<int> sizes_for(DType dtype) {
    const std::array<std::vector<int>, 3>& all = GetParam().sizes;
    return sizes(dtype == DType::f32 ? all[0] : dtype == DType::bf16 ? all[1] : all[2]);
  }
  /// Returns one seed, or 20 with SPARSESYNC_FULL.
  static std::vector<std::uint64_t> seeds() {
    std::vector<std::uint64_t> seeds;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread exists yet
    const bool full = std::getenv("SPARSESYNC_FULL") != nullptr;
    for (std::uint64_t i = 0; i < (full ? 20U : 1U); ++i) seeds.push_back(seed() + i);
    return seeds;
  }
  /// Returns whether the scheme reports that a few rows of these tensors fit into kBudget.
  static bool fits(const std::vector<TensorSpec>& tensors, int size) {
    const std::vector<RowSpace> spaces = row_spaces(tensors);
    const Statistics few(spaces.size(), {60, 60, 60.0 * size});
    return entry().workspace_bytes(
               {.spaces = spaces, .size = size, .statistics = few, .options = variant().options}) <=
           static_cast<double>(kBudget);
  }

  /// Runs three steps, and adapts after the first one. The first and the last step have the same
  /// input.
  /// @param dtype  dtype of all tensors; none: the dtype of each tensor
  static void check(Shape shape, std::optional<DType> dtype, int size, std::uint64_t seed) {
    for (TensorSpec& tensor : shape.tensors) tensor.dtype = dtype.value_or(tensor.dtype);
    if (!fits(shape.tensors, size)) return;  // tested by rejects_buckets_that_do_not_fit
    SCOPED_TRACE(::testing::Message()
                 << name() << ", " << (dtype ? name_of(*dtype) : "several dtypes") << ", "
                 << shape.name << ", " << size << " workers, seed " << seed);
    const BucketSpec bucket = variant().bucket(shape.tensors, shape.rounds);
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
    std::vector<OwnedIndexSets> storage;
    const std::vector<RowSpace> spaces = row_spaces(shape.tensors);
    std::vector<IndexSets> sets = index_sets(spaces, steps[0], shape.tensors, storage);
    if (const int workers_of_a_sum = variant().added_densely(size); workers_of_a_sum > 1) {
      drop_cancelled(spaces, steps[0], shape.tensors, workers_of_a_sum, storage);
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        sets[i] = views_of(storage[i]);
      }
    }
    expect_no_errors(run_sessions(
        workers(), size,
        [&](Session& session, HostMemory&) {
          const auto rank = static_cast<std::size_t>(session.rank().value);
          const BucketId id = session.register_bucket(bucket);
          // Only floating-point buckets have squares, because integers are not gradients.
          const bool squares = std::ranges::none_of(
              bucket.tensors, [](const TensorSpec& tensor) { return is_integer(tensor.dtype); });
          const auto own_squares = std::make_unique<double>();
          if (squares) session.keep_squares(id, bucket.tensors.size(), own_squares.get());
          std::vector<std::string> bits;
          for (const std::size_t step : {std::size_t{0}, std::size_t{1}, std::size_t{0}}) {
            std::vector<Gradient> gradients;
            for (const OwnedGradient& gradient : steps[step][rank])
              gradients.push_back(gradient.view());
            const TransportCounters before = session.counters();
            synchronize(session, id, variant(), gradients, shape.tensors);
            const TransportCounters after = session.counters();
            std::string& of_step = bits.emplace_back();
            for (std::size_t t = 0; t < shape.tensors.size(); ++t) {
              const TensorResult result = session.result(id, t);
              EXPECT_EQ(sums[step][t].difference(result), "")
                  << "worker " << rank << ", tensor " << t;
              of_step += bits_of(result);
            }
            if (step == 0) {
              check_account(scheme_of(session, id).traffic(sets), rank, before, after);
            }
            if (step == 0 && squares) {
              check_squares(session, id, shape.tensors.size(), *own_squares);
            }
            if (session.step() == 1) session.adapt(id);
          }
          EXPECT_EQ(bits.front(), bits.back()) << "after adapting; worker " << rank;
          workers().note(session.rank().value) = digest_of(bits.back());
          session.barrier();
        },
        // Late refusals are off, because the predicted traffic covers only the scheme's messages.
        {.deadline = kDeadline, .seed = seed, .late_refusals = false},
        shape.small ? std::nullopt : std::optional(kBudget)));
    for (int worker = 1; worker < size; ++worker) {
      EXPECT_EQ(workers().note(worker), workers().note(0)) << "bits of worker " << worker;
    }
  }

  /// Appends a digest of each worker's result after one step.
  static void add_digests(const WorkersUnderTest& workers, const TensorSpec& tensor,
                          const Inputs& inputs, int threads, std::vector<std::uint64_t>& digests) {
    const auto size = static_cast<int>(inputs.size());
    expect_no_errors(run_sessions(
        workers, size,
        [&](Session& session, HostMemory&) {
          const BucketId id = session.register_bucket(variant().bucket({tensor}));
          const auto rank = static_cast<std::size_t>(session.rank().value);
          synchronize(session, id, variant(), std::array{inputs[rank][0].view()}, {tensor});
          workers.note(session.rank().value) = digest_of(bits_of(session.result(id, 0)));
        },
        {kDeadline, 1, threads}));
    for (int worker = 0; worker < size; ++worker) digests.push_back(workers.note(worker));
  }

  static std::uint64_t digest_of(const std::string& bits) { return std::hash<std::string>{}(bits); }

 private:
  /// The owned partitions before the gather phase contain each value of the result once. Their
  /// squares must add up to those of the result.
  static void check_squares(Session& session, BucketId bucket, std::size_t tensors, double own) {
    double of_result = 0;
    for (std::size_t t = 0; t < tensors; ++t) {
      const ConstMatrix values = session.result(bucket, t).values;
      for_dtype(values.dtype, [&]<typename T>(T) {
        for (Index i = 0; i < values.rows * values.width; ++i) {
          T value;
          std::memcpy(&value, values.data + i * static_cast<Index>(sizeof(T)), sizeof(T));
          const auto number = static_cast<double>(ValueTraits<T>::widen(value));
          of_result += number * number;
        }
      });
    }
    double owned = 0;
    for (const std::string& told :
         session.all_gather({reinterpret_cast<const char*>(&own), sizeof(own)})) {
      double of_worker = 0;
      std::memcpy(&of_worker, told.data(), sizeof(of_worker));
      owned += of_worker;
    }
    if (!session.has_squares(bucket)) {
      EXPECT_EQ(owned, 0);
    } else if (std::isfinite(of_result)) {
      EXPECT_NEAR(owned, of_result, 1e-9 * of_result);
    } else {
      EXPECT_FALSE(std::isfinite(owned));
    }
  }

  static void check_account(const Traffic& traffic, std::size_t rank,
                            const TransportCounters& before, const TransportCounters& after) {
    EXPECT_EQ(after.messages_sent - before.messages_sent, traffic.messages_sent[rank]);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent,
              traffic.payload_sent[rank] + kHeaderBytes * traffic.messages_sent[rank])
        << "worker " << rank;
    EXPECT_EQ(after.bytes_received - before.bytes_received,
              traffic.payload_received[rank] +
                  kHeaderBytes * (after.messages_received - before.messages_received))
        << "worker " << rank;
  }
};

TEST_P(SchemeSuite, exact_sums_on_every_shape_dtype_and_number_of_workers) {
  for (const std::uint64_t seed : seeds()) {
    for (const Shape& shape : shapes()) {
      for (const DType dtype : kDTypes) {
        if (is_integer(dtype) && !shape.finite) continue;
        for (const int size : sizes_for(dtype)) check(shape, dtype, size, seed);
      }
    }
  }
}

TEST_P(SchemeSuite, every_dtype_in_one_bucket) {
  // Odd sizes, so that tensors after a narrow dtype are misaligned.
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
  for (const int size : sizes_for(DType::f32)) {
    for (const int rounds : {1, 4}) {
      Shape cut = shape;
      cut.rounds = rounds;
      check(cut, std::nullopt, size, seed());
    }
  }
}

/// Synchronizes a bucket of one tensor. Expects that the workers in this process receive exactly
/// the bits of `expected`, as a dense tensor.
template <typename T>
void expect_result(const SchemeUnderTest& under_test, const TensorSpec& tensor, Reduction reduction,
                   const Inputs& inputs, const std::vector<T>& expected) {
  const auto size = static_cast<int>(inputs.size());
  expect_no_errors(
      run_sessions(under_test.workers, size, [&](Session& session, HostMemory& memory) {
        const auto rank = static_cast<std::size_t>(session.rank().value);
        const BucketId id =
            session.register_bucket(under_test.variant.bucket({tensor}, 1, reduction));
        synchronize(session, id, under_test.variant, std::array{inputs[rank][0].view()}, {tensor});
        std::vector<T> dense(expected.size());
        to_dense(
            Context(memory), session.result(id, 0),
            {reinterpret_cast<std::byte*>(dense.data()), tensor.dtype, tensor.rows, tensor.width});
        const auto got = std::as_bytes(std::span(dense));
        const auto wanted = std::as_bytes(std::span(expected));
        const auto differs = std::mismatch(got.begin(), got.end(), wanted.begin()).first;
        EXPECT_EQ(differs - got.begin(), static_cast<std::ptrdiff_t>(got.size()))
            << name_of(tensor.dtype) << ", worker " << rank << " of " << size
            << ": index of the first different byte, and number of bytes";
      }));
}

template <typename T>
void expect_integers_to_wrap(const SchemeUnderTest& under_test) {
  const TensorSpec tensor{"t", 6, 3, ValueTraits<T>::dtype};
  Random random(seed());
  for (const int size : {1, 2, 4}) {
    if (!under_test.variant.fits(size)) continue;
    Inputs inputs;
    std::vector<std::uint64_t> expected(18);
    for (int worker = 0; worker < size; ++worker) {
      OwnedGradient gradient;
      gradient.indices = {5, 0, 3, 0};  // repeated rows must wrap, too
      for (std::size_t i = 0; i < 12; ++i) {
        const T value = std::numeric_limits<T>::max() - static_cast<T>(random.below(5));
        gradient.values.resize((i + 1) * sizeof(T));
        std::memcpy(gradient.values.data() + i * sizeof(T), &value, sizeof(T));
        expected[static_cast<std::size_t>(gradient.indices[i / 3]) * 3 + i % 3] +=
            static_cast<std::uint64_t>(value);
      }
      inputs.push_back({std::move(gradient)});
    }
    std::vector<T> sums;
    for (const std::uint64_t sum : expected) sums.push_back(static_cast<T>(sum));
    expect_result(under_test, tensor, Reduction::sum, inputs, sums);
  }
}

TEST_P(SchemeSuite, integers_wrap) {
  expect_integers_to_wrap<std::int32_t>(GetParam());
  expect_integers_to_wrap<std::int64_t>(GetParam());
}

/// Expects the exact bits of (the sum in the sum type) · (1 / n in the sum type), rounded once.
template <typename T>
void expect_mean(const SchemeUnderTest& under_test) {
  using Sum = typename ValueTraits<T>::Sum;
  const TensorSpec tensor{"t", 100, 4, ValueTraits<T>::dtype};
  for (const int size : {1, 3, 4}) {
    if (!under_test.variant.fits(size)) continue;
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
    const Sum scale = Sum{1} / static_cast<Sum>(size);
    std::vector<T> means;
    for (const Sum sum : sums) means.push_back(ValueTraits<T>::narrow(sum * scale));
    expect_result(under_test, tensor, Reduction::mean, inputs, means);
  }
}

TEST_P(SchemeSuite, a_mean_is_one_multiplication_after_the_sum) {
  expect_mean<float>(GetParam());
  expect_mean<double>(GetParam());
  expect_mean<f16>(GetParam());
  expect_mean<bf16>(GetParam());
}

TEST_P(SchemeSuite, inexact_sums_have_the_same_bits_in_every_run_and_over_every_transport) {
  const TensorSpec tensor{"t", 400, 7, DType::f32};
  for (const int size : sizes({3, 7, 8})) {
    Random random(seed() + 5);
    Inputs inputs;
    for (int worker = 0; worker < size; ++worker) {
      inputs.push_back({inexact_gradient(random, tensor, 200)});
    }
    std::vector<std::uint64_t> digests;
    for (int run = 0; run < 10; ++run) add_digests(workers(), tensor, inputs, 1, digests);
    if (!entry().all_reduces) add_digests(local_workers("local", {}), tensor, inputs, 1, digests);
    for (const std::uint64_t digest : digests) EXPECT_EQ(digest, digests.front()) << size;
  }
}

TEST_P(SchemeSuite, threads_change_no_bit) {
  // Large enough for kernels to divide their work.
  const TensorSpec tensor{"t", 30'000, 48, DType::f32};
  Random random(seed() + 6);
  Inputs inputs;
  const int size = variant().fits(2) ? 2 : 6;
  for (int worker = 0; worker < size; ++worker) {
    inputs.push_back({inexact_gradient(random, tensor, 20'000)});
  }
  std::vector<std::uint64_t> digests;
  for (const int threads : {1, 2, 5}) add_digests(workers(), tensor, inputs, threads, digests);
  for (const std::uint64_t digest : digests) EXPECT_EQ(digest, digests.front());
}

// A scheme that needs too much memory rejects the bucket with a budget error before it sends
// anything. The session stays usable.
TEST_P(SchemeSuite, rejects_buckets_that_do_not_fit) {
  const TensorSpec huge{"t", Index{1} << 33, 1, DType::f32};
  const int size = variant().fits(3) ? 3 : 4;
  if (fits({huge}, size)) GTEST_SKIP() << name() << " has no table of all rows";
  const TensorSpec small{"s", 10, 1, DType::f32};
  expect_no_errors(run_sessions(
      workers(), size,
      [&](Session& session, HostMemory&) {
        const TransportCounters before = session.counters();
        EXPECT_THROW(session.register_bucket(variant().bucket({huge})), BudgetError);
        // The agreement carries the text of the error. The values would be 32 GiB.
        EXPECT_LT(session.counters().bytes_sent - before.bytes_sent, 10'000);
        const BucketId id = session.register_bucket(variant().bucket({small}));
        synchronize(session, id, variant(), std::array{Gradient::empty()}, {small});
      },
      {kDeadline, 1}, kBudget));
}

/// Checks that each ticket of a step reports that worker `refuser` rejected it for `reason`. That
/// worker gets an `InputError`, the others a `RefusedError`.
inline void expect_rejected(Session& session, std::span<const Session::Ticket> tickets,
                            Rank refuser, const std::string& reason) {
  for (const Session::Ticket& ticket : tickets) {
    try {
      session.wait(ticket);
      ADD_FAILURE() << "worker " << session.rank().value << " did not report the rejected step";
    } catch (const InputError& error) {
      EXPECT_EQ(session.rank(), refuser);
      EXPECT_EQ(std::string(error.what()).find(reason), 0U) << error.what();
    } catch (const RefusedError& error) {
      EXPECT_NE(session.rank(), refuser);
      EXPECT_EQ(error.peer(), refuser);
      EXPECT_EQ(error.reason().find(reason), 0U) << error.what();
    }
  }
}

/// Runs four steps. Worker `bad` refuses the second and the third.
inline void refuse_two_steps(Session& session, BucketId id, const SchemeVariant& variant, int bad,
                             const Gradient& good, const ExactSum& sum) {
  const std::vector<Index> outside{3, 100};
  const std::vector<std::byte> values(32);
  const Gradient wrong = Gradient::row_sparse(outside, values.data());
  for (const bool refused : {false, true, true, false}) {
    const std::array gradients{refused && session.rank().value == bad ? wrong : good};
    const std::array rows{Gradient::rows(gradients[0].indices())};
    std::vector<Session::Ticket> tickets;
    if (variant.announce) tickets.push_back(session.announce(id, rows));
    tickets.push_back(session.submit(id, Phase::reduce, gradients));
    tickets.push_back(session.submit(id, Phase::gather));
    if (refused) {
      expect_rejected(session, tickets, Rank{bad}, "tensor 't': index 100");
      continue;
    }
    for (const Session::Ticket& ticket : tickets) session.wait(ticket);
    EXPECT_EQ(sum.difference(session.result(id, 0)), "");
  }
}

// If one worker refuses a step, all workers learn it, with every message pattern. The next step
// works.
TEST_P(SchemeSuite, a_refused_step_is_agreed_and_the_next_one_works) {
  const TensorSpec tensor{"t", 100, 4, DType::f32};
  for (const int size : sizes({1, 2, 3, 6})) {
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
        expect_no_errors(run_sessions(workers(), size, [&](Session& session, HostMemory&) {
          const auto rank = static_cast<std::size_t>(session.rank().value);
          refuse_two_steps(session, session.register_bucket(variant().bucket({tensor}, rounds)),
                           variant(), bad, inputs[rank][0].view(), sum);
        }));
      }
    }
  }
}

/// Runs three steps in which a worker announces its rows of two tensors: with repeats, in any
/// order, and more than it touches. In the second step, worker 0 touches all of tensor b and does
/// not announce it.
inline void announce_more_and_less(Session& session, BucketId id,
                                   const std::vector<OwnedGradient>& inputs,
                                   std::span<const ExactSum> sums) {
  const std::vector<Index>& rows_of_b = inputs[1].indices;
  for (const bool missing : {false, true, false}) {
    const bool leaves_out = missing && session.rank() == Rank{0};
    std::vector<Index> of_a{42, 7, 42, 99};
    std::vector<Index> of_b{69, 0};
    of_a.insert(of_a.end(), inputs[0].indices.rbegin(), inputs[0].indices.rend());
    if (!leaves_out) of_b.insert(of_b.end(), rows_of_b.rbegin(), rows_of_b.rend());
    const std::array rows{Gradient::rows(of_a), Gradient::rows(of_b)};
    const std::array touched{inputs[0].view(),
                             leaves_out ? Gradient::dense(kOnes.data()) : inputs[1].view()};
    const auto announced = session.announce(id, rows);
    const auto reduced = session.submit(id, Phase::reduce, touched);
    const auto gathered = session.submit(id, Phase::gather);
    session.wait(announced);
    if (missing) {
      expect_rejected(session, std::array{reduced, gathered}, Rank{0},
                      "tensor 'b': row 1 was touched and not");
      continue;
    }
    session.wait(reduced);
    session.wait(gathered);
    EXPECT_EQ(sums[0].difference(session.result(id, 0)), "");
    EXPECT_EQ(sums[1].difference(session.result(id, 1)), "");
  }
}

// Announced rows without values are sent as zeros. Touched rows that were not announced are
// refused. All workers agree on that, and the next step works.
TEST_P(SchemeSuite, announced_rows_are_at_least_those_touched) {
  if (!variant().announce) GTEST_SKIP() << name() << " announces nothing";
  const std::vector<TensorSpec> tensors{{"a", 100, 4, DType::f32}, {"b", 70, 4, DType::f32}};
  for (const int size : sizes({1, 2, 5})) {
    for (const int rounds : {1, 3}) {
      Random random(seed());
      std::vector<ExactSum> sums(tensors.begin(), tensors.end());
      Inputs inputs;
      for (int worker = 0; worker < size; ++worker) {
        std::vector<OwnedGradient>& of_worker = inputs.emplace_back();
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          of_worker.push_back(some_rows(random, tensors[t], 30));
          sums[t].add(of_worker.back());
        }
      }
      expect_no_errors(run_sessions(workers(), size, [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(variant().bucket(tensors, rounds));
        announce_more_and_less(session, id, inputs[static_cast<std::size_t>(session.rank().value)],
                               sums);
      }));
    }
  }
}

/// Returns all schemes that these workers can run, for INSTANTIATE_TEST_SUITE_P.
inline std::vector<SchemeUnderTest> all_schemes_over(const WorkersUnderTest& workers,
                                                     int most_workers,
                                                     const std::array<std::vector<int>, 3>& sizes) {
  std::vector<SchemeUnderTest> all;
  for (SchemeVariant& variant : scheme_variants()) {
    if (variant.entry().all_reduces && !workers.has_all_reduce) continue;
    all.push_back({std::move(variant), workers, most_workers, sizes});
  }
  return all;
}

}  // namespace sparsesync::testing
