// Gradients with known sums. Small integers in floats give exact sums, which a map of all workers'
// rows computes. Other gradients have sums whose bits depend on the order of addition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/dtype.h"
#include "sparsesync/result.h"
#include "tests/support/random.h"

namespace sparsesync::testing {

/// One worker's gradient of one tensor, with its memory.
struct OwnedGradient {
  Gradient::Layout layout = Gradient::Layout::row_sparse;
  std::vector<Index> indices;
  std::vector<std::byte> values;

  Gradient view() const {
    return layout == Gradient::Layout::dense ? Gradient::dense(values.data())
                                             : Gradient::row_sparse(indices, values.data());
  }
};

/// Calls `value` `count` times and appends the results.
template <typename Value>
void append_values(std::vector<std::byte>& values, DType dtype, Index count, const Value& value) {
  for_dtype(dtype, [&]<typename T>(T) {
    std::size_t at = values.size();
    values.resize(at + static_cast<std::size_t>(count) * sizeof(T));
    for (; at < values.size(); at += sizeof(T)) {
      T element;
      if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(value());
      } else {
        element = ValueTraits<T>::narrow(static_cast<typename ValueTraits<T>::Sum>(value()));
      }
      std::memcpy(values.data() + at, &element, sizeof(T));
    }
  });
}

inline void append_value(std::vector<std::byte>& values, DType dtype, double value) {
  append_values(values, dtype, 1, [&] { return value; });
}

inline double value_at(const std::byte* values, DType dtype, Index element) {
  return for_dtype(dtype, [&]<typename T>(T) {
    T value;
    std::memcpy(&value, values + element * static_cast<Index>(sizeof(T)), sizeof(T));
    if constexpr (std::is_integral_v<T>) {
      return static_cast<double>(value);
    } else {
      return static_cast<double>(ValueTraits<T>::widen(value));
    }
  });
}

template <typename T>
T element_of(const OwnedGradient& gradient, std::size_t element) {
  T value;
  std::memcpy(&value, gradient.values.data() + element * sizeof(T), sizeof(T));
  return value;
}

/// Draws a gradient whose sums depend on the order of addition.
inline OwnedGradient inexact_gradient(Random& random, const TensorSpec& tensor, Index rows) {
  OwnedGradient gradient;
  gradient.indices = distinct_rows(random, tensor.rows, rows);
  append_values(gradient.values, tensor.dtype, rows * tensor.width, [&] {
    const double size = random.uniform() - 0.5;
    return size * std::pow(10.0, static_cast<double>(random.below(8)));
  });
  return gradient;
}

/// Draws integers from -4 to 4. Sums of a few dozen of them are exact in every dtype.
inline OwnedGradient random_gradient(Random& random, const TensorSpec& tensor,
                                     std::vector<Index> indices) {
  OwnedGradient gradient;
  gradient.indices = std::move(indices);
  const auto elements = static_cast<Index>(gradient.indices.size()) * tensor.width;
  append_values(gradient.values, tensor.dtype, elements,
                [&] { return static_cast<double>(random.below(9) - 4); });
  return gradient;
}

/// The sum of one tensor over all workers, which every worker must receive.
class ExactSum {
 public:
  explicit ExactSum(TensorSpec tensor) : tensor_(std::move(tensor)) {}

  void add(const OwnedGradient& gradient) {
    const Index rows = gradient.layout == Gradient::Layout::dense
                           ? tensor_.rows
                           : static_cast<Index>(gradient.indices.size());
    for (Index i = 0; i < rows; ++i) {
      const Index row = gradient.layout == Gradient::Layout::dense
                            ? i
                            : gradient.indices[static_cast<std::size_t>(i)];
      std::vector<double>& sum = sums_[row];
      sum.resize(static_cast<std::size_t>(tensor_.width));
      for (Index column = 0; column < tensor_.width; ++column) {
        sum[static_cast<std::size_t>(column)] +=
            value_at(gradient.values.data(), tensor_.dtype, i * tensor_.width + column);
      }
    }
  }

  /// Returns the nonzero rows, in increasing order.
  std::vector<Index> nonzero_rows() const {
    std::vector<Index> rows;
    for (const auto& [row, sum] : sums_) {
      const bool zero = std::all_of(sum.begin(), sum.end(), [](double e) { return e == 0; });
      if (!zero) rows.push_back(row);
    }
    return rows;
  }

  /// Describes the first fault of a result, or returns "" if there is none. NaN equals NaN.
  std::string difference(const TensorResult& result, double scale = 1) const {
    if (result.values.dtype != tensor_.dtype || result.values.width != tensor_.width)
      return "shape";
    const bool dense = result.layout == Gradient::Layout::dense;
    if (dense && result.values.rows != tensor_.rows) return "rows of a dense result";
    if (!dense && result.values.rows != static_cast<Index>(result.indices.size())) return "rows";
    std::map<Index, std::vector<double>> left = sums_;
    for (Index i = 0; i < result.values.rows; ++i) {
      const Index row = dense ? i : result.indices[static_cast<std::size_t>(i)];
      if (!dense && i > 0 && row <= result.indices[static_cast<std::size_t>(i) - 1]) return "order";
      const auto expected = left.find(row);
      for (Index column = 0; column < tensor_.width; ++column) {
        const double got = value_at(result.values.data, tensor_.dtype, i * tensor_.width + column);
        const double sum =
            expected == left.end() ? 0 : expected->second[static_cast<std::size_t>(column)] * scale;
        if (!(got == sum || (std::isnan(got) && std::isnan(sum)))) {
          return "row " + std::to_string(row) + ", column " + std::to_string(column) + ": " +
                 std::to_string(got) + " where the sum is " + std::to_string(sum);
        }
      }
      if (expected != left.end()) left.erase(expected);
    }
    for (const auto& [row, sum] : left) {
      for (const double element : sum) {
        if (element != 0) return "row " + std::to_string(row) + " is missing";
      }
    }
    return "";
  }

 private:
  TensorSpec tensor_;
  std::map<Index, std::vector<double>> sums_;
};

/// Returns the bits of a result. They must be equal on all workers and in every run.
inline std::string bits_of(const TensorResult& result) {
  const auto* indices = reinterpret_cast<const char*>(result.indices.data());
  const auto* values = reinterpret_cast<const char*>(result.values.data);
  std::string bits(indices, result.indices.size_bytes());
  bits.append(values, static_cast<std::size_t>(result.values.bytes()));
  return bits;
}

}  // namespace sparsesync::testing
