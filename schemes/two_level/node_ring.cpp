#include "schemes/two_level/node_ring.h"

#include <array>

#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"

namespace sparsesync {

Index sum_bytes(const RowSpace& space) {
  return space.elements() * element_bytes(sum_dtype(space.dtype));
}

Pattern mapped(Pattern pattern, std::span<const Rank> members) {
  for (Step& step : pattern) {
    for (std::vector<Rank>* ranks : {&step.to, &step.from}) {
      for (Rank& rank : *ranks) rank = members[rank.index()];
    }
  }
  return pattern;
}

NodeRing::NodeRing(const Context& context, const Division& division, Rank worker, int rounds)
    : context_(context),
      division_(division),
      place_(division.nodes.place_of(worker)),
      packed_(context),
      landed_(context) {
  const Nodes& nodes = division.nodes;
  for (int place = 0; place < nodes.per_node(); ++place) {
    workers_.push_back(nodes.worker(nodes.node_of(worker), place));
  }
  Index row_bytes = 0;
  for (const RowSpace& space : spaces()) {
    sums_.emplace_back(context_).reserve_exactly(sum_bytes(space));
    values_.emplace_back(context_).reserve_exactly(space.is_own_sum() ? 0 : space.dense_bytes());
    row_bytes += sum_bytes(space) / space.rows;
  }
  // The first index has the longest ranges. Their parts in different rounds differ by at most one
  // row.
  const Index most = bytes_of(Kind::sum, 0, {0, 1}) / rounds + row_bytes;
  landed_.reserve_exactly(most);
  if (spaces().size() > 1) packed_.reserve_exactly(most);
}

int NodeRing::around(int place) const {
  return ring_neighbour(Rank{0}, place, division_.nodes.per_node()).value;
}

Pattern NodeRing::pattern() const {
  return mapped(around_the_ring(Rank{place_}, division_.nodes.per_node()), workers_);
}

Matrix NodeRing::values(std::size_t space) const {
  const RowSpace& shape = spaces()[space];
  // Uses the array of sums if sums have the values' dtype.
  return {shape.is_own_sum() ? sums_[space].data() : values_[space].data(), shape.dtype, shape.rows,
          shape.width};
}

Matrix NodeRing::piece(Kind kind, std::size_t space, int place, Round round) const {
  Matrix all = values(space);
  if (kind == Kind::sum) {
    all.data = sums_[space].data();
    all.dtype = sum_dtype(all.dtype);
  }
  const IndexRange rows = division_.rows(space, place, round);
  all.data += rows.begin * all.row_bytes();
  all.rows = rows.size();
  return all;
}

Matrix NodeRing::sums(std::size_t space, int place, Round round) const {
  return piece(Kind::sum, space, place, round);
}

Index NodeRing::bytes_of(Kind kind, int place, Round round) const {
  Index bytes = 0;
  for (std::size_t i = 0; i < spaces().size(); ++i) bytes += piece(kind, i, place, round).bytes();
  return bytes;
}

/// Returns the data without a copy if there is one row space.
Payload NodeRing::pack(Kind kind, int place, Round round) {
  const Index bytes = bytes_of(kind, place, round);
  if (spaces().size() == 1) return {piece(kind, 0, place, round).data, bytes};
  std::byte* to = packed_.data();
  for (std::size_t i = 0; i < spaces().size(); ++i) {
    const Matrix from = piece(kind, i, place, round);
    copy(context_, from.as_bytes(), to);
    to += from.bytes();
  }
  return {packed_.data(), bytes};
}

/// Calls use(from, to) for each row space's section of a message.
template <typename Use>
void NodeRing::unpack(Kind kind, int place, Round round, const std::byte* message, Use&& use) {
  for (std::size_t i = 0; i < spaces().size(); ++i) {
    const Matrix to = piece(kind, i, place, round);
    use(ConstMatrix{message, to.dtype, to.rows, to.width}, to);
    message += to.bytes();
  }
}

void NodeRing::load(BucketInput& input) {
  for (std::size_t i = 0; i < spaces().size(); ++i) {
    Matrix all = values(i);
    all.data = sums_[i].data();
    all.dtype = sum_dtype(all.dtype);
    input.start_sums(i, all);
  }
}

void NodeRing::reduce_scatter(Exchange& exchange, Round round) {
  for (int step = 0; step + 1 < division_.nodes.per_node(); ++step) {
    const int incoming = around(place_ - 2 - step);
    const std::array payload{pack(Kind::sum, around(place_ - 1 - step), round)};
    InPlace landing(landed_.data(), bytes_of(Kind::sum, incoming, round));
    exchange.step(payload, landing, [&](Rank, std::span<const std::byte> message) {
      unpack(Kind::sum, incoming, round, message.data(),
             [&](ConstMatrix from, Matrix to) { add(context_, from, to); });
    });
  }
}

void NodeRing::round_own(Round round, double scale) {
  for (std::size_t i = 0; i < spaces().size(); ++i) {
    if (spaces()[i].is_own_sum() && scale == 1) continue;
    round_sums(context_, as_const(piece(Kind::sum, i, place_, round)), scale,
               piece(Kind::value, i, place_, round));
  }
}

void NodeRing::all_gather(Exchange& exchange, Round round) {
  const bool in_place = spaces().size() == 1;
  for (int step = 0; step + 1 < division_.nodes.per_node(); ++step) {
    const int incoming = around(place_ - 1 - step);
    const std::array payload{pack(Kind::value, around(place_ - step), round)};
    InPlace landing(in_place ? piece(Kind::value, 0, incoming, round).data : landed_.data(),
                    bytes_of(Kind::value, incoming, round));
    exchange.step(payload, landing, [&](Rank, std::span<const std::byte> message) {
      if (in_place) return;
      unpack(Kind::value, incoming, round, message.data(),
             [&](ConstMatrix from, Matrix to) { copy(context_, from.as_bytes(), to.data); });
    });
  }
}

void NodeRing::count(int place, Round round, Traffic& traffic) const {
  const Nodes& nodes = division_.nodes;
  for (int node = 0; node < nodes.count(); ++node) {
    const Rank worker = nodes.worker(node, place);
    const Rank right = nodes.worker(node, around(place + 1));
    for (int step = 0; step + 1 < nodes.per_node(); ++step) {
      traffic.message(worker, right, bytes_of(Kind::sum, around(place - 1 - step), round));
      traffic.message(worker, right, bytes_of(Kind::value, around(place - step), round));
    }
  }
}

}  // namespace sparsesync
