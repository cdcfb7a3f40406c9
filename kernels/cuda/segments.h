// Sums of rows that may stand in a list several times. For the sources of the bodies alone.
#pragma once

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

/// sums.row(r) += the rows of `from` at the places of key r, in their order: one thread for each
/// column of a row. Does not synchronize the stream.
template <typename T>
void add_segments(const Context& context, const SortedPlaces& sorted, ConstMatrix from,
                  Matrix sums) {
  using Sum = typename ValueTraits<T>::Sum;
  const std::byte* const values = from.data;
  const Index width = from.width;
  const Index count = std::ssize(sorted.keys);
  const Index* const rows = sorted.keys.data();
  const Index* const places = sorted.places.data();
  Sum* const sum = reinterpret_cast<Sum*>(sums.data);
  for_each_of_rows(context, count, width, [=] __device__(Index i, Index column) {
    const Index row = rows[i];
    if (i > 0 && rows[i - 1] == row) return;
    Sum total = sum[row * width + column];
    for (Index at = i; at < count && rows[at] == row; ++at) {
      total += ValueTraits<T>::widen(load<T>(values, places[at] * width + column));
    }
    sum[row * width + column] = total;
  });
}

}  // namespace sparsesync::cuda
