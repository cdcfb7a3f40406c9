// Arithmetic of a sum of elements that the CPU and the GPU share: its first term and its rounding.
#pragma once

#include "kernels/base/dtype.h"
#include "kernels/base/host_device.h"

namespace sparsesync::detail {

/// Begins a sum with an element: -0 becomes +0, as in a sum that begins with zero.
template <typename T>
SPARSESYNC_HOST_DEVICE inline typename ValueTraits<T>::Sum start_sum(T first) {
  return typename ValueTraits<T>::Sum{} + ValueTraits<T>::widen(first);
}

/// Scales a sum and rounds it to the type of the elements.
/// @param factor  1 for integers
template <typename T>
SPARSESYNC_HOST_DEVICE inline T round_sum(typename ValueTraits<T>::Sum sum,
                                          typename ValueTraits<T>::Sum factor) {
  return ValueTraits<T>::narrow(sum * factor);
}

}  // namespace sparsesync::detail
