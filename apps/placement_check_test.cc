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
              HasSubstr("on ranks 0, 2; give that the same ranks, tp_size and sp_size"));
}

// Of a model with one component that has heads and units of other kinds.
std::string units_fault(decl::DeviceComponent component, int tp_size, int sp_size) {
  Decl decl("cut");
  const PortRef x = decl.port({.name = "x", .travel = {FromPlan{}}}),
                y = decl.port({.name = "y", .travel = {ToClient{}}});
  component.name = "backbone";
  component.shared_units = {{.name = "query heads", .count = 12},
                            {.name = "key heads", .count = 2, .may_repeat = true},
                            {.name = "units of the feed-forward", .count = 30, .are_heads = false}};
  decl.walk("w", Run{decl.component(std::move(component)), {x}, {y}});
  std::vector<OpenedModel> models(1);
  models[0].config.name = "m";
  models[0].decl = std::make_unique<const Decl>(std::move(decl));
  NodeGroupConfig config{.components = {"backbone"}, .ranks = {}, .tp_size = tp_size, .sp_size = sp_size};
  for (int rank = 0; rank < tp_size * sp_size; ++rank) config.ranks.push_back(rank);
  auto groups = resolve_node_groups(*models[0].decl, {config});
  EXPECT_TRUE(groups);
  if (groups) models[0].groups = std::move(*groups);
  const Status checked = check_ranks_in_step(models, {}, Backend::cpu);
  return checked ? "" : checked.error().message;
}

TEST(RanksInStep, ShareOutWhatDivides) {
  const decl::DeviceComponent whole, tensor{.name = "", .tensor_parallel = true};
  const decl::DeviceComponent both{.name = "", .tensor_parallel = true, .sequence_parallel = true};
  const decl::DeviceComponent apart{.name = "", .tensor_parallel = true, .shard_over_sp = false};
  const struct {
    const decl::DeviceComponent& component;
    int tp, sp;
    const char* said;
  } cases[] = {
      {whole, 5, 1, ""},  // it is whole on each
      {whole, 1, 7, ""},
      {tensor, 2, 1, ""},
      {tensor, 6, 1, ""},
      {tensor, 5, 1, "'backbone' of 'm' has 12 query heads, which do not divide over tp_size = 5 ranks"},
      {tensor, 3, 1, "has 2 key heads, which do not divide over tp_size = 3 ranks"},
      {tensor, 4, 1, "has 30 units of the feed-forward, which do not divide over tp_size = 4 ranks"},
      {tensor, 2, 3, ""},  // weights are cut over all ranks
      {tensor, 2, 2, "has 30 units of the feed-forward, which do not divide over tp_size x sp_size = 4 ranks"},
      {both, 1, 4, ""},  // heads are, the rest is not
      {both, 2, 2, ""},
      {both, 2, 6, ""},
      {both, 1, 5, "has 12 query heads, which do not divide over sp_size = 5 ranks"},
      {both, 1, 3, "has 2 key heads, which do not divide over sp_size = 3 ranks"},
      {both, 2, 4, "has 12 query heads, which do not divide over tp_size x sp_size = 8 ranks"},
      {both, 4, 1, "has 30 units of the feed-forward, which do not divide over tp_size = 4 ranks"},
      {apart, 2, 5, ""},  // sequence ranks compute the same
      {apart, 5, 2, "has 12 query heads, which do not divide over tp_size = 5 ranks"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(std::to_string(each.tp) + " x " + std::to_string(each.sp));
    const std::string said = units_fault(each.component, each.tp, each.sp);
    if (*each.said) {
      EXPECT_THAT(said, HasSubstr(each.said));
    } else {
      EXPECT_EQ(said, "");
    }
  }
}

TEST(RanksInStep, AreOneMesh) {
  EXPECT_THAT(in_step_fault({{{.components = {"free"}, .ranks = {0, 1}, .tp_size = 2},
                              {.components = {"decider"}, .ranks = {0, 1}, .sp_size = 2}}}),
              HasSubstr("give that the same ranks, tp_size and sp_size"));
  EXPECT_EQ(in_step_fault({{{.components = {"free", "decider"}, .ranks = {0, 1, 2, 3}, .tp_size = 2, .sp_size = 2}}}),
            "");
}

TEST(RanksInStep, MayShareADeviceAsThreadsAndSplitBothAxesAsProcesses) {
  const NodeGroupConfig both{.components = {"free", "decider"}, .ranks = {0, 1}, .tp_size = 2};
  NodeGroupConfig mesh{.components = {"free", "decider"}, .ranks = {0, 1, 2, 3}, .tp_size = 2, .sp_size = 2};
  RuntimeConfig config;
  config.isolation = Isolation::process;
  EXPECT_EQ(in_step_fault({{both}}, config), "");
  EXPECT_EQ(in_step_fault({{mesh}}, config), "");
  config.rank_devices = {{0, kCuda3}, {1, kCuda3}};
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  EXPECT_THAT(in_step_fault({{both}}, config, Backend::cuda), HasSubstr("are both on cuda:3; give each its own"));
  config.isolation = Isolation::thread;
  config.rank_devices = {{0, kCuda3}, {1, kCuda3}};
  EXPECT_EQ(in_step_fault({{both}}, config), "");
  ::unsetenv("CUDA_MODULE_LOADING");
  EXPECT_THAT(in_step_fault({{both}}, config, Backend::cuda), HasSubstr("ranks 0, 1 work in step for"));
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  EXPECT_EQ(in_step_fault({{both}}, config, Backend::cuda), "");
  ::unsetenv("CUDA_MODULE_LOADING");
}

}  // namespace
}  // namespace mstar::apps
