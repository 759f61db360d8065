#include "mstar/device/cpu/thread_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace mstar {
namespace {

// Runs body(end) for each rank, each on a thread of its own.
void on_ranks(int size, const std::function<void(Communicator&)>& body) {
  auto group = make_thread_group(size);
  std::vector<std::thread> threads;
  for (auto& end : group) threads.emplace_back([&body, &end] { body(*end); });
  for (std::thread& each : threads) each.join();
}

std::vector<float> numbers(int rank, std::size_t count) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(rank + 1));
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& each : out) each = normal(random) * 100;
  return out;
}

// In the order of the ranks.
std::vector<float> sums(int size, std::size_t count) {
  std::vector<float> out = numbers(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> more = numbers(rank, count);
    for (std::size_t i = 0; i < count; ++i) out[i] += more[i];
  }
  return out;
}

TEST(ThreadCommunicator, SumsInTheOrderOfTheRanks) {
  for (const int size : {1, 2, 3, 4})
    for (const std::size_t count : {0, 1, 17, 100, 5000}) {
      std::vector<std::vector<float>> got(static_cast<std::size_t>(size));
      on_ranks(size, [&](Communicator& end) {
        std::vector<float> own = numbers(end.rank(), count);
        EXPECT_EQ(end.size(), size);
        EXPECT_TRUE(end.all_reduce(own.data(), count, DType::f32, {}));
        got[static_cast<std::size_t>(end.rank())] = own;
      });
      for (const auto& own : got) EXPECT_EQ(own, sums(size, count)) << size << " ranks, " << count;
    }
}

TEST(ThreadCommunicator, SumsOf16BitsAreRoundedOnce) {
  constexpr std::size_t kCount = 300;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto narrow = [&](float value) {
      return dtype == DType::bf16 ? to_bfloat16(value).bits : to_half(value).bits;
    };
    const auto widen = [&](std::uint16_t bits) {
      return dtype == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Half{bits});
    };
    on_ranks(3, [&](Communicator& end) {
      std::vector<std::uint16_t> own;
      std::vector<float> expected(kCount, 0.0f);
      for (int rank = 0; rank < 3; ++rank) {
        const std::vector<float> more = numbers(rank, kCount);
        for (std::size_t i = 0; i < kCount; ++i) expected[i] += widen(narrow(more[i]));
      }
      for (const float value : numbers(end.rank(), kCount)) own.push_back(narrow(value));
      EXPECT_TRUE(end.all_reduce(own.data(), kCount, dtype, {}));
      for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(own[i], narrow(expected[i])) << i;
    });
  }
  on_ranks(1, [](Communicator& end) { EXPECT_FALSE(end.all_reduce(nullptr, 0, DType::i32, {})); });
}

TEST(ThreadCommunicator, GathersAndBroadcasts) {
  on_ranks(3, [](Communicator& end) {
    const int own = 10 + end.rank();
    std::vector<int> all(3, -1), in_place(3, -1);
    EXPECT_TRUE(end.all_gather(&own, all.data(), sizeof(int), {}));
    EXPECT_EQ(all, (std::vector<int>{10, 11, 12}));
    int* const place = in_place.data() + end.rank();
    *place = own;
    EXPECT_TRUE(end.all_gather(place, in_place.data(), sizeof(int), {}));
    EXPECT_EQ(in_place, all);
    for (const int root : {0, 2}) {
      int value = own;
      EXPECT_TRUE(end.broadcast(&value, sizeof value, root, {}));
      EXPECT_EQ(value, 10 + root);
    }
    int value = 0;
    EXPECT_FALSE(end.broadcast(&value, sizeof value, 3, {}));
  });
}

TEST(ThreadCommunicator, ExchangesParts) {
  for (const int size : {1, 2, 5})
    on_ranks(size, [&](Communicator& end) {
      const auto ranks = static_cast<std::size_t>(size);
      std::vector<int> from(2 * ranks), to(2 * ranks, -1), wanted(2 * ranks);
      for (std::size_t i = 0; i < from.size(); ++i) {
        from[i] = 100 * end.rank() + static_cast<int>(i);
        wanted[i] = 100 * (static_cast<int>(i) / 2) + 2 * end.rank() + static_cast<int>(i) % 2;
      }
      EXPECT_TRUE(end.all_to_all(from.data(), to.data(), 2 * sizeof(int), {}));
      EXPECT_EQ(to, wanted);
      EXPECT_TRUE(end.all_to_all(from.data(), to.data(), 0, {}));
      EXPECT_EQ(to, wanted);
    });
}

TEST(ThreadCommunicator, ManyCallsOfEveryKindFollowEachOther) {
  on_ranks(4, [](Communicator& end) {
    std::mt19937 random(7);  // the same calls on every rank
    for (int i = 0; i < 500; ++i) {
      const std::size_t count = random() % 200;
      const auto kind = random() % 4;
      std::vector<float> own = numbers(end.rank(), count), all(4 * count);
      if (kind == 0) {
        ASSERT_TRUE(end.all_reduce(own.data(), count, DType::f32, {}));
        ASSERT_EQ(own, sums(4, count));
      } else if (kind == 1) {
        ASSERT_TRUE(end.all_gather(own.data(), all.data(), count * sizeof(float), {}));
        for (int rank = 0; rank < 4; ++rank) {
          const auto part = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count);
          ASSERT_EQ(std::vector<float>(part, part + static_cast<std::ptrdiff_t>(count)), numbers(rank, count));
        }
      } else if (kind == 2) {
        std::vector<float> parts = numbers(end.rank(), 4 * count);
        ASSERT_TRUE(end.all_to_all(parts.data(), all.data(), count * sizeof(float), {}));
        for (int rank = 0; rank < 4; ++rank) {
          const std::vector<float> theirs = numbers(rank, 4 * count);
          for (std::size_t k = 0; k < count; ++k)
            ASSERT_EQ(all[static_cast<std::size_t>(rank) * count + k],
                      theirs[static_cast<std::size_t>(end.rank()) * count + k]);
        }
      } else {
        ASSERT_TRUE(end.broadcast(own.data(), count * sizeof(float), 1, {}));
        ASSERT_EQ(own, numbers(1, count));
      }
    }
  });
}

// Whether the others wait already or come later, they are told.
TEST(ThreadCommunicator, AbortWakesWhoeverWaits) {
  on_ranks(3, [](Communicator& end) {
    if (end.rank() == 1) {
      EXPECT_TRUE(end.failure());
      end.abort("the device is gone");
      end.abort("too late");
    }
    float value = 1;
    const Status status = end.all_reduce(&value, 1, DType::f32, {});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::unavailable);
    EXPECT_NE(status.error().message.find("the device is gone"), std::string::npos);
    EXPECT_FALSE(end.failure());
    EXPECT_FALSE(end.broadcast(&value, sizeof value, 0, {}));
  });
}

// A call ends well on all ranks or on none, so that memory may go once it has ended.
TEST(ThreadCommunicator, AbortComesBetweenCalls) {
  for (int turn = 0; turn < 20; ++turn) {
    std::atomic<int> total{0};
    int done[3] = {};
    on_ranks(3, [&](Communicator& end) {
      while (true) {
        std::vector<float> own(1000, 1.0f);
        if (!end.all_reduce(own.data(), own.size(), DType::f32, {})) return;
        EXPECT_EQ(own, std::vector<float>(1000, 3.0f));
        ++done[end.rank()];
        if (total.fetch_add(1) == 20 + turn) end.abort("enough");
      }
    });
    EXPECT_EQ(done[0], done[1]);
    EXPECT_EQ(done[0], done[2]);
    EXPECT_GE(done[0], 7);
  }
}

TEST(ThreadCommunicator, AbortWakesWhoeverWaitsForAnExchange) {
  on_ranks(3, [](Communicator& end) {
    std::vector<int> from(3), to(3, 7);
    if (end.rank() == 2) {
      end.abort("the device is gone");
      return;
    }
    const Status status = end.all_to_all(from.data(), to.data(), sizeof(int), {});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::unavailable);
    EXPECT_EQ(to, std::vector<int>(3, 7));
  });
}

TEST(ThreadCommunicator, ExchangesOfDifferentSizesEndTheGroup) {
  on_ranks(2, [](Communicator& end) {
    std::vector<char> from(8), to(8);
    const Status status = end.all_to_all(from.data(), to.data(), end.rank() == 0 ? 3 : 4, {});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::internal) << status.error().message;
    EXPECT_NE(status.error().message.find("all_to_all of"), std::string::npos);
  });
}

TEST(ThreadCommunicator, AnEndThatGoesAwayEndsTheGroup) {
  auto group = make_thread_group(2);
  std::thread other([&] { group[1].reset(); });
  float value = 1;
  const Status status = group[0]->all_reduce(&value, 1, DType::f32, {});
  other.join();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::unavailable);
  EXPECT_NE(status.error().message.find("rank 1 is gone"), std::string::npos);
}

TEST(ThreadCommunicator, RanksThatCallDifferentThingsEndTheGroup) {
  const std::vector<std::function<Status(Communicator&, float*)>> odd = {
      [](Communicator& end, float* at) { return end.all_reduce(at, 3, DType::f32, {}); },
      [](Communicator& end, float* at) { return end.all_reduce(at, 4, DType::bf16, {}); },
      [](Communicator& end, float* at) { return end.broadcast(at, 4, 0, {}); },
      [](Communicator& end, float* at) { return end.all_gather(at, at, 4, {}); },
      [](Communicator& end, float* at) { return end.all_to_all(at, at + 8, 4, {}); }};
  for (const auto& call : odd)
    on_ranks(3, [&](Communicator& end) {
      float values[16] = {};
      const Status first = end.rank() == 2 ? call(end, values) : end.all_reduce(values, 4, DType::f32, {});
      ASSERT_FALSE(first);
      EXPECT_EQ(first.error().code, Code::internal) << first.error().message;
      const Status second = end.all_reduce(values, 4, DType::f32, {});
      ASSERT_FALSE(second);
      EXPECT_EQ(second.error().code, Code::unavailable);
    });
}

}  // namespace
}  // namespace mstar
