#include "sparsesync/transports/nccl.h"

#include <fmt/format.h>

#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/session/control_channel.h"
#include "engine/support/log.h"
#include "engine/transport/nccl_library.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device_stream.h"
#include "kernels/base/host_copy.h"
#include "kernels/base/threads.h"
#include "kernels/cuda/stream.h"
#include "kernels/rows/rows.h"
#include "schemes/pattern.h"
#include "schemes/transport.h"
#include "sparsesync/memory.h"

namespace sparsesync {
namespace {

using Time = Clock::time_point;

nccl::DataType nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return nccl::kFloat32;
    case DType::f64:
      return nccl::kFloat64;
    case DType::i32:
      return nccl::kInt32;
    case DType::i64:
      return nccl::kInt64;
    default:
      throw ContractError("a native all-reduce needs elements of f32, f64, i32 or i64");
  }
}

/// Time in which messages of a worker that left may still arrive.
constexpr std::chrono::seconds kAfterLeaving{2};
/// Time for the control transport to detect a lost worker, because NCCL may notice it first.
constexpr std::chrono::seconds kUntilALossIsKnown{2};
/// Timeout of each call that ends a communicator.
constexpr std::chrono::seconds kEnding{5};
/// From this version on, a thread may abort a communicator while a call of another thread is in
/// progress: NCCL 2.18 then frees what that call uses.
constexpr int kAbortsFromAnyThread = 21900;

/// A group that was posted.
struct Group {
  Group(const Context& on_device, const Context& on_host)
      : context(on_device),
        headers(on_device),
        host_headers(on_host),
        thrown_away(on_device),
        refusals(on_device),
        headers_here(on_device) {}

  Context context;
  std::uint64_t id = 0;
  Header expected;
  std::vector<Send> sends;
  std::vector<std::int64_t> bytes;  // [send] payload size
  std::vector<Receive> receives;
  std::vector<std::byte*> payloads;  // [receive] destination
  ReceiveProvider* provider = nullptr;
  bool started = false;      // its header transfers are in the stream
  bool complete = false;     // its payload transfers are in the stream
  std::size_t returned = 0;  // receives that next() has returned

  // Headers of the sends, followed by headers of the receives: on the device, and on the host.
  Buffer<Header> headers;
  Buffer<Header> host_headers;
  Buffer<std::byte> thrown_away;
  Buffer<std::byte> refusals;  // device staging of refusals, whose payloads are on the host
  Event headers_here;
};

class NcclTransport final : public Transport, private CancellationCheck {
 public:
  NcclTransport(std::unique_ptr<Transport> words, const NcclOptions& options)
      : nccl_(nccl::library()),
        words_(std::move(words)),
        options_(options),
        on_host_(*options.pinned) {
    connect();
  }

  ~NcclTransport() override {
    attend(nullptr);
    try {
      close();
    } catch (const Error& error) {
      log(LogLevel::info, std::string("closing the NCCL communicator: ") + error.what());
    }
  }

  Rank rank() const override { return words_->rank(); }
  int size() const override { return words_->size(); }
  int node(Rank worker) const override { return words_->node(worker); }
  bool reaches_devices() const override { return true; }

  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    const GroupId id{next_group_++};
    if (context.device() == Device::cpu) {
      of_words_[id.value] = words_->post(context, expected, sends, receives, provider);
      return id;
    }
    throw_if_over();
    attend(context.device_stream());
    for (const Send& send : sends) expect_peer(send.to, rank(), size());
    for (const Receive& receive : receives) expect_peer(receive.from, rank(), size());
    Group& group = unused_group(context);
    group.id = id.value;
    group.expected = expected;
    group.sends.assign(sends.begin(), sends.end());
    group.bytes.clear();
    for (const Send& send : sends) group.bytes.push_back(send.bytes.resolve(context));
    group.receives.assign(receives.begin(), receives.end());
    group.payloads.assign(receives.size(), nullptr);
    group.provider = &provider;
    group.started = group.complete = false;
    group.returned = 0;
    failing([&] {
      if (!pending_.empty()) return;
      await(group);
      start(group, Clock::now() + options_.deadline);
    });
    pending_.push_back(&group);
    return id;
  }

  std::optional<Arrival> next(GroupId id, Time until) override {
    if (const auto found = of_words_.find(id.value); found != of_words_.end()) {
      return words_->next(found->second, until);
    }
    Group& group = complete(id, until);
    if (group.returned == group.receives.size()) return std::nullopt;
    const std::size_t i = group.returned++;
    const Header& header = received(group, i);
    count({.bytes_received = kHeaderBytes + static_cast<std::int64_t>(header.bytes),
           .messages_received = 1});
    const std::size_t bytes = group.payloads[i] == nullptr ? 0 : header.bytes;
    return Arrival{i, header, {group.payloads[i], bytes}};
  }

  bool has_arrival(GroupId id) override {
    const auto found = of_words_.find(id.value);
    return found != of_words_.end() && words_->has_arrival(found->second);
  }

  void finish(GroupId id, Time until) override {
    if (const auto found = of_words_.find(id.value); found != of_words_.end()) {
      words_->finish(found->second, until);
      of_words_.erase(found);
      return;
    }
    Group& group = complete(id, until);
    open_.erase(id.value);
    unused_.push_back(&group);
  }

  void abort(const std::string& reason) noexcept override { words_->abort(reason); }

  void expect_alive(std::span<const Rank> others) override { words_->expect_alive(others); }

  TransportCounters counters() const override {
    TransportCounters all = words_->counters();
    const std::lock_guard lock(counters_mutex_);
    all += counters_;
    return all - of_connecting_;
  }

  bool has_all_reduce() const override { return true; }

  void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                  Time until) override {
    const auto bytes = static_cast<std::int64_t>(elements.size());
    if (context.device() == Device::cpu) {
      throw ContractError("NCCL cannot all-reduce host memory");
    }
    throw_if_over();
    attend(context.device_stream());
    awaited_ = peers_after(rank(), size());
    failing([&] {
      expect(nccl_.all_reduce(elements.data(), elements.data(),
                              static_cast<std::size_t>(bytes / element_bytes(dtype)),
                              nccl_type(dtype), nccl::kSum, comm_, stream_of(context)),
             until);
      until_ = until;
      synchronize(context);
      until_.reset();
    });
    const std::int64_t counted = all_reduce_bytes(bytes, size());
    count({.bytes_sent = counted, .bytes_received = counted});
  }

 private:
  /// Returns the context's stream, and records that it gets work.
  static cudaStream_t stream_of(const Context& context) {
    context.device_stream()->record_work();
    return static_cast<cudaStream_t>(context.stream().handle);
  }
  static std::span<Header> sent(Group& group) {
    return group.host_headers.first(std::ssize(group.sends));
  }
  static const Header& received(Group& group, std::size_t receive) {
    return group.host_headers.data()[group.sends.size() + receive];
  }

  void connect() {
    HostMemory memory;
    ControlChannel channel(*words_, Context(memory), options_.deadline);
    nccl_.get_version(&version_);
    channel.agree("NCCL", {{"the version of NCCL", nccl::version_text(version_)}});
    nccl::UniqueId id{};
    if (rank() == Rank{0}) report(nccl_.get_unique_id(&id));
    channel.broadcast(std::as_writable_bytes(std::span(id.bytes)), Rank{0});
    const DeviceGuard here(options_.device);
    nccl::Config config;
    const Time until = Clock::now() + options_.deadline;
    awaited_ = peers_after(rank(), size());
    const nccl::Result result =
        nccl_.comm_init_rank_config(&comm_, size(), id, rank().value, &config);
    failing([&] { expect(result, until); });
    of_connecting_ = words_->counters();
  }

  void close() {
    if (comm_ == nullptr) return;
    const DeviceGuard here(options_.device);
    failing([&] {
      // Work on the device may wait for other workers forever.
      if (!open_.empty()) throw Error("some exchanges are not finished");
      awaited_.clear();  // other workers may have left
      expect(nccl_.comm_finalize(comm_), Clock::now() + kEnding);
    });
    end_communicator(nccl_.comm_destroy, "ncclCommDestroy");
  }

  /// Destroys or aborts the communicator within kEnding. A call that takes longer continues in a
  /// detached thread.
  ///
  /// The call cannot be polled. In NCCL 2.18 to 2.30 both functions run to completion in the
  /// calling thread, also for non-blocking communicators, and free the handle.
  ///
  /// ncclCommAbort first sets flags that end kernels and the call in progress, and joins the thread
  /// of that call. Then it may wait for other ranks of this machine. See issues 863, 1013 and 1777
  /// of https://github.com/NVIDIA/nccl/issues.
  ///
  /// ncclCommDestroy rejects a communicator with a call in progress. From 2.24 on it then leaves a
  /// group open in the calling thread. So it is called only after ncclCommFinalize has completed.
  void end_communicator(nccl::Result (*call)(nccl::Comm), const char* name) {
    const nccl::Comm comm = std::exchange(comm_, nullptr);
    const auto run = [=, device = options_.device] {
      try {
        const DeviceGuard here(device);
        call(comm);
      } catch (const DeviceError&) {  // a failed device releases nothing
      }
    };
    if (version_ < kAbortsFromAnyThread) return run();
    std::packaged_task<void()> task([run] {
      // The thread must not invalidate a graph capture of the program.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      cudaThreadExchangeStreamCaptureMode(&mode);
      run();
    });
    const std::future<void> ended = task.get_future();
    std::thread thread;
    try {
      thread = start_thread("the thread that ends NCCL's communicator", std::move(task));
    } catch (const Error&) {  // no thread is available
      return run();
    }
    if (ended.wait_for(kEnding) == std::future_status::ready) return thread.join();
    thread.detach();
    log(LogLevel::warning,
        fmt::format("{} did not return within {} s and continues in the background", name,
                    kEnding.count()));
  }

  // ---- Errors.

  void report(nccl::Result result) const {
    if (result != nccl::kSuccess) {
      throw DeviceError(fmt::format("NCCL: {}", nccl_.get_error_string(result)));
    }
  }

  /// Throws if a call failed. A call in progress is not a failure. A lost worker is reported as
  /// such, instead of NCCL's error. NCCL may notice the loss first, so this function waits for the
  /// control transport to detect it.
  void report_failure(nccl::Result result) {
    if (result == nccl::kSuccess || result == nccl::kInProgress) return;
    const bool may_be_a_loss = result == nccl::kRemoteError || result == nccl::kSystemError;
    const Time until = Clock::now() + kUntilALossIsKnown;
    const Poll poll;
    do {
      words_->expect_alive(awaited_);
      poll.pause();
    } while (may_be_a_loss && Clock::now() < until);
    report(result);
  }

  nccl::Result state() const {
    nccl::Result state = nccl::kSuccess;
    const nccl::Result result = nccl_.comm_get_async_error(comm_, &state);
    return result == nccl::kSuccess ? state : result;
  }

  /// Waits until a call of the non-blocking communicator completes in the background.
  void expect(nccl::Result result, Time until) {
    report_failure(result);
    const Poll poll;
    for (nccl::Result now = state(); now != nccl::kSuccess; now = state()) {
      report_failure(now);
      words_->expect_alive(awaited_);
      if (Clock::now() >= until) throw_deadline(rank(), awaited_);
      poll.pause();
    }
    // In NCCL 2.19 to 2.25, a call ends when the next call begins, which resets the group state of
    // the thread that made the first one. If the next call came from another thread, the first
    // thread might be inside a group of another communicator, or have ended. So this function makes
    // a next call without effect.
    int size = 0;
    report_failure(nccl_.comm_count(comm_, &size));
  }

  /// Records the workers that the device may wait for from now on.
  void await(const Group& group) {
    awaited_.clear();
    for (const Send& send : group.sends) awaited_.push_back(send.to);
    for (const Receive& receive : group.receives) awaited_.push_back(receive.from);
  }

  void throw_if_over() {
    words_->expect_alive({});
    if (over_) throw DeviceError("NCCL failed earlier: this transport has ended");
  }

  /// Runs `body`, and aborts the communicator after an error. The device then waits for no other
  /// worker, and later waits for the device concern only this process.
  template <typename Body>
  void failing(const Body& body) {
    try {
      body();
    } catch (...) {
      awaited_.clear();
      until_.reset();
      if (!std::exchange(over_, true) && comm_ != nullptr) {
        end_communicator(nccl_.comm_abort, "ncclCommAbort");
      }
      throw;
    }
  }

  /// Called repeatedly while the host waits for the device.
  void poll(Time since) override {
    failing([&] {
      try {
        words_->expect_alive(awaited_);
      } catch (const PeerLostError&) {
        // Messages that it sent before it left may still arrive.
        if (Clock::now() >= since + kAfterLeaving) throw;
      }
      if (comm_ != nullptr) report_failure(state());
      if (Clock::now() >= until_.value_or(since + options_.deadline)) {
        throw_deadline(rank(), awaited_);
      }
    });
  }

  /// Registers the cancellation check with a stream, instead of with the previous stream.
  void attend(DeviceStream* device_stream) {
    if (device_stream_ == device_stream) return;
    if (device_stream_ != nullptr) device_stream_->set_cancellation_check(nullptr);
    device_stream_ = device_stream;
    if (device_stream_ != nullptr) device_stream_->set_cancellation_check(this);
  }

  void count(const TransportCounters& more) {
    const std::lock_guard lock(counters_mutex_);
    counters_ += more;
  }

  // ---- Groups.

  Group& unused_group(const Context& context) {
    Group* group = nullptr;
    if (unused_.empty()) {
      group = &groups_.emplace_back(context, on_host_);
    } else {
      group = unused_.back();
      unused_.pop_back();
    }
    open_[next_group_ - 1] = group;
    return *group;
  }

  /// Enqueues the sends and receives of headers.
  void start(Group& group, Time until) {
    const auto sends = std::ssize(group.sends);
    const auto all = sends + std::ssize(group.receives);
    // Reserves the largest size at once, because freeing pinned memory would synchronize the
    // device.
    const Index most = std::max<Index>(all, 2 * Index{size()});
    const std::span<Header> host =
        group.host_headers.reserve(most).first(static_cast<std::size_t>(all));
    Header* const device = group.headers.reserve(most).data();
    for (std::size_t i = 0; i < group.sends.size(); ++i) {
      host[i] = group.expected;
      host[i].bytes = static_cast<std::uint64_t>(group.bytes[i]);
      count({.bytes_sent = kHeaderBytes + group.bytes[i], .messages_sent = 1});
    }
    copy(group.context, std::as_bytes(sent(group)), reinterpret_cast<std::byte*>(device));
    const auto of_header = [&](std::size_t i) { return reinterpret_cast<std::byte*>(device + i); };
    grouped(until, [&] {
      for (std::size_t i = 0; i < group.sends.size(); ++i) {
        send(group, i, of_header(i), kHeaderBytes);
      }
      for (std::size_t i = 0; i < group.receives.size(); ++i) {
        receive(group, i, of_header(group.sends.size() + i), kHeaderBytes);
      }
    });
    copy(group.context, {of_header(group.sends.size()), group.receives.size() * sizeof(Header)},
         reinterpret_cast<std::byte*>(host.data() + sends));
    group.headers_here.set(group.context);
    group.started = true;
  }

  /// Enqueues all calls of a group, after those of earlier groups, and returns it.
  Group& complete(GroupId id, Time until) {
    Group& wanted = *open_.at(id.value);
    while (!wanted.complete) {
      Group& group = *pending_.front();
      await(group);
      failing([&] {
        throw_if_over();
        until_ = until;
        if (!group.started) start(group, until);
        move_payloads(group, until);
        until_.reset();
      });
      group.complete = true;
      pending_.pop_front();
    }
    return wanted;
  }

  void move_payloads(Group& group, Time until) {
    device_stream_->wait_for(group.headers_here);
    // Refusals have payloads on the host, so they are staged in device memory.
    const bool refuses = (group.expected.flags & Header::kRefused) != 0;
    Index refused_bytes = 0;
    Index most_thrown = 0;
    for (std::size_t i = 0; i < group.receives.size(); ++i) {
      const Header& header = received(group, i);
      check_header(group.receives[i].from, group.expected, header);
      group.payloads[i] = group.provider->provide(i, header);
      const auto bytes = static_cast<Index>(header.bytes);
      if (group.payloads[i] == nullptr) most_thrown = std::max(most_thrown, bytes);
      if (is_on_host(group.context, header)) refused_bytes += bytes;
    }
    for (std::size_t i = 0; refuses && i < group.sends.size(); ++i) refused_bytes += group.bytes[i];
    std::byte* refusal = group.refusals.reserve(refused_bytes).data();
    std::byte* const nowhere = group.thrown_away.reserve(most_thrown).data();
    std::vector<std::pair<std::byte*, std::size_t>> to_host;
    grouped(until, [&] {
      for (std::size_t i = 0; i < group.sends.size(); ++i) {
        if (group.bytes[i] == 0) continue;
        const std::byte* from = group.sends[i].data;
        if (refuses) {
          upload(group.context, {from, static_cast<std::size_t>(group.bytes[i])}, refusal);
          from = std::exchange(refusal, refusal + group.bytes[i]);
        }
        send(group, i, from, group.bytes[i]);
      }
      for (std::size_t i = 0; i < group.receives.size(); ++i) {
        const Header& header = received(group, i);
        const auto bytes = static_cast<Index>(header.bytes);
        if (bytes == 0) continue;
        std::byte* to = group.payloads[i] == nullptr ? nowhere : group.payloads[i];
        if (group.payloads[i] != nullptr && is_on_host(group.context, header)) {
          to_host.emplace_back(refusal, i);
          to = std::exchange(refusal, refusal + bytes);
        }
        receive(group, i, to, bytes);
      }
    });
    for (const auto& [from, i] : to_host) {
      fetch(group.context, {from, received(group, i).bytes}, group.payloads[i]);
    }
  }

  template <typename Calls>
  void grouped(Time until, Calls&& calls) {
    report(nccl_.group_start());
    try {
      calls();
    } catch (...) {
      nccl_.group_end();  // an open group would include later calls of this thread
      throw;
    }
    expect(nccl_.group_end(), until);
  }
  void send(const Group& group, std::size_t i, const std::byte* from, std::int64_t bytes) {
    report_started(nccl_.send(from, static_cast<std::size_t>(bytes), nccl::kInt8,
                              group.sends[i].to.value, comm_, stream_of(group.context)));
  }
  void receive(const Group& group, std::size_t i, std::byte* to, std::int64_t bytes) {
    report_started(nccl_.recv(to, static_cast<std::size_t>(bytes), nccl::kInt8,
                              group.receives[i].from.value, comm_, stream_of(group.context)));
  }
  void report_started(nccl::Result result) const {
    if (result != nccl::kInProgress) report(result);
  }

  const nccl::Library& nccl_;
  std::unique_ptr<Transport> words_;
  NcclOptions options_;
  Context on_host_;  // pinned memory
  int version_ = 0;
  nccl::Comm comm_ = nullptr;
  bool over_ = false;
  DeviceStream* device_stream_ = nullptr;
  std::optional<Time> until_;  // timeout of the current wait
  std::vector<Rank> awaited_;  // workers that the device may wait for
  std::uint64_t next_group_ = 1;
  std::deque<Group> groups_;
  std::map<std::uint64_t, Group*> open_;
  std::map<std::uint64_t, GroupId> of_words_;
  std::vector<Group*> unused_;
  std::deque<Group*> pending_;         // groups without payload transfers in the stream
  mutable std::mutex counters_mutex_;  // guards the members below
  TransportCounters counters_;
  TransportCounters of_connecting_;
};

}  // namespace

std::unique_ptr<Transport> nccl_over(std::unique_ptr<Transport> words, const NcclOptions& options) {
  expect_device(options.device);
  return std::make_unique<NcclTransport>(std::move(words), options);
}

std::string nccl_text() {
  try {
    int version = 0;
    nccl::library().get_version(&version);
    return nccl::version_text(version);
  } catch (const DeviceError& error) {
    return fmt::format("({})", error.what());
  }
}

}  // namespace sparsesync
