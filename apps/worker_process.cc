#include "worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "mstar/base/log.h"
#include "mstar/wire/codec.h"

namespace mstar::apps {
namespace {

constexpr int kChildSocket = 3;
constexpr std::chrono::milliseconds kGrace{2000};  // for a process to end by itself once its socket is closed
constexpr int kLooks = 4;                          // at least, in a row without a turn are a hang
constexpr std::chrono::minutes kSteady{1};         // a life of this length ends a row of deaths

std::string describe(int status) {
  if (WIFSIGNALED(status))
    return "its process was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) +
           ")";
  return "its process ended with status " + std::to_string(WEXITSTATUS(status));
}

// Its status, once it has ended within the time.
std::optional<int> wait_for_end(pid_t pid, std::chrono::milliseconds time) {
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + time;
  for (;;) {
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid || (got < 0 && errno == ECHILD)) return status;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// How a child ended: by itself within the grace, else it is killed. A driver may hold it even then.
std::string reap(pid_t pid) {
  auto status = wait_for_end(pid, kGrace);
  if (!status) {
    ::kill(pid, SIGKILL);
    status = wait_for_end(pid, kGrace);
  }
  return status ? describe(*status) : "its process does not end, not even when it is killed";
}

// Starts `program worker --fd 3` with `socket` as its descriptor 3 and no other descriptor but the standard ones.
Result<pid_t> spawn_worker(const std::string& program, int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket, kChildSocket);
  posix_spawn_file_actions_addclosefrom_np(&actions, kChildSocket + 1);
  // Blocked until it ignores them: a Ctrl-C for the process group must not end it first.
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, signal);
  posix_spawnattr_setsigmask(&attributes, &blocked);
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
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, ids of the dead would be used again under our hands
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
  const bool loads = std::holds_alternative<wire::Load>(message);
  auto frame = wire::encode(wire::Frame(std::move(message)));
  if (frame && frame->size() > wire::kMaxFrameBytes) frame = exhausted("a value is too large for another process");
  if (!frame) {
    options_.to_conductor(wire::RequestFailed{request, std::move(frame.error())});
    return true;
  }
  std::lock_guard lock(child->mutex);
  if (loads) {  // its loop stands still for so long
    child->is_ready = false;
    child->num_silent = 0;
  }
  if (child->channel) child->channel->send(std::move(*frame));
  return child->channel || child->is_dying;  // where it has died, the word of that ends the request, and says why
}

wire::WorkerStats WorkerProcesses::stats(WorkerId worker) const {
  const Child* child = find(worker);
  if (!child) return {};
  std::lock_guard lock(child->mutex);
  return child->stats;
}

std::int64_t WorkerProcesses::num_restarts(WorkerId worker) const {
  const Child* child = find(worker);
  if (!child) return 0;
  std::lock_guard lock(child->mutex);
  return child->num_restarts;
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
    std::lock_guard lock(child.mutex);
    child.fault = frame.error().message;
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
  if (const auto* pong = std::get_if<wire::Pong>(&*frame)) {
    std::lock_guard lock(child.mutex);
    if (std::exchange(child.num_turns, pong->num_turns) != pong->num_turns) child.num_silent = 0;
    return true;
  }
  auto* message = std::get_if<wire::ToConductor>(&*frame);
  if (!message) {
    std::lock_guard lock(child.mutex);
    child.fault = "a frame of a wrong kind";
    return false;
  }
  {
    std::lock_guard lock(child.mutex);
    if (std::holds_alternative<wire::WorkerReady>(*message)) {
      child.is_ready = true;
      child.reported_failure = false;  // it has loaded after all
      child.num_silent = 0;
    }
    child.was_ready |= child.is_ready;
    child.reported_failure |= std::holds_alternative<wire::WorkerFailed>(*message);
    // One that never was ready has the start fail, or ends by itself.
    if (const auto* const failed = std::get_if<wire::WorkerFailed>(&*message);
        failed && child.was_ready && !child.setup.group.empty())
      events_.push(GroupEnded{&child, failed->error.message});
  }
  options_.to_conductor(std::move(*message));
  return true;
}

Status WorkerProcesses::spawn(Child& child) {
  child.started_at = Clock::now();
  child.restart_at.reset();
  child.killed_for.clear();
  MSTAR_TRY_ASSIGN(const auto sockets, wire::make_socket_pair());
  wire::Descriptor ours(sockets[0]);
  const wire::Descriptor theirs(sockets[1]);
  MSTAR_TRY_ASSIGN(const pid_t pid, spawn_worker(options_.program, theirs.get()));
  std::lock_guard lock(child.mutex);
  child.pid = pid;
  child.is_ready = child.reported_failure = false;
  child.num_turns = 0;
  child.num_silent = 0;
  child.channel = std::make_unique<wire::Channel>(
      ours.release(),
      wire::Channel::Callbacks{
          [this, &child](std::span<const std::byte> bytes, const wire::Descriptor&) { return on_frame(child, bytes); },
          [this, &child] { events_.push(Closed{&child}); }});
  return ok_status();
}

// Its peers and then what to load: it cannot be ready, and so no request use it, before all of them can reach it.
Status WorkerProcesses::set_up(Child& child) {
  MSTAR_TRY(connect_all(child));
  MSTAR_TRY_ASSIGN(auto setup, wire::encode(wire::Frame(child.setup)));
  MSTAR_TRY_ASSIGN(wire::Descriptor memory, memory_for(child));
  std::lock_guard lock(child.mutex);
  if (child.channel) child.channel->send(std::move(setup), std::move(memory));
  return ok_status();
}

// One for each life of a group; none where it needs none.
Result<wire::Descriptor> WorkerProcesses::memory_for(const Child& child) {
  if (!child.setup.computes_together || !options_.make_group_memory) return wire::Descriptor();
  Child& leader = *find(child.setup.group.front());
  if (leader.memory.get() < 0) {
    MSTAR_TRY_ASSIGN(const MeshSize mesh, wire::mesh_of(child.setup));
    MSTAR_TRY_ASSIGN(const int made, options_.make_group_memory(mesh));
    leader.memory = wire::Descriptor(made);
  }
  const int copy = ::fcntl(leader.memory.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return unavailable(std::string("no descriptor is left: ") + std::strerror(errno));
  return wire::Descriptor(copy);
}

// The process and those that work in step with it.
std::vector<WorkerProcesses::Child*> WorkerProcesses::members_of(const Child& child) const {
  std::vector<Child*> out;
  for (const auto& each : children_) {
    const auto& group = child.setup.group;
    if (each.get() == &child || std::find(group.begin(), group.end(), each->setup.worker) != group.end())
      out.push_back(each.get());
  }
  return out;
}

void WorkerProcesses::kill_others(const Child& child, const std::string& reason) {
  for (Child* const each : members_of(child))
    if (each != &child && each->killed_for.empty() && pid(each->setup.worker))
      kill(*each,
           "worker " + std::to_string(child.setup.worker.value) + ", which works in step with it, is gone: " + reason);
}

// Gives each of the two a socket to the other one.
Status WorkerProcesses::connect(Child& child, Child& other) {
  MSTAR_TRY_ASSIGN(const auto sockets, wire::make_socket_pair());
  std::array<wire::Descriptor, 2> ends = {wire::Descriptor(sockets[0]), wire::Descriptor(sockets[1])};
  const std::array<Child*, 2> to = {&child, &other};
  for (std::size_t i = 0; i < 2; ++i) {
    MSTAR_TRY_ASSIGN(auto frame, wire::encode(wire::Frame(wire::PeerSocket{to[1 - i]->setup.worker})));
    std::lock_guard lock(to[i]->mutex);
    if (to[i]->channel) to[i]->channel->send(std::move(frame), std::move(ends[i]));
  }
  return ok_status();
}

// To the processes that run already.
Status WorkerProcesses::connect_all(Child& child) {
  const WorkerId id = child.setup.worker;
  for (const auto& other : children_) {
    const WorkerId peer = other->setup.worker;
    if (peer == id || !pid(peer) || !options_.links.count({std::min(id, peer), std::max(id, peer)})) continue;
    MSTAR_TRY(connect(child, *other));
  }
  return ok_status();
}

void WorkerProcesses::on_closed(Child& child) {
  std::unique_ptr<wire::Channel> channel;
  bool reported = false;
  std::string fault;
  {
    std::lock_guard lock(child.mutex);
    channel = std::move(child.channel);
    child.is_dying = channel != nullptr;
    reported = child.reported_failure;
    fault = std::exchange(child.fault, {});
    for (auto& pool : child.stats.pools) pool.used = 0;
    child.stats.num_requests = 0;
  }
  if (!channel) return;
  channel.reset();
  std::string reason = reap(child.pid);
  if (!child.killed_for.empty()) reason = child.killed_for;
  if (!fault.empty()) reason = "its process sent nonsense: " + fault;
  log_error("worker {}: {}", child.setup.worker.value, reason);
  if (!reported) options_.to_conductor(wire::WorkerFailed{child.setup.worker, unavailable(reason)});
  {
    std::lock_guard lock(child.mutex);
    child.is_dying = false;
  }
  kill_others(child, reason);
  start_again_later(child);
}

// Once nothing is left of it and of those that work in step with it.
void WorkerProcesses::start_again_later(Child& child) {
  const std::vector<Child*> members = members_of(child);
  for (Child* const each : members) {
    std::lock_guard lock(each->mutex);
    if (each->channel || !each->was_ready) return;
  }
  if (!child.setup.group.empty()) find(child.setup.group.front())->memory = wire::Descriptor();
  if (Clock::now() - child.started_at > kSteady) child.num_deaths = 0;
  auto delay = options_.first_delay;
  for (int i = 0; i < child.num_deaths && delay < options_.longest_delay; ++i) delay *= 2;
  ++child.num_deaths;
  const auto at = Clock::now() + std::min(delay, options_.longest_delay);
  for (Child* const each : members) {
    each->num_deaths = child.num_deaths;  // whichever is the last one next time
    each->restart_at = at;
  }
}

void WorkerProcesses::restart_due() {
  for (const auto& child : children_) {
    if (!child->restart_at || Clock::now() < *child->restart_at) continue;
    log_info("worker {}: started again", child->setup.worker.value);
    Status started = spawn(*child);
    if (started) {
      std::lock_guard lock(child->mutex);
      ++child->num_restarts;
    } else {
      child->restart_at = Clock::now() + options_.longest_delay;
    }
    if (started) started = set_up(*child);
    if (started) continue;
    log_error("worker {}: {}", child->setup.worker.value, started.error().message);
    if (!child->restart_at) kill(*child, started.error().message);
  }
}

void WorkerProcesses::kill(Child& child, std::string reason) {
  child.killed_for = std::move(reason);
  ::kill(child.pid, SIGKILL);  // not reaped yet, so the id is still its own; what follows is a death like others
}

// Zero: nobody is looked at.
std::chrono::milliseconds WorkerProcesses::look_period() const {
  const auto shorter = std::min(options_.hang_timeout, options_.load_timeout);
  return (shorter.count() > 0 ? shorter : std::max(options_.hang_timeout, options_.load_timeout)) / kLooks;
}

// That find a process unchanged before the time-out has passed.
int WorkerProcesses::most_looks(std::chrono::milliseconds timeout) const {
  if (timeout.count() <= 0) return INT_MAX;
  return static_cast<int>((timeout + look_period() - std::chrono::milliseconds(1)) / look_period());
}

// Looks are counted, not time: after this process itself was stopped for a while, nobody is to blame.
void WorkerProcesses::look_for_hangs() {
  if (look_period().count() <= 0 || Clock::now() < next_look_) return;
  next_look_ = Clock::now() + look_period();
  for (const auto& child : children_) {
    bool hangs = false, is_ready = false;
    {
      std::lock_guard lock(child->mutex);
      if (!child->channel) continue;
      is_ready = child->is_ready;
      hangs = child->num_silent++ >= most_looks(is_ready ? options_.hang_timeout : options_.load_timeout);
      if (auto ping = wire::encode(wire::Frame(wire::Ping{}))) child->channel->send(std::move(*ping));
    }
    if (!hangs || !child->killed_for.empty()) continue;
    const auto seconds = [](std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); };
    kill(*child, is_ready
                     ? fmt::format("its process stood still for {:g} s and was killed", seconds(options_.hang_timeout))
                     : fmt::format("its process had loaded nothing more for {:g} s and was killed",
                                   seconds(options_.load_timeout)));
  }
}

WorkerProcesses::Clock::time_point WorkerProcesses::next_turn() const {
  auto next = Clock::now() + std::chrono::hours(1);
  if (look_period().count() > 0) next = next_look_;
  for (const auto& child : children_)
    if (child->restart_at) next = std::min(next, *child->restart_at);
  return next;
}

void WorkerProcesses::supervise(std::promise<Status>& started) {
  Status first = ok_status();
  for (std::size_t i = 0; i < children_.size() && first; ++i) {
    first = spawn(*children_[i]);
    if (first) first = set_up(*children_[i]);
  }
  started.set_value(std::move(first));
  for (bool stopping = false; !stopping;) {
    const auto wait = std::max<Clock::duration>(next_turn() - Clock::now(), Clock::duration(0));
    for (const Event& event : events_.wait_all(std::chrono::duration_cast<std::chrono::microseconds>(wait))) {
      if (const auto* closed = std::get_if<Closed>(&event)) on_closed(*closed->child);
      if (const auto* ended = std::get_if<GroupEnded>(&event)) {
        const std::string reason = "its group has ended: " + ended->reason;
        kill_others(*ended->child, reason);
        if (ended->child->killed_for.empty() && pid(ended->child->setup.worker)) kill(*ended->child, reason);
      }
      stopping |= std::holds_alternative<Stop>(event);
    }
    if (stopping) break;
    restart_due();
    look_for_hangs();
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
  for (const pid_t pid : pids) reap(pid);
}

}  // namespace mstar::apps
