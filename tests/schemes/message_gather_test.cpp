// All-gather of messages: every message reaches every worker intact, with every communication
// pattern, repeatedly in memory that has to grow, and in two pieces. Payloads with wrong lengths
// are rejected.
#include "schemes/message/message_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "schemes/registry.h"
#include "sparsesync/errors.h"
#include "tests/support/random.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

/// Returns the length of a test message. A message is its length (8 bytes), followed by bytes that
/// depend on its worker and its number.
std::int64_t length_of(std::uint64_t number, int worker) {
  return 8 + static_cast<std::int64_t>(mix64(number * 100 + static_cast<std::uint64_t>(worker)) %
                                       (number % 2 == 0 ? 40 : 4000));
}
std::byte byte_of(std::uint64_t number, int worker, std::int64_t at) {
  return static_cast<std::byte>(number + 7 * static_cast<std::uint64_t>(worker) +
                                static_cast<std::uint64_t>(at));
}
void write(std::uint64_t number, int worker, std::span<std::byte> message) {
  const auto bytes = static_cast<std::int64_t>(message.size());
  std::memcpy(message.data(), &bytes, sizeof(bytes));
  for (std::int64_t i = 8; i < bytes; ++i) {
    message[static_cast<std::size_t>(i)] = byte_of(number, worker, i);
  }
}
std::int64_t length_at(std::span<const std::byte> bytes) {
  std::int64_t length = 0;
  if (bytes.size() < sizeof(length)) throw CorruptDataError("no length");
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length < 8 || length > static_cast<std::int64_t>(bytes.size())) {
    throw CorruptDataError("a length that cannot be");
  }
  return length;
}

/// Memory whose blocks are adjacent. Released blocks are overwritten.
class Adjacent : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream) override {
    void* place = free_.data();
    std::size_t left = free_.size();
    if (std::align(alignment, bytes, place, left) == nullptr) throw std::bad_alloc();
    free_ = free_.last(left - bytes);
    return place;
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t, Stream) noexcept override {
    std::memset(pointer, 0xee, bytes);
  }
  bool has_to_spare(std::size_t) const override { return false; }

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(std::size_t{1} << 20U);
  std::span<std::byte> free_ = memory_;
};

class MessageGathers : public ::testing::TestWithParam<Communication> {
 protected:
  using Body = std::function<void(MessageGather&, Exchange&)>;
  /// Runs body(gather, exchange) on each worker.
  template <typename Memory = HostMemory>
  static std::vector<std::exception_ptr> run(int size, int rounds, const Body& body) {
    LocalNetwork network(size);
    return run_transports(network, size, [&](std::unique_ptr<Transport>& transport) {
      Memory memory;
      const Context context(memory);
      MessageGather gather(context, transport->rank(), size, GetParam());
      std::uint64_t sequence = 0;
      const Pattern pattern = gather.pattern();
      ExchangeWorkspace workspace;
      Exchange exchange(*transport, context, {}, sequence, pattern, rounds, kDeadline, workspace);
      try {
        body(gather, exchange);
      } catch (...) {
        // Leave the network before the messages are destroyed, because others may still be reading
        // them.
        transport.reset();
        throw;
      }
    });
  }
};

INSTANTIATE_TEST_SUITE_P(communications, MessageGathers, ::testing::ValuesIn(kCommunications),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST_P(MessageGathers, every_message_reaches_every_worker) {
  constexpr int kRounds = 6;
  for (int size = 1; size <= 9; ++size) {
    expect_no_errors(run(size, kRounds, [&](MessageGather& gather, Exchange& exchange) {
      const int rank = exchange.rank().value;
      for (std::uint64_t number = 0; number < kRounds; ++number) {
        write(number, rank, gather.own(length_of(number, rank)));
        std::vector<std::span<const std::byte>> messages(static_cast<std::size_t>(size));
        std::vector<int> order;
        gather.run(exchange, 8 + 4000, [&](Rank worker, std::span<const std::byte> bytes) {
          order.push_back(worker.value);
          const std::int64_t length = length_at(bytes);
          messages.at(worker.index()) = bytes.first(static_cast<std::size_t>(length));
          return MessageGather::Extent{length, length};
        });
        EXPECT_EQ(order.front(), rank);
        EXPECT_EQ(static_cast<int>(order.size()), size);
        // After the last step, no message that was read has moved or has been overwritten.
        for (int worker = 0; worker < size; ++worker) {
          const std::span<const std::byte> message = messages[static_cast<std::size_t>(worker)];
          ASSERT_EQ(static_cast<std::int64_t>(message.size()), length_of(number, worker));
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(message.data()) % 16, 0U);
          for (std::size_t i = 8; i < message.size(); ++i) {
            ASSERT_EQ(message[i], byte_of(number, worker, static_cast<std::int64_t>(i)));
          }
        }
        if (number + 1 < kRounds) exchange.next_round();
      }
    }));
  }
}

TEST_P(MessageGathers, blocks_may_be_adjacent) {
  constexpr std::int64_t kBytes = 4096;  // length of a message, without a gap before the next block
  for (int size = 1; size <= 9; ++size) {
    expect_no_errors(run<Adjacent>(size, 1, [&](MessageGather& gather, Exchange& exchange) {
      const auto fill_of = [](Rank worker) { return static_cast<std::byte>(worker.value + 1); };
      const std::span<std::byte> own = gather.own(kBytes);
      std::fill(own.begin(), own.end(), fill_of(exchange.rank()));
      std::vector<std::span<const std::byte>> messages(static_cast<std::size_t>(size));
      gather.run(exchange, kBytes, [&](Rank worker, std::span<const std::byte> bytes) {
        messages.at(worker.index()) = bytes.first(kBytes);
        return MessageGather::Extent{kBytes, kBytes};
      });
      for (const Rank worker : Ranks(size)) {
        for (const std::byte each : messages[worker.index()]) ASSERT_EQ(each, fill_of(worker));
      }
    }));
  }
}

TEST(MessagesInPieces, all_heads_arrive_before_all_bodies) {
  constexpr std::int64_t kHead = 8;
  constexpr std::uint64_t kRounds = 4;
  for (int size = 1; size <= 9; ++size) {
    LocalNetwork network(size);
    expect_no_errors(run_transports(network, size, [&](std::unique_ptr<Transport>& transport) {
      HostMemory memory;
      const Context context(memory);
      const int rank = transport->rank().value;
      MessageGather gather(context, Rank{rank}, size, Communication::point_to_point);
      std::uint64_t sequence = 0;
      const Pattern pattern = gather.pattern();
      ExchangeWorkspace workspace;
      Exchange exchange(*transport, context, {}, sequence, pattern, kRounds, kDeadline, workspace);
      for (std::uint64_t number = 0; number < kRounds; ++number) {
        write(number, rank, gather.own(length_of(number, rank)));
        std::vector<int> heads(static_cast<std::size_t>(size));
        std::vector<int> bodies(static_cast<std::size_t>(size));
        bool between = false;
        const auto read_head = [&](Rank worker, std::span<const std::byte> bytes) {
          EXPECT_FALSE(between);
          EXPECT_EQ(static_cast<std::int64_t>(bytes.size()), kHead);
          ++heads.at(worker.index());
          return MessageGather::Extent{kHead, kHead};
        };
        const auto heads_came = [&] {
          EXPECT_FALSE(std::exchange(between, true));
          EXPECT_EQ(std::accumulate(heads.begin(), heads.end(), 0), size);
        };
        const auto read_body = [&](Rank worker, std::span<const std::byte> bytes) {
          EXPECT_TRUE(between);
          ASSERT_EQ(static_cast<std::int64_t>(bytes.size()),
                    length_of(number, worker.value) - kHead);
          for (std::size_t i = 0; i < bytes.size(); ++i) {
            ASSERT_EQ(bytes[i],
                      byte_of(number, worker.value, static_cast<std::int64_t>(i) + kHead));
          }
          ++bodies.at(worker.index());
        };
        gather.run_in_pieces(exchange, kHead, 8 + 4000, {read_head, heads_came, read_body});
        EXPECT_EQ(heads, std::vector<int>(static_cast<std::size_t>(size), 1));
        EXPECT_EQ(bodies, heads);
        if (number + 1 < kRounds) exchange.next_round();
      }
      EXPECT_EQ(transport->counters().messages_sent, size == 1 ? 0 : 2 * 4 * (size - 1));
    }));
  }
}

TEST(MessagesInPieces, are_used_for_a_pull_of_at_least_96_kilobytes_of_values) {
  HostMemory memory;
  const TensorSpec tensor{"t", 20'000, 64, DType::f32};
  const std::vector<RowSpace> spaces = row_spaces(std::vector{tensor});
  Random random(seed());
  for (const char* name : {"balanced", "balanced_hash", "sparse_ps"}) {
    for (const auto& [size, rounds] :
         std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {7, 1}, {8, 2}}) {
      const BucketSpec bucket{"b", {tensor}, name, Reduction::sum, rounds};
      const auto scheme = scheme_named(name).create({Context(memory), &bucket, Rank{0}, size, 1});
      std::array<double, 2> messages{};
      for (const bool ahead : {false, true}) {
        // Each server sends rows of 256 bytes in each round.
        const Index rows = Index{375} * size * rounds - (ahead ? 0 : 1);
        const std::vector<Index> set = distinct_rows(random, tensor.rows, rows);
        const std::vector<IndexSets> sets{IndexSets(static_cast<std::size_t>(size), set)};
        const Statistics statistics{statistics_of(sets[0], tensor.rows)};
        scheme->adapt(statistics);
        const int pieces = ahead ? 2 : 1;
        EXPECT_EQ(scheme->traffic(sets).messages_sent[0], (1 + pieces) * rounds * (size - 1));
        messages[ahead ? 1 : 0] =
            scheme_named(name)
                .cost({.spaces = spaces, .size = size, .statistics = statistics})
                .gather.messages;
      }
      // The cost is per round.
      if (rounds == 1) {
        EXPECT_EQ(messages[1] - messages[0], size - 1);
      }
    }
  }
}

/// Worker 1 sends a message with a wrong length, which some other worker must detect.
std::vector<std::exception_ptr> errors_of_wrong_length(
    const std::function<std::vector<std::exception_ptr>(
        int, int, const std::function<void(MessageGather&, Exchange&)>&)>& run,
    std::int64_t bytes, std::int64_t length, std::int64_t limit) {
  return run(5, 1, [=](MessageGather& gather, Exchange& exchange) {
    const int rank = exchange.rank().value;
    const std::span<std::byte> message = gather.own(rank == 1 ? bytes : 64);
    write(0, rank, message);
    if (rank == 1) std::memcpy(message.data(), &length, sizeof(length));
    gather.run(exchange, limit, [&](Rank worker, std::span<const std::byte> received) {
      if (rank == 1 && worker.value == 1) return MessageGather::Extent{bytes, bytes};
      const std::int64_t all = length_at(received);
      return MessageGather::Extent{all, all};
    });
  });
}

TEST_P(MessageGathers, reject_wrong_lengths) {
  const auto noticed = [](const std::vector<std::exception_ptr>& errors, auto&& is_it) {
    EXPECT_TRUE(std::any_of(errors.begin(), errors.end(), is_it))
        << text_of(errors[0]) << text_of(errors[2]);
  };
  // A length that is too short by more than the alignment, one that exceeds the received bytes, and
  // a negative one.
  for (const std::int64_t length : {std::int64_t{8}, std::int64_t{6400}, std::int64_t{-8}}) {
    noticed(errors_of_wrong_length(run<HostMemory>, 64, length, 4096), is<CorruptDataError>);
  }
  // A length above the limit.
  noticed(errors_of_wrong_length(run<HostMemory>, 100'000, 100'000, 4096), is<ProtocolError>);
}

}  // namespace
}  // namespace sparsesync::testing
