// Buckets: row spaces, input checks, and the conversion of gradients to coalesced rows.
#include "schemes/bucket.h"
#include "schemes/bucket_input.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "sparsesync/memory.h"

namespace sparsesync::testing {
namespace {

TEST(RowSpaces, tensors_of_one_dtype_and_width_are_adjacent) {
  const std::vector<TensorSpec> tensors{{"a", 10, 4, DType::f32},
                                        {"b", 20, 8, DType::f32},
                                        {"c", 30, 4, DType::f32},
                                        {"d", 40, 4, DType::bf16}};
  const std::vector<RowSpace> spaces = row_spaces(tensors);
  ASSERT_EQ(spaces.size(), 3U);
  EXPECT_EQ(spaces[0].rows, 40);
  ASSERT_EQ(spaces[0].members.size(), 2U);
  EXPECT_EQ(spaces[0].members[1].tensor, 2U);
  EXPECT_EQ(spaces[0].members[1].first_row, 10);
  EXPECT_EQ(spaces[0].dense_bytes(), 40 * 4 * 4);
  EXPECT_EQ(spaces[1].rows, 20);
  EXPECT_EQ(spaces[2].row_bytes(), 8);
}

TEST(BucketSpec, is_checked_and_errors_name_the_tensor) {
  const auto text = [](const BucketSpec& spec) -> std::string {
    try {
      validate(spec);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text({"b", {{"t", 1, 1, DType::f32}}}), "");
  EXPECT_NE(text({"b", {{"t", 5, 0, DType::f32}}}).find("'t'"), std::string::npos);
  EXPECT_NE(text({"b", {{"t", std::numeric_limits<Index>::max(), 2, DType::f32}}}).find("'t'"),
            std::string::npos);
  EXPECT_NE(text({"b", {}}).find("no tensors"), std::string::npos);
  for (const int rounds : {-1, 0, kMostRounds + 1, 1'000'000'000}) {
    BucketSpec spec{"b", {{"t", 1, 1, DType::f32}}};
    spec.rounds = rounds;
    EXPECT_NE(text(spec).find("use 1 to 64"), std::string::npos) << rounds;
  }
  BucketSpec most{"b", {{"t", 1, 1, DType::f32}}};
  most.rounds = kMostRounds;
  EXPECT_EQ(text(most), "");
}

TEST(BucketSpec, a_mean_of_integers_is_rejected) {
  for (const DType dtype : kDTypes) {
    BucketSpec spec{"b", {{"w", 5, 2, DType::f32}, {"t", 5, 2, dtype}}};
    validate(spec);
    spec.reduction = Reduction::mean;
    if (!is_integer(dtype)) {
      validate(spec);
      continue;
    }
    try {
      validate(spec);
      ADD_FAILURE() << name_of(dtype);
    } catch (const InputError& error) {
      const std::string text = error.what();
      for (const std::string& part :
           {std::string("bucket 'b', tensor 't'"), "the mean of " + std::string(name_of(dtype)),
            std::string("use")}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
  }
}

class Inputs : public ::testing::Test {
 protected:
  HostMemory memory_;
  Context context_{memory_};
  BucketSpec spec_{"b", {{"a", 10, 2, DType::f32}, {"b", 5, 2, DType::f32}}};
  static const std::byte* bytes(const std::vector<float>& values) {
    return reinterpret_cast<const std::byte*>(values.data());
  }
  static std::vector<float> floats(ConstMatrix matrix) {
    std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.width));
    std::memcpy(values.data(), matrix.data, values.size() * sizeof(float));
    return values;
  }
};

TEST_F(Inputs, of_any_layout_become_one_coalesced_row_space) {
  BucketInput input(context_, spec_);
  const std::vector<Index> rows{7, 2, 7};
  const std::vector<float> values{1, 2, 3, 4, 10, 20};
  const std::vector<float> dense{0, 0, 0, 5, -0.0F, 0, 1, -1, 0, 0};
  input.set(std::array{Gradient::row_sparse(rows, bytes(values)), Gradient::dense(bytes(dense))});
  const RowSparse all = input.coalesced(0);
  EXPECT_EQ(std::vector<Index>(all.indices.begin(), all.indices.end()),
            (std::vector<Index>{2, 7, 11, 13}));
  EXPECT_EQ(floats(all.values), (std::vector<float>{3, 4, 11, 22, 0, 5, 1, -1}));
  EXPECT_EQ(input.touched(0), 4);
  std::vector<float> sums(30, 1.0F);
  input.start_sums(0, {reinterpret_cast<std::byte*>(sums.data()), DType::f32, 15, 2});
  EXPECT_EQ(sums[2 * 2], 3);
  EXPECT_EQ(sums[7 * 2 + 1], 22);
  EXPECT_EQ(sums[11 * 2 + 1], 5);
  EXPECT_EQ(sums[0], 0);
  EXPECT_FALSE(std::signbit(sums[12 * 2]));  // input -0
}

TEST_F(Inputs, coalesced_values_are_not_copied) {
  spec_.tensors.pop_back();
  BucketInput input(context_, spec_);
  const std::vector<Index> rows{2, 7};
  const std::vector<float> values{1, 2, 3, 4};
  const std::array gradients{Gradient::row_sparse(rows, bytes(values))};
  input.set(gradients);  // allocates memory for indices
  const std::int64_t before = memory_.allocations();
  input.set(gradients);
  EXPECT_EQ(input.coalesced(0).values.data, bytes(values));
  EXPECT_EQ(memory_.allocations(), before);
}

TEST_F(Inputs, indices_that_change_after_the_check_have_no_effect) {
  spec_.tensors.pop_back();
  const std::vector<float> values{1, 2, 3, 4};
  for (const std::vector<Index>& given : {std::vector<Index>{2, 7}, {7, 2}, {7, 7}}) {
    std::vector<Index> rows = given;
    BucketInput input(context_, spec_);
    input.set(std::array{Gradient::row_sparse(rows, bytes(values))});
    std::ranges::fill(rows, std::numeric_limits<Index>::max());
    for (const Index row : input.coalesced(0).indices) EXPECT_TRUE(row == 2 || row == 7);
    std::vector<float> sums(20, 1.0F);
    input.start_sums(0, {reinterpret_cast<std::byte*>(sums.data()), DType::f32, 10, 2});
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0.0F), 10);
  }
}

TEST_F(Inputs, are_checked_before_use) {
  BucketInput input(context_, spec_);
  const std::vector<float> values(8);
  for (const std::vector<Index>& rows :
       {std::vector<Index>{0, 10}, {-1}, {3, std::numeric_limits<Index>::min()}}) {
    EXPECT_THROW(
        input.set(std::array{Gradient::row_sparse(rows, bytes(values)), Gradient::empty()}),
        InputError);
  }
  EXPECT_THROW(input.set(std::array{Gradient::empty()}), InputError);
  // A rejected input leaves no trace.
  input.set(std::array{Gradient::empty(), Gradient::empty()});
  EXPECT_TRUE(input.coalesced(0).indices.empty());
  EXPECT_EQ(input.touched(0), 0);
}

/// Changes the caller's memory during an allocation of an operation.
class InterferingUpstream : public std::pmr::memory_resource {
 public:
  std::function<void()> interfere = [] {};

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    interfere();
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* pointer, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(pointer, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(BucketInput, a_gradient_that_gains_rows_between_two_passes_is_rejected) {
  for (const int tensors : {1, 2}) {
    InterferingUpstream upstream;
    HostMemory memory(std::nullopt, &upstream);
    BucketSpec spec{"b", {}};
    std::vector<std::vector<float>> values(static_cast<std::size_t>(tensors),
                                           std::vector<float>(400 * 4, 0));
    std::vector<Gradient> gradients;
    for (std::size_t i = 0; i < values.size(); ++i) {
      spec.tensors.push_back({i == 0 ? "t" : "u", 400, 4, DType::f32});
      values[i][8] = 1;
      gradients.push_back(Gradient::dense(reinterpret_cast<const std::byte*>(values[i].data())));
    }
    BucketInput input(Context(memory), spec);
    input.set(gradients);
    upstream.interfere = [&] { std::ranges::fill(values[0], 2.0F); };
    std::string problem;
    try {
      input.coalesced(0);
    } catch (const InputError& error) {
      problem = error.what();
    }
    EXPECT_EQ(problem.find("tensor 't': its gradient changed while it was being sent"), 0U)
        << problem;
    upstream.interfere = [] {};
    input.set(gradients);
    EXPECT_EQ(std::ssize(input.coalesced(0).indices), 400 + tensors - 1);
  }
}

TEST(BucketInput, a_gradient_that_loses_rows_between_two_passes_repeats_no_row) {
  InterferingUpstream upstream;
  HostMemory memory(std::nullopt, &upstream);
  std::vector<float> values(400 * 4, 1);
  BucketInput input(Context(memory), {"b", {{"t", 400, 4, DType::f32}}});
  input.set(std::vector{Gradient::dense(reinterpret_cast<const std::byte*>(values.data()))});
  upstream.interfere = [&] { std::ranges::fill(std::span(values).first(800), 0.0F); };
  const RowSparse rows = input.coalesced(0);
  ASSERT_EQ(rows.indices.size(), 200U);
  EXPECT_EQ(rows.indices.front(), 200);
  EXPECT_TRUE(std::ranges::is_sorted(rows.indices, std::less_equal<>()));
}

}  // namespace
}  // namespace sparsesync::testing
