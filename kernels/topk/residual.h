// The residual of error feedback: gradients that have not been sent yet and are kept for a later
// step.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// The velocity of momentum correction. It accumulates in the residual instead of gradients, so
/// that delayed elements lose none of their momentum (Lin et al., "Deep Gradient Compression", ICLR
/// 2018, section 3.2).
struct Velocity {
  /// The same size as the residual. If empty, gradients are added without momentum.
  std::span<float> values;
  float momentum = 0;
  bool nesterov = false;
};

namespace detail {
SPARSESYNC_HOST_DEVICE inline bool is_finite(float value) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  return (bits_of_float(value) & kExponent) != kExponent;
}

/// An element of the residual and of its velocity, with the operations of all implementations.
struct OwedElement {
  float residual = 0;
  float velocity = 0;

  /// Returns the value that is added to the residual. `velocity` already includes the gradient.
  SPARSESYNC_HOST_DEVICE static float push(float velocity, float gradient, float momentum,
                                           bool nesterov) {
    return nesterov ? gradient + momentum * velocity : velocity;
  }
  /// Adds an element of a gradient.
  /// @return whether the results are finite; if not, nothing is changed
  SPARSESYNC_HOST_DEVICE bool add(float gradient) {
    const float sum = residual + gradient;
    const bool finite = is_finite(sum);
    residual = finite ? sum : residual;
    return finite;
  }
  SPARSESYNC_HOST_DEVICE bool add(float gradient, float momentum, bool nesterov) {
    const float faster = momentum * velocity + gradient;
    const float sum = residual + push(faster, gradient, momentum, nesterov);
    const bool finite = is_finite(faster) && is_finite(sum);
    velocity = finite ? faster : velocity;
    residual = finite ? sum : residual;
    return finite;
  }
  SPARSESYNC_HOST_DEVICE void remove(float gradient) {
    residual = is_finite(gradient) ? residual - gradient : residual;
  }
  SPARSESYNC_HOST_DEVICE void remove(float gradient, float momentum, bool nesterov) {
    if (!is_finite(gradient)) return;
    residual -= push(velocity, gradient, momentum, nesterov);
    velocity = momentum == 0 ? 0 : (velocity - gradient) / momentum;
  }
  /// Extracts the part of the residual that a T can represent. An element that overflows T stays in
  /// the residual.
  /// @return whether the extracted value is finite
  template <typename T>
  SPARSESYNC_HOST_DEVICE bool extract(T* taken) {
    *taken = ValueTraits<T>::narrow(residual);
    const float sent = ValueTraits<T>::widen(*taken);
    const bool finite = is_finite(sent);
    residual = finite ? residual - sent : residual;
    return finite;
  }
  template <typename T>
  SPARSESYNC_HOST_DEVICE void give_back(T taken) {
    const float sent = ValueTraits<T>::widen(taken);
    residual = is_finite(sent) ? residual + sent : residual;
  }
};

/// Checks the sizes of a gradient and its residual.
/// @throws ContractError
inline void expect_sizes(ConstMatrix gradient, const Velocity& velocity,
                         std::span<const float> residual) {
  SPARSESYNC_EXPECT(gradient.rows * gradient.width, ==, std::ssize(residual));
  SPARSESYNC_EXPECT(velocity.values.empty() || velocity.values.size() == residual.size(), ==, true);
}

/// Checks the sizes and dtype for extracting rows.
/// @throws ContractError
inline void expect_owed_rows(ConstMatrix residual, std::span<const Index> rows, ConstMatrix taken) {
  SPARSESYNC_EXPECT(residual.dtype == DType::f32, ==, true);
  SPARSESYNC_EXPECT(residual.width, ==, taken.width);
  SPARSESYNC_EXPECT(std::ssize(rows), ==, taken.rows);
}
}  // namespace detail

namespace cpu {
/// Adds a gradient to the residual, element by element. With g = factor * gradient:
/// - no velocity: residual += g
/// - velocity: velocity = momentum * velocity + g, then residual += velocity
/// - Nesterov: the same velocity, then residual += g + momentum * velocity
///
/// An element with a non-finite result stays unchanged and is counted. Does not synchronize the
/// stream.
/// @param gradient    f32, f16 or bf16, any alignment
/// @param residual    gradient.rows * gradient.width elements
/// @param not_finite  incremented by the number of elements that are not added
/// @throws ContractError for other sizes of the residual or the velocity, or for another dtype
void add_gradient(const Context& context, ConstMatrix gradient, float factor,
                  const Velocity& velocity, std::span<float> residual, Count not_finite);

/// Undoes add_gradient() of the same gradient, except for rounding. Elements that were extracted
/// since must be given back first. Does not synchronize the stream.
/// @throws ContractError like add_gradient()
void remove_gradient(const Context& context, ConstMatrix gradient, float factor,
                     const Velocity& velocity, std::span<float> residual);

/// Extracts rows: taken.row(i) is residual.row(rows[i]), rounded. The residual keeps the rounding
/// error. An element that is not finite after rounding stays in the residual and is counted. Does
/// not synchronize the stream.
/// @param residual    f32
/// @param rows        taken.rows distinct row numbers in [0, residual.rows)
/// @param taken       f32, f16 or bf16, any alignment; width of `residual`
/// @param not_finite  incremented by the number of elements that are not finite
/// @throws ContractError for another width or dtype
void take_rows(const Context& context, Matrix residual, std::span<const Index> rows, Matrix taken,
               Count not_finite);

/// Undoes take_rows() exactly. Does not synchronize the stream.
/// @throws ContractError like take_rows()
void give_back_rows(const Context& context, ConstMatrix taken, std::span<const Index> rows,
                    Matrix residual);
}  // namespace cpu

SPARSESYNC_OPERATION(add_gradient);
SPARSESYNC_OPERATION(remove_gradient);
SPARSESYNC_OPERATION(take_rows);
SPARSESYNC_OPERATION(give_back_rows);

/// Calls `body` with a value of the C++ type of `dtype`, if its residual is kept in f32.
/// @throws ContractError for other dtypes
template <typename Body>
void for_owed_dtype(DType dtype, Body&& body) {
  for_dtype(dtype, [&]<typename T>(T value) {
    if constexpr (ValueTraits<T>::sum_dtype != DType::f32) {
      throw ContractError("a residual needs dtype f32, f16 or bf16");
    } else {
      body(value);
    }
  });
}

}  // namespace sparsesync
