#include "analysis/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace sparsesync {
namespace {

double element(const std::byte* row, DType dtype, Index column) {
  return for_dtype(dtype, [&]<typename T>(T) {
    T value;
    std::memcpy(&value, row + column * static_cast<Index>(sizeof(T)), sizeof(T));
    return static_cast<double>(ValueTraits<T>::widen(value));
  });
}

/// How far from the exact sum a right result may be.
double tolerance(const ReferenceSum& reference, double magnitude) {
  if (reference.exact) return 0;
  const double sum_roundoff = std::ldexp(1.0, -24);
  // A worker's repeats are rounded to the element type once, and the sum once more.
  const double element_roundoff =
      reference.dtype == DType::bf16 ? std::ldexp(1.0, -8) : sum_roundoff;
  return magnitude *
         (sum_roundoff * static_cast<double>(reference.most_terms) + 2 * element_roundoff);
}

bool agrees(const ReferenceSum& reference, double got, double sum, double magnitude) {
  if (std::isnan(sum)) return std::isnan(got);
  if (std::isinf(sum)) return got == sum;
  // Where terms overflow the element type, the order of summation decides what comes out.
  if (magnitude > static_cast<double>(std::numeric_limits<float>::max())) return true;
  return std::abs(got - sum) <= tolerance(reference, magnitude);
}

}  // namespace

std::vector<ReferenceSum> reference_sums(const Trace& trace, int step) {
  const TraceHeader& header = trace.header();
  std::vector<ReferenceSum> all(header.tensors.size());
  std::vector<std::vector<TracePart>> parts;
  for (int worker = 0; worker < header.workers; ++worker) parts.push_back(trace.load(worker, step));
  for (std::size_t t = 0; t < all.size(); ++t) {
    ReferenceSum& reference = all[t];
    reference.dtype = header.tensors[t].dtype;
    reference.width = header.tensors[t].width;
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
    // Made values are integers up to 4; bf16 holds integers up to 256.
    const std::int64_t most = reference.dtype == DType::bf16 ? 256 : std::int64_t{1} << 24;
    reference.exact = !trace.has_values() && 4 * reference.most_terms <= most;
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    const auto width = static_cast<std::size_t>(reference.width);
    reference.sums.assign(indices.size() * width, 0);
    reference.magnitudes.assign(indices.size() * width, 0);
    const Index row_bytes = reference.width * element_bytes(reference.dtype);
    for (const std::vector<TracePart>& part : parts) {
      for (std::size_t i = 0; i < part[t].indices.size(); ++i) {
        const auto place = std::lower_bound(indices.begin(), indices.end(), part[t].indices[i]);
        const auto first = static_cast<std::size_t>(place - indices.begin()) * width;
        const std::byte* row = part[t].values.data() + static_cast<Index>(i) * row_bytes;
        for (std::size_t column = 0; column < width; ++column) {
          const double value = element(row, reference.dtype, static_cast<Index>(column));
          reference.sums[first + column] += value;
          reference.magnitudes[first + column] += std::abs(value);
        }
      }
    }
  }
  return all;
}

std::optional<std::string> difference_from(const ReferenceSum& reference,
                                           std::span<const Index> indices, ConstMatrix values) {
  const auto width = static_cast<std::size_t>(reference.width);
  std::size_t at = 0;  // in the reference
  const auto check_row = [&](Index row, const std::byte* got, const double* sums,
                             const double* magnitudes) -> std::optional<std::string> {
    for (std::size_t column = 0; column < width; ++column) {
      const double is =
          got == nullptr ? 0 : element(got, reference.dtype, static_cast<Index>(column));
      const double sum = sums == nullptr ? 0 : sums[column];
      const double magnitude = magnitudes == nullptr ? 0 : magnitudes[column];
      if (!agrees(reference, is, sum, magnitude)) {
        return fmt::format("row {}, column {}: {} where the sum is {}", row, column, is, sum);
      }
    }
    return std::nullopt;
  };
  const auto missing_before = [&](Index row) -> std::optional<std::string> {
    for (; at < reference.indices.size() && reference.indices[at] < row; ++at) {
      if (auto wrong = check_row(reference.indices[at], nullptr, &reference.sums[at * width],
                                 &reference.magnitudes[at * width])) {
        return wrong;
      }
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
    // Most rows of a dense result are this.
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (!known && std::all_of(got, got + values.row_bytes(), is_zero)) continue;
    if (auto wrong = check_row(indices[i], got, known ? &reference.sums[at * width] : nullptr,
                               known ? &reference.magnitudes[at * width] : nullptr)) {
      return wrong;
    }
    if (known) ++at;
  }
  return missing_before(std::numeric_limits<Index>::max());
}

}  // namespace sparsesync
