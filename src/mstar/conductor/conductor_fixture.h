// A conductor alone, whose test plays the workers: two walks of one model on two groups of replicas.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>

#include "mstar/conductor/conductor.h"

namespace mstar::conductor {

using decl::ApiRequest;
using wire::FragmentReport;

struct RecordingMesh final : wire::Mesh {
  std::vector<std::pair<std::uint32_t, wire::ToWorker>> sent;
  std::set<std::uint32_t> gone;
  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    if (gone.count(worker.value)) return false;
    sent.emplace_back(worker.value, std::move(message));
    return true;
  }
  void to_conductor(wire::ToConductor) override {}
  template <class T>
  std::vector<std::uint32_t> receivers() const {
    std::vector<std::uint32_t> out;
    for (const auto& [worker, message] : sent)
      if (std::holds_alternative<T>(message)) out.push_back(worker);
    return out;
  }
  int num_starts() const {
    int count = 0;
    for (const auto& [worker, message] : sent)
      if (const auto* signal = std::get_if<wire::PartitionMessage>(&message))
        count += std::holds_alternative<graph::StartPass>(signal->signal.signal);
    return count;
  }
};

struct RecordingSink final : EventSink {
  std::vector<std::string> events;
  std::optional<Error> error;
  std::optional<Finished> finished;
  bool throws = false;
  void on_event(RequestEvent event) override {
    if (throws) throw std::runtime_error("the sink is broken");
    if (auto* chunk = std::get_if<decl::Chunk>(&event)) events.push_back("chunk " + std::string(chunk->value.text()));
    if (auto* failed = std::get_if<Failed>(&event)) {
      events.push_back("failed");
      error = std::move(failed->error);
    }
    if (auto* done = std::get_if<Finished>(&event)) {
      events.push_back("finished");
      finished = std::move(*done);
    }
  }
};

// Two walks of one partition, one component each: "first" on the workers of group a, "second" on those of group b.
struct Model {
  decl::Decl decl{"two"};
  decl::PortRef prompt, middle, out, about;
  decl::WalkRef first, second;
  std::optional<graph::CompiledModel> compiled;
  int num_plans = 0;

  class Plan final : public decl::Plan {
   public:
    explicit Plan(const Model& model) : model_(model) {}
    Result<decl::Decision> next(const decl::PlanView& view) override {
      const std::string fail = view.params.fields.get_string("fail", "").value_or("");
      if (fail == "plan_throw" && view.num_walks == 1) throw std::runtime_error("told to throw");
      if (fail == "first_plan") return internal_error("told to fail");
      if (view.num_walks == 0) return decl::Decision(decl::NextWalk{.walk = model_.first});
      if (view.num_walks == 1) return decl::Decision(decl::NextWalk{.walk = model_.second});
      return decl::Decision(decl::Done{});
    }

   private:
    const Model& model_;
  };

  Model() {
    prompt = decl.port({.name = "prompt", .dtype = DType::bytes, .travel = {decl::FromRequest{}}});
    middle = decl.port({.name = "middle", .dtype = DType::i32, .travel = {decl::Keep{}}});
    out = decl.port({.name = "out", .dtype = DType::utf8, .travel = {decl::ToClient{}}});
    about = decl.port(
        {.name = "about", .dtype = DType::utf8, .travel = {decl::ToClient{decl::Modality::text, "metadata"}}});
    const auto a = decl.component(decl::DeviceComponent{.name = "a"});
    const auto b = decl.component(decl::DeviceComponent{.name = "b"});
    first = decl.walk("first", decl::Run{a, {prompt}, {middle}});
    second = decl.walk("second", decl::Run{b, {middle}, {out, about}});
    decl.partition({.walks = {first, second}, .plan = [this](const decl::RequestParams& params) {
                      ++num_plans;
                      if (params.fields.has("no_plan")) throw std::runtime_error("no plan");
                      return std::make_unique<Plan>(*this);
                    }});
    decl::Surface surface{.route = decl::Route::generate};
    surface.intake = [this](const ApiRequest& api) -> Result<decl::Intake> {
      decl::Intake intake;
      intake.params.fields = api.fields;
      intake.inputs[prompt] = {HostValue::blob(api.text)};
      return intake;
    };
    surface.emit = [this](decl::PortRef port, const HostValue& value,
                          const decl::RequestParams& params) -> Result<decl::Chunk> {
      if (params.fields.get_string("fail", "").value_or("") == "emit_throw") throw std::runtime_error("told to throw");
      decl::Chunk chunk{
          .modality = decl::Modality::text, .format = port == about ? "metadata" : "utf8", .value = value};
      if (port == about) chunk.metadata.set("language", std::string(value.text()));
      return chunk;
    };
    decl.surface(surface);
    auto made = graph::CompiledModel::compile(decl);
    if (made) compiled.emplace(std::move(*made));
  }
};

class ConductorTest : public ::testing::Test {
 protected:
  void make(std::vector<std::uint32_t> a, std::vector<std::uint32_t> b, ConductorOptions options = {}) {
    ASSERT_TRUE(model_.compiled);
    ServedDeployment served{.name = "two", .aliases = {"alias"}, .compiled = &*model_.compiled};
    const auto group = [](std::string name, std::uint16_t component, const std::vector<std::uint32_t>& workers) {
      NodeGroup out{.name = std::move(name), .components = {decl::ComponentRef(component)}, .replicas = {}};
      for (const auto worker : workers) out.replicas.emplace_back(worker);
      return out;
    };
    served.groups = {group("a", 0, a), group("b", 1, b)};
    options.models = {served};
    std::set<std::uint32_t> all(a.begin(), a.end());
    all.insert(b.begin(), b.end());
    for (const auto worker : all) options.workers.emplace_back(worker);
    conductor_ = std::make_unique<Conductor>(std::move(options), mesh_);
    for (const auto worker : all) conductor_->receive(wire::WorkerReady{WorkerId(worker)});
    conductor_->poll();
  }
  std::pair<RequestId, std::shared_ptr<RecordingSink>> submit(const std::string& fail = "") {
    auto sink = std::make_shared<RecordingSink>();
    ApiRequest request{.model = "two", .text = "hello"};
    if (!fail.empty()) request.fields.set("fail", fail);
    if (fail == "no_plan") request.fields.set("no_plan", true);
    const auto id = conductor_->submit(std::move(request), sink);
    EXPECT_TRUE(id) << id.error().message;
    conductor_->poll();
    return {id ? *id : RequestId(), sink};
  }
  void tell(wire::ToConductor message) {
    conductor_->receive(std::move(message));
    conductor_->poll();
  }
  // The end of the request's `pass` on a worker.
  void report(RequestId id, std::uint32_t worker, std::int32_t pass) {
    graph::FragmentDone done{.walk = pass == 1 ? model_.first : model_.second, .pass = pass};
    if (pass == 1) done.kept = {model_.middle};
    tell(FragmentReport{id, WorkerId(worker), decl::PartitionRef(0), done, {}});
  }
  void client(RequestId id, decl::PortRef port, const std::string& text) {
    tell(wire::ClientValues{WorkerId(1), {{id, port, 1}}, {HostValue::utf8(text)}});
  }
  std::uint32_t chosen(RequestId id) const {  // the worker of group a
    for (const auto& [worker, message] : mesh_.sent)
      if (const auto* add = std::get_if<wire::AddRequest>(&message); add && add->request == id)
        return add->placement[0].value;
    return ~0u;
  }

  Model model_;
  RecordingMesh mesh_;
  std::unique_ptr<Conductor> conductor_;
};

}  // namespace mstar::conductor
