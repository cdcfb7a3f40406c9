#include "engine/transport/mpi_link.h"

#include "sparsesync/errors.h"

namespace sparsesync::mpi {
namespace {

using packets::Event;

constexpr int kTag = 1;

/// Returns MPI's type for sums. Unsigned types make integers wrap on overflow.
MPI_Datatype mpi_type(const Library& mpi, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return mpi.float_type;
    case DType::f64:
      return mpi.double_type;
    case DType::i32:
      return mpi.uint32_type;
    case DType::i64:
      return mpi.uint64_type;
    case DType::f16:
    case DType::bf16:
      break;
  }
  throw ContractError("a native all-reduce needs elements of f32, f64, i32 or i64");
}

}  // namespace

void Link::prepare(const packets::Layout& layout) {
  slots_of_a_peer_ = layout.slots.empty() ? 0 : layout.slots.front().size();
  requests_.assign(layout.peers.size() * slots_of_a_peer_ + layout.sends + 1, mpi_.request_null);
  completed_.resize(requests_.size());
  statuses_.resize(requests_.size());
  for (std::size_t peer = 0; peer < layout.peers.size(); ++peer) {
    peers_.push_back({layout.peers[peer], std::vector<Slot>(slots_of_a_peer_), {}});
    for (std::size_t slot = 0; slot < slots_of_a_peer_; ++slot) {
      const std::span<std::byte> memory = layout.slots[peer][slot];
      check(mpi_.recv_init(memory.data(), static_cast<int>(memory.size()), mpi_.byte_type,
                           layout.peers[peer].value, kTag, communicator_,
                           &requests_[slot_request(peer, slot)]),
            "MPI_Recv_init");
    }
  }
}

void Link::post(std::size_t peer, std::size_t slot) {
  peers_[peer].slots[slot].under_way = true;
  peers_[peer].posted.push(slot);
  check(mpi_.start(&requests_[slot_request(peer, slot)]), "MPI_Start");
}

void Link::send(std::size_t send, std::size_t peer, std::span<const std::byte> packet) {
  check(mpi_.isend(packet.data(), static_cast<int>(packet.size()), mpi_.byte_type,
                   peers_[peer].rank.value, kTag, communicator_, &requests_[send_request(send)]),
        "MPI_Isend");
}

void Link::all_reduce(DType dtype, std::span<std::byte> elements) {
  const auto count = elements.size() / static_cast<std::size_t>(element_bytes(dtype));
  check(
      mpi_.iallreduce(MPI_IN_PLACE, elements.data(), static_cast<int>(count), mpi_type(mpi_, dtype),
                      mpi_.sum, communicator_, &requests_[reduction_request()]),
      "MPI_Iallreduce");
}

void Link::poll(std::vector<Event>& events) {
  int count = 0;
  check(mpi_.testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                      completed_.data(), statuses_.data()),
        "MPI_Testsome");
  if (count == MPI_UNDEFINED) return;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    completed(static_cast<std::size_t>(completed_[at]), statuses_[at], events);
  }
}

void Link::completed(std::size_t request, const MPI_Status& status, std::vector<Event>& events) {
  if (request == reduction_request()) {
    events.push_back({.kind = Event::Kind::reduced});
  } else if (request >= send_request(0)) {
    events.push_back({.kind = Event::Kind::sent, .send = request - send_request(0)});
  } else {
    const std::size_t place = request / slots_of_a_peer_;
    Peer& peer = peers_[place];
    int bytes = 0;
    check(mpi_.get_count(&status, mpi_.byte_type, &bytes), "MPI_Get_count");
    peer.slots[request % slots_of_a_peer_] = {false, static_cast<std::size_t>(bytes)};
    // MPI fills slots in the order in which they were posted, but may report them in another order.
    while (!peer.posted.empty() && !peer.slots[peer.posted.front()].under_way) {
      const std::size_t slot = peer.posted.front();
      events.push_back({.peer = place, .slot = slot, .bytes = peer.slots[slot].bytes});
      peer.posted.pop();
    }
  }
}

bool Link::close(bool quiet) {
  if (!quiet) return false;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (std::size_t slot = 0; slot < slots_of_a_peer_; ++slot) {
      MPI_Request& request = requests_[slot_request(peer, slot)];
      if (peers_[peer].slots[slot].under_way) {
        mpi_.cancel(&request);
        mpi_.wait(&request, MPI_STATUS_IGNORE);
      }
      mpi_.request_free(&request);
    }
  }
  mpi_.comm_free(&communicator_);
  return true;
}

}  // namespace sparsesync::mpi
