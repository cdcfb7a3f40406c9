#include "engine/transport/worker_threads.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/base/threads.h"

namespace sparsesync {

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
    // Destroys the endpoints of workers that did not start. Running workers that wait for them then
    // get PeerLostError and end.
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

}  // namespace sparsesync
