// Inputs of the conformance suite of schemes: every unusual shape that a gradient may have.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "schemes/statistics.h"
#include "tests/support/gradients.h"
#include "tests/support/random.h"

namespace sparsesync::testing {

/// Gradients that workers submit to a bucket: [worker][tensor].
using Inputs = std::vector<std::vector<OwnedGradient>>;

/// A kind of input. `make` returns one worker's gradient of one tensor.
struct Shape {
  const char* name;
  std::vector<TensorSpec> tensors;  // dtype is set by the suite if a test varies it
  std::function<OwnedGradient(Random&, const TensorSpec&, int worker, int size)> make;
  int rounds = 1;
  bool small = true;   // false: a dense tensor or a table of all rows exceeds kBudget
  bool finite = true;  // false: has no integer counterpart
};

inline OwnedGradient some_rows(Random& random, const TensorSpec& tensor, Index most) {
  const Index count = random.below(std::min(most, tensor.rows) + 1);
  return random_gradient(random, tensor, distinct_rows(random, tensor.rows, count));
}

inline std::vector<Shape> shapes() {
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
      {"nearly_everything_touched",
       {{"t", 90, 12}, {"u", 70, 1}},
       [](Random& random, const TensorSpec& tensor, int, int) {
         std::vector<Index> rows;
         for (Index row = 0; row < tensor.rows - 5; ++row) {
           if (random.below(12) > 0) rows.push_back(row);
         }
         return random_gradient(random, tensor, rows);
       },
       2},
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
      {"wide_rows_in_rounds", {{"t", 60, 2500}}, ordinary, 2},
      {"more_rounds_than_rows", {{"t", 4, 2}}, ordinary, 7},
      {"beyond_2_24", {{"t", (Index{1} << 24) + 5, 1}}, ordinary, 1, false},
      {"beyond_2_33", {{"t", (Index{1} << 33) + 11, 2}}, ordinary, 2, false},
      {"beyond_2_40", {{"t", (Index{1} << 40) + 3, 4}}, ordinary, 1, false},
  };
}

/// Memory budget for the "beyond" shapes. It is too small for a dense tensor or a table of its
/// rows.
inline constexpr std::int64_t kBudget = std::int64_t{48} << 20U;

/// Returns the touched rows of a gradient, in increasing order. For a dense gradient these are the
/// nonzero rows.
inline std::vector<Index> touched_rows(const Gradient& gradient, const TensorSpec& tensor) {
  std::vector<Index> rows(gradient.indices().begin(), gradient.indices().end());
  if (gradient.layout() == Gradient::Layout::dense) {
    for (Index row = 0; row < tensor.rows; ++row) {
      bool touched = false;
      for (Index c = 0; c < tensor.width; ++c) {
        touched = touched || value_at(gradient.values(), tensor.dtype, row * tensor.width + c) != 0;
      }
      if (touched) rows.push_back(row);
    }
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Ones, for as many elements as a tensor of a test may have.
inline const std::vector<std::byte> kOnes = [] {
  std::vector<std::byte> ones;
  for (int i = 0; i < 1000; ++i) append_value(ones, DType::f32, 1);
  return ones;
}();

inline std::vector<IndexSets> index_sets(const std::vector<RowSpace>& spaces, const Inputs& inputs,
                                         const std::vector<TensorSpec>& tensors,
                                         std::vector<OwnedIndexSets>& storage) {
  storage.assign(spaces.size(), OwnedIndexSets(inputs.size()));
  std::vector<IndexSets> sets(spaces.size());
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    for (std::size_t worker = 0; worker < inputs.size(); ++worker) {
      std::vector<Index>& rows = storage[i][worker];
      for (const RowSpace::Member& member : spaces[i].members) {
        for (const Index row :
             touched_rows(inputs[worker][member.tensor].view(), tensors[member.tensor])) {
          rows.push_back(member.first_row + row);
        }
      }
      sets[i].emplace_back(rows);
    }
  }
  return sets;
}

/// Drops rows that cancel in the sum of a group. Groups of `workers` workers add their dense
/// tensors first, so no other worker sees a row that is then zero.
inline void drop_cancelled(const std::vector<RowSpace>& spaces, const Inputs& inputs,
                           const std::vector<TensorSpec>& tensors, int workers,
                           std::vector<OwnedIndexSets>& sets) {
  const auto step = static_cast<std::size_t>(workers);
  for (std::size_t first = 0; first < inputs.size(); first += step) {
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      std::vector<Index> left;
      for (const RowSpace::Member& member : spaces[i].members) {
        ExactSum sum(tensors[member.tensor]);
        for (std::size_t w = first; w < first + step; ++w) sum.add(inputs[w][member.tensor]);
        for (const Index row : sum.nonzero_rows()) left.push_back(member.first_row + row);
      }
      for (std::size_t w = first; w < first + step; ++w) {
        std::erase_if(sets[i][w], [&](Index row) {
          return !std::binary_search(left.begin(), left.end(), row);
        });
      }
    }
  }
}

}  // namespace sparsesync::testing
