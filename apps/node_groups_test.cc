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
  // `apart`: each has a cache of its own.
  explicit Example(bool apart = false) {
    const PortRef file = decl.port({.name = "file", .dtype = DType::bytes, .travel = {FromRequest{}}});
    const PortRef states = decl.port({.name = "states"});
    const PortRef text = decl.port({.name = "text", .dtype = DType::utf8, .travel = {ToClient{}}});
    const ResourceRef kv =
        decl.resource(PagedKv{.name = "kv", .layers = 2, .kv_heads = 4, .head_dim = 8, .max_tokens_per_request = 64});
    const ResourceRef own =
        apart ? decl.resource(
                    PagedKv{.name = "own", .layers = 2, .kv_heads = 4, .head_dim = 8, .max_tokens_per_request = 64})
              : kv;
    words = decl.component(HostComponent{.name = "words"});
    encoder = decl.component(DeviceComponent{.name = "encoder", .uses = {own}});
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
  EXPECT_THAT(groups[1].ranks(), ElementsAre(0));
}

TEST(NodeGroups, WhatNoGroupNamesGoesToRankZero) {
  const Example e(true);
  const auto groups = e.groups({{.components = {"decoder"}, .walks = {}, .ranks = {1, 2}}});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_THAT(groups[1].components, ElementsAre(e.encoder));
  EXPECT_THAT(groups[2].replica_ranks, ElementsAre(ElementsAre(1), ElementsAre(2)));
}

TEST(NodeGroups, FaultsAreToldTogether) {
  const Example e;
  const std::string text = e.fault({{.components = {"decodr", "words"}, .walks = {}, .ranks = {0}},
                                    {.components = {"encoder", "encoder"}, .walks = {"spek"}, .ranks = {64}}});
  EXPECT_THAT(text,
              HasSubstr("there is no component 'decodr'; did you mean 'decoder'? It has: words, encoder, decoder"));
  EXPECT_THAT(text, HasSubstr("'words' runs on the host"));
  EXPECT_THAT(text, HasSubstr("'encoder' stands twice"));
  EXPECT_THAT(text, HasSubstr("there is no walk 'spek'; did you mean 'speak'?"));
  EXPECT_THAT(text, HasSubstr("rank 64 is above"));
}

// Each of these alone, and nothing else is said.
TEST(NodeGroups, EachFaultHasItsOwnWords) {
  const Example e;
  struct Case {
    std::vector<NodeGroupConfig> groups;
    std::string fault;
  };
  const std::vector<Case> cases = {
      {{{.components = {"decodr"}, .ranks = {0}}}, "there is no component 'decodr'; did you mean 'decoder'?"},
      {{{.components = {"decoder"}, .walks = {"spek"}, .ranks = {0}}, {.components = {"encoder"}, .ranks = {0}}},
       "there is no walk 'spek'; did you mean 'speak'?"},
      {{{.components = {"words"}, .ranks = {0}}}, "'words' runs on the host and takes no ranks"},
      {{{.components = {}, .ranks = {0}}}, "a node group names no component"},
      {{{.components = {"decoder"}, .ranks = {}}}, "the node group of 'decoder' has no ranks"},
      {{{.components = {"decoder"}, .ranks = {3, 1, 3}}}, "rank 3 stands twice in the node group of 'decoder'"},
      {{{.components = {"decoder"}, .ranks = {-1}}}, "rank -1 is below 0"},
      {{{.components = {"decoder"}, .ranks = {64}}}, "rank 64 is above the largest, 63"},
      {{{.components = {"decoder"}, .ranks = {0}}, {.components = {"decoder"}, .ranks = {0}}},
       "the component 'decoder' is in two node groups"},
      {{{.components = {"decoder"}, .walks = {"listen", "speak"}, .ranks = {0}},
        {.components = {"decoder"}, .walks = {"speak"}, .ranks = {0}}},
       "the component 'decoder' is in two node groups for the walk 'speak'"},
      {{{.components = {"decoder", "decoder"}, .ranks = {0}}},
       "the component 'decoder' stands twice in one node group"},
      {{{.components = {"decoder"}, .walks = {"speak", "listen", "speak"}, .ranks = {0}}},
       "the walk 'speak' stands twice in one node group"},
      {{{.components = {"decoder"}, .walks = {"speak"}, .ranks = {0}}},
       "no node group runs 'decoder' in the walk 'listen'"},
      {{{.components = {"encoder"}, .walks = {"listen", "speak"}, .ranks = {0}}},
       "the walk 'speak' runs no component of the node group of 'encoder'"},
      {{{.components = {"decoder"}, .ranks = {1}}},
       "'encoder' and 'decoder' share 'kv', of which each rank has its own"},
      // Both on the same two ranks, but a request may choose a different one of each.
      {{{.components = {"decoder"}, .ranks = {0, 1}}, {.components = {"encoder"}, .ranks = {0, 1}}},
       "'decoder' and 'encoder' share 'kv'"}};
  for (const Case& each : cases) {
    const std::string text = e.fault(each.groups);
    EXPECT_THAT(text, ::testing::StartsWith("model 'example': " + each.fault));
  }
  EXPECT_EQ(e.fault({{.components = {"decoder", "encoder"}, .ranks = {0, 1}}}), "");
  EXPECT_EQ(e.fault({{.components = {"decoder"}, .ranks = {3}}, {.components = {"encoder"}, .ranks = {3}}}), "");
}

TEST(NodeGroups, RanksInStepFollowEachOtherInTheList) {
  const Example e;
  const auto groups = e.groups({{.components = {"encoder", "decoder"}, .ranks = {4, 1, 0, 2}, .tp_size = 2}});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(groups[1].replica_ranks, ElementsAre(ElementsAre(4, 1), ElementsAre(0, 2)));
  EXPECT_THAT(groups[1].ranks(), ElementsAre(4, 1, 0, 2));
  EXPECT_EQ(e.fault({{.components = {"encoder", "decoder"}, .ranks = {0, 1, 2}, .tp_size = 2}}),
            "model 'example': the node group of 'encoder' has 3 ranks, which is no multiple of tp_size = 2");
  EXPECT_THAT(e.fault({{.components = {"encoder", "decoder"}, .ranks = {0}, .tp_size = 0}}),
              HasSubstr("tp_size of the node group of 'encoder' is below 1"));
  EXPECT_THAT(e.fault({{.components = {"encoder", "decoder"}, .ranks = {0, 1}, .sp_size = 0}}),
              HasSubstr("sp_size of the node group of 'encoder' is below 1"));
  EXPECT_THAT(e.fault({{.components = {"encoder", "decoder"}, .ranks = {0, 1}, .tp_size = 2, .sp_size = 2}}),
              HasSubstr("has 2 ranks, which is no multiple of tp_size x sp_size = 4"));
  // Each rank has its own cache, and one group's would have to be the other's too.
  EXPECT_THAT(
      e.fault({{.components = {"encoder"}, .ranks = {0}}, {.components = {"decoder"}, .ranks = {0, 1}, .tp_size = 2}}),
      HasSubstr("share 'kv', of which each rank has its own"));
}

TEST(NodeGroups, AGroupForSomeWalks) {
  const Example e;
  const auto groups = e.groups({{.components = {"encoder", "decoder"}, .walks = {"listen"}, .ranks = {2}},
                                {.components = {"decoder"}, .walks = {"speak"}, .ranks = {2}}});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_TRUE(groups[1].runs(e.decoder, WalkRef(0)));
  EXPECT_FALSE(groups[1].runs(e.decoder, WalkRef(1)));
  EXPECT_EQ(groups[1].describe(e.decl), "'encoder', 'decoder' in the walk 'listen'");
  EXPECT_TRUE(groups[2].runs(e.decoder, WalkRef(1)));
}

TEST(MemoryPlan, CountsASharedPoolOncePerRank) {
  const Example e;
  const resource::PoolLimits limits{.max_requests = 4, .max_rows = 4, .max_tokens = 64};
  const std::size_t pool = resource::planned_bytes(e.decl.at(ResourceRef(0)), limits);
  ASSERT_GT(pool, 0u);
  const auto together = e.groups({});
  const auto apart = e.groups({{.components = {"encoder", "decoder"}, .ranks = {0, 1, 2}}});
  const auto plan = [&](const std::vector<NodeGroup>& groups) {
    return *plan_memory({{"m", &e.decl, nullptr, &groups, [](const std::string&) { return "stored"; }}}, limits,
                        1 << 20);
  };
  EXPECT_EQ(plan(together).total_bytes(), pool);
  EXPECT_EQ(plan(apart).total_bytes(), 3 * pool);
  EXPECT_THAT(memory_table(plan(apart)), ::testing::AllOf(HasSubstr("   2  m      kv    pool"), HasSubstr("budget"),
                                                          HasSubstr("rank 2 together")));
}

TEST(MemoryPlan, FitsWhenEachDeviceDoes) {
  MemoryPlan plan{.lines = {{0, "m", "a", "weights", 60}, {1, "m", "a", "weights", 60}, {1, "m", "b", "pool", 30}},
                  .budget_bytes = 100};
  EXPECT_EQ(plan.fullest_bytes(), 150u);  // ranks of a processor share its memory
  EXPECT_FALSE(plan.fits());
  plan.rank_devices = {{1, 1}};
  EXPECT_EQ(plan.fullest_bytes(), 90u);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.rank_bytes(1), 90u);
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(1536), "2 KiB");
  EXPECT_EQ(format_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(format_bytes(std::size_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace mstar::apps
