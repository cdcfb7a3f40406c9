// CPU implementations of the residual.
#include "kernels/topk/residual.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/rows/row.h"
#include "kernels/topk/simd_f32.h"

namespace sparsesync::cpu {
namespace {

using detail::OwedElement;

constexpr Index kResidualBytes = static_cast<Index>(sizeof(float));

/// Adds the results of body(range) over the parts of some work to `count`. Runs on the context's
/// threads.
template <typename Body>
void count_in_parts(const Context& context, Index size, Index bytes, Count count, Body&& body) {
  PartCounts found{};
  for_each_part(context, size, row_parts(context, size, bytes), [&](int part, IndexRange range) {
    found[static_cast<std::size_t>(part)] = body(range);
  });
  for (const Index of_part : found) *count.location() += of_part;
}

/// Adds a gradient.
/// @return number of elements that are not added
template <typename T>
Index add_each(const std::byte* gradient, float factor, std::span<float> residual) {
  float* const to = residual.data();
  const auto size = std::ssize(residual);
  constexpr Index kTogether = 1 << 16;  // with a 32-bit count, the compiler uses wide vectors
  Index lost = 0;
  for (Index begin = 0; begin < size; begin += kTogether) {
    std::int32_t lost_here = 0;
    for (Index i = begin; i < std::min(begin + kTogether, size); ++i) {
      OwedElement element{to[i], 0};
      lost_here += element.add(factor * ValueTraits<T>::widen(load<T>(gradient, i))) ? 0 : 1;
      to[i] = element.residual;
    }
    lost += lost_here;
  }
  return lost;
}

template <typename T>
Index add_each(const std::byte* gradient, float factor, const Velocity& velocity,
               std::span<float> residual) {
  if constexpr (std::is_same_v<T, float>) {
    return add_with_velocity(gradient, factor, velocity, residual);
  }
  Index lost = 0;
  for (std::size_t i = 0; i < residual.size(); ++i) {
    const float g = factor * ValueTraits<T>::widen(load<T>(gradient, static_cast<Index>(i)));
    OwedElement element{residual[i], velocity.values[i]};
    lost += element.add(g, velocity.momentum, velocity.nesterov) ? 0 : 1;
    residual[i] = element.residual;
    velocity.values[i] = element.velocity;
  }
  return lost;
}

/// Extracts a row.
/// @return number of elements that are not finite after rounding
template <typename T>
Index take_row(std::byte* __restrict residual, Index width, std::byte* __restrict taken) {
  Index lost = 0;
  constexpr Index kTogether = 1 << 16;  // see add_each()
  for (Index begin = 0; begin < width; begin += kTogether) {
    std::int32_t lost_here = 0;
    for (Index i = begin; i < std::min(begin + kTogether, width); ++i) {
      OwedElement element{load<float>(residual, i), 0};
      T value{};
      lost_here += element.extract(&value) ? 0 : 1;
      store(residual, i, element.residual);
      store(taken, i, value);
    }
    lost += lost_here;
  }
  return lost;
}

template <typename T>
void give_back_row(const std::byte* __restrict taken, Index width, std::byte* __restrict residual) {
  for (Index i = 0; i < width; ++i) {
    OwedElement element{load<float>(residual, i), 0};
    element.give_back(load<T>(taken, i));
    store(residual, i, element.residual);
  }
}

}  // namespace

void add_gradient(const Context& context, ConstMatrix gradient, float factor,
                  const Velocity& velocity, std::span<float> residual, Count not_finite) {
  detail::expect_sizes(gradient, velocity, residual);
  for_owed_dtype(gradient.dtype, [&]<typename T>(T) {
    count_in_parts(
        context, std::ssize(residual), kResidualBytes, not_finite, [&](IndexRange range) {
          const std::byte* const from = gradient.data + range.begin * element_bytes(gradient.dtype);
          const std::span<float> part = part_of(residual, range);
          if (velocity.values.empty()) return add_each<T>(from, factor, part);
          Velocity own = velocity;
          own.values = part_of(velocity.values, range);
          return add_each<T>(from, factor, own, part);
        });
  });
}

void remove_gradient(const Context& context, ConstMatrix gradient, float factor,
                     const Velocity& velocity, std::span<float> residual) {
  detail::expect_sizes(gradient, velocity, residual);
  for_owed_dtype(gradient.dtype, [&]<typename T>(T) {
    parallel_for(context, std::ssize(residual), row_grain(kResidualBytes), [&](IndexRange range) {
      for (Index at = range.begin; at < range.end; ++at) {
        const auto i = static_cast<std::size_t>(at);
        const float g = factor * ValueTraits<T>::widen(load<T>(gradient.data, at));
        if (velocity.values.empty()) {
          OwedElement element{residual[i], 0};
          element.remove(g);
          residual[i] = element.residual;
        } else {
          OwedElement element{residual[i], velocity.values[i]};
          element.remove(g, velocity.momentum, velocity.nesterov);
          residual[i] = element.residual;
          velocity.values[i] = element.velocity;
        }
      }
    });
  });
}

void take_rows(const Context& context, Matrix residual, std::span<const Index> rows, Matrix taken,
               Count not_finite) {
  detail::expect_owed_rows(as_const(residual), rows, as_const(taken));
  for_owed_dtype(taken.dtype, [&]<typename T>(T) {
    count_in_parts(context, taken.rows, residual.row_bytes(), not_finite, [&](IndexRange range) {
      Index lost = 0;
      for (Index row = range.begin; row < range.end; ++row) {
        std::byte* const from =
            residual.data + rows[static_cast<std::size_t>(row)] * residual.row_bytes();
        std::byte* const to = taken.data + row * taken.row_bytes();
        lost += take_row<T>(from, taken.width, to);
      }
      return lost;
    });
  });
}

void give_back_rows(const Context& context, ConstMatrix taken, std::span<const Index> rows,
                    Matrix residual) {
  detail::expect_owed_rows(as_const(residual), rows, taken);
  for_owed_dtype(taken.dtype, [&]<typename T>(T) {
    parallel_for(context, taken.rows, row_grain(residual.row_bytes()), [&](IndexRange range) {
      const auto place_of = [&](Index row) {
        return residual.data + rows[static_cast<std::size_t>(row)] * residual.row_bytes();
      };
      const auto ahead = static_cast<Index>(kRowsAhead);
      for (Index row = range.begin; row < range.end; ++row) {
        if (row + ahead < range.end) prefetch_row<true>(place_of(row + ahead), sizeof(float));
        give_back_row<T>(taken.data + row * taken.row_bytes(), taken.width, place_of(row));
      }
    });
  });
}

}  // namespace sparsesync::cpu
