#include "config_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "output_files.h"
#include "yaml_tree.h"

namespace mstar::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The messages for a configuration that must be refused.
std::string faults(const std::string& text) {
  const auto parsed = parse_config(text, "c.yaml");
  return parsed ? "" : parsed.error().message;
}

TEST(Config, ReadsEveryKey) {
  const auto parsed = parse_config(R"(
models:
  - model: dir/whisper
    name: w
    aliases: [whisper-1, 7]
    options: {weights: i8, depth: 3, scale: 0.5, fast: true, tag: "12"}
    node_groups:
      - {components: [encoder], ranks: [0, 1]}
      - {node_names: [decoder], graph_walks: [decode], ranks: [2, 3], tp_size: 2, sp_size: 1}
  - model: other
max_concurrent_requests: 5
max_queued_requests: 0
routing: random
rank_devices: {0: "cuda:1", 3: cuda:1}
threads: 3
stay_awake_us: 150
memory: 2GiB
isolation: thread
hang_timeout_s: 2.5
load_timeout_s: 7
limits: {step_rows: 8, step_tokens: 64}
server:
  host: "::1"
  port: 0
  body_limit: 10M
  request_timeout_s: 1.5
  transfer_timeout_s: 120
  keep_alive: false
  min_bytes_per_s: 10
  cors_origins: ["http://a", "http://b"]
  api_keys: [sk-1, sk-2]
warmup_requests:
  - {text: hi, files: [a.wav], output_modalities: [text, audio], model_kwargs: {language: en}, concurrency: 2}
)",
                                   "c.yaml");
  ASSERT_TRUE(parsed) << parsed.error().message;
  const RuntimeConfig& runtime = parsed->runtime;
  ASSERT_EQ(runtime.models.size(), 2u);
  const ModelConfig& model = runtime.models[0];
  EXPECT_EQ(model.model, "dir/whisper");
  EXPECT_THAT(model.aliases, ElementsAre("whisper-1", "7"));
  EXPECT_EQ(model.options.get_int("depth", 0).value_or(-1), 3);
  EXPECT_EQ(model.options.get_number("scale", 0).value_or(-1), 0.5);
  EXPECT_EQ(model.options.get_bool("fast", false).value_or(false), true);
  EXPECT_TRUE(std::holds_alternative<std::string>(model.options.values().at("tag")));
  ASSERT_EQ(model.node_groups.size(), 2u);
  EXPECT_THAT(model.node_groups[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(model.node_groups[1].components, ElementsAre("decoder"));
  EXPECT_THAT(model.node_groups[1].walks, ElementsAre("decode"));
  EXPECT_EQ(model.node_groups[1].tp_size, 2);
  EXPECT_EQ(runtime.max_concurrent_requests, 5);
  EXPECT_TRUE(runtime.max_requests_given);
  EXPECT_EQ(runtime.max_queued_requests, 0);
  EXPECT_EQ(runtime.routing, conductor::Routing::random);
  ASSERT_EQ(runtime.rank_devices.size(), 2u);
  EXPECT_EQ(runtime.rank_devices.at(3).backend, Backend::cuda);
  EXPECT_EQ(runtime.rank_devices.at(3).index, 1);
  EXPECT_EQ(runtime.num_threads, 3);
  EXPECT_EQ(runtime.stay_awake_us, 150);
  EXPECT_EQ(runtime.memory_bytes, std::size_t{2} << 30);
  EXPECT_EQ(runtime.hang_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(runtime.load_timeout, std::chrono::seconds(7));
  EXPECT_EQ(runtime.max_step_rows, 8);
  EXPECT_EQ(parsed->server.host, "::1");
  EXPECT_EQ(parsed->server.port, 0);
  EXPECT_EQ(parsed->server.body_limit_bytes, std::size_t{10} << 20);
  EXPECT_EQ(parsed->server.request_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(parsed->server.transfer_timeout, std::chrono::seconds(120));
  EXPECT_FALSE(parsed->server.keep_alive);
  EXPECT_THAT(parsed->server.cors_origins, ElementsAre("http://a", "http://b"));
  EXPECT_THAT(parsed->server.api_keys, ElementsAre("sk-1", "sk-2"));
  ASSERT_EQ(parsed->warmup.size(), 1u);
  EXPECT_EQ(parsed->warmup[0].concurrency, 2);
  EXPECT_THAT(parsed->warmup[0].output_modalities, ElementsAre(decl::Modality::text, decl::Modality::audio));
}

TEST(Config, OneModelMayStandAtTheTop) {
  const auto parsed = parse_config("model: whisper-base\naliases: [whisper-1]\n", "c.yaml");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_THAT(parsed->runtime.models[0].aliases, ElementsAre("whisper-1"));
  EXPECT_FALSE(parsed->runtime.max_requests_given);
}

TEST(Config, AnUnknownKeyIsNamedWithItsPlaceTheNearestAndTheAllowedOnes) {
  EXPECT_THAT(faults("model: m\nserver:\n  prot: 80\n"),
              ::testing::AllOf(
                  HasSubstr("c.yaml:3:3: unknown key 'prot' in 'server'; did you mean 'port'? Allowed: host, port, "),
                  HasSubstr("request_timeout_s")));
  EXPECT_THAT(faults("model: m\nzzzzzzzz: 1\n"),
              HasSubstr("c.yaml:2:1: unknown key 'zzzzzzzz' Allowed: models, model, "));
  EXPECT_THAT(faults("models:\n- model: m\n  alias: [a]\n"),
              HasSubstr("c.yaml:3:3: unknown key 'alias' in 'models'; did you mean 'aliases'?"));
}

struct Wrong {
  const char* text;
  const char* message;
};
class ConfigFaults : public ::testing::TestWithParam<Wrong> {};
TEST_P(ConfigFaults, AreSaidWithTheirPlace) { EXPECT_THAT(faults(GetParam().text), HasSubstr(GetParam().message)); }

INSTANTIATE_TEST_SUITE_P(
    All, ConfigFaults,
    ::testing::Values(
        Wrong{"", "a model needs 'model'"}, Wrong{"- 1\n", "c.yaml:1:1: the file must be a map of keys, not a list"},
        Wrong{"just words\n", "must be a map of keys, not 'just words'"},
        Wrong{"model: m\nthreads: many\n", "c.yaml:2:10: 'threads' must be a whole number from 0 to 1024, not 'many'"},
        Wrong{"model: m\nthreads: '3'\n", "c.yaml:2:10: 'threads' must be a whole number"},
        Wrong{"model: m\nthreads: [3]\n", "c.yaml:2:10: 'threads' must be a whole number, not a list"},
        Wrong{"model: m\nserver: {port: 65536}\n",
              "c.yaml:2:16: 'server.port' must be a whole number from 0 to 65535, not '65536'"},
        Wrong{"model: m\nserver: {port: 99999999999999999999}\n", "'server.port' must be a whole number"},
        Wrong{"model: m\nserver: {cors_origin: a, cors_origins: [b]}\n", "two names of one key"},
        Wrong{"model: m\nserver: {api_keys: ['']}\n", "'server.api_keys' holds an empty key"},
        Wrong{"model: m\nserver: {keep_alive: yes}\n", "'server.keep_alive' must be true or false, not 'yes'"},
        Wrong{"model: m\nserver: {request_timeout_s: .inf}\n",
              "'server.request_timeout_s' must be a number from 0.001 to 86400"},
        Wrong{"model: m\nserver: [1]\n", "c.yaml:2:9: 'server' must be a map of keys, not a list"},
        Wrong{"model: m\nmemory: lots\n", "c.yaml:2:9: 'memory' must be a size such as 512M or 4G, not 'lots'"},
        Wrong{"model: m\nrouting: best\n",
              "c.yaml:2:10: 'routing' must be one of least_loaded, random, prefix, not 'best'"},
        Wrong{"model: m\naliases: whisper-1\n",
              "c.yaml:2:10: 'aliases' must be a list, such as [a, b], not 'whisper-1'"},
        Wrong{"model: m\naliases: [[a]]\n", "one of them is a list"},
        Wrong{"model: m\noptions: [a]\n", "c.yaml:2:10: 'options' must be a map of names and values, not a list"},
        Wrong{"model: m\noptions: {a: {b: 1}}\n", "'a' in 'options' must be a value or a list of values, not a map"},
        Wrong{"model: m\nmodels: [{model: n}]\n", "'models' and 'model' at the top exclude each other"},
        Wrong{"models: []\n", "'models' must be a list with at least one model"},
        Wrong{"model: m\nnode_groups: [{components: [a]}]\n", "a node group needs 'ranks'"},
        Wrong{"model: m\nnode_groups: [{ranks: [0]}]\n", "a node group needs 'components'"},
        Wrong{"model: m\nnode_groups: [{components: [a], node_names: [a], ranks: [0]}]\n", "are two names of one key"},
        Wrong{"model: m\nnode_groups: [{components: [a], ranks: [0, 1, 2], tp_size: 2}]\n",
              "the number of ranks, 3, must be a multiple"},
        Wrong{"model: m\nnode_groups: [{components: [a], ranks: [-1]}]\n",
              "'node_groups.ranks' must hold whole numbers from 0 to 63"},
        Wrong{"model: m\nnode_groups: [{components: [a], ranks: []}]\n", "a node group needs 'ranks'"},
        Wrong{"model: m\nnode_groups: {components: [a], ranks: [0]}\n", "'node_groups' must be a list"},
        Wrong{"model: m\nnode_groups: [{components: [a], ranks: [0], walk: [x]}]\n", "walks"},
        Wrong{"model: m\nnode_groups: [{components: [a], ranks: [0], tp_size: 0}]\n",
              "'node_groups.tp_size' must be a whole number from 1 to 64"},
        Wrong{"model: m\nrank_devices: [cpu]\n", "c.yaml:2:15: 'rank_devices' must be a map"},
        Wrong{"model: m\nrank_devices: {one: cpu}\n", "c.yaml:2:16: 'rank_devices' has 'one' as a rank"},
        Wrong{"model: m\nrank_devices: {64: cpu}\n", "ranks are whole numbers from 0 to 63"},
        Wrong{"model: m\nrank_devices: {1: gpu}\n",
              "c.yaml:2:19: the device of rank 1 must be cpu or cuda:N, such as cuda:0, not 'gpu'"},
        Wrong{"model: m\nrank_devices: {1: cuda:x}\n", "not 'cuda:x'"},
        Wrong{"model: m\nrank_devices: {1: 1}\n", "not '1'"},
        Wrong{"model: m\nwarmup_requests: [{output_modalities: [smell]}]\n", "'output_modalities' holds 'smell'"},
        Wrong{"model: m\nwarmup_requests: {text: hi}\n", "c.yaml:2:18: 'warmup_requests' must be a list"},
        Wrong{"model: m\nmodel: n\n", "c.yaml:2:1: the key 'model' stands here a second time"},
        Wrong{"model: [m\n", "c.yaml:"}, Wrong{"a: b: c\n", "c.yaml:1:"},
        Wrong{"model: m\n---\nmodel: n\n", "a second document"}, Wrong{"? [a]\n: 1\n", "a key must be a word"}));

TEST(Config, AllFaultsAreToldAtOnceInTheOrderOfTheFile) {
  const std::string text = faults("model: m\nthreads: x\nport: 1\nserver: {host: [a]}\n");
  EXPECT_THAT(text, ::testing::MatchesRegex("c.yaml:2:10: .*\nc.yaml:3:1: .*\nc.yaml:4:16: .*"));
}

TEST(Config, AFewBytesCannotBecomeAHugeTree) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int k = 1; k < 10; ++k) bomb += ", " + last;
    bomb += "]\n";
  }
  EXPECT_THAT(faults(bomb), HasSubstr("more than 100000 values"));
  EXPECT_THAT(faults("a: " + std::string(2000, '[') + "\n"), HasSubstr("c.yaml:"));
  EXPECT_THAT(faults("a: &a [*a]\n"), HasSubstr("c.yaml"));
}

TEST(Config, TheExamplesInTheRepositoryAreRead) {
  for (const char* name : {"whisper", "two_replicas", "two_models", "two_processes"}) {
    const std::string path = std::string(MSTAR_SOURCE_DIR) + "/configs/" + name + ".yaml";
    const auto parsed = parse_config(read_whole(path).value_or("?"), path);
    EXPECT_TRUE(parsed) << parsed.error().message;
  }
}

TEST(ParseBytes, TakesUnitsOf1024) {
  EXPECT_EQ(parse_bytes("1000").value_or(0), 1000u);
  EXPECT_EQ(parse_bytes("4G").value_or(0), std::size_t{4} << 30);
  EXPECT_EQ(parse_bytes("512MiB").value_or(0), std::size_t{512} << 20);
  EXPECT_EQ(parse_bytes("3k").value_or(0), 3072u);
  EXPECT_EQ(parse_bytes("1T").value_or(0), std::size_t{1} << 40);
  for (const char* bad : {"", "G", "iB", "4GB", "-1", "1.5G", "4 G", "99999999999999999999", "99999999999T"})
    EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(NearestName, SuggestsOnlyWhatIsNear) {
  EXPECT_EQ(nearest_name("prot", {"host", "port"}), "port");
  EXPECT_EQ(nearest_name("max_requests", {"max_concurrent_requests", "memory"}), "");
  EXPECT_EQ(nearest_name("elephant", {"host", "port"}), "");
}

}  // namespace
}  // namespace mstar::apps
