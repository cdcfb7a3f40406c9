// A transport over point-to-point calls: the conformance suites of transports and of schemes.
#include "engine/transport/point_to_point.h"

#include "tests/support/mailboxes.h"
#include "tests/support/scheme_suite.h"
#include "tests/support/transport_suite.h"

namespace sparsesync::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(mailboxes, TransportSuite, ::testing::Values(mailbox_workers()),
                         [](const auto& each) { return each.param.name; });

const std::array<std::vector<int>, 3> kSizes =
    kSanitized ? std::array<std::vector<int>, 3>{{{4}, {3}, {2}}}
               : std::array<std::vector<int>, 3>{{{1, 3, 4, 7}, {3}, {2}}};

INSTANTIATE_TEST_SUITE_P(mailboxes, SchemeSuite,
                         ::testing::ValuesIn(all_schemes_over(mailbox_workers(), 7, kSizes)),
                         [](const auto& each) { return each.param.variant.label; });

/// Runs body(network, other) as two workers on bare calls, without a transport.
std::vector<std::exception_ptr> run_against_bare_calls(
    const std::function<void(Transport&)>& as_transport,
    const std::function<void(PointToPoint&)>& as_calls) {
  const auto boxes = std::make_shared<Mailboxes>(2);
  std::vector<std::unique_ptr<PointToPoint>> ends;
  for (int rank = 0; rank < 2; ++rank) ends.push_back(Mailboxes::end(boxes, Rank{rank}));
  std::vector<std::unique_ptr<Transport>> none(2);
  return run_in_threads(std::move(none), [&](std::unique_ptr<Transport>&, std::size_t rank) {
    if (rank == 1) return as_calls(*ends[1]);
    as_transport(*transport_over(std::move(ends[0]), Rank{0}, {0, 0}));
  });
}

/// What a worker throws that receives a message with this header, and this payload.
std::exception_ptr error_of(const Header& header, const std::string& payload) {
  const auto errors = run_against_bare_calls(
      [](Transport& transport) {
        HostMemory memory;
        Taker taker(1);
        const GroupId group =
            transport.post(Context(memory), {}, {}, std::array{Receive{Rank{1}}}, taker);
        transport.next(group, soon());
      },
      [&](PointToPoint& network) {
        using Lane = PointToPoint::Lane;
        network.send(Rank{0}, Lane::headers, std::as_bytes(std::span(&header, 1)));
        network.send(Rank{0}, Lane::payloads, std::as_bytes(std::span(payload)));
        Header answer;
        network.wait(
            network.receive(Rank{0}, Lane::headers, std::as_writable_bytes(std::span(&answer, 1))),
            soon());
      });
  return errors[0];
}

TEST(PointToPoint, an_abort_is_read_with_care) {
  constexpr std::uint32_t kAbort = 0xFFFF'FFFFU;
  const std::exception_ptr told = error_of({kAbort, 1, 0, 0, 5}, "a fox");
  EXPECT_TRUE(is<AbortedError>(told)) << text_of(told);
  EXPECT_NE(text_of(told).find("worker 1 ended the session: a fox"), std::string::npos);
  const std::exception_ptr nobody = error_of({kAbort, 2, 0, 0, 5}, "a fox");
  EXPECT_TRUE(is<ProtocolError>(nobody)) << text_of(nobody);
  const std::exception_ptr endless = error_of({kAbort, 1, 0, 0, 1ULL << 40U}, "a fox");
  EXPECT_TRUE(is<ProtocolError>(endless)) << text_of(endless);
}

}  // namespace
}  // namespace sparsesync::testing
