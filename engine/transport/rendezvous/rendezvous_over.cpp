// A rendezvous of workers that a network connects already.
#include "engine/session/control_channel.h"
#include "sparsesync/memory.h"
#include "sparsesync/rendezvous.h"

namespace sparsesync {
namespace {

/// Gathers texts over a transport's control channel.
class TransportRendezvous : public Rendezvous {
 public:
  explicit TransportRendezvous(Transport& transport) : transport_(transport) {}

  Rank rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }

  std::vector<std::string> all_gather(const std::string& own, Clock::time_point until) override {
    if (own.size() > kLongestText) throw InputError("a text of more than 1 MiB: send less");
    return ControlChannel(transport_, Context(memory_), until - Clock::now()).all_gather(own);
  }

 private:
  Transport& transport_;
  HostMemory memory_;
};

}  // namespace

std::unique_ptr<Rendezvous> rendezvous_over(Transport& transport) {
  return std::make_unique<TransportRendezvous>(transport);
}

}  // namespace sparsesync
