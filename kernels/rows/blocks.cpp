// CPU implementations of the block operations.
#include "kernels/rows/blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/rows/row.h"
#include "kernels/rows/zero.h"

namespace sparsesync::cpu {
namespace {

/// Returns the total of the first `parts` parts, which is the start offset of the next part.
Index total_of(const PartCounts& counts, int parts) {
  return std::accumulate(counts.begin(), counts.begin() + parts, Index{0});
}

Index number_at(const RowSparse& list, Index place) {
  return list.indices[static_cast<std::size_t>(place)];
}

Index length(const RowSparse& list) {
  return std::ssize(list.indices);
}

/// The bytes of a row in the flat array, and the blocks that contain them.
struct PlacedRow {
  Index begin = 0;
  Index end = 0;
  Index first_block = 0;
  Index last_block = 0;
};

PlacedRow placed(const RowSparse& rows, Index place, Index block_bytes) {
  const Index bytes = rows.values.row_bytes();
  const Index begin = number_at(rows, place) * bytes;
  const Index end = begin + bytes;
  const Index first = begin / block_bytes;
  const bool in_one = end <= (first + 1) * block_bytes;
  return {begin, end, first, in_one ? first : (end - 1) / block_bytes};
}

/// A row and its neighbours in the list.
struct RowInPlace {
  Index place = 0;
  PlacedRow row;
  Index end_before = 0;  // end of the previous row; undefined if `is_new`
  bool is_new = false;   // the row's first block contains no earlier row
  bool is_last = false;  // the row's last block contains no later row
};

/// Calls found(row) for each position in `places` of the list of rows.
template <typename Found>
void walk_rows(const RowSparse& rows, Index block_bytes, IndexRange places, Found&& found) {
  if (places.size() == 0) return;
  RowInPlace at{places.begin, placed(rows, places.begin, block_bytes), 0, true, false};
  if (places.begin > 0) {
    const PlacedRow before = placed(rows, places.begin - 1, block_bytes);
    at.end_before = before.end;
    at.is_new = before.last_block < at.row.first_block;
  }
  for (; at.place < places.end; ++at.place) {
    const bool has_next = at.place + 1 < length(rows);
    const PlacedRow next = has_next ? placed(rows, at.place + 1, block_bytes) : PlacedRow{};
    at.is_last = !has_next || at.row.last_block < next.first_block;
    found(std::as_const(at));
    at.end_before = at.row.end;
    at.is_new = at.is_last;
    at.row = next;
  }
}

Index count_blocks(const RowSparse& rows, Index block_bytes, IndexRange places) {
  Index count = 0;
  walk_rows(rows, block_bytes, places, [&](const RowInPlace& at) {
    count += at.row.last_block - at.row.first_block + (at.is_new ? 1 : 0);
  });
  return count;
}

/// Writes the blocks of a range of rows, each byte once. A row writes itself and the zeros between
/// the previous row and itself in its first block. The last row of a block also writes the zeros
/// after itself.
/// @param at  output position of the first block that starts with these rows
/// @return the output position after their last block
Index fill_blocks(const RowSparse& rows, IndexRange places, Index at, std::span<Index> blocks,
                  Matrix values) {
  const Index block_bytes = values.row_bytes();
  const Index row_bytes = rows.values.row_bytes();
  walk_rows(rows, block_bytes, places, [&](const RowInPlace& found) {
    const PlacedRow& row = found.row;
    const Index first = found.is_new ? at : at - 1;  // output position of the row's first block
    at = first + row.last_block - row.first_block + 1;
    if (at > values.rows) return;
    for (Index i = found.is_new ? first : first + 1; i < at; ++i) {
      blocks[static_cast<std::size_t>(i)] = row.first_block + (i - first);
    }
    // Consecutive blocks are also consecutive in `values`.
    const auto at_byte = [&, shift = (first - row.first_block) * block_bytes](Index byte) {
      return values.data + (byte + shift);
    };
    const auto fill = [&](Index begin, Index end) {
      if (begin < end) std::memset(at_byte(begin), 0, static_cast<std::size_t>(end - begin));
    };
    fill(found.is_new ? row.first_block * block_bytes : found.end_before, row.begin);
    copy_row(at_byte(row.begin), rows.values.data + found.place * row_bytes, row_bytes);
    if (found.is_last) fill(row.end, (row.last_block + 1) * block_bytes);
  });
  return at;
}

/// Calls found(elements, address) for each piece of a row that a block in the list contains, with
/// the range of its elements and their address.
/// @param place  list position of the first block that contains a piece
template <typename Found>
void walk_pieces(const RowSparse& blocks, Index place, Index row, Index width, Found&& found) {
  const Index block = blocks.values.width;
  const Index element = element_bytes(blocks.values.dtype);
  const IndexRange of_row{row * width, (row + 1) * width};
  for (; place < length(blocks) && number_at(blocks, place) * block < of_row.end; ++place) {
    const Index first = number_at(blocks, place) * block;
    const IndexRange piece{std::max(of_row.begin, first), std::min(of_row.end, first + block)};
    found(IndexRange{piece.begin - of_row.begin, piece.end - of_row.begin},
          blocks.values.data + (place * block + piece.begin - first) * element);
  }
}

/// Calls found(row, place, address) for each nonzero row whose first listed block is at a position
/// in `places`. `address` is null if no single block contains the whole row. Narrow rows are tested
/// in groups that fill a cache line.
template <typename T, typename Found>
void find_rows(const RowSparse& blocks, Index total_rows, Index width, IndexRange places,
               Found&& found) {
  constexpr Index kLine = 64;
  const Index block = blocks.values.width;
  const auto row_bytes = width * static_cast<Index>(sizeof(T));
  const Index together = ceil_div(kLine, row_bytes);
  for (Index place = places.begin; place < places.end; ++place) {
    const Index number = number_at(blocks, place);
    const Index first = number * block;
    Index row = first / width;
    // A row that starts in an earlier listed block belongs to that block.
    if (place > 0 && number_at(blocks, place - 1) >= row * width / block) ++row;
    const Index end = std::min((first + block - 1) / width + 1, total_rows);
    const IndexRange inside{ceil_div(first, width), std::min((first + block) / width, total_rows)};
    const auto find_in_pieces = [&](Index end_of_these) {
      for (; row < end_of_these; ++row) {
        bool zero = true;
        walk_pieces(blocks, place, row, width, [&](IndexRange elements, const std::byte* from) {
          zero = zero && are_zero<T>(from, elements.size());
        });
        if (!zero) found(row, place, nullptr);
      }
    };
    find_in_pieces(std::min(end, inside.begin));
    while (row < inside.end) {
      const Index count = std::min(together, inside.end - row);
      const std::byte* from = blocks.values.data + place * blocks.values.row_bytes() +
                              (row * width - first) * static_cast<Index>(sizeof(T));
      if (!are_zero<T>(from, count * width)) {
        find_nonzero<T>(from, count, width,
                        [&](Index i) { found(row + i, place, from + i * row_bytes); });
      }
      row += count;
    }
    find_in_pieces(end);
  }
}

void copy_pieces(const RowSparse& blocks, Index place, Index row, Index width, std::byte* to) {
  const Index element = element_bytes(blocks.values.dtype);
  Index written = 0;
  const auto fill_to = [&](Index end) {
    std::memset(to + written * element, 0, static_cast<std::size_t>((end - written) * element));
  };
  walk_pieces(blocks, place, row, width, [&](IndexRange elements, const std::byte* from) {
    fill_to(elements.begin);
    std::memcpy(to + elements.begin * element, from,
                static_cast<std::size_t>(elements.size() * element));
    written = elements.end;
  });
  fill_to(width);
}

}  // namespace

void rows_to_blocks(const Context& context, RowSparse rows, std::span<Index> blocks, Matrix values,
                    Count count) {
  SPARSESYNC_EXPECT(rows.values.rows, ==, length(rows));
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(blocks));
  SPARSESYNC_EXPECT(values.width, >=, Index{1});
  SPARSESYNC_EXPECT(rows.values.width, >=, Index{1});
  const int parts = row_parts(context, length(rows), rows.values.row_bytes());
  PartCounts counts{};
  if (parts == 1) {
    *count.location() = fill_blocks(rows, {0, length(rows)}, 0, blocks, values);
    return;
  }
  for_each_part(context, length(rows), parts, [&](int part, IndexRange places) {
    counts[static_cast<std::size_t>(part)] = count_blocks(rows, values.row_bytes(), places);
  });
  *count.location() = total_of(counts, parts);
  if (total_of(counts, parts) > values.rows) return;
  for_each_part(context, length(rows), parts, [&](int part, IndexRange places) {
    fill_blocks(rows, places, total_of(counts, part), blocks, values);
  });
}

void blocks_to_rows(const Context& context, RowSparse blocks, Index total_rows,
                    std::span<Index> indices, Matrix values, Count count) {
  SPARSESYNC_EXPECT(blocks.values.rows, ==, length(blocks));
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(indices));
  SPARSESYNC_EXPECT(values.width, >=, Index{1});
  SPARSESYNC_EXPECT(blocks.values.width, >=, Index{1});
  const int parts = row_parts(context, length(blocks), blocks.values.row_bytes());
  PartCounts counts{};
  const Index width = values.width;
  const Index row_bytes = values.row_bytes();
  for_dtype(values.dtype, [&]<typename T>(T) {
    const auto write = [&](IndexRange places, Index at) {
      const auto found = [&](Index row, Index place, const std::byte* from) {
        if (at < values.rows) {
          indices[static_cast<std::size_t>(at)] = row;
          std::byte* const to = values.data + at * row_bytes;
          if (from != nullptr) {
            copy_row(to, from, row_bytes);
          } else {
            copy_pieces(blocks, place, row, width, to);
          }
        }
        ++at;
      };
      find_rows<T>(blocks, total_rows, width, places, found);
      return at;
    };
    if (parts == 1) {
      *count.location() = write({0, length(blocks)}, 0);
      return;
    }
    for_each_part(context, length(blocks), parts, [&](int part, IndexRange places) {
      Index& found = counts[static_cast<std::size_t>(part)];
      find_rows<T>(blocks, total_rows, width, places,
                   [&](Index, Index, const std::byte*) { ++found; });
    });
    *count.location() = total_of(counts, parts);
    if (total_of(counts, parts) > values.rows) return;
    for_each_part(context, length(blocks), parts,
                  [&](int part, IndexRange places) { write(places, total_of(counts, part)); });
  });
}

}  // namespace sparsesync::cpu
