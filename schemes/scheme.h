// A scheme: how one bucket crosses the workers, in two phases. Written once, for every device and
// transport.
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

/// Payloads and messages of each worker, by rank.
struct Traffic {
  explicit Traffic(int size)
      : payload_sent(static_cast<std::size_t>(size)),
        payload_received(static_cast<std::size_t>(size)),
        messages_sent(static_cast<std::size_t>(size)) {}
  std::vector<std::int64_t> payload_sent;
  std::vector<std::int64_t> payload_received;
  std::vector<std::int64_t> messages_sent;  // each has a header of kHeaderBytes

  /// One message more, of so many bytes of payload.
  void message(Rank from, Rank to, std::int64_t payload);
  /// All workers: the network's own all-reduce of so many bytes, as it is counted.
  void all_reduce(std::int64_t bytes);
};

/// What every worker ends with, for one row space: rows numbered in the row space. A view of the
/// scheme's memory, valid until the bucket's next reduce phase begins.
struct SpaceResult {
  Gradient::Layout layout = Gradient::Layout::row_sparse;
  std::span<const Index> indices;  // increasing; none where dense
  ConstMatrix values;              // a row for each index; all rows where dense
};

/// Values of the result that a worker owns once sums are made: whole rows of a row space, or parts
/// of some. A view of the scheme's memory, valid until the bucket's next reduce phase begins.
struct OwnedPart {
  std::size_t space = 0;
  ConstMatrix values;
};

/// How unevenly a mapping spreads rows over servers (Zen, Definitions 5 and 6): 1 is perfect.
struct Imbalance {
  double push = 1;
  double pull = 1;
};

class BucketInput;  // schemes/bucket_input.h
class Exchange;     // schemes/exchange.h

/// What a scheme is made for. A view.
struct SchemeEnvironment {
  Context context;
  const BucketSpec* bucket = nullptr;
  Rank rank;
  int size = 1;
  std::uint64_t seed = 0;
  /// Whether a step that is refused for want of memory is tried again in more rounds.
  bool more_rounds_may_help = false;
};

/// Of each row space of the bucket one `Kind`, made from the row space, its number in the bucket
/// and the environment.
template <typename Kind, typename Base>
std::vector<std::unique_ptr<Base>> of_each_space(const SchemeEnvironment& environment) {
  std::vector<std::unique_ptr<Base>> made;
  for (const RowSpace& space : row_spaces(environment.bucket->tensors)) {
    made.push_back(std::make_unique<Kind>(space, static_cast<int>(made.size()), environment));
  }
  return made;
}

/// A scheme at work for one bucket on one worker. Owns its workspace, which grows only when
/// sparsity does.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// The messages of one round of a phase; empty on one worker. That of Phase::announce is asked
  /// of buckets that announce alone.
  virtual Pattern pattern(Phase phase) const = 0;
  /// Messages to each worker of one step of a phase: 2 where it is in pieces (Exchange::step()).
  virtual std::size_t pieces(Phase /*phase*/, Round /*round*/, std::size_t /*step*/) const {
    return 1;
  }

  /// One round of the phase after which all workers know which rows each of them may touch. Asked
  /// of buckets that announce, of schemes whose entry says that they use it.
  /// @param rows  their values are not there
  /// @throws ContractError where the scheme uses none
  virtual void announce(Exchange& exchange, BucketInput& rows);

  /// One round of the phase after which each owner has the sum of its part.
  /// @throws BudgetError, what Exchange::step() throws, CorruptDataError
  virtual void reduce(Exchange& exchange, BucketInput& input) = 0;
  /// One round of the phase after which all workers have all sums: result() from the last one on.
  virtual void gather(Exchange& exchange) = 0;

  /// After the last round of the reduce phase: what this worker owns of the result, with the bits
  /// that all will have. What all workers own is the result, each value of it once.
  /// @param parts  appended to
  /// @return whether workers own something before the gather phase; the same on all of them
  virtual bool list_owned(std::vector<OwnedPart>& parts) const;

  /// After the last round of the gather phase, one for each row space of the bucket.
  std::span<const SpaceResult> result() const { return results_; }

  /// Rows of a row space that some worker touched in this step, as far as the scheme knows, where
  /// its result is dense and does not say. Nothing where it does not know.
  virtual std::optional<Index> united(std::size_t /*space*/) const { return std::nullopt; }

  /// Chooses anew from statistics that all workers agree on; the same choice on all of them.
  virtual void adapt(const Statistics& /*statistics*/) {}
  /// One for each row space.
  virtual std::vector<SpaceChoice> choices() const;

  /// Exactly what crosses in one step, from the workers' index sets, one IndexSets for each row
  /// space.
  virtual Traffic traffic(std::span<const IndexSets> sets) const = 0;
  /// Nothing where the scheme has no servers.
  virtual std::optional<Imbalance> imbalance(std::span<const IndexSets> /*sets*/) const {
    return std::nullopt;
  }

 protected:
  /// Takes from the environment what every scheme needs; the bucket need not outlive the call.
  explicit Scheme(const SchemeEnvironment& environment);
  /// The same for row spaces that are not the bucket's own.
  Scheme(const SchemeEnvironment& environment, std::vector<RowSpace> spaces);

  const Context context_;
  const std::vector<RowSpace> spaces_;
  const Rank rank_;
  const int size_;
  const int rounds_;
  const double scale_;                // what sums are multiplied by, once: 1, or 1/n for a mean
  std::vector<SpaceResult> results_;  // [row space]
};

}  // namespace sparsesync
