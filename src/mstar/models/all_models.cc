#include "mstar/models/decoder_lm/decoder_lm.h"
#include "mstar/models/model.h"

#include "mstar/models/qwen35/qwen35.h"
#include "mstar/models/silero/silero.h"
#include "mstar/models/toy/null_model.h"
#include "mstar/models/toy/toy_image.h"
#include "mstar/models/toy/toy_speech.h"
#include "mstar/models/toy/toy_world.h"
#include "mstar/models/whisper/whisper.h"

namespace mstar::models {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"whisper", "speech recognition and translation, all sizes", true, whisper_recognises, declare_whisper,
     whisper_dummy_weights, true},
    {"decoder-lm", "Llama, Qwen2 and Qwen3 language models", true, decoder_lm_recognises, declare_decoder_lm,
     decoder_lm_dummy_weights, true},
    {"qwen35", "Qwen3.5 language models, dense sizes", true, qwen35_recognises, declare_qwen35, qwen35_dummy_weights,
     true},
    {"silero-vad", "where there is speech in a recording", true, silero_recognises, declare_silero},
    {"null", "a language model that computes nothing: measures the way to it", false, nullptr, declare_null_model},
    {"toy-image", "a tiny seeded denoiser with guidance", false, nullptr, declare_toy_image},
    {"toy-speech", "a tiny seeded model that speaks as it writes", false, nullptr, declare_toy_speech},
    {"toy-world", "a tiny seeded world that moves by actions", false, nullptr, declare_toy_world},
};

}  // namespace

std::span<const ModelFamily> all_models() { return kFamilies; }

Result<const ModelFamily*> find_family(const ModelSource& source) {
  std::string known;
  for (const ModelFamily& family : kFamilies) {
    if (family.needs_weights ? source.checkpoint && family.recognises(source) : family.name == source.name)
      return &family;
    known += (known.empty() ? "" : ", ") + std::string(family.name);
  }
  return bad_model("'" + source.directory.string() + "' is no checkpoint of a known model family (" + known + ")");
}

Result<std::shared_ptr<const weights::Checkpoint>> dummy_checkpoint(const ModelSource& source) {
  std::string why = "no model family takes load_format dummy for '" + source.directory.string() + "'";
  for (const ModelFamily& family : kFamilies) {
    if (!family.dummy_weights) continue;
    const auto weights = family.dummy_weights(source);
    if (!weights) {
      why += "; " + std::string(family.name) + ": " + weights.error().message;
      continue;
    }
    MSTAR_TRY_ASSIGN(const std::int64_t seed, source.options.get_int("seed", 0));
    MSTAR_TRY_ASSIGN(auto made,
                     weights::Checkpoint::dummy(source.directory, *weights, static_cast<std::uint64_t>(seed)));
    return std::shared_ptr<const weights::Checkpoint>(std::move(made));
  }
  return bad_model(why);
}

}  // namespace mstar::models
