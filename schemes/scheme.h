// The interface of schemes: how workers synchronize one bucket, in two phases. A scheme is written
// once for all devices and transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/context.h"
#include "schemes/bucket.h"
#include "schemes/pattern.h"
#include "schemes/statistics.h"
#include "sparsesync/rank.h"
#include "sparsesync/schemes.h"

namespace sparsesync {

/// Exact payload bytes and message counts of each worker, by rank.
struct Traffic {
  explicit Traffic(int size)
      : payload_sent(static_cast<std::size_t>(size)),
        payload_received(static_cast<std::size_t>(size)),
        messages_sent(static_cast<std::size_t>(size)) {}
  std::vector<std::int64_t> payload_sent;
  std::vector<std::int64_t> payload_received;
  std::vector<std::int64_t> messages_sent;  // each message also has a header of kHeaderBytes

  /// Adds a message with `payload` bytes.
  void message(Rank from, Rank to, std::int64_t payload);
  /// Adds a native all-reduce of `bytes` bytes, in which all workers take part.
  void all_reduce(std::int64_t bytes);
};

/// The result of all workers for one row space, with rows numbered in the row space. A view of the
/// scheme's memory, valid until the bucket's next reduce phase begins.
struct SpaceResult {
  Gradient::Layout layout = Gradient::Layout::row_sparse;
  std::span<const Index> indices;  // increasing; empty if dense
  ConstMatrix values;              // one row per index; all rows if dense
};

/// Values of a worker's owned partition after the reduce phase: whole rows of a row space, or
/// parts of rows. A view of the scheme's memory, valid until the bucket's next reduce phase begins.
struct OwnedPart {
  std::size_t space = 0;
  ConstMatrix values;
};

/// Imbalance of a mapping of rows to servers (Zen, OSDI 2025, Definition 8). 1 is perfect balance.
struct Imbalance {
  double push = 1;
  double pull = 1;
};

class BucketInput;  // in schemes/bucket_input.h
class Exchange;     // in schemes/exchange.h

/// Arguments for constructing a scheme. A view.
struct SchemeEnvironment {
  Context context;
  const BucketSpec* bucket = nullptr;
  Rank rank;
  int size = 1;
  std::uint64_t seed = 0;
  /// Whether a step that a worker rejects for lack of memory is retried with more rounds.
  bool more_rounds_may_help = false;
};

/// Constructs a `Kind` for each row space of the bucket, from the row space, its index in the
/// bucket and the environment.
template <typename Kind, typename Base>
std::vector<std::unique_ptr<Base>> of_each_space(const SchemeEnvironment& environment) {
  std::vector<std::unique_ptr<Base>> made;
  for (const RowSpace& space : row_spaces(environment.bucket->tensors)) {
    made.push_back(std::make_unique<Kind>(space, static_cast<int>(made.size()), environment));
  }
  return made;
}

/// Runs a scheme for one bucket on one worker. Owns its workspace, which grows only if the
/// gradients become denser.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// Returns the messages of one round of a phase. Empty for a single worker. Phase::announce is
  /// passed only for buckets that announce.
  virtual Pattern pattern(Phase phase) const = 0;
  /// Returns the messages to each worker in one step of a phase: 2 if a message is sent as head and
  /// body (Exchange::step()).
  virtual std::size_t pieces(Phase /*phase*/, Round /*round*/, std::size_t /*step*/) const {
    return 1;
  }

  /// Runs one round of the announce phase, after which all workers know the rows that each may
  /// touch. Called for buckets that announce, if the scheme's entry lists that option.
  /// @param exchange  the network
  /// @param rows      row indices without values
  /// @throws ContractError if the scheme does not use announced rows
  virtual void announce(Exchange& exchange, BucketInput& rows);

  /// Runs one round of the reduce phase, after which each owner has the sums of its partition.
  /// @throws BudgetError, CorruptDataError, and the errors of Exchange::step()
  virtual void reduce(Exchange& exchange, BucketInput& input) = 0;
  /// Runs one round of the gather phase, after which all workers have all sums of the round.
  /// result() is valid after the last round.
  virtual void gather(Exchange& exchange) = 0;

  /// Lists this worker's owned partition after the last round of the reduce phase. Its values have
  /// the same bits as the later result. The partitions of all workers together contain each value
  /// of the result once.
  /// @param parts  appended to
  /// @return whether workers own a partition before the gather phase; the same on all workers
  virtual bool list_owned(std::vector<OwnedPart>& parts) const;

  /// Returns the result for each row space of the bucket, after the last round of the gather phase.
  std::span<const SpaceResult> result() const { return results_; }

  /// Returns the number of rows of a row space that any worker touched in this step, for schemes
  /// with a dense result. Nothing if the scheme does not know.
  virtual std::optional<Index> united(std::size_t /*space*/) const { return std::nullopt; }

  /// Chooses the scheme's options again from statistics. All workers pass the same statistics and
  /// get the same choice.
  virtual void adapt(const Statistics& /*statistics*/) {}
  /// Returns the choices for each row space.
  virtual std::vector<SpaceChoice> choices() const;

  /// Returns the exact traffic of one step.
  /// @param sets  [row space]: the workers' index sets
  virtual Traffic traffic(std::span<const IndexSets> sets) const = 0;
  /// Returns the imbalance of the servers. Nothing if the scheme has no servers.
  virtual std::optional<Imbalance> imbalance(std::span<const IndexSets> /*sets*/) const {
    return std::nullopt;
  }

 protected:
  /// Copies the common settings. The bucket need not outlive the call.
  explicit Scheme(const SchemeEnvironment& environment);
  /// Does the same for row spaces that differ from the bucket's.
  Scheme(const SchemeEnvironment& environment, std::vector<RowSpace> spaces);

  const Context context_;
  const std::vector<RowSpace> spaces_;
  const Rank rank_;
  const int size_;
  const int rounds_;
  const double scale_;                // factor applied once to each sum: 1, or 1/n for a mean
  std::vector<SpaceResult> results_;  // [row space]
};

}  // namespace sparsesync
