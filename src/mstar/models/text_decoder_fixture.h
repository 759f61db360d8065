// Very small decoders as engines on the CPU, for tests: the seeded ones of tests/golden/decoders, or any other
// checkpoint.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/engine.h"
#include "mstar/models/model.h"
#include "mstar/resource/state_slots.h"

namespace mstar::models::text_decoder_fixture {

namespace fs = std::filesystem;
inline const fs::path kGolden = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/decoders";
inline constexpr int kVocab = 264, kNumPrompts = 4, kMaxTokens = 40;

// What one row of a step gave.
struct Drawn {
  std::int32_t token = 0;
  std::vector<float> log_probs;  // by id
};

// A checkpoint as an engine on the CPU, with requests 1 to 4 added; or one rank's part of it, with the other ranks' on
// threads of their own.
class Model {
 public:
  explicit Model(const fs::path& path, const Params& options = {}, int num_threads = 2, int step_tokens = 256,
                 const MeshEnds& group = {})
      : pool_(num_threads) {
    const Status built = build(path, options, step_tokens, group);
    EXPECT_TRUE(built) << built.error().message;
  }
  // Why there can be no such model.
  static Status fault(const fs::path& path, const Params& options, const MeshEnds& group) {
    Model model;
    return model.build(path, options, 256, group);
  }
  const engine::Engine& engine() const { return *engine_; }
  const engine::ResourceSet& resources() const { return resources_; }

  // One step of a walk ("prefill" or "decode"): ids for some requests.
  std::vector<Drawn> step(const std::string& walk, const std::vector<std::pair<int, std::vector<std::int32_t>>>& ids) {
    std::vector<engine::RowInputs> rows;
    for (const auto& [request, tokens] : ids) rows.push_back(row(walk, request, tokens));
    auto prepared = engine_->prepare(std::move(rows));
    EXPECT_TRUE(prepared.step && prepared.failed.empty() && prepared.waiting.empty());
    for (bool done = false; !done;) {
      auto advanced = engine_->advance(*prepared.step);
      EXPECT_TRUE(advanced) << advanced.error().message;
      done = !advanced || *advanced;
    }
    std::vector<Drawn> out;
    for (engine::RowResult& result : engine_->finish(std::move(prepared.step))) {
      EXPECT_FALSE(result.error) << result.error->message;
      out.push_back(drawn(result));
    }
    return out;
  }

  // Of a step that is to fail: what its first row got.
  std::optional<Error> failed_step(const std::string& walk, int request, const std::vector<std::int32_t>& ids) {
    auto prepared = engine_->prepare({row(walk, request, ids)});
    EXPECT_TRUE(prepared.step);
    if (!prepared.step) return std::nullopt;
    EXPECT_TRUE(engine_->advance(*prepared.step));
    return engine_->finish(std::move(prepared.step))[0].error;
  }

  void remove(int request) { resources_.remove_request(RequestId(static_cast<unsigned>(request))); }
  void add_again(int request) {
    EXPECT_TRUE(resources_.add_request(RequestId(static_cast<unsigned>(request)), params_));
  }

  // All requests to `num_tokens` tokens, in steps of whatever can run: as a worker does it, parts and waits included.
  std::vector<std::vector<std::int32_t>> generate(const std::vector<std::vector<std::int32_t>>& prompts,
                                                  std::size_t num_tokens) {
    std::vector<std::vector<std::int32_t>> out(prompts.size());
    std::vector<engine::RowInputs> waiting;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      waiting.push_back(row("prefill", static_cast<int>(i) + 1, prompts[i]));
    for (int steps = 0; !waiting.empty() && steps < 1000; ++steps) {
      std::map<RequestId, engine::RowInputs> asked;
      for (const engine::RowInputs& each : waiting) asked.emplace(each.request, each);
      auto prepared = engine_->prepare(std::move(waiting));
      waiting = std::move(prepared.waiting);
      EXPECT_TRUE(prepared.failed.empty());
      if (!prepared.step) continue;
      for (bool done = false; !done;) {
        auto advanced = engine_->advance(*prepared.step);
        EXPECT_TRUE(advanced) << advanced.error().message;
        done = !advanced || *advanced;
      }
      for (engine::RowResult& result : engine_->finish(std::move(prepared.step))) {
        if (result.partial) {
          ++num_parts_;
          waiting.push_back(asked.at(result.request));
          waiting.back().progress = result.progress;
          continue;
        }
        auto& tokens = out[result.request.value - 1];
        tokens.push_back(drawn(result).token);
        if (tokens.size() < num_tokens) {
          waiting.push_back(row("decode", static_cast<int>(result.request.value), {tokens.back()}));
        } else {
          resources_.remove_request(result.request);
        }
      }
    }
    return out;
  }
  int num_parts() const { return num_parts_; }
  // Of the paged KV.
  resource::Usage kv() const {
    for (const resource::Usage& each : resources_.usage())
      if (each.name == "decoder.kv") return each;
    return {};
  }

  // Tensor `index` of the request's recurrent state; requests got their slots in order.
  std::vector<float> state(int request, int index) const {
    for (std::uint16_t i = 0; i < decl_->resources().size(); ++i) {
      if (!std::holds_alternative<decl::RecurrentState>(decl_->resources()[i])) continue;
      const auto* const slots = static_cast<const resource::StateSlots*>(resources_.at(decl::ResourceRef(i)));
      const TensorView view = slots->tensor(index).at(request);
      return {view.data<float>(), view.data<float>() + view.shape.num_elements()};
    }
    return {};
  }

 private:
  Model() : pool_(1) {}

  Status build(const fs::path& path, const Params& options, int step_tokens, const MeshEnds& group) {
    ModelSource source{
        .name = "seeded", .directory = fs::is_directory(path) ? path : path.parent_path(), .options = options};
    if (options.get_string("load_format", "auto").value_or("") == "dummy") {
      MSTAR_TRY_ASSIGN(source.checkpoint, dummy_checkpoint(source));
    } else {
      MSTAR_TRY_ASSIGN(source.checkpoint, weights::Checkpoint::open(path));
    }
    checkpoint_ = source.checkpoint;
    MSTAR_TRY_ASSIGN(const auto family, find_family(source));
    MSTAR_TRY_ASSIGN(decl::Decl declared, family->declare(source));
    decl_ = std::make_unique<decl::Decl>(std::move(declared));
    EXPECT_EQ(decl_->validate(), std::vector<std::string>{});
    for (const decl::ResourceSpec& each : decl_->resources())
      if (const auto* const sampler = std::get_if<decl::Sampler>(&each)) vocab_ = sampler->vocab;
    device_ = make_cpu_device();
    MSTAR_TRY_ASSIGN(weights::WeightMap map, weights::WeightMap::create(checkpoint_, decl_->weight_rules()));
    const resource::PoolLimits limits{.max_requests = kNumPrompts,
                                      .max_rows = kNumPrompts,
                                      .max_tokens = step_tokens,
                                      .head_shards = group.size().num_ranks(),
                                      .promised_answer_tokens = 1};
    const decl::ComponentRef component[] = {decl_->find_component("decoder")};
    MSTAR_TRY_ASSIGN(resources_, engine::ResourceSet::build(*decl_, component, limits, *device_, group.size()));
    MSTAR_TRY_ASSIGN(engine_, engine::Engine::create(*decl_, component[0],
                                                     {.limits = limits,
                                                      .buffers = std::make_shared<engine::BufferPool>(*device_),
                                                      .pool = &pool_,
                                                      .mesh = group},
                                                     resources_, map, *device_));
    MSTAR_TRY(map.finish());
    params_.sampling.num_logprobs = vocab_;
    params_.sampling.max_tokens = kMaxTokens;
    for (std::uint64_t i = 1; i <= kNumPrompts; ++i) MSTAR_TRY(resources_.add_request(RequestId(i), params_));
    return ok_status();
  }

  engine::RowInputs row(const std::string& walk, int request, const std::vector<std::int32_t>& ids) const {
    engine::RowInputs out{.request = RequestId(static_cast<std::uint64_t>(request)),
                          .params = std::make_shared<decl::RequestParams>(params_),
                          .walk = decl_->find_walk(walk)};
    decl::for_each_run(decl_->at(out.walk).root, [&](const decl::Run& each) { out.run = &each; });
    out.ports = {{HostValue::i32(ids)}};
    return out;
  }
  Drawn drawn(const engine::RowResult& result) const {
    if (result.error || result.outputs.size() < 2) return {};
    const auto vocab = static_cast<std::size_t>(vocab_);
    Drawn out{result.outputs[0][0].host.as<std::int32_t>()[0], std::vector<float>(vocab)};
    const auto pairs = result.outputs[1][0].host.as<float>();
    for (std::size_t i = 1; i <= vocab; ++i) out.log_probs[static_cast<std::size_t>(pairs[2 * i])] = pairs[2 * i + 1];
    return out;
  }

  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  std::unique_ptr<decl::Decl> decl_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  engine::ResourceSet resources_;
  std::unique_ptr<engine::Engine> engine_;
  decl::RequestParams params_;
  int vocab_ = 0;
  int num_parts_ = 0;
};

struct Golden {
  std::vector<std::vector<std::int32_t>> prompts, tokens;
  std::unique_ptr<weights::Checkpoint> arrays;

  explicit Golden(const std::string& name) {
    std::ifstream file(kGolden / name / "greedy.json");
    for (const auto& each : nlohmann::json::parse(file)) {
      prompts.push_back(each["prompt"].get<std::vector<std::int32_t>>());
      tokens.push_back(each["tokens"].get<std::vector<std::int32_t>>());
    }
    auto opened = weights::Checkpoint::open(kGolden / name / "goldens.safetensors");
    EXPECT_TRUE(opened) << opened.error().message;
    arrays = std::move(*opened);
  }
  // Empty when there is no such array.
  std::vector<float> array(const std::string& name) const {
    const weights::StoredWeight* const stored = arrays->find(name);
    if (!stored) return {};
    std::vector<float> out(static_cast<std::size_t>(stored->shape.num_elements()));
    std::memcpy(out.data(), stored->bytes.data(), out.size() * sizeof(float));
    return out;
  }
  std::vector<double> log_probs(std::size_t prompt, std::size_t step) const {
    const std::vector<float> logits = array("logits." + std::to_string(prompt));
    const float* const own = logits.data() + step * kVocab;
    double sum = 0;
    for (int i = 0; i < kVocab; ++i) sum += std::exp(static_cast<double>(own[i]));
    std::vector<double> out;
    for (int i = 0; i < kVocab; ++i) out.push_back(own[i] - std::log(sum));
    return out;
  }
};

template <class A, class B>
double worst_error(const std::vector<A>& got, const std::vector<B>& wanted) {
  if (got.size() != wanted.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = std::max(worst, error / (1 + std::fabs(static_cast<double>(wanted[i]))));
    if (std::isnan(error)) return INFINITY;
  }
  return worst;
}

}  // namespace mstar::models::text_decoder_fixture
