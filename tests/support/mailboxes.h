// A point-to-point network between threads that implements only the interface of PointToPoint.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/transport/worker_threads.h"
#include "schemes/transport.h"
#include "sparsesync/transports/process_group.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

/// State shared by the endpoints of all workers. A send and its receive meet here, and the later
/// one copies.
class Mailboxes {
 public:
  explicit Mailboxes(int size) : left_(static_cast<std::size_t>(size)) {}

  /// Returns the endpoint of a worker.
  static std::unique_ptr<PointToPoint> end(const std::shared_ptr<Mailboxes>& boxes, Rank rank) {
    return std::make_unique<End>(boxes, rank);
  }

 private:
  using Key = std::tuple<int, int, PointToPoint::Lane>;  // from, to, lane
  struct Half {
    PointToPoint::Call call = 0;
    std::byte* bytes = nullptr;
    std::size_t size = 0;
  };
  struct Box {
    std::list<Half> sends;
    std::list<Half> receives;
  };
  struct Started {
    Rank peer;
    bool done = false;
  };

  class End : public PointToPoint {
   public:
    End(std::shared_ptr<Mailboxes> boxes, Rank rank) : boxes_(std::move(boxes)), rank_(rank) {}
    ~End() override {
      withdraw();
      const std::lock_guard lock(boxes_->mutex_);
      boxes_->left_[rank_.index()] = true;
      boxes_->changed_.notify_all();
    }
    void start(std::span<const Incoming> receives, std::span<const Outgoing> sends,
               std::vector<Call>& started) override {
      for (const auto& [from, lane, bytes] : receives) {
        started.push_back(
            start({from.value, rank_.value, lane}, from, false, {0, bytes.data(), bytes.size()}));
      }
      for (const auto& [to, lane, bytes] : sends) {
        started.push_back(start({rank_.value, to.value, lane}, to, true,
                                {0, const_cast<std::byte*>(bytes.data()), bytes.size()}));
      }
    }
    Waited wait(std::span<const Call> calls, Clock::time_point until) override {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const Outcome outcome = wait(calls[i], until);
        if (outcome != Outcome::done) return {outcome, i};
      }
      return {Outcome::done, calls.size()};
    }
    void withdraw() noexcept override {
      const std::lock_guard lock(boxes_->mutex_);
      for (auto& [key, box] : boxes_->boxes_) {
        if (std::get<0>(key) == rank_.value) box.sends.clear();
        if (std::get<1>(key) == rank_.value) box.receives.clear();
      }
    }
    bool has_all_reduce() const override { return false; }
    Outcome all_reduce(DType, std::span<std::byte>, Clock::time_point) override {
      throw ContractError("there is none");
    }

   private:
    Outcome wait(Call call, Clock::time_point until) {
      std::unique_lock lock(boxes_->mutex_);
      const Started& waited = boxes_->calls_.at(call);
      const bool over = boxes_->changed_.wait_until(
          lock, until, [&] { return waited.done || boxes_->left_[waited.peer.index()]; });
      const bool done = waited.done;
      boxes_->calls_.erase(call);
      return done ? Outcome::done : over ? Outcome::lost : Outcome::deadline;
    }

    Call start(const Key& key, Rank peer, bool sends, Half own) {
      const std::lock_guard lock(boxes_->mutex_);
      Box& box = boxes_->boxes_[key];
      std::list<Half>& others = sends ? box.receives : box.sends;
      if (others.empty() && boxes_->left_[peer.index()]) throw_lost(peer);
      own.call = boxes_->next_call_++;
      boxes_->calls_[own.call] = {peer};
      (sends ? box.sends : box.receives).push_back(own);
      if (others.empty()) return own.call;
      const Half from = box.sends.front();
      const Half to = box.receives.front();
      EXPECT_EQ(from.size, to.size);
      std::memcpy(to.bytes, from.bytes, to.size);
      for (const Call call : {from.call, to.call}) boxes_->calls_[call].done = true;
      box.sends.pop_front();
      box.receives.pop_front();
      boxes_->changed_.notify_all();
      return own.call;
    }

    std::shared_ptr<Mailboxes> boxes_;
    Rank rank_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Box> boxes_;
  std::map<PointToPoint::Call, Started> calls_;
  std::vector<bool> left_;
  PointToPoint::Call next_call_ = 1;
};

/// Returns workers that are threads of this process and communicate only through Mailboxes.
inline WorkersUnderTest mailbox_workers() {
  WorkersUnderTest workers = local_workers("mailboxes", {});
  workers.relays_aborts = true;
  workers.run = [counter = workers.counter](int size, const WorkersUnderTest::Body& body) {
    counter() = 0;
    const auto boxes = std::make_shared<Mailboxes>(size);
    const std::vector<int> nodes(static_cast<std::size_t>(size));
    std::vector<std::unique_ptr<Transport>> ends;
    for (int rank = 0; rank < size; ++rank) {
      ends.push_back(transport_over(Mailboxes::end(boxes, Rank{rank}), Rank{rank}, nodes));
    }
    return run_in_threads(std::move(ends),
                          [&](std::unique_ptr<Transport>& end, std::size_t) { body(end); });
  };
  return workers;
}

}  // namespace sparsesync::testing
