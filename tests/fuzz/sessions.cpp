// The fuzz target for complete sessions in which the messages of one worker are corrupted in
// transit.
#include <chrono>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>

#include "engine/transport/worker_threads.h"
#include "schemes/registry.h"
#include "sparsesync/errors.h"
#include "sparsesync/memory.h"
#include "sparsesync/session.h"
#include "sparsesync/transports/local.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"
#include "tests/support/forwarding_transport.h"

namespace sparsesync::fuzz {
namespace {

using testing::ForwardingTransport;

constexpr std::chrono::milliseconds kDeadline{2000};
constexpr std::chrono::milliseconds kHonestDeadline{20000};  // enough even on a loaded machine
constexpr std::int64_t kBudget = std::int64_t{64} << 20U;
constexpr Index kRows = 300;
constexpr Index kWidth = 3;
constexpr int kSteps = 2;

/// Corrupts messages that a worker sends, as directed by the input. It reads one byte of the input
/// per group.
class LyingTransport : public ForwardingTransport {
 public:
  LyingTransport(std::unique_ptr<Transport> inner, Input input)
      : ForwardingTransport(std::move(inner)), input_(input) {}

  GroupId post(const Context& context, const Header& expected, std::span<const Send> sends,
               std::span<const Receive> receives, ReceiveProvider& provider) override {
    const auto lie = input_.take<std::uint8_t>();
    constexpr std::uint8_t kHonest = 0x80;
    if (lie < kHonest || sends.empty()) {
      return inner().post(context, expected, sends, receives, provider);
    }
    Header header = expected;
    std::vector<Send> changed(sends.begin(), sends.end());
    Send& send = changed[input_.below(changed.size())];
    Bytes& payload = lies_.emplace_back(
        send.data, send.data + static_cast<std::size_t>(send.bytes.resolve(context)));
    switch (lie % 8) {
      case 0:
        header.flags ^= input_.take<std::uint8_t>();
        break;
      case 1:
        header.sequence += input_.take<std::uint8_t>();
        break;
      case 2:
        header.signature ^= input_.take<std::uint8_t>();
        break;
      case 3:
        header.channel ^= input_.take<std::uint8_t>();
        break;
      case 4:
        payload.resize(input_.below(payload.size() + 1));
        break;
      case 5:
        payload.resize(payload.size() + input_.below(2000));
        break;
      case 6: {
        const std::span<const std::byte> other = input_.take_bytes(input_.take<std::uint8_t>());
        payload.assign(other.begin(), other.end());
        break;
      }
      default:
        for (std::size_t i = input_.below(8) + 1; i > 0 && !payload.empty(); --i) {
          payload[input_.below(payload.size())] = input_.take<std::byte>();
        }
    }
    send.data = payload.data();
    send.bytes = PayloadBytes{std::ssize(payload)};
    // Post two groups, so that the worker's own receives have the correct header.
    const GroupId sent = inner().post(context, header, changed, {}, provider);
    const GroupId received = inner().post(context, expected, {}, receives, provider);
    sent_with_[received.value] = sent;
    return received;
  }
  void finish(GroupId group, Clock::time_point until) override {
    inner().finish(group, until);
    const auto sent = sent_with_.find(group.value);
    if (sent == sent_with_.end()) return;
    static_cast<void>(inner().next(sent->second, until));
    inner().finish(sent->second, until);
    sent_with_.erase(sent);
  }

 private:
  Input input_;
  std::vector<Bytes> lies_;
  std::map<std::uint64_t, GroupId> sent_with_;  // the group of sends for each group of receives
};

/// Returns the schemes that this network supports.
std::vector<SchemeEntry> schemes() {
  std::vector<SchemeEntry> some = all_schemes();
  std::erase_if(
      some, [](const SchemeEntry& each) { return each.all_reduces || each.name == "two_level"; });
  return some;
}

void expect_rows(const TensorResult& result) {
  if (result.layout == Gradient::Layout::dense) return;
  for (std::size_t i = 0; i < result.indices.size(); ++i) {
    const Index row = result.indices[i];
    if (row < 0 || row >= kRows || (i > 0 && result.indices[i - 1] >= row)) {
      throw std::logic_error("a result whose rows are out of range or order");
    }
  }
}

/// Choices that are made before the workers start.
struct Plan {
  BucketSpec bucket;
  std::vector<Index> rows;
  bool late_refusals = false;
  std::chrono::milliseconds deadline = kDeadline;
};

void work(std::unique_ptr<Transport> transport, const Plan& plan) {
  HostMemory memory(kBudget);
  SessionOptions options{plan.deadline, 1};
  options.late_refusals = plan.late_refusals;
  Session session(std::move(transport), memory, options);
  const BucketId id = session.register_bucket(plan.bucket);
  std::vector<Index> rows(plan.rows);
  for (Index& row : rows) row = (row + 7 * session.rank().value) % kRows;
  const std::vector<float> values(rows.size() * kWidth, 1.0F);
  const std::vector<Gradient> gradients{
      Gradient::row_sparse(rows, reinterpret_cast<const std::byte*>(values.data()))};
  for (int step = 0; step < kSteps; ++step) {
    try {
      if (plan.bucket.announce) session.announce(id, std::vector{Gradient::rows(rows)});
      session.synchronize(id, gradients);
      expect_rows(session.result(id, 0));
    } catch (const RefusedError&) {  // the next step works
    } catch (const BudgetError&) {
    }
  }
}

}  // namespace

void take_steps_with_a_liar(std::span<const std::byte> input) {
  static_cast<void>(ends_well_with_a_liar(input));
}

bool ends_well_with_a_liar(std::span<const std::byte> bytes) {
  Input input(bytes);
  static const std::vector<SchemeEntry> some = schemes();
  const SchemeEntry& scheme = some[input.below(some.size())];
  const auto kind = input.take<std::uint8_t>();
  const int workers = 2 + kind % 3;
  Plan plan{{"b", {{"t", kRows, kWidth, DType::f32}}, std::string(scheme.name)}, {}, kind >= 0x80};
  plan.bucket.announce = scheme.heeds.has(SchemeOption::announce) && (kind & 0x40U) != 0;
  if ((kind & 0x20U) != 0) plan.bucket.rounds = 2;
  for (std::size_t i = input.below(64); i > 0; --i) {
    plan.rows.push_back(static_cast<Index>(input.below(kRows)));
  }
  if (input.rest().empty()) plan.deadline = kHonestDeadline;  // no message is corrupted
  LocalNetwork network(workers);
  std::vector<std::unique_ptr<Transport>> ends;
  for (const Rank rank : Ranks(workers)) ends.push_back(network.join(rank));
  ends.back() = std::make_unique<LyingTransport>(std::move(ends.back()), input);
  const std::vector<std::exception_ptr> errors = run_in_threads(
      std::move(ends),
      [&](std::unique_ptr<Transport>& end, std::size_t) { work(std::move(end), plan); });
  bool well = true;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    well = false;
    try {
      std::rethrow_exception(error);
    } catch (const ContractError&) {
      throw;
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {
    }
  }
  return well;
}

std::vector<Bytes> lies() {
  std::vector<Bytes> seeds;
  for (std::size_t scheme = 0; scheme < schemes().size(); ++scheme) {
    for (const unsigned kind : {0x00U, 0x80U, 0x41U, 0xE2U}) {
      Bytes& seed = seeds.emplace_back();
      const auto add = [&](unsigned value) { seed.push_back(static_cast<std::byte>(value)); };
      const auto add_two = [&](unsigned value) {
        add(value % 256);
        add(value / 256);
      };
      add_two(static_cast<unsigned>(scheme));
      add(kind);
      add_two(20);
      for (unsigned row = 0; row < 20; ++row) add_two(13 * row);
      // No corruption while the bucket is registered. Then corrupt one message in each way, each at
      // another position.
      for (unsigned lie = 0; lie < 8; ++lie) {
        for (unsigned honest = 0; honest < 4 + scheme % 3; ++honest) add(0);
        add(0x80U + lie);
        for (unsigned i = 0; i < 6; ++i) add(17 * i + lie);
      }
    }
  }
  return seeds;
}

}  // namespace sparsesync::fuzz
