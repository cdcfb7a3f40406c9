// CPU implementations of hash bitmap domains.
#include "kernels/partition/hash_bitmap.h"

#include <algorithm>
#include <numeric>

namespace sparsesync {
namespace {

template <typename Stored>
std::span<const Stored> part(const Buffer<Stored>& entries, const HashDomains& domains,
                             Index partition) {
  return {entries.data() + domains.begin[static_cast<std::size_t>(partition)],
          static_cast<std::size_t>(domains.size(partition))};
}

/// Calls `body` with the domain of a partition.
template <typename Body>
decltype(auto) with_domain(const HashDomains& domains, Index partition, Body&& body) {
  if (domain_entry_bytes(domains.begin.back()) == 4) {
    return body(part(domains.narrow, domains, partition));
  }
  return body(part(domains.wide, domains, partition));
}

template <typename Stored>
void fill_domains(const RowHash& hash, std::span<const Index> begin, std::span<Stored> entries) {
  std::vector<Index> next(begin.begin(), begin.end());
  for (Index row = 0; row < std::ssize(entries); ++row) {
    Index& place = next[static_cast<std::size_t>(hash.partition(row))];
    entries[static_cast<std::size_t>(place++)] = static_cast<Stored>(row);
  }
}

}  // namespace

namespace cpu {

void build_domains(const Context&, const RowHash& hash, Index rows, HashDomains& domains) {
  // Allocate first, so that a budget error precedes the work.
  const bool narrow = domain_entry_bytes(rows) == 4;
  const auto narrow_entries = domains.narrow.reserve_exactly(narrow ? rows : 0);
  const auto wide_entries = domains.wide.reserve_exactly(narrow ? 0 : rows);
  domains.begin.assign(static_cast<std::size_t>(hash.partitions()) + 1, 0);
  for (Index row = 0; row < rows; ++row) {
    ++domains.begin[static_cast<std::size_t>(hash.partition(row)) + 1];
  }
  std::partial_sum(domains.begin.begin(), domains.begin.end(), domains.begin.begin());
  if (narrow) {
    fill_domains(hash, domains.begin, narrow_entries);
  } else {
    fill_domains(hash, domains.begin, wide_entries);
  }
}

void positions_in_domain(const Context&, const HashDomains& domains, Index partition,
                         std::span<const Index> rows, std::span<Index> positions) {
  SPARSESYNC_EXPECT(rows.size(), ==, positions.size());
  with_domain(domains, partition, [&](auto domain) {
    auto from = domain.begin();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<std::uint64_t>(rows[i]);
      from = std::lower_bound(from, domain.end(), row);
      if (from == domain.end() || *from != row) {
        throw CorruptDataError("a row does not belong to this partition");
      }
      positions[i] = from - domain.begin();
    }
  });
}

void rows_in_domain(const Context&, const HashDomains& domains, Index partition,
                    std::span<const Index> positions, std::span<Index> rows) {
  SPARSESYNC_EXPECT(rows.size(), ==, positions.size());
  with_domain(domains, partition, [&](auto domain) {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      rows[i] = static_cast<Index>(domain[static_cast<std::size_t>(positions[i])]);
    }
  });
}

void count_below(const Context&, const HashDomains& domains, std::span<const Index> rows,
                 std::span<Index> places) {
  const std::size_t partitions = domains.begin.size() - 1;
  SPARSESYNC_EXPECT(places.size(), ==, partitions * rows.size());
  for (std::size_t partition = 0; partition < partitions; ++partition) {
    with_domain(domains, static_cast<Index>(partition), [&](auto domain) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto found =
            std::lower_bound(domain.begin(), domain.end(), static_cast<std::uint64_t>(rows[i]));
        places[partition * rows.size() + i] = found - domain.begin();
      }
    });
  }
}

}  // namespace cpu
}  // namespace sparsesync
