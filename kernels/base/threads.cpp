#include "kernels/base/threads.h"

#include <string>

#include "kernels/base/error.h"

namespace sparsesync {

Threads::Threads(int count) {
  SPARSESYNC_EXPECT(count, >=, 1);
  helpers_.reserve(static_cast<std::size_t>(count) - 1);
  try {
    for (int thread = 1; thread < count; ++thread) {
      // Not count(): helpers_ is still growing.
      helpers_.push_back(start_thread("a kernel thread", [this, thread] { serve(thread); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() {
  stop();
}

void Threads::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Threads::run(int parts, FunctionView<void(int part)> body) {
  if (parts <= 1 || helpers_.empty() || busy_.exchange(true, std::memory_order_acquire)) {
    for (int part = 0; part < parts; ++part) body(part);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    parts_ = parts;
    failed_part_ = parts;
    working_ = static_cast<int>(helpers_.size());
    ++round_;
  }
  wake_.notify_all();
  take_parts(0);
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_ == 0; });
    failure = std::exchange(failure_, nullptr);
  }
  busy_.store(false, std::memory_order_release);
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Threads::serve(int thread) {
  std::uint64_t served = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || round_ != served; });
    if (stopping_) return;
    served = round_;
    lock.unlock();
    take_parts(thread);
    lock.lock();
    if (--working_ == 0) done_.notify_one();
  }
}

void Threads::take_parts(int thread) {
  int part = thread;
  try {
    for (; part < parts_; part += count()) (*body_)(part);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (part < failed_part_) {
      failed_part_ = part;
      failure_ = std::current_exception();
    }
  }
}

void throw_not_started(std::string_view name, const std::system_error& error) {
  throw Error(std::string(name) + " could not be started: " + error.code().message() +
              ": allow more threads (ulimit -u, or the container's process limit) or more "
              "memory (ulimit -v), or use fewer workers and threads");
}

}  // namespace sparsesync
