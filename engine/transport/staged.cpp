#include "engine/transport/staged.h"

#include <map>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/device_stream.h"
#include "kernels/rows/rows.h"
#include "schemes/transport.h"

namespace sparsesync {
namespace {

/// Host memory for one message, and an event after the device's last use of it.
struct Stage {
  Stage(const Context& on_host, const Context& on_device) : memory(on_host), done(on_device) {}
  Stage(Stage&&) = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  Stage& operator=(Stage&&) = delete;
  ~Stage() {
    try {
      done.wait();
    } catch (const Error&) {  // a failed device no longer uses the memory
    }
  }
  Buffer<std::byte> memory;
  Event done;
};

/// A group with payloads on a GPU. Receives from the network, and records the destinations on the
/// GPU.
class StagedGroup : public ReceiveProvider {
 public:
  StagedGroup(const Context& on_host, const Context& on_device)
      : on_host_(on_host), on_device_(on_device) {}

  void begin(const Context& on_device, ReceiveProvider& provider, std::size_t receives) {
    SPARSESYNC_EXPECT(on_device.device_stream() == on_device_.device_stream(), ==, true);
    provider_ = &provider;
    targets_.assign(receives, nullptr);
    groups.clear();
    while (incoming_.size() < receives) incoming_.emplace_back(on_host_, on_device_);
  }

  /// Starts the copy of a message to the host.
  void fetch_message(std::size_t message, const std::byte* from, std::int64_t bytes) {
    while (outgoing_.size() <= message) outgoing_.emplace_back(on_host_, on_device_);
    Stage& stage = outgoing_[message];
    const std::span<std::byte> to = stage.memory.reserve(bytes);
    copy(on_device_, {from, to.size()}, to.data());
    stage.done.set(on_device_);
  }
  /// Returns a message on the host after its copy is complete.
  const std::byte* fetched(std::size_t message) const {
    outgoing_[message].done.wait();
    return outgoing_[message].memory.data();
  }

  std::byte* provide(std::size_t receive, const Header& header) override {
    std::byte* const target = provider_->provide(receive, header);
    if (target == nullptr || is_on_host(on_device_, header)) return target;
    targets_[receive] = target;
    Stage& stage = incoming_[receive];
    stage.done.wait();  // used by an earlier group
    return stage.memory.reserve(static_cast<Index>(header.bytes)).data();
  }

  /// Starts the copy of a received payload to the device.
  /// @return the arrival, with the payload's address on the device
  Arrival pass_on(Arrival arrival) {
    std::byte* const to = targets_[arrival.receive];
    if (to == nullptr) return arrival;
    copy(on_device_, arrival.payload, to);
    incoming_[arrival.receive].done.set(on_device_);
    arrival.payload = {to, arrival.payload.size()};
    return arrival;
  }

  std::vector<GroupId> groups;  // the network's groups; the first one has all receives

 private:
  Context on_host_;
  Context on_device_;
  ReceiveProvider* provider_ = nullptr;
  std::vector<std::byte*> targets_;  // on the device; null if a payload stays on the host
  std::vector<Stage> incoming_;
  std::vector<Stage> outgoing_;
};

class StagedTransport : public Transport {
 public:
  StagedTransport(std::unique_ptr<Transport> network, MemoryResource& pinned)
      : on_host_(pinned), whole_(on_host_), network_(std::move(network)) {}

  Rank rank() const override { return network_->rank(); }
  int size() const override { return network_->size(); }
  int node(Rank worker) const override { return network_->node(worker); }
  bool reaches_devices() const override { return true; }

  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    const GroupId id{next_group_++};
    if (context.device() == Device::cpu) {
      open_[id.value] = {network_->post(context, expected, sends, receives, provider), nullptr};
      return id;
    }
    std::unique_ptr<StagedGroup> group = unused_group(context);
    group->begin(context, provider, receives.size());
    if (is_on_host(context, expected)) {
      group->groups.push_back(network_->post(on_host_, expected, sends, receives, *group));
    } else {
      post_staged(context, expected, sends, receives, *group);
    }
    open_[id.value] = {group->groups.front(), std::move(group)};
    return id;
  }

  std::optional<Arrival> next(GroupId id, Clock::time_point until) override {
    const Open& open = open_.at(id.value);
    const std::optional<Arrival> arrival = network_->next(open.first, until);
    if (!arrival || open.staged == nullptr) return arrival;
    return open.staged->pass_on(*arrival);
  }

  bool has_arrival(GroupId id) override { return network_->has_arrival(open_.at(id.value).first); }

  void finish(GroupId id, Clock::time_point until) override {
    Open& open = open_.at(id.value);
    if (open.staged == nullptr) {
      network_->finish(open.first, until);
    } else {
      for (const GroupId group : open.staged->groups) network_->finish(group, until);
      unused_.push_back(std::move(open.staged));
    }
    open_.erase(id.value);
  }

  void abort(const std::string& reason) noexcept override { network_->abort(reason); }
  void expect_alive(std::span<const Rank> others) override { network_->expect_alive(others); }
  TransportCounters counters() const override { return network_->counters(); }

  bool has_all_reduce() const override { return network_->has_all_reduce(); }
  void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                  Clock::time_point until) override {
    if (context.device() == Device::cpu) {
      return network_->all_reduce(context, dtype, elements, until);
    }
    const std::span<std::byte> host = whole_.reserve(std::ssize(elements));
    copy(context, elements, host.data());
    synchronize(context);
    network_->all_reduce(on_host_, dtype, host, until);
    copy(context, host, elements.data());
    synchronize(context);
  }

 private:
  struct Open {
    GroupId first;
    std::unique_ptr<StagedGroup> staged;  // null for a group with a CPU context
  };

  /// Posts one group to the network for each message, when the message is on the host. The first
  /// group has all receives.
  void post_staged(const Context& context, const Header& expected, std::span<const Send> sends,
                   std::span<const Receive> receives, StagedGroup& group) {
    sizes_.clear();
    for (const Send& send : sends) sizes_.push_back(send.bytes.resolve(context));
    for (std::size_t i = 0; i < sends.size(); ++i) {
      group.fetch_message(i, sends[i].data, sizes_[i]);
    }
    if (sends.empty()) {
      group.groups.push_back(network_->post(on_host_, expected, {}, receives, group));
      return;
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const Send send{sends[i].to, group.fetched(i), sizes_[i]};
      group.groups.push_back(network_->post(on_host_, expected, {&send, 1}, receives, group));
      receives = {};
    }
  }

  std::unique_ptr<StagedGroup> unused_group(const Context& context) {
    if (unused_.empty()) return std::make_unique<StagedGroup>(on_host_, context);
    std::unique_ptr<StagedGroup> group = std::move(unused_.back());
    unused_.pop_back();
    return group;
  }

  Context on_host_;  // pinned memory
  std::uint64_t next_group_ = 1;
  std::map<std::uint64_t, Open> open_;
  std::vector<std::unique_ptr<StagedGroup>> unused_;
  std::vector<std::int64_t> sizes_;
  Buffer<std::byte> whole_;  // staging buffer of an all-reduce
  // Last: destroyed before the memory that other workers may still read.
  std::unique_ptr<Transport> network_;
};

}  // namespace

std::unique_ptr<Transport> staged(std::unique_ptr<Transport> network, MemoryResource& pinned) {
  return std::make_unique<StagedTransport>(std::move(network), pinned);
}

}  // namespace sparsesync
