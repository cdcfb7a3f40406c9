// CUDA implementations of the residual.
#include "kernels/topk/residual.h"

#include "kernels/cuda/packs.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

using sparsesync::detail::OwedElement;

__device__ void count_lost(Index count, Index* lost) {
  if (count != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(lost), static_cast<unsigned long long>(count));
  }
}

/// A gradient, and the residual that it is added to or removed from.
struct Gradient {
  const std::byte* gradient;
  float factor;
  std::byte* residual;
  std::byte* velocity;  // null without momentum correction
  float momentum;
  bool nesterov;
};

/// Changes the residual of each element, and its velocity if there is one.
/// @param change  change(element, g), where g is the gradient's element times the factor
template <typename T, bool has_velocity, typename Elements, typename Change>
__device__ void change_each(const Gradient& of, const Elements& elements, const Change& change) {
  T gradient[Elements::kCount];
  float residual[Elements::kCount];
  float velocity[Elements::kCount];
  elements.load(of.gradient, gradient);
  elements.load(of.residual, residual);
  if constexpr (has_velocity) elements.load(of.velocity, velocity);
  for (int i = 0; i < Elements::kCount; ++i) {
    OwedElement element{residual[i], has_velocity ? velocity[i] : 0};
    change(element, of.factor * ValueTraits<T>::widen(gradient[i]));
    residual[i] = element.residual;
    velocity[i] = element.velocity;
  }
  elements.store(of.residual, residual);
  if constexpr (has_velocity) elements.store(of.velocity, velocity);
}

template <typename T, bool has_velocity>
struct Add {
  Gradient of;
  Index* not_finite;

  template <typename Elements>
  __device__ void operator()(const Elements& elements) const {
    Index lost = 0;
    change_each<T, has_velocity>(of, elements, [&](OwedElement& element, float g) {
      const bool finite = has_velocity ? element.add(g, of.momentum, of.nesterov) : element.add(g);
      lost += finite ? 0 : 1;
    });
    count_lost(lost, not_finite);
  }
};

template <typename T, bool has_velocity>
struct Remove {
  Gradient of;

  template <typename Elements>
  __device__ void operator()(const Elements& elements) const {
    change_each<T, has_velocity>(of, elements, [&](OwedElement& element, float g) {
      if constexpr (has_velocity) {
        element.remove(g, of.momentum, of.nesterov);
      } else {
        element.remove(g);
      }
    });
  }
};

/// Calls for_each_pack() with the body from make_body(of, has_velocity), where has_velocity is an
/// std::bool_constant.
template <typename T, typename MakeBody>
void for_each_gradient(const Context& context, ConstMatrix gradient, float factor,
                       const Velocity& velocity, std::span<float> residual,
                       const MakeBody& make_body) {
  const Gradient of{gradient.data,
                    factor,
                    std::as_writable_bytes(residual).data(),
                    std::as_writable_bytes(velocity.values).data(),
                    velocity.momentum,
                    velocity.nesterov};
  std::uint64_t addresses = address_of(of.gradient) | address_of(of.residual);
  if (velocity.values.empty()) {
    for_each_pack<T, float>(context, std::ssize(residual), addresses,
                            make_body(of, std::false_type{}));
  } else {
    addresses |= address_of(of.velocity);
    for_each_pack<T, float>(context, std::ssize(residual), addresses,
                            make_body(of, std::true_type{}));
  }
}

/// Extracts rows.
/// @tparam pack  elements per load
template <typename T, int pack>
void extract_rows(const Context& context, Matrix residual, const Index* rows, Matrix taken,
                  Index* not_finite) {
  for_each_of_rows(context, taken.rows, taken.width / pack, [=] __device__(Index row, Index unit) {
    const Index from = rows[row] * residual.width + unit * pack;
    float kept[pack];
    load_pack<pack>(residual.data, from, kept);
    T values[pack];
    Index lost = 0;
    for (int i = 0; i < pack; ++i) {
      OwedElement element{kept[i], 0};
      lost += element.extract(&values[i]) ? 0 : 1;
      kept[i] = element.residual;
    }
    store_pack<pack>(residual.data, from, kept);
    store_pack<pack>(taken.data, row * taken.width + unit * pack, values);
    count_lost(lost, not_finite);
  });
}

template <typename T, int pack>
void give_back(const Context& context, ConstMatrix taken, const Index* rows, Matrix residual) {
  for_each_of_rows(context, taken.rows, taken.width / pack, [=] __device__(Index row, Index unit) {
    const Index to = rows[row] * residual.width + unit * pack;
    T values[pack];
    load_pack<pack>(taken.data, row * taken.width + unit * pack, values);
    float kept[pack];
    load_pack<pack>(residual.data, to, kept);
    for (int i = 0; i < pack; ++i) {
      OwedElement element{kept[i], 0};
      element.give_back(values[i]);
      kept[i] = element.residual;
    }
    store_pack<pack>(residual.data, to, kept);
  });
}

constexpr int kRowPack = 4;

/// Returns whether packs of kRowPack elements are aligned to their size in both matrices.
bool has_packs(ConstMatrix residual, ConstMatrix taken) {
  return residual.width % kRowPack == 0 &&
         common_unit(address_of(residual.data) | address_of(taken.data)) == 16;
}

}  // namespace

void add_gradient(const Context& context, ConstMatrix gradient, float factor,
                  const Velocity& velocity, std::span<float> residual, Count not_finite) {
  sparsesync::detail::expect_sizes(gradient, velocity, residual);
  for_owed_dtype(gradient.dtype, [&]<typename T>(T) {
    for_each_gradient<T>(
        context, gradient, factor, velocity, residual,
        [&]<bool has_velocity>(const Gradient& of, std::bool_constant<has_velocity>) {
          return Add<T, has_velocity>{of, not_finite.location()};
        });
  });
}

void remove_gradient(const Context& context, ConstMatrix gradient, float factor,
                     const Velocity& velocity, std::span<float> residual) {
  sparsesync::detail::expect_sizes(gradient, velocity, residual);
  for_owed_dtype(gradient.dtype, [&]<typename T>(T) {
    for_each_gradient<T>(
        context, gradient, factor, velocity, residual,
        []<bool has_velocity>(const Gradient& of, std::bool_constant<has_velocity>) {
          return Remove<T, has_velocity>{of};
        });
  });
}

void take_rows(const Context& context, Matrix residual, std::span<const Index> rows, Matrix taken,
               Count not_finite) {
  sparsesync::detail::expect_owed_rows(as_const(residual), rows, as_const(taken));
  for_owed_dtype(taken.dtype, [&]<typename T>(T) {
    const auto take_packs = has_packs(as_const(residual), as_const(taken))
                                ? extract_rows<T, kRowPack>
                                : extract_rows<T, 1>;
    take_packs(context, residual, rows.data(), taken, not_finite.location());
  });
}

void give_back_rows(const Context& context, ConstMatrix taken, std::span<const Index> rows,
                    Matrix residual) {
  sparsesync::detail::expect_owed_rows(as_const(residual), rows, taken);
  for_owed_dtype(taken.dtype, [&]<typename T>(T) {
    const auto give_back_packs =
        has_packs(as_const(residual), taken) ? give_back<T, kRowPack> : give_back<T, 1>;
    give_back_packs(context, taken, rows.data(), residual);
  });
}

}  // namespace sparsesync::cuda
