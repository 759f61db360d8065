// How many requests a second one core routes: the real conductor, and workers that compute nothing and answer at once.
//
//   conductor_limit [--replicas 1,16,64,256] [--live 32] [--tokens 8] [--prompt 128] [--seconds 2] [--routing NAME]
//
// Everything runs on the calling thread: submit (with a model's intake), admission, the choice of a replica, two walks,
// a chunk for each token, the end and the removal. `live` requests a replica are kept running. Of the time that is
// printed the workers' part is what filling their messages costs; it is measured and shown beside.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "mstar/conductor/conductor.h"

namespace mstar {
namespace {

using conductor::Conductor;
using conductor::ConductorOptions;
using conductor::Routing;

struct Settings {
  std::vector<int> replicas = {1, 16, 64, 256};
  int live = 32;  // requests of a replica
  int tokens = 8;
  int prompt = 128;
  double seconds = 2;
  std::string routing;  // empty: each
};

// A language model: a prompt's walk and a loop of tokens, on one component with a paged KV that keeps prefixes.
struct TextModel {
  decl::Decl decl{"text"};
  decl::PortRef prompt, token;
  decl::WalkRef prefill, decode;
  std::vector<HostValue> prompts;
  std::optional<graph::CompiledModel> compiled;

  class Plan final : public decl::Plan {
   public:
    Plan(const TextModel& model, int tokens) : model_(model), tokens_(tokens) {}
    Result<decl::Decision> next(const decl::PlanView& view) override {
      if (view.num_walks == 0) return decl::Decision(decl::NextWalk{.walk = model_.prefill});
      if (view.num_walks == 1 && tokens_ > 1)
        return decl::Decision(decl::NextWalk{.walk = model_.decode, .caps = {{"decode", tokens_ - 1}}});
      return decl::Decision(decl::Done{decl::Finish::length});
    }

   private:
    const TextModel& model_;
    int tokens_;
  };

  explicit TextModel(const Settings& settings) {
    // 512 beginnings, each with eight ends: what a prefix cache finds again.
    std::mt19937 random(1);
    for (int i = 0; i < 4096; ++i) {
      std::vector<std::int32_t> ids;
      std::mt19937 beginning(static_cast<unsigned>(i / 8));
      for (int t = 0; t < settings.prompt; ++t)
        ids.push_back(static_cast<std::int32_t>((t < settings.prompt * 3 / 4 ? beginning() : random()) % 150000));
      prompts.push_back(HostValue::i32(ids));
    }
    const auto kv = decl.resource(decl::PagedKv{
        .name = "kv", .layers = 1, .kv_heads = 1, .head_dim = 1, .max_tokens_per_request = 4096, .prefix_cache = true});
    prompt = decl.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {decl::FromRequest{}}});
    token = decl.port({.name = "token",
                       .dtype = DType::i32,
                       .axes = {{"one", 1}},
                       .travel = {decl::Keep{}, decl::ToClient{decl::Modality::text, "utf8"}},
                       .counts_token = true});
    const auto body = decl.component(decl::DeviceComponent{
        .name = "decoder", .uses = {kv}, .max_batch_rows = 64, .max_batch_tokens = 512, .chunked_prefill = true});
    prefill = decl.walk("prefill", decl::Run{body, {prompt}, {token}});
    decode =
        decl.walk("decode", decl::Loop{.name = "decode", .body = {decl::Run{body, {token}, {token}}}, .at_most = 4096});
    decl.partition({.walks = {prefill, decode}, .plan = [this, &settings](const decl::RequestParams&) {
                      return std::make_unique<Plan>(*this, settings.tokens);
                    }});
    decl::Surface surface{.route = decl::Route::generate};
    surface.intake = [this](const decl::ApiRequest& api) -> Result<decl::Intake> {
      decl::Intake intake;
      intake.inputs[prompt] = {prompts[static_cast<std::size_t>(std::atoi(api.text.c_str())) % prompts.size()]};
      return intake;
    };
    surface.emit = [](decl::PortRef, const HostValue& value, const decl::RequestParams&) -> Result<decl::Chunk> {
      return decl::Chunk{.modality = decl::Modality::text, .format = "utf8", .value = value};
    };
    decl.surface(surface);
    auto made = graph::CompiledModel::compile(decl);
    if (!made) {
      std::fprintf(stderr, "%s\n", made.error().message.c_str());
      std::exit(1);
    }
    compiled.emplace(std::move(*made));
  }
};

// Workers that answer each start with tokens, a step of all their requests a turn.
class NullWorkers final : public wire::Mesh {
 public:
  NullWorkers(const TextModel& model, int count) : model_(model), workers_(static_cast<std::size_t>(count)) {}

  bool to_worker(WorkerId id, wire::ToWorker message) override {
    Each& worker = workers_[id.value];
    if (const auto* remove = std::get_if<wire::RemoveRequest>(&message)) {
      worker.out.push_back(wire::Removed{remove->request, id});
    } else if (const auto* signal = std::get_if<wire::PartitionMessage>(&message)) {
      if (const auto* start = std::get_if<graph::StartPass>(&signal->signal.signal))
        worker.rows.push_back(
            {signal->request, start->walk, start->pass, start->caps.empty() ? 1 : start->caps.front().second});
    }
    return true;
  }
  void to_conductor(wire::ToConductor) override {}

  // A step of each worker; what it gives is in the conductor's inbox then.
  void step(Conductor& conductor) {
    for (std::uint32_t w = 0; w < workers_.size(); ++w) {
      Each& worker = workers_[w];
      wire::ClientValues values{WorkerId(w), {}, {}};
      std::size_t kept = 0;
      for (Row& row : worker.rows) {
        values.parts.push_back({row.request, model_.token, 1});
        values.values.push_back(token_);
        ++row.done;
        if (row.done == row.wanted) {
          graph::FragmentDone done{.walk = row.walk, .pass = row.pass};
          done.kept = {model_.token};
          done.num_tokens = row.wanted;
          worker.out.push_back(
              wire::FragmentReport{row.request, WorkerId(w), decl::PartitionRef(0), std::move(done), {}});
        } else {
          worker.rows[kept++] = row;
        }
      }
      worker.rows.resize(kept);
      if (!values.parts.empty()) worker.out.insert(worker.out.begin(), std::move(values));
      if (!worker.out.empty()) conductor.receive_all(worker.out);
      worker.out.clear();
    }
  }

 private:
  struct Row {
    RequestId request;
    decl::WalkRef walk;
    std::int32_t pass = 0, wanted = 1, done = 0;
  };
  struct Each {
    std::vector<Row> rows;
    std::vector<wire::ToConductor> out;
  };
  const TextModel& model_;
  std::vector<Each> workers_;
  const HostValue token_ = HostValue::i32(std::vector<std::int32_t>{7});
};

struct Counter final : EventSink {
  std::int64_t chunks = 0, finished = 0, failed = 0;
  void on_event(RequestEvent event) override {
    chunks += std::holds_alternative<decl::Chunk>(event);
    finished += std::holds_alternative<Finished>(event);
    failed += std::holds_alternative<Failed>(event);
  }
};

// Of this thread's processor: others may share the machine.
double now_s() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void measure(const Settings& settings, const TextModel& model, const char* name, Routing routing, int replicas) {
  NullWorkers workers(model, replicas);
  conductor::ServedDeployment served{.name = "text", .aliases = {}, .compiled = &*model.compiled, .groups = {}};
  conductor::NodeGroup group{.name = "decoder", .components = {decl::ComponentRef(0)}, .replicas = {}};
  ConductorOptions options;
  for (int w = 0; w < replicas; ++w) group.replicas.emplace_back(static_cast<std::uint32_t>(w));
  options.workers = group.replicas;
  served.groups = {group};
  options.models = {served};
  const int most = settings.live * replicas;
  options.max_concurrent_requests = most;
  options.max_queued_requests = 64;
  options.routing = routing;
  Conductor conductor(options, workers);
  for (const WorkerId worker : options.workers) conductor.receive(wire::WorkerReady{worker});
  conductor.poll();

  auto sink = std::make_shared<Counter>();
  std::mt19937 random(7);
  std::int64_t submitted = 0;
  double worker_s = 0, submit_s = 0;
  decl::ApiRequest request{.model = "text"};
  // Each turn: a client for each answer that has ended, a step of the workers. Starts are spread, or else all requests
  // would end in one turn.
  const auto turn = [&](int at_most) {
    const auto begun = now_s();
    while (submitted - sink->finished - sink->failed < most && at_most-- > 0) {
      request.text = std::to_string(random() % 4096);
      if (!conductor.submit(request, sink)) break;
      ++submitted;
    }
    submit_s += now_s() - begun;
    conductor.poll();
    const auto stepped = now_s();
    workers.step(conductor);
    worker_s += now_s() - stepped;
  };
  for (int i = 0; i < 8 * settings.tokens; ++i) turn(std::max(1, most / settings.tokens));
  const std::int64_t before = sink->finished, chunks = sink->chunks;
  worker_s = submit_s = 0;
  const auto begun = now_s();
  double elapsed = 0;
  while ((elapsed = now_s() - begun) < settings.seconds) turn(most);
  const auto done = static_cast<double>(sink->finished - before);
  std::printf("%-13s %8d %8d %10.0f %9.2f %9.2f %9.2f %9.2f %8lld\n", name, replicas, most, done / (elapsed - worker_s),
              1e6 * (elapsed - worker_s) / done, 1e6 * submit_s / done, 1e6 * worker_s / done,
              static_cast<double>(sink->chunks - chunks) / done, static_cast<long long>(sink->failed));
  std::fflush(stdout);
  conductor.stop();
}

int run(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--replicas") {
      settings.replicas.clear();
      std::istringstream list(value);
      for (std::string each; std::getline(list, each, ',');) settings.replicas.push_back(std::atoi(each.c_str()));
    } else if (flag == "--live") {
      settings.live = std::atoi(value.c_str());
    } else if (flag == "--tokens") {
      settings.tokens = std::atoi(value.c_str());
    } else if (flag == "--prompt") {
      settings.prompt = std::atoi(value.c_str());
    } else if (flag == "--seconds") {
      settings.seconds = std::atof(value.c_str());
    } else if (flag == "--routing") {
      settings.routing = value;
    } else {
      std::fprintf(stderr, "unknown flag %s; the head of conductor_limit.cc lists them\n", flag.c_str());
      return 2;
    }
  }
  const TextModel model(settings);
  std::printf("%-13s %8s %8s %10s %9s %9s %9s %9s %8s\n", "routing", "replicas", "live", "requests/s", "us",
              "of submit", "+ workers", "chunks", "failed");
  const std::pair<const char*, Routing> routings[] = {
      {"random", Routing::random}, {"least_loaded", Routing::least_loaded}, {"prefix", Routing::prefix}};
  for (const auto& [name, routing] : routings)
    for (const int replicas : settings.replicas)
      if (settings.routing.empty() || settings.routing == name) measure(settings, model, name, routing, replicas);
  return 0;
}

}  // namespace
}  // namespace mstar

int main(int argc, char** argv) { return mstar::run(argc, argv); }
