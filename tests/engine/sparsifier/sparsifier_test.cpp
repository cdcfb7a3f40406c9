// ctest: DEVICES
// Sparsifiers: they lose nothing and send nothing twice, follow their papers, and work with all
// workers of a session.
#include "sparsesync/sparsifier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/topk/residual.h"
#include "sparsesync/memory.h"
#include "tests/kernels/values.h"
#include "tests/support/failing_memory.h"
#include "tests/support/flush_to_zero.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

struct Case {
  std::string name;
  SparsifierOptions options;
  double share = 1;
};

std::vector<Case> all_sparsifiers() {
  std::vector<Case> cases;
  for (const std::optional<DType> wire :
       {std::optional<DType>{}, std::optional{DType::f16}, std::optional{DType::bf16}}) {
    const std::string suffix = wire ? ", " + std::string(name_of(*wire)) : "";
    cases.push_back({"top 1%" + suffix, {.selecting = Selecting::top_k, .wire = wire}, 0.01});
    cases.push_back({"top 30%" + suffix, {.selecting = Selecting::top_k, .wire = wire}, 0.3});
    cases.push_back({"all" + suffix, {.selecting = Selecting::top_k, .wire = wire}, 1});
    cases.push_back(
        {"threshold" + suffix, {.selecting = Selecting::threshold, .level = 20, .wire = wire}});
    cases.push_back(
        {"chunks" + suffix, {.selecting = Selecting::chunks, .chunk = 64, .wire = wire}, 0.25});
  }
  return cases;
}

/// The tensors of a bucket and one worker's gradients of them, in memory of the device under test.
template <typename T>
class Model {
 public:
  explicit Model(const std::vector<Index>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      specs_.push_back({"layer" + std::to_string(i), sizes[i], 1, ValueTraits<T>::dtype});
      gradients_.emplace_back(static_cast<std::size_t>(sizes[i]));
    }
  }
  const std::vector<TensorSpec>& specs() const { return specs_; }
  std::vector<T>& gradient(std::size_t tensor) { return gradients_[tensor]; }
  std::vector<const std::byte*> given() const {
    std::vector<const std::byte*> pointers;
    for (const std::vector<T>& gradient : gradients_) {
      pointers.push_back(reinterpret_cast<const std::byte*>(gradient.data()));
    }
    return pointers;
  }
  /// Draws integers. Sums over a few steps are exact in every dtype.
  void draw_whole(Random& random) {
    for (std::vector<T>& gradient : gradients_) {
      for (T& value : gradient) value = value_of<T>(static_cast<double>(random.below(9)) - 4);
    }
  }
  std::vector<double> flat() const {
    std::vector<double> all;
    for (const std::vector<T>& gradient : gradients_) {
      for (const T value : gradient)
        all.push_back(static_cast<double>(ValueTraits<T>::widen(value)));
    }
    return all;
  }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<T>> gradients_;
};

/// The sent values as a dense list, and the positions that were sent.
struct Sent {
  std::vector<double> values;
  std::vector<bool> is_sent;
};

Sent sent_by(const Sparsifier& sparsifier, std::span<const Gradient> taken, Index elements) {
  Sent found{std::vector<double>(static_cast<std::size_t>(elements)),
             std::vector<bool>(static_cast<std::size_t>(elements))};
  Index begin = 0;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const TensorSpec& tensor = sparsifier.crossing()[i];
    for_owed_dtype(tensor.dtype, [&]<typename T>(T) {
      const auto* const values = reinterpret_cast<const T*>(taken[i].values());
      Index at = 0;
      for (const Index row : taken[i].indices()) {
        for (Index column = 0; column < tensor.width; ++column, ++at) {
          const Index place = begin + row * tensor.width + column;
          const auto value = static_cast<double>(ValueTraits<T>::widen(values[at]));
          if (place >= elements) {
            EXPECT_EQ(value, 0) << "past the last tensor";
            continue;
          }
          EXPECT_FALSE(found.is_sent[static_cast<std::size_t>(place)]) << place << " twice";
          found.values[static_cast<std::size_t>(place)] = value;
          found.is_sent[static_cast<std::size_t>(place)] = true;
        }
      }
    });
    begin += tensor.rows * tensor.width;
  }
  return found;
}

std::vector<double> residual_of(Sparsifier& sparsifier, std::size_t tensors) {
  std::vector<double> all;
  for (std::size_t i = 0; i < tensors; ++i) {
    for (const float value : sparsifier.residual(i)) all.push_back(static_cast<double>(value));
  }
  return all;
}

const std::vector<Index> kSizes{300, 1, 77, 500};
constexpr Index kElements = 878;
constexpr Index kChunk = 64;
constexpr Index kChunks = 14;

/// Chooses the next chunks in the same way as all workers would after a step of one worker.
void choose_next(Sparsifier& sparsifier, double share) {
  const std::span<double> norms = sparsifier.norms();
  if (norms.empty()) return;
  const auto count = static_cast<Index>(std::ceil(share * static_cast<double>(norms.size())));
  sparsifier.choose(largest_chunks(norms, count));
}

class Sparsifiers : public OperationTest {
 protected:
  std::unique_ptr<Sparsifier> make(const std::vector<TensorSpec>& tensors,
                                   const SparsifierOptions& options) {
    return make_sparsifier(context_, tensors, options);
  }
};

template <typename Body>
void for_each_owed_dtype(Body&& body) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    for_owed_dtype(dtype, body);
  }
}

TEST_F(Sparsifiers, SentValuesAndResidualAddUpToTheInput) {
  Random random(testing::seed());
  for (const Case& each : all_sparsifiers()) {
    SCOPED_TRACE(each.name);
    for_each_owed_dtype([&]<typename T>(T) {
      Model<T> model(kSizes);
      const auto sparsifier = make(model.specs(), each.options);
      std::vector<double> owed(kElements);
      for (int step = 0; step < 12; ++step) {
        model.draw_whole(random);
        const std::vector<double> came = model.flat();
        for (std::size_t i = 0; i < owed.size(); ++i) owed[i] += came[i];
        const auto taken = sparsifier->take(model.given(), {.share = each.share});
        const Sent now = sent_by(*sparsifier, taken, kElements);
        const std::vector<double> left = residual_of(*sparsifier, kSizes.size());
        for (std::size_t i = 0; i < owed.size(); ++i) {
          ASSERT_EQ(now.values[i] + left[i], owed[i]) << "element " << i << ", step " << step;
          owed[i] = left[i];
        }
        EXPECT_EQ(sparsifier->not_finite(), 0);
        choose_next(*sparsifier, each.share);
      }
    });
  }
}

TEST_F(Sparsifiers, AConstantGradientIsSentEventually) {
  for (const Case& each : all_sparsifiers()) {
    SCOPED_TRACE(each.name);
    Model<float> model(kSizes);
    Random random(testing::seed());
    model.draw_whole(random);
    const std::vector<double> came = model.flat();
    const auto sparsifier = make(model.specs(), each.options);
    std::vector<double> sent(kElements);
    constexpr int kSteps = 500;
    for (int step = 0; step < kSteps; ++step) {
      const auto taken = sparsifier->take(model.given(), {.share = each.share});
      const Sent now = sent_by(*sparsifier, taken, kElements);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += now.values[i];
      choose_next(*sparsifier, each.share);
    }
    const std::vector<double> left = residual_of(*sparsifier, kSizes.size());
    for (std::size_t i = 0; i < sent.size(); ++i) {
      ASSERT_EQ(sent[i] + left[i], kSteps * came[i]) << "element " << i;
      // Every nonzero element was sent at some time, whatever its size.
      EXPECT_EQ(sent[i] == 0, came[i] == 0) << "element " << i;
    }
  }
}

TEST_F(Sparsifiers, ElementSparsifiersSelectTheLargest) {
  Random random(testing::seed());
  Model<float> model(kSizes);
  for (const double share : {0.001, 0.01, 0.5}) {
    const auto sparsifier = make(model.specs(), {.selecting = Selecting::top_k});
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (float& value : model.gradient(i)) value = static_cast<float>(random.uniform() + 0.5);
    }
    const auto taken = sparsifier->take(model.given(), {.share = share});
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      std::vector<float> sorted = model.gradient(i);
      std::ranges::sort(sorted, std::greater{});
      const auto k = static_cast<std::size_t>(std::ceil(share * static_cast<double>(kSizes[i])));
      ASSERT_EQ(taken[i].indices().size(), k);
      for (const Index place : taken[i].indices()) {
        EXPECT_GE(model.gradient(i)[static_cast<std::size_t>(place)], sorted[k - 1]);
      }
    }
  }
  const auto sparsifier = make(model.specs(), {.selecting = Selecting::threshold, .level = 1});
  const auto taken = sparsifier->take(model.given(), {});
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const auto large = std::ranges::count_if(model.gradient(i), [](float v) { return v >= 1; });
    EXPECT_EQ(std::ssize(taken[i].indices()), large);
  }
}

TEST_F(Sparsifiers, ChunksWithTheLargestNormsAreSentOneStepLater) {
  Model<float> model(kSizes);
  const auto sparsifier = make(model.specs(), {.selecting = Selecting::chunks, .chunk = kChunk});
  ASSERT_EQ(sparsifier->crossing().size(), 1);
  EXPECT_EQ(sparsifier->crossing()[0].rows, kChunks);
  EXPECT_EQ(sparsifier->crossing()[0].width, kChunk);
  EXPECT_EQ(sparsifier->crossing()[0].name, "layer0 and 3 more");
  // One element of the last tensor, in chunk 8: 378 + 150 = 528.
  model.gradient(3)[150] = -3;
  model.gradient(0)[70] = 2;
  auto taken = sparsifier->take(model.given(), {});
  EXPECT_EQ(std::ssize(taken[0].indices()), kChunks);  // no norms are known yet
  std::vector<double> expected(kChunks);
  expected[8] = 3;
  expected[1] = 2;
  EXPECT_EQ(std::vector<double>(sparsifier->norms().begin(), sparsifier->norms().end()), expected);
  choose_next(*sparsifier, 1.0 / kChunks);
  taken = sparsifier->take(model.given(), {});
  ASSERT_EQ(taken[0].indices().size(), 1);
  EXPECT_EQ(taken[0].indices()[0], 8);
  const Sent now = sent_by(*sparsifier, taken, kElements);
  EXPECT_EQ(now.values[528], -3);
  EXPECT_EQ(sparsifier->residual(0)[70], 2);
}

TEST(LargestChunks, AreTheSameOnAllWorkers) {
  const double nan = std::nan("");
  EXPECT_EQ(largest_chunks(std::vector<double>{1, 3, 2, 3, 0}, 2), (std::vector<Index>{1, 3}));
  EXPECT_EQ(largest_chunks(std::vector<double>{1, 3, 2, 3, 3}, 2), (std::vector<Index>{1, 3}));
  EXPECT_EQ(largest_chunks(std::vector<double>{1, nan, HUGE_VAL, 2}, 2),
            (std::vector<Index>{1, 2}));
  EXPECT_EQ(largest_chunks(std::vector<double>{0, 0, 0}, 5), (std::vector<Index>{0, 1, 2}));
  EXPECT_TRUE(largest_chunks(std::vector<double>{1, 2}, 0).empty());
}

/// DGC exactly as in the paper, for one tensor, in double.
struct Dgc {
  explicit Dgc(Index size) : residual(static_cast<std::size_t>(size)), velocity(residual) {}

  /// @return the sent values, as a dense list
  std::vector<double> step(std::vector<double> gradient, double clip, double momentum,
                           bool nesterov, bool masks, Index k) {
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    const double factor = squares > clip * clip ? clip / std::sqrt(squares) : 1;
    std::vector<std::size_t> order(gradient.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = gradient[i] * factor;
      velocity[i] = momentum * velocity[i] + g;
      residual[i] += nesterov ? g + momentum * velocity[i] : velocity[i];
    }
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return std::abs(residual[a]) > std::abs(residual[b]);
    });
    std::vector<double> sent(gradient.size());
    for (Index i = 0; i < k; ++i) {
      const std::size_t place = order[static_cast<std::size_t>(i)];
      sent[place] = std::exchange(residual[place], 0);
      if (masks) velocity[place] = 0;
    }
    return sent;
  }
  std::vector<double> residual;
  std::vector<double> velocity;
};

TEST_F(Sparsifiers, DeepGradientCompressionFollowsThePaper) {
  constexpr Index kSize = 400;
  for (const bool nesterov : {false, true}) {
    for (const bool masks : {false, true}) {
      SCOPED_TRACE((nesterov ? "nesterov" : "heavy ball") + std::string(masks ? ", masked" : ""));
      Random random(testing::seed());
      Model<float> model({kSize});
      const auto sparsifier = make(model.specs(), {.selecting = Selecting::top_k,
                                                   .corrects_momentum = true,
                                                   .masks_momentum = masks,
                                                   .clip = 1024});
      Dgc reference(kSize);
      for (int step = 0; step < 8; ++step) {
        // A large number in every second step makes the gradient clip, by a power of two.
        for (float& value : model.gradient(0)) {
          value = static_cast<float>(random.below(2) * 2) - 1;
          value *= step % 2 == 0 ? 1.0F + static_cast<float>(random.below(8)) : 0.0F;
        }
        if (step % 2 == 1) model.gradient(0)[static_cast<std::size_t>(random.below(kSize))] = 4096;
        const Index k = step < 4 ? 100 : 4;
        const SparsifierStep now{
            .share = static_cast<double>(k) / kSize, .momentum = 0.5F, .nesterov = nesterov};
        const auto taken = sparsifier->take(model.given(), now);
        const std::vector<double> sent =
            reference.step(model.flat(), 1024, 0.5, nesterov, masks, k);
        ASSERT_EQ(sent_by(*sparsifier, taken, kSize).values, sent) << "step " << step;
        ASSERT_EQ(residual_of(*sparsifier, 1), reference.residual) << "step " << step;
        const std::span<float> velocity = sparsifier->velocity(0);
        ASSERT_EQ(std::vector<double>(velocity.begin(), velocity.end()), reference.velocity);
      }
    }
  }
}

TEST_F(Sparsifiers, ASkippedStepLeavesNoTrace) {
  for (Case each : all_sparsifiers()) {
    for (const bool corrects : {false, true}) {
      SCOPED_TRACE(each.name + (corrects ? ", momentum" : ""));
      each.options.corrects_momentum = corrects;
      Random random(testing::seed());
      Model<float> model(kSizes);
      const auto sparsifier = make(model.specs(), each.options);
      const SparsifierStep step{.share = each.share, .momentum = 0.5F};
      for (int i = 0; i < 3; ++i) {
        model.draw_whole(random);
        sparsifier->take(model.given(), step);
      }
      const std::vector<double> before = residual_of(*sparsifier, kSizes.size());
      std::vector<std::vector<float>> velocities;
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        velocities.emplace_back(sparsifier->velocity(i).begin(), sparsifier->velocity(i).end());
      }
      model.draw_whole(random);
      model.gradient(0)[3] = std::numeric_limits<float>::infinity();
      model.gradient(3)[9] = std::nanf("");
      std::vector<const std::byte*> given = model.given();
      given[2] = nullptr;  // not used in this step
      sparsifier->take(given, step);
      EXPECT_EQ(sparsifier->not_finite(), 2);
      sparsifier->undo(given);
      synchronize(context_);
      EXPECT_EQ(residual_of(*sparsifier, kSizes.size()), before);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const std::span<float> now = sparsifier->velocity(i);
        EXPECT_EQ(std::vector<float>(now.begin(), now.end()), velocities[i]);
      }
    }
  }
}

/// The loss is scaled by a different power of two in each step. All values must equal those without
/// scaling, times the scale.
TEST_F(Sparsifiers, FollowTheScaleOfTheLoss) {
  for (Case each : all_sparsifiers()) {
    if (each.options.wire == DType::f16) continue;  // scaled values exceed the range of f16
    SCOPED_TRACE(each.name);
    each.options.clip = 300;
    each.options.corrects_momentum = true;
    Random random(testing::seed());
    Model<float> model(kSizes);
    Model<float> larger(kSizes);
    const auto plain = make(model.specs(), each.options);
    const auto scaled = make(model.specs(), each.options);
    for (int step = 0; step < 6; ++step) {
      const float scale = std::ldexp(1.0F, 3 * (step % 3));
      model.draw_whole(random);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const auto times = [&](float value) { return value * scale; };
        std::ranges::transform(model.gradient(i), larger.gradient(i).begin(), times);
      }
      const SparsifierStep now{.share = each.share, .momentum = 0.5F};
      const Sent expected = sent_by(*plain, plain->take(model.given(), now), kElements);
      const SparsifierStep then{.share = each.share, .scale = scale, .momentum = 0.5F};
      const Sent found = sent_by(*scaled, scaled->take(larger.given(), then), kElements);
      EXPECT_EQ(found.is_sent, expected.is_sent);
      EXPECT_EQ(scaled->scale(), scale);
      const std::vector<double> owed = residual_of(*plain, kSizes.size());
      const std::vector<double> owed_scaled = residual_of(*scaled, kSizes.size());
      for (std::size_t i = 0; i < owed.size(); ++i) {
        ASSERT_EQ(found.values[i], expected.values[i] * static_cast<double>(scale)) << i;
        ASSERT_EQ(owed_scaled[i], owed[i] * static_cast<double>(scale)) << i;
      }
      choose_next(*plain, each.share);
      choose_next(*scaled, each.share);
    }
  }
}

TEST_F(Sparsifiers, ValuesThatAreGivenBackStayInTheResidual) {
  for (const Case& each : all_sparsifiers()) {
    SCOPED_TRACE(each.name);
    Random random(testing::seed());
    Model<float> model(kSizes);
    const auto sparsifier = make(model.specs(), each.options);
    EXPECT_THROW(sparsifier->give_back(), ContractError);
    std::vector<double> owed(kElements);
    for (int step = 0; step < 4; ++step) {
      model.draw_whole(random);
      const std::vector<double> came = model.flat();
      std::ranges::transform(owed, came, owed.begin(), std::plus<>());
      sparsifier->take(model.given(), {.share = each.share});
      sparsifier->give_back();
      synchronize(context_);
      EXPECT_EQ(residual_of(*sparsifier, kSizes.size()), owed);
      EXPECT_THROW(sparsifier->give_back(), ContractError);
      EXPECT_THROW(sparsifier->undo(model.given()), ContractError);
    }
  }
}

TEST(SparsifierMemory, that_runs_out_at_any_allocation_loses_nothing) {
  for (Case each : all_sparsifiers()) {
    for (const float momentum : {0.0F, 0.5F}) {
      SCOPED_TRACE(fmt::format("{}, momentum {}", each.name, momentum));
      each.options.corrects_momentum = momentum != 0;
      const SparsifierStep now{.share = each.share, .momentum = momentum};
      Random random(testing::seed());
      Model<float> model(kSizes);
      model.draw_whole(random);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        for (float& value : model.gradient(i)) value *= 8;  // some then exceed the threshold
      }
      bool has_failed = true;
      std::int64_t failing = 0;
      for (; has_failed; ++failing) {
        testing::TestMemory all;
        testing::FailingMemory memory(all);
        const testing::DeviceUnderTest device(false, &memory);
        const Context context = device.context(memory);
        const auto sparsifier = make_sparsifier(context, model.specs(), each.options);
        const auto owed = [&] {
          synchronize(context);
          return residual_of(*sparsifier, kSizes.size());
        };
        memory.fail(failing + 1, testing::Failure::budget);
        try {
          sparsifier->take(model.given(), now);
          has_failed = false;
        } catch (const BudgetError&) {
          EXPECT_EQ(owed(), std::vector<double>(kElements));
          EXPECT_THROW(sparsifier->give_back(), ContractError);
          sparsifier->take(model.given(), now);
        }
        memory.stop_failing();
        sparsifier->give_back();
        EXPECT_EQ(owed(), model.flat());
      }
      EXPECT_GT(failing, 1);
    }
  }
}

TEST_F(Sparsifiers, WithoutFeedbackTheRestIsLost) {
  Model<float> model({4});
  model.gradient(0) = {4, 3, 2, 1};
  const auto sparsifier = make(model.specs(), {.selecting = Selecting::top_k, .keeps_rest = false});
  for (int step = 0; step < 3; ++step) {
    const auto taken = sparsifier->take(model.given(), {.share = 0.25});
    EXPECT_EQ(sent_by(*sparsifier, taken, 4).values, (std::vector<double>{4, 0, 0, 0}));
  }
}

TEST_F(Sparsifiers, NonFiniteElementsAreNeverSent) {
  for (const Case& each : all_sparsifiers()) {
    SCOPED_TRACE(each.name);
    Model<float> model(kSizes);
    for (float& value : model.gradient(0)) value = 30;
    model.gradient(0)[5] = std::nanf("");
    model.gradient(3)[5] = -std::numeric_limits<float>::infinity();
    const auto sparsifier = make(model.specs(), each.options);
    const auto taken = sparsifier->take(model.given(), {.share = each.share});
    EXPECT_EQ(sparsifier->not_finite(), 2);
    for (const double value : sent_by(*sparsifier, taken, kElements).values) {
      ASSERT_TRUE(std::isfinite(value));
    }
    for (const double value : residual_of(*sparsifier, kSizes.size()))
      ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(Sparsifiers, RejectInvalidInput) {
  const Model<float> model(kSizes);
  const auto refused = [&](const std::vector<TensorSpec>& tensors, const SparsifierOptions& options,
                           const std::string& said) {
    try {
      make(tensors, options);
      ADD_FAILURE() << "accepted, expected: " << said;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  };
  refused({{"wide", 3, 1, DType::f64}}, {}, "tensor 'wide' is f64");
  refused({}, {}, "no elements");
  refused(model.specs(), {.selecting = Selecting::chunks, .chunk = kElements + 1}, "1 to 878");
  refused(model.specs(), {.selecting = Selecting::chunks, .chunk = 0}, "1 to 878");
  refused(model.specs(), {.selecting = Selecting::threshold}, "threshold level 0");
  refused(model.specs(), {.clip = 0.0}, "clip norm 0");
  refused({{"t", -1, 4, DType::f32}}, {}, "'t': -1 rows of width 4");
  refused({{"t", -2, -4, DType::f32}}, {}, "'t': -2 rows of width -4");
  refused({{"t", 4, -1, DType::f32}}, {}, "'t': 4 rows of width -1");
  // The number of elements is 8 modulo 2^64.
  refused({{"t", 0x5555555555555558, 3, DType::f32}}, {}, "more elements than can be counted");
  refused({{"t", Index{1} << 31U, Index{1} << 31U, DType::f32}}, {}, "more elements than can be");
  constexpr Index kHalf = Index{1} << 56U;
  refused({{"s", kHalf, 1, DType::f32}, {"t", kHalf, 1, DType::f32}}, {},
          "'t': 72057594037927936 rows of width 1 are more elements than can be counted");
  refused(model.specs(), {.wire = DType::i32}, "f32, f16 or bf16");
  const auto sparsifier = make(model.specs(), {});
  for (const double share : {0.0, -0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(sparsifier->take(model.given(), {.share = share}), InputError) << share;
  }
  for (const float scale : {0.0F, -1.0F, std::nanf(""), HUGE_VALF}) {
    EXPECT_THROW(sparsifier->take(model.given(), {.scale = scale}), InputError) << scale;
  }
  for (const float momentum : {-0.5F, std::nanf(""), HUGE_VALF}) {
    EXPECT_THROW(sparsifier->take(model.given(), {.momentum = momentum}), InputError) << momentum;
  }
  EXPECT_THROW(sparsifier->choose({}), ContractError);
  const auto chunks = make(model.specs(), {.selecting = Selecting::chunks, .chunk = kChunk});
  EXPECT_THROW(chunks->choose(std::vector<Index>{kChunks}), ContractError);
  EXPECT_THROW(chunks->choose(std::vector<Index>{2, 2}), ContractError);
}

TEST_F(Sparsifiers, CountOfShareStaysInRange) {
  constexpr Index kMost = std::numeric_limits<Index>::max();
  EXPECT_EQ(count_of_share(0.01, 100), 1);
  EXPECT_EQ(count_of_share(0.011, 100), 2);
  EXPECT_EQ(count_of_share(1, 100), 100);
  EXPECT_EQ(count_of_share(1, kMost), kMost);
  EXPECT_EQ(count_of_share(1e300, 100), 100);
  EXPECT_EQ(count_of_share(-1e300, 100), 0);
  EXPECT_EQ(count_of_share(0.5, 0), 0);
  for (const double share : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    EXPECT_THROW(count_of_share(share, 100), InputError) << share;
  }
  EXPECT_THROW(count_of_share(0.5, -1), InputError);
}

TEST_F(Sparsifiers, StateIsCountedAndTheSteadyStateAllocatesNothing) {
  Random random(testing::seed());
  Model<float> model(kSizes);
  const auto before = memory_.in_use();
  for (const Case& each : all_sparsifiers()) {
    if (each.options.selecting == Selecting::threshold)
      continue;  // selects another number of elements in each step
    const auto sparsifier = make(model.specs(), each.options);
    EXPECT_GE(memory_.in_use() - before, kElements * 4);
    for (int step = 0; step < 3; ++step) {
      model.draw_whole(random);
      sparsifier->take(model.given(), {.share = each.share});
      choose_next(*sparsifier, each.share);
    }
    const auto allocations = memory_.allocations();
    for (int step = 0; step < 3; ++step) {
      model.draw_whole(random);
      sparsifier->take(model.given(), {.share = each.share});
      choose_next(*sparsifier, each.share);
    }
    EXPECT_EQ(memory_.allocations(), allocations) << each.name;
  }
}

TEST(SparsifierModes, nothing_is_lost_whatever_the_floating_point_modes_of_the_caller) {
  if (!testing::kHasFlushToZero) GTEST_SKIP() << "this processor has no flush-to-zero mode";
  HostMemory memory;
  const std::vector<TensorSpec> tensors{{"t", 100, 1, DType::f32}};
  const std::vector<float> gradient(100, 1e-40F);
  const std::vector<const std::byte*> given{std::as_bytes(std::span(gradient)).data()};
  const auto sparsifier =
      make_sparsifier(Context(memory), tensors, {.selecting = Selecting::top_k});
  std::vector<float> left;
  {
    const testing::FlushToZero own;
    sparsifier->take(given, {.share = 0.5});
    sparsifier->give_back();
    sparsifier->take(given, {.share = 0.5});
    sparsifier->undo(given);
    sparsifier->take(given, {.share = 0.5, .scale = 2});
    sparsifier->give_back();
    left.assign(sparsifier->residual(0).begin(), sparsifier->residual(0).end());
  }
  EXPECT_EQ(left, std::vector<float>(100, 3 * 1e-40F));
}

}  // namespace
}  // namespace sparsesync
