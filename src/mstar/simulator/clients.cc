#include "mstar/simulator/clients.h"

#include <algorithm>
#include <numeric>

namespace mstar::simulator {
namespace {

constexpr int kVocab = 150'000;
constexpr std::size_t kChatStart = 64;  // tokens that a conversation begins with
constexpr std::pair<int, int> kTurn = {8, 64};

}  // namespace

RequestSource::RequestSource(const SimulatedLoad& load) : load_(load), random_(load.seed) {
  for (int i = 0; i < load.num_chats; ++i)
    chats_.push_back(
        random_ids(draw({std::min(64, load.prompt_tokens.second), std::min(256, load.prompt_tokens.second)})));
}

int RequestSource::draw(std::pair<int, int> range) {
  const auto width = static_cast<std::uint64_t>(range.second - range.first) + 1;
  return range.first + static_cast<int>(random_() % width);
}

std::vector<double> RequestSource::random_ids(int count) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) out.push_back(static_cast<double>(random_() % kVocab));
  return out;
}

decl::ApiRequest RequestSource::next() {
  decl::ApiRequest out{.route = decl::Route::completions};
  if (chats_.empty()) {
    out.fields.set("prompt_ids", random_ids(draw(load_.prompt_tokens)));
  } else {
    auto& chat = chats_[random_() % chats_.size()];
    if (chat.size() > static_cast<std::size_t>(load_.prompt_tokens.second))
      chat.resize(std::min<std::size_t>(chat.size(), kChatStart));
    const auto turn = random_ids(draw(kTurn));
    chat.insert(chat.end(), turn.begin(), turn.end());
    out.fields.set("prompt_ids", chat);
  }
  out.fields.set("max_tokens", static_cast<std::int64_t>(draw(load_.reply_tokens)));
  out.fields.set("ignore_eos", true);
  return out;
}

Distribution Distribution::of(std::vector<double> values) {
  Distribution out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
  };
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  out.p50 = at(0.5);
  out.p95 = at(0.95);
  out.p99 = at(0.99);
  return out;
}

SimulationReport report_of(const std::vector<Seen>& seen, std::vector<double> gaps_s, std::int64_t from_ns) {
  SimulationReport out;
  std::vector<double> ttft, latency;
  std::int64_t last_ns = from_ns, prompt_tokens = 0, cached_tokens = 0;
  const auto seconds = [](std::int64_t ns) { return 1e-9 * static_cast<double>(ns); };
  for (const Seen& each : seen) {
    out.num_ends.push_back(each.num_ends);
    out.end_s.push_back(seconds(each.end_ns));
    if (each.failed || each.num_ends == 0) {
      ++out.num_failed;
      continue;
    }
    ++out.num_requests;
    out.num_tokens += each.num_tokens;
    prompt_tokens += each.prompt_tokens;
    cached_tokens += each.cached_tokens;
    last_ns = std::max(last_ns, each.end_ns);
    ttft.push_back(seconds(each.first_ns - each.sent_ns));
    latency.push_back(seconds(each.end_ns - each.sent_ns));
  }
  out.seconds = seconds(last_ns - from_ns);
  out.tokens_per_s = out.seconds > 0 ? static_cast<double>(out.num_tokens) / out.seconds : 0;
  out.cached = prompt_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens) : 0;
  out.ttft_s = Distribution::of(std::move(ttft));
  out.latency_s = Distribution::of(std::move(latency));
  out.gap_s = Distribution::of(std::move(gaps_s));
  return out;
}

}  // namespace mstar::simulator
