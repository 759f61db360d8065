#include "mstar/device/cpu/shared_communicator.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "mstar/device/cpu/rank_sums.h"
#include "mstar/device/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mstar {
namespace {

constexpr std::uint32_t kMagic = 0x4d535447;  // of this layout
constexpr int kMostRanks = 64;
constexpr int kSpins = 2000;          // ~10-20 us
constexpr long kLookNs = 20'000'000;  // a rank that sleeps looks so often whether the others are alive

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

enum class Operation : std::uint32_t { all_reduce, all_gather, all_to_all, broadcast };

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "all_to_all", "broadcast"};
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(operation), std::size(kNames) - 1)];
}

// What a rank asks for. All must agree.
struct Call {
  Operation operation = Operation::all_reduce;
  std::uint32_t dtype = 0;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  friend bool operator==(const Call&, const Call&) = default;
  std::string described() const { return std::string(name_of(operation)) + " of " + std::to_string(count); }
};

// ---- what lies in the shared memory
struct alignas(64) Seat {             // of a rank
  std::atomic<std::uint32_t> pid{0};  // 0: it has not joined
  Call call;
};
enum : std::uint32_t { kRuns = 0, kEnding = 1, kEnded = 2 };
struct Board {
  std::uint32_t magic = kMagic;
  std::uint32_t size = 0;
  std::uint64_t piece_bytes = 0;
  alignas(64) std::atomic<std::uint32_t> num_arrived{0};
  alignas(64) std::atomic<std::uint32_t> round{0};  // what ranks sleep on
  alignas(64) std::atomic<std::uint32_t> state{kRuns};
  std::array<char, 512> reason = {};  // once kEnded; ends with a zero
  std::array<Seat, kMostRanks> seats = {};
};

std::size_t board_bytes() { return (sizeof(Board) + 4095) / 4096 * 4096; }
// A buffer for each rank, and one for sums.
std::size_t total_bytes(std::size_t size, std::size_t piece_bytes) {
  return (board_bytes() + (size + 1) * piece_bytes + 4095) / 4096 * 4096;
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

// Owns the descriptor and the mapping.
class Memory {
 public:
  explicit Memory(int fd) : fd_(fd) {}
  ~Memory() {
    unmap();
    ::close(fd_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A group's part, which begins at a multiple of a page.
  bool map(std::size_t begin, std::size_t bytes) {
    unmap();
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(begin));
    if (at == MAP_FAILED) return false;
    base_ = static_cast<std::byte*>(at);
    begin_ = begin;
    bytes_ = bytes;
    return true;
  }
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  std::size_t begin() const { return begin_; }
  Board& board() const { return *reinterpret_cast<Board*>(base_); }
  std::byte* buffer(std::size_t index) const { return base_ + board_bytes() + index * board().piece_bytes; }

 private:
  void unmap() {
    if (base_) ::munmap(base_, bytes_);
    base_ = nullptr;
  }

  int fd_;
  std::byte* base_ = nullptr;
  std::size_t begin_ = 0, bytes_ = 0;
};

class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(std::unique_ptr<Memory> memory, int rank)
      : memory_(std::move(memory)),
        board_(memory_->board()),
        rank_(rank),
        size_(static_cast<int>(board_.size)),
        piece_bytes_(board_.piece_bytes) {
    if (make_cpu_plan().num_threads < size_) spins_ = 0;  // who spins would keep the others from their work
    for (int r = 0; r < size_; ++r) from_.push_back(memory_->buffer(static_cast<std::size_t>(r)));
    to_.push_back(memory_->buffer(static_cast<std::size_t>(size_)));
  }
  ~SharedCommunicator() override {
    if (seated_) abort("rank " + std::to_string(rank_) + " is gone");
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // The kernel lets go of the lock when the process ends, and nobody else can.
  Status sit_down() {
    struct flock lock = seat_lock(rank_);
    if (::fcntl(memory_->fd(), F_OFD_SETLK, &lock) != 0)
      return unavailable(std::string("a rank of a group could not lock its seat: ") + std::strerror(errno));
    std::uint32_t nobody = 0;
    if (!seat(rank_).pid.compare_exchange_strong(nobody, own_pid()))
      return internal_error("rank " + std::to_string(rank_) + " has joined the group already");
    seated_ = true;
    return ok_status();
  }

  Status all_reduce(void* data, std::size_t count, DType dtype, Stream) override {
    if (!can_sum(dtype)) return internal_error("all_reduce of " + std::string(dtype_name(dtype)));
    const std::size_t item = dtype_bytes(dtype), most = piece_bytes_ / item;
    auto* const own = static_cast<std::byte*>(data);
    std::size_t begin = 0;
    do {
      const std::size_t piece = std::min(most, count - begin);
      copy(own + begin * item, buffer(rank_), piece * item);
      MSTAR_TRY(enter({Operation::all_reduce, static_cast<std::uint32_t>(dtype), 0, count}));
      const SumShare share = share_of(piece, rank_, size_);
      sum_in_rank_order(from_, to_, share.begin, share.end, dtype);
      MSTAR_TRY(arrive());
      copy(to_.front(), own + begin * item, piece * item);  // nobody writes there before all have come to the next call
      begin += piece;
    } while (begin < count);
    return ok_status();
  }

  Status all_gather(const void* from, void* to, std::size_t bytes, Stream) override {
    std::size_t begin = 0;
    do {
      const std::size_t piece = std::min(piece_bytes_, bytes - begin);
      copy(static_cast<const std::byte*>(from) + begin, buffer(rank_), piece);
      MSTAR_TRY(enter({Operation::all_gather, 0, 0, bytes}));
      for (int rank = 0; rank < size_; ++rank)
        copy(buffer(rank), static_cast<std::byte*>(to) + static_cast<std::size_t>(rank) * bytes + begin, piece);
      MSTAR_TRY(arrive());
      begin += piece;
    } while (begin < bytes);
    return ok_status();
  }

  Status all_to_all(const void* from, void* to, std::size_t bytes, Stream) override {
    const auto* const sent = static_cast<const std::byte*>(from);
    auto* const received = static_cast<std::byte*>(to);
    const std::size_t most = piece_bytes_ / static_cast<std::size_t>(size_);  // of a buffer's part for each rank
    std::size_t begin = 0;
    do {
      const std::size_t piece = std::min(most, bytes - begin);
      for (std::size_t r = 0; r < from_.size(); ++r) copy(sent + r * bytes + begin, buffer(rank_) + r * most, piece);
      MSTAR_TRY(enter({Operation::all_to_all, 0, 0, bytes}));
      for (std::size_t r = 0; r < from_.size(); ++r)
        copy(from_[r] + static_cast<std::size_t>(rank_) * most, received + r * bytes + begin, piece);
      MSTAR_TRY(arrive());
      begin += piece;
    } while (begin < bytes);
    return ok_status();
  }

  Status broadcast(void* data, std::size_t bytes, int root, Stream) override {
    if (root < 0 || root >= size_) return internal_error("broadcast from rank " + std::to_string(root));
    auto* const own = static_cast<std::byte*>(data);
    std::size_t begin = 0;
    do {
      const std::size_t piece = std::min(piece_bytes_, bytes - begin);
      if (rank_ == root) copy(own + begin, buffer(rank_), piece);
      MSTAR_TRY(enter({Operation::broadcast, 0, root, bytes}));
      if (rank_ != root) copy(buffer(root), own + begin, piece);
      MSTAR_TRY(arrive());
      begin += piece;
    } while (begin < bytes);
    return ok_status();
  }

  void abort(std::string reason) override {
    std::uint32_t runs = kRuns;
    if (board_.state.compare_exchange_strong(runs, kEnding)) {
      const std::size_t length = std::min(reason.size(), board_.reason.size() - 1);
      std::memcpy(board_.reason.data(), reason.data(), length);
      board_.state.store(kEnded, std::memory_order_release);
    }
    futex(board_.round, FUTEX_WAKE, INT_MAX, nullptr);
  }

  Status failure() const override {
    const std::uint32_t state = board_.state.load(std::memory_order_acquire);
    if (state == kRuns) return ok_status();
    // Whoever ended it may have died in the middle of saying why.
    std::string reason = "a rank is gone";
    if (state == kEnded) reason.assign(board_.reason.data(), ::strnlen(board_.reason.data(), board_.reason.size()));
    return unavailable("the group of ranks was ended: " + reason);
  }

 private:
  static std::uint32_t own_pid() { return static_cast<std::uint32_t>(::getpid()); }
  struct flock seat_lock(int rank) const {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(memory_->begin()) + rank;
    lock.l_len = 1;
    return lock;
  }
  static void copy(const std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }
  Seat& seat(int rank) const { return board_.seats[static_cast<std::size_t>(rank)]; }
  std::byte* buffer(int rank) const { return memory_->buffer(static_cast<std::size_t>(rank)); }

  // Waits until every rank has begun a call, and sees that they agree.
  Status enter(const Call& call) {
    seat(rank_).call = call;
    MSTAR_TRY(arrive());
    for (int other = 0; other < size_; ++other) {
      const Call theirs = seat(other).call;
      if (theirs == call) continue;
      const Error error =
          internal_error("ranks call different things: " + call.described() + " on rank " + std::to_string(rank_) +
                         ", " + theirs.described() + " on rank " + std::to_string(other));
      abort(error.message);
      return error;
    }
    return ok_status();
  }

  Status arrive() {
    MSTAR_TRY(failure());
    const std::uint32_t seen = board_.round.load(std::memory_order_relaxed);  // it stands still until all have come
    if (board_.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == board_.size) {
      board_.num_arrived.store(0, std::memory_order_relaxed);
      board_.round.store(seen + 1, std::memory_order_release);
      futex(board_.round, FUTEX_WAKE, INT_MAX, nullptr);
      return ok_status();
    }
    const auto all_came = [&] { return board_.round.load(std::memory_order_acquire) != seen; };
    const auto ended = [&] { return board_.state.load(std::memory_order_acquire) != kRuns; };
    for (int spin = 0; spin < spins_ && !all_came() && !ended(); ++spin) relax();
    while (!all_came()) {
      if (ended()) return failure();
      const timespec timeout{0, kLookNs};
      if (futex(board_.round, FUTEX_WAIT, seen, &timeout) != 0 && errno == ETIMEDOUT) look_for_deaths();
    }
    return ok_status();
  }

  void look_for_deaths() {
    for (int other = 0; other < size_; ++other) {
      const std::uint32_t pid = seat(other).pid.load();
      if (pid == 0 || pid == own_pid()) continue;
      struct flock lock = seat_lock(other);
      if (::fcntl(memory_->fd(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
        abort("the process of rank " + std::to_string(other) + " has ended");
    }
  }

  std::unique_ptr<Memory> memory_;
  Board& board_;
  const int rank_, size_;
  const std::size_t piece_bytes_;
  int spins_ = kSpins;
  bool seated_ = false;
  std::vector<const std::byte*> from_;  // of one sum
  std::vector<std::byte*> to_;
};

}  // namespace

Result<int> make_shared_group(int size, std::size_t piece_bytes) { return make_shared_groups({&size, 1}, piece_bytes); }

Result<int> make_shared_groups(std::span<const int> sizes, std::size_t piece_bytes) {
  std::size_t total = 0;
  for (const int size : sizes)
    if (size < 1 || size > kMostRanks || piece_bytes < 64)
      return internal_error("a group of " + std::to_string(size) + " ranks in shared memory");
  piece_bytes = (piece_bytes + 63) / 64 * 64;
  for (const int size : sizes) total += total_bytes(static_cast<std::size_t>(size), piece_bytes);
  Memory memory(::memfd_create("mstar-group", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto none = [] {
    return unavailable(std::string("no shared memory for a group of ranks: ") + std::strerror(errno));
  };
  if (memory.fd() < 0 || ::ftruncate(memory.fd(), static_cast<off_t>(total)) != 0) return none();
  std::size_t begin = 0;
  for (const int size : sizes) {
    const std::size_t bytes = total_bytes(static_cast<std::size_t>(size), piece_bytes);
    if (!memory.map(begin, bytes)) return none();
    Board* const board = new (&memory.board()) Board;
    board->size = static_cast<std::uint32_t>(size);
    board->piece_bytes = piece_bytes;
    begin += bytes;
  }
  ::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return memory.release();
}

Result<std::unique_ptr<Communicator>> join_shared_group(int descriptor, int rank, int group) {
  // An open file of its own, whose lock goes when it is closed, or its process ends: not with another descriptor of the
  // group.
  const std::string name = "/proc/self/fd/" + std::to_string(descriptor);
  auto memory = std::make_unique<Memory>(::open(name.c_str(), O_RDWR | O_CLOEXEC));
  ::close(descriptor);
  const auto no_group = [] { return internal_error("a descriptor that is no group of ranks"); };
  struct stat about = {};
  if (group < 0 || ::fstat(memory->fd(), &about) != 0) return no_group();
  const auto end = static_cast<std::size_t>(about.st_size);
  std::size_t begin = 0;
  for (int at = 0;; ++at) {
    if (end - begin < board_bytes() || !memory->map(begin, board_bytes())) return no_group();
    const Board& board = memory->board();
    if (board.magic != kMagic || board.size < 1 || board.size > kMostRanks || board.piece_bytes < 64 ||
        board.piece_bytes > end)
      return no_group();
    const std::size_t bytes = total_bytes(board.size, board.piece_bytes);
    if (bytes > end - begin) return no_group();
    if (at == group) {
      if (!memory->map(begin, bytes)) return no_group();
      break;
    }
    begin += bytes;
  }
  const Board& board = memory->board();
  if (rank < 0 || static_cast<std::uint32_t>(rank) >= board.size)
    return internal_error("rank " + std::to_string(rank) + " of a group of " + std::to_string(board.size));
  auto out = std::make_unique<SharedCommunicator>(std::move(memory), rank);
  if (Status seated = out->sit_down(); !seated) return std::move(seated.error());
  return std::unique_ptr<Communicator>(std::move(out));
}

}  // namespace mstar
