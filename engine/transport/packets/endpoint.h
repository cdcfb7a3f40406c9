// One worker's endpoint of a network of links: the streams of packets between it and its peers.
//
// Messages are divided into packets, which are sent to all peers in turn. Every packet is received
// into a slot that was posted before the packet was sent. To ensure this, a worker starts with one
// credit for each slot that a peer keeps for it. It spends a credit on each packet. The credit
// returns when the packet's payload has been copied to its destination. So a slow peer causes no
// backlog in the link. Of the credits a worker spends only as many at a time as its window allows.
// Peers share the window evenly, so no connection monopolizes the link.
//
// Payloads are copied through the endpoint's packets on both sides. A link that receives into
// memory of its own may hand over a packet from there, without a slot. The link never uses a
// caller's memory, which may be freed as soon as an error occurs.
#pragma once

#include <sys/types.h>

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
#include <string_view>
#include <utility>
#include <vector>

#include "engine/session/queue.h"
#include "engine/transport/packets/link.h"
#include "sparsesync/transport.h"
#include "sparsesync/transports/chunks.h"

namespace sparsesync::packets {

/// Limit for the bytes of an abort's reason. Smaller packets lower the limit.
inline constexpr std::size_t kAbortReasonBytes = 1024;
/// Bytes of the preamble of each packet: its kind, and the credits that it returns.
inline constexpr std::size_t kPreambleBytes = 8;
/// Bytes in front of the reason in the packet of an abort: the preamble, and the aborter's rank.
inline constexpr std::size_t kAbortPreambleBytes = kPreambleBytes + sizeof(std::int32_t);

/// Sizes of packets.
struct PacketOptions {
  /// Checks and converts the options of a transport.
  /// @throws InputError if they are out of range
  static PacketOptions of(const Chunks& chunks);

  std::size_t bytes = 0;   // limit for a packet
  std::size_t window = 0;  // limit for packets in flight, over all peers
};

/// A worker's endpoint. One mutex guards the state shared by the worker and the driving thread. The
/// link is called without the lock.
class Endpoint final : private Sink {
 public:
  /// Creates the endpoint. Called by the driving thread.
  /// @param link   used by this endpoint only
  /// @param nodes  node of each worker, by rank
  /// @param wake   wakes the driving thread; called from any thread
  Endpoint(std::unique_ptr<Link> link, Rank rank, std::vector<int> nodes, PacketOptions options,
           std::function<void()> wake);
  /// Frees the packets' memory after close(). If the link may still use the memory, it is never
  /// freed.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// @{

  /// The worker's side. Implements the function of Transport with the same name.
  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(nodes_.size()); }
  int node(Rank worker) const { return nodes_.at(worker.index()); }
  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider);
  std::optional<Arrival> next(GroupId id, Clock::time_point until);
  void finish(GroupId id, Clock::time_point until);
  bool has_all_reduce() const { return link_->has_all_reduce(); }
  void all_reduce(DType dtype, std::span<std::byte> elements, Clock::time_point until);
  void abort(const std::string& reason) noexcept;
  void expect_alive(std::span<const Rank> others);
  TransportCounters counters() const;
  /// Leaves the network. The driving thread then notifies the peers. Does nothing in a forked
  /// child, which has no copy of the thread.
  void leave();

  // ---- The driving thread's side.

  /// Makes progress without waiting.
  /// @return whether any progress was made
  bool progress();
  /// Whether the worker may be waiting.
  bool busy() const;
  /// Records that a worker's process has ended. The worker counts as left after its last packets
  /// have arrived.
  void process_ended(Rank worker);
  /// Whether the worker has left, and the link may be closed: all peers know that it left, and, if
  /// links do not close alone, have left as well.
  bool retired() const;
  /// Closes the link.
  void close();
  /// Whether no worker has failed or was lost so far.
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
    Queue<std::size_t> complete;  // indices of receives that next() has not returned
    std::size_t unsent = 0;       // messages that are not completely packed
  };
  /// A message to a peer.
  struct Outgoing {
    Group* group = nullptr;
    Header header;
    const std::byte* data = nullptr;
    std::size_t sent = 0;
    bool begun = false;
  };
  /// The message that is being received from a peer.
  struct Incoming {
    Header header;
    bool open = false;     // its header has arrived
    bool begun = false;    // its first packet was unpacked
    bool matched = false;  // with a receive
    Group* group = nullptr;
    std::size_t receive = 0;
    std::byte* to = nullptr;  // null: the payload is discarded
    std::size_t received = 0;
  };
  /// Memory for one packet.
  struct Slot {
    std::byte* bytes = nullptr;
    std::size_t size = 0;
    bool under_way = false;  // a send uses it
  };
  /// The streams to and from one other worker.
  struct Peer {
    Rank rank;
    Queue<Outgoing> outgoing;
    std::size_t credits = 0;                        // packets for which the peer has a slot
    std::size_t unreturned = 0;                     // credits to return to the peer
    Queue<std::pair<Group*, std::size_t>> waiting;  // group and index of receives without a message
    Incoming incoming;
    std::vector<Slot> slots;
    Queue<std::size_t> arrived;  // slots with payloads that were not unpacked yet
    Queue<std::size_t> unposted;
    Clock::time_point last_heard;
    bool left = false;    // no more packets arrive from it
    bool ended = false;   // its process has ended
    bool parted = false;  // it knows that this worker left
    bool sent_abort = false;
    bool sent_leave = false;
    bool sent_parted = false;
  };
  /// A piece of an all-reduce. The link may still use it after the worker has given up.
  struct Reduction {
    enum class State : std::uint8_t { none, asked, under_way, done };
    State state = State::none;
    DType dtype = DType::f32;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> memory;
    std::size_t room = 0;  // bytes of `memory`
  };
  /// Control messages to a peer.
  enum class Word : std::uint8_t { credit, abort, leave, parted };
  static constexpr std::size_t kWords = 4;
  /// A pending call of the link.
  struct Call {
    enum class Kind : std::uint8_t { post, send, all_reduce };
    Kind kind = Kind::post;
    std::size_t number = 0;  // post: slot; send: its number
    std::size_t peer = 0;
    std::span<const std::byte> packet;  // send
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
  bool unpack(Peer& peer, std::span<const std::byte> packet);
  void take_abort(const Peer& peer, std::span<const std::byte> packet);
  void note_abort(Rank aborter, std::string_view reason);
  void fail(std::exception_ptr error);
  void fail_by(const Peer& peer, const char* what);

  // The driving thread's side, with the lock held.
  void choose_calls();
  std::size_t share_of(const Peer& peer, std::size_t sending) const;
  void fill_packet(std::size_t place, std::size_t number);
  void send_word(std::size_t peer, Word word, const std::byte* bytes, std::size_t size);
  void packet_came(Peer& peer, std::size_t place);
  void take_preamble(Peer& peer, std::span<const std::byte> packet);
  void handle(const Event& event);
  static void end(Peer& peer);
  void bury(Clock::time_point now);
  bool says_something() const;
  bool quiet() const;

  // The driving thread's side, without the lock.
  bool take(std::size_t place, std::span<const std::byte> packet) noexcept override;
  void call(const Call& of);
  bool poll();

  // Used by the driving thread only.
  const std::unique_ptr<Link> link_;
  std::vector<Call> calls_;
  std::vector<Event> events_;
  bool took_packets_ = false;  // from the link's memory, since the last poll
  bool closed_ = false;

  const pid_t process_;
  const Rank rank_;
  const std::vector<int> nodes_;
  const PacketOptions options_;
  const std::size_t credits_of_a_peer_;  // slots that each worker keeps for another one's packets
  const std::size_t slots_of_a_peer_;
  const std::function<void()> wake_;
  std::unique_ptr<std::byte[]> memory_;  // memory of all packets and control messages

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // starting at rank + 1, wrapping around
  std::vector<Slot> packets_;
  std::vector<bool> word_under_way_;
  std::byte* credit_words_ = nullptr;  // [peer] control messages that return credits
  std::byte* leave_word_ = nullptr;
  std::byte* parted_word_ = nullptr;
  std::byte* abort_word_ = nullptr;
  std::size_t turn_ = 0;  // index of the peer that is served next
  std::vector<std::unique_ptr<Group>> groups_;
  std::size_t open_groups_ = 0;
  std::uint64_t next_group_ = 1;
  Reduction reduction_;
  TransportCounters counters_;
  bool withdrawn_ = false;  // the worker got an error and no longer takes part
  bool leaving_ = false;
  std::exception_ptr failure_;  // the link failed, or a peer violated the protocol
  bool aborted_ = false;        // a worker aborted the network
  Rank aborter_;
  std::string abort_reason_;
};

}  // namespace sparsesync::packets
