// Element-wise loops with vector loads and stores. For kernel sources only.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

namespace detail {
template <int bytes>
using Word =
    std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, uint2, std::uint32_t>>;
}  // namespace detail

/// Loads `count` consecutive elements at once. Their address is a multiple of their total size. A
/// single element may have any address.
template <int count, typename T>
__device__ void load_pack(const std::byte* from, Index first, T* to) {
  if constexpr (count == 1) {
    *to = load<T>(from, first);
  } else {
    using Word = detail::Word<count* static_cast<int>(sizeof(T))>;
    const Word word = *reinterpret_cast<const Word*>(from + first * static_cast<Index>(sizeof(T)));
    std::memcpy(static_cast<void*>(to), &word, sizeof(word));
  }
}
/// Stores elements at an address that load_pack() could load from.
template <int count, typename T>
__device__ void store_pack(std::byte* to, Index first, const T* from) {
  if constexpr (count == 1) {
    store(to, first, *from);
  } else {
    using Word = detail::Word<count* static_cast<int>(sizeof(T))>;
    Word word;
    std::memcpy(&word, from, sizeof(word));
    *reinterpret_cast<Word*>(to + first * static_cast<Index>(sizeof(T))) = word;
  }
}

/// The elements that a thread processes at once: `packs` packs of `pack` consecutive elements. The
/// packs of neighbouring threads are adjacent.
template <int pack, int packs>
struct Elements {
  static constexpr int kCount = pack * packs;
  /// Elements per block.
  static constexpr Index kTile = Index{kBlock} * kCount;

  Index first;

  /// @param to  kCount elements
  template <typename T>
  __device__ void load(const std::byte* from, T* to) const {
    for (int i = 0; i < packs; ++i) {
      load_pack<pack>(from, first + i * Index{kBlock} * pack, to + i * pack);
    }
  }
  /// @param from  kCount elements
  template <typename T>
  __device__ void store(std::byte* to, const T* from) const {
    for (int i = 0; i < packs; ++i) {
      store_pack<pack>(to, first + i * Index{kBlock} * pack, from + i * pack);
    }
  }

  /// Calls body(elements) with an Elements for each part of [0, count) that this thread processes.
  /// Full tiles come first, and all threads of a block make these calls together. The elements
  /// after the last full tile follow one at a time, as Elements<1, 1>.
  /// @param body  loads all its inputs before it stores, so that the loads are in flight together
  template <typename Body>
  __device__ static void for_each(Index count, Body&& body) {
    const Index tiles = count / kTile;
    for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      body(Elements{tile * kTile + static_cast<Index>(threadIdx.x) * pack});
    }
    for (Index i = tiles * kTile + thread_number(); i < count; i += thread_count()) {
      body(Elements<1, 1>{i});
    }
  }
};

/// Calls launch_for(elements) with the Elements for arrays of `Types`. A pack of the widest type
/// has 16 bytes. A thread loads at least 16 bytes of the narrowest type and 32 bytes of the widest.
/// Packs have one element unless all addresses are multiples of 16.
/// @param addresses  addresses of the arrays, or'ed together
template <typename... Types, typename LaunchFor>
void for_elements(std::uint64_t addresses, LaunchFor&& launch_for) {
  constexpr int kWidest = std::max({static_cast<int>(sizeof(Types))...});
  constexpr int kNarrowest = std::min({static_cast<int>(sizeof(Types))...});
  constexpr int kPack = 16 / kWidest;
  constexpr int kPacks = std::max(2, kWidest / kNarrowest);
  if (common_unit(addresses) == 16) {
    launch_for(Elements<kPack, kPacks>{});
  } else {
    launch_for(Elements<1, kPack * kPacks>{});
  }
}

namespace detail {
template <typename Elements, typename Body>
__global__ void each_pack(Index count, Body body) {
  Elements::for_each(count, body);
}
}  // namespace detail

/// Calls body(elements) with an Elements for each part of [0, count), concurrently and in any
/// order. Does not synchronize the stream.
/// @tparam Types     element types of the arrays that `body` loads and stores
/// @param addresses  addresses of these arrays, or'ed together
/// @param body       an object with `template <typename Elements> __device__ void operator()(const
///                   Elements&) const`
template <typename... Types, typename Body>
void for_each_pack(const Context& context, Index count, std::uint64_t addresses, Body body) {
  for_elements<Types...>(addresses, [&]<typename Elements>(Elements) {
    launch<detail::each_pack<Elements, Body>>(context, blocks_for(context, count), kBlock, count,
                                              body);
  });
}

/// A body for for_each_pack() that writes convert(element) for each element. `from` and `to` may be
/// the same array.
/// @tparam Convert  an object with `__device__ To operator()(From) const`
template <typename From, typename To, typename Convert>
struct Converted {
  const std::byte* from;
  std::byte* to;
  Convert convert;

  template <typename Elements>
  __device__ void operator()(const Elements& elements) const {
    From values[Elements::kCount];
    elements.load(from, values);
    To results[Elements::kCount];
    for (int i = 0; i < Elements::kCount; ++i) results[i] = convert(values[i]);
    elements.store(to, results);
  }
};

/// Writes convert(element) for each of `count` elements. Does not synchronize the stream.
template <typename From, typename To, typename Convert>
void convert_each(const Context& context, Index count, const std::byte* from, std::byte* to,
                  Convert convert) {
  for_each_pack<From, To>(context, count, address_of(from) | address_of(to),
                          Converted<From, To, Convert>{from, to, convert});
}

}  // namespace sparsesync::cuda
