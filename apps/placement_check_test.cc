#include "placement_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mstar::apps {
namespace {

using ::testing::HasSubstr;
using namespace decl;

const RankDevice kCpu{}, kCuda0{Backend::cuda, 0}, kCuda3{Backend::cuda, 3};

std::string contradiction(DeviceChoice device, std::map<int, RankDevice> ranks) {
  RuntimeConfig config;
  config.device = device;
  config.rank_devices = std::move(ranks);
  const auto chosen = chosen_device(config);
  return chosen ? "" : chosen.error().message;
}

TEST(RankDevices, SayWhichKindOfDeviceIsUsed) {
  RuntimeConfig config;
  config.rank_devices = {{0, kCuda0}, {1, kCuda0}};
  EXPECT_EQ(*chosen_device(config), DeviceChoice::cuda);
  EXPECT_EQ(cuda_index(config, 1), 0);
  EXPECT_EQ(cuda_index(config, 2), 2);
  config.rank_devices = {{1, kCpu}};
  EXPECT_EQ(*chosen_device(config), DeviceChoice::cpu);
  config.rank_devices.clear();
  EXPECT_EQ(*chosen_device(config), DeviceChoice::automatic);
}

TEST(RankDevices, MustNotContradictEachOtherNorTheDevice) {
  EXPECT_THAT(contradiction(DeviceChoice::automatic, {{0, kCpu}, {1, kCuda3}}), HasSubstr("names cpu and cuda:3"));
  EXPECT_THAT(contradiction(DeviceChoice::cpu, {{1, kCuda3}}),
              HasSubstr("puts rank 1 on cuda:3, and 'device' says cpu"));
  EXPECT_THAT(contradiction(DeviceChoice::cuda, {{2, kCpu}}), HasSubstr("puts rank 2 on cpu, and 'device' says cuda"));
  EXPECT_EQ(contradiction(DeviceChoice::cuda, {{0, kCuda0}}), "");
}

TEST(RankDevices, MustBeThereAndBelongToARank) {
  RuntimeConfig config;
  config.rank_devices = {{0, kCuda3}};
  EXPECT_TRUE(check_devices(config, Backend::cpu, 1, 0));
  EXPECT_TRUE(check_devices(config, Backend::cuda, 1, 4));
  EXPECT_THAT(check_devices(config, Backend::cuda, 1, 2).error().message,
              HasSubstr("rank 0 is to work on cuda:3, and the last CUDA device here is cuda:1"));
  EXPECT_THAT(check_devices({}, Backend::cuda, 3, 2).error().message, HasSubstr("rank 2 is to work on cuda:2"));
  config.rank_devices = {{2, kCpu}};
  EXPECT_THAT(check_devices(config, Backend::cpu, 2, 0).error().message,
              HasSubstr("rank_devices names rank 2, and the node groups have ranks up to 1"));
}

// A loop of two components that do not wait for each other; one of them stops it.
struct Free {
  Decl decl{"free"};
  ComponentRef free, decider;
  Free() {
    const PortRef a = decl.port({.name = "a", .travel = {FromPlan{}}}),
                  x = decl.port({.name = "x", .travel = {FromPlan{}}});
    const PortRef y = decl.port({.name = "y", .travel = {ToClient{}}});
    free = decl.component(DeviceComponent{.name = "free"});
    decider = decl.component(DeviceComponent{.name = "decider"});
    decl.walk("w", Loop{.name = "loop",
                        .body = {Run{free, {a}, {y}}, Run{decider, {x}, {x}}},
                        .stop = ComponentSignal{},
                        .at_most = 9});
  }
  Status check(const std::vector<NodeGroupConfig>& config) const {
    auto compiled = graph::CompiledModel::compile(decl);
    MSTAR_TRY(compiled);
    MSTAR_TRY_ASSIGN(const auto groups, resolve_node_groups(decl, config));
    return check_fragments(*compiled, groups);
  }
};

TEST(Fragments, ASplitThatCannotWorkIsFoundBeforeARequestChoosesIt) {
  const Free model;
  EXPECT_TRUE(model.check({{.components = {"free", "decider"}, .ranks = {0, 1}}}));
  EXPECT_TRUE(model.check({{.components = {"free"}, .ranks = {0}}, {.components = {"decider"}, .ranks = {0}}}));
  const Status apart = model.check({{.components = {"free"}, .ranks = {0}}, {.components = {"decider"}, .ranks = {1}}});
  ASSERT_FALSE(apart);
  EXPECT_EQ(apart.error().code, Code::bad_model);
  EXPECT_THAT(apart.error().message,
              HasSubstr("'free' must be on the worker of 'decider', which may stop loop 'loop'"));
  EXPECT_THAT(apart.error().message, HasSubstr("with 'free' on rank 0, 'decider' on rank 1"));
  // Most choices keep both together; one does not.
  const Status some =
      model.check({{.components = {"free"}, .ranks = {0, 1}}, {.components = {"decider"}, .ranks = {0, 1}}});
  ASSERT_FALSE(some);
  EXPECT_THAT(some.error().message, HasSubstr("with 'free' on rank 1, 'decider' on rank 0"));
}

TEST(Fragments, ManyReplicasAreCheckedByWhatTheyShare) {
  const Free model;
  std::vector<int> all;
  for (int rank = 0; rank <= kMaxRank; ++rank) all.push_back(rank);
  EXPECT_TRUE(model.check({{.components = {"free", "decider"}, .ranks = all}}));
  EXPECT_FALSE(model.check({{.components = {"free"}, .ranks = {63}}, {.components = {"decider"}, .ranks = all}}));
}

// Of models with one component each, 'free' and 'decider' of each model on the groups given.
std::string in_step_fault(const std::vector<std::vector<NodeGroupConfig>>& configs, const RuntimeConfig& config = {},
                          Backend backend = Backend::cpu) {
  std::vector<OpenedModel> models;
  for (std::size_t m = 0; m < configs.size(); ++m) {
    OpenedModel& model = models.emplace_back();
    model.config.name = "m" + std::to_string(m);
    model.decl = std::make_unique<const Decl>(Free().decl);
    auto groups = resolve_node_groups(*model.decl, configs[m]);
    EXPECT_TRUE(groups);
    if (groups) model.groups = std::move(*groups);
  }
  const Status checked = check_ranks_in_step(models, config, backend);
  return checked ? "" : checked.error().message;
}

TEST(RanksInStep, DoNothingElse) {
  const NodeGroupConfig both{.components = {"free", "decider"}, .ranks = {0, 1, 2, 3}, .tp_size = 2};
  EXPECT_EQ(in_step_fault({{both}}), "");
  EXPECT_EQ(in_step_fault({{both}, {both}}), "");
  EXPECT_EQ(in_step_fault({{both}, {{.components = {"free", "decider"}, .ranks = {4}}}}), "");
  EXPECT_EQ(in_step_fault({{both}, {{.components = {"free", "decider"}, .ranks = {2}}}}), "");  // a leader may
  EXPECT_THAT(in_step_fault({{both}, {{.components = {"free", "decider"}, .ranks = {3}}}}),
              HasSubstr("rank 3 works in step with others for 'free', 'decider' of 'm0' (ranks 2, 3), so it cannot run "
                        "'free', 'decider' of 'm1' on rank 3"));
  EXPECT_THAT(
      in_step_fault({{{.components = {"free"}, .ranks = {0, 1}, .tp_size = 2},
                      {.components = {"decider"}, .ranks = {1, 0}, .tp_size = 2}}}),
      HasSubstr("rank 0 works in step with others for 'free' of 'm0' (ranks 0, 1), so it cannot run 'decider'"));
  EXPECT_THAT(in_step_fault({{{.components = {"free"}, .ranks = {0, 1}, .tp_size = 2},
                              {.components = {"decider"}, .ranks = {0, 2}, .tp_size = 2}}}),
              HasSubstr("on ranks 0, 2; give that the same ranks and tp_size"));
}

TEST(RanksInStep, HaveADeviceEach) {
  const NodeGroupConfig both{.components = {"free", "decider"}, .ranks = {0, 1}, .tp_size = 2};
  RuntimeConfig config;
  config.isolation = Isolation::process;
  EXPECT_EQ(in_step_fault({{both}}, config), "");
  config.isolation = Isolation::thread;
  config.rank_devices = {{0, kCuda3}, {1, kCuda3}};
  EXPECT_EQ(in_step_fault({{both}}, config), "");
  EXPECT_THAT(in_step_fault({{both}}, config, Backend::cuda), HasSubstr("ranks 0, 1 work in step for"));
}

}  // namespace
}  // namespace mstar::apps
