#include "worker_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "mstar/base/log.h"
#include "mstar/wire/codec.h"

namespace mstar::apps {
namespace {

constexpr int kChildSocket = 3;
constexpr std::chrono::milliseconds kGrace{2000};  // for a process to end by itself once its socket is closed
constexpr std::chrono::minutes kSteady{1};         // a life of this length ends a row of deaths

std::string describe(int status) {
  if (WIFSIGNALED(status))
    return "its process was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) +
           ")";
  return "its process ended with status " + std::to_string(WEXITSTATUS(status));
}

// The status of a child that ends by itself within the grace, else of one that is killed.
int reap(pid_t pid, std::chrono::milliseconds grace) {
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (std::chrono::steady_clock::now() < deadline) {
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid || (got < 0 && errno == ECHILD)) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Starts `program worker --fd 3` with `socket` as its descriptor 3 and no other descriptor but the standard ones.
Result<pid_t> spawn_worker(const std::string& program, int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket, kChildSocket);
  posix_spawn_file_actions_addclosefrom_np(&actions, kChildSocket + 1);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::array<std::string, 4> words = {"mstar", "worker", "--fd", std::to_string(kChildSocket)};
  std::array<char*, 5> arguments = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return unavailable("a worker process could not be started: " + std::string(std::strerror(failed)));
  return pid;
}

}  // namespace

WorkerProcesses::WorkerProcesses(WorkerProcessOptions options) : options_(std::move(options)) {
  for (wire::WorkerSetup& setup : options_.setups) {
    children_.push_back(std::make_unique<Child>());
    children_.back()->setup = std::move(setup);
  }
}

WorkerProcesses::~WorkerProcesses() {
  if (!supervisor_.joinable()) return;
  events_.push(Stop{});
  supervisor_.join();
}

Status WorkerProcesses::start() {
  std::promise<Status> started;
  auto result = started.get_future();
  // The system kills a child when the thread that started it ends, so one thread starts all and stays.
  supervisor_ = std::thread([this, promise = std::move(started)]() mutable { supervise(promise); });
  return result.get();
}

WorkerProcesses::Child* WorkerProcesses::find(WorkerId worker) const {
  for (const auto& child : children_)
    if (child->setup.worker == worker) return child.get();
  return nullptr;
}

bool WorkerProcesses::send(WorkerId worker, wire::ToWorker message) {
  Child* child = find(worker);
  if (!child) return false;
  const RequestId request = wire::request_of(message);
  auto frame = wire::encode(wire::Frame(std::move(message)));
  if (frame && frame->size() > wire::kMaxFrameBytes) frame = exhausted("a value is too large for another process");
  if (!frame) {
    options_.to_conductor(wire::RequestFailed{request, std::move(frame.error())});
    return true;
  }
  std::lock_guard lock(child->mutex);
  return child->channel && child->channel->send(std::move(*frame));
}

wire::WorkerStats WorkerProcesses::stats(WorkerId worker) const {
  const Child* child = find(worker);
  if (!child) return {};
  std::lock_guard lock(child->mutex);
  return child->stats;
}

std::optional<pid_t> WorkerProcesses::pid(WorkerId worker) const {
  const Child* child = find(worker);
  if (!child) return std::nullopt;
  std::lock_guard lock(child->mutex);
  return child->channel ? std::optional(child->pid) : std::nullopt;
}

bool WorkerProcesses::on_frame(Child& child, std::span<const std::byte> bytes) {
  auto frame = wire::decode(bytes);
  if (!frame) {
    log_error("worker {}: {}", child.setup.worker.value, frame.error().message);
    return false;
  }
  if (auto* peer = std::get_if<wire::PeerMessage>(&*frame)) {
    options_.to_worker(peer->to, std::move(peer->message));
    return true;
  }
  if (auto* stats = std::get_if<wire::WorkerStats>(&*frame)) {
    std::lock_guard lock(child.mutex);
    child.stats = std::move(*stats);
    return true;
  }
  auto* message = std::get_if<wire::ToConductor>(&*frame);
  if (!message) return false;
  {
    std::lock_guard lock(child.mutex);
    child.was_ready |= std::holds_alternative<wire::WorkerReady>(*message);
    child.reported_failure |= std::holds_alternative<wire::WorkerFailed>(*message);
  }
  options_.to_conductor(std::move(*message));
  return true;
}

Status WorkerProcesses::spawn(std::size_t index) {
  Child& child = *children_[index];
  child.started_at = Clock::now();
  child.restart_at.reset();
  MSTAR_TRY_ASSIGN(const auto sockets, wire::make_socket_pair());
  auto pid = spawn_worker(options_.program, sockets[1]);
  ::close(sockets[1]);
  if (!pid) {
    ::close(sockets[0]);
    return std::move(pid.error());
  }
  std::lock_guard lock(child.mutex);
  child.pid = *pid;
  child.reported_failure = false;
  child.channel = std::make_unique<wire::Channel>(
      sockets[0],
      wire::Channel::Callbacks{[this, &child](std::span<const std::byte> bytes) { return on_frame(child, bytes); },
                               [this, index] { events_.push(Closed{index}); }});
  auto setup = wire::encode(wire::Frame(child.setup));
  if (!setup) return std::move(setup.error());
  child.channel->send(std::move(*setup));
  return ok_status();
}

void WorkerProcesses::on_closed(Child& child) {
  std::unique_ptr<wire::Channel> channel;
  bool restarts = false, reported = false;
  {
    std::lock_guard lock(child.mutex);
    channel = std::move(child.channel);
    restarts = child.was_ready;
    reported = child.reported_failure;
    for (auto& pool : child.stats.pools) pool.used = 0;
    child.stats.num_requests = 0;
  }
  if (!channel) return;
  channel.reset();
  const std::string reason = describe(reap(child.pid, kGrace));
  log_error("worker {}: {}", child.setup.worker.value, reason);
  if (!reported) options_.to_conductor(wire::WorkerFailed{child.setup.worker, unavailable(reason)});
  if (!restarts) return;
  if (Clock::now() - child.started_at > kSteady) child.num_deaths = 0;
  auto delay = options_.first_delay;
  for (int i = 0; i < child.num_deaths && delay < options_.longest_delay; ++i) delay *= 2;
  ++child.num_deaths;
  child.restart_at = Clock::now() + std::min(delay, options_.longest_delay);
}

void WorkerProcesses::restart_due() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = *children_[i];
    if (!child.restart_at || Clock::now() < *child.restart_at) continue;
    log_info("worker {}: started again", child.setup.worker.value);
    if (Status spawned = spawn(i); !spawned) {
      log_error("worker {}: {}", child.setup.worker.value, spawned.error().message);
      child.restart_at = Clock::now() + options_.longest_delay;
    }
  }
}

WorkerProcesses::Clock::time_point WorkerProcesses::next_restart() const {
  auto next = Clock::now() + std::chrono::hours(1);
  for (const auto& child : children_)
    if (child->restart_at) next = std::min(next, *child->restart_at);
  return next;
}

void WorkerProcesses::supervise(std::promise<Status>& started) {
  Status first = ok_status();
  for (std::size_t i = 0; i < children_.size() && first; ++i) first = spawn(i);
  started.set_value(std::move(first));
  for (bool stopping = false; !stopping;) {
    const auto wait = std::max<Clock::duration>(next_restart() - Clock::now(), Clock::duration(0));
    for (const Event& event : events_.wait_all(std::chrono::duration_cast<std::chrono::microseconds>(wait))) {
      if (const auto* closed = std::get_if<Closed>(&event)) on_closed(*children_[closed->child]);
      stopping |= std::holds_alternative<Stop>(event);
    }
    if (!stopping) restart_due();
  }
  end_all();
}

void WorkerProcesses::end_all() {
  std::vector<pid_t> pids;
  for (auto& child : children_) {
    std::unique_ptr<wire::Channel> channel;
    {
      std::lock_guard lock(child->mutex);
      channel = std::move(child->channel);
    }
    if (channel) pids.push_back(child->pid);
  }  // a closed socket is the word to end
  for (const pid_t pid : pids) reap(pid, kGrace);
}

}  // namespace mstar::apps
