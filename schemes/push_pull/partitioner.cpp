#include "schemes/push_pull/partitioner.h"

#include "sparsesync/schemes.h"

namespace sparsesync {

SpaceChoice Placement::choice() const {
  return {codes_.push ? std::string(name_of(*codes_.push)) : std::string(), grid_.row_groups,
          grid_.column_slices};
}

IndexRange Placement::share(Round round, Rank server) const {
  const IndexRange all = range(round, group_of(server));
  return Round{grid_.slice_of(server), grid_.column_slices}.part_of(all);
}

SectionSpec Placement::push_section(Round round, Rank server) const {
  const IndexRange all = range(round, group_of(server));
  return {all, all.size(), slice_bytes(), codes_.push, codes_.densifies};
}

SectionSpec Placement::pull_section(Round round, Rank server) const {
  const int group = group_of(server);
  return {pulled(group, share(round, server)), pulled(group, range(round, group)).size(),
          slice_bytes(), codes_.pull, codes_.densifies};
}

}  // namespace sparsesync
