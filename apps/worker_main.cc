#include "worker_main.h"

#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/thread_pool.h"
#include "mstar/wire/channel.h"
#include "mstar/wire/codec.h"
#include "mstar/worker/worker.h"
#include "runtime.h"

namespace mstar::apps {
namespace {

// Everything goes through the process that started this one.
class WorkerProcess final : public wire::Mesh {
 public:
  explicit WorkerProcess(int fd)
      : channel_(fd, {[this](std::span<const std::byte> bytes) { return on_frame(bytes); }, [] { std::_Exit(0); }}) {}

  int run() {
    auto setup = setups_.pop();
    if (!setup) return 1;
    const WorkerId id = setup->worker;
    Status built = ok_status();
    try {
      built = build(std::move(*setup));
    } catch (const std::exception& error) {
      built = internal_error(error.what());
    }
    while (built) setups_.pop();  // until the channel closes, and the process with it
    to_conductor(wire::WorkerFailed{id, std::move(built.error())});
    channel_.flush_and_close(std::chrono::seconds(5));
    return 1;
  }

  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    const RequestId request = wire::request_of(message);
    return send(wire::PeerMessage{worker, std::move(message)}, request);
  }
  void to_conductor(wire::ToConductor message) override {
    const RequestId request = wire::request_of(message);
    send(std::move(message), request);
  }

 private:
  struct Model {
    OpenedModel opened;
    std::unique_ptr<const graph::CompiledModel> compiled;
  };

  bool send(wire::Frame frame, RequestId request) {
    auto bytes = wire::encode(frame);
    if (bytes && bytes->size() > wire::kMaxFrameBytes) bytes = exhausted("a value is too large for another process");
    if (!bytes)
      bytes = wire::encode(wire::Frame(wire::ToConductor(wire::RequestFailed{request, std::move(bytes.error())})));
    return bytes && channel_.send(std::move(*bytes));
  }

  bool on_frame(std::span<const std::byte> bytes) {
    auto frame = wire::decode(bytes);
    if (!frame) {
      log_error("worker process: {}", frame.error().message);
      return false;
    }
    if (auto* setup = std::get_if<wire::WorkerSetup>(&*frame)) return setups_.push(std::move(*setup));
    auto* message = std::get_if<wire::ToWorker>(&*frame);
    if (!message) return false;
    std::lock_guard lock(mutex_);
    if (worker_) return worker_->send(std::move(*message));
    early_.push_back(std::move(*message));
    return true;
  }

  Status build(wire::WorkerSetup setup) {
    (void)set_log_level(setup.log_level);
    device_ = make_cpu_device();
    pool_ = std::make_unique<ThreadPool>(setup.num_threads);
    worker::WorkerOptions options{.id = setup.worker, .device = device_.get(), .pool = pool_.get()};
    options.on_stats = [this](const wire::WorkerStats& stats) { send(stats, RequestId()); };
    for (wire::WorkerSetup::Model& each : setup.models) {
      MSTAR_TRY_ASSIGN(OpenedModel opened,
                       open_model({.model = each.model, .name = each.name, .options = each.options}));
      for (const decl::ComponentRef component : each.components)
        if (component.value >= opened.decl->components().size() || opened.decl->at(component).on_host())
          return bad_model("'" + each.model + "' has changed since the server was started");
      MSTAR_TRY_ASSIGN(auto compiled, graph::CompiledModel::compile(*opened.decl));
      models_.push_back({std::move(opened), std::make_unique<const graph::CompiledModel>(std::move(compiled))});
      options.models.push_back(
          {.name = each.name,
           .compiled = models_.back().compiled.get(),
           .checkpoint = models_.back().opened.checkpoint,
           .components = std::move(each.components),
           .limits = {.max_requests = each.max_requests, .max_rows = each.max_rows, .max_tokens = each.max_tokens}});
    }
    auto made = std::make_unique<worker::Worker>(std::move(options), *this);
    MSTAR_TRY(made->start());
    std::lock_guard lock(mutex_);
    worker_ = std::move(made);
    for (wire::ToWorker& message : early_) worker_->send(std::move(message));
    early_.clear();
    return ok_status();
  }

  std::vector<Model> models_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ThreadPool> pool_;
  Queue<wire::WorkerSetup> setups_;
  std::mutex mutex_;  // guards the next two
  std::vector<wire::ToWorker> early_;
  std::unique_ptr<worker::Worker> worker_;
  wire::Channel channel_;  // last: its reader uses all of the above
};

}  // namespace

int run_worker(int fd) {
  // Ctrl-C and SIGTERM are for the process that started this one: it finishes its requests first.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return WorkerProcess(fd).run();
}

}  // namespace mstar::apps
