// The toys' arithmetic in doubles, written down from their declarations and sharing no code with them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mstar::toys {

using Numbers = std::vector<double>;

class Seeded {
 public:
  explicit Seeded(std::uint64_t seed) : seed_(seed) {}
  double at(const std::string& name, std::uint64_t index) const;
  // Row `row` of NAME [rows, size].
  Numbers row(const std::string& name, std::uint64_t row, std::size_t size) const;
  // NAME.weight x + NAME.bias.
  Numbers linear(const std::string& name, std::size_t num_outputs, const Numbers& x) const;
  Numbers rms_norm(const std::string& name, const Numbers& x) const;

 private:
  std::uint64_t seed_;
};

double gelu_tanh(double x);
void add_to(Numbers& to, const Numbers& what);

// The keys and values of one label.
struct ReferenceKv {
  std::vector<std::vector<Numbers>> keys, values;  // [layer][position]
};
// A transformer of `num_layers` layers over x, one position after the other; the positions are appended to `kv`.
Numbers run_layers(const Seeded& weights, int num_layers, int heads, int head_dim, int ffn_dim, Numbers x,
                   ReferenceKv& kv);

}  // namespace mstar::toys
