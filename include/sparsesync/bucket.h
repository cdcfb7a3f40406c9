// Buckets: tensors that are synchronized together, and the settings that all workers agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sparsesync/gradient.h"

namespace sparsesync {

/// Names a communication pattern of schemes that support several: `ring` forwards messages around
/// a ring of all workers, `hierarchy` takes log2(n) steps, and `point_to_point` takes one.
enum class Communication : std::uint8_t { ring, hierarchy, point_to_point };

/// Names how the workers' gradients are combined. `mean` divides the sum by the number of workers.
enum class Reduction : std::uint8_t { sum, mean };

/// Options of schemes. A scheme ignores the options that do not apply to it.
struct SchemeOptions {
  /// Pattern of messages that all workers receive: the rows of `all_gather`, and the sums of the
  /// split schemes.
  Communication pattern = Communication::ring;
  /// Elements per block of `block_ps`.
  Index block = 256;
  /// Workers per node for `two_level`; their ranks are consecutive. 0: as the transport reports.
  int workers_per_node = 0;
  /// Scheme that `two_level` runs between nodes.
  std::string between_nodes = "balanced";
  /// Wire type of values, if narrower than the tensor's dtype: f32, f16 or bf16. Nothing: no
  /// conversion.
  ///
  /// Each worker's rows are rounded to the wire type. Sums over workers are computed in f32 and
  /// rounded once. Schemes that send partial sums round them at each worker on the path.
  std::optional<DType> wire = std::nullopt;
};

/// Largest number of rounds of a phase. More rounds save almost no memory, because the data of a
/// single round is then much smaller than the data that all rounds keep.
inline constexpr int kMostRounds = 64;

/// Describes a bucket. All workers pass the same description to Session::register_bucket().
/// @code
/// BucketSpec spec;
/// spec.name = "embeddings";
/// spec.tensors = {{"words", 50'000, 64, DType::f32}, {"users", 1'000'000, 16, DType::f32}};
/// spec.reduction = Reduction::mean;
/// const BucketId bucket = session.register_bucket(spec);
/// @endcode
struct BucketSpec {
  std::string name;                 ///< identifies the bucket in messages
  std::vector<TensorSpec> tensors;  ///< one or more
  std::string scheme = "balanced";  ///< a name of schemes(), or "auto"
  Reduction reduction = Reduction::sum;
  /// Rounds that each phase is divided into. More rounds need less memory for messages. Nothing:
  /// one round, and more, up to kMostRounds, once a step exceeds some worker's memory; see Session.
  std::optional<int> rounds = std::nullopt;
  SchemeOptions options = {};
  /// Whether each step announces the rows that it may touch before their values exist. Then only
  /// values are sent once the gradients are ready. See Session::announce().
  bool announce = false;
  /// Whether to count infinities and NaNs in the sums when values are sent in the tensor's dtype;
  /// see Session::non_finite(). May differ between workers.
  bool count_non_finite = false;
};

/// Names a phase of a step. A bucket with `announce` first sends the indices of its rows. The
/// reduce phase and the gather phase of its scheme follow.
enum class Phase : std::uint8_t { announce, reduce, gather };
/// Number of phases.
inline constexpr std::size_t kPhases = 3;
/// Returns "announce", "reduce" or "gather".
const char* name_of(Phase phase);

/// Identifies a registered bucket of a session.
struct BucketId {
  std::size_t value = 0;
  friend bool operator==(BucketId, BucketId) = default;
};

/// An entry of the order in which a session runs phases; see Session::set_order().
struct OrderEntry {
  BucketId bucket;
  Phase phase = Phase::reduce;
  friend bool operator==(OrderEntry, OrderEntry) = default;
};

}  // namespace sparsesync
