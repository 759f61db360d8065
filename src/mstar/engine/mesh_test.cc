// Which groups of a mesh of ranks compute a component together, and how its resources are cut for them.
#include <gtest/gtest.h>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/rank_mesh.h"
#include "mstar/engine/engine.h"

namespace mstar::engine {
namespace {

struct Built {
  MeshEnds mesh;
  std::size_t kv_bytes = 0;
  std::string said;
};

// On rank 1 of two by two. The body is never made: what it would be made from is all that is asked.
Built build(decl::DeviceComponent component, const RankMesh& ranks) {
  Built out;
  decl::Decl d("cut");
  const auto kv = d.resource(decl::PagedKv{
      .name = "kv", .layers = 1, .kv_heads = 4, .head_dim = 16, .page_tokens = 16, .max_tokens_per_request = 64});
  component.name = "backbone";
  component.uses = {kv};
  component.build = [&](BuildContext& context) -> Result<std::unique_ptr<ComponentBody>> {
    out.mesh = context.mesh;
    return bad_model("enough");
  };
  const decl::ComponentRef ref = d.component(std::move(component));
  const auto device = make_cpu_device();
  const MeshEnds ends = ranks.ends(1);
  resource::PoolLimits limits{.max_requests = 2, .max_rows = 2, .max_tokens = 16};
  auto resources = ResourceSet::build(d, std::span(&ref, 1), limits, *device, ends.size());
  EXPECT_TRUE(resources) << resources.error().message;
  if (!resources) return out;
  out.kv_bytes = resources->usage()[0].bytes;
  limits.head_shards = decl::head_shards(d.at(ref).device(), ends.size());
  auto weights = weights::WeightMap::create(nullptr, {});
  EXPECT_TRUE(weights);
  const auto engine =
      Engine::create(d, ref, {.limits = limits, .buffers = std::make_shared<BufferPool>(*device), .mesh = ends},
                     *resources, *weights, *device);
  EXPECT_FALSE(engine);
  if (!engine) out.said = engine.error().message;
  return out;
}

TEST(EngineMesh, AComponentHasTheGroupsThatItAsksFor) {
  const RankMesh ranks = RankMesh::of_threads({.tensor = 2, .sequence = 2});
  const MeshEnds ends = ranks.ends(1);
  const Built whole = build({}, ranks);
  EXPECT_EQ(whole.said, "enough");
  EXPECT_TRUE(whole.mesh.alone());

  const Built both = build({.name = "", .tensor_parallel = true, .sequence_parallel = true}, ranks);
  EXPECT_EQ(both.mesh.tensor, ends.tensor);
  EXPECT_EQ(both.mesh.sequence, ends.sequence);
  EXPECT_EQ(both.kv_bytes * 4, whole.kv_bytes);

  // All ranks hold parts of the weights.
  const Built tensor = build({.name = "", .tensor_parallel = true}, ranks);
  EXPECT_EQ(tensor.mesh.tensor, ends.all);
  EXPECT_EQ(tensor.mesh.sequence, nullptr);
  EXPECT_EQ(tensor.kv_bytes * 4, whole.kv_bytes);

  // The sequence ranks compute the same.
  const Built apart = build({.name = "", .tensor_parallel = true, .shard_over_sp = false}, ranks);
  EXPECT_EQ(apart.mesh.tensor, ends.tensor);
  EXPECT_EQ(apart.mesh.sequence, nullptr);
  EXPECT_EQ(apart.kv_bytes * 2, whole.kv_bytes);
  for (const Built* const each : {&both, &tensor, &apart}) EXPECT_EQ(each->said, "enough");
}

TEST(EngineMesh, AloneTheFlagsMeanNothing) {
  const decl::DeviceComponent both{.name = "", .tensor_parallel = true, .sequence_parallel = true};
  EXPECT_EQ(decl::head_shards(both, {}), 1);
  EXPECT_EQ(decl::weight_shards(both, {}), 1);
  EXPECT_TRUE(build(both, RankMesh()).mesh.alone());
}

}  // namespace
}  // namespace mstar::engine
