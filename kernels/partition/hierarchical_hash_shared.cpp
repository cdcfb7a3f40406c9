#include "kernels/partition/hierarchical_hash.h"

#include <algorithm>

namespace sparsesync {

Index partition_by_hash(const Context& context, const RowHash& hash, std::span<const Index> rows,
                        std::span<Index> partition_rows, std::span<Index> sources,
                        std::span<Index> partition_begin, HashMemory& memory) {
  memory.parallel_cells = parallel_cells_for(std::ssize(rows), hash.partitions());
  memory.serial_cells = std::max(memory.serial_cells, serial_cells_for(memory.parallel_cells));
  Index repeats = 0;
  // Another run may need more than this one, because rows get other cells. The size grows by at
  // least a quarter each time and ends at rows.size().
  for (Index need = hash_rows(context, hash, rows, memory); need > memory.serial_cells;
       need = hash_rows(context, hash, rows, memory)) {
    memory.serial_cells = need + need / 4;
    ++repeats;
  }
  extract_rows(context, hash, rows, memory, partition_rows, sources, partition_begin);
  return repeats;
}

}  // namespace sparsesync
