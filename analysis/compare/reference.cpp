#include "analysis/compare/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

template <typename T>
T load(const std::byte* row, std::size_t column) {
  T value;
  std::memcpy(&value, row + column * sizeof(T), sizeof(T));
  return value;
}

/// The sources of error of a floating-point dtype.
struct Precision {
  double sum_roundoff;      // relative, of the type that sums are made in
  double element_roundoff;  // relative, of a normal element
  double subnormal;         // absolute, of a subnormal element
  double largest;           // finite element
  std::int64_t whole;       // largest n with 0, ..., n exact
};

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {0x1p-53, 0x1p-53, 0, std::numeric_limits<double>::max(), std::int64_t{1} << 53};
    case DType::f16:
      return {0x1p-24, 0x1p-11, 0x1p-25, 65504, 2048};
    case DType::bf16:
      return {0x1p-24, 0x1p-8, 0x1p-134, 0x1.FEp127, 256};
    case DType::f32:
      return {0x1p-24, 0x1p-24, 0, std::numeric_limits<float>::max(), std::int64_t{1} << 24};
    case DType::i32:
    case DType::i64:
      break;
  }
  throw ContractError("the roundoff of an integer dtype");
}

/// Returns the precision of the type that sums are rounded to.
Precision precision_of(const ReferenceSum& reference) {
  return precision_of(reference.wire.value_or(reference.dtype));
}

/// Returns how much a correct result may differ from the exact sum.
double tolerance(const ReferenceSum& reference, double magnitude) {
  if (reference.exact || magnitude == 0) return 0;
  const Precision precision = precision_of(reference);
  const double roundings = reference.wire ? reference.workers + 1 : 2;
  const double sums = reference.dtype == DType::f64 ? 2 : 1;  // the reference's own errors
  // The sum of a worker's repeated rows is rounded to the element type once, the total once more.
  return magnitude * (sums * precision.sum_roundoff * static_cast<double>(reference.most_terms) +
                      roundings * precision.element_roundoff) +
         roundings * precision.subnormal;
}

bool agrees(const ReferenceSum& reference, double got, double sum, double magnitude) {
  if (std::isnan(sum)) return std::isnan(got);
  if (std::isinf(sum)) return got == sum;
  if (std::abs(got - sum) <= tolerance(reference, magnitude)) return true;
  // If terms overflow the element type, the result depends on the order of summation.
  return magnitude > precision_of(reference).largest && !std::isfinite(got);
}

template <typename T>
void add_part(const TracePart& part, ReferenceSum& reference) {
  const auto width = static_cast<std::size_t>(reference.width);
  for (std::size_t i = 0; i < part.indices.size(); ++i) {
    const auto place =
        std::lower_bound(reference.indices.begin(), reference.indices.end(), part.indices[i]);
    const auto first = static_cast<std::size_t>(place - reference.indices.begin()) * width;
    const std::byte* row = part.values.data() + i * width * sizeof(T);
    for (std::size_t column = 0; column < width; ++column) {
      const T value = load<T>(row, column);
      if constexpr (std::is_integral_v<T>) {
        reference.integers[first + column] += static_cast<std::uint64_t>(value);
      } else {
        const auto wide = static_cast<double>(ValueTraits<T>::widen(value));
        reference.sums[first + column] += wide;
        reference.magnitudes[first + column] += std::abs(wide);
      }
    }
  }
}

/// Describes the first wrong element of one row of a result.
/// @param got  the result's row; null if it has none
/// @param at   position of the row in the reference; nothing if it has none
/// @return nothing if the row is correct
template <typename T>
std::optional<std::string> row_difference(const ReferenceSum& reference, Index row,
                                          const std::byte* got, std::optional<std::size_t> at) {
  const auto width = static_cast<std::size_t>(reference.width);
  const auto told = [&](std::size_t column, auto is, auto sum) {
    return fmt::format("row {}, column {}: {}, but the sum is {}", row, column, is, sum);
  };
  for (std::size_t column = 0; column < width; ++column) {
    const std::size_t element = at.value_or(0) * width + column;
    const T value = got ? load<T>(got, column) : T{};
    if constexpr (std::is_integral_v<T>) {
      const T sum = at ? static_cast<T>(reference.integers[element]) : 0;  // wraps like the result
      if (value != sum) return told(column, value, sum);
    } else {
      const auto is = static_cast<double>(ValueTraits<T>::widen(value));
      const double sum = at ? reference.sums[element] : 0;
      const double magnitude = at ? reference.magnitudes[element] : 0;
      if (!agrees(reference, is, sum, magnitude)) return told(column, is, sum);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<ReferenceSum> reference_sums(const Trace& trace, int step, std::optional<DType> wire) {
  const TraceHeader& header = trace.header();
  std::vector<ReferenceSum> all(header.tensors.size());
  std::vector<std::vector<TracePart>> parts;
  for (const Rank worker : Ranks(header.workers)) parts.push_back(trace.load(worker, step));
  for (std::size_t t = 0; t < all.size(); ++t) {
    ReferenceSum& reference = all[t];
    reference.dtype = header.tensors[t].dtype;
    reference.width = header.tensors[t].width;
    reference.workers = header.workers;
    reference.wire = wire;
    std::vector<Index>& indices = reference.indices;
    for (const std::vector<TracePart>& part : parts) {
      indices.insert(indices.end(), part[t].indices.begin(), part[t].indices.end());
    }
    std::sort(indices.begin(), indices.end());
    std::int64_t run = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      run = i > 0 && indices[i] == indices[i - 1] ? run + 1 : 1;
      reference.most_terms = std::max(reference.most_terms, run);
    }
    // Generated values are whole numbers up to 4.
    reference.exact =
        is_integer(reference.dtype) ||
        (!trace.has_values() && 4 * reference.most_terms <= precision_of(reference).whole);
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    const std::size_t elements = indices.size() * static_cast<std::size_t>(reference.width);
    if (is_integer(reference.dtype)) {
      reference.integers.assign(elements, 0);
    } else {
      reference.sums.assign(elements, 0);
      reference.magnitudes.assign(elements, 0);
    }
    for_dtype(reference.dtype, [&]<typename T>(T) {
      for (const std::vector<TracePart>& part : parts) add_part<T>(part[t], reference);
    });
  }
  return all;
}

std::optional<std::string> difference_from(const ReferenceSum& reference,
                                           std::span<const Index> indices, ConstMatrix values) {
  const auto wrong_row = [&](Index row, const std::byte* got, std::optional<std::size_t> place) {
    return for_dtype(reference.dtype,
                     [&]<typename T>(T) { return row_difference<T>(reference, row, got, place); });
  };
  std::size_t at = 0;  // position in the reference
  const auto missing_before = [&](Index row) -> std::optional<std::string> {
    for (; at < reference.indices.size() && reference.indices[at] < row; ++at) {
      if (auto wrong = wrong_row(reference.indices[at], nullptr, at)) return wrong;
    }
    return std::nullopt;
  };
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i > 0 && indices[i] <= indices[i - 1]) {
      return fmt::format("row {} after row {}: not increasing", indices[i], indices[i - 1]);
    }
    if (auto wrong = missing_before(indices[i])) return wrong;
    const std::byte* got = values.data + static_cast<Index>(i) * values.row_bytes();
    const bool known = at < reference.indices.size() && reference.indices[at] == indices[i];
    // Fast path: most rows of a dense result are zero.
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (!known && std::all_of(got, got + values.row_bytes(), is_zero)) continue;
    if (auto wrong = wrong_row(indices[i], got, known ? std::optional(at) : std::nullopt)) {
      return wrong;
    }
    if (known) ++at;
  }
  return missing_before(std::numeric_limits<Index>::max());
}

}  // namespace sparsesync
