// What is ours around NCCL, with functions in its place that write down how they were called.
#include "mstar/device/cuda/nccl_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cuda/nccl_library.h"

namespace mstar {
namespace {

struct Called {
  std::size_t count = 0;
  int type = -1;
  int root = -1;
  void* stream = nullptr;
};

// One test at a time.
struct Fake {
  std::mutex mutex;
  std::map<NcclApi::Comm, int> ranks;
  std::vector<Called> calls;
  std::vector<int> destroyed, aborted;  // ranks
  std::atomic<int> failing_rank{-1};
  std::atomic<bool> held{false}, is_within{false};  // calls last as long as `held`
  std::atomic<bool> aborts_last{false};
  int num_open_groups = 0;
};
Fake* fake = nullptr;

NcclApi::Comm handle(int rank) { return reinterpret_cast<NcclApi::Comm>(static_cast<std::uintptr_t>(rank) * 16 + 16); }

int note(NcclApi::Comm comm, Called call) {
  fake->is_within = true;
  while (fake->held) std::this_thread::yield();
  const std::lock_guard lock(fake->mutex);
  EXPECT_TRUE(fake->ranks.contains(comm)) << "a call on a handle that is gone";
  fake->calls.push_back(call);
  return fake->ranks[comm] == fake->failing_rank ? 3 : NcclApi::kSuccess;
}

int gone(NcclApi::Comm comm, std::vector<int>& list) {
  const std::lock_guard lock(fake->mutex);
  EXPECT_TRUE(fake->ranks.contains(comm)) << "ended twice";
  list.push_back(fake->ranks[comm]);
  fake->ranks.erase(comm);
  return NcclApi::kSuccess;
}

NcclApi fake_api() {
  NcclApi api;
  api.get_unique_id = [](NcclApi::UniqueId* id) {
    id->bytes[5] = 42;
    return NcclApi::kSuccess;
  };
  api.init_rank = [](NcclApi::Comm* comm, int num_ranks, NcclApi::UniqueId id, int rank) {
    EXPECT_EQ(num_ranks, 2);
    EXPECT_EQ(id.bytes[5], 42);
    const std::lock_guard lock(fake->mutex);
    if (rank == fake->failing_rank) return 3;
    *comm = handle(rank);
    fake->ranks[*comm] = rank;
    return NcclApi::kSuccess;
  };
  api.destroy = [](NcclApi::Comm comm) { return gone(comm, fake->destroyed); };
  api.abort = [](NcclApi::Comm comm) {
    while (fake->aborts_last) std::this_thread::yield();
    return gone(comm, fake->aborted);
  };
  api.error_text = [](int) { return "an error of the library"; };
  api.all_reduce = [](const void* from, void* to, std::size_t count, int type, int operation, NcclApi::Comm comm,
                      void* stream) {
    EXPECT_EQ(from, to);
    EXPECT_EQ(operation, NcclApi::kSum);
    return note(comm, {count, type, -1, stream});
  };
  api.all_gather = [](const void*, void*, std::size_t count, int type, NcclApi::Comm comm, void* stream) {
    return note(comm, {count, type, -1, stream});
  };
  api.broadcast = [](const void* from, void* to, std::size_t count, int type, int root, NcclApi::Comm comm,
                     void* stream) {
    EXPECT_EQ(from, to);
    return note(comm, {count, type, root, stream});
  };
  api.group_start = [] {
    ++fake->num_open_groups;
    return NcclApi::kSuccess;
  };
  api.group_end = [] {
    --fake->num_open_groups;
    return NcclApi::kSuccess;
  };
  api.send = [](const void*, std::size_t count, int type, int peer, NcclApi::Comm comm, void* stream) {
    EXPECT_EQ(fake->num_open_groups, 1);
    return note(comm, {count, type, peer, stream});
  };
  api.receive = [](void*, std::size_t count, int type, int peer, NcclApi::Comm comm, void* stream) {
    EXPECT_EQ(fake->num_open_groups, 1);
    return note(comm, {count, type, peer, stream});
  };
  return api;
}

class NcclGroup : public testing::Test {
 protected:
  void SetUp() override { fake = &fake_; }
  std::vector<std::unique_ptr<Communicator>> make() {
    Device* const devices[] = {device_.get(), device_.get()};
    auto made = make_nccl_group(api_, devices);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }

  // The first of them; an abort has a thread of its own.
  std::vector<int> aborted(std::size_t count) {
    while (true) {
      {
        const std::lock_guard lock(fake_.mutex);
        if (fake_.aborted.size() >= count) return fake_.aborted;
      }
      std::this_thread::yield();
    }
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  NcclApi api_ = fake_api();
  Fake fake_;
};

TEST_F(NcclGroup, PassesCallsOnWithNcclsNumbers) {
  auto group = make();
  ASSERT_EQ(group.size(), 2u);
  EXPECT_EQ(group[1]->rank(), 1);
  EXPECT_EQ(group[1]->size(), 2);
  int stream = 0;
  const Stream order{&stream};
  float data[8] = {};
  ASSERT_TRUE(group[0]->all_reduce(data, 5, DType::f32, order));
  ASSERT_TRUE(group[0]->all_reduce(data, 6, DType::bf16, order));
  ASSERT_TRUE(group[0]->all_reduce(data, 7, DType::f16, order));
  ASSERT_TRUE(group[1]->all_gather(data, data, 12, order));
  ASSERT_TRUE(group[1]->broadcast(data, 9, 1, order));
  EXPECT_FALSE(group[1]->all_reduce(data, 1, DType::i32, order));
  EXPECT_FALSE(group[1]->broadcast(data, 9, 2, order));
  ASSERT_EQ(fake_.calls.size(), 5u);
  const int types[] = {7, 9, 6, 0, 0};
  const std::size_t counts[] = {5, 6, 7, 12, 9};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(fake_.calls[i].type, types[i]) << i;
    EXPECT_EQ(fake_.calls[i].count, counts[i]) << i;
    EXPECT_EQ(fake_.calls[i].stream, &stream);
  }
  EXPECT_EQ(fake_.calls[4].root, 1);
  EXPECT_TRUE(group[0]->failure());
}

TEST_F(NcclGroup, ExchangesPartsInOneGroup) {
  auto group = make();
  char from[10] = {}, to[10] = {};
  ASSERT_TRUE(group[0]->all_to_all(from, to, 5, {}));
  ASSERT_EQ(fake_.calls.size(), 4u);  // to and from either
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(fake_.calls[i].count, 5u);
    EXPECT_EQ(fake_.calls[i].type, NcclApi::kInt8);
    EXPECT_EQ(fake_.calls[i].root, static_cast<int>(i) / 2);
  }
  EXPECT_EQ(fake_.num_open_groups, 0);
  fake_.failing_rank = 0;
  EXPECT_FALSE(group[0]->all_to_all(from, to, 5, {}));
  EXPECT_EQ(fake_.num_open_groups, 0);
  EXPECT_FALSE(group[1]->failure());
}

TEST_F(NcclGroup, AFailureOfOneRankEndsAll) {
  auto group = make();
  fake_.failing_rank = 1;
  float data = 0;
  ASSERT_TRUE(group[0]->all_reduce(&data, 1, DType::f32, {}));
  const Status failed = group[1]->all_reduce(&data, 1, DType::f32, {});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::internal);
  EXPECT_NE(failed.error().message.find("rank 1: an error of the library"), std::string::npos);
  const Status later = group[0]->all_reduce(&data, 1, DType::f32, {});
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, Code::unavailable);
  EXPECT_NE(later.error().message.find("an error of the library"), std::string::npos);
  EXPECT_EQ(aborted(2).size(), 2u) << "what waits in the streams is freed at once";
  group.clear();
  EXPECT_EQ(fake_.aborted.size(), 2u);
  EXPECT_TRUE(fake_.destroyed.empty());
}

// The handle of a call under way is not taken from it; its owner frees it behind the call.
TEST_F(NcclGroup, AnAbortLetsACallUnderWayEnd) {
  auto group = make();
  fake_.held = true;
  Status called;
  std::thread owner([&] {
    float data = 0;
    called = group[0]->all_reduce(&data, 1, DType::f32, {});
  });
  while (!fake_.is_within) std::this_thread::yield();
  group[1]->abort("rank 1 has no memory");
  EXPECT_EQ(aborted(1), std::vector<int>{1});
  fake_.held = false;
  owner.join();
  ASSERT_FALSE(called);
  EXPECT_EQ(called.error().code, Code::unavailable);
  EXPECT_NE(called.error().message.find("rank 1 has no memory"), std::string::npos);
  EXPECT_EQ(aborted(2), (std::vector<int>{1, 0}));
}

// The library's abort waits for captured graphs to go, which the engines hold longer than the group lives.
TEST_F(NcclGroup, AnAbortThatLastsKeepsNobodyWaiting) {
  fake_.aborts_last = true;
  auto group = make();
  group[1]->abort("rank 1 has no memory");
  EXPECT_FALSE(group[0]->failure());
  float data = 0;
  EXPECT_EQ(group[0]->all_reduce(&data, 1, DType::f32, {}).error().code, Code::unavailable);
  EXPECT_TRUE(fake_.aborted.empty());
  fake_.aborts_last = false;
  group.clear();
  EXPECT_EQ(fake_.aborted.size(), 2u);
}

TEST_F(NcclGroup, ARankThatCannotConnectIsSaidSo) {
  fake_.failing_rank = 1;
  Device* const devices[] = {device_.get(), device_.get()};
  const auto made = make_nccl_group(api_, devices);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("an error of the library"), std::string::npos) << made.error().message;
  EXPECT_TRUE(fake_.ranks.empty()) << "whoever was connected has let go";
}

TEST_F(NcclGroup, AnEndThatGoesAwayEndsTheGroup) {
  auto group = make();
  group[0].reset();
  EXPECT_EQ(fake_.destroyed, std::vector<int>{0});
  float data = 0;
  const Status later = group[1]->all_reduce(&data, 1, DType::f32, {});
  ASSERT_FALSE(later);
  EXPECT_NE(later.error().message.find("rank 0 is gone"), std::string::npos);
  group.clear();
  EXPECT_EQ(fake_.aborted, std::vector<int>{1});
}

TEST_F(NcclGroup, RanksOfDifferentProcessesMeetByAKeyThatTravels) {
  const auto key = make_nccl_key(api_);
  ASSERT_TRUE(key);
  auto first = join_nccl_group(api_, *key, {0, 2}, *device_), second = join_nccl_group(api_, *key, {1, 2}, *device_);
  ASSERT_TRUE(first && second);
  float value = 1;
  EXPECT_TRUE((*second)->all_reduce(&value, 1, DType::f32, {}));
  (*first)->abort("told to");
  EXPECT_EQ(aborted(1), (std::vector<int>{0}));
  EXPECT_FALSE((*first)->all_reduce(&value, 1, DType::f32, {}));
  EXPECT_TRUE((*second)->failure().ok());  // its process has to be told
}

TEST_F(NcclGroup, WhatIsNoKeyIsRefused) {
  const auto key = make_nccl_key(api_);
  ASSERT_TRUE(key);
  EXPECT_FALSE(join_nccl_group(api_, key->substr(1), {0, 2}, *device_));
  EXPECT_FALSE(join_nccl_group(api_, "", {0, 2}, *device_));
  EXPECT_FALSE(join_nccl_group(api_, *key, {2, 2}, *device_));
  fake_.failing_rank = 1;
  const auto refused = join_nccl_group(api_, *key, {1, 2}, *device_);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("an error of the library"), std::string::npos);
}

}  // namespace
}  // namespace mstar
