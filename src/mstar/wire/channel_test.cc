#include "mstar/wire/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <map>
#include <vector>

namespace mstar::wire {
namespace {

using std::chrono::seconds;

// One end: what it got, and whether it is closed.
struct End {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> frames;
  std::vector<std::pair<std::size_t, Descriptor>> descriptors;  // with the number of their frame, from 1
  int num_closed = 0;
  std::shared_future<void> before_frame;  // each frame waits for it
  std::unique_ptr<Channel> channel;

  void open(int socket) {
    channel = std::make_unique<Channel>(
        socket, Channel::Callbacks{[this](std::span<const std::byte> frame, Descriptor along) {
                                     if (before_frame.valid()) before_frame.wait();
                                     std::lock_guard lock(mutex);
                                     frames.emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());
                                     if (along.get() >= 0) descriptors.emplace_back(frames.size(), std::move(along));
                                     changed.notify_all();
                                     return frames.back() != "stop";
                                   },
                                   [this] {
                                     std::lock_guard lock(mutex);
                                     ++num_closed;
                                     changed.notify_all();
                                   }});
  }
  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(60), condition);
  }
  bool wait_frames(std::size_t count) {
    return wait([&] { return frames.size() >= count; });
  }
  bool wait_closed() {
    return wait([&] { return num_closed > 0; });
  }
};

class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ends = make_socket_pair();
    ASSERT_TRUE(ends);
    sockets_ = *ends;
  }
  void open() {
    a_.open(sockets_[0]);
    b_.open(sockets_[1]);
  }
  std::array<int, 2> sockets_ = {};
  End a_, b_;
};

TEST_F(ChannelTest, FramesArriveWholeAndInOrder) {
  open();
  std::vector<std::string> sent = {"", "one", std::string(3 << 20, 'x'), "two"};
  for (int i = 0; i < 2000; ++i) sent.push_back(std::to_string(i));
  for (const auto& each : sent) ASSERT_TRUE(a_.channel->send(each));
  ASSERT_TRUE(b_.wait_frames(sent.size()));
  EXPECT_EQ(b_.frames, sent);
}

TEST_F(ChannelTest, AFullPeerBlocksNeitherTheSenderNorItsReceiving) {
  std::promise<void> go;
  b_.before_frame = go.get_future().share();
  open();
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(a_.channel->send(large));  // far more than the socket holds
  ASSERT_TRUE(b_.channel->send("back"));
  ASSERT_TRUE(a_.wait_frames(1));
  EXPECT_EQ(a_.frames[0], "back");
  {
    std::lock_guard lock(b_.mutex);
    EXPECT_TRUE(b_.frames.empty());
  }
  go.set_value();
  EXPECT_TRUE(b_.wait_frames(64));
}

// Open descriptors of this process.
std::size_t num_open() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

TEST_F(ChannelTest, ADescriptorArrivesWithItsFrameAndNoneIsLeftOpen) {
  const std::size_t before = num_open();
  open();
  std::array<int, 2> pipe_ends = {};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  Descriptor write_end(pipe_ends[1]);
  ASSERT_TRUE(a_.channel->send("plain"));
  ASSERT_TRUE(a_.channel->send("with a pipe", Descriptor(pipe_ends[0])));
  ASSERT_TRUE(a_.channel->send(std::string(1 << 20, 'x')));
  ASSERT_TRUE(b_.wait_frames(3));
  ASSERT_EQ(b_.descriptors.size(), 1u);
  EXPECT_EQ(b_.descriptors[0].first, 2u);
  const int read_end = b_.descriptors[0].second.get();
  EXPECT_EQ(::fcntl(read_end, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_EQ(::write(write_end.get(), "hi", 2), 2);
  std::array<char, 2> got = {};
  ASSERT_EQ(::read(read_end, got.data(), 2), 2);
  EXPECT_EQ(std::string(got.data(), 2), "hi");
  // One that is queued and never sent is closed too.
  a_.channel->close();
  EXPECT_FALSE(a_.channel->send("late", Descriptor(::dup(write_end.get()))));
  b_.descriptors.clear();
  write_end = Descriptor();
  a_.channel.reset();
  b_.channel.reset();
  EXPECT_EQ(num_open(), before - 2);
}

TEST_F(ChannelTest, BothMayBeFullAtOnce) {
  open();
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(a_.channel->send(large));
    ASSERT_TRUE(b_.channel->send(large));
  }
  EXPECT_TRUE(a_.wait_frames(40));
  EXPECT_TRUE(b_.wait_frames(40));
}

TEST_F(ChannelTest, SendersOfManyThreadsKeepTheirOwnOrder) {
  open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) a_.channel->send(std::string(1, static_cast<char>('a' + t)) + std::to_string(i));
    });
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(b_.wait_frames(800));
  std::map<char, int> next;
  for (const auto& frame : b_.frames) EXPECT_EQ(frame.substr(1), std::to_string(next[frame[0]]++));
}

TEST_F(ChannelTest, TheOtherEndHearsOfACloseOnce) {
  open();
  a_.channel->send("last");
  a_.channel->flush_and_close(seconds(60));
  ASSERT_TRUE(b_.wait_closed());
  EXPECT_EQ(b_.frames, (std::vector<std::string>{"last"}));
  EXPECT_FALSE(a_.channel->send("more"));
  b_.channel.reset();
  a_.channel.reset();
  EXPECT_EQ(a_.num_closed, 1);
  EXPECT_EQ(b_.num_closed, 1);
}

TEST_F(ChannelTest, ACallbackMayEndTheChannel) {
  open();
  a_.channel->send("stop");
  a_.channel->send("unseen");
  ASSERT_TRUE(b_.wait_closed());
  ASSERT_TRUE(a_.wait_closed());
  EXPECT_EQ(b_.frames.size(), 1u);
}

TEST_F(ChannelTest, ClosingWhileThePeerIsFullDoesNotHang) {
  std::promise<void> go;
  b_.before_frame = go.get_future().share();
  open();
  for (int i = 0; i < 64; ++i) a_.channel->send(std::string(1 << 20, 'x'));
  a_.channel->flush_and_close(std::chrono::milliseconds(20));
  a_.channel.reset();
  go.set_value();
  EXPECT_TRUE(b_.wait_closed());
}

TEST_F(ChannelTest, ALengthBeyondTheLimitEndsTheChannel) {
  b_.open(sockets_[1]);
  const std::uint64_t lie = kMaxFrameBytes + 1;
  ASSERT_EQ(::send(sockets_[0], &lie, sizeof(lie), 0), static_cast<ssize_t>(sizeof(lie)));
  EXPECT_TRUE(b_.wait_closed());
  EXPECT_TRUE(b_.frames.empty());
  ::close(sockets_[0]);
}

TEST_F(ChannelTest, ACutFrameIsNoFrame) {
  b_.open(sockets_[1]);
  const std::uint64_t size = 100;
  ASSERT_EQ(::send(sockets_[0], &size, sizeof(size), 0), static_cast<ssize_t>(sizeof(size)));
  ASSERT_EQ(::send(sockets_[0], "abc", 3, 0), 3);
  ::close(sockets_[0]);
  EXPECT_TRUE(b_.wait_closed());
  EXPECT_TRUE(b_.frames.empty());
}

}  // namespace
}  // namespace mstar::wire
