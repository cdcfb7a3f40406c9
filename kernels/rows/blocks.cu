// CUDA implementations of the block operations, with one kernel each.
#include "kernels/rows/blocks.h"

#include "kernels/cuda/found_rows.h"
#include "kernels/cuda/nonzero.h"

namespace sparsesync::cuda {
namespace {

/// Returns a / b for nonnegative numbers. Numbers below 2^32, the usual case, take a 32-bit
/// division.
__device__ Index quotient(Index a, Index b) {
  if ((static_cast<std::uint64_t>(a | b) >> 32U) == 0) {
    return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  }
  return a / b;
}

// ---- Rows to blocks.
//
// The output is the sequence of blocks, one after another. It contains the rows in order, with
// zeros between them. The output offset of row i follows from the offset of its first block, that
// is, from the number of blocks that earlier rows start. A tile is a range of rows; it writes these
// rows and the zeros next to them, each element once.
//
// Reads 8 bytes and the values of each row. Writes the blocks and 8 bytes per block.

/// Arguments of the kernel. Lengths and offsets are in units.
struct ToBlocks {
  const Index* rows;
  const std::byte* from;
  Index count;
  Index row;    // row length
  Index block;  // block length
  Index tile_rows;
  Index* blocks;
  std::byte* to;
  Index room;
  Index* found;
};

constexpr int kRowsOfThread = 4;
constexpr int kMostTileRows = kRowsOfThread * kBlock;

/// A row's begin, and the blocks that contain it.
struct PlacedRow {
  Index begin = 0;
  Index first_block = 0;
  Index last_block = -1;
};

__device__ PlacedRow placed(const ToBlocks& task, Index row) {
  const Index begin = row * task.row;
  const Index end = begin + task.row;
  const Index first = quotient(begin, task.block);
  const bool in_one = end <= (first + 1) * task.block;
  return {begin, first, in_one ? first : quotient(end - 1, task.block)};
}

/// Sets blocks[at + i] = first + i for i < count, for the arguments of each lane. All lanes
/// together write long sequences. All lanes of a warp call it.
__device__ void write_numbers(const ToBlocks& task, Index at, Index first, Index count) {
  constexpr Index kFew = 4;
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned many = __ballot_sync(kAllLanes, count > kFew ? 1 : 0); many != 0;
       many &= many - 1) {
    const int source = __ffs(static_cast<int>(many)) - 1;
    const Index at_there = __shfl_sync(kAllLanes, at, source);
    const Index first_there = __shfl_sync(kAllLanes, first, source);
    const Index count_there = __shfl_sync(kAllLanes, count, source);
    for (Index i = lane; i < count_there && at_there + i < task.room; i += kWarp) {
      task.blocks[at_there + i] = first_there + i;
    }
  }
  if (count > kFew) return;
  for (Index i = 0; i < count && at + i < task.room; ++i) task.blocks[at + i] = first + i;
}

/// Output offsets of a tile's rows, in shared memory.
struct Begins {
  Index of_row[kMostTileRows];
  // Per warp: a bit for each offset of its part of the output where a row begins.
  unsigned marks[kBlockWarps][kWarp];
};

/// Writes a part of the output: 32 * 32 units from `begin`. All lanes of a warp call it.
/// @param end    end of the tile's output
/// @param first  first row of the tile
template <typename Unit>
__device__ void fill_part(const ToBlocks& task, Begins& begins, Index first, unsigned rows,
                          Index begin, Index end) {
  constexpr int kInFlight = 4;
  const unsigned lane = threadIdx.x % kWarp;
  unsigned* const marks = begins.marks[threadIdx.x / kWarp];
  marks[lane] = 0;
  __syncwarp();
  // Skip the rows that begin at or before the start of the part. Mark those that begin later in the
  // part.
  const Index before = lower_bound(begins.of_row, static_cast<Index>(rows), begin + 1);
  for (Index i = before + lane; i < rows; i += kWarp) {
    const Index at = begins.of_row[i] - begin;
    if (at >= kWarp * kWarp) break;
    atomicOr(marks + at / kWarp, 1U << static_cast<unsigned>(at % kWarp));
  }
  __syncwarp();
  const unsigned own = marks[lane];
  Index last = before - 1;  // last row that begins before the next 32 units
  auto* const to = reinterpret_cast<Unit*>(task.to);
  for (int step = 0; step < kWarp; step += kInFlight) {
    if (begin + step * kWarp >= end) break;
    Unit units[kInFlight];
    for (int k = 0; k < kInFlight; ++k) {
      const unsigned begun = __shfl_sync(kAllLanes, own, step + k);
      const Index at = begin + (step + k) * kWarp + lane;
      const Index row = last + __popc(begun & (kAllLanes >> (kWarp - 1 - lane)));
      last += __popc(begun);
      units[k] = Unit{};
      if (at >= end || row < 0) continue;
      const Index within = at - begins.of_row[row];
      if (within < 0 || within >= task.row) continue;
      const Index unit = (first + row) * task.row + within;
      units[k] = load_unit<Unit>(task.from + unit * static_cast<Index>(sizeof(Unit)));
    }
    for (int k = 0; k < kInFlight; ++k) {
      const Index at = begin + (step + k) * kWarp + lane;
      if (at < end) to[at] = units[k];
    }
  }
  __syncwarp();
}

template <typename Unit>
__global__ void __launch_bounds__(kBlock, 4) rows_to_blocks_kernel(ToBlocks task, Tiles tiles) {
  __shared__ Begins begins;
  __shared__ Index scan[kWarp + 1];
  __shared__ Index shared;
  __shared__ Index limits[2];  // begin and end of the tile's output
  const Index tile = tiles.next_tile(&shared);
  const Index first = tile * task.tile_rows;
  const Index left = task.count - first;
  const auto rows = static_cast<unsigned>(left < task.tile_rows ? left : task.tile_rows);

  // Count the blocks that each row starts: all of its blocks, except the first if the previous row
  // also lies in it.
  const unsigned own = threadIdx.x * kRowsOfThread;
  PlacedRow row[kRowsOfThread];
  bool is_new[kRowsOfThread];
  Index count = 0;
  Index last = -1;  // last block of the previous row
  if (own < rows && first + own > 0) last = placed(task, task.rows[first + own - 1]).last_block;
  for (unsigned k = 0; k < kRowsOfThread; ++k) {
    is_new[k] = false;
    if (own + k >= rows) continue;
    row[k] = placed(task, task.rows[first + own + k]);
    is_new[k] = last < row[k].first_block;
    count += row[k].last_block - row[k].first_block + (is_new[k] ? 1 : 0);
    last = row[k].last_block;
  }
  Index all = 0;
  Index at = block_exclusive_sum(count, scan, &all);
  const Index before = tiles.before(tile, all, &shared);
  if (tile + 1 == gridDim.x && threadIdx.x == 0) *task.found = before + all;
  at += before;

  for (unsigned k = 0; k < kRowsOfThread; ++k) {
    const bool there = own + k < rows;
    const Index first_at = is_new[k] ? at : at - 1;  // output position of the row's first block
    const Index begun = there ? row[k].last_block - row[k].first_block + (is_new[k] ? 1 : 0) : 0;
    write_numbers(task, at, row[k].first_block + (is_new[k] ? 0 : 1), begun);
    at += begun;
    if (!there) continue;
    const Index begin = first_at * task.block + row[k].begin - row[k].first_block * task.block;
    begins.of_row[own + k] = begin;
    const Index place = first + own + k;
    if (own + k == 0) {
      // If the previous row lies in the same block, it has written only itself. Begin after it.
      limits[0] = is_new[k] ? first_at * task.block
                            : begin - (row[k].begin - (task.rows[place - 1] + 1) * task.row);
    }
    if (own + k + 1 == rows) {
      const bool is_last =
          place + 1 == task.count ||
          row[k].last_block < quotient(task.rows[place + 1] * task.row, task.block);
      const Index end = is_last ? at * task.block : begin + task.row;
      limits[1] = end < task.room * task.block ? end : task.room * task.block;
    }
  }
  __syncthreads();
  constexpr Index kPart = kWarp * kWarp;
  for (Index begin = limits[0] + threadIdx.x / kWarp * kPart; begin < limits[1];
       begin += kBlockWarps * kPart) {
    fill_part<Unit>(task, begins, first, rows, begin, limits[1]);
  }
}

// ---- Blocks to rows.
//
// The kernel reads blocks in order and marks each row that has a nonzero element. A row belongs to
// the first listed block that contains a part of it. The block numbers thus determine the rows of a
// tile, and only its last row may continue in blocks after the tile.
//
// Reads each block once, and the nonzero rows a second time. Writes these rows and 8 bytes per row.
//
// A block that is too large for a tile is divided into pieces, one tile each.

/// Arguments of the kernel. Lengths and offsets are in bytes.
struct ToRows {
  const Index* blocks;
  const std::byte* from;
  Index count;
  Index block;         // block length
  Index pieces;        // per block
  Index piece;         // piece length; a block's last piece may be shorter
  Index tile_pieces;   // pieces per tile; 1 if a block has several pieces
  std::uint64_t mask;  // nonzero_bits()
  Index total_rows;
  Index row;  // row length
  Index* indices;
  std::byte* values;

  __device__ Index all_pieces() const { return count * pieces; }
};

constexpr int kPiecesOfThread = 2;
constexpr int kMostPieces = kPiecesOfThread * kBlock;

/// The bytes of a piece in the matrix, and its offset in the list of blocks.
struct Piece {
  Index begin;
  Index end;
  Index at;
};

__device__ Piece piece_at(const ToRows& task, Index number) {
  const Index place = task.pieces == 1 ? number : number / task.pieces;
  const Index offset = (number - place * task.pieces) * task.piece;
  const Index left = task.block - offset;
  const Index begin = task.blocks[place] * task.block + offset;
  return {begin, begin + (left < task.piece ? left : task.piece), place * task.block + offset};
}

/// The pieces of a tile, in shared memory.
struct Pieces {
  // Distance from the start of the piece's first row to the start of the piece. Negative if the row
  // starts later. A row belongs to the first piece that contains a part of it.
  Index behind[kMostPieces];
  Index first_row[kMostPieces];
  // Number of rows that belong to earlier pieces.
  unsigned rows_before[kMostPieces + 1];
  Index rest;  // bytes after the tile that continue its last row
};

/// Finds the rows that belong to a tile.
/// @return number of rows
__device__ unsigned find_own_rows(const ToRows& task, Index first, unsigned count, Pieces& pieces,
                                  unsigned* scan) {
  const unsigned own = threadIdx.x * kPiecesOfThread;
  unsigned rows[kPiecesOfThread] = {};
  unsigned sum = 0;
  for (unsigned k = 0; k < kPiecesOfThread; ++k) {
    if (own + k >= count) continue;
    const Index number = first + own + k;
    const Piece piece = piece_at(task, number);
    Index row = quotient(piece.begin, task.row);
    // A row that the previous piece contains does not belong to this one.
    if (number > 0 && piece_at(task, number - 1).end > row * task.row) ++row;
    const Index after = quotient(piece.end - 1, task.row) + 1;
    const Index end = after < task.total_rows ? after : task.total_rows;
    pieces.behind[own + k] = piece.begin - row * task.row;
    pieces.first_row[own + k] = row;
    rows[k] = row < end ? static_cast<unsigned>(end - row) : 0;
    sum += rows[k];
  }
  unsigned all = 0;
  unsigned before = block_exclusive_sum(sum, scan, &all);
  for (unsigned k = 0; k < kPiecesOfThread; ++k) {
    if (own + k < count) pieces.rows_before[own + k] = before;
    before += rows[k];
    // The tile's last row is the last row of this piece.
    const bool has_last = rows[k] > 0 && before == all;
    if (!has_last) continue;
    const Index end = (pieces.first_row[own + k] + rows[k]) * task.row;
    const Index behind = first + count;
    Index there = 0;
    Index most = task.all_pieces() - behind;
    const Index needed = quotient(task.row, task.piece) + 2;
    if (needed * 2 < most) most = needed * 2;
    // Binary search for the pieces after the tile that begin before the end of the row.
    while (most > 0) {
      const Index half = most / 2;
      if (piece_at(task, behind + there + half).begin < end) {
        there += half + 1;
        most -= half + 1;
      } else {
        most = half;
      }
    }
    Index rest = 0;
    if (there > 0) {
      const Piece piece = piece_at(task, behind + there - 1);
      const Index within = (piece.end < end ? piece.end : end) - piece.begin;
      rest = piece.at + within - piece_at(task, behind).at;
    }
    pieces.rest = rest;
  }
  if (threadIdx.x == 0) {
    pieces.rows_before[count] = all;
    if (all == 0) pieces.rest = 0;
  }
  __syncthreads();
  return all;
}

/// Returns the piece that a row of the tile belongs to.
__device__ unsigned piece_of(const Pieces& pieces, unsigned count, unsigned row) {
  return static_cast<unsigned>(
             lower_bound(pieces.rows_before, static_cast<Index>(count), row + 1)) -
         1;
}

/// A row of the matrix with some of its blocks in the list.
struct ScatteredRow {
  const ToRows* task;
  Index index;
  Index place;   // list position of its first listed block
  Index before;  // bytes of the row before that block; negative: bytes of the block before the row

  __device__ Index number() const { return index; }
  template <typename Unit>
  __device__ Unit load(Index unit) const {
    // Offset in that block and the blocks after it.
    Index within = unit * static_cast<Index>(sizeof(Unit)) - before;
    if (within < 0) return Unit{};
    Index at = place;
    if (within >= task->block) {
      const Index further = quotient(within, task->block);
      within -= further * task->block;
      const Index left = task->count - place - 1;
      const Index wanted = task->blocks[place] + further;
      at += 1 + lower_bound(task->blocks + place + 1, further < left ? further : left, wanted);
      if (at >= task->count || task->blocks[at] != wanted) return Unit{};
    }
    return load_unit<Unit>(task->from + at * task->block + within);
  }
};

__global__ void __launch_bounds__(kBlock, resident_blocks(4))
    blocks_to_rows_kernel(ToRows task, TileSums sums, SmallDivisor piece_divisor, CopyPlan plan) {
  __shared__ Split<1> split;
  __shared__ MarkedRows<OneGroup> marked;
  __shared__ Pieces pieces;
  __shared__ unsigned scan[kWarp + 1];
  marked.clear();
  const Index tile = split.next_tile(sums);
  const Index first = tile * task.tile_pieces;
  const Index left = task.all_pieces() - first;
  const auto count = static_cast<unsigned>(left < task.tile_pieces ? left : task.tile_pieces);
  const unsigned rows = find_own_rows(task, first, count, pieces, scan);

  const Piece first_piece = piece_at(task, first);
  const Piece last_piece = piece_at(task, first + count - 1);
  const std::byte* const data = task.from + first_piece.at;
  const Index bytes = last_piece.at + last_piece.end - last_piece.begin - first_piece.at;
  find_nonzero(data, bytes, task.mask, [&](const Chunk& chunk, Index at) {
    // A tile is short, so these offsets fit into 32 bits.
    for (int begin = at < 0 ? static_cast<int>(-at) : 0, end = 0; begin < 16; begin = end) {
      const auto place = static_cast<unsigned>(static_cast<int>(at) + begin);
      if (place >= bytes) return;
      const unsigned piece = count == 1 ? 0 : piece_divisor.divide(place);
      Index left = (piece + 1) * task.piece - place;
      const Index within = task.piece - left + pieces.behind[piece];
      Index row = pieces.rows_before[piece];
      Index left_of_row = -within;
      if (within < 0) {  // the last row of the previous piece
        --row;
      } else {
        const Index further = quotient(within, task.row);
        row += further;
        left_of_row = (further + 1) * task.row - within;
      }
      if (left_of_row < left) left = left_of_row;
      end = left < 16 - begin ? begin + static_cast<int>(left) : 16;
      // Other rows belong to the previous tile, or are after the end of the matrix.
      const bool is_own = row >= 0 && row < rows;
      if (is_own && is_nonzero(chunk, begin, end)) marked.mark(row);
    }
  });
  find_nonzero(data + bytes, pieces.rest, task.mask,
               [&](const Chunk&, Index) { marked.mark(static_cast<Index>(rows) - 1); });
  const unsigned all = marked.scan_counts(OneGroup{}, split, sums, rows, 0);
  split.resolve(sums);
  const auto row_at = [&](TileRow row) {
    const unsigned piece = piece_of(pieces, count, row);
    const Index number = first + piece;
    const Index place = task.pieces == 1 ? number : number / task.pieces;
    const Index index = pieces.first_row[piece] + row - pieces.rows_before[piece];
    return ScatteredRow{&task, index, place, task.blocks[place] * task.block - index * task.row};
  };
  write_planned_rows(marked, split, all, plan, row_at, task.indices, task.values);
}

}  // namespace

void rows_to_blocks(const Context& context, RowSparse rows, std::span<Index> blocks, Matrix values,
                    Count count) {
  SPARSESYNC_EXPECT(rows.values.rows, ==, std::ssize(rows.indices));
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(blocks));
  SPARSESYNC_EXPECT(values.width, >=, Index{1});
  SPARSESYNC_EXPECT(rows.values.width, >=, Index{1});
  const Index all = std::ssize(rows.indices);
  if (all == 0) return clear(context, count.location(), sizeof(Index));
  const Index row_bytes = rows.values.row_bytes();
  const Index block_bytes = values.row_bytes();
  // Rows may be far apart, so each may need a separate block.
  constexpr Index kTileBytes = Index{1} << 16;
  constexpr Index kFew = 32;
  const Index tile_rows =
      std::clamp<Index>(4 * kTileBytes / (row_bytes + block_bytes),
                        std::clamp<Index>(kTileBytes / row_bytes, 1, kFew), kMostTileRows);
  const Index tiles = ceil_div(all, tile_rows);
  const CopyPlan plan =
      plan_copy(rows.values.data, values.data, block_bytes, row_bytes, element_bytes(values.dtype));
  const ToBlocks task{rows.indices.data(),
                      rows.values.data,
                      all,
                      row_bytes / plan.unit_bytes,
                      block_bytes / plan.unit_bytes,
                      tile_rows,
                      blocks.data(),
                      values.data,
                      std::ssize(blocks),
                      count.location()};
  Scratch scratch(context);
  const Tiles sums = fresh_tiles(context, scratch, tiles);
  for_unit(plan.unit_bytes, [&]<typename Unit>(Unit) {
    launch<rows_to_blocks_kernel<Unit>>(context, tiles, kBlock, task, sums);
  });
}

void blocks_to_rows(const Context& context, RowSparse blocks, Index total_rows,
                    std::span<Index> indices, Matrix values, Count count) {
  SPARSESYNC_EXPECT(blocks.values.rows, ==, std::ssize(blocks.indices));
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(indices));
  SPARSESYNC_EXPECT(values.width, >=, Index{1});
  SPARSESYNC_EXPECT(blocks.values.width, >=, Index{1});
  const Index all = std::ssize(blocks.indices);
  if (all == 0) return clear(context, count.location(), sizeof(Index));
  const Index row_bytes = values.row_bytes();
  const Index block_bytes = blocks.values.row_bytes();
  const Index tile_bytes = tile_bytes_for(context, blocks.values.bytes(), 1);
  constexpr Index kMostRows = MarkedRows<OneGroup>::kMost;
  // A range of bytes touches at most two rows more than fit into it.
  const Index most_bytes = std::min(tile_bytes, (kMostRows - 2) * row_bytes);
  ToRows task{};
  task.blocks = blocks.indices.data();
  task.from = blocks.values.data;
  task.count = all;
  task.block = block_bytes;
  task.piece = std::min(block_bytes, most_bytes);
  task.pieces = ceil_div(block_bytes, task.piece);
  task.tile_pieces = task.pieces > 1
                         ? 1
                         : std::clamp<Index>(std::min(tile_bytes / block_bytes,
                                                      kMostRows / (block_bytes / row_bytes + 2)),
                                             1, kMostPieces);
  task.mask = nonzero_bits(blocks.values.dtype, blocks.values.data);
  task.total_rows = total_rows;
  task.row = row_bytes;
  task.indices = indices.data();
  task.values = values.data;
  const Index tiles = ceil_div(all * task.pieces, task.tile_pieces);
  const CopyPlan plan = plan_copy(blocks.values.data, values.data, block_bytes, row_bytes,
                                  element_bytes(values.dtype));
  Scratch scratch(context);
  const TileSums sums =
      fresh_tile_sums(context, scratch, tiles, 1, std::ssize(indices), count.location());
  launch<blocks_to_rows_kernel>(context, tiles, kBlock, task, sums, SmallDivisor(task.piece), plan);
}

}  // namespace sparsesync::cuda
