// Random blocks of quantised weights, for the tests and benches of linear and embedding.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "mstar/base/block_format.h"
#include "mstar/ops/linear/linear.h"

namespace mstar::op_test {

// Rows of blocks at an odd address.
class BlockRows {
 public:
  BlockRows() = default;
  // Codes of all values; the elements are about `spread` wide.
  BlockRows(BlockFormat format, std::int64_t rows, std::int64_t num_inputs, std::uint32_t seed, float spread = 0.3f)
      : format_(format),
        rows_(rows),
        num_inputs_(num_inputs),
        row_bytes_(StoredType(format).row_bytes(num_inputs)),
        bytes_(static_cast<std::size_t>(rows) * row_bytes_ + 1) {
    std::mt19937 random(seed);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random() >> 24);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (std::size_t at = 1; at < bytes_.size(); at += block_bytes(format))
      for (const Scale& scale : scales_of(format)) put(at + scale.at, to_half(uniform(random) * scale.size * spread));
  }
  LinearSource source(std::int64_t begin, std::int64_t end) {
    return {.weight = TensorView(bytes_.data() + 1 + static_cast<std::size_t>(begin) * row_bytes_, DType::u8,
                                 {end - begin, static_cast<std::int64_t>(row_bytes_)}),
            .blocks = format_};
  }
  LinearSource source() { return source(0, rows_); }
  std::vector<float> row(std::int64_t index) const {
    std::vector<float> out(static_cast<std::size_t>(num_inputs_));
    dequantise(format_, bytes_.data() + 1 + static_cast<std::size_t>(index) * row_bytes_, num_inputs_, out.data());
    return out;
  }

 private:
  struct Scale {
    std::size_t at;
    float size;  // what brings the largest code to about 1
  };
  static std::vector<Scale> scales_of(BlockFormat format) {
    switch (format) {
      case BlockFormat::q8_0:
        return {{0, 1.0f / 64}};
      case BlockFormat::q4_0:
        return {{0, 1.0f / 4}};
      case BlockFormat::q5_0:
        return {{0, 1.0f / 8}};
      case BlockFormat::q4_1:
        return {{0, 1.0f / 8}, {2, 1.0f}};
      case BlockFormat::q5_1:
        return {{0, 1.0f / 16}, {2, 1.0f}};
      case BlockFormat::q4_k:
        return {{0, 1.0f / 256}, {2, 1.0f / 32}};
      case BlockFormat::q5_k:
        return {{0, 1.0f / 512}, {2, 1.0f / 32}};
      case BlockFormat::q6_k:
        return {{208, 1.0f / 1024}};
    }
    return {};
  }
  void put(std::size_t at, Half half) { std::memcpy(bytes_.data() + at, &half.bits, 2); }

  BlockFormat format_ = BlockFormat::q8_0;
  std::int64_t rows_ = 0, num_inputs_ = 0;
  std::size_t row_bytes_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace mstar::op_test
