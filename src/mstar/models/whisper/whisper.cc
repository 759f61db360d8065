#include "mstar/models/whisper/whisper.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "mstar/base/check.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_options.h"
#include "mstar/models/whisper/whisper_parts.h"
#include "mstar/models/whisper/whisper_stages.h"

namespace mstar::models {
namespace {

using namespace decl;

// The walks that the plan chooses from, and the ports it reads or gives.
struct WhisperWalks {
  WalkRef detect, listen, prompt, decode, close, align;
  PortRef seek, language, next, history, attempt, words;
};

// Next-window plan: [detect] -> listen|prompt -> decode|close -> [align] -> listen ... until the recording's last clip
// ends. Sequential decoding; a window whose text is doubtful goes back to prompt, hotter
// (WhisperOptions::temperatures).
class WhisperPlan final : public Plan {
 public:
  WhisperPlan(const WhisperRefs& refs, const WhisperWalks& walks, const RequestParams& params)
      : refs_(refs), walks_(walks), config_(*refs.config) {
    translate_ = params.fields.get_string("task", "transcribe").value_or("") == "translate";
    const std::string code = params.fields.get_string("language", "").value_or("");
    if (config_.tokens.multilingual && !code.empty()) language_ = config_.tokens.language_id(*config_.tokenizer, code);
    history_ = prompt_history(params);
    options_ = WhisperOptions::read(params.fields).value_or({});  // checked at intake
    hotwords_ = hotword_tokens(*config_.tokenizer, options_.hotwords);
    seek_ = options_.clips.front().first;
  }

  Result<Decision> next(const PlanView& view) override {
    if (!view.finished.valid()) {
      if (config_.tokens.multilingual && language_ < 0)
        return Decision(with_prompt(walks_.detect, {config_.tokens.sot}));
      return Decision(window(walks_.listen));
    }
    if (view.finished == walks_.detect) {
      const auto probabilities = view.kept.at(refs_.language_probs).front().as<float>();
      const auto best = std::max_element(probabilities.begin(), probabilities.end()) - probabilities.begin();
      language_ = config_.tokens.languages[static_cast<std::size_t>(best)];
      return Decision(window(walks_.prompt));
    }
    if (view.finished == walks_.listen || view.finished == walks_.prompt) return Decision(after_prompt(view));
    return Decision(after_window(view));
  }

 private:
  NextWalk with_prompt(WalkRef walk, std::vector<std::int32_t> prompt) {
    prompt_tokens_ = static_cast<int>(prompt.size());
    NextWalk next{.walk = walk};
    next.inputs.push_back({refs_.prompt, {HostValue::i32(prompt)}});
    const std::int32_t seek[2] = {seek_, options_.clips[clip_].second};
    if (walk != walks_.prompt) next.inputs.push_back({walks_.seek, {HostValue::i32(seek)}});
    next.flags = temperature_flag();
    return next;
  }
  NextWalk window(WalkRef walk) {
    std::vector<std::int32_t> history = hotwords_;
    // Both fit into what a prompt may have before its start.
    const std::size_t room = kMaxHistoryTokens - history.size();
    history.insert(history.end(), history_.end() - static_cast<std::ptrdiff_t>(std::min(room, history_.size())),
                   history_.end());
    return with_prompt(walk, window_prompt(config_.tokens, history, language_, translate_));
  }
  std::map<std::string, std::int64_t> temperature_flag() const {
    return {{kTemperatureFlag, std::llround(options_.temperatures[attempt_] * 1e6)}};
  }

  NextWalk after_prompt(const PlanView& view) {
    const HostValue first = view.kept.at(refs_.first).front();
    const auto& sampling = view.params.sampling;
    // The prompt's last token is fed by the walk that samples the first one, so it counts as a position, not as a
    // token.
    int budget = std::min(kMaxWindowTokens, config_.text_positions - prompt_tokens_ + 1);
    if (sampling.max_tokens >= 0)
      budget = static_cast<int>(std::min<std::int64_t>(budget, sampling.max_tokens - view.num_tokens + 1));
    const bool ended = first.as<std::int32_t>()[0] == config_.tokens.eot && !sampling.ignore_eos;
    const std::int32_t language[1] = {language_};
    NextWalk next{.walk = ended || budget <= 1 ? walks_.close : walks_.decode};
    next.flags = temperature_flag();
    next.inputs.push_back({walks_.language, {HostValue::i32(language)}});
    if (next.walk == walks_.decode) {
      next.inputs.push_back({refs_.token, {first}});
      next.caps = {{"decode", budget - 1}};
    }
    return next;
  }

  // The text once more, for the times of its words: what it is read as following is left out.
  NextWalk align(const PlanView& view, std::span<const std::int32_t> words) {
    std::vector<std::int32_t> text = window_prompt(config_.tokens, {}, language_, translate_);
    text.push_back(config_.tokens.no_timestamps);
    text.insert(text.end(), words.begin(), words.end());
    text.push_back(config_.tokens.eot);
    const std::int32_t frames = view.kept.at(refs_.window).front().as<std::int32_t>()[kWindowSegmentFrames];
    const std::int32_t positions = std::clamp(frames / 2, 1, config_.audio_positions);
    const std::int32_t language[1] = {language_};
    NextWalk next{.walk = walks_.align};
    next.inputs.push_back({refs_.text, {HostValue::i32(text)}});
    next.inputs.push_back({refs_.frames, {HostValue::i32(std::vector<std::int32_t>(text.size(), positions))}});
    next.inputs.push_back({walks_.language, {HostValue::i32(language)}});
    return next;
  }

  Decision after_window(const PlanView& view) {
    const auto& sampling = view.params.sampling;
    const std::int32_t again = view.kept.at(walks_.attempt).front().as<std::int32_t>()[0];
    if (again >= 0) {
      attempt_ = static_cast<std::size_t>(again);
      return window(walks_.prompt);
    }
    const auto words = view.kept.at(walks_.words).front().as<std::int32_t>();
    if (view.finished != walks_.align) {
      const auto end = view.loop_ends.find("decode");
      stopped_ = end != view.loop_ends.end() && end->second == LoopEnd::stop;
      if (!words.empty()) return align(view, words);
    }
    attempt_ = 0;
    seek_ = view.kept.at(walks_.next).front().as<std::int32_t>()[0];
    const auto history = view.kept.at(walks_.history).front().as<std::int32_t>();
    history_.assign(history.begin(), history.end());
    const std::int32_t content = view.kept.at(refs_.window).front().as<std::int32_t>()[kWindowContentFrames];
    if (sampling.max_tokens >= 0 && view.num_tokens >= sampling.max_tokens) {
      return Done{stopped_ && seek_ >= content ? Finish::stop : Finish::length};
    }
    while (seek_ >= std::min(options_.clips[clip_].second, content)) {
      if (clip_ + 1 == options_.clips.size()) return Done{Finish::stop};
      seek_ = options_.clips[++clip_].first;  // a window's last timestamp may lie behind its clip
    }
    return window(walks_.listen);
  }

  WhisperRefs refs_;
  WhisperWalks walks_;
  const WhisperConfig& config_;
  bool translate_ = false;
  std::int32_t language_ = -1;
  std::int32_t seek_ = 0;
  int prompt_tokens_ = 0;
  bool stopped_ = false;  // the window's text ended by itself
  std::vector<std::int32_t> history_, hotwords_;
  WhisperOptions options_;
  std::size_t clip_ = 0, attempt_ = 0;
};

Result<Intake> intake(const WhisperRefs& refs, PortRef file, const ApiRequest& request) {
  Intake out;
  if (request.media.size() != 1 || request.media[0].modality != Modality::audio)
    return std::move(invalid_request(request.media.empty() ? "no audio was sent: put it in the form field 'file'"
                                                           : "one audio file a request, please"))
        .with_field("file");
  out.inputs[file] = {request.media[0].bytes};
  out.params.fields = request.fields;
  out.params.output_modalities = {Modality::text};
  auto& fields = out.params.fields;
  if (request.route == Route::audio_translations) fields.set("task", std::string("translate"));
  if (!request.text.empty() && !fields.has("prompt")) fields.set("prompt", request.text);
  const WhisperConfig& config = *refs.config;
  MSTAR_TRY_ASSIGN(const std::string task, fields.get_string("task", "transcribe"));
  if (task != "transcribe" && task != "translate")
    return std::move(invalid_request("'task' must be transcribe or translate")).with_field("task");
  if (task == "translate" && !config.tokens.multilingual)
    return std::move(invalid_request("this model knows English only and cannot translate")).with_field("model");
  MSTAR_TRY_ASSIGN(const std::string language, fields.get_string("language", ""));
  if (!language.empty() && config.tokens.multilingual && config.tokens.language_id(*config.tokenizer, language) < 0)
    return std::move(
               invalid_request("'" + language + "' is no language of this model; give a code such as en, de or zh"))
        .with_field("language");
  if (!language.empty() && !config.tokens.multilingual && language != "en")
    return std::move(invalid_request("this model knows English (en) only")).with_field("language");
  MSTAR_TRY_ASSIGN(const std::string prompt, fields.get_string("prompt", ""));
  encode_prompt(*config.tokenizer, prompt, out.params);
  MSTAR_TRY_ASSIGN(const WhisperOptions options, WhisperOptions::read(fields));
  if (options.speech) MSTAR_TRY(config.voice->get());
  auto& sampling = out.params.sampling;
  sampling.temperature = options.temperatures.front();
  MSTAR_TRY_ASSIGN(sampling.max_tokens, fields.get_int("max_tokens", -1));
  if (fields.has("max_tokens") && sampling.max_tokens < 1)
    return std::move(invalid_request("'max_tokens' must be at least 1")).with_field("max_tokens");
  MSTAR_TRY_ASSIGN(sampling.ignore_eos, fields.get_bool("ignore_eos", false));
  MSTAR_TRY_ASSIGN(const std::int64_t seed, fields.get_int("seed", 0));
  sampling.seed = static_cast<std::uint64_t>(seed);
  return out;
}

// What declare_whisper's parts share besides the refs of the bodies.
struct WhisperPorts {
  PortRef file, length, speech, segments, about;
};
struct WhisperComponents {
  ComponentRef audio, segment, features, encoder, cross, decoder;
};

void declare_resources(Decl& d, const WhisperConfig& c, WhisperRefs& r) {
  r.self_kv = d.resource(PagedKv{.name = "decoder.kv",
                                 .layers = c.decoder_layers,
                                 .kv_heads = c.heads,
                                 .head_dim = c.head_dim(),
                                 .page_tokens = 16,
                                 .max_tokens_per_request = c.text_positions,
                                 .dtype = c.activations()});
  r.cross_kv = d.resource(CrossKv{.name = "decoder.cross",
                                  .layers = c.decoder_layers,
                                  .kv_heads = c.heads,
                                  .head_dim = c.head_dim(),
                                  .max_context_tokens = c.audio_positions,
                                  .dtype = c.activations()});
  r.sampler = d.resource(Sampler{.name = "decoder.sampler", .vocab = c.vocab});
}

WhisperPorts declare_ports(Decl& d, const WhisperConfig& c, WhisperRefs& r, WhisperWalks& w) {
  WhisperPorts p;
  p.file = d.port({.name = "file", .dtype = DType::bytes, .axes = {{"bytes"}}, .travel = {FromRequest{}}});
  w.seek = d.port({.name = "seek", .dtype = DType::i32, .axes = {{"span", 2}}, .travel = {FromPlan{}}});
  r.prompt = d.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromPlan{}}});
  w.language = d.port({.name = "language", .dtype = DType::i32, .axes = {{"one", 1}}, .travel = {FromPlan{}}});
  if (!c.on_cuda()) {
    r.pcm = d.port({.name = "pcm", .dtype = DType::pcm, .axes = {{"samples"}}});
    r.mel_max = d.port({.name = "mel_max", .dtype = DType::f32, .axes = {{"one", 1}}});
  }
  r.window = d.port({.name = "window", .dtype = DType::i32, .axes = {{"fields", kWindowFields}}, .travel = {Keep{}}});
  p.length = d.port({.name = "length", .dtype = DType::f32, .axes = {{"one", 1}}, .travel = {Keep{}}});
  p.speech = d.port({.name = "speech", .dtype = DType::i32, .axes = {{"ends"}}, .travel = {Keep{}}});
  r.mel = d.port({.name = "mel", .dtype = c.mels(), .axes = {{"mels", c.num_mels}, {"frames", c.window_frames()}}});
  r.states =
      d.port({.name = "states", .dtype = c.activations(), .axes = {{"positions", c.audio_positions}, {"dim", c.dim}}});
  r.context = d.port({.name = "context", .dtype = DType::i32, .axes = {{"one", 1}}});
  r.language_probs =
      d.port({.name = "language_probs", .dtype = DType::f32, .axes = {{"languages"}}, .travel = {Keep{}}});
  r.first =
      d.port({.name = "first", .dtype = DType::i32, .axes = {{"one", 1}}, .travel = {Keep{}}, .counts_token = true});
  r.first_score = d.port({.name = "first_score", .dtype = DType::f32, .axes = {{"one", 1}}, .travel = {Keep{}}});
  r.no_speech = d.port({.name = "no_speech", .dtype = DType::f32, .axes = {{"one", 1}}, .travel = {Keep{}}});
  r.token = d.port(
      {.name = "token", .dtype = DType::i32, .axes = {{"one", 1}}, .travel = {FromPlan{}}, .counts_token = true});
  r.score = d.port({.name = "score", .dtype = DType::f32, .axes = {{"one", 1}}});
  p.segments = d.port({.name = "segments", .dtype = DType::utf8, .travel = {ToClient{Modality::text, "segment"}}});
  p.about = d.port({.name = "about", .dtype = DType::utf8, .travel = {ToClient{Modality::text, "metadata"}}});
  w.next = d.port({.name = "next", .dtype = DType::i32, .axes = {{"one", 1}}, .travel = {Keep{}}});
  w.attempt = d.port({.name = "attempt", .dtype = DType::i32, .axes = {{"one", 1}}, .travel = {Keep{}}});
  w.words = d.port({.name = "words", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {Keep{}}});
  r.text = d.port({.name = "text", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromPlan{}}});
  r.frames = d.port({.name = "frames", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {FromPlan{}}});
  r.first_frames = d.port({.name = "first_frames", .dtype = DType::i32, .axes = {{"tokens"}}});
  r.token_probs = d.port({.name = "token_probs", .dtype = DType::f32, .axes = {{"tokens"}}});
  w.history = d.port({.name = "history", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {Keep{}}});
  return p;
}

// Of the encoder each number: a padding row would cost as much as a window.
const std::vector<int> kCapturedWindows = {1, 2, 3, 4, 5, 6, 7, kEncoderRows};
const std::vector<int> kCapturedRows = {1, 2, 4, 8, 16, 24, 32, 48, 64};

// Of texts that are aligned: a window's have some 20 to 230 tokens.
const std::vector<int> kAlignedTokens = {32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048};

decl::Capture decoder_captures() {
  return {.rows = kCapturedRows,
          .regions = {{.name = std::string(kTextRegion),
                       .rows = {kCapturedRows.back()},
                       .tokens = kAlignedTokens,
                       .lease_before_step = true}}};
}

// On a GPU, which works beside the host, mels are made on the host where the audio is decoded: the pool has time, and a
// window's mels are no more bytes to send than its samples.
void declare_listening(Decl& d, const WhisperRefs& r, std::shared_ptr<const MelPlan> plan, WhisperComponents& out) {
  if (r.config->on_cuda()) {
    const std::size_t row_bytes = static_cast<std::size_t>(r.config->window_frames()) * dtype_bytes(r.config->mels());
    const auto buffers = std::make_shared<FeatureBuffers>(static_cast<std::size_t>(r.config->num_mels), row_bytes);
    const auto make = [config = r.config, plan, buffers](const RequestParams& params) {
      return make_window_stage(config, params, plan, buffers);
    };
    out.audio = d.component(HostComponent{.name = "audio", .make = make});
  } else {
    out.audio = d.component(HostComponent{.name = "audio", .make = [config = r.config](const RequestParams& params) {
                                            return make_audio_stage(config, params);
                                          }});
    out.features = d.component(DeviceComponent{.name = "features", .build = build_whisper_features(r)});
  }
}

// By the order of their declarations below: components are declared before them.
constexpr WalkRef kDetect(0), kListen(1), kPrompt(2), kDecode(3), kAlign(5);

WhisperComponents declare_components(Decl& d, const WhisperRefs& r, std::shared_ptr<const MelPlan> plan) {
  WhisperComponents out;
  const bool on_cuda = r.config->on_cuda();
  const DType compute = r.config->activations();
  declare_listening(d, r, std::move(plan), out);
  const auto make_segment = [config = r.config](const RequestParams& p) { return make_segment_stage(config, p); };
  out.segment = d.component(HostComponent{.name = "segment", .make = make_segment, .is_light = true});
  const std::vector<decl::SharedUnits> units = {
      {.name = "query heads", .count = r.config->heads},
      {.name = "units of the feed-forward", .count = r.config->ffn_dim, .are_heads = false}};
  out.encoder = d.component(DeviceComponent{.name = "encoder",
                                            .build = build_whisper_encoder(r),
                                            .homes = {"encoder."},
                                            .capture = {.rows = on_cuda ? kCapturedWindows : std::vector<int>()},
                                            .compute = compute,
                                            .max_batch_rows = on_cuda ? kEncoderRows : 1,
                                            .run_ahead = false,  // decoders' steps come between two of its own
                                            .tensor_parallel = true,
                                            .sequence_parallel = true,
                                            .shared_units = units});
  out.cross = d.component(DeviceComponent{.name = "cross",
                                          .build = build_whisper_cross(r),
                                          .homes = {"cross."},
                                          .uses = {r.cross_kv},
                                          .capture = {.rows = on_cuda ? kCapturedWindows : std::vector<int>()},
                                          .compute = compute,
                                          .max_batch_rows = on_cuda ? kEncoderRows : 1,
                                          .run_ahead = false,  // a context cannot be taken back
                                          .tensor_parallel = true,
                                          .shared_units = units});
  // Texts that are aligned have steps of their own. On a GPU so have prompts and answers: steps of both are graphs, one
  // of their mixture would not be.
  const std::vector<decl::CombinedWalks> together = {{"text", {kDetect, kListen, kPrompt, kDecode}}},
                                         apart = {{"prompts", {kListen, kPrompt}}, {"answers", {kDecode}}};
  out.decoder = d.component(DeviceComponent{.name = "decoder",
                                            .build = build_whisper_decoder(r),
                                            .homes = {"decoder."},
                                            .uses = {r.self_kv, r.cross_kv, r.sampler},
                                            .capture = on_cuda ? decoder_captures() : decl::Capture(),
                                            .compute = compute,
                                            .max_batch_rows = on_cuda ? 64 : 32,
                                            .max_batch_tokens = on_cuda ? 2048 : 512,
                                            // On the CPU its rules are kept on the host, token by token.
                                            .run_ahead = on_cuda,
                                            .combined = on_cuda ? apart : together,
                                            .tensor_parallel = true,
                                            .shared_units = units});
  return out;
}

void declare_walks(Decl& d, const WhisperRefs& r, const WhisperPorts& ports, const WhisperComponents& in,
                   WhisperWalks& w) {
  const auto hear = [&](std::vector<PortRef> decoder_out) {
    Sequential all;
    if (in.features.valid()) {
      all.sections.emplace_back(
          Run{in.audio, {ports.file, w.seek}, {r.pcm, r.window, r.mel_max, ports.length, ports.speech}});
      all.sections.emplace_back(Run{in.features, {r.pcm, r.window, r.mel_max}, {r.mel}});
    } else {
      all.sections.emplace_back(Run{in.audio, {ports.file, w.seek}, {r.mel, r.window, ports.length, ports.speech}});
    }
    all.sections.emplace_back(Run{in.encoder, {r.mel}, {r.states}});
    all.sections.emplace_back(Run{in.cross, {r.states}, {r.context}});
    all.sections.emplace_back(Run{in.decoder, {r.context, r.prompt}, std::move(decoder_out)});
    return all;
  };
  const std::vector<PortRef> firsts = {r.first, r.first_score, r.no_speech};
  w.detect = d.walk("detect", hear({r.language_probs}));
  w.listen = d.walk("listen", hear(firsts));
  w.prompt = d.walk("prompt", Run{in.decoder, {r.prompt}, firsts});
  w.decode = d.walk("decode", Sequential{{Loop{.name = "decode",
                                               .body = {Run{in.decoder, {r.token}, {r.token, r.score}}},
                                               .stop = TokenStop{.token = r.token, .ids = {r.config->tokens.eot}},
                                               .at_most = kMaxWindowTokens,
                                               .accumulated = {r.token, r.score}},
                                          Run{in.segment,
                                              {r.window, w.language, r.first, r.first_score, r.no_speech, r.token,
                                               r.score, ports.speech, ports.length},
                                              {ports.segments, w.next, w.history, ports.about, w.attempt, w.words}}}});

  w.close = d.walk("close", Run{in.segment,
                                {r.window, w.language, r.first, r.first_score, r.no_speech, ports.speech, ports.length},
                                {ports.segments, w.next, w.history, ports.about, w.attempt, w.words}});
  w.align =
      d.walk("align", Sequential{{Run{in.decoder, {r.text, r.frames}, {r.first_frames, r.token_probs}},
                                  Run{in.segment,
                                      {r.window, w.language, r.first_frames, r.token_probs, ports.speech, ports.length},
                                      {ports.segments, w.next, w.history, ports.about, w.attempt, w.words}}}});
  MSTAR_CHECK(
      w.detect == kDetect && w.listen == kListen && w.prompt == kPrompt && w.decode == kDecode && w.align == kAlign,
      "the walks whose rows share steps are others than their components say");
  d.partition({.walks = {w.detect, w.listen, w.prompt, w.decode, w.close, w.align},
               .plan = [r, w](const RequestParams& p) { return std::make_unique<WhisperPlan>(r, w, p); }});
}

void declare_surfaces(Decl& d, const WhisperRefs& r, const WhisperPorts& p) {
  const auto emit = [segments = p.segments](PortRef port, const HostValue& value,
                                            const RequestParams&) -> Result<Chunk> {
    if (port == segments) return Chunk{.modality = Modality::text, .format = "segment", .value = value};
    Chunk about_it{.modality = Modality::text, .format = "metadata"};
    const std::string text(value.text());
    about_it.metadata.set("language", text.substr(0, text.find(' ')));
    about_it.metadata.set("duration", std::strtod(text.c_str() + text.find(' '), nullptr));
    return about_it;
  };
  for (const Route route : {Route::audio_transcriptions, Route::audio_translations, Route::generate})
    d.surface({.route = route,
               .intake = [r, file = p.file](const ApiRequest& request) { return intake(r, file, request); },
               .emit = emit,
               .split = [r, file = p.file](const ApiRequest& request) -> Result<std::unique_ptr<Splitter>> {
                 // A bad field is told at once, not by the first part.
                 if (request.fields.has("parallel")) MSTAR_TRY(intake(r, file, request));
                 return split_whisper(r.config, request);
               }});
}

}  // namespace

bool whisper_recognises(const ModelSource& source) {
  return source.checkpoint->spec_name() == "WhisperSpec" || source.checkpoint->find("model.encoder.conv1.weight") ||
         source.checkpoint->find("encoder.conv1.weight");
}

Result<Decl> declare_whisper(const ModelSource& source) {
  MSTAR_TRY_ASSIGN(WhisperConfig read, WhisperConfig::read(source));
  WhisperRefs refs;
  refs.config = std::make_shared<const WhisperConfig>(std::move(read));
  Decl d(source.name.empty() ? "whisper" : source.name);
  WhisperWalks walks;
  declare_resources(d, *refs.config, refs);
  const WhisperPorts ports = declare_ports(d, *refs.config, refs, walks);
  MSTAR_TRY_ASSIGN(MelPlan mels, MelPlan::make(refs.config->num_mels));
  const WhisperComponents components = declare_components(d, refs, std::make_shared<const MelPlan>(std::move(mels)));
  declare_walks(d, refs, ports, components, walks);
  declare_surfaces(d, refs, ports);
  d.weights(whisper_weight_rules(source.checkpoint->format()));
  return d;
}

}  // namespace mstar::models
