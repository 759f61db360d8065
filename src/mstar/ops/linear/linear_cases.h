// Shapes that the test and the bench of linear share.
#pragma once

#include <cstdint>

namespace mstar::op_test {

struct LinearCase {
  const char* name;
  std::int64_t m, n, k;
};

// Tails everywhere: rows around the tile heights, outputs around the panels, odd depths, depths beyond one block.
inline constexpr LinearCase kSmallLinearCases[] = {
    {"one", 1, 1, 1},      {"m1", 1, 33, 7},      {"m2", 2, 64, 65},     {"m3", 3, 31, 129},
    {"m4", 4, 100, 64},    {"m5", 5, 17, 3},      {"m6", 6, 96, 33},     {"m7", 7, 160, 50},
    {"m8", 8, 48, 1},      {"m9", 9, 65, 127},    {"m12", 12, 32, 512},  {"m13", 13, 129, 513},
    {"m23", 23, 70, 96},   {"m33", 33, 127, 300}, {"deep", 3, 40, 2050}, {"deep_m40", 40, 35, 1537},
    {"tall", 150, 40, 20},
};

// Whisper base, small and a language model's decode.
inline constexpr LinearCase kBenchLinearCases[] = {
    {"decode_qkv", 1, 1536, 512},     {"decode_out", 1, 512, 512},      {"decode_fc1", 1, 2048, 512},
    {"decode_fc2", 1, 512, 2048},     {"decode_vocab", 1, 51865, 512},  {"decode_large", 1, 4096, 4096},
    {"decode_llm", 1, 8960, 1536},    {"rows4_llm", 4, 8960, 1536},     {"rows8_llm", 8, 8960, 1536},
    {"prefill_llm", 128, 8960, 1536}, {"rows2_vocab", 2, 51865, 512},   {"rows4_vocab", 4, 51865, 512},
    {"rows8_vocab", 8, 51865, 512},   {"rows2_fc1", 2, 2048, 512},      {"rows3_fc1", 3, 2048, 512},
    {"rows4_fc1", 4, 2048, 512},      {"rows6_fc1", 6, 2048, 512},      {"rows8_fc1", 8, 2048, 512},
    {"rows12_fc1", 12, 2048, 512},    {"rows16_fc1", 16, 2048, 512},    {"rows32_fc1", 32, 2048, 512},
    {"rows64_fc1", 64, 2048, 512},    {"encoder_out", 1500, 512, 512},  {"encoder_qkv", 1500, 1536, 512},
    {"encoder_fc1", 1500, 2048, 512}, {"encoder_fc2", 1500, 512, 2048}, {"small_fc1", 1500, 3072, 768},
};

}  // namespace mstar::op_test
