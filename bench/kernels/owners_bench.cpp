// Chooses the owners of a million rows among 16 workers: from given indices into the union, and
// from the workers' index sets.
#include "kernels/partition/owners.h"

#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "kernels/base/bits.h"
#include "kernels/rows/aggregate.h"

namespace sparsesync::bench {
namespace {

constexpr std::size_t kWorkers = 16;

/// Returns the workers' sets. One row in a hundred is in all sets. Each other row is in at least
/// one set; the second argument is the average number of its sets.
std::vector<std::vector<Index>> sets_of(std::span<const Index> united, Index touchers) {
  std::vector<std::vector<Index>> sets(kWorkers);
  for (const Index row : united) {
    const std::uint64_t random = mix64(kSeed ^ static_cast<std::uint64_t>(row));
    const bool hot = random % 100 == 0;
    for (std::size_t worker = 0; worker < kWorkers; ++worker) {
      const std::uint64_t draw = mix64(random + worker) % (kWorkers - 1);
      const bool forced = (random >> 32U) % kWorkers == worker;
      if (hot || forced || draw < static_cast<std::uint64_t>(touchers - 1)) {
        sets[worker].push_back(row);
      }
    }
  }
  return sets;
}

/// Whether every owner touched its row.
bool are_touchers(std::span<const std::vector<Index>> places,
                  std::span<const std::int32_t> owners) {
  std::vector<bool> owned(owners.size());
  for (std::size_t worker = 0; worker < places.size(); ++worker) {
    for (const Index place : places[worker]) {
      const auto at = static_cast<std::size_t>(place);
      if (owners[at] == static_cast<std::int32_t>(worker)) owned[at] = true;
    }
  }
  return std::accumulate(owned.begin(), owned.end(), std::size_t{0}) == owners.size();
}

/// @param from_sets  whether the time includes building the union and the indices into it
void measure(benchmark::State& state, bool from_sets) {
  Workplace workplace(1);
  const std::vector<Index> rows = distinct_rows(kRows, sized(state.range(0)));
  const std::vector<std::vector<Index>> sets = sets_of(rows, state.range(1));
  const std::span<const Index> rows_there = workplace.place(rows);
  std::vector<std::span<const Index>> views;
  std::vector<PlacesJob> jobs;
  std::vector<std::span<const Index>> touched;
  Index touches = 0;
  for (const std::vector<Index>& set : sets) {
    views.emplace_back(workplace.place(set));
    jobs.push_back({views.back(), workplace.room<Index>(set.size())});
    touched.emplace_back(jobs.back().places);
    touches += std::ssize(set);
  }
  AggregateWorkspace aggregate_workspace(workplace.context());
  OwnersWorkspace workspace(workplace.context());
  const std::span<Index> united = workplace.room<Index>(static_cast<std::size_t>(touches));
  const std::span<Index> counts = workplace.room<Index>(sets.size() + 1);
  const std::span<std::int32_t> owners = workplace.room<std::int32_t>(rows.size());
  find_places_all(workplace.context(), rows_there, jobs, counts.first(sets.size()));
  workplace.measure(state, [&] {
    if (from_sets) {
      unite(workplace.context(), {0, kRows}, views, united, Count(&counts.back()),
            aggregate_workspace);
      find_places_all(workplace.context(), united.first(rows.size()), jobs,
                      counts.first(sets.size()));
    }
    choose_owners(workplace.context(), rows_there, touched, owners, workspace);
  });
  std::vector<std::vector<Index>> places;
  for (const std::span<const Index> of_worker : touched) {
    places.push_back(workplace.fetch(of_worker));
  }
  if (!are_touchers(places, workplace.fetch(owners))) {
    state.SkipWithError("an owner that did not touch its row");
  }
  set_rates(state, std::ssize(rows), touches * static_cast<Index>(sizeof(Index)));
}

void choose_from_places(benchmark::State& state) {
  measure(state, false);
}
void choose_from_sets(benchmark::State& state) {
  measure(state, true);
}

const std::vector<std::vector<std::int64_t>> kInputs{{1'000'000},
                                                     {3, static_cast<Index>(kWorkers)}};
BENCHMARK(choose_from_places)->ArgNames({"rows", "touchers"})->ArgsProduct(kInputs)->Apply(timed);
BENCHMARK(choose_from_sets)->ArgNames({"rows", "touchers"})->ArgsProduct(kInputs)->Apply(timed);

}  // namespace
}  // namespace sparsesync::bench
