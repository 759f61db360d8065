// Whisper cut over ranks that are threads: what one rank alone gives, from every rank the same bits.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "mstar/device/cpu/thread_communicator.h"
#include "mstar/device/rank_mesh.h"
#include "mstar/models/whisper/whisper_seeded_fixture.h"

namespace mstar::models {
namespace {

using namespace whisper_fixture;

constexpr double kTolerance = 2e-5;
constexpr int kEncoder = 0, kCross = 1, kDecoder = 2;

void on_ranks(int size, const std::function<void(Communicator&)>& body) {
  auto group = make_thread_group(size);
  std::vector<std::thread> threads;
  for (auto& each : group) threads.emplace_back([&body, end = each.get()] { body(*end); });
  for (std::thread& each : threads) each.join();
}

// What one window gives: states, cross keys and values, tokens with their log-probabilities, languages.
struct Heard {
  std::vector<float> states;
  std::vector<std::vector<float>> cross;  // by layer, keys before values: [heads, positions, head_dim]
  std::vector<std::int32_t> tokens;
  std::vector<float> scores, languages;
  float no_speech = 0;
  std::size_t weight_bytes[3] = {};
  std::int64_t num_used = -1;
};

std::vector<float> floats_of(const Value& value) {
  const auto host = value.to_host();
  EXPECT_TRUE(host);
  if (!host) return {};
  const auto values = host->as<float>();
  return {values.begin(), values.end()};
}

Heard hear(Seeded& model, const std::vector<std::int32_t>& prompt, std::size_t num_tokens) {
  Heard out;
  auto ports = weights::Checkpoint::open(kGolden / "ports.safetensors");
  EXPECT_TRUE(ports);
  const auto states = model.run(kEncoder, "listen", {{golden_port(**ports, "mel")}});
  out.states = floats_of(states[0][0]);
  const auto context = model.run(kCross, "listen", {{states[0][0]}});
  EXPECT_EQ(context[0][0].host.as<std::int32_t>()[0], 50);
  for (int layer = 0; layer < 2; ++layer)
    for (const bool values : {false, true}) out.cross.push_back(model.cross(layer, values, 50));
  auto drawn = model.run(kDecoder, "prompt", {{HostValue::i32(prompt)}});
  out.no_speech = drawn[2][0].host.as<float>()[0];
  for (;;) {
    out.tokens.push_back(drawn[0][0].host.as<std::int32_t>()[0]);
    out.scores.push_back(drawn[1][0].host.as<float>()[0]);
    if (out.tokens.size() == num_tokens) break;
    drawn = model.run(kDecoder, "decode", {{drawn[0][0]}});
  }
  const std::int32_t sot[1] = {451};
  out.languages = floats_of(model.run(kDecoder, "detect", {{}, {HostValue::i32(sot)}})[0][0]);
  for (int which : {kEncoder, kCross, kDecoder}) out.weight_bytes[which] = model.weight_bytes(which);
  out.num_used = model.num_used_after();
  return out;
}

double worst_error(const std::vector<float>& got, const std::vector<float>& wanted) {
  if (got.size() != wanted.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = std::max(
        worst, std::fabs(static_cast<double>(got[i]) - wanted[i]) / (1 + std::fabs(static_cast<double>(wanted[i]))));
  return worst;
}

// The rank's heads of all.
std::vector<float> own_heads(const std::vector<float>& whole, Ranks ranks) {
  const auto own = static_cast<std::ptrdiff_t>(whole.size()) / ranks.size;
  return {whole.begin() + own * ranks.rank, whole.begin() + own * (ranks.rank + 1)};
}

void expect_what_one_gives(const std::string& format, MeshSize mesh_size) {
  std::ifstream file(kGolden / "greedy.json");
  const auto greedy = nlohmann::json::parse(file)["float"]["plain"];
  const auto prompt = greedy["prompt"].get<std::vector<std::int32_t>>();
  const auto tokens = greedy["tokens"].get<std::vector<std::int32_t>>();
  Seeded alone(format, "stored");
  const Heard wanted = hear(alone, prompt, tokens.size());
  EXPECT_EQ(wanted.tokens, tokens);
  Heard got[2];
  const RankMesh mesh = RankMesh::of_threads(mesh_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Seeded model(format, "stored", mesh.ends(rank));
      got[rank] = hear(model, prompt, tokens.size());
    });
  for (std::thread& each : threads) each.join();
  for (const Heard& each : got) {
    EXPECT_EQ(each.states, got[0].states);
    EXPECT_EQ(each.scores, got[0].scores);
    EXPECT_EQ(each.languages, got[0].languages);
    EXPECT_EQ(each.tokens, tokens);
    EXPECT_EQ(each.num_used, 0);
  }
  EXPECT_LT(worst_error(got[0].states, wanted.states), kTolerance);
  // Positions that are split are computed as they were.
  if (mesh_size.tensor == 1) {
    EXPECT_EQ(got[0].states, wanted.states);
  }
  EXPECT_LT(worst_error(got[0].scores, wanted.scores), kTolerance);
  EXPECT_LT(worst_error(got[0].languages, wanted.languages), kTolerance);
  EXPECT_LT(worst_error({got[0].no_speech}, {wanted.no_speech}), kTolerance);
  for (int rank = 0; rank < 2; ++rank)
    for (std::size_t i = 0; i < wanted.cross.size(); ++i)
      EXPECT_LT(worst_error(got[rank].cross[i], own_heads(wanted.cross[i], {rank, 2})), kTolerance) << rank << i;
}

class WhisperRanks : public testing::TestWithParam<const char*> {};

TEST_P(WhisperRanks, GiveWhatOneGivesAlone) { expect_what_one_gives(GetParam(), {.tensor = 2}); }

// The encoder's positions are split; what has no sequence of its own is cut over both ranks.
TEST_P(WhisperRanks, GiveItWhereTheySplitTheEncodersPositions) { expect_what_one_gives(GetParam(), {.sequence = 2}); }

// The stem, positions and norms are whole on each rank; all else is halved.
TEST_P(WhisperRanks, EachReadsItsPartOfTheWeights) {
  Seeded alone(GetParam(), "stored");
  std::size_t bytes[2][3] = {};
  on_ranks(2, [&](Communicator& end) {
    Seeded model(GetParam(), "stored", &end);
    for (int which : {kEncoder, kCross, kDecoder}) bytes[end.rank()][which] = model.weight_bytes(which);
  });
  constexpr std::size_t kElement = 4;
  // In 32-bit numbers whatever the matrices are kept in, but for the stem's two.
  const std::size_t stem = (64 * 80 * 3 + 64 * 64 * 3) * kElement, encoder_positions = 50 * 64 * kElement;
  const std::size_t decoder_positions = 64 * 64 * kElement;
  const std::size_t whole[3] = {stem + encoder_positions, 0, decoder_positions};
  for (const auto& own : bytes)
    for (int which : {kEncoder, kCross, kDecoder}) {
      const std::size_t cut = alone.weight_bytes(which) - whole[which];
      EXPECT_GE(own[which], whole[which] + cut / 2) << which;
      EXPECT_LT(static_cast<double>(own[which]),
                static_cast<double>(whole[which]) + 1.15 * static_cast<double>(cut) / 2)
          << which;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeded, WhisperRanks, testing::Values("ct2_f32", "hf"),
                         [](const auto& each) { return std::string(each.param); });

// Formats whose numbers are their own: the same on every rank, the tokens those of one rank.
TEST(WhisperRanksFormats, HalvesAreCutToo) {
  const std::vector<std::int32_t> prompt = {451, 452, 462};
  Seeded alone("ct2_f16");
  const Heard wanted = hear(alone, prompt, 6);
  on_ranks(2, [&](Communicator& end) {
    Seeded model("ct2_f16", "stored", &end);
    const Heard got = hear(model, prompt, 6);
    EXPECT_EQ(got.tokens, wanted.tokens);
    EXPECT_LT(worst_error(got.states, wanted.states), 1e-3);
  });
}

TEST(WhisperRanksFormats, HeadsThatDoNotDivideAreRefused) {
  const auto group = make_thread_group(3);
  const Status fault = Seeded::fault("ct2_f32", group[0].get());
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().code, Code::bad_model);
  EXPECT_NE(fault.error().message.find("2 heads do not divide over 3 ranks"), std::string::npos)
      << fault.error().message;
}

}  // namespace
}  // namespace mstar::models
