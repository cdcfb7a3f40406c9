// A bucket: tensors that are synchronized together, and what all workers agree on about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sparsesync/gradient.h"

namespace sparsesync {

/// Names a communication pattern, for schemes that have the choice.
enum class Communication : std::uint8_t { ring, hierarchy, point_to_point };

enum class Reduction : std::uint8_t { sum, mean };

/// Options of schemes. Each scheme heeds those that mean something to it.
struct SchemeOptions {
  /// How messages go that all workers are to have: all_gather's rows, the split schemes' sums.
  Communication pattern = Communication::ring;
  /// Elements of a block of block_ps.
  Index block = 256;
  /// two_level: the workers of a node, which have consecutive ranks; 0: as the transport tells.
  int workers_per_node = 0;
  /// two_level: the scheme that crosses between nodes.
  std::string between_nodes = "balanced";
  /// Type that values are sent as, if narrower than their tensors: f32, f16 or bf16. Each
  /// worker's rows are rounded to it, sums over workers are made in f32 and rounded to it once;
  /// where partial sums cross, they are rounded to it at each worker that they pass.
  std::optional<DType> wire = std::nullopt;
};

/// More rounds are no help: what one of them moves is little beside what all of them keep.
inline constexpr int kMostRounds = 64;

/// Describes a bucket; all workers agree on it when the bucket is registered.
struct BucketSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  std::string scheme = "balanced";
  Reduction reduction = Reduction::sum;
  /// Full exchanges that each phase is cut into: less memory in flight for each. Nothing: one, and
  /// more, up to kMostRounds, once a step was too large for some worker's memory (Session).
  std::optional<int> rounds = std::nullopt;
  SchemeOptions options = {};
  /// Every step says which rows it may touch before it has their values.
  bool announce = false;
  /// Count what is infinite or not a number in the sums, also where they cross in their own type.
  /// Workers may differ in it.
  bool count_non_finite = false;
};

/// The phases of a step: a bucket that announces sends the indices of its rows ahead, then come the
/// two phases of its scheme.
enum class Phase : std::uint8_t { announce, reduce, gather };
inline constexpr std::size_t kPhases = 3;
/// "announce", "reduce", "gather".
const char* name_of(Phase phase);

/// Names a registered bucket of a session.
struct BucketId {
  std::size_t value = 0;
  friend bool operator==(BucketId, BucketId) = default;
};

/// One entry of the order in which phases are posted.
struct OrderEntry {
  BucketId bucket;
  Phase phase = Phase::reduce;
  friend bool operator==(OrderEntry, OrderEntry) = default;
};

}  // namespace sparsesync
