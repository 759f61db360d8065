// Decoder language models against golden values of transformers: very small random models through the engine, logits,
// greedy tokens and recurrent states (tools/golden/seeded_decoders.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/engine.h"
#include "mstar/models/model.h"
#include "mstar/resource/state_slots.h"

namespace mstar::models {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/decoders";
constexpr int kVocab = 264, kNumPrompts = 4, kMaxTokens = 40;
// Of logits and states: |got - wanted| <= kTolerance * (1 + |wanted|).
constexpr double kTolerance = 1e-4;

// What one row of a step gave.
struct Drawn {
  std::int32_t token = 0;
  std::vector<float> log_probs;  // by id
};

// A checkpoint as an engine on the CPU, with requests 1 to 4 added.
class Model {
 public:
  explicit Model(const fs::path& path, const Params& options = {}, int num_threads = 2, int step_tokens = 256)
      : pool_(num_threads) {
    auto opened = weights::Checkpoint::open(path);
    EXPECT_TRUE(opened) << opened.error().message;
    checkpoint_ = std::move(*opened);
    const ModelSource source{.name = "seeded",
                             .directory = fs::is_directory(path) ? path : path.parent_path(),
                             .checkpoint = checkpoint_,
                             .options = options};
    const auto family = find_family(source);
    EXPECT_TRUE(family) << family.error().message;
    auto declared = (*family)->declare(source);
    EXPECT_TRUE(declared) << declared.error().message;
    decl_ = std::make_unique<decl::Decl>(std::move(*declared));
    EXPECT_EQ(decl_->validate(), std::vector<std::string>{});
    device_ = make_cpu_device();
    auto map = weights::WeightMap::create(checkpoint_, decl_->weight_rules());
    EXPECT_TRUE(map) << map.error().message;
    const resource::PoolLimits limits{
        .max_requests = kNumPrompts, .max_rows = kNumPrompts, .max_tokens = step_tokens, .promised_answer_tokens = 1};
    const decl::ComponentRef component[] = {decl_->find_component("decoder")};
    auto resources = engine::ResourceSet::build(*decl_, component, limits, *device_);
    EXPECT_TRUE(resources) << resources.error().message;
    resources_ = std::move(*resources);
    auto made =
        engine::Engine::create(*decl_, component[0], {limits, std::make_shared<engine::BufferPool>(*device_), &pool_},
                               resources_, *map, *device_);
    EXPECT_TRUE(made) << made.error().message;
    engine_ = std::move(*made);
    const Status finished = map->finish();
    EXPECT_TRUE(finished) << finished.error().message;
    params_.sampling.num_logprobs = kVocab;
    params_.sampling.max_tokens = kMaxTokens;
    for (std::uint64_t i = 1; i <= kNumPrompts; ++i) EXPECT_TRUE(resources_.add_request(RequestId(i), params_));
  }

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
  engine::RowInputs row(const std::string& walk, int request, const std::vector<std::int32_t>& ids) const {
    engine::RowInputs out{.request = RequestId(static_cast<std::uint64_t>(request)),
                          .params = std::make_shared<decl::RequestParams>(params_),
                          .walk = decl_->find_walk(walk)};
    decl::for_each_run(decl_->at(out.walk).root, [&](const decl::Run& each) { out.run = &each; });
    out.ports = {{HostValue::i32(ids)}};
    return out;
  }
  static Drawn drawn(const engine::RowResult& result) {
    if (result.error || result.outputs.size() < 2) return {};
    Drawn out{result.outputs[0][0].host.as<std::int32_t>()[0], std::vector<float>(kVocab)};
    const auto pairs = result.outputs[1][0].host.as<float>();
    for (std::size_t i = 1; i <= kVocab; ++i) out.log_probs[static_cast<std::size_t>(pairs[2 * i])] = pairs[2 * i + 1];
    return out;
  }

  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  std::unique_ptr<decl::Decl> decl_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  engine::ResourceSet resources_;
  std::unique_ptr<engine::Engine> engine_;
  decl::RequestParams params_;
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

struct Case {
  const char* name;  // of the golden's directory
  const char* file;  // in it; empty: the directory as a checkpoint
  const char* weights = "stored";
};

class TextDecoderGolden : public testing::TestWithParam<Case> {
 protected:
  static Params options() {
    Params out;
    out.set("weights", std::string(GetParam().weights));
    return out;
  }
  static fs::path path() {
    const fs::path directory = kGolden / GetParam().name;
    return *GetParam().file ? directory / GetParam().file : directory;
  }
};

// The four prompts are rows of one batch, so that rows of 1, 3, 70 and 37 tokens lie side by side.
TEST_P(TextDecoderGolden, LogitsTokensAndStatesEqualTheReference) {
  const Golden golden(GetParam().name);
  Model model(path(), options());
  std::vector<std::pair<int, std::vector<std::int32_t>>> ids;
  for (std::size_t p = 0; p < golden.prompts.size(); ++p) ids.push_back({static_cast<int>(p) + 1, golden.prompts[p]});
  double worst = 0, worst_state = 0;
  for (std::size_t s = 0; s < golden.tokens[0].size(); ++s) {
    const auto drawn = model.step(s == 0 ? "prefill" : "decode", ids);
    for (std::size_t p = 0; p < ids.size(); ++p) {
      ASSERT_EQ(drawn[p].token, golden.tokens[p][s]) << "prompt " << p << " step " << s;
      worst = std::max(worst, worst_error(drawn[p].log_probs, golden.log_probs(p, s)));
      ids[p].second = {drawn[p].token};
      const std::string key = "." + std::to_string(p) + "." + std::to_string(s);
      const std::vector<float> conv = golden.array("conv" + key), rule = golden.array("rule" + key);
      if (conv.empty() || *GetParam().file) continue;  // a GGUF file has the value heads in another order
      worst_state = std::max(worst_state, worst_error(model.state(static_cast<int>(p) + 1, 0), conv));
      worst_state = std::max(worst_state, worst_error(model.state(static_cast<int>(p) + 1, 1), rule));
    }
  }
  EXPECT_LT(worst, kTolerance);
  EXPECT_LT(worst_state, kTolerance);
  RecordProperty("worst_error", std::to_string(worst));
  RecordProperty("worst_state_error", std::to_string(worst_state));
}

// A prompt in parts gives the bits of the whole, and so does a row among others.
TEST_P(TextDecoderGolden, BitsDependNeitherOnPartsNorOnTheBatch) {
  const Golden golden(GetParam().name);
  Model together(path(), options()), alone(path(), options(), 1);
  const auto& prompt = golden.prompts[2];
  const auto whole = together.step("prefill", {{1, golden.prompts[3]}, {2, prompt}, {3, golden.prompts[0]}});
  Drawn last;
  auto at = prompt.begin();
  for (const int count : {1, 2, 16, 33, 18}) {
    last = alone.step("prefill", {{1, {at, at + count}}})[0];
    at += count;
  }
  ASSERT_EQ(at, prompt.end());
  EXPECT_EQ(last.token, whole[1].token);
  EXPECT_EQ(last.log_probs, whole[1].log_probs);
  for (const int index : {0, 1}) EXPECT_EQ(alone.state(1, index), together.state(2, index));
}

// Prompts in parts, and pages that are too few for all: the youngest lose theirs and are computed again, recurrent
// states too.
TEST_P(TextDecoderGolden, PreemptedRequestsGetTheTokensOfThoseThatAreNot) {
  const Golden golden(GetParam().name);
  Params few_pages = options();
  few_pages.set("kv_tokens", std::int64_t{9 * 16});
  Model roomy(path(), options(), 1), tight(path(), few_pages, 1, 32);
  const std::vector<std::vector<std::int32_t>> prompts = {golden.prompts[3], golden.prompts[2], golden.prompts[0],
                                                          golden.prompts[1]};
  const auto wanted = roomy.generate(prompts, kMaxTokens);
  const auto got = tight.generate(prompts, kMaxTokens);
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(std::vector(got[1].begin(), got[1].begin() + 12), golden.tokens[2]);
  EXPECT_EQ(roomy.num_parts(), 0);
  EXPECT_GT(tight.num_parts(), 2);
  EXPECT_EQ(roomy.kv().num_preempted, 0);
  EXPECT_GT(tight.kv().num_preempted, 1);
}

// Found pages, and beside them snapshots of recurrent states where there are any: the bits of what is computed.
TEST_P(TextDecoderGolden, PromptsThatGoOnFromTheCacheGetTheTokensOfThoseThatDoNot) {
  const Golden golden(GetParam().name);
  Params cached = options(), uncached = options();
  cached.set("snapshot_tokens", std::int64_t{32});
  cached.set("state_snapshots", std::int64_t{8});
  uncached.set("prefix_cache", false);
  Model with(path(), cached, 2, 48), without(path(), uncached, 1);
  auto longer = golden.prompts[2];
  longer.insert(longer.end(), golden.prompts[0].begin(), golden.prompts[0].end());
  longer.insert(longer.end(), golden.prompts[1].begin(), golden.prompts[1].end());
  const std::vector<std::vector<std::int32_t>> prompts = {golden.prompts[2], longer, golden.prompts[2],
                                                          golden.prompts[3]};
  const auto wanted = without.generate(prompts, kMaxTokens);
  for (int turn = 0; turn < 3; ++turn) {
    const auto before = with.kv().found_tokens;
    EXPECT_EQ(with.generate(prompts, kMaxTokens), wanted);
    // A prompt of 70 tokens goes on from 48 at least, and without a state from 64.
    EXPECT_GE(with.kv().found_tokens - before, turn == 0 ? 48 : 3 * 48) << turn;
    for (int i = 1; i <= kNumPrompts; ++i) with.add_again(i);
  }
  EXPECT_EQ(without.kv().found_tokens, 0);
  EXPECT_EQ(with.kv().num_snapshots > 3, std::string(GetParam().name).starts_with("qwen35"));
}

INSTANTIATE_TEST_SUITE_P(Seeded, TextDecoderGolden,
                         testing::Values(Case{"llama", ""}, Case{"qwen2", ""}, Case{"qwen3", ""}, Case{"qwen35", ""},
                                         Case{"qwen35", "", "f32"}, Case{"qwen35", "model.gguf"},
                                         Case{"qwen35_tied", ""}),
                         [](const auto& each) {
                           return std::string(each.param.name) + (*each.param.file ? "_gguf_" : "_") +
                                  each.param.weights;
                         });

// States kept in 16 bits cost some digits, not more.
TEST(TextDecoderGoldenStates, HalfStatesStayClose) {
  const Golden golden("qwen35");
  Params options;
  options.set("state", std::string("bf16"));
  Model model(kGolden / "qwen35", options);
  const auto drawn = model.step("prefill", {{1, golden.prompts[2]}});
  EXPECT_LT(worst_error(drawn[0].log_probs, golden.log_probs(2, 0)), 0.1);
  EXPECT_GT(worst_error(drawn[0].log_probs, golden.log_probs(2, 0)), kTolerance);
}

}  // namespace
}  // namespace mstar::models
