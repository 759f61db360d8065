#include "mstar/weights/weight_map.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "mstar/weights/checkpoint_writer_test.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory
using decl::Drop;
using decl::Fuse;
using decl::Rename;
using decl::Split;
using decl::WeightRule;

std::shared_ptr<const Checkpoint> open_bytes(const char* name, const std::string& bytes) {
  const TestDirectory dir;  // the mapping outlives the file
  auto opened = Checkpoint::open(dir.write(name, bytes));
  EXPECT_TRUE(opened) << opened.error().message;
  return std::shared_ptr<const Checkpoint>(std::move(*opened));
}
std::shared_ptr<const Checkpoint> hugging_face(const std::vector<TestWeight>& weights) {
  return open_bytes("model.safetensors", safetensors_file(weights));
}
std::shared_ptr<const Checkpoint> ctranslate2(const std::vector<TestWeight>& weights, const TestAliases& aliases = {}) {
  return open_bytes("model.bin", ct2_file(weights, aliases));
}
WeightMap map_of(std::shared_ptr<const Checkpoint> checkpoint, const std::vector<WeightRule>& rules = {}) {
  auto map = WeightMap::create(std::move(checkpoint), rules);
  EXPECT_TRUE(map) << map.error().message;
  return std::move(*map);
}
void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}
std::vector<float> values(WeightMap& map, const std::string& home, const Shape& shape) {
  const auto weight = map.take(home, shape);
  EXPECT_TRUE(weight) << weight.error().message;
  return weight ? weight->to_f32() : std::vector<float>();
}
std::string take_error(WeightMap& map, const std::string& home, const Shape& shape) {
  const auto weight = map.take(home, shape);
  EXPECT_FALSE(weight);
  return weight ? "" : weight.error().message;
}

TEST(WeightMap, NamesThatNoRuleMatchesAreTheirOwnHome) {
  WeightMap map = map_of(hugging_face({f32("a", {2}, {1, 2}), f16("b", {}, {3})}));
  EXPECT_EQ(values(map, "a", {2}), (std::vector<float>{1, 2}));
  EXPECT_EQ(values(map, "b", {}), (std::vector<float>{3}));
  EXPECT_TRUE(map.finish());
}

TEST(WeightMap, NoCheckpointIsOneWithoutWeights) {
  WeightMap map = map_of(nullptr, {Rename{"a", "b"}});
  EXPECT_TRUE(map.finish());
  EXPECT_FALSE(map.has("b"));
  expect_has(take_error(map, "b", {1}), "no weight for 'b'");
  expect_has(map.finish().error().message, "'b'");
  EXPECT_EQ(map.describe(), "");
}

TEST(WeightMap, FirstMatchingRuleWins) {
  WeightMap map = map_of(hugging_face({f32("m.0.w", {1}, {1}), f32("m.1.w", {1}, {2}), f32("m.1.x", {1}, {3})}),
                         {Rename{"m.0.*", "first.*"}, Rename{"m.*.w", "w.*"}, Rename{"m.*", "rest.*"}});
  EXPECT_EQ(values(map, "first.w", {1}), std::vector<float>{1});
  EXPECT_EQ(values(map, "w.1", {1}), std::vector<float>{2});
  EXPECT_EQ(values(map, "rest.1.x", {1}), std::vector<float>{3});
  EXPECT_TRUE(map.finish());
}

TEST(WeightMap, FusesPartsInRuleOrderAndFillsWithZeros) {
  const std::vector<WeightRule> rules = {
      Fuse{{"l.*.q.weight", "l.*.k.weight", "l.*.v.weight"}, "l.*.qkv.weight"},
      Fuse{.from = {"l.*.q.bias", "l.*.k.bias", "l.*.v.bias"}, .to = "l.*.qkv.bias", .zero_fill = true}};
  WeightMap map = map_of(
      hugging_face({f16("l.0.v.weight", {1, 2}, {5, 6}), f32("l.0.q.weight", {1, 2}, {1, 2}),
                    f32("l.0.k.weight", {1, 2}, {3, 4}), f32("l.0.q.bias", {1}, {7}), f32("l.0.v.bias", {1}, {9})}),
      rules);
  EXPECT_EQ(map.shape_of("l.0.qkv.weight"), (Shape{3, 2}));
  EXPECT_FALSE(map.shape_of("l.0.qkv.bias")) << "how many zeros is the model's to say";
  EXPECT_EQ(values(map, "l.0.qkv.weight", {3, 2}), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  const auto bias = map.take("l.0.qkv.bias", {3});
  ASSERT_TRUE(bias) << bias.error().message;
  EXPECT_EQ(bias->to_f32(), (std::vector<float>{7, 0, 9}));
  EXPECT_EQ(bias->parts()[0].source, "l.0.q.bias");
  EXPECT_EQ(bias->parts()[1].rows, nullptr);
  EXPECT_TRUE(map.finish());
  EXPECT_FALSE(map.has("l.1.qkv.bias"));
  EXPECT_EQ(values(map, "l.0.qkv.bias", {6}), (std::vector<float>{7, 0, 0, 0, 0, 9})) << "the zeros take what is left";
  expect_has(take_error(map, "l.0.qkv.bias", {2}), "zeros");
}

TEST(WeightMap, AFuseWithoutAllItsPartsSaysWhichIsMissing) {
  WeightMap map = map_of(hugging_face({f32("l.0.q", {1}, {1}), f32("l.0.v", {1}, {1})}),
                         {Fuse{{"l.*.q", "l.*.k", "l.*.v"}, "l.*.qkv"}});
  EXPECT_FALSE(map.has("l.0.qkv"));
  expect_has(take_error(map, "l.0.qkv", {3}), "lacks 'l.0.k'");
  EXPECT_FALSE(map.take_optional("l.0.qkv", {3})) << "half of a weight is not the same as none";
  expect_has(map.finish().error().message, "lacks 'l.0.k'");
}

TEST(WeightMap, SplitsAxisZero) {
  WeightMap map = map_of(
      ctranslate2({i8("kv/weight", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), f32("kv/weight_scale", {4}, {1, 2, 4, 8})}),
      {Split{"*/weight", {"*.k", "*.v"}}});
  EXPECT_EQ(map.shape_of("kv.v"), (Shape{2, 2}));
  EXPECT_EQ(values(map, "kv.k", {2, 2}), (std::vector<float>{1, 2, 1.5f, 2}));
  EXPECT_FALSE(map.finish()) << "half of the weight was not used";
  EXPECT_EQ(values(map, "kv.v", {2, 2}), (std::vector<float>{1.25f, 1.5f, 0.875f, 1}));
  EXPECT_TRUE(map.finish());
  const auto odd =
      WeightMap::create(hugging_face({f32("kv", {3}, {1, 2, 3})}), std::vector<WeightRule>{Split{"kv", {"k", "v"}}});
  ASSERT_FALSE(odd);
  expect_has(odd.error().message, "does not split into 2");
}

TEST(WeightMap, DropsAndListsWhatHasNoHome) {
  const auto checkpoint = hugging_face(
      {f32("used", {1}, {1}), f32("junk.a", {1}, {1}), f32("left.w", {2, 1}, {1, 2}), f32("odd", {1}, {1})});
  WeightMap map = map_of(checkpoint, {Drop{"junk.*"}, Rename{"left.*", "right.*"}});
  EXPECT_EQ(map.dropped(), std::vector<std::string>{"junk.a"});
  values(map, "used", {1});
  const auto finish = map.finish();
  ASSERT_FALSE(finish);
  EXPECT_EQ(finish.error().code, Code::bad_model);
  expect_has(finish.error().message, "'left.w' f32 [2,1] has no home: the model has no 'right.w'");
  expect_has(finish.error().message, "'odd' f32 [1] has no home");
  EXPECT_EQ(finish.error().message.find("junk"), std::string::npos);
  // A worker that builds some components looks at their homes only.
  EXPECT_TRUE(map.finish(std::vector<std::string>{"used"}));
  EXPECT_FALSE(map.finish(std::vector<std::string>{"used", "right."}));
  EXPECT_TRUE(map.check_prefixes(std::vector<std::string>{"used", "right.", "odd"}));
  const auto strange = map.check_prefixes(std::vector<std::string>{"used", "right."});
  ASSERT_FALSE(strange);
  expect_has(strange.error().message, "'odd' f32 [1] has no home");
  EXPECT_EQ(strange.error().message.find("left.w"), std::string::npos);
}

TEST(WeightMap, AMissSuggestsTheNearestName) {
  WeightMap map =
      map_of(hugging_face({f32("model.decoder.embed.weight", {2, 2}, counting(4))}), {Rename{"model.*", "*"}});
  const std::string message = take_error(map, "decoder.embd.weight", {2, 2});
  expect_has(message, "no weight for 'decoder.embd.weight'");
  expect_has(message, "'decoder.embed.weight', from 'model.decoder.embed.weight'");
  EXPECT_EQ(take_error(map, "something.else.entirely", {1}).find("nearest"), std::string::npos);
  const std::string all = map.finish().error().message;
  expect_has(all, "decoder.embd.weight");
  expect_has(all, "something.else.entirely");
  expect_has(all, "'model.decoder.embed.weight' f32 [2,2] has no home");
}

TEST(WeightMap, ShapesMustBeEqual) {
  WeightMap map = map_of(hugging_face({f16("a", {2, 3}, counting(6))}), {Rename{"a", "home"}});
  for (const Shape& shape : {Shape{3, 2}, Shape{6}, Shape{}, Shape{2, 3, 1}, Shape{2, 4}, Shape{1, 3}}) {
    const std::string message = take_error(map, "home", shape);
    expect_has(message, "'home' must be " + to_string(shape));
    expect_has(message, "'a' f16 [2,3]");
  }
  EXPECT_EQ(values(map, "home", {2, 3}), counting(6));
  EXPECT_FALSE(map.finish()) << "a failed take is remembered";
}

TEST(WeightMap, OptionalHomesMayBeAbsent) {
  WeightMap map = map_of(hugging_face({f32("a", {1}, {1})}));
  const auto none = map.take_optional("bias", {1});
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
  const auto some = map.take_optional("a", {1});
  ASSERT_TRUE(some);
  EXPECT_TRUE(some->has_value());
  EXPECT_FALSE(map.take_optional("a", {2}));
}

TEST(WeightMap, AliasesAreExtraNames) {
  const auto checkpoint =
      ctranslate2({i8("dec/emb/weight", {2, 1}, {2, 4}), f32("dec/emb/weight_scale", {2}, {2, 2})},
                  {{"dec/proj/weight", "dec/emb/weight"}, {"dec/proj/weight_scale", "dec/emb/weight_scale"}});
  WeightMap map = map_of(checkpoint, {Rename{"dec/*/weight", "dec.*.w"}});
  EXPECT_EQ(values(map, "dec.emb.w", {2, 1}), (std::vector<float>{1, 2}));
  EXPECT_TRUE(map.finish()) << map.finish().error().message << ": an alias needs no home of its own";
  EXPECT_EQ(values(map, "dec.proj.w", {2, 1}), (std::vector<float>{1, 2}));
  EXPECT_EQ(values(map, "dec.proj.w", {2, 1}), (std::vector<float>{1, 2})) << "tied weights are taken twice";
  // Both names to one home are no conflict: it is one weight.
  EXPECT_TRUE(WeightMap::create(checkpoint, std::vector<WeightRule>{Rename{"dec/*/weight", "dec.w"}}));
}

TEST(WeightMap, RefusesTwoWeightsForOneHome) {
  const auto checkpoint = hugging_face({f32("a", {1}, {1}), f32("b", {1}, {2})});
  for (const auto& rules : std::vector<std::vector<WeightRule>>{
           {Rename{"*", "home"}}, {Rename{"a", "b"}}, {Fuse{{"a", "x"}, "h"}, Rename{"b", "h"}}}) {
    const auto map = WeightMap::create(checkpoint, rules);
    ASSERT_FALSE(map);
    expect_has(map.error().message, "both go to");
  }
}

TEST(WeightMap, RefusesRulesThatCannotWork) {
  const auto checkpoint = hugging_face({f32("a", {1}, {1})});
  for (const WeightRule& rule : std::vector<WeightRule>{
           Rename{"a", "*"},
           Rename{"*", "*.*"},
           Fuse{{}, "h"},
           Fuse{{"a.*", "b"}, "h.*"},
           Split{"a", {}},
           Split{"a.*", {"*", "*.*"}},
       }) {
    const auto map = WeightMap::create(checkpoint, std::vector<WeightRule>{rule});
    ASSERT_FALSE(map);
    expect_has(map.error().message, "weight rule: ");
  }
}

TEST(WeightMap, RefusesScalesThatAreNoNumbers) {
  for (const float scale : {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    WeightMap map = map_of(ctranslate2({i8("a/weight", {2, 1}, {1, 2}), f32("a/weight_scale", {2}, {1, scale})}));
    const std::string message = take_error(map, "a/weight", {2, 1});
    expect_has(message, "'a/weight_scale'");
    expect_has(message, "row 1");
  }
  WeightMap one = map_of(ctranslate2({i8("a/weight", {2, 1}, {1, 2}), f32("a/weight_scale", {}, {4})}));
  EXPECT_EQ(values(one, "a/weight", {2, 1}), (std::vector<float>{0.25f, 0.5f}));
}

// Every element of the cuts is that of the whole, wherever the ranges lie.
TEST(WeightMap, CutsAreTheirRangesOfTheWhole) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto below = [&](std::uint32_t limit) { return static_cast<std::int64_t>(random() % limit); };
    const std::int64_t rows = 1 + below(7), columns = 1 + below(7);
    const auto stored = counting(static_cast<int>(rows * columns * 2));
    WeightMap map = map_of(
        ctranslate2({f16("w", {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), 2}, stored)}));
    Cut cut{.axis = static_cast<int>(below(2))};
    std::vector<std::int64_t> kept;
    for (std::int64_t i = 0, length = cut.axis == 0 ? rows : columns; i < 1 + below(3); ++i) {
      const std::int64_t begin = below(static_cast<std::uint32_t>(length));
      const std::int64_t end = begin + 1 + below(static_cast<std::uint32_t>(length - begin));
      cut.ranges.push_back({begin, end});
      for (std::int64_t at = begin; at < end; ++at) kept.push_back(at);
    }
    const auto part = map.take("w", {rows, columns, 2}, cut);
    ASSERT_TRUE(part) << part.error().message;
    const auto num_kept = static_cast<std::int64_t>(kept.size());
    ASSERT_EQ(part->shape(), cut.axis == 0 ? (Shape{num_kept, columns, 2}) : (Shape{rows, num_kept, 2}));
    std::vector<float> expected;
    for (std::int64_t r = 0; r < part->shape()[0]; ++r)
      for (std::int64_t c = 0; c < part->shape()[1]; ++c)
        for (std::int64_t i = 0; i < 2; ++i) {
          const std::int64_t row = cut.axis == 0 ? kept[static_cast<std::size_t>(r)] : r;
          const std::int64_t column = cut.axis == 1 ? kept[static_cast<std::size_t>(c)] : c;
          expected.push_back(stored[static_cast<std::size_t>((row * columns + column) * 2 + i)]);
        }
    EXPECT_EQ(part->to_f32(), expected);
    EXPECT_TRUE(map.finish());
  }
}

TEST(WeightMap, CutsAcrossThePartsOfAFuse) {
  WeightMap map = map_of(
      hugging_face({f32("q", {4, 1}, counting(4)), f32("k", {2, 1}, counting(2, 10)), f32("b", {3}, counting(3))}),
      {Fuse{{"q", "k"}, "qk"}});
  EXPECT_EQ(map.take("qk", {6, 1}, {0, {{0, 2}, {4, 5}}})->to_f32(), (std::vector<float>{0, 1, 10}));
  EXPECT_EQ(map.take("qk", {6, 1}, {0, {{3, 5}}})->to_f32(), (std::vector<float>{3, 10}));
  EXPECT_EQ(map.take("b", {3}, {0, {{1, 3}}})->to_f32(), (std::vector<float>{1, 2}));
  EXPECT_TRUE(map.finish());
}

TEST(WeightMap, RefusesCutsThatAreNotThere) {
  const std::vector<Cut> bad = {{0, {{0, 4}}}, {0, {{-1, 2}}}, {0, {{2, 2}}},        {0, {{2, 1}}},
                                {2, {{0, 1}}}, {-1, {{0, 1}}}, {1, {{0, 1}, {1, 3}}}};
  for (const Cut& cut : bad) {
    WeightMap map = map_of(hugging_face({f32("w", {3, 2}, counting(6))}));
    const auto part = map.take("w", {3, 2}, cut);
    ASSERT_FALSE(part);
    expect_has(part.error().message, "'w' [3,2] has no part");
    expect_has(map.finish().error().message, "has no part");
  }
}

TEST(WeightMap, CutsAxisOneOfScaledRows) {
  WeightMap map =
      map_of(ctranslate2({i8("w/weight", {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), f32("w/weight_scale", {2}, {1, 2})}));
  const auto share = map.take("w/weight", {2, 4}, {1, {{2, 4}}});
  ASSERT_TRUE(share) << share.error().message;
  EXPECT_EQ(share->to_f32(), (std::vector<float>{3, 4, 3.5f, 4}));
  const auto aligned = share->aligned();
  EXPECT_EQ(aligned.parts()[0].weight.stride(0), 4) << "columns of the file, in place";
  EXPECT_EQ(aligned.parts()[0].weight.at(1).data<std::int8_t>()[0], 7);
  const auto apart = map.take("w/weight", {2, 4}, {1, {{0, 1}, {3, 4}}});
  ASSERT_TRUE(apart) << apart.error().message;
  EXPECT_EQ(apart->rows(1, 2).to_f32(), (std::vector<float>{2.5f, 4}));
  EXPECT_EQ(apart->aligned().parts()[0].weight.stride(0), 2) << "columns that lie apart are copied";
}

TEST(WeightMap, DescribesItself) {
  WeightMap map =
      map_of(ctranslate2({i8("a/weight", {2, 1}, {1, 2}), f32("a/weight_scale", {2}, {1, 1}), f32("n", {1}, {1})}),
             {Split{"a/weight", {"x", "y"}}, Drop{"n"}, Fuse{.from = {"q", "k"}, .to = "f", .zero_fill = true}});
  EXPECT_EQ(map.describe(),
            "x <- a/weight i8 scaled [2,1] part 1/2\n"
            "y <- a/weight i8 scaled [2,1] part 2/2\n"
            "(dropped) n\n");
  EXPECT_EQ(map.mappings().size(), 2u);
  EXPECT_FALSE(map.mappings()[0].taken);
}

}  // namespace
}  // namespace mstar::weights
