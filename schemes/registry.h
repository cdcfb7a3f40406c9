// The list of schemes: properties that are known without constructing a scheme, and lookup by name.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "schemes/cost.h"
#include "schemes/scheme.h"
#include "sparsesync/bucket.h"

namespace sparsesync {

/// Aggregation in Zen's design space: partial sums are added along the way (incremental), or all
/// values at once (one_shot).
enum class Aggregation : std::uint8_t { incremental, one_shot };
/// Partition in Zen's design space: a worker adds up whole tensors (centralization), or one
/// partition of them (parallelism).
enum class Partition : std::uint8_t { centralization, parallelism };
/// Balance in Zen's design space: whether the servers' partitions have equal sizes. `none` without
/// servers.
enum class Balance : std::uint8_t { balanced, imbalanced, none };
/// Index formats of messages.
enum class Format : std::uint8_t {
  dense,
  coo,
  coo_then_dense,
  blocks,
  coo_push_bitmap_pull,
  cheapest_code,
  values_alone,
  dense_then_sparse
};

inline constexpr std::array kCommunications{Communication::ring, Communication::hierarchy,
                                            Communication::point_to_point};

/// A scheme's position in Zen's design space.
struct DesignSpace {
  Communication communication;
  Aggregation aggregation;
  Partition partition;
  Balance balance;
  Format format;
};

/// @{

/// Returns the name in options, JSON and tables.
std::string_view name_of(Communication communication);
std::string_view name_of(Aggregation aggregation);
std::string_view name_of(Partition partition);
std::string_view name_of(Balance balance);
std::string_view name_of(Format format);
/// @}

/// Returns the communication pattern with this name.
/// @throws InputError if the name is unknown; the message lists the valid names
Communication communication_named(std::string_view name);

/// Options that only some schemes use: members of SchemeOptions, and BucketSpec::announce.
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

/// Returns the name of the command-line option without dashes, such as "workers-per-node".
std::string_view name_of(SchemeOption option);

/// A set of options.
class SchemeOptionSet {
 public:
  constexpr SchemeOptionSet(std::initializer_list<SchemeOption> options) {
    for (const SchemeOption option : options) bits_ |= bit(option);
  }

  /// Returns whether the set contains an option.
  constexpr bool has(SchemeOption option) const { return (bits_ & bit(option)) != 0; }
  /// Adds all options of another set.
  constexpr void add(SchemeOptionSet others) { bits_ |= others.bits_; }
  /// Removes an option, if present.
  constexpr void remove(SchemeOption option) { bits_ &= ~bit(option); }

 private:
  static constexpr unsigned bit(SchemeOption option) { return 1U << static_cast<unsigned>(option); }

  unsigned bits_ = 0;
};

/// Describes a scheme in the registry.
struct SchemeEntry {
  std::string_view name;
  std::string_view summary;  // a description of one line
  DesignSpace design;
  std::unique_ptr<Scheme> (*create)(const SchemeEnvironment& environment);
  /// Predicts the cost of one step from statistics, for the scheme's best choices.
  Cost (*cost)(const Workload& workload);
  /// Predicts the bytes of workspace that a worker needs beyond its input.
  double (*workspace_bytes)(const Workload& workload);
  /// Whether the scheme uses the transport's native all-reduce. It then needs a transport that has
  /// one, and the reduction order depends on the network.
  bool all_reduces = false;
  /// The options that the scheme itself uses. A scheme with `pattern` supports all of
  /// kCommunications. A scheme with `announce` uses index sets that are exchanged before the
  /// values.
  SchemeOptionSet heeds = {};
  /// Verifies the options that the scheme uses. Null if every value is valid.
  /// @throws InputError if an option does not fit the number of workers
  void (*check)(const SchemeOptions& options, int size) = nullptr;
};

/// Returns whether a scheme uses an option. Includes the options of the scheme that it runs between
/// nodes.
/// @throws InputError if the scheme between nodes is unknown
bool heeds(const SchemeEntry& entry, SchemeOption option, const SchemeOptions& options);

/// Implements SchemeEntry::create for a scheme that is constructed from the environment alone.
template <typename Kind>
std::unique_ptr<Scheme> make_scheme(const SchemeEnvironment& environment) {
  return std::make_unique<Kind>(environment);
}

/// Adds a scheme to the registry. Each scheme's file defines one static object of this class.
/// @throws ContractError if a scheme with the same name is registered
class SchemeRegistration {
 public:
  explicit SchemeRegistration(const SchemeEntry& entry);
};

/// Returns all schemes, sorted by name.
std::vector<SchemeEntry> all_schemes();
/// Returns the scheme with this name.
/// @throws InputError if the name is unknown; the message lists the valid names
SchemeEntry scheme_named(std::string_view name);

}  // namespace sparsesync
