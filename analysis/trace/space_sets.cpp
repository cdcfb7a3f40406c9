#include "analysis/trace/space_sets.h"

#include <utility>

namespace sparsesync {

std::vector<OwnedIndexSets> tensor_sets(const Trace& trace, int step) {
  std::vector<OwnedIndexSets> of_tensors(trace.header().tensors.size());
  for (const Rank worker : Ranks(trace.header().workers)) {
    std::vector<TracePart> parts = trace.load_indices(worker, step);
    for (std::size_t tensor = 0; tensor < parts.size(); ++tensor) {
      std::vector<Index>& rows = parts[tensor].indices;
      make_distinct(rows);
      of_tensors[tensor].push_back(std::move(rows));
    }
  }
  return of_tensors;
}

std::vector<OwnedIndexSets> space_sets(const std::vector<OwnedIndexSets>& of_tensors,
                                       std::span<const RowSpace> spaces) {
  std::vector<OwnedIndexSets> of_spaces;
  for (const RowSpace& space : spaces) {
    OwnedIndexSets& sets = of_spaces.emplace_back(of_tensors.front().size());
    for (const RowSpace::Member& member : space.members) {
      for (std::size_t worker = 0; worker < sets.size(); ++worker) {
        for (const Index row : of_tensors[member.tensor][worker]) {
          sets[worker].push_back(row + member.first_row);
        }
      }
    }
  }
  return of_spaces;
}

}  // namespace sparsesync
