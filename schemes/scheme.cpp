#include "schemes/scheme.h"

#include "schemes/transport.h"
#include "sparsesync/errors.h"

namespace sparsesync {

Scheme::Scheme(const SchemeEnvironment& environment)
    : Scheme(environment, row_spaces(environment.bucket->tensors)) {}

Scheme::Scheme(const SchemeEnvironment& environment, std::vector<RowSpace> spaces)
    : context_(environment.context),
      spaces_(std::move(spaces)),
      rank_(environment.rank),
      size_(environment.size),
      rounds_(environment.bucket->rounds.value_or(1)),
      scale_(environment.bucket->reduction == Reduction::mean ? 1.0 / size_ : 1.0),
      results_(spaces_.size()) {}

void Scheme::announce(Exchange&, BucketInput&) {
  throw ContractError("announced rows for a scheme that does not use them");
}

bool Scheme::list_owned(std::vector<OwnedPart>&) const {
  return false;
}

std::vector<SpaceChoice> Scheme::choices() const {
  return std::vector<SpaceChoice>(spaces_.size());
}

void Traffic::message(Rank from, Rank to, std::int64_t payload) {
  payload_sent[from.index()] += payload;
  payload_received[to.index()] += payload;
  ++messages_sent[from.index()];
}

void Traffic::all_reduce(std::int64_t bytes) {
  const std::int64_t moved = all_reduce_bytes(bytes, static_cast<int>(payload_sent.size()));
  for (std::int64_t& sent : payload_sent) sent += moved;
  for (std::int64_t& received : payload_received) received += moved;
}

}  // namespace sparsesync
