// Workers that are threads of this process, connected by UCX.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/transport/worker_threads.h"
#include "sparsesync/transports/ucx.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

/// The rendezvous of workers in one process.
class Room {
 public:
  explicit Room(int size) : size_(size) {}

  /// Returns the rendezvous of a worker.
  static std::unique_ptr<Rendezvous> door(const std::shared_ptr<Room>& room, Rank rank) {
    return std::make_unique<Door>(room, rank);
  }

 private:
  /// One worker's side.
  class Door : public Rendezvous {
   public:
    Door(std::shared_ptr<Room> room, Rank rank) : room_(std::move(room)), rank_(rank) {}
    Rank rank() const override { return rank_; }
    int size() const override { return room_->size_; }
    std::vector<std::string> all_gather(const std::string& own, Clock::time_point until) override {
      return room_->gather(gathers_++, rank_, own, until);
    }

   private:
    std::shared_ptr<Room> room_;
    Rank rank_;
    int gathers_ = 0;
  };

  std::vector<std::string> gather(int number, Rank rank, const std::string& own,
                                  Clock::time_point until) {
    std::unique_lock lock(mutex_);
    std::map<int, std::string>& texts = texts_[number];
    texts[rank.value] = own;
    changed_.notify_all();
    if (!changed_.wait_until(lock, until, [&] { return std::ssize(texts) == size_; })) {
      throw DeadlineError("a worker is missing in the room");
    }
    std::vector<std::string> all;
    for (const auto& [worker, text] : texts) all.push_back(text);
    return all;
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::map<int, std::string>> texts_;  // [gather][rank]
};

/// Returns workers that are threads of this process, connected by UCX.
inline WorkersUnderTest ucx_workers(const std::string& name, UcxOptions options = {}) {
  return workers_in_threads(name, [=](int size, const WorkersUnderTest::Body& body) {
    const auto room = std::make_shared<Room>(size);
    return run_in_threads(std::vector<std::unique_ptr<Transport>>(static_cast<std::size_t>(size)),
                          [&](std::unique_ptr<Transport>& end, std::size_t rank) {
                            const auto door = Room::door(room, Rank{static_cast<int>(rank)});
                            end = ucx_over(*door, options);
                            body(end);
                          });
  });
}

}  // namespace sparsesync::testing
