// Requests of every shape in a pool that cannot hold them: each gets the answer that it gets alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "../toys/toy_server.h"
#include "mstar/base/log.h"

namespace mstar::toys {
namespace {

using nlohmann::json;

struct Ask {
  std::vector<double> prompt;
  int max_tokens = 1;
  double temperature = 0;
  std::int64_t seed = 0;
  double repetition_penalty = 1, frequency_penalty = 0;
};

class Model {
 public:
  struct Options {
    std::int64_t kv_tokens = 0;
    bool prefix_cache = true;
  };
  explicit Model(const Options& options) {
    set_log_level("off");
    directory_ = std::filesystem::path(testing::TempDir()) / ("mstar_sequences_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / "config.json") << json{{"model_type", "llama"},    {"vocab_size", 300},
                                                      {"hidden_size", 64},        {"num_hidden_layers", 2},
                                                      {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                                                      {"intermediate_size", 96},  {"max_position_embeddings", 256},
                                                      {"rms_norm_eps", 1e-6},     {"hidden_act", "silu"}};
    apps::RuntimeConfig config;
    apps::ModelConfig& model = config.models.emplace_back();
    model.model = directory_.string();
    model.name = "m";
    model.options.set("load_format", std::string("dummy"));
    model.options.set("kv_tokens", options.kv_tokens);
    model.options.set("prefix_cache", options.prefix_cache);
    config.num_threads = 2;
    config.max_concurrent_requests = 16;
    config.max_step_tokens = 96;
    auto runtime = apps::Runtime::build(std::move(config));
    if (!runtime) ADD_FAILURE() << runtime.error().message;
    if (!runtime) std::abort();
    runtime_ = std::move(*runtime);
  }
  ~Model() { std::filesystem::remove_all(directory_); }

  Result<std::shared_ptr<Ticket>> try_submit(const Ask& ask) {
    decl::ApiRequest request{.route = decl::Route::completions, .model = "m"};
    request.fields.set("prompt_ids", ask.prompt);
    request.fields.set("max_tokens", static_cast<std::int64_t>(ask.max_tokens));
    request.fields.set("temperature", ask.temperature);
    request.fields.set("seed", ask.seed);
    request.fields.set("ignore_eos", true);
    request.fields.set("repetition_penalty", ask.repetition_penalty);
    request.fields.set("frequency_penalty", ask.frequency_penalty);
    auto ticket = std::make_shared<Ticket>();
    auto id = runtime_->frontend().submit(std::move(request), ticket);
    if (!id) return std::move(id.error());
    ticket->id = *id;
    return ticket;
  }
  std::shared_ptr<Ticket> submit(const Ask& ask) {
    auto ticket = try_submit(ask);
    EXPECT_TRUE(ticket) << ticket.error().message;
    return ticket ? *ticket : std::make_shared<Ticket>();
  }
  conductor::Conductor& frontend() { return runtime_->conductor(); }
  // Of the pool of keys and values, once nothing runs any more.
  wire::WorkerStats::Pool rest() {
    wire::WorkerStats::Pool kv;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // numbers of a busy worker are 50 ms old at most
    for (int i = 0; i < 1000; ++i) {
      const std::string text = runtime_->frontend().metrics_text();
      const auto value = [&](const std::string& name) {
        const std::size_t at = text.find("resource=\"decoder.kv\"} ", text.find("\n" + name + "{"));
        return at == text.npos ? -1 : std::stoll(text.substr(text.find("} ", at) + 2));
      };
      kv.used = value("mstar_resource_used");
      kv.total = value("mstar_resource_total");
      kv.cached = value("mstar_cached_pages");
      kv.found_tokens = value("mstar_cached_tokens_total");
      if (kv.used == 0 && text.find("\nmstar_requests_running 0") != text.npos) return kv;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << kv.used << " pages in use";
    return kv;
  }

 private:
  std::filesystem::path directory_;
  std::unique_ptr<apps::Runtime> runtime_;
};

std::vector<Ask> some_asks(int count, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Ask> asks;
  for (int i = 0; i < count; ++i) {
    Ask ask{.max_tokens = 1 + below(60), .temperature = below(2) ? 0.0 : 1.0, .seed = below(1000)};
    const int prefix = below(4) * 30, kind = below(3);
    for (int t = 0; t < prefix; ++t) ask.prompt.push_back((kind * 71 + t * 13) % 256);
    for (int t = 0; t < 1 + below(90); ++t) ask.prompt.push_back(below(256));
    if (below(3) == 0) ask.repetition_penalty = 1.3;
    if (below(3) == 0) ask.frequency_penalty = 0.7;
    asks.push_back(std::move(ask));
  }
  return asks;
}

TEST(SequencesOfARuntime, TheSameAnswersInATinyPoolAsAlone) {
  const auto asks = some_asks(30, 1);
  std::vector<Answer> alone;
  {
    Model model(Model::Options{.prefix_cache = false});
    for (const Ask& ask : asks) {
      alone.push_back(model.submit(ask)->wait());
      ASSERT_TRUE(alone.back().ok()) << alone.back().message;
      ASSERT_EQ(alone.back().completion_tokens, ask.max_tokens);
    }
    EXPECT_EQ(model.rest().cached, 0);
  }
  std::int64_t found = 0;
  for (const int kv_tokens : {256, 400, 4096}) {
    Model model(Model::Options{.kv_tokens = kv_tokens});
    for (unsigned round = 0; round < 2; ++round) {
      std::mt19937 random(round);
      std::vector<std::size_t> order(asks.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Ticket>> tickets(asks.size());
      std::vector<bool> dropped(asks.size());
      for (const std::size_t i : order) {
        tickets[i] = model.submit(asks[i]);
        dropped[i] = random() % 6 == 0;
      }
      for (const std::size_t i : order)
        if (dropped[i]) model.frontend().abort(tickets[i]->id);
      for (std::size_t i = 0; i < asks.size(); ++i) {
        const Answer got = tickets[i]->wait();
        if (dropped[i]) continue;
        ASSERT_TRUE(got.ok()) << got.message;
        EXPECT_EQ(got.chunks, alone[i].chunks) << "request " << i << ", " << kv_tokens << " tokens";
        EXPECT_EQ(got.completion_tokens, asks[i].max_tokens);
      }
      const auto kv = model.rest();
      EXPECT_EQ(kv.total, (kv_tokens + 15) / 16);
      EXPECT_LE(kv.cached, kv.total);
      found += kv.found_tokens;
    }
  }
  EXPECT_GT(found, 100);
}

TEST(SequencesOfARuntime, ManyChoicesOfOnePromptShareIt) {
  Model model(Model::Options{});
  Ask ask{.max_tokens = 8, .temperature = 1};
  for (int t = 0; t < 100; ++t) ask.prompt.push_back(t * 7 % 256);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (ask.seed = 0; ask.seed < 6; ++ask.seed) tickets.push_back(model.submit(ask));
  std::int64_t cached = 0, num_whole = 0;
  for (const auto& ticket : tickets) {
    ASSERT_TRUE(ticket->wait().ok());
    EXPECT_EQ(ticket->finished->usage.prompt_tokens, 100);
    cached += ticket->finished->usage.cached_tokens;
    num_whole += ticket->finished->usage.cached_tokens == 0;
  }
  EXPECT_EQ(num_whole, 1);
  EXPECT_EQ(cached, 5 * 96);
  EXPECT_EQ(model.rest().found_tokens, 5 * 96);
}

TEST(SequencesOfARuntime, WhatCannotRunAloneIsRefused) {
  Model model(Model::Options{.kv_tokens = 64});
  Ask ask{.max_tokens = 80};
  for (int t = 0; t < 20; ++t) ask.prompt.push_back(t);
  const auto refused = model.try_submit(ask);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid_request);
  EXPECT_EQ(refused.error().field, "prompt");
  EXPECT_NE(refused.error().message.find("must fit into 64"), std::string::npos) << refused.error().message;
  ask.max_tokens = 30;
  EXPECT_TRUE(model.submit(ask)->wait().ok());
  EXPECT_EQ(model.rest().used, 0);
}

}  // namespace
}  // namespace mstar::toys
