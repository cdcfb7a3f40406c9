// The link of an endpoint over MPI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <vector>

#include "engine/session/queue.h"
#include "engine/transport/mpi_library.h"
#include "engine/transport/packets/link.h"

namespace sparsesync::mpi {

/// Carries packets by MPI's sends and persistent receives. MPI's receives are posted before their
/// packets are sent, so MPI buffers nothing.
class Link : public packets::Link {
 public:
  /// @param communicator  used by this link only; returns errors
  explicit Link(MPI_Comm communicator) : communicator_(communicator) {}

  void prepare(const packets::Layout& layout) override;
  void post(std::size_t peer, std::size_t slot) override;
  void send(std::size_t send, std::size_t peer, std::span<const std::byte> packet) override;
  void poll(std::vector<packets::Event>& events) override;
  bool has_all_reduce() const override { return true; }
  void all_reduce(DType dtype, std::span<std::byte> elements) override;
  /// Returns false: MPI_Comm_free is a call of all workers.
  bool closes_alone() const override { return false; }
  bool close(bool quiet) override;

 private:
  /// A slot, and whether MPI receives into it.
  struct Slot {
    bool under_way = false;
    std::size_t bytes = 0;  // received
  };
  /// The receives from a peer.
  struct Peer {
    Rank rank;
    std::vector<Slot> slots;
    Queue<std::size_t> posted;  // slots, in the order in which MPI fills them
  };

  void completed(std::size_t request, const MPI_Status& status,
                 std::vector<packets::Event>& events);

  // Indices in requests_: the slots of all peers, the sends, and the all-reduce.
  std::size_t slot_request(std::size_t peer, std::size_t slot) const {
    return peer * slots_of_a_peer_ + slot;
  }
  std::size_t send_request(std::size_t send) const {
    return peers_.size() * slots_of_a_peer_ + send;
  }
  std::size_t reduction_request() const { return requests_.size() - 1; }

  const Library& mpi_ = library();
  MPI_Comm communicator_;
  std::size_t slots_of_a_peer_ = 0;
  std::vector<Peer> peers_;
  std::vector<MPI_Request> requests_;
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace sparsesync::mpi
