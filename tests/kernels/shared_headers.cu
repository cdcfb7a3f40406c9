// Uses every function that the CPU and the GPU share in device code. It has to compile and is never
// run. tests/CMakeLists.txt lists each header with SPARSESYNC_HOST_DEVICE in the header that is
// included below.
#include <cstddef>
#include <cstdint>

#include "every_shared_header.h"

namespace sparsesync {
namespace {

__global__ void use_residual(const float* in, float* out) {
  detail::OwedElement element{in[0], in[1]};
  element.add(in[2]);
  element.add(in[3], in[4], true);
  bf16 taken{};
  element.extract(&taken);
  element.give_back(taken);
  element.remove(in[2]);
  element.remove(in[3], in[4], true);
  out[0] = element.residual + element.velocity;
  out[1] = detail::is_finite(out[0]) ? 1 : 0;
  out[2] = static_cast<float>(magnitude_of(in[0]) + detail::sampled_place(1, 1 << 20));
}

__global__ void use_casts(const double* in, f16* halves, bf16* brains) {
  halves[0] = detail::converted<f16>(in[0]);
  brains[0] = detail::converted<bf16>(detail::rounded_to_odd(in[1]));
}

__global__ void use_bits(const std::uint64_t* in, std::uint64_t* out) {
  const int bits = bit_width_below(in[0]);
  out[0] = low_mask(bits);
  out[1] = ceil_div(in[0], in[1]);
  out[2] = round_up(in[0], in[1]);
  out[3] = mix64(in[0]);
}

__global__ void use_bijection(std::int64_t rows, std::uint64_t seed, const std::int64_t* in,
                              std::int64_t* out) {
  const Bijection bijection(rows, seed);
  out[0] = bijection.forward(in[0]);
  out[1] = bijection.backward(in[1]);
  out[2] = bijection.rows();
  out[3] =
      static_cast<std::int64_t>(bijection.round(0).add & bijection.mask()) >> bijection.shift();
}

__global__ void use_row_groups(std::int64_t rows, std::int64_t count, std::uint64_t seed,
                               const std::int64_t* in, std::int64_t* out) {
  const RowGroups groups({.rows = rows, .groups = count, .offset = count - 1, .seed = seed});
  const RowGroups::Place place = groups.locate(in[0]);
  out[0] = place.group;
  out[1] = place.position;
  out[2] = groups.holds(place) ? groups.row(place) : std::int64_t{-1};
  out[3] = groups.groups();
  out[4] = groups.universe();
  out[5] = groups.size(place.group) + groups.residue(place.group) + groups.offset();
  out[6] = groups.bijection().rows();
}

template <typename T>
__global__ void use_values(const T* in, T* out, int count) {
  using Traits = ValueTraits<T>;
  typename Traits::Sum sum = 0;
  for (int i = 0; i < count; ++i) {
    if (!Traits::is_zero(in[i])) sum += Traits::widen(in[i]);
  }
  out[0] = Traits::narrow(sum);
}

__global__ void use_row_hash(std::int64_t partitions, std::uint64_t seed, const std::int64_t* in,
                             std::int64_t* out) {
  const RowHash hash(partitions, seed);
  out[0] = hash.partition(in[0]);
  out[1] = hash.cell(0, in[0], in[1]);
  out[2] = hash.partitions();
}

__global__ void use_elias_fano(std::uint64_t universe, std::uint64_t count, std::uint64_t* out) {
  const EliasFano::Layout layout = EliasFano::layout(universe, count);
  out[0] = layout.bytes();
  out[1] = layout.high_bits();
  out[2] = layout.high_bytes();
  out[3] = layout.low_bytes();
}

__global__ void use_owner_batches(Index rows, std::uint64_t workers, std::uint64_t* out) {
  detail::OwnerBatches batches(rows);
  const detail::OwnerBatch batch = batches.next();
  const detail::OwnedRow row(workers, out[0]);
  out[0] = row.load(out[1], out[2]);
  out[1] = row.load_of(batch);
  out[2] = static_cast<std::uint64_t>(detail::middle_of(batch));
}

__global__ void use_sums(const bf16* in, bf16* out) {
  out[0] = detail::round_sum<bf16>(detail::start_sum(in[0]), 0.5F);
}

__global__ void use_index_code(Index universe, Index count, Index* out) {
  out[0] = coo_index_bytes(universe);
  out[1] = encoded_bytes(IndexCode::elias_fano, universe, count);
  out[2] = cheapest_code(universe, count) == IndexCode::coo ? 1 : 0;
}

}  // namespace

/// Takes the address of each kernel, so that none is unused. Tests on a GPU launch these functions.
void name_shared_kernels(const void** kernels) {
  kernels[0] = reinterpret_cast<const void*>(&use_bits);
  kernels[1] = reinterpret_cast<const void*>(&use_bijection);
  kernels[2] = reinterpret_cast<const void*>(&use_row_groups);
  kernels[3] = reinterpret_cast<const void*>(&use_values<float>);
  kernels[4] = reinterpret_cast<const void*>(&use_values<double>);
  kernels[5] = reinterpret_cast<const void*>(&use_values<f16>);
  kernels[6] = reinterpret_cast<const void*>(&use_values<bf16>);
  kernels[7] = reinterpret_cast<const void*>(&use_values<std::int32_t>);
  kernels[8] = reinterpret_cast<const void*>(&use_values<std::int64_t>);
  kernels[9] = reinterpret_cast<const void*>(&use_elias_fano);
  kernels[10] = reinterpret_cast<const void*>(&use_index_code);
  kernels[11] = reinterpret_cast<const void*>(&use_row_hash);
  kernels[12] = reinterpret_cast<const void*>(&use_residual);
  kernels[13] = reinterpret_cast<const void*>(&use_casts);
  kernels[14] = reinterpret_cast<const void*>(&use_owner_batches);
  kernels[15] = reinterpret_cast<const void*>(&use_sums);
}

}  // namespace sparsesync
