#include "mstar/graph/fixtures/fixtures.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "mstar/decl/walk_flow.h"
#include "mstar/graph/placement.h"

namespace mstar::graph {
namespace {

TEST(Fixtures, EveryModelIsValid) {
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    const decl::Decl model = fixture.make();
    EXPECT_EQ(model.name(), fixture.name);
    const std::vector<std::string> faults = model.validate();
    EXPECT_TRUE(faults.empty()) << fixture.name << ": " << (faults.empty() ? "" : faults.front());
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled) << compiled.error().message;
    EXPECT_EQ(compiled->walks().size(), model.walks().size());
  }
}

TEST(Fixtures, EveryModelMayRunOnOneWorkerPerComponent) {
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    const decl::Decl model = fixture.make();
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled) << compiled.error().message;
    RequestPlacement placement(*compiled, WorkerId(0));
    for (std::size_t c = 0; c < model.components().size(); ++c)
      placement.set(decl::ComponentRef(static_cast<std::uint16_t>(c)), WorkerId(static_cast<std::uint32_t>(c)));
    const auto placed = PlacedModel::place(*compiled, placement);
    EXPECT_TRUE(placed) << fixture.name << ": " << (placed ? "" : placed.error().message);
  }
}

// The walks of annex B of the notes on the reference, and of part 6 what the issue names.
TEST(Fixtures, EveryWalkOfTheReferenceIsThere) {
  const std::map<std::string, std::vector<std::string>> reference = {
      {"bagel", {"prefill_text", "prefill_vit", "prefill_vae", "decode", "image_gen", "image_gen_cfg"}},
      {"bagel_cfg_parallel", {"prefill_text", "prefill_vit", "prefill_vae", "decode", "image_gen", "image_gen_cfg"}},
      {"qwen3_omni",
       {"prefill_text", "prefill_audio", "prefill_vision", "thinker_decode", "talker_prefill", "talker_last_prefill",
        "talker_decode", "code2wav_chunk"}},
      {"orpheus", {"prefill", "decode", "snac_chunk"}},
      {"qwen3_tts", {"talker_prefill", "talker_decode", "codec_chunk"}},
      {"pi05", {"prefill", "action_gen"}},
      {"wan22", {"encode_text", "encode_image", "video_gen", "video_gen_i2v"}},
      {"cosmos3",
       {"prefill", "prefill_cond", "prefill_cond_video", "image_gen", "video_gen", "video_sound_gen", "action_gen",
        "action_video_gen"}},
      {"whisper", {"detect_language", "prefill", "prefill_prompt", "decode", "align"}},
      {"vjepa2",
       {"prefill_video", "prefill_video_ac", "prefill_video_encoder_only", "rollout", "rollout_streaming", "mpc"}},
      {"qwen35", {"prefill_text", "prefill_vision", "decode"}},
      {"nemotron_duplex", {"hear", "think", "speak", "sound"}},
      {"ltx25",
       {"encode_text", "generate_av", "generate_video", "generate_audio", "stage1", "refine_av", "refine_video"}},
      {"flux2_klein", {"encode_text", "encode_images", "generate"}},
      {"waypoint", {"prime", "rollout"}},
      {"higgs_audio", {"prefill_text", "prefill_audio", "decode"}},
  };
  std::set<std::string> found;
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    found.insert(fixture.name);
    const auto walks = reference.find(fixture.name);
    if (walks == reference.end()) continue;
    const decl::Decl model = fixture.make();
    for (const std::string& walk : walks->second)
      EXPECT_TRUE(model.find_walk(walk).valid()) << fixture.name << "." << walk;
    EXPECT_EQ(model.walks().size(), walks->second.size()) << fixture.name;
  }
  for (const auto& [name, walks] : reference) EXPECT_TRUE(found.count(name)) << name;
}

// Together the fixtures say everything that a declaration can say about a walk.
TEST(Fixtures, EveryPartOfTheLanguageIsUsed) {
  std::set<std::string> used;
  const auto note = [&](const std::string& what, bool is) {
    if (is) used.insert(what);
  };
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    const decl::Decl model = fixture.make();
    note("a partition of each plan", model.partitions().size() > 3);
    for (const decl::PortSpec& port : model.ports())
      for (const decl::Travel& travel : port.travel) {
        note("keep", std::holds_alternative<decl::Keep>(travel));
        note("from plan", std::holds_alternative<decl::FromPlan>(travel));
        const auto* request = std::get_if<decl::FromRequest>(&travel);
        note("optional request input", request && request->optional);
        const auto* client = std::get_if<decl::FromClient>(&travel);
        note("client to walk", client);
        const auto* stream = std::get_if<decl::Stream>(&travel);
        if (!client && !stream) continue;
        const decl::ChunkPolicy& chunks = client ? client->chunks : stream->chunks;
        const auto* fixed = std::get_if<decl::FixedChunks>(&chunks);
        note("fixed chunks", fixed && fixed->items > 1);
        note("continue after done", fixed && fixed->continue_after_done);
        note("sliding window", std::holds_alternative<decl::SlidingWindow>(chunks));
        const auto* context = std::get_if<decl::LeftContext>(&chunks);
        note("left context", context && context->context > 0);
        note("ramp", context && !context->ramp.empty());
      }
    for (const decl::Component& component : model.components()) {
      note("host component", component.on_host());
      if (component.on_host()) continue;
      const decl::DeviceComponent& device = component.device();
      note("combined walks", !device.combined.empty());
      note("chunked prefill", device.chunked_prefill);
      note("packed capture", !device.capture.tokens.empty());
      for (const decl::PiecewiseRegion& region : device.capture.regions) {
        note("piecewise region", true);
        note("one row per step", region.one_row_per_step);
        note("lease before step", region.lease_before_step);
        note("packed region", !region.tokens.empty());
      }
    }
    for (const decl::Walk& walk : model.walks()) {
      for (const decl::FlowLoop& loop : decl::trace_flow(model, walk).loops) {
        const auto* token = std::get_if<decl::TokenStop>(&loop.spec->stop);
        note("stop by count", std::holds_alternative<decl::StepCount>(loop.spec->stop));
        note("stop by a component", std::holds_alternative<decl::ComponentSignal>(loop.spec->stop));
        note("stop by token", token);
        note("stop at prefill", token && !token->prefill_walks.empty());
        note("last prefill flag", token && !token->last_prefill_flag.empty());
        note("loop outputs", !loop.spec->outputs.empty());
        note("accumulated", !loop.spec->accumulated.empty());
      }
      decl::for_each_run(walk.root, [&](const decl::Run& run) {
        note("labels", run.labels.size() > 1);
        note("another label", run.labels.front() != "main");
        note("fork before", !run.forks_before.empty());
        note("fork after", !run.forks_after.empty());
      });
    }
  }
  const std::set<std::string> all = {"a partition of each plan",
                                     "keep",
                                     "from plan",
                                     "optional request input",
                                     "client to walk",
                                     "fixed chunks",
                                     "continue after done",
                                     "sliding window",
                                     "left context",
                                     "ramp",
                                     "host component",
                                     "combined walks",
                                     "chunked prefill",
                                     "packed capture",
                                     "piecewise region",
                                     "one row per step",
                                     "lease before step",
                                     "packed region",
                                     "stop by count",
                                     "stop by a component",
                                     "stop by token",
                                     "stop at prefill",
                                     "last prefill flag",
                                     "loop outputs",
                                     "accumulated",
                                     "labels",
                                     "another label",
                                     "fork before",
                                     "fork after"};
  EXPECT_EQ(used, all);
}

}  // namespace
}  // namespace mstar::graph
