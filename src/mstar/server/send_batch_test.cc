// Frames for many sockets, with a ring and without.
#include "mstar/server/send_batch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

namespace mstar::server {
namespace {

class SocketPair {
 public:
  SocketPair() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends_.data()), 0); }
  ~SocketPair() {
    close_reader();
    ::close(ends_[0]);
  }
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  int writer() const { return ends_[0]; }
  void close_reader() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  // What has arrived.
  std::string read() const {
    std::string out;
    std::array<char, 65536> buffer;
    for (ssize_t got = 0; (got = ::read(ends_[1], buffer.data(), buffer.size())) > 0;)
      out.append(buffer.data(), static_cast<std::size_t>(got));
    return out;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

// True: with io_uring, which a system may refuse; then both run without.
class SendBatchTest : public testing::TestWithParam<bool> {
 protected:
  SendBatch batch_{GetParam()};
};

TEST_P(SendBatchTest, EachSocketGetsItsFrame) {
  std::vector<SocketPair> pairs(300);  // more than one call takes
  for (int round = 0; round < 3; ++round) {
    const auto frame = [&](std::size_t i) { return std::string(i, 'a') + std::to_string(round); };
    for (std::size_t i = 0; i < pairs.size(); ++i) batch_.add(pairs[i].writer(), frame(i));
    const auto& sent = batch_.send();
    ASSERT_EQ(sent.size(), pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(sent[i].result, static_cast<std::ptrdiff_t>(frame(i).size()));
      EXPECT_EQ(batch_.frame(sent[i]), frame(i));
      EXPECT_EQ(pairs[i].read(), frame(i));
    }
    batch_.clear();
    EXPECT_EQ(batch_.size(), 0u);
  }
}

TEST_P(SendBatchTest, AFullSocketHoldsNobodyUp) {
  SocketPair full, other;
  const std::string much(std::size_t{8} << 20, 'x');
  batch_.add(full.writer(), much);
  batch_.add(other.writer(), "one");
  const std::vector<SendBatch::Item> sent = batch_.send();
  const std::ptrdiff_t taken = sent[0].result;
  EXPECT_EQ(sent[1].result, 3);
  batch_.clear();
  ASSERT_LT(taken, static_cast<std::ptrdiff_t>(much.size()));

  // What is left of the buffer's room, until there is none.
  std::string rest = much.substr(static_cast<std::size_t>(std::max<std::ptrdiff_t>(taken, 0)));
  std::ptrdiff_t more = 0;
  while (more >= 0) {
    batch_.add(full.writer(), rest);
    batch_.add(other.writer(), "two");
    const auto& again = batch_.send();
    more = again[0].result;
    EXPECT_EQ(again[1].result, 3);
    batch_.clear();
  }
  EXPECT_EQ(more, -EAGAIN);
}

TEST_P(SendBatchTest, ASocketWithoutAPeerFailsAlone) {
  SocketPair gone, before, after;
  gone.close_reader();
  batch_.add(before.writer(), "before");
  batch_.add(gone.writer(), "lost");
  batch_.add(-1, "nowhere");
  batch_.add(after.writer(), "after");
  const auto& sent = batch_.send();
  EXPECT_EQ(sent[1].result, -EPIPE);
  EXPECT_EQ(sent[2].result, -EBADF);
  EXPECT_EQ(before.read(), "before");
  EXPECT_EQ(after.read(), "after");
}

INSTANTIATE_TEST_SUITE_P(Rings, SendBatchTest, testing::Bool(),
                         [](const auto& each) { return each.param ? "WithARing" : "WithoutOne"; });

}  // namespace
}  // namespace mstar::server
