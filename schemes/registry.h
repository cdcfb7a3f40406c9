// The schemes that exist: what is known of each without making one, and where it is looked up.
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

enum class Aggregation : std::uint8_t { incremental, one_shot };
enum class Partition : std::uint8_t { centralization, parallelism };
enum class Balance : std::uint8_t { balanced, imbalanced, none };
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

/// A scheme's row.
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

/// @throws InputError if there is none of that name; the text lists those that exist
Communication communication_named(std::string_view name);

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

  /// Whether it is one of them.
  constexpr bool has(SchemeOption option) const { return (bits_ & bit(option)) != 0; }
  /// Those of another set, too.
  constexpr void add(SchemeOptionSet others) { bits_ |= others.bits_; }
  /// Not that one, whether it was there or not.
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

/// A SchemeEntry's `create` of a scheme that is made from the environment alone.
template <typename Kind>
std::unique_ptr<Scheme> make_scheme(const SchemeEnvironment& environment) {
  return std::make_unique<Kind>(environment);
}

/// Adds a scheme to those that exist; each does so at the foot of its own file.
/// @throws ContractError if there is one of that name
class SchemeRegistration {
 public:
  explicit SchemeRegistration(const SchemeEntry& entry);
};

/// All that exist, by name.
std::vector<SchemeEntry> all_schemes();
/// @throws InputError if there is none of that name; the text lists those that exist
SchemeEntry scheme_named(std::string_view name);

}  // namespace sparsesync
