// One tiny Whisper in both of its layouts: the rules of either bring the same numbers to the same homes.
#include <gtest/gtest.h>

#include <random>

#include "mstar/weights/checkpoint_writer_test.h"
#include "mstar/weights/weight_map.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory
using decl::Drop;
using decl::Fuse;
using decl::Rename;
using decl::WeightRule;

constexpr std::uint64_t kWidth = 4;

std::vector<float> noise(std::mt19937& random, std::size_t count) {
  std::uniform_int_distribution<int> steps(-64, 64);  // halves hold them exactly
  std::vector<float> out(count);
  for (float& value : out) value = static_cast<float>(steps(random)) / 16;
  return out;
}
std::vector<float> joined(std::initializer_list<std::vector<float>> parts) {
  std::vector<float> out;
  for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

struct Layouts {
  std::vector<TestWeight> hugging_face;
  std::vector<TestWeight> ctranslate2;
};

void add_attention(Layouts& to, std::mt19937& random, const std::string& hf, const std::string& ct2, bool is_cross) {
  const std::size_t square = kWidth * kWidth;
  const auto q = noise(random, square), k = noise(random, square), v = noise(random, square),
             out = noise(random, square);
  const auto q_bias = noise(random, kWidth), v_bias = noise(random, kWidth), out_bias = noise(random, kWidth);
  const std::vector<float> no_bias(kWidth, 0.0f);
  for (const auto& [name, values] : {std::pair("q_proj", &q), {"k_proj", &k}, {"v_proj", &v}, {"out_proj", &out}})
    to.hugging_face.push_back(f16(hf + name + ".weight", {kWidth, kWidth}, *values));
  for (const auto& [name, values] : {std::pair("q_proj", &q_bias), {"v_proj", &v_bias}, {"out_proj", &out_bias}})
    to.hugging_face.push_back(f16(hf + name + ".bias", {kWidth}, *values));
  if (is_cross) {
    to.ctranslate2.push_back(f16(ct2 + "linear_0/weight", {kWidth, kWidth}, q));
    to.ctranslate2.push_back(f16(ct2 + "linear_0/bias", {kWidth}, q_bias));
    to.ctranslate2.push_back(f16(ct2 + "linear_1/weight", {2 * kWidth, kWidth}, joined({k, v})));
    to.ctranslate2.push_back(f16(ct2 + "linear_1/bias", {2 * kWidth}, joined({no_bias, v_bias})));
  } else {
    to.ctranslate2.push_back(f16(ct2 + "linear_0/weight", {3 * kWidth, kWidth}, joined({q, k, v})));
    to.ctranslate2.push_back(f16(ct2 + "linear_0/bias", {3 * kWidth}, joined({q_bias, no_bias, v_bias})));
  }
  const std::string last = is_cross ? "linear_2" : "linear_1";
  to.ctranslate2.push_back(f16(ct2 + last + "/weight", {kWidth, kWidth}, out));
  to.ctranslate2.push_back(f16(ct2 + last + "/bias", {kWidth}, out_bias));
}

std::vector<WeightRule> hugging_face_rules() {
  return {
      Fuse{{"model.decoder.layers.*.self_attn.q_proj.weight", "model.decoder.layers.*.self_attn.k_proj.weight",
            "model.decoder.layers.*.self_attn.v_proj.weight"},
           "decoder.*.self.qkv.weight"},
      Fuse{.from = {"model.decoder.layers.*.self_attn.q_proj.bias", "model.decoder.layers.*.self_attn.k_proj.bias",
                    "model.decoder.layers.*.self_attn.v_proj.bias"},
           .to = "decoder.*.self.qkv.bias",
           .zero_fill = true},
      Fuse{{"model.decoder.layers.*.encoder_attn.k_proj.weight", "model.decoder.layers.*.encoder_attn.v_proj.weight"},
           "decoder.*.cross.kv.weight"},
      Fuse{.from = {"model.decoder.layers.*.encoder_attn.k_proj.bias",
                    "model.decoder.layers.*.encoder_attn.v_proj.bias"},
           .to = "decoder.*.cross.kv.bias",
           .zero_fill = true},
      Rename{"model.decoder.layers.*.encoder_attn.q_proj.*", "decoder.*.cross.q.*"},
      Rename{"model.decoder.layers.*.encoder_attn.out_proj.*", "decoder.*.cross.out.*"},
      Rename{"model.decoder.layers.*.self_attn.out_proj.*", "decoder.*.self.out.*"},
      Rename{"model.decoder.embed_tokens.weight", "decoder.tokens"},
      Drop{"proj_out.weight"}};
}
std::vector<WeightRule> ctranslate2_rules() {
  return {Rename{"decoder/layer_*/self_attention/linear_0/*", "decoder.*.self.qkv.*"},
          Rename{"decoder/layer_*/self_attention/linear_1/*", "decoder.*.self.out.*"},
          Rename{"decoder/layer_*/attention/linear_0/*", "decoder.*.cross.q.*"},
          Rename{"decoder/layer_*/attention/linear_1/*", "decoder.*.cross.kv.*"},
          Rename{"decoder/layer_*/attention/linear_2/*", "decoder.*.cross.out.*"},
          Rename{"decoder/embeddings/weight", "decoder.tokens"},
          Drop{"decoder/num_heads"}};
}

TEST(WhisperLayouts, BothBringTheSameNumbersHome) {
  std::mt19937 random(3);
  Layouts layouts;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string hf = "model.decoder.layers." + std::to_string(layer) + ".";
    const std::string ct2 = "decoder/layer_" + std::to_string(layer) + "/";
    add_attention(layouts, random, hf + "self_attn.", ct2 + "self_attention/", false);
    add_attention(layouts, random, hf + "encoder_attn.", ct2 + "attention/", true);
  }
  const auto tokens = noise(random, 7 * kWidth);
  layouts.hugging_face.push_back(f32("model.decoder.embed_tokens.weight", {7, kWidth}, tokens));
  layouts.hugging_face.push_back(f32("proj_out.weight", {7, kWidth}, tokens));
  layouts.ctranslate2.push_back(bf16("decoder/embeddings/weight", {7, kWidth}, tokens));
  layouts.ctranslate2.push_back({"decoder/num_heads", DType::i16, {}, raw(std::int16_t{2})});

  const TestDirectory dir;
  const auto open = [&](const std::string& name, const std::string& bytes, const std::vector<WeightRule>& rules) {
    auto opened = Checkpoint::open(dir.write(name, bytes));
    EXPECT_TRUE(opened) << opened.error().message;
    auto map = WeightMap::create(std::shared_ptr<const Checkpoint>(std::move(*opened)), rules);
    EXPECT_TRUE(map) << map.error().message;
    return std::move(*map);
  };
  WeightMap hf = open("model.safetensors", safetensors_file(layouts.hugging_face), hugging_face_rules());
  WeightMap ct2 =
      open("model.bin", ct2_file(layouts.ctranslate2, {{"decoder/projection/weight", "decoder/embeddings/weight"}}),
           ctranslate2_rules());

  const auto compare = [&](const std::string& home, const Shape& shape) {
    const auto one = hf.take(home, shape), other = ct2.take(home, shape);
    ASSERT_TRUE(one) << one.error().message;
    ASSERT_TRUE(other) << other.error().message;
    EXPECT_EQ(one->to_f32(), other->to_f32()) << home;
  };
  const std::int64_t w = kWidth;
  for (const std::string layer : {"decoder.0.", "decoder.1."}) {
    for (const auto& [name, rows] :
         {std::pair("self.qkv", 3 * w), {"self.out", w}, {"cross.q", w}, {"cross.kv", 2 * w}, {"cross.out", w}}) {
      compare(layer + name + ".weight", {rows, w});
      compare(layer + name + ".bias", {rows});
    }
  }
  compare("decoder.tokens", {7, w});
  EXPECT_TRUE(hf.finish()) << hf.finish().error().message;
  EXPECT_TRUE(ct2.finish()) << ct2.finish().error().message;
}

}  // namespace
}  // namespace mstar::weights
