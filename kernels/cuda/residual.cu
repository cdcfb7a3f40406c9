// CUDA bodies of the residual.
#include "kernels/residual.h"

#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

using sparsesync::detail::OwedElement;

__device__ void count_one(Index* count) {
  atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ULL);
}

/// What kernels know of a velocity; null: there is none.
struct Push {
  explicit Push(const Velocity& from)
      : values(from.values.empty() ? nullptr : from.values.data()),
        momentum(from.momentum),
        nesterov(from.nesterov) {}
  float* values;
  float momentum;
  bool nesterov;
};

template <typename T>
void add(const Context& context, const std::byte* gradient, float factor, Push push,
         std::span<float> residual, Index* not_finite) {
  float* const to = residual.data();
  for_each(context, std::ssize(residual), [=] __device__(Index i) {
    const float g = factor * ValueTraits<T>::widen(load<T>(gradient, i));
    OwedElement element{to[i], push.values == nullptr ? 0 : push.values[i]};
    const bool finite =
        push.values == nullptr ? element.add(g) : element.add(g, push.momentum, push.nesterov);
    if (!finite) return count_one(not_finite);
    to[i] = element.residual;
    if (push.values != nullptr) push.values[i] = element.velocity;
  });
}

template <typename T>
void remove(const Context& context, const std::byte* gradient, float factor, Push push,
            std::span<float> residual) {
  float* const to = residual.data();
  for_each(context, std::ssize(residual), [=] __device__(Index i) {
    const float g = factor * ValueTraits<T>::widen(load<T>(gradient, i));
    OwedElement element{to[i], push.values == nullptr ? 0 : push.values[i]};
    if (push.values == nullptr) {
      element.remove(g);
    } else {
      element.remove(g, push.momentum, push.nesterov);
      push.values[i] = element.velocity;
    }
    to[i] = element.residual;
  });
}

template <typename T>
void take(const Context& context, Matrix residual, const Index* rows, Matrix taken,
          Index* not_finite) {
  for_each_of_rows(context, taken.rows, taken.width, [=] __device__(Index row, Index i) {
    const Index from = rows[row] * residual.width + i;
    OwedElement element{load<float>(residual.data, from), 0};
    T value{};
    if (!element.take(&value)) count_one(not_finite);
    store(residual.data, from, element.residual);
    store(taken.data, row * taken.width + i, value);
  });
}

template <typename T>
void give_back(const Context& context, ConstMatrix taken, const Index* rows, Matrix residual) {
  for_each_of_rows(context, taken.rows, taken.width, [=] __device__(Index row, Index i) {
    const Index to = rows[row] * residual.width + i;
    OwedElement element{load<float>(residual.data, to), 0};
    element.give_back(load<T>(taken.data, row * taken.width + i));
    store(residual.data, to, element.residual);
  });
}

}  // namespace

void add_gradient(const Context& context, ConstMatrix gradient, float factor,
                  const Velocity& velocity, std::span<float> residual, Count not_finite) {
  sparsesync::detail::expect_sizes(gradient, velocity, residual);
  for_owed_dtype(gradient.dtype, [&]<typename T>(T) {
    add<T>(context, gradient.data, factor, Push(velocity), residual, not_finite.location());
  });
}

void remove_gradient(const Context& context, ConstMatrix gradient, float factor,
                     const Velocity& velocity, std::span<float> residual) {
  sparsesync::detail::expect_sizes(gradient, velocity, residual);
  for_owed_dtype(gradient.dtype, [&]<typename T>(T) {
    remove<T>(context, gradient.data, factor, Push(velocity), residual);
  });
}

void take_rows(const Context& context, Matrix residual, std::span<const Index> rows, Matrix taken,
               Count not_finite) {
  sparsesync::detail::expect_owed_rows(as_const(residual), rows, as_const(taken));
  for_owed_dtype(taken.dtype, [&]<typename T>(T) {
    take<T>(context, residual, rows.data(), taken, not_finite.location());
  });
}

void give_back_rows(const Context& context, ConstMatrix taken, std::span<const Index> rows,
                    Matrix residual) {
  sparsesync::detail::expect_owed_rows(as_const(residual), rows, taken);
  for_owed_dtype(taken.dtype,
                 [&]<typename T>(T) { give_back<T>(context, taken, rows.data(), residual); });
}

}  // namespace sparsesync::cuda
