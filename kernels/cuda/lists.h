// Processes many lists of indices in one kernel. For kernel sources only.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {

/// Uploads an array that the host computes, in pieces on the stack so that nothing is allocated.
/// Does not synchronize the stream.
/// @param make  make(i): element i
template <typename T, typename Make>
std::span<const T> upload_made(const Context& context, Scratch& scratch, Index count, Make&& make) {
  constexpr Index kPiece = 128;
  const std::span<T> all = scratch.allocate<T>(count);
  for (Index begin = 0; begin < count; begin += kPiece) {
    T piece[kPiece];
    const Index size = std::min(kPiece, count - begin);
    for (Index i = 0; i < size; ++i) piece[i] = make(begin + i);
    const std::span<T> to = part_of(all, {begin, begin + size});
    stream_of(context).upload(std::as_bytes(std::span(piece).first(to.size())),
                              std::as_writable_bytes(to).data());
  }
  return all;
}

/// A list, and the total size of the lists before it.
struct List {
  const Index* data = nullptr;
  Index size = 0;
  Index first = 0;        // elements of the lists before
  Index first_chunk = 0;  // chunks of the lists before
};

/// List elements per thread, and per chunk. A block processes one chunk at a time.
inline constexpr int kOfListThread = 4;
inline constexpr Index kListChunk = Index{kOfListThread} * kBlock;

/// Lists on the device.
struct Lists {
  std::span<const List> lists;
  Index chunks = 0;
};

/// Uploads the descriptions of lists. Does not synchronize the stream.
inline Lists upload_lists(const Context& context, Scratch& scratch,
                          std::span<const std::span<const Index>> lists) {
  Index elements = 0;
  Index chunks = 0;
  const auto make = [&](Index i) {
    const std::span<const Index> list = lists[static_cast<std::size_t>(i)];
    const List made{list.data(), std::ssize(list), elements, chunks};
    elements += made.size;
    chunks += ceil_div(made.size, kListChunk);
    return made;
  };
  const std::span<const List> all = upload_made<List>(context, scratch, std::ssize(lists), make);
  return {all, chunks};
}

namespace detail {
/// Returns the list of a chunk: the last one that begins at or before it. Empty lists have no
/// chunks.
__device__ inline int list_of(const List* lists, int count, Index chunk) {
  int begin = 0;
  int size = count;
  while (size > 1) {
    const int half = size / 2;
    if (lists[begin + half].first_chunk <= chunk) {
      begin += half;
      size -= half;
    } else {
      size = half;
    }
  }
  return begin;
}

template <typename Body>
__global__ void each_of_lists(const List* lists, int count, Index chunks, Body body) {
  for (Index chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int number = list_of(lists, count, chunk);
    const List list = lists[number];
    const Index begin = (chunk - list.first_chunk) * kListChunk + threadIdx.x;
    Index indices[kOfListThread];  // loads in flight together
    for (int k = 0; k < kOfListThread; ++k) {
      const Index i = begin + k * kBlock;
      indices[k] = i < list.size ? list.data[i] : 0;
    }
    for (int k = 0; k < kOfListThread; ++k) {
      const Index i = begin + k * kBlock;
      body(number, list.first + i, indices[k], i < list.size);
    }
  }
}
}  // namespace detail

/// Calls body(list, place, index, inside) for each index of each list, in any order. `place` is the
/// position in the concatenation of the lists.
///
/// At the end of a list, body is also called for positions outside it, with `inside` false, so that
/// all lanes of a warp make the call together. Neighbouring lanes have neighbouring indices of one
/// list. Does not synchronize the stream.
/// @param body  [=] __device__(int list, Index place, Index index, bool inside)
template <typename Body>
void for_each_of_lists(const Context& context, const Lists& lists, Body body) {
  launch<detail::each_of_lists<Body>>(context, blocks_for(context, lists.chunks, 1), kBlock,
                                      lists.lists.data(), static_cast<int>(lists.lists.size()),
                                      lists.chunks, body);
}

}  // namespace sparsesync::cuda
