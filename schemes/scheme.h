// A scheme: how one bucket crosses the workers, in two phases. Written once, for every device and
// transport.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/context.h"
#include "kernels/index_code.h"
#include "schemes/bucket.h"
#include "schemes/design_space.h"
#include "schemes/exchange.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// What every worker ends with, for one row space: rows numbered in the row space. A view of the
/// scheme's memory, valid until the bucket's next reduce phase begins.
struct SpaceResult {
  Gradient::Layout layout = Gradient::Layout::row_sparse;
  std::span<const Index> indices;  // increasing; none where dense
  ConstMatrix values;              // a row for each index; all rows where dense
};

/// What a scheme chose for one row space; nothing where a scheme has no such choice.
struct SpaceChoice {
  std::string index_code;  // empty where no indices cross
  std::optional<int> row_groups;
  std::optional<int> column_slices;
};

/// How unevenly a mapping spreads rows over servers (Zen, Definitions 5 and 6): 1 is perfect.
struct Imbalance {
  double push = 1;
  double pull = 1;
};

/// A scheme at work for one bucket on one worker. Owns its workspace, which grows only when
/// sparsity does.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// The messages of one round of a phase; empty on one worker. That of Phase::announce is asked
  /// of buckets that announce alone.
  virtual Pattern pattern(Phase phase) const = 0;

  /// One round of the phase after which all workers know which rows each of them may touch. Asked
  /// of buckets that announce, of schemes whose entry says that they use it.
  /// @param rows  their values are not there
  virtual void announce(Exchange& exchange, BucketInput& rows);

  /// One round of the phase after which each owner has the sum of its part.
  /// @throws BudgetError, what Exchange::step() throws, CorruptDataError
  virtual void reduce(Exchange& exchange, BucketInput& input) = 0;
  /// One round of the phase after which all workers have all sums.
  virtual void gather(Exchange& exchange) = 0;

  /// After the last round of the gather phase, one for each row space.
  virtual std::span<const SpaceResult> result() const = 0;

  /// Rows of a row space that some worker touched in this step, as far as the scheme knows, where
  /// its result is dense and does not say. Nothing where it does not know.
  virtual std::optional<Index> united(std::size_t /*space*/) const { return std::nullopt; }

  /// Chooses anew from statistics that all workers agree on; the same choice on all of them.
  virtual void adapt(const Statistics& statistics) = 0;
  virtual std::vector<SpaceChoice> choices() const = 0;

  /// Exactly what crosses in one step, from the workers' index sets, one IndexSets for each row
  /// space.
  virtual Traffic traffic(std::span<const IndexSets> sets) const = 0;
  /// Nothing where the scheme has no servers.
  virtual std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const = 0;
};

/// What a scheme is made for. A view.
struct SchemeEnvironment {
  Context context;
  const BucketSpec* bucket = nullptr;
  Rank rank;
  int size = 1;
  std::uint64_t seed = 0;
};

/// What a bucket's sums are multiplied by, once: 1, or 1/n for a mean.
double scale_of(const SchemeEnvironment& environment);

/// A worker's number counted on around the ring, from any whole number.
constexpr int around_ring(int number, int size) {
  return ((number % size) + size) % size;
}

/// What a cost is asked for. A view.
struct Workload {
  std::span<const RowSpace> spaces;
  int size = 1;
  const Statistics& statistics;
  SchemeOptions options = {};
};

/// What can be chosen and not every scheme heeds: of SchemeOptions, and whether rows are announced.
enum class SchemeOption : std::uint8_t {
  pattern,
  block,
  workers_per_node,
  between_nodes,
  announce
};
inline constexpr std::array kSchemeOptions{SchemeOption::pattern, SchemeOption::block,
                                           SchemeOption::workers_per_node,
                                           SchemeOption::between_nodes, SchemeOption::announce};

/// As the command line has it, without dashes in front: "workers-per-node".
std::string_view name_of(SchemeOption option);

/// Some of them.
class SchemeOptionSet {
 public:
  constexpr SchemeOptionSet(std::initializer_list<SchemeOption> options) {
    for (const SchemeOption option : options) bits_ |= bit(option);
  }

  constexpr bool has(SchemeOption option) const { return (bits_ & bit(option)) != 0; }
  constexpr void add(SchemeOptionSet others) { bits_ |= others.bits_; }
  constexpr void remove(SchemeOption option) { bits_ &= ~bit(option); }

 private:
  static constexpr unsigned bit(SchemeOption option) { return 1U << static_cast<unsigned>(option); }

  unsigned bits_ = 0;
};

/// A scheme as the registry knows it.
struct SchemeEntry {
  std::string_view name;
  std::string_view summary;  // one line
  DesignSpace design;
  std::unique_ptr<Scheme> (*create)(const SchemeEnvironment& environment);
  /// The cost in one step, as expected from statistics, at the scheme's best choices.
  Cost (*cost)(const Workload& workload);
  /// Bytes of workspace that a worker needs beyond its input, as expected from statistics.
  double (*workspace_bytes)(const Workload& workload);
  /// Whether it asks the transport for its own all-reduce: then it needs one that has it, and the
  /// order of summation, and so the bits, are that network's.
  bool all_reduces = false;
  /// What it heeds itself: a pattern is any of kCommunications, announced rows are index sets that
  /// cross ahead of the values.
  SchemeOptionSet heeds = {};
  /// Looks at the options that the scheme heeds; null where all are fine.
  /// @throws InputError if one does not fit so many workers
  void (*check)(const SchemeOptions& options, int size) = nullptr;
};

/// Whether a scheme heeds an option, given the others: where it has another scheme do a part, that
/// one's options count.
/// @throws InputError if there is no such other scheme
bool heeds(const SchemeEntry& entry, SchemeOption option, const SchemeOptions& options);

/// Adds a scheme to those that exist; each does so at the foot of its own file.
class SchemeRegistration {
 public:
  explicit SchemeRegistration(const SchemeEntry& entry);
};

/// All that exist, by name.
std::vector<SchemeEntry> all_schemes();
/// @throws InputError if there is none of that name; the text lists those that exist
SchemeEntry scheme_named(std::string_view name);

/// The expected share of statistics that one of `parts` servers has at most, over the mean:
/// binomial spread of `rows` rows over `parts`, those of a universe of `universe` being drawn
/// without replacement.
double expected_imbalance(double rows, double universe, int parts);

}  // namespace sparsesync
