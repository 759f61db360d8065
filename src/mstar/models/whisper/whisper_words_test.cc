// When words are said: the seeded model against CTranslate2, alone and over ranks, and the rules against
// faster-whisper.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "mstar/device/rank_mesh.h"
#include "mstar/models/whisper/whisper_seeded_fixture.h"
#include "mstar/models/whisper/whisper_stages.h"
#include "mstar/models/whisper/whisper_words.h"

namespace mstar::models {
namespace {

using nlohmann::json;
using namespace whisper_fixture;

constexpr int kEncoder = 0, kCross = 1, kDecoder = 2;

json read(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

struct Aligned {
  std::vector<std::int32_t> first_frames;
  std::vector<float> probabilities;
};

Aligned align(Seeded& model, const json& golden, const json& wanted) {
  auto text = golden["start"].get<std::vector<std::int32_t>>();
  text.push_back(467);
  for (const std::int32_t each : wanted["text"]) text.push_back(each);
  text.push_back(450);
  const std::vector<std::int32_t> frames(text.size(), wanted["frames"].get<std::int32_t>());
  const auto out = model.run(kDecoder, "align", {{HostValue::i32(text)}, {HostValue::i32(frames)}});
  const auto first = out[0][0].host.as<std::int32_t>();
  const auto probabilities = out[1][0].host.as<float>();
  return {{first.begin(), first.end()}, {probabilities.begin(), probabilities.end()}};
}

void hear(Seeded& model) {
  auto ports = weights::Checkpoint::open(kGolden / "ports.safetensors");
  ASSERT_TRUE(ports);
  const auto states = model.run(kEncoder, "listen", {{golden_port(**ports, "mel")}});
  model.run(kCross, "listen", {{states[0][0]}});
}

void expect_what_the_reference_gives(Seeded& model) {
  const json golden = read(kGolden / "words.json");
  hear(model);
  for (const json& wanted : golden["cases"]) {
    const Aligned got = align(model, golden, wanted);
    EXPECT_EQ(got.first_frames, wanted["first_frames"].get<std::vector<std::int32_t>>()) << wanted["text"];
    const auto probabilities = wanted["probabilities"].get<std::vector<double>>();
    ASSERT_EQ(got.probabilities.size(), probabilities.size() + 1);
    for (std::size_t i = 0; i < probabilities.size(); ++i)
      EXPECT_NEAR(got.probabilities[i], probabilities[i], 1e-3 * probabilities[i]) << i;
  }
}

TEST(WhisperWords, FirstFramesAndProbabilitiesAreTheReferences) {
  Seeded model("ct2_f32");
  expect_what_the_reference_gives(model);
}

// Where no file names alignment heads, all of the later layers' tell: here the same ones.
TEST(WhisperWords, OfTheOtherFormatToo) {
  Seeded model("hf");
  expect_what_the_reference_gives(model);
}

TEST(WhisperWords, ATextBetweenDrawsChangesNothing) {
  const json golden = read(kGolden / "words.json"), greedy = read(kGolden / "greedy.json")["float"]["plain"];
  Seeded model("ct2_f32");
  hear(model);
  const auto tokens = greedy["tokens"].get<std::vector<std::int32_t>>();
  for (int turn = 0; turn < 2; ++turn) {
    align(model, golden, golden["cases"][0]);
    auto out = model.run(kDecoder, "prompt", {{HostValue::i32(greedy["prompt"].get<std::vector<std::int32_t>>())}});
    for (const std::int32_t token : tokens) {
      EXPECT_EQ(out[0][0].host.as<std::int32_t>()[0], token);
      out = model.run(kDecoder, "decode", {{out[0][0]}});
    }
  }
}

TEST(WhisperWords, RanksAgreeAndFindTheSame) {
  const RankMesh mesh = RankMesh::of_threads({.tensor = 2});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Seeded model("ct2_f32", "stored", mesh.ends(rank));
      expect_what_the_reference_gives(model);
    });
  for (std::thread& each : threads) each.join();
}

// ---- rules

std::vector<Word> words_from(const json& list) {
  std::vector<Word> out;
  for (const json& each : list)
    out.push_back({each[0].get<std::string>(), each[1].get<int>(), each[2].get<double>(), each[3].get<double>(),
                   each[4].get<double>()});
  return out;
}

// Random words and segments, and what faster-whisper's add_word_timestamps makes of them.
TEST(WhisperWords, RulesAreFasterWhispers) {
  WhisperTokens tokens;
  tokens.eot = 1000;
  const json golden = read(fs::path(MSTAR_SOURCE_DIR) / "tests/golden/whisper/word_rules.json");
  ASSERT_GT(golden["cases"].size(), 100u);
  for (const json& each : golden["cases"]) {
    std::vector<Segment> segments;
    for (const json& segment : each["segments"])
      segments.push_back({segment[0].get<double>(), segment[1].get<double>(),
                          std::vector<std::int32_t>(segment[2].get<std::size_t>(), 1)});
    const auto placed =
        place_words(tokens, finish_words(words_from(each["words"]), WhisperOptions()), std::move(segments),
                    each["seek"].get<int>() * kFrameSeconds, each["last_speech"].get<double>());
    ASSERT_EQ(placed.size(), each["placed"].size());
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const json& wanted = each["placed"][i];
      EXPECT_NEAR(placed[i].segment.start_s, wanted["start"].get<double>(), 1e-9);
      EXPECT_NEAR(placed[i].segment.end_s, wanted["end"].get<double>(), 1e-9);
      ASSERT_EQ(placed[i].words.size(), wanted["words"].size()) << each;
      for (std::size_t w = 0; w < placed[i].words.size(); ++w) {
        EXPECT_EQ(placed[i].words[w].text, wanted["words"][w][0].get<std::string>());
        EXPECT_NEAR(placed[i].words[w].start_s, wanted["words"][w][1].get<double>(), 1e-9);
        EXPECT_NEAR(placed[i].words[w].end_s, wanted["words"][w][2].get<double>(), 1e-9);
      }
    }
  }
}

// Of texts in several scripts, some with lost tokens, and tokens by chance.
TEST(WhisperWords, SplitAsFasterWhisperDoes) {
  auto tokenizer = Tokenizer::load((kGolden / "hf/tokenizer.json").string());
  ASSERT_TRUE(tokenizer);
  auto tokens = WhisperTokens::from(*tokenizer, 519);
  ASSERT_TRUE(tokens);
  const json golden = read(fs::path(MSTAR_SOURCE_DIR) / "tests/golden/whisper/word_rules.json");
  ASSERT_GT(golden["splits"].size(), 100u);
  for (const json& each : golden["splits"]) {
    const auto words = split_words(*tokenizer, *tokens, each["language"].get<std::string>(),
                                   each["ids"].get<std::vector<std::int32_t>>());
    json got = json::array();
    for (const Word& word : words) got.push_back({word.text, word.num_tokens});
    EXPECT_EQ(got, each["words"]) << each["ids"];
  }
}

// Whatever the model says and wherever it listens: words never go back in time, within a window and from one to the
// next, and each window moves on.
TEST(WhisperWords, NeverGoBack) {
  auto checkpoint = weights::Checkpoint::open(kGolden / "hf");
  ASSERT_TRUE(checkpoint);
  ModelSource source{.name = "seeded", .directory = kGolden / "hf", .checkpoint = {}};
  source.checkpoint = std::move(*checkpoint);
  auto config = WhisperConfig::read(source);
  ASSERT_TRUE(config);
  const auto shared = std::make_shared<const WhisperConfig>(std::move(*config));
  const WhisperTokens& t = shared->tokens;
  std::mt19937 random(7);
  const auto below = [&](int end) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(end)); };
  const auto i32 = [](std::vector<std::int32_t> values) { return std::vector<HostValue>{HostValue::i32(values)}; };
  const auto f32 = [](std::vector<float> values) { return std::vector<HostValue>{HostValue::f32(values)}; };
  for (int turn = 0; turn < 200; ++turn) {
    decl::RequestParams params;
    params.fields.set("word_timestamps", true);
    params.fields.set("temperature_increment_on_fallback", 0.0);
    if (turn % 2) params.fields.set("hallucination_silence_threshold", 0.1 * turn);
    const auto stage = make_segment_stage(shared, params);
    std::int32_t seek = 0;
    double end = 0;
    for (int window = 0; window < 6; ++window) {
      const std::int32_t frames = 1 + below(window % 2 ? 100 : 3000);
      const auto about = i32({seek, frames, frames, std::numeric_limits<std::int32_t>::max()});
      decl::HostInputs inputs;
      inputs.ports = {about,   i32({452}),   i32({t.timestamp_begin}), f32({-0.1f}), f32({0.0f}), {}, {},
                      i32({}), f32({100.0f})};
      for (int i = below(30); i > 0; --i) {
        inputs.ports[5].push_back(
            HostValue::i32(std::vector<std::int32_t>{below(3) ? below(t.eot) : t.timestamp_begin + below(50)}));
        inputs.ports[6].push_back(HostValue::f32(std::vector<float>{-0.1f}));
      }
      auto out = stage->run(inputs);
      ASSERT_TRUE(out) << out.error().message;
      if (const auto text = out->ports[5][0].as<std::int32_t>(); !text.empty()) {
        EXPECT_TRUE(out->ports[0].empty());
        std::vector<std::int32_t> first(text.size() + 1);
        std::vector<float> probabilities(first.size());
        // Long words among short ones: there the rules set words back.
        constexpr std::int32_t kSteps[] = {0, 3, 26, 30, 34, 40};
        std::int32_t at = below(20);
        for (std::size_t i = 0; i < first.size(); ++i) {
          first[i] = std::min(at, std::max(0, frames / 2 - 1));
          at += kSteps[below(6)];
          probabilities[i] = static_cast<float>(below(1000)) / 1000;
        }
        decl::HostInputs aligned;
        aligned.ports = {about, i32({452}), i32(first), f32(probabilities), i32({}), f32({100.0f})};
        out = stage->run(aligned);
        ASSERT_TRUE(out) << out.error().message;
        EXPECT_TRUE(out->ports[5][0].as<std::int32_t>().empty());
      }
      for (const HostValue& each : out->ports[0]) {
        const json segment = json::parse(each.text());
        for (const json& word : segment["words"]) {
          EXPECT_LE(end, word["start"].get<double>());
          EXPECT_LE(word["start"].get<double>(), word["end"].get<double>());
          end = word["end"].get<double>();
        }
      }
      const std::int32_t next = out->ports[1][0].as<std::int32_t>()[0];
      EXPECT_GT(next, seek);
      seek = next;
    }
  }
}

TEST(WhisperWords, SplitAtSpacesOrIntoCharacters) {
  auto tokenizer = Tokenizer::load((kGolden / "hf/tokenizer.json").string());
  ASSERT_TRUE(tokenizer);
  auto tokens = WhisperTokens::from(*tokenizer, 519);
  ASSERT_TRUE(tokens);
  const auto split = [&](std::string_view text, std::string_view language) {
    auto ids = tokenizer->encode(text, {.parse_added = false});
    const auto count = std::ssize(ids);
    ids.push_back(tokens->eot);
    const auto words = split_words(*tokenizer, *tokens, language, ids);
    std::vector<std::string> out;
    std::ptrdiff_t total = 0;
    for (const Word& each : words) out.push_back(each.text), total += each.num_tokens;
    EXPECT_EQ(total, count + 1);
    EXPECT_EQ(out.back(), "");
    out.pop_back();
    return out;
  };
  EXPECT_EQ(split(" Hello, there! It's", "en"), (std::vector<std::string>{" Hello", ",", " there", "!", " It", "'s"}));
  // Bytes of one character stay together, in words and alone.
  EXPECT_EQ(split(" \u4f60\u597d\uff0cab", "en"), (std::vector<std::string>{" \u4f60\u597d\uff0cab"}));
  const auto characters = split("\u4f60\u597d\uff0c", "zh");
  EXPECT_EQ(characters, (std::vector<std::string>{"\u4f60", "\u597d", "\uff0c"}));
  // What there is of a character that is cut off goes with the end.
  auto cut = tokenizer->encode(" a\u4f60", {.parse_added = false});
  cut.back() = tokens->eot;
  const auto words = split_words(*tokenizer, *tokens, "zh", cut);
  ASSERT_FALSE(words.empty());
  EXPECT_EQ(words.front().text.substr(0, 2), " a");
}

TEST(WhisperWords, InventionsInSilenceArePassedOver) {
  const auto segment = [](double start, double end, double probability, double word_s) {
    TimedSegment out;
    out.segment.start_s = start;
    out.segment.end_s = end;
    for (int i = 0; i < 4; ++i)
      out.words.push_back({" w", 1, start + i * word_s, start + (i + 1) * word_s, probability});
    out.words.back().end_s = end;
    return out;
  };
  const WindowPlace window{.seek_frames = 1000, .segment_frames = 3000, .content_frames = 100000};
  // Likely words stay, wherever they are.
  Verdict verdict = find_inventions({segment(15, 17, 0.9, 0.4), segment(25, 27, 0.9, 0.4)}, window, 2, 10);
  EXPECT_EQ(verdict.num_kept, 2u);
  EXPECT_FALSE(verdict.next_seek_frames);
  // The first words are unlikely, after a silence: heard again from there.
  verdict = find_inventions({segment(15, 15.1, 0.05, 0.02)}, window, 2, 10);
  EXPECT_TRUE(verdict.skips_window);
  EXPECT_EQ(verdict.next_seek_frames, 1500);
  // Between silences: what stands before stays.
  verdict = find_inventions({segment(10.5, 12.5, 0.9, 0.4), segment(20, 20.1, 0.05, 0.02)}, window, 2, 10);
  EXPECT_FALSE(verdict.skips_window);
  EXPECT_EQ(verdict.num_kept, 1u);
  EXPECT_EQ(verdict.next_seek_frames, 2000);
  // Next to speech: it stays.
  verdict = find_inventions({segment(10.5, 12.5, 0.9, 0.4), segment(13, 13.1, 0.05, 0.02), segment(13.5, 15, 0.9, 0.4)},
                            window, 2, 10);
  EXPECT_EQ(verdict.num_kept, 3u);
  // At the recording's end nothing more is heard.
  verdict = find_inventions({segment(10.5, 12.5, 0.9, 0.4), segment(38.5, 38.6, 0.05, 0.02)},
                            {.seek_frames = 1000, .segment_frames = 3000, .content_frames = 4050}, 2, 10);
  EXPECT_EQ(verdict.next_seek_frames, 4050);
}

}  // namespace
}  // namespace mstar::models
