// One worker's end of a network over MPI: the streams of packets between it and its peers.
//
// Each message is cut into packets; packets leave in turn to all peers. Every packet is received
// into a slot that was posted before it was sent: a worker begins with as many credits for each
// peer as that peer has slots for it, spends one on each packet, and gets it back when the packet's
// payload stands where it belongs. So nothing piles up, in MPI or in the network, behind a peer
// that is slow, and no connection hoards a link. Payloads go through packets of the end's own, on
// both sides: MPI never holds memory of others, which may go as soon as something failed.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/session/queue.h"
#include "sparsesync/transport.h"

namespace sparsesync::mpi {

/// Bytes of the reason that an abort names at most; fewer where packets are smaller.
inline constexpr std::size_t kAbortReasonBytes = 1024;
/// Bytes that each packet begins with: its kind, and the credits that it gives back.
inline constexpr std::size_t kPreambleBytes = 8;

/// Looks at what an MPI call returned.
/// @throws Error naming the call and MPI's reason, if it failed
void check(int status, const char* call);

/// How messages are cut into packets.
struct PacketOptions {
  std::size_t bytes = 0;   // of a packet at most
  std::size_t window = 0;  // packets under way at most, to all peers
};

/// A worker's end. The worker's side and the MPI thread's side share it under one mutex; MPI is
/// called outside of it.
class Endpoint {
 public:
  /// Called by the MPI thread.
  /// @param communicator  the end's own; returns errors
  /// @param nodes         of each worker
  /// @param wake          tells the MPI thread that there is work; any thread calls it
  Endpoint(MPI_Comm communicator, Rank rank, std::vector<int> nodes, PacketOptions options,
           std::function<void()> wake);
  /// Gives back the packets' memory if it was closed; else MPI may still own it.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// @{

  /// The worker's side: does what Transport declares under this name.
  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(nodes_.size()); }
  int node(Rank worker) const { return nodes_.at(worker.index()); }
  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider);
  std::optional<Arrival> next(GroupId id, Clock::time_point until);
  void finish(GroupId id, Clock::time_point until);
  void all_reduce(DType dtype, std::span<std::byte> elements, Clock::time_point until);
  void abort(const std::string& reason) noexcept;
  void expect_alive(std::span<const Rank> others);
  TransportCounters counters() const;
  /// @}
  /// The worker leaves; its peers will be told.
  void leave();

  // ---- The MPI thread's side.

  /// Moves what can be moved without waiting.
  /// @return whether something moved
  bool progress();
  /// Whether the worker may be waiting.
  bool busy() const;
  /// The process of a worker has ended: it has left, once all that it sent is here.
  void process_ended(Rank worker);
  /// Whether nothing is to come any more: the worker left, and so did its peers.
  bool retired() const;
  /// Frees what MPI has, unless a worker was lost.
  /// @pre retired()
  void close();
  /// Whether no worker failed, or was lost, so far.
  bool healthy() const;

 private:
  /// A receive of a group.
  struct Waiting {
    Rank from;
    Header header;
    std::span<const std::byte> payload;
    bool returned = false;
  };
  /// A group that was posted.
  struct Group {
    std::uint64_t id = 0;  // 0: not in use
    Header expected;
    ReceiveProvider* provider = nullptr;
    std::vector<Waiting> receives;
    Queue<std::size_t> complete;  // receives, not returned
    std::size_t unsent = 0;       // messages
  };
  /// A message that goes out to a peer.
  struct Outgoing {
    Group* group = nullptr;
    Header header;
    const std::byte* data = nullptr;
    std::size_t sent = 0;
    bool begun = false;
  };
  /// The message that comes in from a peer.
  struct Incoming {
    Header header;
    bool open = false;     // its header is here
    bool begun = false;    // its first packet was taken
    bool matched = false;  // with a receive
    Group* group = nullptr;
    std::size_t receive = 0;
    std::byte* to = nullptr;  // null: thrown away
    std::size_t received = 0;
  };
  /// Room for one packet, in or out.
  struct Slot {
    std::byte* bytes = nullptr;
    std::size_t size = 0;
    bool under_way = false;
  };
  /// The streams to and from one other worker.
  struct Peer {
    Rank rank;
    Queue<Outgoing> outgoing;
    std::size_t credits = 0;  // slots that the peer has free for this worker
    std::size_t owed = 0;     // slots of the peer's packets that are free again
    Queue<std::pair<Group*, std::size_t>> waiting;  // receives without a message
    Incoming incoming;
    std::vector<Slot> slots;
    Queue<std::size_t> posted;   // slots in the order in which MPI fills them
    Queue<std::size_t> arrived;  // slots of payloads that were not taken yet
    Queue<std::size_t> unposted;
    Clock::time_point last_heard;
    bool left = false;   // nothing comes from it any more
    bool ended = false;  // its process, rather
    bool told_abort = false;
    bool told_leave = false;
  };
  /// A piece of an all-reduce. After the worker withdrew, MPI may still be at it.
  struct Reduction {
    enum class State : std::uint8_t { none, asked, under_way, done };
    State state = State::none;
    DType dtype = DType::f32;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> memory;
    std::size_t room = 0;  // in it
  };
  /// What a peer is told beside payloads.
  enum class Word : std::uint8_t { credit, abort, leave };
  static constexpr std::size_t kWords = 3;
  /// A call of MPI that is to be made.
  struct Call {
    bool receives = false;  // starts the request, or sends
    std::size_t request = 0;
    Rank to;
    const std::byte* bytes = nullptr;
    std::size_t size = 0;
  };

  // The worker's side, with the lock held.
  template <typename Body>
  auto withdrawing_on_error(const Body& body) -> decltype(body());
  void drop_messages();
  GroupId start(const Context& context, const Header& expected, std::span<const Send> sends,
                std::span<const Receive> receives, ReceiveProvider& provider);
  std::optional<Arrival> wait_for_receive(std::unique_lock<std::mutex>& lock, Group& group,
                                          Clock::time_point until);
  void wait_for_sends(std::unique_lock<std::mutex>& lock, const Group& group,
                      Clock::time_point until);
  void reduce_piece(std::unique_lock<std::mutex>& lock, DType dtype, std::span<std::byte> elements,
                    Clock::time_point until);
  void match_messages();
  void throw_if_over() const;
  Group& group_of(GroupId id);
  Group& unused_group();
  Peer& peer_of(Rank worker);

  // Either side, with the lock held.
  void take_packets(Peer& peer);
  void fail(std::exception_ptr error);
  void fail_by(const Peer& peer, const char* what);

  // The MPI thread's side, with the lock held.
  void choose_calls();
  void fill_packet(Peer& peer, std::size_t place);
  void tell(std::size_t peer, Word word, const std::byte* bytes, std::size_t size);
  void packet_came(Peer& peer, std::size_t place);
  void completed(std::size_t request, const MPI_Status& status);
  void bury(Clock::time_point now);
  /// This worker told the others to.
  bool aborts() const { return aborted_ && aborter_ == rank_; }
  bool says_something() const;
  bool quiet() const;

  // The MPI thread's side, without it.
  void call(const Call& of);
  bool poll();

  // Requests: of all peers' slots, of the packets to be sent, of the words to peers, of the
  // all-reduce.
  std::size_t slot_request(std::size_t peer, std::size_t slot) const;
  std::size_t packet_request(std::size_t packet) const;
  std::size_t word_request(std::size_t peer, Word word) const;
  std::size_t reduction_request() const;

  // The MPI thread's own.
  MPI_Comm communicator_;
  std::vector<MPI_Request> requests_;
  std::vector<Call> calls_;
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  bool closed_ = false;

  const Rank rank_;
  const std::vector<int> nodes_;
  const PacketOptions options_;
  const std::size_t credits_of_a_peer_;
  const std::size_t slots_of_a_peer_;
  const std::function<void()> wake_;
  std::unique_ptr<std::byte[]> memory_;  // of all packets

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // from rank + 1 on, around
  std::vector<Slot> packets_;
  std::vector<bool> word_under_way_;
  std::byte* credit_words_ = nullptr;  // one for each peer
  std::byte* leave_word_ = nullptr;
  std::byte* abort_word_ = nullptr;
  std::byte* abort_text_ = nullptr;  // in it
  std::size_t turn_ = 0;             // the peer that sends next
  std::vector<std::unique_ptr<Group>> groups_;
  std::size_t open_groups_ = 0;
  std::uint64_t next_group_ = 1;
  Reduction reduction_;
  TransportCounters counters_;
  bool withdrawn_ = false;  // the worker got an error and takes no more part
  bool leaving_ = false;
  std::exception_ptr failure_;  // of MPI, or a peer's nonsense
  bool aborted_ = false;        // some worker
  Rank aborter_;
  std::string abort_reason_;
};

}  // namespace sparsesync::mpi
