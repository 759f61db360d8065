// Ranks that are processes. Bodies of children say how it went by their exit status.
#include "mstar/device/cpu/shared_communicator.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "mstar/device/cpu/thread_communicator.h"

namespace mstar {
namespace {

using namespace std::chrono_literals;
using Body = std::function<bool(Communicator&)>;

int group_of(int size, std::size_t piece_bytes = kSharedPieceBytes) {
  auto made = make_shared_group(size, piece_bytes);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *made : -1;
}

std::unique_ptr<Communicator> join(int group, int rank) {
  auto made = join_shared_group(::dup(group), rank);
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : nullptr;
}

// A rank in a process of its own; its body starts no thread.
pid_t fork_rank(int group, int rank, const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  auto end = join_shared_group(group, rank);
  ::_exit(end && body(**end) ? 0 : 1);
}

int status_of(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

// Runs body(end) for each rank, each in a process of its own; rank 0 in this one.
void on_processes(int size, const Body& body, std::size_t piece_bytes = kSharedPieceBytes) {
  const int group = group_of(size, piece_bytes);
  std::vector<pid_t> children;
  for (int rank = 1; rank < size; ++rank) children.push_back(fork_rank(group, rank, body));
  const auto own = join(group, 0);
  EXPECT_TRUE(own && body(*own));
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  ::close(group);
}

// So that a sum in another order differs.
std::vector<float> numbers(int rank, std::size_t count, unsigned salt = 0) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(rank + 1) + 100 * salt);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& each : out) each = normal(random) * std::pow(10.0f, static_cast<float>(rank));
  return out;
}

std::vector<float> sums(int size, std::size_t count, unsigned salt = 0) {
  std::vector<float> out = numbers(0, count, salt);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> more = numbers(rank, count, salt);
    for (std::size_t i = 0; i < count; ++i) out[i] += more[i];
  }
  return out;
}

TEST(SharedCommunicator, SumsInTheOrderOfTheRanksWhateverTheLength) {
  for (const int size : {1, 2, 3, 5})
    on_processes(
        size,
        [size](Communicator& end) {
          bool right = end.size() == size;
          for (const std::size_t count : {0, 1, 15, 16, 17, 100, 999, 5000}) {  // pieces of 256 floats
            std::vector<float> own = numbers(end.rank(), count);
            right &= end.all_reduce(own.data(), count, DType::f32, {}).ok() && own == sums(size, count);
          }
          return right;
        },
        1024);
}

TEST(SharedCommunicator, ExchangesWhateverTheLength) {
  for (const int size : {1, 2, 3, 5})
    on_processes(
        size,
        [size](Communicator& end) {
          bool right = true;
          for (const std::size_t bytes : {0, 1, 63, 200, 201, 5000}) {  // pieces of 1024 / size
            const auto part = [&](int from, int to, std::size_t i) {
              return static_cast<std::byte>(static_cast<std::size_t>(from * 31 + to * 7) + i);
            };
            std::vector<std::byte> sent, wanted, received(bytes * static_cast<std::size_t>(size));
            for (int other = 0; other < size; ++other)
              for (std::size_t i = 0; i < bytes; ++i) {
                sent.push_back(part(end.rank(), other, i));
                wanted.push_back(part(other, end.rank(), i));
              }
            right &= end.all_to_all(sent.data(), received.data(), bytes, {}).ok() && received == wanted;
          }
          return right;
        },
        1024);
}

TEST(SharedCommunicator, GroupsOfOneMemoryDoNotMeet) {
  const std::vector<int> sizes = {3, 1, 2};
  auto made = make_shared_groups(sizes, 1024);
  ASSERT_TRUE(made) << made.error().message;
  const auto end_of = [&](int group, int rank) { return join_shared_group(::dup(*made), rank, group); };
  EXPECT_FALSE(end_of(3, 0)) << "there is none";
  EXPECT_FALSE(end_of(-1, 0));
  EXPECT_FALSE(end_of(1, 1)) << "it has one rank";
  const pid_t child = ::fork();
  if (child == 0) {
    // Of two groups in turn, in each with another rank.
    auto small = end_of(2, 0), large = end_of(0, 2);
    float a = 10, b = 100;
    const bool right = small && large && (*small)->all_reduce(&a, 1, DType::f32, {}).ok() && a == 11 &&
                       (*large)->all_reduce(&b, 1, DType::f32, {}).ok() && b == 103;
    ::_exit(right ? 0 : 1);
  }
  auto small = end_of(2, 1), first = end_of(0, 0), second = end_of(0, 1), alone = end_of(1, 0);
  ASSERT_TRUE(small && first && second && alone);
  float one = 1;
  EXPECT_TRUE((*alone)->all_reduce(&one, 1, DType::f32, {}).ok());
  EXPECT_TRUE((*small)->all_reduce(&one, 1, DType::f32, {}).ok());
  EXPECT_EQ(one, 11);
  std::thread other([&] {
    float two = 2;
    EXPECT_TRUE((*second)->all_reduce(&two, 1, DType::f32, {}).ok());
    EXPECT_EQ(two, 103);
  });
  one = 1;
  EXPECT_TRUE((*first)->all_reduce(&one, 1, DType::f32, {}).ok());
  EXPECT_EQ(one, 103);
  other.join();
  EXPECT_EQ(status_of(child), 0);
  // One that ends takes nobody of another group along.
  (*first)->abort("it is over");
  EXPECT_FALSE((*second)->failure());
  EXPECT_TRUE((*small)->failure());
  ::close(*made);
}

TEST(SharedCommunicator, BitsAreThoseOfThreads) {
  constexpr std::size_t kCount = 700;
  constexpr int kSize = 3;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto stored = [dtype](int rank) {
      std::vector<std::byte> out(kCount * dtype_bytes(dtype));
      const std::vector<float> from = numbers(rank, kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        const std::uint16_t bits = dtype == DType::bf16 ? to_bfloat16(from[i]).bits : to_half(from[i]).bits;
        if (dtype == DType::f32) std::memcpy(out.data() + 4 * i, &from[i], 4);
        if (dtype != DType::f32) std::memcpy(out.data() + 2 * i, &bits, 2);
      }
      return out;
    };
    std::vector<std::byte> expected;
    {
      auto ends = make_thread_group(kSize);
      std::vector<std::thread> threads;
      for (auto& end : ends)
        threads.emplace_back([&, own = end.get()] {
          auto data = stored(own->rank());
          EXPECT_TRUE(own->all_reduce(data.data(), kCount, dtype, {}).ok());
          if (own->rank() == 0) expected = data;
        });
      for (std::thread& each : threads) each.join();
    }
    on_processes(
        kSize,
        [&](Communicator& end) {
          auto data = stored(end.rank());
          return end.all_reduce(data.data(), kCount, dtype, {}).ok() && data == expected;
        },
        512);
  }
}

TEST(SharedCommunicator, ManyCallsOfEveryKindFollowEachOther) {
  on_processes(
      3,
      [](Communicator& end) {
        std::mt19937 random(7);  // the same calls on every rank
        bool right = true;
        for (unsigned i = 0; i < 300; ++i) {
          const std::size_t count = random() % 200;
          const auto kind = random() % 3;
          std::vector<float> own = numbers(end.rank(), count, i), all(3 * count);
          if (kind == 0) {
            right &= end.all_reduce(own.data(), count, DType::f32, {}).ok() && own == sums(3, count, i);
          } else if (kind == 1) {
            right &= end.all_gather(own.data(), all.data(), count * sizeof(float), {}).ok();
            for (int rank = 0; rank < 3; ++rank) {
              const auto part = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count);
              right &= std::vector<float>(part, part + static_cast<std::ptrdiff_t>(count)) == numbers(rank, count, i);
            }
          } else {
            right &= end.broadcast(own.data(), count * sizeof(float), 1, {}).ok() && own == numbers(1, count, i);
          }
        }
        return right;
      },
      256);
}

// Whether rank 1 dies between two calls, or while it is wherever it is in them.
TEST(SharedCommunicator, AKilledRankEndsTheGroupForTheOthers) {
  const auto sum_once = [](Communicator& end) {
    std::vector<float> data(5000, 1.0f);  // several pieces
    return end.all_reduce(data.data(), data.size(), DType::f32, {});
  };
  for (const auto after : {0ms, 5ms, 30ms}) {
    const int group = group_of(3, 4096);
    const auto ends_well = [&](Communicator& end) {
      Status ran;
      while ((ran = sum_once(end)).ok()) {
      }
      return ran.error().code == Code::unavailable &&
             ran.error().message.find("the process of rank 1 has ended") != std::string::npos;
    };
    const pid_t killed = fork_rank(group, 1, [&](Communicator& end) {
      (void)sum_once(end);
      if (after == 0ms) ::raise(SIGKILL);
      return ends_well(end);
    });
    const pid_t other = fork_rank(group, 2, ends_well);
    const auto own = join(group, 0);
    ASSERT_TRUE(own && sum_once(*own).ok());  // all have joined
    std::thread kills([&] {
      std::this_thread::sleep_for(after);
      ::kill(killed, SIGKILL);
    });
    EXPECT_TRUE(ends_well(*own)) << own->failure().error().message;
    kills.join();
    EXPECT_TRUE(WIFSIGNALED(status_of(killed)));
    EXPECT_EQ(status_of(other), 0);
    ::close(group);
  }
}

TEST(SharedCommunicator, AnAbortReachesWhoeverWaits) {
  const int group = group_of(2);
  const pid_t child = fork_rank(group, 1, [](Communicator& end) {
    float value = 1;
    const Status ran = end.all_reduce(&value, 1, DType::f32, {});
    return !ran && ran.error().code == Code::unavailable && ran.error().message.find("told to") != std::string::npos;
  });
  const auto own = join(group, 0);
  ASSERT_TRUE(own);
  std::this_thread::sleep_for(50ms);  // until the other one most likely waits
  own->abort("told to");
  own->abort("again");
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(own->failure().error().message, "the group of ranks was ended: told to");
  float value = 1;
  EXPECT_FALSE(own->all_reduce(&value, 1, DType::f32, {}));
  ::close(group);
}

TEST(SharedCommunicator, WhoIsNotLetInEndsNothing) {
  const int group = group_of(2);
  const auto own = join(group, 0);
  ASSERT_TRUE(own);
  EXPECT_FALSE(join_shared_group(::dup(group), 0)) << "the seat is taken";
  ::close(::dup(group));
  ::close(group);  // the ranks keep theirs
  EXPECT_TRUE(own->failure());
}

TEST(SharedCommunicator, DifferentCallsEndTheGroup) {
  const int group = group_of(2);
  const pid_t child = fork_rank(group, 1, [](Communicator& end) {
    float value = 1;
    return !end.all_reduce(&value, 1, DType::f32, {}).ok();
  });
  const auto own = join(group, 0);
  ASSERT_TRUE(own);
  std::vector<float> values(2);
  const Status ran = own->all_reduce(values.data(), 2, DType::f32, {});
  ASSERT_FALSE(ran);
  EXPECT_EQ(status_of(child), 0);
  EXPECT_FALSE(own->failure().ok());
  ::close(group);
}

TEST(SharedCommunicator, WhatIsNoGroupIsRefused) {
  EXPECT_FALSE(make_shared_group(0));
  EXPECT_FALSE(make_shared_group(65));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(join_shared_group(ends[0], 0));
  ::close(ends[1]);
  EXPECT_FALSE(join_shared_group(-1, 0));
  const int group = group_of(2);
  EXPECT_FALSE(join_shared_group(::dup(group), 2));
  EXPECT_FALSE(join_shared_group(::dup(group), -1));
  ::close(group);
}

}  // namespace
}  // namespace mstar
