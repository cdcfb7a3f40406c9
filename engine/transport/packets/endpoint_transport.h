// The Transport over an endpoint.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/transport/packets/endpoint.h"
#include "sparsesync/transport.h"

namespace sparsesync::packets {

/// A worker's handle of its endpoint. The driving thread keeps the endpoint until it has retired.
class EndpointTransport : public Transport {
 public:
  explicit EndpointTransport(std::shared_ptr<Endpoint> end) : end_(std::move(end)) {}
  ~EndpointTransport() override { end_->leave(); }

  Rank rank() const override { return end_->rank(); }
  int size() const override { return end_->size(); }
  int node(Rank worker) const override { return end_->node(worker); }
  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    return end_->post(context, expected, sends, receives, provider);
  }
  std::optional<Arrival> next(GroupId group, Clock::time_point until) override {
    return end_->next(group, until);
  }
  void finish(GroupId group, Clock::time_point until) override { end_->finish(group, until); }
  bool has_all_reduce() const override { return end_->has_all_reduce(); }
  void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                  Clock::time_point until) override {
    if (!has_all_reduce()) return Transport::all_reduce(context, dtype, elements, until);
    end_->all_reduce(dtype, elements, until);
  }
  void abort(const std::string& reason) noexcept override { end_->abort(reason); }
  void expect_alive(std::span<const Rank> others) override { end_->expect_alive(others); }
  TransportCounters counters() const override { return end_->counters(); }

 private:
  std::shared_ptr<Endpoint> end_;
};

}  // namespace sparsesync::packets
