// Encode, decode and chat templates, by vocabularies made here: no files are needed.
#include <benchmark/benchmark.h>

#include <random>

#include "mstar/base/check.h"
#include "mstar/text/byte_level.h"
#include "mstar/text/chat_template.h"
#include "mstar/text/stop_strings.h"
#include "mstar/text/tokenizer.h"

namespace mstar {
namespace {

constexpr std::int64_t kNumMerges = 20'000;

std::string prose(std::size_t num_bytes) {
  std::mt19937 random(1);
  std::string out;
  while (out.size() < num_bytes) {
    const std::size_t length = 1 + random() % 9;
    for (std::size_t i = 0; i < length; ++i) out.push_back("etaoinshrdlucmfwyp"[random() % 18]);
    out.append(random() % 9 == 0 ? ", " : " ");
  }
  out.resize(num_bytes);
  return out;
}

// A vocabulary whose merges are random pairs of what is there already, so that words need several merges.
GgufTokenizer byte_level_vocabulary() {
  std::mt19937 random(2);
  GgufTokenizer out;
  out.model = "gpt2";
  out.pre = "llama-bpe";
  for (int byte = 0; byte < 256; ++byte)
    out.tokens.push_back(text::spell_bytes(std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
  std::vector<std::string> grown;
  for (const char c : std::string("etaoinshrdlucmfwyp")) grown.emplace_back(1, c);
  std::vector<std::string> all = grown;
  std::unordered_map<std::string, bool> seen;
  for (int tries = 0; std::ssize(out.merges) < kNumMerges && tries < 50 * kNumMerges; ++tries) {
    const std::string left = all[random() % all.size()], right = all[random() % all.size()];
    const std::string both = left + right;
    if (both.size() > 8 || !seen.emplace(both, true).second) continue;
    out.merges.push_back(left + " " + right);
    out.tokens.push_back(both);
    all.push_back(both);
  }
  return out;
}

GgufTokenizer piece_vocabulary(const char* model) {
  GgufTokenizer out;
  out.model = model;
  const auto add = [&](std::string token, float score, std::int32_t type) {
    out.tokens.push_back(std::move(token));
    out.scores.push_back(score);
    out.token_types.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) {
    std::string name = "<0x00>";
    name[3] = "0123456789ABCDEF"[byte / 16];
    name[4] = "0123456789ABCDEF"[byte % 16];
    add(name, 0, 6);
  }
  const GgufTokenizer words = byte_level_vocabulary();
  float score = 0;
  for (std::size_t i = 256; i < words.tokens.size(); ++i) add(words.tokens[i], score -= 0.001f, 1);
  for (const char c : std::string("etaoinshrdlucmfwyp,")) add(std::string(1, c), score -= 0.001f, 1);
  add("\xE2\x96\x81", score -= 0.001f, 1);
  return out;
}

Tokenizer made(const GgufTokenizer& metadata) {
  auto tokenizer = Tokenizer::from_gguf(metadata);
  MSTAR_CHECK(tokenizer.has_value());
  return std::move(*tokenizer);
}

const Tokenizer& of_kind(std::int64_t kind) {
  static const Tokenizer byte_level = made(byte_level_vocabulary());
  static const Tokenizer bpe = made(piece_vocabulary("llama"));
  static const Tokenizer unigram = made(piece_vocabulary("t5"));
  return kind == 0 ? byte_level : kind == 1 ? bpe : unigram;
}

void encode(benchmark::State& state) {
  const Tokenizer& tokenizer = of_kind(state.range(0));
  const std::string text = state.range(2) == 0 ? prose(static_cast<std::size_t>(state.range(1)))
                                               : std::string(static_cast<std::size_t>(state.range(1)), 'a');
  std::size_t num_tokens = 0;
  for (auto _ : state) {
    const auto ids = tokenizer.encode(text);
    benchmark::DoNotOptimize(ids.data());
    num_tokens += ids.size();
  }
  state.SetBytesProcessed(state.iterations() * state.range(1));
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(num_tokens), benchmark::Counter::kIsRate);
}
// Kind (byte-level BPE, BPE, Unigram), bytes, prose or one letter.
BENCHMARK(encode)
    ->ArgsProduct({{0, 1, 2}, {256, 16 << 10, 1 << 20}, {0, 1}})
    ->ArgNames({"kind", "bytes", "one_letter"})
    ->Unit(benchmark::kMicrosecond);

void decode(benchmark::State& state) {
  const Tokenizer& tokenizer = of_kind(state.range(0));
  const auto ids = tokenizer.encode(prose(16 << 10));
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids));
  state.SetItemsProcessed(state.iterations() * std::ssize(ids));
}
BENCHMARK(decode)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond);

void render(benchmark::State& state) {
  const auto compiled = ChatTemplate::compile(
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
      "You are helpful<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
      "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
  MSTAR_CHECK(compiled.has_value());
  std::vector<jinja::Value> messages;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    TemplateVariables message;
    message.set("role", jinja::Value::string(i % 2 ? "assistant" : "user"));
    message.set("content", jinja::Value::string(prose(200)));
    messages.push_back(jinja::Value::dict(std::move(message)));
  }
  TemplateVariables variables;
  variables.set("messages", jinja::Value::list(std::move(messages)));
  variables.set("add_generation_prompt", jinja::Value::boolean(true));
  const std::tm now{};
  for (auto _ : state) benchmark::DoNotOptimize(compiled->render(variables, now));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(render)->Arg(1)->Arg(8)->Arg(100)->Unit(benchmark::kMicrosecond);

// Text in pieces of 4 bytes; stop strings that never match, or nearly do at each byte.
void push_stop_strings(benchmark::State& state) {
  const bool nearly = state.range(1) != 0;
  std::vector<std::string> strings;
  for (std::int64_t i = 0; i < state.range(0); ++i)
    strings.push_back((nearly ? std::string(4000, 'a') : prose(4000)) + static_cast<char>('A' + i));
  const std::string text = nearly ? std::string(1 << 20, 'a') : prose(1 << 20);
  for (auto _ : state) {
    StopStrings stops(strings);
    for (std::size_t at = 0; at < text.size(); at += 4)
      benchmark::DoNotOptimize(stops.push(std::string_view(text).substr(at, 4)));
  }
  state.SetBytesProcessed(state.iterations() * std::ssize(text));
}
BENCHMARK(push_stop_strings)
    ->ArgsProduct({{0, 1, 16}, {0, 1}})
    ->ArgNames({"strings", "nearly"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mstar

BENCHMARK_MAIN();
