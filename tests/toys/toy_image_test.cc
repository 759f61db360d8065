// toy-image through the runtime and over HTTP, against its arithmetic in doubles.
#include <gtest/gtest.h>
#include <png.h>

#include <algorithm>
#include <cmath>

#include "reference.h"
#include "toy_server.h"

namespace mstar::toys {
namespace {

using nlohmann::json;

constexpr std::size_t kPatches = 4, kChannels = 16, kDim = 32;

// ---- reference
// ---------------------------------------------------------------------------------------------------------

// What one label holds.
struct Context {
  ReferenceKv kv;
  Numbers mood = Numbers(kDim);
  std::uint64_t position = 0;
};

const Seeded& painter() {
  static const Seeded weights(8001);
  return weights;
}

Numbers read_token(Context& context, Numbers x) {
  Numbers place = painter().row("positions", context.position++, kDim);
  for (double& each : place) each *= 0.5;
  add_to(x, place);
  return run_layers(painter(), 2, 2, 16, 64, x, context.kv);
}

void read_words(Context& context, const std::vector<int>& ids) {
  for (const int id : ids) {
    const Numbers word = painter().row("table", static_cast<std::uint64_t>(id), kDim);
    for (std::size_t i = 0; i < kDim; ++i) context.mood[i] = 0.75 * context.mood[i] + 0.25 * word[i];
    read_token(context, word);
  }
}

std::vector<Numbers> flow(Context& context, const std::vector<Numbers>& latent) {
  std::vector<Numbers> out;
  for (const Numbers& patch : latent) {
    Numbers x = painter().linear("in", kDim, patch);
    add_to(x, context.mood);
    out.push_back(painter().linear("out", kChannels, painter().rms_norm("norm", read_token(context, x))));
  }
  return out;
}

// Pixels in the order of a PNG, 0 to 255, not rounded.
Numbers render(const std::vector<Numbers>& latent) {
  const Seeded weights(8002);
  std::vector<Numbers> patches;
  for (const Numbers& patch : latent) patches.push_back(weights.linear("pixels", 192, patch));
  Numbers out;
  for (std::size_t y = 0; y < 16; ++y)
    for (std::size_t x = 0; x < 16; ++x)
      for (std::size_t colour = 0; colour < 3; ++colour)
        out.push_back(
            std::clamp(128.0 + 64.0 * patches[y / 8 * 2 + x / 8][((y % 8) * 8 + x % 8) * 3 + colour], 0.0, 255.0));
  return out;
}

std::vector<Numbers> expected_pictures(const std::string& text, int n, int num_steps, double guidance,
                                       std::uint64_t seed) {
  Context style;
  read_words(style, {3, 14, 15, 9, 26});
  Context caption = style;
  std::vector<int> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c) % 32);
  read_words(caption, ids);
  std::vector<Numbers> pictures;
  for (int picture = 0; picture < n; ++picture) {
    Context guided = caption, unguided = style;  // each picture begins anew
    const Seeded noise(seed + static_cast<std::uint64_t>(picture));
    std::vector<Numbers> latent;
    for (std::size_t patch = 0; patch < kPatches; ++patch) {
      latent.push_back(noise.row("noise", patch, kChannels + 1));
      for (double& each : latent.back()) each *= std::sqrt(3.0);
      latent.back()[kChannels] = 0;
    }
    for (int k = 0; k < num_steps; ++k) {
      const auto with = flow(guided, latent), without = flow(unguided, latent);
      for (std::size_t patch = 0; patch < kPatches; ++patch) {
        for (std::size_t i = 0; i < kChannels; ++i)
          latent[patch][i] += (without[patch][i] + guidance * (with[patch][i] - without[patch][i])) / num_steps;
        latent[patch][kChannels] += 1.0 / num_steps;
      }
    }
    pictures.push_back(render(latent));
  }
  return pictures;
}

// RGB bytes of a 16 x 16 PNG; empty when it is none.
std::string decode(const std::string& bytes) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) return {};
  image.format = PNG_FORMAT_RGB;
  std::string rgb(PNG_IMAGE_SIZE(image), '\0');
  if (image.width != 16 || image.height != 16 || !png_image_finish_read(&image, nullptr, rgb.data(), 0, nullptr))
    return {};
  return rgb;
}

void expect_near(const std::string& png, const Numbers& wanted) {
  const std::string rgb = decode(png);
  ASSERT_EQ(rgb.size(), wanted.size());
  for (std::size_t i = 0; i < rgb.size(); ++i)
    ASSERT_NEAR(static_cast<unsigned char>(rgb[i]), wanted[i], 0.52) << "byte " << i;
}

// ---- tests
// -------------------------------------------------------------------------------------------------------------

json body(const std::string& text, json more = json::object()) {
  json out = {{"text", text}, {"output_modalities", "image"}, {"streaming", false}};
  out.update(more);
  return out;
}

struct ToyImage : testing::Test {
  static void SetUpTestSuite() { server = new ToyServer("toy-image"); }
  static void TearDownTestSuite() { delete std::exchange(server, nullptr); }
  void TearDown() override { EXPECT_TRUE(server->pools_are_empty()); }
  static inline ToyServer* server = nullptr;
};

TEST_F(ToyImage, PaintsWhatTheReferenceComputes) {
  struct Case {
    std::string text;
    int n, num_steps;
    double guidance;
    int seed;
  };
  for (const Case& each : std::vector<Case>{{"a red house", 1, 8, 3.0, 0},
                                            {"x", 1, 1, 0.0, 1},
                                            {"a longer caption of more than one page", 2, 5, 1.5, 2},
                                            {"elevenchars", 3, 12, 7.5, 3},
                                            {"sea", 1, 50, 2.0, 4}}) {
    SCOPED_TRACE(each.text);
    const Answer answer = server->ask(body(
        each.text, {{"n", each.n}, {"num_steps", each.num_steps}, {"guidance", each.guidance}, {"seed", each.seed}}));
    ASSERT_TRUE(answer.ok()) << answer.message;
    const auto wanted =
        expected_pictures(each.text, each.n, each.num_steps, each.guidance, static_cast<std::uint64_t>(each.seed));
    ASSERT_EQ(answer.chunks.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) expect_near(answer.chunks[i].second, wanted[i]);
    EXPECT_EQ(answer.metadata[0], json({{"format", "png"}}));
  }
}

TEST_F(ToyImage, TheSameSeedGivesTheSameBytes) {
  const auto painted = [&](json more) { return server->ask(body("a boat", more)).bytes("image"); };
  const std::string first = painted({{"seed", 5}});
  EXPECT_FALSE(first.empty());
  EXPECT_TRUE(first == painted({{"seed", 5}}));
  EXPECT_TRUE(first == painted({{"seed", 5}, {"streaming", true}}));
  EXPECT_FALSE(first == painted({{"seed", 6}}));
  EXPECT_FALSE(first == painted({{"seed", 5}, {"guidance", 4}}));
  // The second picture of a request is the first one of the next seed: nothing of the one before it is left.
  const Answer both = server->ask(body("a boat", {{"seed", 5}, {"n", 2}}));
  ASSERT_EQ(both.chunks.size(), 2u);
  EXPECT_TRUE(both.chunks[0].second == first);
  EXPECT_TRUE(both.chunks[1].second == painted({{"seed", 6}}));
}

TEST_F(ToyImage, WithoutGuidanceTheCaptionDoesNotMatter) {
  const auto painted = [&](const char* text, double guidance) {
    return server->ask(body(text, {{"guidance", guidance}})).bytes("image");
  };
  EXPECT_TRUE(painted("a boat", 0) == painted("a train at night", 0));
  EXPECT_FALSE(painted("a boat", 1) == painted("a train at night", 1));
}

std::vector<json> mixed() {
  return {body("a red house"),
          body("a boat", {{"num_steps", 50}}),
          body("x", {{"num_steps", 1}, {"n", 4}}),
          body("a red house", {{"guidance", 0}}),
          body("a red house", {{"seed", 9}, {"streaming", true}}),
          body(std::string(64, 'm'), {{"num_steps", 20}}),
          body("sea", {{"n", 3}, {"num_steps", 4}}),
          body("a boat", {{"num_steps", 17}, {"guidance", 12.5}})};
}

TEST_F(ToyImage, EightTogetherAreAsOneByOne) {
  alone_and_together(*server, mixed());
  const auto [steps, rows] = server->steps_and_rows("painter");
  EXPECT_GT(rows / steps, 1.5) << "the branches of one request, at least, share a step";
}

TEST_F(ToyImage, TwoPlacementsGiveTheSameBytes) {
  const ToyServer apart(
      "toy-image", {{.components = {"painter"}, .ranks = {0}}, {.components = {"guide", "renderer"}, .ranks = {1}}});
  for (const json& each : mixed())
    EXPECT_TRUE(server->ask(each).bytes("image") == apart.ask(each).bytes("image")) << each;
  EXPECT_TRUE(apart.pools_are_empty());
}

TEST_F(ToyImage, AbortsGiveEverythingBack) {
  for (int i = 0; i < 12; ++i) {
    auto ticket = server->submit("a boat", {{"num_steps", 50}, {"n", 4}}, {decl::Modality::image});
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 3));
    if (i % 3 == 0) ticket->wait_for_chunks(1);
    server->frontend().abort(ticket->id);
    ticket->wait();
  }
  EXPECT_TRUE(server->pools_are_empty());
  EXPECT_EQ(server->ask(body("a boat")).chunks.size(), 1u);
}

TEST_F(ToyImage, BadFieldsAreNamed) {
  const std::vector<std::pair<json, std::string>> rows = {{body(""), "text"},
                                                          {body(std::string(65, 'a')), "text"},
                                                          {body("a", {{"n", 0}}), "n"},
                                                          {body("a", {{"n", 5}}), "n"},
                                                          {body("a", {{"num_steps", 51}}), "num_steps"},
                                                          {body("a", {{"num_steps", "many"}}), "num_steps"},
                                                          {body("a", {{"guidance", 21}}), "guidance"},
                                                          {body("a", {{"guidance", -1}}), "guidance"},
                                                          {body("a", {{"seed", 0.5}}), "seed"}};
  for (const auto& [request, field] : rows) {
    const Answer answer = server->ask(request);
    EXPECT_EQ(answer.status, 400) << request;
    EXPECT_EQ(answer.param, field) << request;
  }
}

}  // namespace
}  // namespace mstar::toys
