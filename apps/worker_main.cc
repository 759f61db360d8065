#include "worker_main.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "mstar/base/load_progress.h"
#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cpu/shared_communicator.h"
#include "mstar/device/cuda/nccl_communicator.h"
#include "mstar/device/thread_pool.h"
#include "mstar/wire/channel.h"
#include "mstar/wire/codec.h"
#include "mstar/worker/step_follower.h"
#include "mstar/worker/worker.h"
#include "process_group.h"
#include "runtime.h"

namespace mstar::apps {
namespace {

constexpr std::chrono::seconds kMeeting{60};  // of ranks that work in step
constexpr WorkerId kHostWorker{0};            // in the process that started this one

// Speaks with the process that started this one, and with each worker that it shares requests with over a socket of
// their own: tensors take no detour.
class WorkerProcess final : public wire::Mesh {
 public:
  explicit WorkerProcess(int fd)
      : channel_(fd, {[this](std::span<const std::byte> bytes, wire::Descriptor along) {
                        return on_frame(bytes, std::move(along));
                      },
                      [this] { std::_Exit(exit_status_); }}) {}

  int run() {
    auto setup = setups_.pop();
    if (!setup) return 1;
    const WorkerId id = setup->what.worker;
    Status built = ok_status();
    try {
      built = build(std::move(setup->what), std::move(setup->memory));
    } catch (const std::exception& error) {
      built = internal_error(error.what());
    }
    while (built) setups_.pop();  // until the channel closes, and the process with it
    exit_status_ = 1;
    to_conductor(wire::WorkerFailed{id, std::move(built.error())});
    channel_.flush_and_close(std::chrono::seconds(5));
    return 1;
  }

  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    const RequestId request = wire::request_of(message);
    const auto peer = find_peer(worker);
    if (peer) {
      send(*peer, std::move(message), request);
      return true;  // where the other one has died, the word of that ends the request, and says why
    }
    return worker == kHostWorker && send(channel_, wire::PeerMessage{worker, std::move(message)}, request);
  }
  void to_conductor(wire::ToConductor message) override {
    const RequestId request = wire::request_of(message);
    send(channel_, std::move(message), request);
  }

 private:
  struct Setup {
    wire::WorkerSetup what;
    wire::Descriptor memory;  // in which a group's ranks meet
  };
  struct Model {
    OpenedModel opened;
    std::unique_ptr<const graph::CompiledModel> compiled;
  };

  // A value that cannot be sent fails its request.
  bool send(wire::Channel& to, wire::Frame frame, RequestId request) {
    auto bytes = wire::encode(frame);
    if (bytes && bytes->size() > wire::kMaxFrameBytes) bytes = exhausted("a value is too large for another process");
    if (bytes) return to.send(std::move(*bytes));
    bytes = wire::encode(wire::Frame(wire::ToConductor(wire::RequestFailed{request, std::move(bytes.error())})));
    return bytes && channel_.send(std::move(*bytes));
  }

  // From the process that started this one.
  bool on_frame(std::span<const std::byte> bytes, wire::Descriptor along) {
    auto frame = wire::decode(bytes);
    if (!frame) {
      log_error("the server's message: {}", frame.error().message);
      return false;
    }
    if (auto* setup = std::get_if<wire::WorkerSetup>(&*frame))
      return setups_.push({std::move(*setup), std::move(along)});
    if (std::holds_alternative<wire::Ping>(*frame)) {
      // Not taken once this process has said its last word; that one must still go out.
      send(channel_, wire::Pong{num_turns()}, RequestId());
      return true;
    }
    if (const auto* peer = std::get_if<wire::PeerSocket>(&*frame)) return add_peer(peer->worker, std::move(along));
    auto* message = std::get_if<wire::ToWorker>(&*frame);
    return message && deliver(std::move(*message));
  }

  // From another worker. Nonsense ends this process: a request that waits for it must not wait for ever.
  bool on_peer_frame(WorkerId from, std::span<const std::byte> bytes) {
    auto frame = wire::decode(bytes);
    if (auto* const steps = frame ? std::get_if<wire::StepBytes>(&*frame) : nullptr) {
      steps_.receive(from, std::move(steps->bytes));
      return true;
    }
    auto* message = frame ? std::get_if<wire::ToWorker>(&*frame) : nullptr;
    if (message) return deliver(std::move(*message));
    log_error("another worker's message: {}", frame ? "of a wrong kind" : frame.error().message);
    std::_Exit(1);
  }

  bool deliver(wire::ToWorker message) {
    std::lock_guard lock(mutex_);
    if (follower_) return true;  // its leader has the requests
    if (worker_) return worker_->send(std::move(message));
    early_.push_back(std::move(message));
    return true;
  }

  std::uint64_t num_turns() {
    std::lock_guard lock(mutex_);
    // While it loads, its loop stands still.
    return load_progress() + (worker_ ? worker_->num_turns() : 0) + (follower_ ? follower_->num_turns() : 0);
  }

  // A worker that was started again comes with a new socket.
  bool add_peer(WorkerId worker, wire::Descriptor socket) {
    if (socket.get() < 0) return false;
    auto made = std::make_shared<wire::Channel>(
        socket.release(),
        wire::Channel::Callbacks{[this, worker](std::span<const std::byte> bytes, const wire::Descriptor&) {
                                   return on_peer_frame(worker, bytes);
                                 },
                                 [this, worker] { steps_.on_gone(worker); }});
    std::lock_guard lock(peers_mutex_);
    std::swap(peers_[worker], made);  // the old one ends after the lock
    peer_came_.notify_all();
    return true;
  }

  std::shared_ptr<wire::Channel> find_peer(WorkerId worker) {
    std::lock_guard lock(peers_mutex_);
    const auto found = peers_.find(worker);
    return found == peers_.end() ? nullptr : found->second;
  }

  bool send_steps(WorkerId worker, std::string bytes) {
    const auto peer = find_peer(worker);
    auto frame = wire::encode(wire::Frame(wire::StepBytes{std::move(bytes)}));
    return peer && frame && peer->send(std::move(*frame));
  }

  // Those of the group get their sockets to this one at about the same time.
  Status wait_peers(const wire::WorkerSetup& setup) {
    std::unique_lock lock(peers_mutex_);
    for (const WorkerId each : setup.group)
      if (each != setup.worker &&
          !peer_came_.wait_for(lock, kMeeting, [&] { return peers_.find(each) != peers_.end(); }))
        return unavailable("worker " + std::to_string(each.value) +
                           ", which works in step with this one, did not come");
    return ok_status();
  }

  // This process's end of a group of some ranks of the mesh, which all of them join in the same order.
  Result<std::unique_ptr<Communicator>> join(const wire::WorkerSetup& setup, const std::vector<int>& members,
                                             Ranks ranks, const wire::Descriptor& memory, int group) {
    if (!setup.on_cuda) {
      const int copy = ::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
      return join_shared_group(copy, ranks.rank, group);
    }
    std::vector<WorkerId> workers;
    for (const int member : members) workers.push_back(setup.group[static_cast<std::size_t>(member)]);
    std::string key;
    if (ranks.rank == 0) {
      MSTAR_TRY_ASSIGN(key, make_nccl_key());
      MSTAR_TRY(steps_.send_key({workers.begin() + 1, workers.end()}, key));
    } else {
      MSTAR_TRY_ASSIGN(key, steps_.wait_key(workers.front(), kMeeting));
    }
    return join_nccl_group(key, ranks, *device_);
  }

  Result<RankMesh> join_mesh(const wire::WorkerSetup& setup, int own, const wire::Descriptor& memory) {
    MSTAR_TRY_ASSIGN(const MeshSize size, wire::mesh_of(setup));
    int group = 0;
    return RankMesh::create(
        size, [&](const std::vector<int>& members) -> Result<std::vector<std::unique_ptr<Communicator>>> {
          std::vector<std::unique_ptr<Communicator>> ends(members.size());
          const int at = group++;
          const auto self = std::find(members.begin(), members.end(), own);
          if (self == members.end()) return ends;
          const Ranks ranks{static_cast<int>(self - members.begin()), static_cast<int>(members.size())};
          MSTAR_TRY_ASSIGN(ends[static_cast<std::size_t>(ranks.rank)], join(setup, members, ranks, memory, at));
          note_load_progress();
          return ends;
        });
  }

  Result<std::shared_ptr<worker::StepGroup>> join_group(const wire::WorkerSetup& setup,
                                                        const wire::Descriptor& memory) {
    const auto self = std::find(setup.group.begin(), setup.group.end(), setup.worker);
    if (self == setup.group.end()) return internal_error("a worker that is not in its group");
    const int own = static_cast<int>(self - setup.group.begin());
    MSTAR_TRY(wait_peers(setup));
    RankMesh mesh;
    if (setup.computes_together) {
      MSTAR_TRY_ASSIGN(mesh, join_mesh(setup, own, memory));
    }
    std::vector<const graph::CompiledModel*> compiled;
    for (const Model& each : models_) compiled.push_back(each.compiled.get());
    return steps_.open(setup.group, own, std::move(compiled), std::move(mesh));
  }

  Status follow(worker::WorkerOptions options, const std::vector<WorkerId>& group) {
    const auto rank = std::find(group.begin(), group.end(), options.id) - group.begin();
    auto made =
        std::make_unique<worker::StepFollower>(worker::StepFollowerOptions{.id = options.id,
                                                                           .rank = static_cast<int>(rank),
                                                                           .device = options.device,
                                                                           .pool = options.pool,
                                                                           .models = std::move(options.models),
                                                                           .group = std::move(options.group),
                                                                           .on_stats = std::move(options.on_stats)},
                                               *this);
    worker::StepFollower& follower = *made;
    {
      std::lock_guard lock(mutex_);
      follower_ = std::move(made);
      early_.clear();
    }
    follower.start();
    return follower.wait_loaded();
  }

  Status build(wire::WorkerSetup setup, wire::Descriptor memory) {
    (void)set_log_level(setup.log_level);
    set_log_origin("worker " + std::to_string(setup.worker.value));
    const Backend backend = setup.on_cuda ? Backend::cuda : Backend::cpu;
    MSTAR_TRY_ASSIGN(device_, make_device(backend, setup.device));
    note_load_progress();
    pool_ = std::make_unique<ThreadPool>(setup.num_threads);
    worker::WorkerOptions options{.id = setup.worker, .device = device_.get(), .pool = pool_.get()};
    options.on_stats = [this](const wire::WorkerStats& stats) { send(channel_, stats, RequestId()); };
    for (wire::WorkerSetup::Model& each : setup.models) {
      MSTAR_TRY_ASSIGN(OpenedModel opened,
                       open_model({.model = each.model, .name = each.name, .options = each.options}, backend));
      for (const decl::ComponentRef component : each.components)
        if (component.value >= opened.decl->components().size() || opened.decl->at(component).on_host())
          return bad_model("'" + each.model + "' has changed since the server was started");
      note_load_progress();
      MSTAR_TRY_ASSIGN(auto compiled, graph::CompiledModel::compile(*opened.decl));
      models_.push_back({std::move(opened), std::make_unique<const graph::CompiledModel>(std::move(compiled))});
      options.models.push_back(
          {.name = each.name,
           .compiled = models_.back().compiled.get(),
           .checkpoint = models_.back().opened.checkpoint,
           .components = std::move(each.components),
           .limits = {.max_requests = each.max_requests, .max_rows = each.max_rows, .max_tokens = each.max_tokens},
           .in_step = std::move(each.in_step)});
    }
    if (!setup.group.empty()) {
      MSTAR_TRY_ASSIGN(options.group, join_group(setup, memory));
      if (setup.group.front() != setup.worker) return follow(std::move(options), setup.group);
    }
    auto made = std::make_unique<worker::Worker>(std::move(options), *this);
    MSTAR_TRY(made->start());
    std::lock_guard lock(mutex_);
    worker_ = std::move(made);
    for (wire::ToWorker& message : early_) worker_->send(std::move(message));
    early_.clear();
    return ok_status();
  }

  std::atomic<int> exit_status_{0};  // once the channel has closed
  std::vector<Model> models_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ThreadPool> pool_;
  Queue<Setup> setups_;
  std::mutex mutex_;  // guards the next three
  std::vector<wire::ToWorker> early_;
  std::unique_ptr<worker::Worker> worker_;
  std::unique_ptr<worker::StepFollower> follower_;  // instead of a worker, where it follows one
  ProcessGroup steps_{[this](WorkerId worker, std::string bytes) { return send_steps(worker, std::move(bytes)); }};
  std::mutex peers_mutex_;  // guards the next one
  std::condition_variable peer_came_;
  // Owners of a channel: this and whoever sends over it.
  std::map<WorkerId, std::shared_ptr<wire::Channel>> peers_;
  wire::Channel channel_;  // last: its reader uses all of the above
};

}  // namespace

int run_worker(int fd) {
  // Ctrl-C and SIGTERM are for the process that started this one: it finishes its requests first. They were blocked up
  // to here.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "mstar-worker");  // it was started as /proc/self/exe
  return WorkerProcess(fd).run();
}

}  // namespace mstar::apps
