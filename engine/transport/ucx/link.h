// The link of an endpoint over UCX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/session/queue.h"
#include "engine/transport/packets/link.h"
#include "engine/transport/ucx/context.h"
#include "sparsesync/transport.h"

namespace sparsesync::ucx {

/// Carries packets as active messages. Each is sent eagerly, so UCX never uses the memory of a
/// receiver. UCX's connections start with a greeting in each direction.
///
/// A message whose header does not name this job and one of its workers is dropped and counted.
class Link : public packets::Link {
 public:
  /// @param context    used by this link only
  /// @param job        a random number that all workers of the job know
  /// @param addresses  [rank]: Context::address() of the worker
  Link(std::unique_ptr<Context> context, std::uint64_t job, Rank rank,
       std::vector<std::string> addresses);
  ~Link() override;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Creates the connections, and starts the greetings.
  void prepare(const packets::Layout& layout) override;
  void post(std::size_t peer, std::size_t slot) override;
  void send(std::size_t send, std::size_t peer, std::span<const std::byte> packet) override;
  void poll(std::vector<packets::Event>& events) override;
  /// Returns true: a worker destroys its UCX worker alone.
  bool closes_alone() const override { return true; }
  /// Closes the connections. If `quiet`, waits until sent packets have left, for a second at most.
  bool close(bool quiet) override;

  /// Returns the peers whose greeting has not arrived.
  std::vector<Rank> silent() const;

  /// Returns the descriptor that becomes readable on an event after arm().
  int descriptor() const { return context_->event_descriptor(); }
  /// Prepares for a wait for the descriptor.
  /// @return false if there are events that poll() has not reported yet
  bool arm();

 private:
  /// The kind of a message. It occupies 4 bytes of a header.
  // NOLINTNEXTLINE(performance-enum-size)
  enum class Kind : std::uint32_t { greeting, packet };
  /// Precedes each message.
  struct MessageHeader {
    std::uint64_t job = 0;
    std::uint32_t from = 0;
    Kind kind = Kind::packet;
  };
  /// A send that UCX may have under way.
  struct Sending {
    Link* link = nullptr;
    std::size_t send = 0;
    std::size_t peer = 0;
    bool reported = true;  // poll() reports its end
  };
  /// The connection to a peer.
  struct Peer {
    Rank rank;
    Link* link = nullptr;
    std::size_t place = 0;  // in peers_
    ucp_ep_h connection = nullptr;
    std::vector<std::span<std::byte>> slots;
    Queue<std::size_t> posted;   // slots
    std::size_t unreported = 0;  // packets in slots that poll() has not reported
    bool greeted = false;        // its greeting has arrived
    bool ended = false;
    bool overran = false;
  };

  static ucs_status_t on_message(void* link, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_error(void* peer, ucp_ep_h connection, ucs_status_t status);

  void start(Sending& sending, const MessageHeader& header, std::span<const std::byte> bytes);
  void take(const MessageHeader& header, std::span<const std::byte> packet);
  void sent(const Sending& sending);
  void lose(Peer& peer, ucs_status_t status);
  void drop();
  void finish(ucs_status_ptr_t request, Clock::time_point until);

  std::unique_ptr<Context> context_;
  const MessageHeader greeting_;
  const MessageHeader packet_;
  const std::vector<std::string> addresses_;  // [rank]
  std::vector<Peer> peers_;
  packets::Sink* sink_ = nullptr;
  std::vector<Sending> sendings_;  // the sends, then a greeting of each peer
  std::vector<packets::Event> events_;
  std::int64_t dropped_ = 0;
};

}  // namespace sparsesync::ucx
