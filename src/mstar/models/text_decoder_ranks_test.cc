// Decoders cut over ranks that are threads: what one rank alone gives, from every rank the same bits.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "mstar/device/cpu/thread_communicator.h"
#include "mstar/device/rank_mesh.h"
#include "mstar/models/text_decoder_fixture.h"

namespace mstar::models {
namespace {

using namespace text_decoder_fixture;

// Of log-probabilities: |got - wanted| <= kTolerance * (1 + |wanted|). Only the order of f32 sums differs.
constexpr double kTolerance = 2e-5;

using Steps = std::vector<std::vector<Drawn>>;  // by step, by prompt

void on_mesh(MeshSize size, const std::function<void(const MeshEnds&, int rank)>& body) {
  const RankMesh mesh = RankMesh::of_threads(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size.num_ranks(); ++rank) threads.emplace_back([&, rank] { body(mesh.ends(rank), rank); });
  for (std::thread& each : threads) each.join();
}

void on_ranks(int size, const std::function<void(Communicator&)>& body) {
  on_mesh({.tensor = size}, [&](const MeshEnds& ends, int) { body(*ends.all); });
}

// The prompts as rows of one batch, then decode steps with the wanted tokens.
Steps run(Model& model, const std::vector<std::vector<std::int32_t>>& prompts,
          const std::vector<std::vector<std::int32_t>>& tokens, std::size_t num_steps) {
  Steps out;
  std::vector<std::pair<int, std::vector<std::int32_t>>> ids;
  for (std::size_t p = 0; p < prompts.size(); ++p) ids.push_back({static_cast<int>(p) + 1, prompts[p]});
  for (std::size_t s = 0; s < num_steps; ++s) {
    out.push_back(model.step(s == 0 ? "prefill" : "decode", ids));
    for (std::size_t p = 0; p < ids.size() && s + 1 < num_steps; ++p) ids[p].second = {tokens[p][s]};
  }
  return out;
}

void expect_close(const Steps& got, const Steps& wanted, double tolerance) {
  double worst = 0;
  for (std::size_t s = 0; s < wanted.size(); ++s)
    for (std::size_t p = 0; p < wanted[s].size(); ++p) {
      EXPECT_EQ(got[s][p].token, wanted[s][p].token) << "step " << s << " prompt " << p;
      worst = std::max(worst, worst_error(got[s][p].log_probs, wanted[s][p].log_probs));
    }
  EXPECT_LT(worst, tolerance);
  testing::Test::RecordProperty("worst_error", std::to_string(worst));
}

void expect_same_bits(const std::vector<Steps>& ranks) {
  for (const Steps& each : ranks) {
    ASSERT_EQ(each.size(), ranks[0].size());
    for (std::size_t s = 0; s < each.size(); ++s)
      for (std::size_t p = 0; p < each[s].size(); ++p) {
        EXPECT_EQ(each[s][p].token, ranks[0][s][p].token);
        EXPECT_EQ(each[s][p].log_probs, ranks[0][s][p].log_probs) << "step " << s << " prompt " << p;
      }
  }
}

struct Case {
  const char* name;
  const char* file;
  MeshSize mesh;
  const char* weights = "stored";
  double tolerance = kTolerance;
};

constexpr MeshSize kTp2{.tensor = 2}, kSp2{.sequence = 2};

class TextDecoderRanks : public testing::TestWithParam<Case> {
 protected:
  fs::path path() const {
    const fs::path directory = kGolden / GetParam().name;
    return *GetParam().file ? directory / GetParam().file : directory;
  }
  Params options() const {
    Params out;
    out.set("weights", std::string(GetParam().weights));
    return out;
  }
};

TEST_P(TextDecoderRanks, GiveWhatOneGivesAlone) {
  const Golden golden(GetParam().name);
  Model alone(path(), options());
  const Steps wanted = run(alone, golden.prompts, golden.tokens, golden.tokens[0].size());
  const MeshSize mesh = GetParam().mesh;
  std::vector<Steps> got(static_cast<std::size_t>(mesh.num_ranks()));
  std::vector<std::size_t> weight_bytes(got.size()), kv_bytes(got.size());
  on_mesh(mesh, [&](const MeshEnds& ends, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    Model model(path(), options(), 1, 256, ends);
    got[at] = run(model, golden.prompts, golden.tokens, golden.tokens[0].size());
    weight_bytes[at] = model.engine().weight_bytes();
    kv_bytes[at] = model.kv().bytes;
  });
  expect_same_bits(got);
  expect_close(got[0], wanted, GetParam().tolerance);
  // Rows that are split are computed as they were: no sum has another order.
  if (mesh.tensor == 1) expect_same_bits({wanted, got[0]});
  // Norms and what heads share are whole, and rows are kept in panels of 32.
  const auto num_ranks = static_cast<double>(mesh.tensor);
  for (const std::size_t bytes : weight_bytes) {
    EXPECT_LT(static_cast<double>(bytes), 1.35 * static_cast<double>(alone.engine().weight_bytes()) / num_ranks);
    EXPECT_GT(static_cast<double>(bytes), 0.99 * static_cast<double>(alone.engine().weight_bytes()) / num_ranks);
  }
  for (const std::size_t bytes : kv_bytes) EXPECT_EQ(bytes * got.size(), alone.kv().bytes);
}

// Prompts in parts, pages that are too few, found prefixes: every rank takes the same turns and draws the same text.
TEST_P(TextDecoderRanks, GenerateTheTextOfOneAlone) {
  const Golden golden(GetParam().name);
  Params few_pages = options();
  few_pages.set("kv_tokens", std::int64_t{9 * 16});
  const std::vector<std::vector<std::int32_t>> prompts = {golden.prompts[3], golden.prompts[2], golden.prompts[0],
                                                          golden.prompts[1]};
  Model alone(path(), options(), 1);
  const auto wanted = alone.generate(prompts, 12);
  on_mesh(GetParam().mesh, [&](const MeshEnds& ends, int) {
    Model tight(path(), few_pages, 1, 32, ends);
    EXPECT_EQ(tight.generate(prompts, 12), wanted);
    EXPECT_GT(tight.num_parts(), 2);
    EXPECT_EQ(tight.kv().used, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Seeded, TextDecoderRanks,
                         testing::Values(Case{"llama", "", kTp2}, Case{"qwen2", "", kTp2}, Case{"qwen3", "", kTp2},
                                         Case{"qwen35", "", kTp2}, Case{"qwen35_tied", "", kTp2},
                                         Case{"qwen35", "model.gguf", kTp2}, Case{"llama", "", kTp2, "bf16"},
                                         Case{"llama", "", kSp2}, Case{"qwen3", "", kSp2}, Case{"qwen35", "", kSp2},
                                         Case{"qwen35", "model.gguf", kSp2}, Case{"llama", "", kSp2, "bf16"}),
                         [](const auto& each) {
                           return std::string(each.param.name) + (*each.param.file ? "_gguf_" : "_") +
                                  each.param.weights + (each.param.mesh.sequence > 1 ? "_sp" : "_tp");
                         });

// Models whose directories hold a config.json alone.
class DummyRanks : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) /
                 ("mstar_ranks_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::create_directories(directory_);
    options_.set("load_format", std::string("dummy"));
    options_.set("context_tokens", std::int64_t{64});
  }
  void TearDown() override { fs::remove_all(directory_); }

  nlohmann::json llama(int heads, int kv_heads, int ffn_dim, int vocab) {
    return {{"model_type", "llama"},
            {"vocab_size", vocab},
            {"hidden_size", 64},
            {"num_hidden_layers", 2},
            {"head_dim", 16},
            {"num_attention_heads", heads},
            {"rms_norm_eps", 1e-6},
            {"num_key_value_heads", kv_heads},
            {"rope_theta", 10000.0},
            {"intermediate_size", ffn_dim},
            {"hidden_act", "silu"},
            {"max_position_embeddings", 64},
            {"tie_word_embeddings", false}};
  }
  nlohmann::json qwen35(int key_heads, int heads) {
    return {{"model_type", "qwen3_5_text"},
            {"vocab_size", 263},
            {"hidden_size", 64},
            {"num_hidden_layers", 4},
            {"head_dim", 32},
            {"num_attention_heads", 8},
            {"num_key_value_heads", 2},
            {"linear_num_key_heads", key_heads},
            {"linear_num_value_heads", heads},
            {"linear_key_head_dim", 16},
            {"linear_value_head_dim", 16},
            {"linear_conv_kernel_dim", 4},
            {"rms_norm_eps", 1e-6},
            {"intermediate_size", 80},
            {"hidden_act", "silu"},
            {"max_position_embeddings", 64},
            {"tie_word_embeddings", true}};
  }
  void write(const nlohmann::json& config) const { std::ofstream(directory_ / "config.json") << config.dump(); }

  // Together more than eight tokens for each rank.
  void expect_ranks_give_what_one_gives(MeshSize mesh) {
    std::vector<std::vector<std::int32_t>> prompts = {{1, 2, 3, 4, 5, 6, 7}, {200}, {9, 10, 262}};
    for (int i = 0; i < 30; ++i) prompts[0].push_back(7 + 5 * i);
    const std::vector<std::vector<std::int32_t>> tokens = {{5, 100, 7}, {0, 1, 2}, {262, 131, 132}};
    Model alone(directory_, options_);
    const Steps wanted = run(alone, prompts, tokens, 4);
    std::vector<Steps> got(static_cast<std::size_t>(mesh.num_ranks()));
    on_mesh(mesh, [&](const MeshEnds& ends, int rank) {
      Model model(directory_, options_, 1, 256, ends);
      got[static_cast<std::size_t>(rank)] = run(model, prompts, tokens, 4);
      for (int request = 1; request <= kNumPrompts; ++request) model.remove(request);
      EXPECT_EQ(model.kv().used, 0);
    });
    expect_same_bits(got);
    // Dummy weights hardly tell ids apart, so that a tie may fall otherwise; the logits tell.
    double worst = 0;
    for (std::size_t s = 0; s < wanted.size(); ++s)
      for (std::size_t p = 0; p < wanted[s].size(); ++p)
        worst = std::max(worst, worst_error(got[0][s][p].log_probs, wanted[s][p].log_probs));
    EXPECT_LT(worst, kTolerance);
  }

  // On every rank of a group; no rank waits for another.
  void expect_fault(int num_ranks, const std::string& part) { expect_fault({.tensor = num_ranks}, part); }
  void expect_fault(MeshSize mesh, const std::string& part) {
    on_mesh(mesh, [&](const MeshEnds& ends, int) {
      const Status fault = Model::fault(directory_, options_, ends);
      ASSERT_FALSE(fault);
      EXPECT_EQ(fault.error().code, Code::bad_model);
      EXPECT_NE(fault.error().message.find(part), std::string::npos) << fault.error().message;
    });
  }

  fs::path directory_;
  Params options_;
};

// 263 ids over four ranks: 66, 66, 66 and 65. Two key heads over four: each is held by two.
TEST_F(DummyRanks, FewKeyHeadsAreHeldBySeveralAndTheLastPartOfAVocabularyIsShorter) {
  write(llama(8, 2, 80, 263));
  expect_ranks_give_what_one_gives({.tensor = 4});
}

TEST_F(DummyRanks, ThreeRanks) {
  write(llama(6, 3, 96, 263));
  expect_ranks_give_what_one_gives({.tensor = 3});
  expect_ranks_give_what_one_gives({.sequence = 3});
}

TEST_F(DummyRanks, DeltaNetsOverFourRanks) {
  write(qwen35(4, 8));
  expect_ranks_give_what_one_gives({.tensor = 4});
  expect_ranks_give_what_one_gives({.sequence = 4});
}

// Parts of the weights on two ranks each, and two that have parts of the rows: four ranks hold different heads.
TEST_F(DummyRanks, MeshesOfTwoByTwo) {
  write(llama(8, 2, 80, 263));
  expect_ranks_give_what_one_gives({2, 2});
  write(llama(8, 4, 80, 263));
  expect_ranks_give_what_one_gives({2, 2});
  write(qwen35(4, 8));
  expect_ranks_give_what_one_gives({2, 2});
}

// Counts what goes through it.
struct CountingCommunicator final : Communicator {
  explicit CountingCommunicator(Communicator& to) : to_(to) {}
  int rank() const override { return to_.rank(); }
  int size() const override { return to_.size(); }
  Status all_reduce(void* data, std::size_t count, DType dtype, Stream stream) override {
    return to_.all_reduce(data, count, dtype, stream);
  }
  Status all_gather(const void* from, void* to, std::size_t bytes, Stream stream) override {
    ++num_gathers;
    return to_.all_gather(from, to, bytes, stream);
  }
  Status all_to_all(const void* from, void* to, std::size_t bytes, Stream stream) override {
    ++num_exchanges;
    return to_.all_to_all(from, to, bytes, stream);
  }
  Status broadcast(void* data, std::size_t bytes, int root, Stream stream) override {
    return to_.broadcast(data, bytes, root, stream);
  }
  void abort(std::string reason) override { to_.abort(std::move(reason)); }
  Status failure() const override { return to_.failure(); }
  int num_exchanges = 0, num_gathers = 0;

 private:
  Communicator& to_;
};

// Two exchanges a layer of 16 rows and one gather behind them; of 15 rows a gather a layer.
TEST_F(DummyRanks, LongPromptsAreSplitAndFewRowsAreNot) {
  write(llama(4, 2, 80, 263));
  on_mesh({.sequence = 2}, [&](const MeshEnds& ends, int) {
    CountingCommunicator counting(*ends.sequence);
    Model model(directory_, options_, 1, 256, {ends.all, nullptr, &counting});
    const std::vector<std::int32_t> longer(16, 3), shorter(15, 3);
    model.step("prefill", {{1, longer}});
    EXPECT_EQ(counting.num_exchanges, 4);
    EXPECT_EQ(counting.num_gathers, 1);
    model.step("prefill", {{2, shorter}});
    EXPECT_EQ(counting.num_exchanges, 4);
    EXPECT_EQ(counting.num_gathers, 3);
  });
}

// In the middle of a group's exchanges, with ranks of another row and another column of the mesh.
TEST_F(DummyRanks, AForwardThatFailsOnOneRankOfAMeshFailsOnAll) {
  write(llama(8, 4, 80, 263));
  on_mesh({2, 2}, [&](const MeshEnds& ends, int rank) {
    Model model(directory_, options_, 1, 256, ends);
    float barrier = 0;
    ASSERT_TRUE(ends.all->all_reduce(&barrier, 1, DType::f32, {}));
    std::vector<std::int32_t> ids(20, 3);
    if (rank == 1) ids[2] = 4000;
    const auto failed = model.failed_step("prefill", 1, ids);
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->code, rank == 1 ? Code::invalid_request : Code::unavailable) << failed->message;
    EXPECT_EQ(model.kv().used, 0);
    EXPECT_FALSE(ends.failure());
  });
}

TEST_F(DummyRanks, WhatDoesNotDivideIsSaid) {
  write(llama(9, 3, 80, 263));
  expect_fault(2, "3 heads do not divide over 2 ranks");
  write(llama(9, 1, 80, 263));
  expect_fault(2, "9 query heads do not divide over 2 ranks");
  write(llama(6, 3, 80, 263));
  expect_fault(3, "80 units of the feed-forward do not divide over 3 ranks");
  write(qwen35(2, 4));
  expect_fault(4, "do not divide over 4 ranks");
  write(llama(6, 3, 96, 263));
  expect_fault({.sequence = 2}, "3 heads do not divide over 2 ranks");
  write(llama(6, 1, 96, 263));
  expect_fault({2, 2}, "3 query heads do not divide over 2 ranks");
}

// 263 ids in parts of 2 are 132 parts.
TEST_F(DummyRanks, AVocabularyThatLeavesARankWithoutAPartIsRefused) {
  write(llama(8, 1, 80, 263));
  const auto group = make_thread_group(200);
  const Status fault = Model::fault(directory_, options_, group[132].get());
  ASSERT_FALSE(fault);
  EXPECT_NE(fault.error().message.find("a vocabulary of 263 leaves rank 132 of 200 without a part"), std::string::npos)
      << fault.error().message;
}

// Its forward failed before the first sum; the other is told, and what comes later is refused.
TEST_F(DummyRanks, AForwardThatFailsOnOneRankFailsOnAll) {
  write(llama(4, 2, 80, 263));
  on_ranks(2, [&](Communicator& end) {
    Model model(directory_, options_, 1, 256, &end);
    float barrier = 0;
    ASSERT_TRUE(end.all_reduce(&barrier, 1, DType::f32, {}));
    const auto first = model.failed_step("prefill", 1, {1, end.rank() == 1 ? 4000 : 2});
    ASSERT_TRUE(first);
    EXPECT_EQ(first->code, end.rank() == 1 ? Code::invalid_request : Code::unavailable) << first->message;
    EXPECT_NE(first->message.find(end.rank() == 0 ? "failed on rank 1: token id 4000" : "token id 4000"),
              std::string::npos);
    const auto second = model.failed_step("prefill", 2, {1, 2});
    ASSERT_TRUE(second);
    EXPECT_EQ(second->code, Code::unavailable);
    EXPECT_EQ(model.kv().used, 0);
  });
}

}  // namespace
}  // namespace mstar::models
