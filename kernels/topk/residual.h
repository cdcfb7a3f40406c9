// What of gradients has not crossed yet, kept for a later step: the residual of error feedback.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// What momentum correction adds up in the place of gradients, so that what is kept back loses
/// nothing of its momentum (Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.2).
struct Velocity {
  /// As many as the residual has, and as long as it is; none: gradients are added as they are.
  std::span<float> values;
  float momentum = 0;
  bool nesterov = false;
};

namespace detail {
SPARSESYNC_HOST_DEVICE inline bool is_finite(float value) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  return (bits_of_float(value) & kExponent) != kExponent;
}

/// An element of the residual and of its velocity; what the implementations do to one.
struct OwedElement {
  float residual = 0;
  float velocity = 0;

  /// What a velocity, which has the gradient, adds to the residual.
  SPARSESYNC_HOST_DEVICE static float push(float velocity, float gradient, float momentum,
                                           bool nesterov) {
    return nesterov ? gradient + momentum * velocity : velocity;
  }
  /// @return whether all is finite; if not, nothing is changed
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
  /// Extracts as much of the residual as a T holds. What a T does not hold at all stays.
  /// @return whether that is finite
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

/// @throws ContractError
inline void expect_sizes(ConstMatrix gradient, const Velocity& velocity,
                         std::span<const float> residual) {
  SPARSESYNC_EXPECT(gradient.rows * gradient.width, ==, std::ssize(residual));
  SPARSESYNC_EXPECT(velocity.values.empty() || velocity.values.size() == residual.size(), ==, true);
}

/// @throws ContractError
inline void expect_owed_rows(ConstMatrix residual, std::span<const Index> rows, ConstMatrix taken) {
  SPARSESYNC_EXPECT(residual.dtype == DType::f32, ==, true);
  SPARSESYNC_EXPECT(residual.width, ==, taken.width);
  SPARSESYNC_EXPECT(std::ssize(rows), ==, taken.rows);
}
}  // namespace detail

namespace cpu {
/// Adds a gradient to what is owed, element by element: with g = factor * gradient the residual
/// becomes residual + g; with a velocity, velocity = momentum * velocity + g and the residual
/// residual + velocity, or + g + momentum * velocity where it is Nesterov's. An element of which
/// something would not be finite stays as it was, and is counted. Does not synchronize the stream.
/// @param gradient    f32, f16 or bf16, of any alignment
/// @param residual    gradient.rows * gradient.width elements
/// @param not_finite  grows by the elements that are not added
/// @throws ContractError if there are as many neither of the residual nor of velocities, or for
/// another dtype
void add_gradient(const Context& context, ConstMatrix gradient, float factor,
                  const Velocity& velocity, std::span<float> residual, Count not_finite);

/// Undoes add_gradient() of the same gradient, but for rounding, once what was taken out of the
/// residual since is given back. Does not synchronize the stream.
/// @throws as add_gradient()
void remove_gradient(const Context& context, ConstMatrix gradient, float factor,
                     const Velocity& velocity, std::span<float> residual);

/// taken.row(i) = residual.row(rows[i]) rounded, which is then less by that: what is lost by
/// rounding stays. An element that is not finite once it is rounded stays whole, and is counted.
/// Does not synchronize the stream.
/// @param residual    f32
/// @param rows        distinct, each in [0, residual.rows); taken.rows of them
/// @param taken       f32, f16 or bf16, of any alignment; width as `residual`
/// @param not_finite  grows by the elements that are not finite
/// @throws ContractError for another width or dtype
void take_rows(const Context& context, Matrix residual, std::span<const Index> rows, Matrix taken,
               Count not_finite);

/// Undoes take_rows(), exactly. Does not synchronize the stream.
/// @throws as take_rows()
void give_back_rows(const Context& context, ConstMatrix taken, std::span<const Index> rows,
                    Matrix residual);
}  // namespace cpu

SPARSESYNC_OPERATION(add_gradient);
SPARSESYNC_OPERATION(remove_gradient);
SPARSESYNC_OPERATION(take_rows);
SPARSESYNC_OPERATION(give_back_rows);

/// Calls `body` with a value of the C++ type of a dtype whose residual is kept in f32.
/// @throws ContractError for another one
template <typename Body>
void for_owed_dtype(DType dtype, Body&& body) {
  for_dtype(dtype, [&]<typename T>(T value) {
    if constexpr (ValueTraits<T>::sum_dtype != DType::f32) {
      throw ContractError("a residual is of f32, f16 or bf16 alone");
    } else {
      body(value);
    }
  });
}

}  // namespace sparsesync
