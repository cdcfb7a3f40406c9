#include "analysis/compare/launcher.h"

#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "engine/session/bucket_agreement.h"
#include "kernels/base/start_thread.h"

namespace sparsesync {
namespace {

// What a process says of work that failed begins with one of these.
constexpr char kDone = '.';
constexpr char kBadInput = 'i';
constexpr char kFailed = 'f';

}  // namespace

void Workers::together(const std::function<void()>& work) {
  std::string said(1, kDone);
  std::exception_ptr error;
  try {
    work();
  } catch (const InputError& bad) {
    error = std::current_exception();
    said = kBadInput + std::string(bad.what());
  } catch (const std::exception& failed) {
    error = std::current_exception();
    said = kFailed + std::string(failed.what());
  }
  const std::vector<std::string> all = all_gather(said);
  if (error) std::rethrow_exception(error);
  for (std::size_t process = 0; process < all.size(); ++process) {
    if (all[process] == said) continue;
    const std::string text = fmt::format("worker {}: {}", process, all[process].substr(1));
    if (all[process].front() == kBadInput) throw InputError(text);
    throw Error(text);
  }
}

std::vector<std::exception_ptr> run_in_threads(
    std::vector<std::unique_ptr<Transport>> ends,
    const std::function<void(std::unique_ptr<Transport>& end, std::size_t place)>& work,
    const std::function<void()>& meanwhile) {
  std::vector<std::exception_ptr> errors(ends.size());
  std::atomic<std::size_t> running = ends.size();
  const auto run = [&](std::size_t place) {
    try {
      work(ends[place], place);
    } catch (...) {
      errors[place] = std::current_exception();
    }
    ends[place].reset();
    --running;
  };
  std::vector<std::thread> threads;
  threads.reserve(ends.size());
  try {
    while (threads.size() < ends.size()) {
      threads.push_back(
          start_thread("the thread of a worker", [&run, place = threads.size()] { run(place); }));
    }
  } catch (...) {
    // Workers that run wait for those that do not: they lose them, and end.
    for (std::size_t place = threads.size(); place < ends.size(); ++place) {
      errors[place] = std::current_exception();
      ends[place].reset();
      --running;
    }
  }
  while (meanwhile && running > 0) {
    meanwhile();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::exception_ptr first_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr consequence;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const AbortedError&) {
      consequence = error;
    } catch (const PeerLostError&) {
      consequence = error;
    } catch (...) {
      return error;
    }
  }
  return consequence;
}

std::vector<Rank> LocalWorkers::here() const {
  std::vector<Rank> all;
  for (const Rank rank : Ranks(size_)) all.push_back(rank);
  return all;
}

std::vector<std::unique_ptr<Transport>> LocalWorkers::connect() {
  network_ = std::make_unique<LocalNetwork>(size_, link_, per_node_);
  std::vector<std::unique_ptr<Transport>> ends;
  for (const Rank rank : here()) ends.push_back(network_->join(rank));
  return ends;
}

MpiWorkers::MpiWorkers(std::chrono::milliseconds deadline, MpiChunks chunks)
    : chunks_(chunks),
      world_({false, deadline}),
      control_(world_.join()),
      channel_(*control_, Context(memory_), deadline) {}

int MpiWorkers::on_this_machine() const {
  int workers = 0;
  for (const Rank rank : Ranks(size())) {
    if (control_->node(rank) == control_->node(world_.rank())) ++workers;
  }
  return workers;
}

int MpiWorkers::per_node() const {
  return workers_of_a_node(*control_);
}

std::vector<std::unique_ptr<Transport>> MpiWorkers::connect() {
  std::vector<std::unique_ptr<Transport>> ends;
  ends.push_back(world_.join(chunks_));
  return ends;
}

std::vector<std::string> MpiWorkers::all_gather(const std::string& own) {
  return channel_.all_gather(own);
}

void MpiWorkers::agree(const std::string& subject, const ControlChannel::Statement& own) {
  channel_.agree(subject, own);
}

}  // namespace sparsesync
