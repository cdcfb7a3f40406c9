// Bodies that are yet to be written. Weak: one that is written stands in its place.
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "kernels/aggregate.h"
#include "kernels/blocks.h"
#include "kernels/coalesce.h"
#include "kernels/compact.h"
#include "kernels/hash_domains.h"
#include "kernels/hierarchical_hash.h"
#include "kernels/index_code.h"
#include "kernels/locate.h"
#include "kernels/owners.h"
#include "kernels/partition.h"
#include "kernels/sort.h"

namespace sparsesync::cuda {
__attribute__((weak)) void unite(const Context& context, IndexRange range,
                                 std::span<const std::span<const Index>> sets, std::span<Index> out,
                                 Count count, AggregateWorkspace& workspace) {
  throw ContractError("no CUDA body yet: unite");
}
__attribute__((weak)) void aggregate(const Context& context, std::span<const Index> united,
                                     std::span<const RowSparse> parts, double scale, Matrix out,
                                     AggregateWorkspace& workspace) {
  throw ContractError("no CUDA body yet: aggregate");
}
__attribute__((weak)) void rows_to_blocks(const Context& context, RowSparse rows,
                                          std::span<Index> blocks, Matrix values, Count count) {
  throw ContractError("no CUDA body yet: rows_to_blocks");
}
__attribute__((weak)) void blocks_to_rows(const Context& context, RowSparse blocks,
                                          Index total_rows, std::span<Index> indices, Matrix values,
                                          Count count) {
  throw ContractError("no CUDA body yet: blocks_to_rows");
}
__attribute__((weak)) IndexCheck check_indices(const Context& context, Index rows,
                                               std::span<const Index> indices) {
  throw ContractError("no CUDA body yet: check_indices");
}
__attribute__((weak)) void coalesce(const Context& context, RowSparse from, IndexRange rows,
                                    std::span<Index> indices, Matrix values, Count count,
                                    CoalesceWorkspace& workspace) {
  throw ContractError("no CUDA body yet: coalesce");
}
__attribute__((weak)) void compact(const Context& context, ConstMatrix dense, Index first_row,
                                   std::span<Index> indices, Matrix values, Count count) {
  throw ContractError("no CUDA body yet: compact");
}
__attribute__((weak)) void build_domains(const Context& context, const RowHash& hash, Index rows,
                                         HashDomains& domains) {
  throw ContractError("no CUDA body yet: build_domains");
}
__attribute__((weak)) void positions_in_domain(const Context& context, const HashDomains& domains,
                                               Index partition, std::span<const Index> rows,
                                               std::span<Index> positions) {
  throw ContractError("no CUDA body yet: positions_in_domain");
}
__attribute__((weak)) void rows_in_domain(const Context& context, const HashDomains& domains,
                                          Index partition, std::span<const Index> positions,
                                          std::span<Index> rows) {
  throw ContractError("no CUDA body yet: rows_in_domain");
}
__attribute__((weak)) Index hash_rows(const Context& context, const RowHash& hash,
                                      std::span<const Index> rows, HashMemory& memory) {
  throw ContractError("no CUDA body yet: hash_rows");
}
__attribute__((weak)) void extract_rows(const Context& context, const RowHash& hash,
                                        std::span<const Index> rows, const HashMemory& memory,
                                        std::span<Index> partition_rows, std::span<Index> sources,
                                        std::span<Index> partition_begin) {
  throw ContractError("no CUDA body yet: extract_rows");
}
__attribute__((weak)) void encode(const Context& context, IndexCode code, IndexRange range,
                                  std::span<const Index> indices, std::span<std::byte> out) {
  throw ContractError("no CUDA body yet: encode");
}
__attribute__((weak)) void decode(const Context& context, IndexCode code, IndexRange range,
                                  std::span<const std::byte> bytes, std::span<Index> indices) {
  throw ContractError("no CUDA body yet: decode");
}
__attribute__((weak)) void locate(const Context& context, std::span<const Index> indices,
                                  IndexRange range, std::span<Index> bounds) {
  throw ContractError("no CUDA body yet: locate");
}
__attribute__((weak)) void locate_in_groups(const Context& context, std::span<const Index> indices,
                                            std::span<const Index> group_begin, IndexRange range,
                                            std::span<Index> bounds) {
  throw ContractError("no CUDA body yet: locate_in_groups");
}
__attribute__((weak)) void find_places(const Context& context, std::span<const Index> set,
                                       std::span<const Index> rows, std::span<Index> places,
                                       Count found) {
  throw ContractError("no CUDA body yet: find_places");
}
__attribute__((weak)) void choose_owners(const Context& context, std::span<const Index> united,
                                         std::span<const std::span<const Index>> touched,
                                         std::span<std::int32_t> owners,
                                         OwnersWorkspace& workspace) {
  throw ContractError("no CUDA body yet: choose_owners");
}
__attribute__((weak)) void order_by_owner(const Context& context,
                                          std::span<const std::int32_t> owners,
                                          std::span<const Index> places, std::span<Index> order,
                                          std::span<Index> begin) {
  throw ContractError("no CUDA body yet: order_by_owner");
}
__attribute__((weak)) void rows_of_owner(const Context& context,
                                         std::span<const std::int32_t> owners,
                                         std::span<const Index> rows, std::span<const Index> places,
                                         std::int32_t owner, std::span<Index> out, Count count) {
  throw ContractError("no CUDA body yet: rows_of_owner");
}
__attribute__((weak)) void partition(const Context& context, const RowGroups& groups,
                                     std::span<const Index> rows, std::span<Index> positions,
                                     std::span<Index> sources, std::span<Index> group_begin,
                                     SortWorkspace& workspace) {
  throw ContractError("no CUDA body yet: partition");
}
__attribute__((weak)) void rows_at(const Context& context, const RowGroups& groups, Index group,
                                   std::span<const Index> positions, std::span<Index> rows) {
  throw ContractError("no CUDA body yet: rows_at");
}
__attribute__((weak)) void find_groups(const Context& context, const RowGroups& groups,
                                       std::span<const Index> rows,
                                       std::span<std::int32_t> groups_of) {
  throw ContractError("no CUDA body yet: find_groups");
}
__attribute__((weak)) void divide_evenly(const Context& context, const EvenRanges& ranges,
                                         std::span<const Index> rows, std::span<Index> indices,
                                         std::span<Index> range_begin) {
  throw ContractError("no CUDA body yet: divide_evenly");
}
__attribute__((weak)) void sort_keys(const Context& context, std::span<Index> keys, Index bound,
                                     SortWorkspace& workspace) {
  throw ContractError("no CUDA body yet: sort_keys");
}
__attribute__((weak)) void sort_with_order(const Context& context, std::span<Index> keys,
                                           std::span<Index> order, Index bound,
                                           SortWorkspace& workspace) {
  throw ContractError("no CUDA body yet: sort_with_order");
}
}  // namespace sparsesync::cuda
