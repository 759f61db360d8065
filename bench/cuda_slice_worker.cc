// The toy decoder behind a whole worker: continuous batching with and without running ahead, on the CPU and on CUDA.
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "cuda_slice.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/toy_decoder_fixture.h"
#include "mstar/worker/worker.h"

namespace mstar::bench {
namespace {

using namespace engine;

struct Mesh final : wire::Mesh {
  std::deque<wire::ToConductor> inbox;
  bool to_worker(WorkerId, wire::ToWorker) override { return true; }
  void to_conductor(wire::ToConductor message) override { inbox.push_back(std::move(message)); }
};

struct Served {
  std::map<RequestId, std::vector<std::int32_t>> tokens;
  wire::WorkerStats::Component counters;
  double us_per_step = 0;  // of the decode loop, all requests in it
  std::string error;
};

// A worker and the part of the conductor that this needs: prompt, then the loop, then removal.
class Deployment {
 public:
  Deployment(Device& device, ThreadPool* pool, bool captured, bool run_ahead)
      : declaration_(
            declare_toy_decoder({}, captured ? std::vector<int>{1, 2, 4, 8, 16, 32} : std::vector<int>{}, 32, false)) {
    decl::Decl& d = declaration_->decl;
    d.partition({.walks = {declaration_->prefill, declaration_->decode},
                 .plan = decl::in_order({declaration_->prefill, declaration_->decode})});
    auto compiled = graph::CompiledModel::compile(d);
    if (!compiled) {
      served_.error = compiled.error().message;
      return;
    }
    compiled_ = std::make_unique<graph::CompiledModel>(std::move(*compiled));
    worker::WorkerModel model{.name = "toy",
                              .compiled = compiled_.get(),
                              .components = {declaration_->component},
                              .limits = {.max_requests = 32, .max_rows = 32, .max_tokens = 1024}};
    worker_ = std::make_unique<worker::Worker>(
        worker::WorkerOptions{
            .id = WorkerId(0), .device = &device, .pool = pool, .run_ahead = run_ahead, .models = {model}},
        mesh_);
    if (Status loaded = worker_->load(); !loaded) served_.error = loaded.error().message;
  }

  Served run(const std::vector<DecodeRequest>& requests) {
    served_.tokens.clear();
    if (!served_.error.empty()) return served_;
    requests_ = &requests;
    first_id_ = next_id_;
    std::size_t num_added = 0;
    for (int turn = 0; num_removed_ < requests.size() && served_.error.empty(); ++turn) {
      while (num_added < requests.size() && requests[num_added].start_at_step <= turn) add(requests[num_added++]);
      if (!worker_->poll() && num_added == requests.size() && mesh_.inbox.empty()) served_.error = "it stands still";
      while (!mesh_.inbox.empty()) {
        const wire::ToConductor message = std::move(mesh_.inbox.front());
        mesh_.inbox.pop_front();
        std::visit([this](const auto& each) { on(each); }, message);
      }
    }
    num_removed_ = 0;
    while (worker_->poll()) {
    }
    served_.counters = worker_->stats().components.front();
    const auto took = std::chrono::duration<double, std::micro>(last_token_ - loop_began_).count();
    served_.us_per_step = took / std::max(1, requests.front().max_tokens - 1);
    return served_;
  }

 private:
  const DecodeRequest& request(RequestId id) const { return (*requests_)[id.value - first_id_]; }
  void add(const DecodeRequest& wanted) {
    auto params = std::make_shared<decl::RequestParams>();
    params->sampling.max_tokens = wanted.max_tokens;
    if (wanted.stop_id >= 0) params->sampling.stop_ids = {wanted.stop_id};
    const RequestId id(next_id_++);
    worker_->send(wire::AddRequest{id,
                                   0,
                                   params,
                                   graph::RequestPlacement(*compiled_, WorkerId(0)).table(),
                                   {{declaration_->prompt, {HostValue::i32(wanted.prompt)}}}});
    graph::StartPass start{.walk = declaration_->prefill, .pass = 1};
    start.kept = {{declaration_->prompt, 0}};
    worker_->send(wire::PartitionMessage{id, {decl::PartitionRef(0), start}});
  }
  void on(const wire::FragmentReport& report) {
    const DecodeRequest& wanted = request(report.request);
    const auto& tokens = served_.tokens[report.request];
    if (report.done.pass == 2 || wanted.max_tokens == 1 || tokens.back() == wanted.stop_id) {
      worker_->send(wire::RemoveRequest{report.request});
      return;
    }
    loop_began_ = std::chrono::steady_clock::now();
    graph::StartPass start{.walk = declaration_->decode, .pass = 2};
    start.caps = {{graph::LoopIndex{0}, wanted.max_tokens - 1}};
    start.kept = {{declaration_->token, 1}};
    worker_->send(wire::PartitionMessage{report.request, {decl::PartitionRef(0), start}});
  }
  void on(const wire::ClientValues& message) {
    auto value = message.values.begin();
    for (const wire::ClientValues::Part& part : message.parts)
      for (std::uint32_t i = 0; i < part.num_values; ++i, ++value)
        for (const std::int32_t token : value->as<std::int32_t>()) served_.tokens[part.request].push_back(token);
    last_token_ = std::chrono::steady_clock::now();
  }
  void on(const wire::RequestFailed& failed) { served_.error = failed.error.message; }
  void on(const wire::Removed&) { ++num_removed_; }
  template <class Other>
  void on(const Other&) {}

  std::unique_ptr<DecoderDecl> declaration_;
  std::unique_ptr<graph::CompiledModel> compiled_;
  Mesh mesh_;
  std::unique_ptr<worker::Worker> worker_;
  const std::vector<DecodeRequest>* requests_ = nullptr;
  std::uint64_t first_id_ = 1, next_id_ = 1;
  std::size_t num_removed_ = 0;
  Served served_;
  std::chrono::steady_clock::time_point loop_began_, last_token_;
};

std::vector<std::vector<std::int32_t>> in_order(const Served& served) {
  std::vector<std::vector<std::int32_t>> out;
  for (const auto& [id, tokens] : served.tokens) out.push_back(tokens);
  return out;
}

std::vector<DecodeRequest> mixed_requests() {
  std::vector<DecodeRequest> out;
  for (int i = 0; i < 48; ++i) {
    DecodeRequest each{.max_tokens = 1 + (i * 7) % 40, .start_at_step = i * 3};
    for (int t = 0; t < 1 + (i * 5) % 23; ++t) each.prompt.push_back((i * 131 + t * 17 + 5) % 1000);
    out.push_back(std::move(each));
  }
  return out;
}

void check_answers(Report& report, Device& cuda) {
  const auto cpu = make_cpu_device();
  ThreadPool pool(2);
  auto requests = mixed_requests();
  // At most 32 at once: the pools hold no more, and this conductor does not queue.
  requests.resize(32);
  auto oracle = Deployment(*cpu, &pool, false, true).run(requests);
  if (!report.check(oracle.error.empty(), "a worker on the CPU", oracle.error)) return;
  report.check(oracle.counters.num_ahead_rows == 0, "the CPU does not run ahead");
  // Half of them stop at a token that the CPU has seen.
  int num_stops = 0;
  const auto seen = in_order(oracle);
  for (std::size_t i = 0; i < requests.size(); i += 2)
    if (seen[i].size() > 4) requests[i].stop_id = seen[i][seen[i].size() / 2], ++num_stops;
  const auto expected = in_order(Deployment(*cpu, &pool, false, true).run(requests));
  for (const bool captured : {false, true}) {
    const std::string name = captured ? "captured" : "eager";
    auto off = Deployment(cuda, nullptr, captured, false).run(requests);
    auto ahead = Deployment(cuda, nullptr, captured, true).run(requests);
    report.check(off.error.empty() && ahead.error.empty(), name + ": a worker on CUDA", off.error + ahead.error);
    report.check(in_order(off) == expected, name + ": the CPU's tokens, one step after the other");
    report.check(in_order(ahead) == expected, name + ": the same tokens running ahead");
    report.check(ahead.counters.num_ahead_rows > 0, name + ": rows ran ahead",
                 std::to_string(ahead.counters.num_ahead_rows) + " of " + std::to_string(ahead.counters.num_rows));
    report.check(ahead.counters.num_dropped_rows <= num_stops, name + ": at most one row wasted for a stop",
                 std::to_string(ahead.counters.num_dropped_rows) + " for " + std::to_string(num_stops) + " stops");
    report.check(ahead.counters.num_rows - ahead.counters.num_dropped_rows == off.counters.num_rows,
                 name + ": no other row is extra");
  }
}

}  // namespace

void check_worker(Report& report, Device& cuda, int num_tokens) {
  check_answers(report, cuda);
  report.table.push_back("worker, captured, us a step of the decode loop: one after the other | ahead | ahead again");
  for (const int rows : {1, 8, 32}) {
    std::vector<DecodeRequest> requests;
    for (int i = 0; i < rows; ++i)
      requests.push_back({.prompt = {5 + i, 9, 200 + i, 17, 3, 8, 101, 44}, .max_tokens = num_tokens});
    Deployment off(cuda, nullptr, true, false), ahead(cuda, nullptr, true, true);
    off.run(requests);  // warm
    ahead.run(requests);
    const double apart = off.run(requests).us_per_step;
    const Served once = ahead.run(requests);
    const Served again = ahead.run(requests);
    report.check(again.error.empty(), "timing of a worker", again.error);
    report.check(again.counters.num_allocations == once.counters.num_allocations, "no allocation by a worker's steps");
    report.table.push_back(text("  %2d rows  %8.1f | %8.1f | %8.1f", rows, apart, once.us_per_step, again.us_per_step));
  }
}

}  // namespace mstar::bench
