// The device of a benchmark: the CPU, or a GPU with SPARSESYNC_BENCH_DEVICE=cuda; and how its time
// is measured.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/base/device_stream.h"
#include "kernels/base/host_copy.h"
#include "kernels/base/threads.h"
#include "kernels/base/views.h"
#include "sparsesync/memory.h"

namespace sparsesync::bench {

/// Whether a GPU is measured. Without a GPU the program prints one line and exits with status 77.
bool on_cuda();

/// Times work on a stream with events recorded before and after it.
class StreamClock {
 public:
  /// @param device_stream  outlives this; null: the CPU, where nothing is timed
  explicit StreamClock(DeviceStream* device_stream);
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  void start();
  /// Waits for the work.
  /// @return seconds since start()
  double stop();

 private:
  struct Events;
  DeviceStream* device_stream_;
  std::unique_ptr<Events> events_;
};

/// A context on the measured device, with memory for the inputs of a benchmark row.
class Workplace {
 public:
  /// @param threads  on the CPU
  explicit Workplace(Index threads);
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  const Context& context() const { return *context_; }

  /// Allocates uninitialized memory for `count` elements.
  template <typename T>
  std::span<T> room(std::size_t count) {
    return {reinterpret_cast<T*>(take(count * sizeof(T))), count};
  }
  /// Copies `from` to the device.
  template <typename T>
  std::span<T> place(const std::vector<T>& from) {
    const std::span<T> to = room<T>(from.size());
    sparsesync::upload(context(), std::as_bytes(std::span(from)),
                       std::as_writable_bytes(to).data());
    return to;
  }
  /// Copies `from` to the host. Synchronizes the stream.
  template <typename T>
  std::vector<T> fetch(std::span<const T> from) const {
    std::vector<T> to(from.size());
    sparsesync::fetch(context(), std::as_bytes(from), std::as_writable_bytes(std::span(to)).data());
    return to;
  }
  template <typename T>
  std::vector<T> fetch(std::span<T> from) const {
    return fetch(std::span<const T>(from));
  }

  /// The default for rows that prepare nothing.
  struct Nothing {
    void operator()() const {}
  };

  /// Runs `operation` in each iteration, after `prepare`, which is not timed. On a GPU the stream's
  /// events time it, after one warm-up run in which workspaces grow. Register such rows with
  /// timed().
  template <typename Operation, typename Prepare = Nothing>
  void measure(benchmark::State& state, Operation&& operation, const Prepare& prepare = {}) {
    if (context().device_stream() != nullptr) {
      prepare();
      operation();
      synchronize(context());
    }
    for ([[maybe_unused]] auto _ : state) {
      if (context().device_stream() != nullptr) {
        prepare();
        hold();
        clock_->start();
        operation();
        state.SetIterationTime(clock_->stop());
      } else {
        // PauseTiming() takes longer than some operations.
        if constexpr (!std::is_same_v<Prepare, Nothing>) {
          state.PauseTiming();
          prepare();
          state.ResumeTiming();
        }
        operation();
        benchmark::ClobberMemory();
      }
    }
  }

 private:
  std::byte* take(std::size_t bytes);
  /// Keeps the device busy while the host submits an operation. The time between the two events is
  /// then that of the operation alone, without the time in which the host submits its kernels.
  void hold();

  std::unique_ptr<CountedMemory> memory_;
  std::unique_ptr<CountedMemory> pinned_;
  std::unique_ptr<DeviceStream> device_stream_;
  std::unique_ptr<Threads> threads_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<StreamClock> clock_;
  struct Block {
    std::byte* data;
    std::size_t bytes;
  };
  std::vector<Block> blocks_;
};

/// Configures a row that a Workplace measures; pass it to Apply(). On a GPU the row's time is that
/// of the stream's events. The number of iterations is fixed, because each further call of a row
/// builds its inputs again. Rows with several threads report wall-clock time.
void timed(benchmark::internal::Benchmark* row);

/// Registers rows that only run on the CPU: rows with several threads, or of third-party code.
/// @return true, to initialize a constant with
template <typename Register>
bool of_cpu_alone(Register&& rows) {
  if (!on_cuda()) rows();
  return true;
}

}  // namespace sparsesync::bench
