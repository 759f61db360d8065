#include "mstar/load/workload.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace mstar::load {
namespace {

// SplitMix64 (Steele, Lea, Flood, 2014): the same numbers on every machine, unlike the standard's distributions.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream) : state_(mix(seed) ^ mix(~stream)) {}
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)
  int in(const Range& range) {
    return range.least + static_cast<int>(unit() * (static_cast<double>(range.most) - range.least + 1));
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  std::uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15u); }
  std::uint64_t state_;
};

// One token each in the vocabularies of most models.
constexpr std::string_view kWords[] = {
    "the",   "of",    "and",   "to",    "in",   "is",    "that", "for",    "it",   "was",   "on",    "are",   "as",
    "with",  "they",  "at",    "be",    "this", "from",  "have", "or",     "by",   "one",   "had",   "not",   "but",
    "what",  "all",   "were",  "when",  "we",   "there", "can",  "an",     "your", "which", "their", "said",  "if",
    "do",    "will",  "each",  "about", "how",  "up",    "out",  "them",   "then", "many",  "some",  "so",    "these",
    "would", "other", "into",  "has",   "more", "her",   "two",  "like",   "him",  "see",   "time",  "could", "no",
    "make",  "than",  "first", "been",  "its",  "who",   "now",  "people", "my",   "made",  "over",  "did",   "down"};

constexpr std::uint64_t kArrivals = 1ull << 63;  // a stream that is no request's

std::string words(Draws& draws, int num_words) {
  std::string out;
  const Range places{0, static_cast<int>(std::size(kWords)) - 1};
  for (int i = 0; i < num_words; ++i) out.append(i ? " " : "").append(kWords[draws.in(places)]);
  return out;
}

std::string ids(Draws& draws, const Range& range, int num_tokens) {
  std::string out = "[";
  for (int i = 0; i < num_tokens; ++i) out.append(i ? "," : "").append(std::to_string(draws.in(range)));
  return out + "]";
}

}  // namespace

Result<Range> parse_range(std::string_view text, int limit) {
  const auto number = [&](std::string_view digits, int& out) {
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return fault == std::errc() && end == digits.data() + digits.size() && out >= 0 && out <= limit;
  };
  const std::size_t dash = text.find('-');
  Range out;
  const bool fine = number(text.substr(0, dash), out.least) &&
                    (dash == text.npos ? (out.most = out.least, true) : number(text.substr(dash + 1), out.most)) &&
                    out.least <= out.most;
  if (fine) return out;
  return invalid_request("'" + std::string(text) + "' is neither a number nor a range such as 16-512, within 0 to " +
                         std::to_string(limit));
}

PlannedRequest plan_request(const Workload& workload, std::uint64_t index) {
  Draws draws(workload.seed, index);
  PlannedRequest out;
  out.input_tokens = draws.in(workload.input_tokens);
  out.output_tokens = draws.in(workload.output_tokens);
  const bool chat = workload.route == CompletionRoute::chat;
  out.path = chat ? "/v1/chat/completions" : "/v1/completions";
  std::string& body = out.body;
  body = "{\"model\":" + nlohmann::json(workload.model).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (chat) {
    body += ",\"messages\":[{\"role\":\"user\",\"content\":\"" + words(draws, out.input_tokens) + "\"}]";
  } else {
    body += ",\"prompt\":" + ids(draws, workload.token_ids, out.input_tokens);
  }
  body += ",\"max_tokens\":" + std::to_string(out.output_tokens);
  body += ",\"temperature\":" + nlohmann::json(workload.temperature).dump();
  if (workload.temperature > 0) body += ",\"seed\":" + std::to_string(index);
  if (workload.ignore_eos) body += ",\"ignore_eos\":true";
  body += ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
  return out;
}

std::vector<double> poisson_arrivals(std::uint64_t seed, double rate, int num_requests) {
  Draws draws(seed, kArrivals);
  std::vector<double> out;
  double at = 0;
  for (int i = 0; i < num_requests; ++i) out.push_back(at += -std::log1p(-draws.unit()) / rate);
  return out;
}

}  // namespace mstar::load
