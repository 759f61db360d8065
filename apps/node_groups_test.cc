#include "node_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory_plan.h"

namespace mstar::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace decl;

// A host component and two device components that share a cache.
struct Example {
  Decl decl{"example"};
  ComponentRef words, encoder, decoder;
  Example() {
    const PortRef file = decl.port({.name = "file", .dtype = DType::bytes, .travel = {FromRequest{}}});
    const PortRef states = decl.port({.name = "states"});
    const PortRef text = decl.port({.name = "text", .dtype = DType::utf8, .travel = {ToClient{}}});
    const ResourceRef kv =
        decl.resource(PagedKv{.name = "kv", .layers = 2, .kv_heads = 4, .head_dim = 8, .max_tokens_per_request = 64});
    words = decl.component(HostComponent{.name = "words"});
    encoder = decl.component(DeviceComponent{.name = "encoder", .uses = {kv}});
    decoder = decl.component(DeviceComponent{.name = "decoder", .uses = {kv}});
    decl.walk("listen", Sequential{{Run{encoder, {file}, {states}}, Run{decoder, {states}, {text}}}});
    decl.walk("speak", Run{decoder, {states}, {text}});
  }
  std::vector<NodeGroup> groups(const std::vector<NodeGroupConfig>& config) const {
    auto out = resolve_node_groups(decl, config);
    EXPECT_TRUE(out);
    return out ? *out : std::vector<NodeGroup>{};
  }
  std::string fault(const std::vector<NodeGroupConfig>& config) const {
    const auto out = resolve_node_groups(decl, config);
    return out ? "" : out.error().message;
  }
};

TEST(NodeGroups, WithoutAnyHostComponentsStayOnTheHostAndTheRestOnRankZero) {
  const Example e;
  const auto groups = e.groups({});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_TRUE(groups[0].on_host());
  EXPECT_THAT(groups[0].components, ElementsAre(e.words));
  EXPECT_THAT(groups[1].components, ElementsAre(e.encoder, e.decoder));
  EXPECT_THAT(groups[1].ranks, ElementsAre(0));
}

TEST(NodeGroups, WhatNoGroupNamesGoesToRankZero) {
  const Example e;
  const auto groups = e.groups({{.components = {"decoder"}, .walks = {}, .ranks = {1, 2}}});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_THAT(groups[1].components, ElementsAre(e.encoder));
  EXPECT_THAT(groups[2].ranks, ElementsAre(1, 2));
}

TEST(NodeGroups, FaultsAreToldTogether) {
  const Example e;
  const std::string text = e.fault({{.components = {"decodr", "words"}, .walks = {}, .ranks = {0}},
                                    {.components = {"encoder", "encoder"}, .walks = {"spek"}, .ranks = {64}},
                                    {.components = {"decoder"}, .walks = {"speak"}, .ranks = {0, 1}, .tp_size = 2}});
  EXPECT_THAT(text,
              HasSubstr("there is no component 'decodr'; did you mean 'decoder'? It has: words, encoder, decoder"));
  EXPECT_THAT(text, HasSubstr("'words' runs on the host"));
  EXPECT_THAT(text, HasSubstr("'encoder' is in two node groups"));
  EXPECT_THAT(text, HasSubstr("there is no walk 'spek'; did you mean 'speak'?"));
  EXPECT_THAT(text, HasSubstr("rank 64 is above"));
  EXPECT_THAT(text, HasSubstr("tp_size"));
  EXPECT_THAT(text, HasSubstr("add 'listen'"));  // the decoder runs there too
}

TEST(MemoryPlan, CountsASharedPoolOncePerRank) {
  const Example e;
  const resource::PoolLimits limits{.max_requests = 4, .max_rows = 4, .max_tokens = 64};
  const std::size_t pool = resource::planned_bytes(e.decl.at(ResourceRef(0)), limits);
  ASSERT_GT(pool, 0u);
  const auto together = e.groups({});
  const auto apart = e.groups({{.components = {"decoder"}, .walks = {}, .ranks = {1, 2}}});
  const auto plan = [&](const std::vector<NodeGroup>& groups) {
    return *plan_memory({{"m", &e.decl, nullptr, &groups, "stored"}}, limits, 1 << 20);
  };
  EXPECT_EQ(plan(together).total_bytes(), pool);
  EXPECT_EQ(plan(apart).total_bytes(), 3 * pool);
  EXPECT_THAT(memory_table(plan(apart)), ::testing::AllOf(HasSubstr("   2  m      kv    pool"), HasSubstr("budget")));
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(1536), "2 KiB");
  EXPECT_EQ(format_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(format_bytes(std::size_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace mstar::apps
