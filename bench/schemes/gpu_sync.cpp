// Measures a whole synchronization of the paper's LSTM case with several workers on one GPU: the
// device operations of each worker and phase, and the device's busy time.
//
//   gpu_sync [--tokens lm1b_tokens.npy] [--batch 2560] [--scheme balanced] [--json FILE]
//
// Without --tokens, ids are drawn by Zipf's law. There are two runs. The first one runs as in
// training and gives the wall-clock time. In the second one each kernel, copy and fill of all
// workers runs alone and is timed by events (DeviceTimes). Their sum is the busy time. It is an
// upper bound of the device's time if operations run concurrently. docs/kernels.md derives the
// bytes that it is compared with.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "analysis/trace/inputs.h"
#include "engine/support/json.h"
#include "engine/transport/worker_threads.h"
#include "kernels/base/bits.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device_stream.h"
#include "kernels/base/host_copy.h"
#include "kernels/rows/rows.h"
#include "sparsesync/device.h"
#include "sparsesync/session.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {
namespace {

struct Arguments {
  std::string tokens;
  Index rows = 793'471;
  Index width = 512;
  Index batch = 2560;
  int workers = 8;
  int steps = 5;
  std::string scheme = "balanced";
  bool announce = false;
  std::string json;
};

/// The distinct, increasing rows of each worker.
class Input {
 public:
  explicit Input(const Arguments& given) : width_(given.width) {
    std::vector<std::int64_t> tokens;
    if (!given.tokens.empty()) tokens = read_npy(given.tokens).values;
    std::vector<Index> united;
    for (int worker = 0; worker < given.workers; ++worker) {
      std::vector<Index> rows;
      for (Index token = 0; token < given.batch; ++token) {
        const auto at = static_cast<std::uint64_t>(worker * given.batch + token);
        rows.push_back(tokens.empty() ? drawn(at, given.rows) : tokens[at % tokens.size()]);
        if (rows.back() < 0 || rows.back() >= given.rows) {
          throw InputError(fmt::format("{}: token {} is not a row of {} rows", given.tokens,
                                       rows.back(), given.rows));
        }
      }
      make_set(rows);
      united.insert(united.end(), rows.begin(), rows.end());
      of_.push_back(std::move(rows));
    }
    make_set(united);
    united_ = std::move(united);
  }

  std::span<const Index> of(Rank worker) const { return of_[worker.index()]; }
  std::span<const Index> united() const { return united_; }
  double touched() const {
    double all = 0;
    for (const std::vector<Index>& rows : of_) all += static_cast<double>(rows.size());
    return all / static_cast<double>(of_.size());
  }

  /// Returns a whole number from 1 to 4, so that sums are exact.
  static float value(Rank worker, Index row, Index column) {
    return static_cast<float>((row * 3 + column + worker.value) % 4 + 1);
  }
  std::vector<float> values(Rank worker) const {
    std::vector<float> all;
    for (const Index row : of(worker)) {
      for (Index column = 0; column < width_; ++column) all.push_back(value(worker, row, column));
    }
    return all;
  }
  bool is_sum(std::span<const Index> indices, std::span<const float> values) const {
    if (!std::equal(indices.begin(), indices.end(), united_.begin(), united_.end())) return false;
    std::vector<float> sums(values.size());
    for (const Rank worker : Ranks(static_cast<int>(of_.size()))) {
      std::size_t at = 0;
      for (const Index row : of(worker)) {
        while (united_[at] != row) ++at;
        float* const to = sums.data() + at * static_cast<std::size_t>(width_);
        for (Index column = 0; column < width_; ++column) to[column] += value(worker, row, column);
      }
    }
    return std::equal(sums.begin(), sums.end(), values.begin(), values.end());
  }

 private:
  /// Draws from Zipf's law with an exponent of 1: ranks are uniform over their logarithms.
  static Index drawn(std::uint64_t number, Index rows) {
    constexpr std::uint64_t kSeed = 20'240'607;
    const double uniform = static_cast<double>(mix64(kSeed + number) >> 11U) * 0x1p-53;
    return std::min(static_cast<Index>(std::pow(static_cast<double>(rows), uniform)) - 1, rows - 1);
  }
  static void make_set(std::vector<Index>& rows) {
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  }

  Index width_;
  std::vector<std::vector<Index>> of_;
  std::vector<Index> united_;
};

constexpr std::array kPhaseNames{"announce", "reduce", "gather"};

/// Figures of one phase over all steps.
struct PhaseFigures {
  DeviceStream::Counters most;  // maximum over workers and steps
  std::vector<double> seconds;  // one per step and worker
  double busy_seconds = 0;      // per step, all workers together
};

/// Figures of all workers.
struct Figures {
  std::array<PhaseFigures, kPhaseNames.size()> phases;
  std::int64_t workspace = 0;  // bytes of the worker with the most, without its result
  bool correct = true;
  std::mutex mutex;
};

/// Returns the bytes that all workers together read and write for values in a step, as
/// docs/kernels.md derives them:
///
/// - A row is gathered into a message (read, written).
///
/// - The message is transferred (read, written, unless the row stays).
///
/// - The row is added up (read), and sums are written.
///
/// - Sums are copied into a message, transferred, and scattered (read and written each time).
double value_bytes(const Input& input, const Arguments& given) {
  const double n = given.workers;
  const double crosses = (n - 1) / n;
  const double row = static_cast<double>(given.width) * sizeof(float);
  const double pushed = input.touched() * (2 + 2 * crosses + 1);
  const auto united = static_cast<double>(input.united().size());
  const double pulled = united * (1 / n + 2 / n + 2 * crosses + 2);
  return n * (pushed + pulled) * row;
}

class Run {
 public:
  /// @param times  null: run as in training
  Run(const Arguments& given, const Input& input, DeviceTimes* times, Figures& figures)
      : given_(given), input_(input), times_(times), figures_(figures), together_(given.workers) {}

  void run() {
    LocalNetwork network(given_.workers, {});
    std::vector<std::unique_ptr<Transport>> ends;
    for (const Rank rank : Ranks(given_.workers)) ends.push_back(network.join(rank));
    const auto errors =
        run_in_threads(std::move(ends), [&](std::unique_ptr<Transport>& end, std::size_t) {
          try {
            work(end);
          } catch (...) {
            together_.arrive_and_drop();  // other workers no longer wait for this one
            throw;
          }
        });
    if (const std::exception_ptr error = first_cause(errors)) std::rethrow_exception(error);
  }

 private:
  void work(std::unique_ptr<Transport>& end) {
    const Rank rank = end->rank();
    DeviceMemory inputs(0);
    DeviceMemory workspaces(0);
    PinnedMemory pinned;
    HostMemory words;
    const auto own = make_device_stream(inputs, pinned);
    own->make_current();
    const Context context(inputs, *own);
    Buffer<Index> indices(context);
    Buffer<float> values(context);
    const std::span<const Index> rows = input_.of(rank);
    upload(context, std::as_bytes(rows),
           std::as_writable_bytes(indices.reserve_exactly(std::ssize(rows))).data());
    const std::vector<float> given = input_.values(rank);
    upload(context, std::as_bytes(std::span(given)),
           std::as_writable_bytes(values.reserve_exactly(std::ssize(given))).data());
    synchronize(context);

    DeviceStreamOptions how;
    how.times = times_;
    const auto device_stream = make_device_stream(workspaces, pinned, how);
    SessionOptions options;
    options.deadline = std::chrono::minutes(2);
    options.device = OnDevice{device_stream.get(), &workspaces, &pinned};
    Session session(std::move(end), words, options);
    BucketSpec spec{"embedding", {{"embedding", given_.rows, given_.width, DType::f32}}};
    spec.scheme = given_.scheme;
    spec.announce = given_.announce;
    const BucketId id = session.register_bucket(spec);
    const std::array gradients{Gradient::row_sparse(
        indices.first(std::ssize(rows)), reinterpret_cast<const std::byte*>(values.data()))};
    const std::array told{Gradient::rows(gradients[0].indices())};
    for (int step = 0; step < given_.steps + 2; ++step) {
      // In the first two steps workspaces grow, and the scheme learns the sizes.
      const bool counts = step >= 2;
      if (given_.announce) {
        phase(session, *device_stream, 0, counts, [&] { return session.announce(id, told); });
      }
      phase(session, *device_stream, 1, counts,
            [&] { return session.submit(id, Phase::reduce, gradients); });
      phase(session, *device_stream, 2, counts, [&] { return session.submit(id, Phase::gather); });
      if (step == 0) session.adapt(id);
    }
    const TensorResult result = session.result(id, 0);
    const std::int64_t result_bytes =
        result.values.bytes() + static_cast<std::int64_t>(result.indices.size_bytes());
    const std::lock_guard lock(figures_.mutex);
    figures_.workspace = std::max(figures_.workspace, workspaces.high_water() - result_bytes);
    if (rank == Rank{0}) figures_.correct = figures_.correct && is_correct(context, result);
  }

  bool is_correct(const Context& context, const TensorResult& result) const {
    std::vector<Index> indices(result.indices.size());
    std::vector<float> values(static_cast<std::size_t>(result.values.rows * result.values.width));
    fetch_numbers(context, result.indices, indices);
    fetch(context, result.values.as_bytes(), std::as_writable_bytes(std::span(values)).data());
    return input_.is_sum(indices, values);
  }

  template <typename Submit>
  void phase(Session& session, const DeviceStream& device_stream, std::size_t number, bool counts,
             const Submit& submit) {
    together_.arrive_and_wait();
    const double busy_before = busy();
    const DeviceStream::Counters before = device_stream.counters();
    const auto since = std::chrono::steady_clock::now();
    session.wait(submit());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
    const DeviceStream::Counters after = device_stream.counters();
    together_.arrive_and_wait();
    if (!counts) return;
    const std::lock_guard lock(figures_.mutex);
    PhaseFigures& of = figures_.phases[number];
    if (times_ != nullptr) {
      // Behind both barriers the counter is stable, so that one worker can report for all.
      if (session.rank() == Rank{0}) of.busy_seconds += (busy() - busy_before) / given_.steps;
      return;
    }
    of.most.launches = std::max(of.most.launches, after.launches - before.launches);
    of.most.copies = std::max(of.most.copies, after.copies - before.copies);
    of.most.synchronizations =
        std::max(of.most.synchronizations, after.synchronizations - before.synchronizations);
    of.seconds.push_back(seconds);
  }

  double busy() const {
    if (times_ == nullptr) return 0;
    const std::lock_guard lock(times_->one_at_a_time);
    return times_->seconds;
  }

  const Arguments& given_;
  const Input& input_;
  DeviceTimes* times_;
  Figures& figures_;
  std::barrier<> together_;
};

/// Returns the bytes per second that a copy on the device reads and writes.
double copy_bandwidth(Index bytes) {
  DeviceMemory memory(0);
  PinnedMemory pinned;
  DeviceTimes times;
  DeviceStreamOptions how;
  how.times = &times;
  const auto device_stream = make_device_stream(memory, pinned, how);
  device_stream->make_current();
  const Context context(memory, *device_stream);
  Buffer<std::byte> from(context);
  Buffer<std::byte> to(context);
  from.reserve_exactly(bytes);
  to.reserve_exactly(bytes);
  fill_zero(context, from.first(bytes));
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    const double before = times.seconds;
    copy(context, from.first(bytes), to.data());
    synchronize(context);
    const double seconds = times.seconds - before;
    if (i > 0) best = std::max(best, 2 * static_cast<double>(bytes) / std::max(seconds, 1e-9));
  }
  return best;
}

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

Json as_json(const Arguments& given, const Input& input, const Figures& figures, double copies) {
  const double row = static_cast<double>(given.width) * sizeof(float);
  const auto united = static_cast<double>(input.united().size());
  const double bytes = value_bytes(input, given);
  Json phases = Json::array();
  double busy = 0;
  for (std::size_t i = 0; i < kPhaseNames.size(); ++i) {
    const PhaseFigures& of = figures.phases[i];
    if (of.seconds.empty()) continue;
    busy += of.busy_seconds;
    phases.push_back({{"phase", kPhaseNames[i]},
                      {"launches", of.most.launches},
                      {"copies", of.most.copies},
                      {"host_synchronizations", of.most.synchronizations},
                      {"seconds_median", median(of.seconds)},
                      {"busy_seconds", of.busy_seconds}});
  }
  const DeviceFacts facts = device_facts();
  return {{"scheme", given.scheme},
          {"announce", given.announce},
          {"tensor", {{"rows", given.rows}, {"width", given.width}, {"dtype", "f32"}}},
          {"workers", given.workers},
          {"batch", given.batch},
          {"indices", given.tokens.empty() ? "zipf" : given.tokens},
          {"touched_rows_mean", input.touched()},
          {"united_rows", input.united().size()},
          {"steps", given.steps},
          {"phases", phases},
          {"busy_seconds", busy},
          {"value_bytes", bytes},
          {"copy_bytes_per_second", copies},
          {"copy_seconds", bytes / copies},
          {"busy_over_copy", busy / (bytes / copies)},
          {"workspace_bytes", figures.workspace},
          {"workspace_aim_bytes",
           1.5 * (input.touched() + united) * row + static_cast<double>(given.rows) / 7},
          {"correct", figures.correct},
          {"device",
           {{"emulated", facts.emulated},
            {"driver_version", or_null(facts.driver_version)},
            {"runtime_version", or_null(facts.runtime_version)},
            {"memory_bytes", device_bytes(0).total}}},
          {"provenance", provenance_json()}};
}

std::string as_text(const Json& json) {
  Table table(
      {{"phase", Table::Align::left}, {"launches"}, {"copies"}, {"waits"}, {"wall"}, {"busy"}});
  for (const Json& phase : json["phases"]) {
    table.add_row({phase["phase"].get<std::string>(),
                   fmt::format("{}", phase["launches"].get<int>()),
                   fmt::format("{}", phase["copies"].get<int>()),
                   fmt::format("{}", phase["host_synchronizations"].get<int>()),
                   format_seconds(phase["seconds_median"].get<double>()),
                   format_seconds(phase["busy_seconds"].get<double>())});
  }
  return fmt::format(
      "{}, {} workers, {:.0f} rows touched, {} in the union: the most of a worker\n{}\n"
      "busy {:.2f} times what copies of {:.3g} bytes take at {:.3g} bytes/s, {}\n"
      "workspace {} bytes; aimed at: {:.0f}\n",
      json["scheme"].get<std::string>(), json["workers"].get<int>(),
      json["touched_rows_mean"].get<double>(), json["united_rows"].get<std::int64_t>(),
      table.text(), json["busy_over_copy"].get<double>(), json["value_bytes"].get<double>(),
      json["copy_bytes_per_second"].get<double>(),
      format_seconds(json["copy_seconds"].get<double>()),
      json["workspace_bytes"].get<std::int64_t>(), json["workspace_aim_bytes"].get<double>());
}

int run(int count, char** arguments) {
  CLI::App app("A whole synchronization with several workers on one GPU.", "gpu_sync");
  Arguments given;
  app.add_option("--tokens", given.tokens, "token ids, a .npy file (default: drawn)");
  add_count(app, "--rows", given.rows, 1, Index{1} << 40, "rows of the tensor");
  add_count(app, "--width", given.width, 1, 1 << 20, "elements of a row");
  add_count(app, "--batch", given.batch, 1, 1 << 30, "tokens per worker");
  add_count(app, "--workers", given.workers, 1, 64, "threads, all on GPU 0");
  add_count(app, "--steps", given.steps, 1, 1000, "measured steps");
  app.add_option("--scheme", given.scheme, "scheme; `sparsesync info` lists them");
  app.add_flag("--announce", given.announce, "exchange index sets in advance");
  add_json(app, given.json);
  CLI11_PARSE(app, count, arguments);
  try {
    expect_device(0);
    JsonOutput output(given.json);
    const Input input(given);
    Figures figures;
    Run(given, input, nullptr, figures).run();
    DeviceTimes times;
    Run(given, input, &times, figures).run();
    const Index bytes = std::min<Index>(Index{856'000'000}, given.rows * given.width * 4);
    const Json json = as_json(given, input, figures, copy_bandwidth(bytes));
    print(output.tables(), as_text(json));
    output.write(json_text(json));
    if (!figures.correct) fmt::print(stderr, "gpu_sync: the result is wrong\n");
    return figures.correct ? 0 : 1;
  } catch (const InputError& error) {
    fmt::print(stderr, "gpu_sync: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_sync: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace sparsesync

int main(int count, char** arguments) {
  return sparsesync::run(count, arguments);
}
