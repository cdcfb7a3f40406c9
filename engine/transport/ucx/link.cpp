#include "engine/transport/ucx/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/support/log.h"

namespace sparsesync::ucx {
namespace {

using packets::Event;

/// The number of the active messages of this library.
constexpr unsigned kMessages = 0;
/// Calls of ucp_worker_progress() in one poll().
constexpr int kProgressCalls = 16;
/// Limit for each of the two waits of close().
constexpr std::chrono::seconds kClosing{1};

}  // namespace

Link::Link(std::unique_ptr<Context> context, std::uint64_t job, Rank rank,
           std::vector<std::string> addresses)
    : context_(std::move(context)),
      greeting_{job, static_cast<std::uint32_t>(rank.value), Kind::greeting},
      packet_{job, static_cast<std::uint32_t>(rank.value), Kind::packet},
      addresses_(std::move(addresses)) {}

Link::~Link() {
  Link::close(false);
}

void Link::prepare(const packets::Layout& layout) {
  std::size_t slots = 0;
  sink_ = layout.sink;
  peers_.resize(layout.peers.size());
  for (std::size_t place = 0; place < peers_.size(); ++place) {
    Peer& peer = peers_[place];
    peer.rank = layout.peers[place];
    peer.link = this;
    peer.place = place;
    peer.slots = layout.slots[place];
    slots += peer.slots.size();
  }
  for (std::size_t send = 0; send < layout.sends; ++send) sendings_.push_back({this, send});
  for (const Peer& peer : peers_) sendings_.push_back({this, 0, peer.place, false});
  // Callbacks append events, and must not throw: one for each slot and send, and two for each peer.
  events_.reserve(slots + layout.sends + 2 * peers_.size());

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessages;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Link::on_message;
  handler.arg = this;
  check(library().worker_set_am_recv_handler(context_->worker(), &handler),
        "ucp_worker_set_am_recv_handler");
  for (Peer& peer : peers_) {
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                    UCP_EP_PARAM_FIELD_ERR_HANDLER;
    to.address = reinterpret_cast<const ucp_address_t*>(addresses_[peer.rank.index()].data());
    to.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    to.err_handler = {&Link::on_error, &peer};
    const ucs_status_t status = library().ep_create(context_->worker(), &to, &peer.connection);
    if (status == UCS_ERR_UNREACHABLE) {
      throw Error(fmt::format(
          "no transport of UCX connects this worker with worker {}: check that it runs, "
          "that the interfaces of both are up, have IPv4 addresses and reach each "
          "other, and that UCX_TLS allows tcp",
          peer.rank.value));
    }
    if (status == UCS_ERR_SHMEM_SEGMENT) {
      throw PeerLostError(
          peer.rank,
          fmt::format("cannot use the shared memory of worker {0}: it has ended (see its error), "
                      "or another user runs it (set UCX_TLS=tcp,self for all workers)",
                      peer.rank.value));
    }
    check(status, "ucp_ep_create");
    start(sendings_[layout.sends + peer.place], greeting_, {});
  }
}

void Link::post(std::size_t peer, std::size_t slot) {
  peers_[peer].posted.push(slot);
}

void Link::send(std::size_t send, std::size_t peer, std::span<const std::byte> packet) {
  sendings_[send].peer = peer;
  start(sendings_[send], packet_, packet);
}

/// Starts a send. A send to a peer that is out of reach ends at once.
void Link::start(Sending& sending, const MessageHeader& header, std::span<const std::byte> bytes) {
  Peer& peer = peers_[sending.peer];
  if (peer.ended) return sent(sending);
  ucp_request_param_t options{};
  options.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  options.flags = UCP_AM_SEND_FLAG_EAGER;
  options.cb.send = &Link::on_sent;
  options.user_data = &sending;
  ucs_status_ptr_t request = library().am_send_nbx(
      peer.connection, kMessages, &header, sizeof(header), bytes.data(), bytes.size(), &options);
  if (UCS_PTR_IS_ERR(request)) lose(peer, UCS_PTR_STATUS(request));
  if (!UCS_PTR_IS_PTR(request)) sent(sending);
}

void Link::poll(std::vector<Event>& events) {
  for (int call = 0; call < kProgressCalls; ++call) {
    if (library().worker_progress(context_->worker()) == 0) break;
  }
  events.insert(events.end(), events_.begin(), events_.end());
  events_.clear();
  for (Peer& peer : peers_) peer.unreported = 0;
}

bool Link::arm() {
  // UCX 1.13 misses events of shared memory if it is armed before all progress was made.
  if (library().worker_progress(context_->worker()) != 0) return false;
  return events_.empty() && library().worker_arm(context_->worker()) == UCS_OK;
}

std::vector<Rank> Link::silent() const {
  std::vector<Rank> silent;
  for (const Peer& peer : peers_) {
    if (!peer.greeted) silent.push_back(peer.rank);
  }
  return silent;
}

bool Link::close(bool quiet) {
  if (context_ == nullptr) return true;
  if (quiet) {
    const ucp_request_param_t options{};
    finish(library().worker_flush_nbx(context_->worker(), &options), Clock::now() + kClosing);
  }
  ucp_request_param_t options{};
  options.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  options.flags = UCP_EP_CLOSE_FLAG_FORCE;
  std::vector<ucs_status_ptr_t> requests;
  for (const Peer& peer : peers_) {
    if (peer.connection == nullptr) continue;
    requests.push_back(library().ep_close_nbx(peer.connection, &options));
  }
  const Clock::time_point until = Clock::now() + kClosing;
  for (ucs_status_ptr_t request : requests) finish(request, until);
  context_ = nullptr;
  return true;
}

/// Waits for a request until the deadline, and frees it.
void Link::finish(ucs_status_ptr_t request, Clock::time_point until) {
  if (!UCS_PTR_IS_PTR(request)) return;
  while (library().request_check_status(request) == UCS_INPROGRESS && Clock::now() < until) {
    library().worker_progress(context_->worker());
  }
  library().request_free(request);
}

ucs_status_t Link::on_message(void* link, const void* header, std::size_t header_bytes, void* data,
                              std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<Link*>(link);
  MessageHeader read;
  if (header_bytes != sizeof(read) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    self.drop();
    return UCS_OK;
  }
  std::memcpy(&read, header, sizeof(read));
  self.take(read, {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

void Link::take(const MessageHeader& header, std::span<const std::byte> packet) {
  const auto from = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return static_cast<std::uint32_t>(peer.rank.value) == header.from;
  });
  if (header.job != packet_.job || from == peers_.end()) return drop();
  Peer& peer = *from;
  if (header.kind == Kind::greeting) {
    peer.greeted = true;
    return;
  }
  if (peer.ended || peer.overran) return;
  if (peer.unreported == 0 && sink_->take(peer.place, packet)) return;
  if (peer.posted.empty() || packet.size() > peer.slots[peer.posted.front()].size()) {
    peer.overran = true;
    events_.push_back({.kind = Event::Kind::overrun, .peer = peer.place});
    return;
  }
  const std::size_t slot = peer.posted.front();
  peer.posted.pop();
  if (!packet.empty()) std::memcpy(peer.slots[slot].data(), packet.data(), packet.size());
  events_.push_back({.peer = peer.place, .slot = slot, .bytes = packet.size()});
  ++peer.unreported;
}

/// Counts a message that belongs to no worker of this job, and logs the first.
void Link::drop() {
  if (++dropped_ > 1) return;
  try {
    log(LogLevel::warning, "dropped a message over UCX that no worker of this job sent");
  } catch (...) {  // out of memory; UCX calls this function
  }
}

void Link::on_sent(void* request, ucs_status_t /*status*/, void* sending) {
  // After an error, on_error() reports the peer.
  const auto& of = *static_cast<Sending*>(sending);
  library().request_free(request);
  of.link->sent(of);
}

void Link::sent(const Sending& sending) {
  if (sending.reported) events_.push_back({.kind = Event::Kind::sent, .send = sending.send});
}

void Link::on_error(void* peer, ucp_ep_h /*connection*/, ucs_status_t status) {
  auto& of = *static_cast<Peer*>(peer);
  of.link->lose(of, status);
}

void Link::lose(Peer& peer, ucs_status_t status) {
  if (std::exchange(peer.ended, true)) return;
  events_.push_back({.kind = Event::Kind::ended, .peer = peer.place});
  try {
    log(LogLevel::debug,
        fmt::format("UCX lost worker {}: {}", peer.rank.value, library().status_string(status)));
  } catch (...) {  // out of memory; UCX calls this function
  }
}

}  // namespace sparsesync::ucx
