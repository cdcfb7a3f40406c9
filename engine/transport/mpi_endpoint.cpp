// The MPI thread's side of an endpoint, and functions for both sides. The worker's side is in
// mpi_endpoint_worker.cpp.
#include "engine/transport/mpi_endpoint.h"

#include <fmt/format.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <algorithm>
#include <cstring>

#include "schemes/pattern.h"

namespace sparsesync::mpi {
namespace {

constexpr int kTag = 1;
/// Slots in addition to those that credits count. Control messages need no credit, and are handled
/// at once.
constexpr std::size_t kSlotsForWords = 4;
/// Time in which packets of an ended process may still arrive.
constexpr std::chrono::milliseconds kGrace{200};

/// The kind of a packet: invalid, part of a message, or a control message. It occupies 4 bytes of a
/// packet.
// NOLINTNEXTLINE(performance-enum-size)
enum class Kind : std::uint32_t { none, begin, more, credit, abort, leave };

/// The first bytes of each packet. In a `begin` packet the message's header follows.
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

/// Leaks memory on purpose: MPI may use it as long as the process lives.
void give_to_mpi(std::unique_ptr<std::byte[]>& memory) {
  [[maybe_unused]] const std::byte* const given = memory.release();
#ifdef __SANITIZE_ADDRESS__
  __lsan_ignore_object(given);
#endif
}

/// Returns MPI's type for sums. Unsigned types make integers wrap on overflow.
MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i32:
      return MPI_UINT32_T;
    case DType::i64:
      return MPI_UINT64_T;
    case DType::f16:
    case DType::bf16:
      break;
  }
  throw ContractError("a native all-reduce needs elements of f32, f64, i32 or i64");
}

}  // namespace

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw Error(fmt::format("{} failed: {}", call, text));
}

Endpoint::Endpoint(MPI_Comm communicator, Rank rank, std::vector<int> nodes, PacketOptions options,
                   std::function<void()> wake)
    : communicator_(communicator),
      rank_(rank),
      nodes_(std::move(nodes)),
      options_(options),
      credits_of_a_peer_(
          std::max<std::size_t>(2, options.window / std::max<std::size_t>(1, nodes_.size() - 1))),
      slots_of_a_peer_(credits_of_a_peer_ + kSlotsForWords),
      wake_(std::move(wake)) {
  const std::vector<Rank> ranks = peers_after(rank_, size());
  const std::size_t packets = ranks.size() * slots_of_a_peer_ + options_.window;
  const std::size_t words = (ranks.size() + 1) * sizeof(Preamble) + sizeof(Preamble);
  memory_ = std::make_unique<std::byte[]>(packets * options_.bytes + words + kAbortReasonBytes);
  std::byte* memory = memory_.get();
  const auto next = [&](std::size_t bytes) { return std::exchange(memory, memory + bytes); };
  requests_.assign(ranks.size() * (slots_of_a_peer_ + kWords) + options_.window + 1,
                   MPI_REQUEST_NULL);
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    Peer& peer = peers_.emplace_back();
    peer.rank = ranks[place];
    peer.credits = credits_of_a_peer_;
    for (std::size_t slot = 0; slot < slots_of_a_peer_; ++slot) {
      peer.slots.push_back({next(options_.bytes)});
      peer.unposted.push(slot);
      check(MPI_Recv_init(peer.slots.back().bytes, static_cast<int>(options_.bytes), MPI_BYTE,
                          peer.rank.value, kTag, communicator_,
                          &requests_[slot_request(place, slot)]),
            "MPI_Recv_init");
    }
  }
  for (std::size_t packet = 0; packet < options_.window; ++packet) {
    packets_.push_back({next(options_.bytes)});
  }
  credit_words_ = next(ranks.size() * sizeof(Preamble));
  leave_word_ = next(sizeof(Preamble));
  write(leave_word_, Preamble{Kind::leave, 0});
  abort_word_ = next(sizeof(Preamble) + kAbortReasonBytes);
  write(abort_word_, Preamble{Kind::abort, 0});
  abort_text_ = abort_word_ + sizeof(Preamble);
  word_under_way_.assign(ranks.size() * kWords, false);
  calls_.reserve(requests_.size());
  completed_.resize(requests_.size());
  statuses_.resize(requests_.size());
}

Endpoint::~Endpoint() {
  if (closed_) return;
  give_to_mpi(memory_);
  give_to_mpi(reduction_.memory);
}

void Endpoint::close() {
  if (!quiet()) return;
  for (std::size_t place = 0; place < peers_.size(); ++place) {
    for (std::size_t slot = 0; slot < slots_of_a_peer_; ++slot) {
      MPI_Request& request = requests_[slot_request(place, slot)];
      if (peers_[place].slots[slot].under_way) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      }
      MPI_Request_free(&request);
    }
  }
  MPI_Comm_free(&communicator_);
  closed_ = true;
}

std::size_t Endpoint::slot_request(std::size_t peer, std::size_t slot) const {
  return peer * slots_of_a_peer_ + slot;
}
std::size_t Endpoint::packet_request(std::size_t packet) const {
  return (nodes_.size() - 1) * slots_of_a_peer_ + packet;
}
std::size_t Endpoint::word_request(std::size_t peer, Word word) const {
  return packet_request(options_.window) + peer * kWords + static_cast<std::size_t>(word);
}

std::size_t Endpoint::reduction_request() const {
  return requests_.size() - 1;
}

// ---- Either side.

/// Copies payloads from their slots to their destinations, as far as these are known.
void Endpoint::take_packets(Peer& peer) {
  Incoming& message = peer.incoming;
  while (!peer.arrived.empty() && !withdrawn_ && !leaving_ && !failure_) {
    const Slot& slot = peer.slots[peer.arrived.front()];
    const bool begins = read<Preamble>(slot.bytes).kind == Kind::begin;
    const std::byte* payload = slot.bytes + sizeof(Preamble);
    std::size_t size = slot.size - sizeof(Preamble);
    if (begins != !message.begun || (begins && size < sizeof(Header))) {
      fail_by(peer, "sent a packet outside of a message");
      return;
    }
    if (begins) {
      if (!message.open) {
        message.header = read<Header>(payload);
        message.open = true;
        changed_.notify_all();  // the worker provides memory for the payload
      }
      payload += sizeof(Header);
      size -= sizeof(Header);
    }
    if (!message.matched) return;
    if (size > message.header.bytes - message.received) {
      fail_by(peer, "sent more bytes than its header announced");
      return;
    }
    if (message.to != nullptr && size > 0) {
      std::memcpy(message.to + message.received, payload, size);
    }
    message.begun = true;
    message.received += size;
    peer.unposted.push(peer.arrived.front());
    peer.arrived.pop();
    ++peer.unreturned;
    if (message.received < message.header.bytes) continue;
    Waiting& receive = message.group->receives[message.receive];
    receive.header = message.header;
    receive.payload = {message.to, message.to == nullptr ? 0 : message.received};
    ++counters_.messages_received;
    counters_.bytes_received += kHeaderBytes + static_cast<std::int64_t>(message.header.bytes);
    message.group->complete.push(message.receive);
    message = {};
    changed_.notify_all();
  }
}

void Endpoint::fail(std::exception_ptr error) {
  if (!failure_) failure_ = std::move(error);
  changed_.notify_all();
}

/// Fails because a peer violated the protocol.
void Endpoint::fail_by(const Peer& peer, const char* what) {
  fail(std::make_exception_ptr(ProtocolError(fmt::format("worker {} {}", peer.rank.value, what))));
}

// ---- The MPI thread's side.

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
  return open_groups_ > 0 || leaving_ || aborts() || reduction_.state != Reduction::State::none;
}

void Endpoint::process_ended(Rank worker) {
  const std::lock_guard lock(mutex_);
  if (worker == rank_ || worker.value >= size()) return;
  Peer& peer = peer_of(worker);
  if (peer.left || peer.ended) return;
  peer.ended = true;
  peer.last_heard = Clock::now();
}

bool Endpoint::retired() const {
  const std::lock_guard lock(mutex_);
  return leaving_ &&
         std::all_of(
             peers_.begin(), peers_.end(),
             [](const Peer& peer) { return peer.ended || (peer.left && peer.sent_leave); }) &&
         !says_something();
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
      peer.slots[slot].under_way = true;
      peer.posted.push(slot);
      calls_.push_back({true, slot_request(place, slot), {}, nullptr, 0});
    }
  }
  const auto free_packet = [&] {
    return std::find_if(packets_.begin(), packets_.end(),
                        [](const Slot& packet) { return !packet.under_way; });
  };
  if (reduction_.state == Reduction::State::asked && !withdrawn_) {
    reduction_.state = Reduction::State::under_way;
    calls_.push_back({false, reduction_request(), {}, nullptr, 0});
  }
  std::size_t passed_over = 0;
  for (auto packet = free_packet(); packet != packets_.end() && passed_over < peers_.size();) {
    Peer& peer = peers_[turn_];
    turn_ = (turn_ + 1) % peers_.size();
    if (peer.left || peer.credits == 0 || peer.outgoing.empty() || withdrawn_) {
      ++passed_over;
      continue;
    }
    passed_over = 0;
    fill_packet(peer, static_cast<std::size_t>(packet - packets_.begin()));
    packet = free_packet();
  }
  for (std::size_t place = 0; place < peers_.size(); ++place) {
    Peer& peer = peers_[place];
    if (peer.ended) continue;
    // Returns credits once half of them are used. The peer need not stop, and few control messages
    // are sent.
    if (!peer.left && 2 * peer.unreturned >= credits_of_a_peer_ &&
        !word_under_way_[place * kWords + static_cast<std::size_t>(Word::credit)]) {
      std::byte* word = credit_words_ + place * sizeof(Preamble);
      write(word, Preamble{Kind::credit, static_cast<std::uint32_t>(peer.unreturned)});
      peer.unreturned = 0;
      send_word(place, Word::credit, word, sizeof(Preamble));
    }
    if (aborts() && !peer.left && !peer.sent_abort) {
      peer.sent_abort = true;
      send_word(place, Word::abort, abort_word_, sizeof(Preamble) + abort_reason_.size());
    }
    // A peer that left waits for the others to leave as well.
    if (leaving_ && !peer.sent_leave) {
      peer.sent_leave = true;
      send_word(place, Word::leave, leave_word_, sizeof(Preamble));
    }
  }
}

void Endpoint::fill_packet(Peer& peer, std::size_t place) {
  Slot& packet = packets_[place];
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
  calls_.push_back({false, packet_request(place), peer.rank, packet.bytes, packet.size});
  if (message.sent == message.header.bytes) {
    if (--message.group->unsent == 0) changed_.notify_all();
    peer.outgoing.pop();
  }
}

void Endpoint::send_word(std::size_t peer, Word word, const std::byte* bytes, std::size_t size) {
  word_under_way_[peer * kWords + static_cast<std::size_t>(word)] = true;
  calls_.push_back({false, word_request(peer, word), peers_[peer].rank, bytes, size});
}

void Endpoint::call(const Call& of) {
  if (of.request == reduction_request()) {
    check(
        MPI_Iallreduce(MPI_IN_PLACE, reduction_.memory.get(),
                       static_cast<int>(reduction_.bytes /
                                        static_cast<std::size_t>(element_bytes(reduction_.dtype))),
                       mpi_type(reduction_.dtype), MPI_SUM, communicator_, &requests_[of.request]),
        "MPI_Iallreduce");
  } else if (of.receives) {
    check(MPI_Start(&requests_[of.request]), "MPI_Start");
  } else {
    check(MPI_Isend(of.bytes, static_cast<int>(of.size), MPI_BYTE, of.to.value, kTag, communicator_,
                    &requests_[of.request]),
          "MPI_Isend");
  }
}

bool Endpoint::poll() {
  int count = 0;
  check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                     completed_.data(), statuses_.data()),
        "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    completed(static_cast<std::size_t>(completed_[at]), statuses_[at]);
  }
  return true;
}

void Endpoint::completed(std::size_t request, const MPI_Status& status) {
  if (request == reduction_request()) {
    reduction_.state = Reduction::State::done;
    changed_.notify_all();
  } else if (request >= packet_request(options_.window)) {
    word_under_way_[request - packet_request(options_.window)] = false;
  } else if (request >= packet_request(0)) {
    packets_[request - packet_request(0)].under_way = false;
  } else {
    Peer& peer = peers_[request / slots_of_a_peer_];
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    Slot& done = peer.slots[request % slots_of_a_peer_];
    done.size = static_cast<std::size_t>(bytes);
    done.under_way = false;
    peer.last_heard = Clock::now();
    // MPI fills slots in the order in which they were posted, but may report them in another order.
    while (!peer.posted.empty() && !peer.slots[peer.posted.front()].under_way) {
      packet_came(peer, peer.posted.front());
      peer.posted.pop();
    }
    take_packets(peer);
  }
}

void Endpoint::packet_came(Peer& peer, std::size_t place) {
  const Slot& slot = peer.slots[place];
  const Preamble preamble =
      slot.size >= sizeof(Preamble) ? read<Preamble>(slot.bytes) : Preamble{Kind::none, 0};
  peer.credits += preamble.credits;
  if (peer.credits > credits_of_a_peer_) {
    fail_by(peer, "returned more credits than it received packets");
  }
  switch (preamble.kind) {
    case Kind::begin:
    case Kind::more:
      peer.arrived.push(place);
      return;
    case Kind::credit:
      break;
    case Kind::abort:
      if (!aborted_) {
        aborted_ = true;
        aborter_ = peer.rank;
        abort_reason_.assign(reinterpret_cast<const char*>(slot.bytes) + sizeof(Preamble),
                             slot.size - sizeof(Preamble));
      }
      changed_.notify_all();
      break;
    case Kind::leave:
      peer.left = true;
      peer.ended = false;  // an orderly end
      changed_.notify_all();
      break;
    default:
      fail_by(peer, "sent a malformed packet");
  }
  peer.unposted.push(place);
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

}  // namespace sparsesync::mpi
