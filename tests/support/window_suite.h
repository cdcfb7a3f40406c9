// The suite of transports that divide messages into chunks and limit how many are unacknowledged.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "schemes/pattern.h"
#include "sparsesync/transports/chunks.h"
#include "tests/support/transport_suite.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

/// The chunks of the workers under test.
inline constexpr Chunks kWindowedChunks{1024, 12};

/// Runs each case with 4 workers whose messages are divided into kWindowedChunks.
class WindowSuite : public TransportSuite {
 protected:
  /// Returns a message of this number of chunks. The first one begins with the message's header,
  /// and each with 8 bytes of the transport.
  static std::vector<std::byte> message_of(std::int64_t chunks) {
    const std::int64_t bytes = chunks * (kWindowedChunks.bytes - 8) - kHeaderBytes;
    return std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{7});
  }

  /// Sends messages of this number of chunks from worker 0 to the first workers, which receive only
  /// after worker 0's sends have ended.
  /// @return worker 0's error
  static std::exception_ptr send(std::int64_t chunks, int receivers, Clock::duration wait) {
    const auto errors = run(4, [=](std::unique_ptr<Transport>& end) {
      const int rank = end->rank().value;
      Taker taker(1);
      if (rank == 0) {
        const std::vector<std::byte> message = message_of(chunks);
        std::vector<Send> sends;
        for (int to = 1; to <= receivers; ++to) {
          sends.push_back({Rank{to}, message.data(), std::ssize(message)});
        }
        try {
          finish(*end, end->post(own_context(), {}, sends, {}, taker), Clock::now() + wait);
          counter() = 1;
        } catch (...) {
          counter() = 2;
          throw;
        }
        return;
      }
      wait_for_counter(1);
      if (rank > receivers || counter() == 2) return;
      const GroupId group = post_receive(*end, Rank{0}, taker);
      while (end->next(group, soon())) continue;
      end->finish(group, soon());
      EXPECT_EQ(taker.payloads.front(), message_of(chunks));
    });
    for (std::size_t rank = 1; rank < errors.size(); ++rank) EXPECT_FALSE(errors[rank]) << rank;
    return errors.front();
  }
};

TEST_P(WindowSuite, TheOnlyReceiverGetsTheWholeWindow) {
  EXPECT_FALSE(send(kWindowedChunks.window, 1, kDeadline));
}

TEST_P(WindowSuite, ReceiversShareTheWindowEvenly) {
  EXPECT_FALSE(send(kWindowedChunks.window / 3, 3, kDeadline));
}

TEST_P(WindowSuite, NoMoreThanTheWindowIsUnacknowledged) {
  const std::exception_ptr error = send(kWindowedChunks.window + 1, 1, std::chrono::seconds(1));
  ASSERT_TRUE(error);
  EXPECT_THROW(std::rethrow_exception(error), DeadlineError);
}

TEST_P(WindowSuite, NoReceiverGetsMoreThanItsShare) {
  const std::exception_ptr error = send(kWindowedChunks.window / 3 + 1, 3, std::chrono::seconds(1));
  ASSERT_TRUE(error);
  EXPECT_THROW(std::rethrow_exception(error), DeadlineError);
}

}  // namespace sparsesync::testing
