// Threads of an execution context, and the division of a kernel's work among them.
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

/// Sets the calling thread's floating-point environment to the default for its lifetime: denormals
/// are kept and results round to nearest. A program may have changed the environment (flush-to-zero
/// is common). The bits of its sums would then differ from those of other workers.
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

/// A thread pool that sleeps between calls of run(). One pool may serve many contexts and must
/// outlive them.
class Threads {
 public:
  /// Starts count - 1 threads. The caller of run() is the first thread of the pool.
  /// @param count  at least 1
  /// @throws Error if a thread cannot be started; threads that were started are joined
  explicit Threads(int count);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  Threads(Threads&&) = delete;
  Threads& operator=(Threads&&) = delete;
  ~Threads();

  int count() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Calls body(part) for each part in [0, parts) and returns after the last call. Thread t runs
  /// parts t, t + count(), ... in this order. Allocates nothing.
  ///
  /// If the pool is busy (the call comes from a body or from another thread), all parts run in the
  /// calling thread, one after another. The pool thus never waits for itself. A body must not wait
  /// for another part.
  /// @throws the exception of a body; of several, the one of the lowest part. A thread runs no
  ///         further parts after one that threw.
  void run(int parts, FunctionView<void(int part)> body);

 private:
  void serve(int thread);
  void take_parts(int thread);
  void stop();

  std::atomic<bool> busy_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  // Protected by mutex_. body_ and parts_ do not change while the pool runs.
  const FunctionView<void(int part)>* body_ = nullptr;
  int parts_ = 0;
  std::uint64_t round_ = 0;
  int working_ = 0;
  bool stopping_ = false;
  int failed_part_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> helpers_;
};

/// Returns the number of threads that work of this context may use: 1 if it has no thread pool.
/// Does not synchronize the stream.
inline int thread_count(const Context& context) {
  return context.threads() == nullptr ? 1 : context.threads()->count();
}

/// Returns the number of parts that work of `size` is divided into: at least one, and at most one
/// per thread. No part is smaller than `grain`, because waking a thread costs a few microseconds.
/// Does not synchronize the stream.
/// @param grain  at least 1
inline int part_count(const Context& context, Index size, Index grain) {
  const Index most = std::max<Index>(size / grain, 1);
  return static_cast<int>(std::min<Index>(most, thread_count(context)));
}

/// Calls body(part, range) for each part of EvenRanges(size, parts) on the context's threads.
/// Returns after the last call. The division depends only on the arguments, so the caller can keep
/// scratch memory per part between calls. Does not synchronize the stream.
/// @throws the exception of a body; of several, the one of the lowest part
template <typename Body>
void for_each_part(const Context& context, Index size, int parts, Body&& body) {
  const EvenRanges ranges(size, parts);
  if (context.threads() == nullptr) {
    for (int part = 0; part < parts; ++part) body(part, ranges.range(part));
    return;
  }
  context.threads()->run(parts, [&](int part) { body(part, ranges.range(part)); });
}

/// Calls body(range) for ranges that cover [0, size), like for_each_part(). No range is smaller
/// than `grain` unless it is the only one. Does not synchronize the stream.
template <typename Body>
void parallel_for(const Context& context, Index size, Index grain, Body&& body) {
  for_each_part(context, size, part_count(context, size, grain),
                [&](int, IndexRange range) { body(range); });
}

/// Reports that a thread could not be started.
/// @throws Error naming the thread, the cause, and how to fix it
[[noreturn]] void throw_not_started(std::string_view name, const std::system_error& error);

/// Starts a thread that runs body() with the default floating-point environment. Without this, a
/// new thread inherits the environment of its creator.
/// @param name  subject of the error message, for example "the progress thread"
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
