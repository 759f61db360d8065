#include "reference.h"

#include <algorithm>
#include <cmath>

namespace mstar::toys {

double Seeded::at(const std::string& name, std::uint64_t index) const {
  std::uint64_t state = 14695981039346656037ull;
  for (const char c : name) {
    state ^= static_cast<std::uint8_t>(c);
    state *= 1099511628211ull;
  }
  state ^= seed_;
  state += 0x9E3779B97F4A7C15ull * (index + 1);
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  state = state ^ (state >> 31);
  return static_cast<double>(state / (1ull << 40)) / 8388608.0 - 1.0;
}

Numbers Seeded::row(const std::string& name, std::uint64_t row, std::size_t size) const {
  Numbers out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = at(name, row * size + i);
  return out;
}

Numbers Seeded::linear(const std::string& name, std::size_t num_outputs, const Numbers& x) const {
  Numbers out(num_outputs);
  for (std::size_t o = 0; o < num_outputs; ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) out[o] += at(name + ".weight", o * x.size() + i) * x[i];
    out[o] = out[o] * std::sqrt(3.0 / static_cast<double>(x.size())) + 0.1 * at(name + ".bias", o);
  }
  return out;
}

Numbers Seeded::rms_norm(const std::string& name, const Numbers& x) const {
  double squares = 0;
  for (const double each : x) squares += each * each;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  Numbers out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * (1.0 + 0.1 * at(name, i));
  return out;
}

double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

void add_to(Numbers& to, const Numbers& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

namespace {

Numbers attend(const Numbers& query, const std::vector<Numbers>& keys, const std::vector<Numbers>& values, int heads,
               int head_dim) {
  Numbers out(query.size());
  for (int h = 0; h < heads; ++h) {
    const auto base = static_cast<std::size_t>(h * head_dim);
    Numbers scores(keys.size());
    for (std::size_t t = 0; t < keys.size(); ++t) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(head_dim); ++i)
        scores[t] += query[base + i] * keys[t][base + i];
      scores[t] /= std::sqrt(static_cast<double>(head_dim));
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - most);
    for (std::size_t t = 0; t < keys.size(); ++t)
      for (std::size_t i = 0; i < static_cast<std::size_t>(head_dim); ++i)
        out[base + i] += scores[t] / total * values[t][base + i];
  }
  return out;
}

}  // namespace

Numbers run_layers(const Seeded& weights, int num_layers, int heads, int head_dim, int ffn_dim, Numbers x,
                   ReferenceKv& kv) {
  kv.keys.resize(static_cast<std::size_t>(num_layers));
  kv.values.resize(static_cast<std::size_t>(num_layers));
  const auto width = static_cast<std::ptrdiff_t>(heads * head_dim);
  for (int layer = 0; layer < num_layers; ++layer) {
    const std::string name = "layer." + std::to_string(layer);
    auto& keys = kv.keys[static_cast<std::size_t>(layer)];
    auto& values = kv.values[static_cast<std::size_t>(layer)];
    const Numbers qkv =
        weights.linear(name + ".qkv", static_cast<std::size_t>(3 * width), weights.rms_norm(name + ".norm1", x));
    const Numbers query(qkv.begin(), qkv.begin() + width);
    keys.emplace_back(qkv.begin() + width, qkv.begin() + 2 * width);
    values.emplace_back(qkv.begin() + 2 * width, qkv.end());
    add_to(x, weights.linear(name + ".out", x.size(), attend(query, keys, values, heads, head_dim)));
    Numbers hidden =
        weights.linear(name + ".up", static_cast<std::size_t>(ffn_dim), weights.rms_norm(name + ".norm2", x));
    for (double& each : hidden) each = gelu_tanh(each);
    add_to(x, weights.linear(name + ".down", x.size(), hidden));
  }
  return x;
}

}  // namespace mstar::toys
