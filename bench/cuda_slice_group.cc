// Ranks that write into each other's memory: on GPUs of their own where there are two, else all of them on one.
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "cuda_slice.h"
#include "mstar/base/check.h"
#include "mstar/base/dtype.h"
#include "mstar/device/cuda/cuda_device.h"
#include "mstar/device/cuda/nccl_communicator.h"
#include "mstar/device/cuda/peer_communicator.h"

namespace mstar::bench {
namespace {

// A part of a rank's memory, with what was put there.
class Memory {
 public:
  Memory(Device& device, void* data, std::size_t bytes) : device_(device), bytes_(bytes), data_(data) {}
  void* data() const { return data_; }
  void put(const std::vector<std::byte>& from, Stream stream) const {
    device_.copy_to_device(data_, from.data(), std::min(bytes_, from.size()), stream);
  }
  std::vector<std::byte> get(Stream stream) const {
    std::vector<std::byte> out(bytes_);
    // A copy to memory that is not pinned would wait for the stream inside of CUDA, where it keeps others of the same
    // GPU from theirs.
    device_.synchronize(stream);
    device_.copy_to_host(out.data(), data_, bytes_, stream);
    device_.synchronize(stream);
    return out;
  }

 private:
  Device& device_;
  std::size_t bytes_;
  void* data_;
};

// Devices, ends and a thread for each rank. Where ranks share a GPU nothing may wait for all of its work while a rank
// waits for another one in a kernel: so memory is had before the first call and given back when all have made the last,
// and all kernels are loaded before (CUDA loads them at their first launch, for which it may wait too).
class Ranks {
 public:
  explicit Ranks(int size) {
    for (int rank = 0; rank < size; ++rank) {
      auto device = make_cuda_device(rank % num_cuda_devices());
      if (!device) {
        error = device.error().message;
        return;
      }
      devices.push_back(std::move(*device));
      pointers.push_back(devices.back().get());
      auto made = pointers.back()->allocate(kMemoryBytes);
      if (!made) {
        error = made.error().message;
        return;
      }
      memory.push_back(*made);
    }
  }
  ~Ranks() {
    ends.clear();
    for (std::size_t r = 0; r < memory.size(); ++r) devices[r]->release(memory[r]);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  // `at` .. `at + bytes` of a rank's.
  Memory part(int rank, std::size_t at, std::size_t bytes) const {
    MSTAR_CHECK(at + bytes <= kMemoryBytes, "a rank's memory has room");
    const auto r = static_cast<std::size_t>(rank);
    return {*pointers[r], static_cast<std::byte*>(memory[r]) + at, bytes};
  }
  bool connect(bool through_nccl = false) {
    ends.clear();
    auto made = through_nccl ? make_nccl_group(pointers) : make_peer_group(pointers);
    if (made) {
      ends = std::move(*made);
    } else {
      error = made.error().message;
    }
    return static_cast<bool>(made);
  }
  int size() const { return static_cast<int>(pointers.size()); }
  Status run(const std::function<Status(int rank, Device& device, Communicator& end)>& work) {
    std::vector<Status> done(pointers.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<std::size_t>(rank);
        done[r] = work(rank, *pointers[r], *ends[r]);
        if (!done[r]) ends[r]->abort(done[r].error().message);
      });
    for (std::thread& each : threads) each.join();
    for (const Status& each : done)
      if (!each) return each;
    return ok_status();
  }

  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Device*> pointers;
  std::vector<std::unique_ptr<Communicator>> ends;
  std::string error;

 private:
  static constexpr std::size_t kMemoryBytes = std::size_t{16} << 20;
  std::vector<void*> memory;
};

std::vector<float> numbers_of(int rank, std::size_t count, int seed) {
  std::mt19937 random(static_cast<std::uint32_t>(rank * 1000 + seed));
  std::uniform_real_distribution<float> range(-2, 2);
  std::vector<float> out(count);
  for (float& each : out) each = range(random);
  return out;
}

std::vector<std::byte> stored(const std::vector<float>& numbers, DType dtype) {
  std::vector<std::byte> out(numbers.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (dtype == DType::f32) {
      std::memcpy(out.data() + 4 * i, &numbers[i], 4);
    } else {
      const std::uint16_t bits = dtype == DType::bf16 ? to_bfloat16(numbers[i]).bits : to_half(numbers[i]).bits;
      std::memcpy(out.data() + 2 * i, &bits, 2);
    }
  }
  return out;
}
std::vector<float> loaded(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (dtype == DType::f32) {
      std::memcpy(&out[i], bytes.data() + 4 * i, 4);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      out[i] = dtype == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Half{bits});
    }
  }
  return out;
}

// In the order of the ranks, rounded once.
std::vector<std::byte> summed(int num_ranks, std::size_t count, DType dtype, int seed) {
  std::vector<float> sum;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::vector<float> part = loaded(stored(numbers_of(rank, count, seed), dtype), dtype);
    if (sum.empty()) {
      sum = part;
    } else {
      for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
    }
  }
  return stored(sum, dtype);
}

constexpr std::size_t kCounts[] = {1, 2, 3, 5, 1024, 4099, 131072, 300'001};  // the last in several calls

Status sums_are_right(Ranks& ranks, DType dtype, int turns) {
  return ranks.run([&](int rank, Device& device, Communicator& end) -> Status {
    const Stream stream = device.default_stream();
    for (int turn = 0; turn < turns; ++turn)
      for (const std::size_t count : kCounts) {
        const Memory memory = ranks.part(rank, 0, count * dtype_bytes(dtype));
        memory.put(stored(numbers_of(rank, count, turn), dtype), stream);
        MSTAR_TRY(end.all_reduce(memory.data(), count, dtype, stream));
        if (memory.get(stream) != summed(ranks.size(), count, dtype, turn))
          return internal_error("rank " + std::to_string(rank) + ", " + std::to_string(count) + " numbers, turn " +
                                std::to_string(turn));
      }
    return ok_status();
  });
}

Status gathers_are_right(Ranks& ranks) {
  return ranks.run([&](int rank, Device& device, Communicator& end) -> Status {
    const Stream stream = device.default_stream();
    const auto num_ranks = static_cast<std::size_t>(ranks.size());
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{5000}, std::size_t{700'000}}) {
      const auto part = [&](int of) {
        std::vector<std::byte> out(bytes);
        for (std::size_t i = 0; i < bytes; ++i)
          out[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(of) * 31 + bytes);
        return out;
      };
      const Memory from = ranks.part(rank, 0, bytes), to = ranks.part(rank, std::size_t{1} << 20, bytes * num_ranks);
      from.put(part(rank), stream);
      MSTAR_TRY(end.all_gather(from.data(), to.data(), bytes, stream));
      std::vector<std::byte> want;
      for (int each = 0; each < ranks.size(); ++each) {
        const auto bytes_of = part(each);
        want.insert(want.end(), bytes_of.begin(), bytes_of.end());
      }
      if (to.get(stream) != want) return internal_error("a gather of " + std::to_string(bytes) + " bytes");
      // Each rank's part for each.
      const std::size_t all = bytes * num_ranks;
      const Memory parts = ranks.part(rank, std::size_t{8} << 20, all);
      std::vector<std::byte> sent, received;
      for (int each = 0; each < ranks.size(); ++each) {
        const auto to_each = part(rank * 16 + each), of_each = part(each * 16 + rank);
        sent.insert(sent.end(), to_each.begin(), to_each.end());
        received.insert(received.end(), of_each.begin(), of_each.end());
      }
      parts.put(sent, stream);
      MSTAR_TRY(end.all_to_all(parts.data(), to.data(), bytes, stream));
      if (to.get(stream) != received) return internal_error("an exchange of " + std::to_string(bytes) + " bytes");
      const int root = ranks.size() - 1;
      MSTAR_TRY(end.broadcast(from.data(), bytes, root, stream));
      if (from.get(stream) != part(root)) return internal_error("a broadcast of " + std::to_string(bytes) + " bytes");
    }
    return ok_status();
  });
}

// A graph of sums of several sizes, replayed with other numbers each time.
Status graphs_are_right(Ranks& ranks, int turns) {
  return ranks.run([&](int rank, Device& device, Communicator& end) -> Status {
    const Stream stream = device.default_stream();
    std::vector<Memory> memory;
    for (std::size_t c = 0; c < std::size(kCounts); ++c) memory.push_back(ranks.part(rank, c << 21, kCounts[c] * 4));
    MSTAR_TRY(device.begin_capture(stream));
    Status recorded;
    for (std::size_t c = 0; c < std::size(kCounts) && recorded; ++c)
      recorded = end.all_reduce(memory[c].data(), kCounts[c], DType::f32, stream);
    auto graph = device.end_capture(stream);
    MSTAR_TRY(recorded);
    if (!graph) return graph.error();
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t c = 0; c < std::size(kCounts); ++c)
        memory[c].put(stored(numbers_of(rank, kCounts[c], turn), DType::f32), stream);
      MSTAR_TRY((*graph)->launch(stream));
      for (std::size_t c = 0; c < std::size(kCounts); ++c)
        if (memory[c].get(stream) != summed(ranks.size(), kCounts[c], DType::f32, turn))
          return internal_error("replay " + std::to_string(turn) + ", " + std::to_string(kCounts[c]) + " numbers");
    }
    return ok_status();
  });
}

// The last rank never calls.
bool ends_when_aborted(Ranks& ranks) {
  const int absent = ranks.size() - 1;
  const Status ran = ranks.run([&](int rank, Device& device, Communicator& end) -> Status {
    if (rank == absent) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      end.abort("it was told to");
      return ok_status();
    }
    const Stream stream = device.default_stream();
    const Memory memory = ranks.part(rank, 0, 4096);
    device.fill_zero(memory.data(), 4096, stream);
    MSTAR_TRY(end.all_reduce(memory.data(), 1024, DType::f32, stream));
    device.synchronize(stream);
    return end.failure();
  });
  return !ran && ran.error().code == Code::unavailable && !ranks.ends.front()->failure();
}

// Microseconds of one sum in a graph of many.
Result<double> time_sums(Ranks& ranks, std::size_t count) {
  constexpr int kSums = 50, kReplays = 10;
  double us = 0;
  const Status ran = ranks.run([&](int rank, Device& device, Communicator& end) -> Status {
    const Stream stream = device.default_stream();
    const Memory memory = ranks.part(rank, 0, count * 4);
    device.fill_zero(memory.data(), count * 4, stream);
    MSTAR_TRY(end.all_reduce(memory.data(), count, DType::f32, stream));  // the first one may allocate
    device.synchronize(stream);
    MSTAR_TRY(device.begin_capture(stream));
    Status recorded;
    for (int i = 0; i < kSums && recorded; ++i) recorded = end.all_reduce(memory.data(), count, DType::f32, stream);
    auto graph = device.end_capture(stream);
    MSTAR_TRY(recorded);
    if (!graph) return graph.error();
    MSTAR_TRY_ASSIGN(const auto begin, device.make_event(true));
    MSTAR_TRY_ASSIGN(const auto done, device.make_event(true));
    MSTAR_TRY((*graph)->launch(stream));
    begin->record(stream);
    for (int i = 0; i < kReplays; ++i) MSTAR_TRY((*graph)->launch(stream));
    done->record(stream);
    done->wait();
    if (rank == 0) us = done->us_since(*begin) / (kSums * kReplays);
    return ok_status();
  });
  if (!ran) return ran.error();
  return us;
}

void check_size(Report& report, int size) {
  Ranks ranks(size);
  const std::string name =
      text("%d ranks on %d GPU%s", size, std::min(size, num_cuda_devices()), num_cuda_devices() > 1 ? "s" : "");
  if (!report.check(ranks.error.empty() && ranks.connect(), name + " write into each other's memory", ranks.error))
    return;
  const auto passes = [&](const std::string& what, const Status& status) {
    report.check(static_cast<bool>(status), name + ": " + what, status ? "" : status.error().message);
  };
  const int turns = report.small ? 1 : 4;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    passes("sums of " + std::string(dtype_name(dtype)) + " are those of the ranks in order, to the bit",
           sums_are_right(ranks, dtype, turns));
  passes("gathers, exchanges and broadcasts", gathers_are_right(ranks));
  passes("graphs of sums, replayed", graphs_are_right(ranks, report.small ? 2 : 50));
  report.check(ends_when_aborted(ranks), name + ": who waits for a rank that never comes ends with the group");
}

}  // namespace

void check_group(Report& report, Device&) {
  check_size(report, 2);
  if (num_cuda_devices() == 1 || num_cuda_devices() >= 4) check_size(report, 4);
}

void time_group(Report& report, Device&) {
  Ranks ranks(2);
  const bool have_two = num_cuda_devices() > 1;
  report.table.push_back(
      text("sums of two ranks on %s, us: f32 KiB, by peers' memory, by NCCL", have_two ? "two GPUs" : "one GPU"));
  const std::size_t counts[] = {1024, 4096, 16 * 1024, 32 * 1024, 64 * 1024, 128 * 1024, 256 * 1024, 1024 * 1024};
  std::vector<double> peers, nccl;
  const auto measure = [&](std::vector<double>& out) {
    for (const std::size_t count : counts) {
      auto us = time_sums(ranks, count);
      report.check(static_cast<bool>(us), "sums are timed", us ? "" : us.error().message);
      out.push_back(us ? *us : 0);
    }
  };
  if (!report.check(ranks.error.empty() && ranks.connect(), "a group to time", ranks.error)) return;
  measure(peers);
  if (have_two && report.check(ranks.connect(true), "a group of NCCL", ranks.error)) measure(nccl);
  for (std::size_t i = 0; i < std::size(counts); ++i)
    report.table.push_back(text("  %6zu %8.2f %8.2f", counts[i] * 4 / 1024, peers[i], i < nccl.size() ? nccl[i] : 0.0));
}

}  // namespace mstar::bench
