// The worker's side of an endpoint.
#include <unistd.h>

#include <cstring>

#include "engine/transport/packets/endpoint.h"
#include "kernels/base/printable.h"
#include "schemes/transport.h"

namespace sparsesync::packets {
namespace {

/// Bytes of a piece of an all-reduce. Pieces are copied into the endpoint's memory, because the
/// link may still use it after the worker has given up.
constexpr std::size_t kReductionBytes = std::size_t{32} << 20U;
/// Grace period for a worker that left: it may have left after it contributed to the all-reduce.
constexpr std::chrono::milliseconds kPartingGrace{200};

}  // namespace

/// Runs `body`, and drops all messages after an error, because their memory may then be freed at
/// once.
template <typename Body>
auto Endpoint::withdrawing_on_error(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    withdrawn_ = true;
    drop_messages();
    throw;
  }
}

/// Forgets all incomplete messages, and their owners' memory.
void Endpoint::drop_messages() {
  for (Peer& peer : peers_) {
    peer.outgoing.clear();
    peer.waiting.clear();
    peer.incoming = {};
  }
}

GroupId Endpoint::post(const Context& context, const Header& expected, std::span<const Send> sends,
                       std::span<const Receive> receives, ReceiveProvider& provider) {
  const std::lock_guard lock(mutex_);
  return withdrawing_on_error([&] { return start(context, expected, sends, receives, provider); });
}

std::optional<Arrival> Endpoint::next(GroupId id, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return withdrawing_on_error([&] { return wait_for_receive(lock, group_of(id), until); });
}

void Endpoint::finish(GroupId id, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  withdrawing_on_error([&] {
    Group& group = group_of(id);
    wait_for_sends(lock, group, until);
    group.id = 0;
    --open_groups_;
  });
}

void Endpoint::abort(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
    // The reason must fit into one packet of the peers.
    note_abort(rank_, whole_characters(reason, std::min(kAbortReasonBytes,
                                                        options_.bytes - kAbortPreambleBytes)));
  }
  wake_();
}

void Endpoint::expect_alive(std::span<const Rank> others) {
  const std::lock_guard lock(mutex_);
  throw_if_over();
  for (const Rank worker : others) {
    if (peer_of(worker).left) throw_lost(worker);
  }
}

TransportCounters Endpoint::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Endpoint::leave() {
  // The driving thread may have held the lock when the process forked.
  if (getpid() != process_) return;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    drop_messages();
  }
  wake_();
}

GroupId Endpoint::start(const Context& context, const Header& expected, std::span<const Send> sends,
                        std::span<const Receive> receives, ReceiveProvider& provider) {
  throw_if_over();
  Group& group = unused_group();
  group.expected = expected;
  group.provider = &provider;
  group.receives.clear();
  group.complete.clear();
  group.unsent = sends.size();
  for (const Receive& receive : receives) {
    expect_peer(receive.from, rank_, size());
    peer_of(receive.from).waiting.push({&group, group.receives.size()});
    group.receives.push_back({receive.from, {}, {}, false});
  }
  for (const Send& send : sends) {
    expect_peer(send.to, rank_, size());
    Peer& peer = peer_of(send.to);
    if (peer.left) throw_lost(send.to);
    Outgoing message{&group, expected, send.data, 0, false};
    message.header.bytes = static_cast<std::uint64_t>(send.bytes.resolve(context));
    ++counters_.messages_sent;
    counters_.bytes_sent += kHeaderBytes + static_cast<std::int64_t>(message.header.bytes);
    peer.outgoing.push(message);
  }
  group.id = next_group_++;
  ++open_groups_;
  wake_();
  return {group.id};
}

std::optional<Arrival> Endpoint::wait_for_receive(std::unique_lock<std::mutex>& lock, Group& group,
                                                  Clock::time_point until) {
  while (true) {
    match_messages();
    if (!group.complete.empty()) {
      const std::size_t place = group.complete.front();
      group.complete.pop();
      Waiting& receive = group.receives[place];
      receive.returned = true;
      return Arrival{place, receive.header, receive.payload};
    }
    throw_if_over();
    bool waits = false;
    for (const Waiting& receive : group.receives) {
      if (receive.returned) continue;
      waits = true;
      if (peer_of(receive.from).left) throw_lost(receive.from);
    }
    if (!waits) return std::nullopt;
    if (Clock::now() >= until) {
      std::vector<Rank> silent;
      for (const Waiting& receive : group.receives) {
        if (!receive.returned) silent.push_back(receive.from);
      }
      throw_deadline(rank_, std::move(silent));
    }
    changed_.wait_until(lock, until);
  }
}

void Endpoint::wait_for_sends(std::unique_lock<std::mutex>& lock, const Group& group,
                              Clock::time_point until) {
  while (group.unsent > 0) {
    throw_if_over();
    const bool late = Clock::now() >= until;
    std::vector<Rank> slow;
    for (const Peer& peer : peers_) {
      for (std::size_t i = 0; i < peer.outgoing.size(); ++i) {
        if (peer.outgoing[i].group != &group) continue;
        if (peer.left) throw_lost(peer.rank);
        if (late) slow.push_back(peer.rank);
      }
    }
    if (late) throw_deadline(rank_, std::move(slow));
    changed_.wait_until(lock, until);
  }
}

void Endpoint::all_reduce(DType dtype, std::span<std::byte> elements, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  withdrawing_on_error([&] {
    const std::int64_t moved = all_reduce_bytes(std::ssize(elements), size());
    while (!elements.empty()) {
      const std::size_t bytes = std::min(elements.size(), kReductionBytes);
      reduce_piece(lock, dtype, elements.first(bytes), until);
      elements = elements.subspan(bytes);
    }
    counters_.bytes_sent += moved;
    counters_.bytes_received += moved;
  });
}

void Endpoint::reduce_piece(std::unique_lock<std::mutex>& lock, DType dtype,
                            std::span<std::byte> elements, Clock::time_point until) {
  throw_if_over();
  SPARSESYNC_EXPECT(static_cast<int>(reduction_.state), ==,
                    static_cast<int>(Reduction::State::none));
  if (reduction_.room < elements.size()) {
    reduction_.memory = std::make_unique<std::byte[]>(elements.size());
    reduction_.room = elements.size();
  }
  std::memcpy(reduction_.memory.get(), elements.data(), elements.size());
  reduction_.dtype = dtype;
  reduction_.bytes = elements.size();
  reduction_.state = Reduction::State::asked;
  wake_();
  while (reduction_.state != Reduction::State::done) {
    throw_if_over();
    const Clock::time_point now = Clock::now();
    std::vector<Rank> others;
    for (const Peer& peer : peers_) {
      if (peer.left && now - peer.last_heard >= kPartingGrace) throw_lost(peer.rank);
      if (now >= until) others.push_back(peer.rank);
    }
    if (now >= until) throw_deadline(rank_, std::move(others));
    changed_.wait_until(lock, std::min(until, now + kPartingGrace));
  }
  std::memcpy(elements.data(), reduction_.memory.get(), elements.size());
  reduction_.state = Reduction::State::none;
}

/// Matches messages whose header has arrived with their receives, in order, and gets memory for
/// their payloads.
void Endpoint::match_messages() {
  bool room = false;
  for (Peer& peer : peers_) {
    const std::size_t before = peer.arrived.size();
    while (true) {
      take_packets(peer);
      if (!peer.incoming.open || peer.incoming.matched || peer.waiting.empty()) break;
      const auto [group, place] = peer.waiting.front();
      peer.waiting.pop();
      Incoming& message = peer.incoming;
      check_header(peer.rank, group->expected, message.header);
      message.group = group;
      message.receive = place;
      message.to = group->provider->provide(place, message.header);
      message.matched = true;
    }
    room = room || peer.arrived.size() < before;
  }
  if (room) wake_();
}

void Endpoint::throw_if_over() const {
  if (aborted_) throw_aborted(aborter_, abort_reason_);
  if (failure_) std::rethrow_exception(failure_);
}

Endpoint::Group& Endpoint::group_of(GroupId id) {
  for (const std::unique_ptr<Group>& group : groups_) {
    if (group->id == id.value && id.value != 0) return *group;
  }
  throw ContractError("unknown group: it was not posted, or it is finished");
}

Endpoint::Group& Endpoint::unused_group() {
  for (const std::unique_ptr<Group>& group : groups_) {
    if (group->id == 0) return *group;
  }
  return *groups_.emplace_back(std::make_unique<Group>());
}

Endpoint::Peer& Endpoint::peer_of(Rank worker) {
  const auto workers = static_cast<int>(nodes_.size());
  return peers_[static_cast<std::size_t>((worker.value - rank_.value - 1 + workers) % workers)];
}

}  // namespace sparsesync::packets
