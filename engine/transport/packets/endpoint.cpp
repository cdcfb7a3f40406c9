// The driving thread's side of an endpoint, and functions for both sides. The worker's side is in
// endpoint_worker.cpp.
#include "engine/transport/packets/endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <algorithm>
#include <cstring>

#include "schemes/pattern.h"

namespace sparsesync::packets {
namespace {

/// Limit for the slots of a worker that credits count, unless peers would get fewer than two.
constexpr std::size_t kCountedSlots = 512;
/// Control messages from a peer that are under way at most, besides those that return credits: one
/// abort, one leave, and one parted. Control messages need no credit.
constexpr std::size_t kOtherWords = 3;
/// Time in which packets of an ended process may still arrive.
constexpr std::chrono::milliseconds kGrace{200};

/// The kind of a packet: invalid, part of a message, or a control message. It occupies 4 bytes of a
/// packet.
// NOLINTNEXTLINE(performance-enum-size)
enum class Kind : std::uint32_t { none, begin, more, credit, abort, leave, parted };

/// The first bytes of each packet. In a `begin` packet the message's header follows, in an `abort`
/// packet the aborter's rank in 4 bytes, and its reason.
struct Preamble {
  Kind kind = Kind::begin;
  std::uint32_t credits = 0;  // returned to the receiver
};
static_assert(sizeof(Preamble) == kPreambleBytes);

template <typename T>
void write(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

/// Returns the preamble of a packet. It is invalid if the packet is too short.
Preamble preamble_of(std::span<const std::byte> packet) {
  return packet.size() < sizeof(Preamble) ? Preamble{Kind::none, 0} : read<Preamble>(packet.data());
}

/// Returns whether a packet is a part of a message.
bool is_of_message(std::span<const std::byte> packet) {
  const Kind kind = preamble_of(packet).kind;
  return kind == Kind::begin || kind == Kind::more;
}

/// Leaks memory on purpose: the link may use it as long as the process lives.
void give_away(std::unique_ptr<std::byte[]>& memory) {
  [[maybe_unused]] const std::byte* const given = memory.release();
#ifdef __SANITIZE_ADDRESS__
  __lsan_ignore_object(given);
#endif
}

}  // namespace

PacketOptions PacketOptions::of(const Chunks& chunks) {
  if (chunks.bytes < 256 || chunks.bytes > (std::int64_t{1} << 30)) {
    throw InputError(fmt::format("chunks of {} bytes: use 256 bytes to 1 GiB", chunks.bytes));
  }
  if (chunks.window < 1 || chunks.window > 65'536) {
    throw InputError(fmt::format("a window of {} chunks: use 1 to 65536", chunks.window));
  }
  return {static_cast<std::size_t>(chunks.bytes), static_cast<std::size_t>(chunks.window)};
}

Endpoint::Endpoint(std::unique_ptr<Link> link, Rank rank, std::vector<int> nodes,
                   PacketOptions options, std::function<void()> wake)
    : link_(std::move(link)),
      process_(getpid()),
      rank_(rank),
      nodes_(std::move(nodes)),
      options_(options),
      credits_of_a_peer_(std::max<std::size_t>(
          2,
          std::min(options.window, kCountedSlots / std::max<std::size_t>(1, nodes_.size() - 1)))),
      slots_of_a_peer_(2 * credits_of_a_peer_ + kOtherWords),
      wake_(std::move(wake)) {
  const std::vector<Rank> ranks = peers_after(rank_, size());
  const std::size_t packets = ranks.size() * slots_of_a_peer_ + options_.window;
  const std::size_t words = (ranks.size() + 2) * sizeof(Preamble);
  memory_ = std::make_unique<std::byte[]>(packets * options_.bytes + words + kAbortPreambleBytes +
                                          kAbortReasonBytes);
  std::byte* memory = memory_.get();
  const auto next = [&](std::size_t bytes) { return std::exchange(memory, memory + bytes); };
  Layout layout{ranks, {}, options_.window + ranks.size() * kWords, this};
  for (const Rank each : ranks) {
    Peer& peer = peers_.emplace_back();
    peer.rank = each;
    peer.credits = credits_of_a_peer_;
    peer.arrived.reserve(slots_of_a_peer_);
    layout.slots.emplace_back();
    for (std::size_t slot = 0; slot < slots_of_a_peer_; ++slot) {
      peer.slots.push_back({next(options_.bytes)});
      layout.slots.back().emplace_back(peer.slots.back().bytes, options_.bytes);
      peer.unposted.push(slot);
    }
  }
  for (std::size_t packet = 0; packet < options_.window; ++packet) {
    packets_.push_back({next(options_.bytes)});
  }
  credit_words_ = next(ranks.size() * sizeof(Preamble));
  leave_word_ = next(sizeof(Preamble));
  write(leave_word_, Preamble{Kind::leave, 0});
  parted_word_ = next(sizeof(Preamble));
  write(parted_word_, Preamble{Kind::parted, 0});
  abort_word_ = next(kAbortPreambleBytes + kAbortReasonBytes);
  write(abort_word_, Preamble{Kind::abort, 0});
  word_under_way_.assign(ranks.size() * kWords, false);
  const std::size_t most = ranks.size() * slots_of_a_peer_ + layout.sends + 1;
  calls_.reserve(most);
  events_.reserve(most);
  link_->prepare(layout);
}

Endpoint::~Endpoint() {
  if (closed_) return;
  give_away(memory_);
  give_away(reduction_.memory);
}

void Endpoint::close() {
  closed_ = link_->close(retired() && quiet());
}

// ---- Either side.

/// Copies payloads from their slots to their destinations, as far as these are known.
void Endpoint::take_packets(Peer& peer) {
  while (!peer.arrived.empty()) {
    const Slot& slot = peer.slots[peer.arrived.front()];
    if (!unpack(peer, {slot.bytes, slot.size})) return;
    peer.unposted.push(peer.arrived.front());
    peer.arrived.pop();
  }
}

/// Copies a packet's payload to its destination.
/// @return whether the destination is known
bool Endpoint::unpack(Peer& peer, std::span<const std::byte> packet) {
  if (withdrawn_ || leaving_ || failure_) return false;
  Incoming& message = peer.incoming;
  const bool begins = read<Preamble>(packet.data()).kind == Kind::begin;
  std::span<const std::byte> payload = packet.subspan(sizeof(Preamble));
  if (begins != !message.begun || (begins && payload.size() < sizeof(Header))) {
    fail_by(peer, "sent a packet outside of a message");
    return false;
  }
  if (begins) {
    if (!message.open) {
      message.header = read<Header>(payload.data());
      message.open = true;
      changed_.notify_all();  // the worker provides memory for the payload
    }
    payload = payload.subspan(sizeof(Header));
  }
  if (!message.matched) return false;
  if (payload.size() > message.header.bytes - message.received) {
    fail_by(peer, "sent more bytes than its header announced");
    return false;
  }
  if (message.to != nullptr && !payload.empty()) {
    std::memcpy(message.to + message.received, payload.data(), payload.size());
  }
  message.begun = true;
  message.received += payload.size();
  ++peer.unreturned;
  if (message.received < message.header.bytes) return true;
  Waiting& receive = message.group->receives[message.receive];
  receive.header = message.header;
  receive.payload = {message.to, message.to == nullptr ? 0 : message.received};
  ++counters_.messages_received;
  counters_.bytes_received += kHeaderBytes + static_cast<std::int64_t>(message.header.bytes);
  message.group->complete.push(message.receive);
  message = {};
  changed_.notify_all();
  return true;
}

void Endpoint::fail(std::exception_ptr error) {
  if (!failure_) failure_ = std::move(error);
  changed_.notify_all();
}

/// Fails because a peer violated the protocol.
void Endpoint::fail_by(const Peer& peer, const char* what) {
  fail(std::make_exception_ptr(ProtocolError(fmt::format("worker {} {}", peer.rank.value, what))));
}

// ---- The driving thread's side.

bool Endpoint::progress() {
  bool moved = false;
  try {
    {
      const std::lock_guard lock(mutex_);
      choose_calls();
    }
    for (const Call& each : calls_) call(each);
    moved = poll() || !calls_.empty();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    fail(std::current_exception());
  }
  return moved;
}

bool Endpoint::busy() const {
  const std::lock_guard lock(mutex_);
  return open_groups_ > 0 || leaving_ || aborted_ || reduction_.state != Reduction::State::none;
}

void Endpoint::process_ended(Rank worker) {
  const std::lock_guard lock(mutex_);
  if (worker == rank_ || worker.value >= size()) return;
  end(peer_of(worker));
}

/// Notes that no more packets arrive from a peer.
void Endpoint::end(Peer& peer) {
  peer.parted = true;
  if (peer.left || peer.ended) return;
  peer.ended = true;
  peer.last_heard = Clock::now();
}

bool Endpoint::retired() const {
  const std::lock_guard lock(mutex_);
  const auto done_with = [&](const Peer& peer) {
    if (peer.ended) return true;
    if (!link_->closes_alone()) return peer.left && peer.sent_leave;
    // Whatever the peer sent has arrived here, so that closing the link discards nothing.
    return (peer.sent_leave ? peer.parted : peer.left) && (!peer.left || peer.sent_parted);
  };
  return leaving_ && std::all_of(peers_.begin(), peers_.end(), done_with) && !says_something();
}

bool Endpoint::quiet() const {
  return std::none_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.ended; }) &&
         std::none_of(packets_.begin(), packets_.end(),
                      [](const Slot& packet) { return packet.under_way; }) &&
         reduction_.state != Reduction::State::under_way;
}

bool Endpoint::says_something() const {
  for (std::size_t place = 0; place < peers_.size(); ++place) {
    for (std::size_t word = 0; word < kWords; ++word) {
      if (!peers_[place].ended && word_under_way_[place * kWords + word]) return true;
    }
  }
  return false;
}

bool Endpoint::healthy() const {
  const std::lock_guard lock(mutex_);
  return !withdrawn_ && !failure_ && !aborted_ &&
         std::none_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.ended; });
}

void Endpoint::choose_calls() {
  calls_.clear();
  bury(Clock::now());
  for (std::size_t place = 0; place < peers_.size(); ++place) {
    Peer& peer = peers_[place];
    take_packets(peer);
    for (; !peer.unposted.empty(); peer.unposted.pop()) {
      const std::size_t slot = peer.unposted.front();
      calls_.push_back({Call::Kind::post, slot, place, {}});
    }
  }
  const auto free_packet = [&] {
    return std::find_if(packets_.begin(), packets_.end(),
                        [](const Slot& packet) { return !packet.under_way; });
  };
  if (reduction_.state == Reduction::State::asked && !withdrawn_) {
    reduction_.state = Reduction::State::under_way;
    calls_.push_back({Call::Kind::all_reduce, 0, 0, {}});
  }
  const auto sending = static_cast<std::size_t>(
      std::ranges::count_if(peers_, [](const Peer& peer) { return !peer.outgoing.empty(); }));
  std::size_t passed_over = 0;
  for (auto packet = free_packet(); packet != packets_.end() && passed_over < peers_.size();) {
    const std::size_t place = turn_;
    Peer& peer = peers_[place];
    turn_ = (turn_ + 1) % peers_.size();
    const auto is_blocked = [&] {
      const std::size_t unacknowledged = credits_of_a_peer_ - peer.credits;
      return peer.credits == 0 || unacknowledged >= share_of(peer, sending);
    };
    if (peer.left || withdrawn_ || peer.outgoing.empty() || is_blocked()) {
      ++passed_over;
      continue;
    }
    passed_over = 0;
    fill_packet(place, static_cast<std::size_t>(packet - packets_.begin()));
    packet = free_packet();
  }
  for (std::size_t place = 0; place < peers_.size(); ++place) {
    Peer& peer = peers_[place];
    if (peer.ended) continue;
    // Returns credits at once: the peer may have spent all that its share of the window allows.
    if (!peer.left && peer.unreturned > 0 &&
        !word_under_way_[place * kWords + static_cast<std::size_t>(Word::credit)]) {
      std::byte* word = credit_words_ + place * sizeof(Preamble);
      write(word, Preamble{Kind::credit, static_cast<std::uint32_t>(peer.unreturned)});
      peer.unreturned = 0;
      send_word(place, Word::credit, word, sizeof(Preamble));
    }
    // Every worker passes an abort on, so that a peer learns of it before this worker leaves.
    if (aborted_ && !peer.left && !peer.sent_abort && peer.rank != aborter_) {
      peer.sent_abort = true;
      send_word(place, Word::abort, abort_word_, kAbortPreambleBytes + abort_reason_.size());
    }
    // Unless links close alone, a peer that left waits for the others to leave as well.
    if (leaving_ && !peer.sent_leave && !(peer.left && link_->closes_alone())) {
      peer.sent_leave = true;
      send_word(place, Word::leave, leave_word_, sizeof(Preamble));
    }
    if (peer.left && !peer.sent_parted && link_->closes_alone()) {
      peer.sent_parted = true;
      send_word(place, Word::parted, parted_word_, sizeof(Preamble));
    }
  }
}

/// Returns how many packets to a peer may be unacknowledged. Between machines all peers share the
/// window, because credits wait behind the packets that a link has queued. On one machine only the
/// peers with outgoing messages do.
/// @param sending  number of peers with outgoing messages; at least 1
std::size_t Endpoint::share_of(const Peer& peer, std::size_t sending) const {
  const bool is_near = node(peer.rank) == node(rank_);
  return std::max<std::size_t>(2, options_.window / (is_near ? sending : peers_.size()));
}

void Endpoint::fill_packet(std::size_t place, std::size_t number) {
  Peer& peer = peers_[place];
  Slot& packet = packets_[number];
  Outgoing& message = peer.outgoing.front();
  write(packet.bytes, Preamble{message.begun ? Kind::more : Kind::begin,
                               static_cast<std::uint32_t>(peer.unreturned)});
  peer.unreturned = 0;
  packet.size = sizeof(Preamble);
  if (!message.begun) {
    write(packet.bytes + packet.size, message.header);
    packet.size += sizeof(Header);
    message.begun = true;
  }
  const std::size_t bytes =
      std::min(options_.bytes - packet.size, message.header.bytes - message.sent);
  if (bytes > 0) std::memcpy(packet.bytes + packet.size, message.data + message.sent, bytes);
  packet.size += bytes;
  packet.under_way = true;
  message.sent += bytes;
  --peer.credits;
  calls_.push_back({Call::Kind::send, number, place, {packet.bytes, packet.size}});
  if (message.sent == message.header.bytes) {
    if (--message.group->unsent == 0) changed_.notify_all();
    peer.outgoing.pop();
  }
}

void Endpoint::send_word(std::size_t peer, Word word, const std::byte* bytes, std::size_t size) {
  const std::size_t number = peer * kWords + static_cast<std::size_t>(word);
  word_under_way_[number] = true;
  calls_.push_back({Call::Kind::send, options_.window + number, peer, {bytes, size}});
}

void Endpoint::call(const Call& of) {
  switch (of.kind) {
    case Call::Kind::post:
      return link_->post(of.peer, of.number);
    case Call::Kind::send:
      return link_->send(of.number, of.peer, of.packet);
    case Call::Kind::all_reduce:
      return link_->all_reduce(reduction_.dtype, {reduction_.memory.get(), reduction_.bytes});
  }
}

bool Endpoint::poll() {
  events_.clear();
  took_packets_ = false;
  link_->poll(events_);
  if (events_.empty()) return took_packets_;
  const std::lock_guard lock(mutex_);
  for (const Event& event : events_) handle(event);
  return true;
}

void Endpoint::handle(const Event& event) {
  switch (event.kind) {
    case Event::Kind::received: {
      Peer& peer = peers_[event.peer];
      peer.slots[event.slot].size = event.bytes;
      packet_came(peer, event.slot);
      take_packets(peer);
      break;
    }
    case Event::Kind::sent:
      if (event.send < options_.window) {
        packets_[event.send].under_way = false;
      } else {
        word_under_way_[event.send - options_.window] = false;
      }
      break;
    case Event::Kind::reduced:
      reduction_.state = Reduction::State::done;
      changed_.notify_all();
      break;
    case Event::Kind::ended:
      end(peers_[event.peer]);
      break;
    case Event::Kind::overrun:
      fail_by(peers_[event.peer], "sent more packets than it had credits for");
      break;
  }
}

bool Endpoint::take(std::size_t place, std::span<const std::byte> packet) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    Peer& peer = peers_[place];
    if (is_of_message(packet) && (!peer.arrived.empty() || !unpack(peer, packet))) return false;
    take_preamble(peer, packet);
  } catch (...) {
    fail(std::current_exception());
  }
  took_packets_ = true;
  return true;
}

void Endpoint::packet_came(Peer& peer, std::size_t place) {
  const std::span<const std::byte> packet{peer.slots[place].bytes, peer.slots[place].size};
  take_preamble(peer, packet);
  (is_of_message(packet) ? peer.arrived : peer.unposted).push(place);
}

/// Takes a packet's credits, and a control message.
void Endpoint::take_preamble(Peer& peer, std::span<const std::byte> packet) {
  const auto preamble = preamble_of(packet);
  peer.last_heard = Clock::now();
  peer.credits += preamble.credits;
  if (peer.credits > credits_of_a_peer_) {
    fail_by(peer, "returned more credits than it received packets");
  }
  switch (preamble.kind) {
    case Kind::begin:
    case Kind::more:
    case Kind::credit:
      break;
    case Kind::abort:
      take_abort(peer, packet);
      break;
    case Kind::leave:
      peer.left = true;
      peer.ended = false;  // an orderly end
      changed_.notify_all();
      break;
    case Kind::parted:
      peer.parted = true;
      break;
    default:
      fail_by(peer, "sent a malformed packet");
  }
}

void Endpoint::take_abort(const Peer& peer, std::span<const std::byte> packet) {
  if (aborted_) return;
  if (packet.size() < kAbortPreambleBytes) return fail_by(peer, "sent a malformed packet");
  const Rank aborter{read<std::int32_t>(packet.data() + sizeof(Preamble))};
  if (aborter == rank_ || aborter.value < 0 || aborter.value >= size()) {
    return fail_by(peer, "passed on an abort of a worker that did not abort");
  }
  const std::span<const std::byte> reason = packet.subspan(kAbortPreambleBytes);
  note_abort(aborter, {reinterpret_cast<const char*>(reason.data()), reason.size()});
}

/// Notes that a worker aborted the network. Does nothing after the first abort.
void Endpoint::note_abort(Rank aborter, std::string_view reason) {
  if (aborted_) return;
  aborted_ = true;
  aborter_ = aborter;
  abort_reason_ = reason.substr(0, kAbortReasonBytes);
  write(abort_word_ + sizeof(Preamble), std::int32_t{aborter.value});
  std::memcpy(abort_word_ + kAbortPreambleBytes, abort_reason_.data(), abort_reason_.size());
  changed_.notify_all();
}

/// Marks ended processes as left after kGrace, in which their last packets arrive.
void Endpoint::bury(Clock::time_point now) {
  for (Peer& peer : peers_) {
    if (!peer.ended || peer.left) continue;
    if (now - peer.last_heard < kGrace) continue;
    peer.left = true;
    changed_.notify_all();
  }
}

}  // namespace sparsesync::packets
