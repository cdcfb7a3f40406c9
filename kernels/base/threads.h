// Threads that an execution context may carry, and how a kernel cuts its work among them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/base/function_view.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Sets the calling thread's default floating-point environment for its lifetime: denormals are
/// kept, results are rounded to nearest. A program may have changed its own (flush-to-zero is
/// common), and its sums would then differ in bits from those of the other workers.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment(DefaultFloatEnvironment&&) = delete;
  DefaultFloatEnvironment& operator=(DefaultFloatEnvironment&&) = delete;

 private:
  std::fenv_t callers_{};
};

/// A team of threads that sleeps between the pieces of work it is given. One team may serve many
/// contexts; it outlives them.
class Threads {
 public:
  /// Starts count - 1 threads: the caller of run() is the first of the team.
  /// @param count  at least 1
  /// @throws Error if a thread cannot be started; those that were are joined
  explicit Threads(int count);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  Threads(Threads&&) = delete;
  Threads& operator=(Threads&&) = delete;
  ~Threads();

  int count() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Calls body(part) for each part in [0, parts) and returns when all have returned; thread t
  /// takes the parts t, t + count(), ... in this order. Allocates nothing. While the team is at
  /// work (the call comes from a body, or from another thread) all parts run in the calling thread,
  /// one after another: so it never waits for itself, and a body must not wait for another part.
  /// @throws what a body throws: of several the one of the lowest part. A thread takes no further
  ///         parts after one that threw.
  void run(int parts, FunctionView<void(int part)> body);

 private:
  void serve(int thread);
  void take_parts(int thread);
  void stop();

  std::atomic<bool> busy_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  // Under the mutex; body_ and parts_ do not change while the team is at work.
  const FunctionView<void(int part)>* body_ = nullptr;
  int parts_ = 0;
  std::uint64_t round_ = 0;
  int working_ = 0;
  bool stopping_ = false;
  int failed_part_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> helpers_;
};

/// Threads that work of this context may use: 1 where it carries none. Does not synchronize the
/// stream.
inline int thread_count(const Context& context) {
  return context.threads() == nullptr ? 1 : context.threads()->count();
}

/// Into how many parts work of `size` is cut: one a thread, but none smaller than `grain` (waking a
/// thread costs some microseconds), and at least one. Does not synchronize the stream.
/// @param grain  at least 1
inline int part_count(const Context& context, Index size, Index grain) {
  const Index most = std::max<Index>(size / grain, 1);
  return static_cast<int>(std::min<Index>(most, thread_count(context)));
}

/// Calls body(part, range) for each part of EvenRanges(size, parts), on the context's threads;
/// returns when all have returned. The cut follows from the numbers alone, so scratch can be kept
/// for each part from one call to the next. Does not synchronize the stream.
/// @throws what a body throws: of several the one of the lowest part
template <typename Body>
void for_each_part(const Context& context, Index size, int parts, Body&& body) {
  const EvenRanges ranges(size, parts);
  if (context.threads() == nullptr) {
    for (int part = 0; part < parts; ++part) body(part, ranges.range(part));
    return;
  }
  context.threads()->run(parts, [&](int part) { body(part, ranges.range(part)); });
}

/// Calls body(range) for ranges that make up [0, size), none smaller than `grain` unless it is all;
/// as for_each_part(). Does not synchronize the stream.
template <typename Body>
void parallel_for(const Context& context, Index size, Index grain, Body&& body) {
  for_each_part(context, size, part_count(context, size, grain),
                [&](int, IndexRange range) { body(range); });
}

/// @throws Error naming the thread, why it could not be started, and how to mend it
[[noreturn]] void throw_not_started(std::string_view name, const std::system_error& error);

/// Starts a thread that runs body(), with the default floating-point environment: a new thread has
/// that of the thread that starts it.
/// @param name  the subject of the error's text, such as "the progress thread"
/// @throws Error if the system has no more threads, or no memory for one
template <typename Body>
std::thread start_thread(std::string_view name, Body body) {
  try {
    return std::thread([body = std::move(body)]() mutable {
      const DefaultFloatEnvironment default_modes;
      body();
    });
  } catch (const std::system_error& error) {
    throw_not_started(name, error);
  }
}

}  // namespace sparsesync
