#include "mstar/models/whisper/whisper_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "mstar/models/checkpoint_numbers.h"
#include "mstar/models/checkpoint_text.h"
#include "mstar/models/whisper/whisper_dummy.h"

namespace mstar::models {
namespace {

using nlohmann::json;

std::vector<std::int32_t> id_list(const json& object, const char* key) {
  std::vector<std::int32_t> out;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return out;
  for (const json& each : *it)
    if (each.is_number_integer()) out.push_back(each.get<std::int32_t>());
  return out;
}

int count_layers(const weights::Checkpoint& checkpoint, const std::string& before, const std::string& after) {
  int layers = 0;
  while (checkpoint.find(before + std::to_string(layers) + after)) ++layers;
  return layers;
}

// Pairs of layer and head; where no file names any, all heads of the last half of the layers, as in openai-whisper.
Result<std::vector<std::vector<int>>> alignment_heads_of(const json& config, const json& generation, int layers,
                                                         int heads) {
  constexpr const char* kKey = "alignment_heads";
  std::vector<std::vector<int>> out(static_cast<std::size_t>(layers));
  for (const json* each : {&config, &generation}) {
    const auto found = each->find(kKey);
    if (found == each->end() || !found->is_array() || found->empty()) continue;
    for (const json& pair : *found) {
      const bool is_pair =
          pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() && pair[1].is_number_integer();
      const auto layer = is_pair ? pair[0].get<std::int64_t>() : -1, head = is_pair ? pair[1].get<std::int64_t>() : -1;
      if (layer < 0 || layer >= layers || head < 0 || head >= heads)
        return bad_model("alignment_heads has " + pair.dump() + ", which is no layer and head of this model's " +
                         std::to_string(layers) + " decoder layers with " + std::to_string(heads) + " heads each");
      auto& of_layer = out[static_cast<std::size_t>(layer)];
      if (std::find(of_layer.begin(), of_layer.end(), head) == of_layer.end())
        of_layer.push_back(static_cast<int>(head));
    }
    for (auto& of_layer : out) std::sort(of_layer.begin(), of_layer.end());
    return out;
  }
  for (int layer = layers / 2; layer < layers; ++layer)
    for (int head = 0; head < heads; ++head) out[static_cast<std::size_t>(layer)].push_back(head);
  return out;
}

struct Names {
  std::string conv1, embedding, audio_positions, text_positions, encoder_layer, decoder_layer, probe, ffn;
};
Names names_of(weights::Format format, const weights::Checkpoint& checkpoint) {
  if (format == weights::Format::ctranslate2)
    return {"encoder/conv1/weight",
            "decoder/embeddings/weight",
            "encoder/position_encodings/encodings",
            "decoder/position_encodings/encodings",
            "encoder/layer_",
            "decoder/layer_",
            "/ffn/layer_norm/gamma",
            "/ffn/linear_0/weight"};
  const std::string root = checkpoint.find("model.encoder.conv1.weight") ? "model." : "";
  return {root + "encoder.conv1.weight",
          root + "decoder.embed_tokens.weight",
          root + "encoder.embed_positions.weight",
          root + "decoder.embed_positions.weight",
          root + "encoder.layers.",
          root + "decoder.layers.",
          ".final_layer_norm.weight",
          ".fc1.weight"};
}

Result<Shape> shape_of(const weights::Checkpoint& checkpoint, const std::string& name, int rank) {
  const weights::StoredWeight* weight = checkpoint.find(name);
  if (!weight) return bad_model("the checkpoint has no '" + name + "'; it is not a whole Whisper model");
  if (weight->shape.rank() != rank)
    return bad_model("'" + name + "' has shape " + to_string(weight->shape) + ", not rank " + std::to_string(rank));
  return weight->shape;
}

Result<DType> matrices_of(const ModelSource& source, const weights::StoredWeight& matrix, std::string_view component) {
  MSTAR_TRY_ASSIGN(const std::string wanted, kept_as(source.options, component));
  if (source.backend == Backend::cpu && wanted == "stored" && matrix.type.is_blocks()) return DType::bf16;
  return storage_of(source, matrix, component);
}

// What a component hands to the next one is of one type, which on a GPU is that of its matrices.
Status check_one_type(const WhisperConfig& c) {
  if (!c.on_cuda() || (c.storage.encoder == c.storage.decoder && c.storage.cross == c.storage.decoder))
    return ok_status();
  return std::move(bad_model("on CUDA encoder, cross and decoder of one Whisper keep their weights alike; give all of "
                             "its node groups the same 'weights'"))
      .with_field("weights");
}

Result<Tokenizer> tokenizer_of(const ModelSource& source, int vocab) {
  const std::filesystem::path file = source.directory / "tokenizer.json";
  MSTAR_TRY_ASSIGN(const std::string format, source.options.get_string("load_format", "auto"));
  std::error_code ignored;
  if (format == "dummy" && !std::filesystem::exists(file, ignored)) return whisper_dummy_tokenizer(vocab);
  return Tokenizer::load(file.string());
}

}  // namespace

Result<WhisperConfig> WhisperConfig::read(const ModelSource& source) {
  WhisperConfig out;
  const weights::Checkpoint& checkpoint = *source.checkpoint;
  const Names names = names_of(checkpoint.format(), checkpoint);
  MSTAR_TRY_ASSIGN(const Shape conv, shape_of(checkpoint, names.conv1, 3));
  MSTAR_TRY_ASSIGN(const Shape embedding, shape_of(checkpoint, names.embedding, 2));
  MSTAR_TRY_ASSIGN(const Shape audio, shape_of(checkpoint, names.audio_positions, 2));
  MSTAR_TRY_ASSIGN(const Shape text, shape_of(checkpoint, names.text_positions, 2));
  MSTAR_TRY_ASSIGN(const Shape ffn, shape_of(checkpoint, names.encoder_layer + "0" + names.ffn, 2));
  out.dim = static_cast<int>(conv[0]);
  out.num_mels = static_cast<int>(conv[1]);
  out.vocab = static_cast<int>(embedding[0]);
  out.audio_positions = static_cast<int>(audio[0]);
  out.text_positions = static_cast<int>(text[0]);
  out.ffn_dim = static_cast<int>(ffn[0]);
  out.encoder_layers = count_layers(checkpoint, names.encoder_layer, names.probe);
  out.decoder_layers = count_layers(checkpoint, names.decoder_layer, names.probe);
  MSTAR_TRY_ASSIGN(const json config, read_json_file(source.directory / "config.json", true));
  MSTAR_TRY_ASSIGN(const json generation, read_json_file(source.directory / "generation_config.json", false));
  if (const auto stored = checkpoint.integer("encoder/num_heads")) {
    out.heads = static_cast<int>(*stored);
  } else {
    const auto it = config.find("encoder_attention_heads");
    out.heads = it != config.end() && it->is_number_integer() ? it->get<int>() : out.dim / 64;
  }
  if (out.heads <= 0 || out.dim % out.heads || out.head_dim() % 16)
    return bad_model("a width of " + std::to_string(out.dim) + " with " + std::to_string(out.heads) +
                     " heads is not supported");
  MSTAR_TRY_ASSIGN(out.alignment_heads, alignment_heads_of(config, generation, out.decoder_layers, out.heads));
  out.backend = source.backend;
  out.voice = std::make_shared<const VoiceWeights>(source.voice_directory);
  const weights::StoredWeight& matrix = *checkpoint.find(names.encoder_layer + "0" + names.ffn);
  MSTAR_TRY_ASSIGN(out.storage.encoder, matrices_of(source, matrix, "encoder"));
  MSTAR_TRY_ASSIGN(out.storage.cross, matrices_of(source, matrix, "cross"));
  MSTAR_TRY_ASSIGN(out.storage.decoder, matrices_of(source, matrix, "decoder"));
  MSTAR_TRY(check_one_type(out));
  MSTAR_TRY_ASSIGN(out.batch_invariant, source.options.get_bool("batch_invariant", false));
  MSTAR_TRY_ASSIGN(Tokenizer tokenizer, tokenizer_of(source, out.vocab));
  out.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  MSTAR_TRY_ASSIGN(out.tokens, WhisperTokens::from(*out.tokenizer, out.vocab));
  out.tokens.suppress = id_list(config, "suppress_ids");
  out.tokens.suppress_first = id_list(config, "suppress_ids_begin");
  for (const json* each : {&config, &generation}) {
    if (out.tokens.suppress.empty()) out.tokens.suppress = id_list(*each, "suppress_tokens");
    if (out.tokens.suppress_first.empty()) out.tokens.suppress_first = id_list(*each, "begin_suppress_tokens");
  }
  return out;
}

std::vector<decl::WeightRule> whisper_weight_rules(weights::Format format) {
  using namespace decl;
  if (format == weights::Format::ctranslate2) {
    std::vector<WeightRule> rules = {Drop{"*/num_heads"},
                                     Drop{"decoder/activation"},
                                     Drop{"decoder/alibi*"},
                                     Drop{"decoder/alignment_*"},
                                     Drop{"decoder/pre_norm"},
                                     Drop{"decoder/scale_*"},
                                     Drop{"decoder/start_from_zero_embedding"},
                                     Drop{"encoder/pre_norm"},
                                     Drop{"encoder/activation"}};
    const auto rename = [&](std::string from, std::string to) {
      rules.push_back(Rename{std::move(from), std::move(to)});
    };
    for (const std::string side : {"encoder", "decoder"}) {
      const std::string in = side + "/layer_*/", out = side + ".layer.*.";
      for (const std::string leaf : {"weight", "bias"}) {
        rename(in + "self_attention/linear_0/" + leaf, out + "self.qkv." + leaf);
        rename(in + "self_attention/linear_1/" + leaf, out + "self.out." + leaf);
        rename(in + "attention/linear_0/" + leaf, out + "cross.q." + leaf);
        rename(in + "attention/linear_1/" + leaf, "cross.layer.*.kv." + leaf);
        rename(in + "attention/linear_2/" + leaf, out + "cross.out." + leaf);
        rename(in + "ffn/linear_0/" + leaf, out + "ffn.up." + leaf);
        rename(in + "ffn/linear_1/" + leaf, out + "ffn.down." + leaf);
      }
      for (const auto& [leaf, home] : {std::pair{"gamma", "weight"}, std::pair{"beta", "bias"}}) {
        rename(in + "self_attention/layer_norm/" + leaf, out + "self.norm." + home);
        rename(in + "attention/layer_norm/" + leaf, out + "cross.norm." + home);
        rename(in + "ffn/layer_norm/" + leaf, out + "ffn.norm." + home);
        rename(side + "/layer_norm/" + leaf, side + ".norm." + std::string(home));
      }
      rename(side + "/position_encodings/encodings", side + ".positions");
    }
    rename("encoder/conv*/*", "encoder.conv*.*");
    rename("decoder/embeddings/weight", "decoder.embedding.weight");
    return rules;
  }
  std::vector<WeightRule> rules = {Drop{"proj_out.weight"}};
  for (const std::string root : {"model.", ""}) {
    for (const std::string side : {"encoder", "decoder"}) {
      const std::string in = root + side + ".layers.*.", out = side + ".layer.*.";
      for (const std::string leaf : {"weight", "bias"}) {
        rules.push_back(
            Fuse{{in + "self_attn.q_proj." + leaf, in + "self_attn.k_proj." + leaf, in + "self_attn.v_proj." + leaf},
                 out + "self.qkv." + leaf,
                 leaf == "bias"});
        rules.push_back(Fuse{{in + "encoder_attn.k_proj." + leaf, in + "encoder_attn.v_proj." + leaf},
                             "cross.layer.*.kv." + leaf,
                             leaf == "bias"});
        for (const auto& [from, to] :
             {std::pair{"self_attn.out_proj.", "self.out."}, std::pair{"encoder_attn.q_proj.", "cross.q."},
              std::pair{"encoder_attn.out_proj.", "cross.out."}, std::pair{"fc1.", "ffn.up."},
              std::pair{"fc2.", "ffn.down."}, std::pair{"self_attn_layer_norm.", "self.norm."},
              std::pair{"encoder_attn_layer_norm.", "cross.norm."}, std::pair{"final_layer_norm.", "ffn.norm."}})
          rules.push_back(Rename{in + from + leaf, out + to + leaf});
        rules.push_back(Rename{root + side + ".layer_norm." + leaf, side + ".norm." + leaf});
      }
      rules.push_back(Rename{root + side + ".embed_positions.weight", side + ".positions"});
    }
    rules.push_back(Rename{root + "encoder.conv*", "encoder.conv*"});
    rules.push_back(Rename{root + "decoder.embed_tokens.weight", "decoder.embedding.weight"});
  }
  return rules;
}

}  // namespace mstar::models
