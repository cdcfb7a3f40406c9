// A base class for tests that change some calls of a transport.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "sparsesync/transport.h"

namespace sparsesync::testing {

/// Forwards each call to another transport. Derive from it to override some of them.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  Rank rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int node(Rank worker) const override { return inner_->node(worker); }
  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    return inner_->post(context, expected, sends, receives, provider);
  }
  std::optional<Arrival> next(GroupId group, Clock::time_point until) override {
    return inner_->next(group, until);
  }
  bool has_arrival(GroupId group) override { return inner_->has_arrival(group); }
  void finish(GroupId group, Clock::time_point until) override { inner_->finish(group, until); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  void expect_alive(std::span<const Rank> others) override { inner_->expect_alive(others); }
  TransportCounters counters() const override { return inner_->counters(); }
  bool reaches_devices() const override { return inner_->reaches_devices(); }
  bool has_all_reduce() const override { return inner_->has_all_reduce(); }
  void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                  Clock::time_point until) override {
    inner_->all_reduce(context, dtype, elements, until);
  }

 protected:
  Transport& inner() { return *inner_; }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace sparsesync::testing
