#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "mstar/weights/formats.h"
#include "mstar/weights/gguf_writer_test.h"
#include "mstar/weights/weight_map.h"

namespace mstar::weights {
namespace {

using namespace testing;  // NOLINT: the writers of this directory

constexpr std::uint32_t kU32 = 4, kBool = 7, kString = 8, kArray = 9;

std::string error_of(const std::string& file) {
  const auto read = read_gguf(as_span(file), "x.gguf");
  if (read) return "";
  EXPECT_EQ(read.error().code, Code::bad_model);
  EXPECT_NE(read.error().message.find("x.gguf"), std::string::npos) << read.error().message;
  return read.error().message;
}
void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

std::string sample() {
  return gguf_file({gguf_pair("n", kU32, raw(std::uint32_t{7})), gguf_pair("s", kString, gguf_string("text")),
                    gguf_pair("a", kArray, gguf_array(kString, 2, gguf_string("x") + gguf_string("yz"))),
                    gguf_pair("deep", kArray, gguf_array(kArray, 1, gguf_array(kU32, 1, raw(std::uint32_t{9}))))},
                   {{"w", {3, 2}, 0, raw_list(counting(6))},
                    {"q", {64, 1}, 8, std::string(68, '\1')},
                    {"h", {2}, 1, f16_list({0.5f, -2})}});
}

std::shared_ptr<const Checkpoint> golden() {
  auto opened = Checkpoint::open(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/gguf/blocks.gguf");
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::shared_ptr<const Checkpoint>(std::move(*opened)) : nullptr;
}

TEST(Gguf, ReadsWhatTheWriterWrote) {
  const std::string file = sample();
  const auto model = read_gguf(as_span(file), "x.gguf");
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ(model->weights.size(), 3u);
  EXPECT_EQ(model->weights[0].shape, (Shape{2, 3}));
  EXPECT_EQ(model->weights[0].type, DType::f32);
  EXPECT_EQ(std::memcmp(model->weights[0].bytes.data(), raw_list(counting(6)).data(), 24), 0);
  EXPECT_EQ(model->weights[1].type, BlockFormat::q8_0);
  EXPECT_EQ(model->weights[1].bytes.size(), 68u);
  EXPECT_EQ(model->weights[2].shape, Shape{2});
  EXPECT_EQ(*model->metadata.integer("n"), 7);
  EXPECT_EQ(*model->metadata.string("s"), "text");
  EXPECT_EQ((*model->metadata.array("a"))->strings, (std::vector<std::string_view>{"x", "yz"}));
  EXPECT_EQ((*model->metadata.array("deep"))->arrays[0].integer(0), 9);
  EXPECT_TRUE(read_gguf(as_span(gguf_file({}, {}, 32, 2)), "v2"));
  EXPECT_TRUE(read_gguf(as_span(gguf_file({}, {}, 1)), "no padding"));
}

TEST(Gguf, ReadsMetadataOfThePythonPackage) {
  const auto checkpoint = golden();
  ASSERT_TRUE(checkpoint);
  const Metadata& m = checkpoint->metadata();
  EXPECT_EQ(checkpoint->format_name(), "GGUF");
  EXPECT_EQ(*m.string("general.architecture"), "llama");
  EXPECT_EQ(*m.integer("general.alignment"), 64);
  EXPECT_EQ(*m.integer("t.u8"), 200);
  EXPECT_EQ(*m.integer("t.i8"), -3);
  EXPECT_EQ(*m.integer("t.u16"), 60000);
  EXPECT_EQ(*m.integer("t.i16"), -30000);
  EXPECT_EQ(*m.integer("t.u32"), 4000000000);
  EXPECT_EQ(*m.integer("t.i32"), -2000000000);
  EXPECT_EQ(*m.integer("t.i64"), INT64_MIN);
  EXPECT_EQ(*m.number("t.f32"), 0.5);
  EXPECT_EQ(*m.number("t.f64"), 0.1);
  EXPECT_EQ(*m.number("t.u8"), 200.0);
  EXPECT_TRUE(*m.boolean("t.bool"));
  EXPECT_EQ(*m.string("t.string"), "h\xc3\xa9llo");
  EXPECT_EQ((*m.array("t.tokens"))->strings, (std::vector<std::string_view>{"a", "", "\xe2\x96\x81the"}));
  EXPECT_EQ((*m.array("t.types"))->integer(1), -2);
  EXPECT_EQ((*m.array("t.scores"))->number(1), -1.5);
  EXPECT_EQ((*m.array("t.flags"))->integer(0), 1);
  EXPECT_EQ((*m.array("t.flags"))->integer(2), std::nullopt);
  const MetadataArray& nested = **m.array("t.nested");
  ASSERT_EQ(nested.arrays.size(), 3u);
  EXPECT_EQ(nested.arrays[2].integer(2), 6);
  expect_has(m.integer("t.u64").error().message, "'t.u64' is u64, not a whole number below 2^63");
  expect_has(m.integer("t.f32").error().message, "'t.f32' is f32");
  expect_has(m.string("none").error().message, "'none' is missing");
  expect_has(m.array("t.u8").error().message, "not an array");
  expect_has(m.boolean("t.u8").error().message, "not a boolean");
}

// Every format's values are those of the Python package, bit for bit.
TEST(Gguf, DequantisesAsThePythonPackage) {
  const auto checkpoint = golden();
  ASSERT_TRUE(checkpoint);
  auto map = WeightMap::create(checkpoint, {});
  ASSERT_TRUE(map);
  int num_formats = 0;
  for (const StoredWeight& weight : checkpoint->weights()) {
    if (weight.name.ends_with(".f32")) continue;
    SCOPED_TRACE(weight.name);
    const StoredWeight* expected = checkpoint->find(weight.name + ".f32");
    ASSERT_TRUE(expected);
    EXPECT_EQ(weight.type.name(), weight.name);
    const auto loaded = map->take(weight.name, weight.shape);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const std::vector<float> values = loaded->to_f32();
    ASSERT_EQ(values.size() * 4, expected->bytes.size());
    EXPECT_EQ(std::memcmp(values.data(), expected->bytes.data(), expected->bytes.size()), 0);
    // Rows alone, and columns of a shard.
    std::vector<float> row(static_cast<std::size_t>(weight.shape[1]));
    loaded->rows_to_f32(1, 2, row);
    EXPECT_EQ(std::memcmp(row.data(), values.data() + row.size(), row.size() * 4), 0);
    ++num_formats;
  }
  EXPECT_EQ(num_formats, 10);
}

TEST(Gguf, CutsRowsOfBlocksForRanksOnlyBetweenBlocks) {
  const auto checkpoint = golden();
  auto map = WeightMap::create(checkpoint, {});
  ASSERT_TRUE(map);
  const auto whole = map->take("q4_k", {3, 512});
  const auto half = map->take("q4_k", {3, 512}, {1, {{256, 512}}});
  ASSERT_TRUE(whole && half) << half.error().message;
  const auto all = whole->to_f32(), right = half->to_f32();
  for (std::size_t row = 0; row < 3; ++row)
    EXPECT_EQ(std::memcmp(&all[row * 512 + 256], &right[row * 256], 256 * 4), 0);
  const auto within = map->take("q4_k", {3, 512}, {1, {{0, 128}}});
  ASSERT_FALSE(within);
  EXPECT_NE(within.error().message.find("'q4_k' is in blocks of 256"), std::string::npos) << within.error().message;
  EXPECT_TRUE(map->take("q4_0", {3, 64}, {1, {{32, 64}}}));
  EXPECT_FALSE(map->take("q4_0", {3, 64}, {1, {{32, 48}}}));
  const auto swapped = map->take("q4_k", {3, 512}, {1, {{256, 512}, {0, 256}}});
  ASSERT_TRUE(swapped) << swapped.error().message;
  const auto turned = swapped->to_f32();
  for (std::size_t row = 0; row < 3; ++row)
    EXPECT_EQ(std::memcmp(&all[row * 512 + 256], &turned[row * 512], 256 * 4), 0);
}

TEST(Gguf, HandsOutBlocksForPacking) {
  const auto checkpoint = golden();
  auto map = WeightMap::create(checkpoint, {});
  const auto loaded = map->take("q6_k", {3, 512});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->stored_type(), BlockFormat::q6_k);
  const AlignedParts aligned = loaded->aligned();
  ASSERT_EQ(aligned.parts().size(), 1u);
  EXPECT_EQ(aligned.parts()[0].blocks, BlockFormat::q6_k);
  EXPECT_EQ(aligned.parts()[0].weight.shape, (Shape{3, 420}));
  EXPECT_EQ(aligned.parts()[0].weight.pointer, checkpoint->find("q6_k")->bytes.data());
}

TEST(Gguf, RefusesHeaders) {
  expect_has(error_of(""), "magic");
  expect_has(error_of("GGML" + raw(std::uint32_t{3})), "does not begin with 'GGUF'");
  expect_has(error_of("GGUF" + raw(std::uint32_t{1})), "version 1;");
  expect_has(error_of("GGUF" + raw(std::uint32_t{0x03000000})), "big-endian");
  const std::string head = "GGUF" + raw(std::uint32_t{3});
  expect_has(error_of(head + raw(std::uint64_t{1} << 60) + raw(std::uint64_t{0})), "a number of weights of 1152921504");
  expect_has(error_of(head + raw(std::uint64_t{0}) + raw(std::uint64_t{1} << 60)), "a number of metadata pairs of");
}

TEST(Gguf, RefusesMetadata) {
  const auto with = [](const std::string& pair) { return error_of(gguf_file({pair}, {})); };
  expect_has(with(raw(std::uint64_t{1} << 40) + std::string(40, 'x')), "file ends inside a metadata key");
  expect_has(with(gguf_pair("", kU32, raw(1))), "a metadata key of 0 bytes");
  expect_has(with(gguf_pair("k", 13, raw(1))), "metadata 'k': value type 13 is unknown");
  expect_has(with(gguf_pair("k", kBool, "\2")), "metadata 'k': a boolean is 2");
  expect_has(with(gguf_pair("k", kString, raw(~std::uint64_t{0}) + std::string(40, 'x'))), "ends inside metadata 'k'");
  expect_has(with(gguf_pair("k", kArray, gguf_array(kU32, std::uint64_t{1} << 62, ""))), "'k': a count of 46116860");
  expect_has(with(gguf_pair("k", kArray, gguf_array(kString, 100, std::string(40, '\0')))), "'k': a count of 100");
  expect_has(with(gguf_pair("k", kArray, gguf_array(kArray, 100, std::string(40, '\0')))), "'k': a count of 100");
  std::string deep = gguf_array(kU32, 0, "");
  for (int i = 0; i < 7; ++i) deep = gguf_array(kArray, 1, deep);
  EXPECT_EQ(with(gguf_pair("k", kArray, deep)), "");
  expect_has(with(gguf_pair("k", kArray, gguf_array(kArray, 1, deep))), "arrays more than 8 deep");
  const std::string pair = gguf_pair("k", kU32, raw(1));
  expect_has(error_of(gguf_file({pair, pair}, {})), "metadata 'k' is there twice");
  for (const std::uint32_t alignment : {0u, 48u})
    expect_has(with(gguf_pair("general.alignment", kU32, raw(alignment))), "no power of two");
  expect_has(with(gguf_pair("general.alignment", kString, gguf_string("32"))), "is string, not a whole number");
}

TEST(Gguf, RefusesWeightsByName) {
  const auto with = [](const GgufWeight& weight) { return error_of(gguf_file({}, {weight})); };
  expect_has(with({"w", {4}, 0, std::string(12, 'x')}), "weight 'w': 16 bytes at 0 lie outside of the 12 bytes");
  expect_has(with({"w", {1}, 0, "1234", 33}), "weight 'w': its offset 33 is no multiple of the alignment 32");
  expect_has(with({"w", {1}, 0, "1234", 1 << 20}), "weight 'w': 4 bytes at 1048576 lie outside");
  expect_has(with({"w", {33}, 8, std::string(80, 'x')}),
             "weight 'w': rows of 33 elements are not whole blocks of q8_0");
  expect_has(with({"w", {}, 12, std::string(200, 'x')}), "not whole blocks of q4_k");
  expect_has(with({"w", {32}, 10, std::string(80, 'x')}), "weight 'w': type Q2_K is not one");
  expect_has(with({"w", {32}, 4, std::string(80, 'x')}), "weight 'w': type number 4 is unknown");
  expect_has(with({"w", {1, 1, 1, 1, 1, 1, 1}, 0, "1234"}), "weight 'w': 7 dimensions");
  expect_has(with({"w", {~std::uint64_t{0}, 2}, 0, "1234"}), "multiply to more than any memory");
  expect_has(with({"w", {std::uint64_t{1} << 62, std::uint64_t{1} << 61, 0}, 0, ""}), "multiply to more");
  expect_has(with({"", {1}, 0, "1234"}), "empty name");
  expect_has(error_of(gguf_file({}, {{"a", {16}, 0, std::string(64, 'x')}, {"b", {4}, 0, std::string(16, 'x'), 32}})),
             "weight 'b': its bytes overlap those of 'a'");
  EXPECT_EQ(with({"w", {0, 5}, 0, ""}), "");
}

TEST(Gguf, OpensFilesDirectoriesAndParts) {
  const TestDirectory dir;
  const auto path = dir.write("m.gguf", sample());
  ASSERT_TRUE(Checkpoint::open(path));
  auto from_directory = Checkpoint::open(dir.path());
  ASSERT_TRUE(from_directory) << from_directory.error().message;
  EXPECT_EQ((*from_directory)->find("q")->type, BlockFormat::q8_0);
  dir.write("n.gguf", sample());
  expect_has(Checkpoint::open(dir.path()).error().message, "holds several models: 'm.gguf', 'n.gguf'");
  dir.write("n.gguf", gguf_file({}, {{"w", {1}, 0, "1234"}, {"w", {1}, 0, "1234"}}));
  expect_has(Checkpoint::open(dir.path() / "n.gguf").error().message, "'w' is there twice");

  const TestDirectory parts;
  const std::string count = gguf_pair("split.count", 2, raw(std::uint16_t{2}));
  parts.write("m-00001-of-00002.gguf", gguf_file({count, gguf_pair("n", kU32, raw(5))}, {{"a", {1}, 0, "1234"}}));
  expect_has(Checkpoint::open(parts.path()).error().message, "m-00002-of-00002.gguf");
  const auto second = parts.write("m-00002-of-00002.gguf", gguf_file({count}, {{"b", {1}, 0, "5678"}}));
  const auto whole = Checkpoint::open(parts.path());
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_TRUE((*whole)->find("a") && (*whole)->find("b"));
  EXPECT_EQ(*(*whole)->metadata().integer("n"), 5);
  expect_has(Checkpoint::open(second).error().message, "open the first, whose name ends with -00001-of-00002.gguf");
  parts.write("m-00001-of-00002.gguf", gguf_file({gguf_pair("split.count", kU32, raw(4000000000u))}, {}));
  expect_has(Checkpoint::open(parts.path()).error().message, "'split.count' is 4000000000");
}

// No prefix of a file, and no file with one byte changed, is read wrongly: an error or arrays inside of the bytes.
TEST(Gguf, SurvivesDamage) {
  const std::string whole = sample();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    EXPECT_FALSE(read_gguf(as_span(cut), "cut")) << size;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 3; ++i) damaged[random() % (damaged.size() - 64)] = static_cast<char>(random());
    const auto model = read_gguf(as_span(damaged), "damaged");
    if (!model) continue;
    for (const StoredWeight& weight : model->weights) {
      EXPECT_GE(weight.bytes.data(), as_span(damaged).data());
      EXPECT_LE(weight.bytes.data() + weight.bytes.size(), as_span(damaged).data() + damaged.size());
    }
  }
}

}  // namespace
}  // namespace mstar::weights
