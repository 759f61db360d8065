// One test per fault of components, resources, surfaces and weight rules.
#include "mstar/decl/validate_test_model.h"

namespace mstar::decl {
namespace {

// --- components ---
template <class Spoil>
testing::AssertionResult component_fault(Spoil&& spoil, const std::string& part) {
  Model m;
  m.with_walks();
  DeviceComponent component{.name = "c"};
  spoil(m, component);
  const auto ref = m.d.component(component);
  m.d.walk("w", Step{ref, {m.text}});
  return only_fault(m.d, part);
}
TEST(ValidateComponents, NoRun) {
  Model m;
  m.with_walks();
  m.d.component(HostComponent{.name = "idle"});
  EXPECT_TRUE(only_fault(m.d, "component 'idle' is run by no walk"));
}
TEST(ValidateComponents, Resources) {
  EXPECT_TRUE(component_fault([](Model&, DeviceComponent& c) { c.uses = {ResourceRef(50)}; },
                              "uses a resource that is not of this model"));
  EXPECT_TRUE(component_fault([](Model& m, DeviceComponent& c) { c.uses = {m.kv, m.kv}; }, "uses resource 'kv' twice"));
}
TEST(ValidateComponents, Batches) {
  EXPECT_TRUE(
      component_fault([](Model&, DeviceComponent& c) { c.max_batch_rows = 0; }, "max_batch_rows must be at least 1"));
  EXPECT_TRUE(component_fault([](Model&, DeviceComponent& c) { c.max_batch_tokens = -1; },
                              "max_batch_tokens must not be negative"));
  EXPECT_TRUE(component_fault([](Model&, DeviceComponent& c) { c.chunked_prefill = true; },
                              "chunked_prefill needs max_batch_tokens"));
  EXPECT_TRUE(component_fault([](Model&, DeviceComponent& c) { c.slice_ms = 0; }, "slice_ms must be above 0"));
  EXPECT_TRUE(
      component_fault([](Model&, DeviceComponent& c) { c.compute = DType::utf8; }, "cannot compute in a host dtype"));
}
TEST(ValidateComponents, CaptureBuckets) {
  EXPECT_TRUE(component_fault(
      [](Model&, DeviceComponent& c) {
        c.capture.rows = {1, 0};
      },
      "capture rows must be at least 1 and grow"));
  EXPECT_TRUE(component_fault(
      [](Model&, DeviceComponent& c) {
        c.capture = {.rows = {1}, .tokens = {8, 8}, .regions = {}};
      },
      "capture tokens must be at least 1 and grow"));
  EXPECT_TRUE(component_fault([](Model&, DeviceComponent& c) { c.capture.tokens = {8}; },
                              "packed capture buckets need rows too"));
}
TEST(ValidateComponents, Regions) {
  const PiecewiseRegion good{.name = "r",
                             .rows = {1},
                             .tokens = {16},
                             .lease_before_step = true,
                             .one_row_per_step = true,
                             .max_segments_per_request = 4};
  const auto with = [](PiecewiseRegion region) {
    return [region](Model&, DeviceComponent& c) { c.capture.regions = {region}; };
  };
  PiecewiseRegion r = good;
  r.tokens = {};
  r.max_segments_per_request = 1;
  EXPECT_TRUE(component_fault(with(r), "one_row_per_step needs a packed region"));
  r = good;
  r.lease_before_step = false;
  EXPECT_TRUE(component_fault(with(r), "one_row_per_step needs lease_before_step"));
  r = good;
  r.rows = {1, 2};
  EXPECT_TRUE(component_fault(with(r), "one_row_per_step needs rows {1}"));
  r = good;
  r.one_row_per_step = false;
  r.rows = {};
  EXPECT_TRUE(component_fault(with(r), "has no rows bucket"));
  r = good;
  r.max_segments_per_request = 0;
  EXPECT_TRUE(component_fault(with(r), "max_segments_per_request must be at least 1"));
  r = {.name = "r", .rows = {1, 2}, .max_segments_per_request = 2};
  EXPECT_TRUE(component_fault(with(r), "only a packed region has more than one segment"));
  r = good;
  r.name = "";
  EXPECT_TRUE(component_fault(with(r), "region without a name"));
}
TEST(ValidateComponents, CombinedWalks) {
  Model m;
  const auto c = m.d.component(DeviceComponent{
      .name = "c", .combined = {{"mix", {WalkRef(0), WalkRef(2)}}, {"none", {}}, {"far", {WalkRef(2), WalkRef(40)}}}});
  m.with_walks();
  m.d.walk("w", Step{c, {m.text}});
  EXPECT_TRUE(has_fault(m.d, "combined walk 'prefill' does not run it"));
  EXPECT_TRUE(has_fault(m.d, "'none' combines no walks"));
  EXPECT_TRUE(has_fault(m.d, "combines walk 'w' in two ways"));
  EXPECT_TRUE(has_fault(m.d, "combines a walk that is not of this model"));
}

// --- resources ---
testing::AssertionResult resource_fault(ResourceSpec spec, const std::string& part) {
  Model m;
  m.with_walks();
  const auto ref = m.d.resource(std::move(spec));
  const auto c = m.d.component(DeviceComponent{.name = "c", .uses = {ref}});
  m.d.walk("w", Step{c, {m.text}});
  return has_fault(m.d, part);
}
TEST(ValidateResources, Unused) {
  Model m;
  m.with_walks();
  m.d.resource(Sampler{.name = "spare", .vocab = 9});
  EXPECT_TRUE(only_fault(m.d, "resource 'spare' is used by no component"));
}
TEST(ValidateResources, Sizes) {
  EXPECT_TRUE(resource_fault(PagedKv{.name = "r", .kv_heads = 1, .head_dim = 1}, "layers must be at least 1"));
  EXPECT_TRUE(resource_fault(PagedKv{.name = "r", .layers = 1, .head_dim = 1}, "kv_heads must be at least 1"));
  EXPECT_TRUE(resource_fault(PagedKv{.name = "r", .layers = 1, .kv_heads = 1, .head_dim = 1, .page_tokens = 0},
                             "page_tokens must be at least 1"));
  EXPECT_TRUE(resource_fault(PagedKv{.name = "r", .layers = 1, .labels = {}, .latent_dim = 8}, "has no label"));
  EXPECT_TRUE(resource_fault(PagedKv{.name = "r", .layers = 1, .labels = {"a", "a"}, .latent_dim = 8},
                             "label 'a' is there twice"));
  EXPECT_TRUE(resource_fault(PagedKv{.name = "r", .layers = 1, .retention = Retention{4, 0}, .latent_dim = 8},
                             "retention needs"));
  EXPECT_TRUE(resource_fault(CrossKv{.name = "r", .layers = 1, .kv_heads = 1, .head_dim = 1},
                             "max_context_tokens must be at least 1"));
  EXPECT_TRUE(resource_fault(RingKv{.name = "r", .layers = 1, .kv_heads = 1, .head_dim = 1, .frames = 1},
                             "tokens_per_frame must be at least 1"));
  EXPECT_TRUE(resource_fault(RecurrentState{.name = "r"}, "has no tensor"));
  EXPECT_TRUE(resource_fault(RecurrentState{.name = "r", .tensors = {{"t", {0}}}}, "has a size below 1"));
  EXPECT_TRUE(resource_fault(Sampler{.name = "r"}, "vocab must be at least 1"));
  EXPECT_TRUE(resource_fault(RaggedAttention{.name = "r"}, "heads must be at least 1"));
  EXPECT_TRUE(resource_fault(Latents{.name = "r", .tensors = {{"", {1}}}}, "tensor names must be there and differ"));
  for (const int axis : {-2, 1})
    EXPECT_TRUE(resource_fault(RecurrentState{.name = "r", .tensors = {{.name = "t", .dims = {4}, .shard_axis = axis}}},
                               "to cut"));
}
TEST(ValidateResources, References) {
  EXPECT_TRUE(
      resource_fault(Attention{.name = "r", .kv = ResourceRef(60), .heads = 1}, "kv is not a PagedKv of this model"));
  EXPECT_TRUE(resource_fault(LinearAttention{.name = "r", .state = ResourceRef(0), .heads = 1},
                             "state is not a RecurrentState of this model"));
  EXPECT_TRUE(
      resource_fault(Positions{.name = "r", .kv = ResourceRef()}, "kv is not a PagedKv or RingKv of this model"));
}

TEST(ValidateResources, CutOverRanksForAllOrForNone) {
  for (const bool is_cut : {false, true}) {
    Model m;
    const ComponentRef other =
        m.d.component(DeviceComponent{.name = "other", .uses = {m.kv}, .tensor_parallel = is_cut});
    m.with_walks();
    m.d.walk("more", Step{other, {m.text}, {m.token}});
    EXPECT_EQ(static_cast<bool>(has_fault(m.d, "resource 'kv': of 'llm' and 'other' only one is tensor_parallel")),
              is_cut);
  }
}

TEST(ValidateResources, SplitForAllThatUseThem) {
  Model m;
  const ComponentRef other = m.d.component(
      DeviceComponent{.name = "other", .uses = {m.kv}, .sequence_parallel = true, .shard_over_sp = false});
  m.with_walks();
  m.d.walk("more", Step{other, {m.text}, {m.token}});
  EXPECT_TRUE(has_fault(m.d, "resource 'kv': of 'llm' and 'other' only one is sequence_parallel"));
  EXPECT_TRUE(has_fault(m.d, "resource 'kv': of 'llm' and 'other' only one is shard_over_sp"));
  EXPECT_TRUE(has_fault(m.d, "component 'other' is sequence_parallel and not tensor_parallel"));
}

// --- surfaces and weights ---
TEST(ValidateSurfaces, RouteTwiceAndNoIntake) {
  Model m;
  m.with_walks();
  m.d.surface({.route = Route::generate});
  m.d.surface({.route = Route::generate, .intake = [](const ApiRequest&) -> Result<Intake> { return Intake{}; }});
  EXPECT_TRUE(has_fault(m.d, "surface 'generate': has no intake"));
  EXPECT_TRUE(has_fault(m.d, "surface 'generate': is there twice"));
}
TEST(ValidateWeights, UnbalancedStars) {
  const std::pair<WeightRule, const char*> bad[] = {
      {Rename{"a.*.b", "c"}, "rename rule 'a.*.b' -> 'c' does not have the same number of '*'"},
      {Rename{"", "c"}, "rename rule with an empty name"},
      {Fuse{{"q.*", "k"}, "qk.*"}, "fuse rule 'k' -> 'qk.*'"},
      {Fuse{{"q"}, "qk"}, "needs at least two sources"},
      {Split{"qk.*", {"q.*", "k"}}, "split rule 'qk.*' -> 'k'"},
      {Split{"qk", {"q"}}, "needs at least two targets"},
      {Drop{""}, "drop rule with an empty name"},
  };
  for (const auto& [rule, part] : bad) {
    Model m;
    m.with_walks();
    m.d.weights({rule});
    EXPECT_TRUE(only_fault(m.d, part));
  }
}

}  // namespace
}  // namespace mstar::decl
