#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "mstar/ops/linear/linear_table_file.h"

namespace mstar {
namespace {

LinearTableFile read(const std::string& text) {
  std::istringstream from(text);
  return read_linear_table(from);
}

TEST(LinearTableFile, IsReadAsLinearTuneWritesIt) {
  const LinearTableFile table = read(
      "// Written by bench/linear_tune; do not edit.\n"
      "kLinearTableVersion = 130100;\n"
      "constexpr LinearChoice kLinearTable[] = {\n"
      "    {8224, 1024, DType::bf16, DType::f32, 16, 0, 0, {0xa00000042, 0x1, 0x0, 0x3, 0x4, 0x5, 0x6, "
      "0xffffffffffffffff}},\n"
      "    {1024, 2048, DType::bf16, DType::f32, 2, 8, 1},\n"
      "    {},  // the end\n"
      "};\n");
  EXPECT_EQ(table.version, 130100u);
  EXPECT_EQ(table.num_refused, 0);
  ASSERT_EQ(table.choices.size(), 2u);
  const LinearChoice &library = table.choices[0], &own = table.choices[1];
  EXPECT_EQ(library.n, 8224);
  EXPECT_EQ(library.k, 1024);
  EXPECT_EQ(library.in, DType::bf16);
  EXPECT_EQ(library.out, DType::f32);
  EXPECT_EQ(library.m, 16);
  EXPECT_FALSE(library.streams());
  EXPECT_EQ(library.algorithm[0], 0xa00000042u);
  EXPECT_EQ(library.algorithm[7], 0xffffffffffffffffu);
  EXPECT_EQ(own.m, 2);
  EXPECT_EQ(own.split, 8);
  EXPECT_EQ(own.fragments, 1);
}

TEST(LinearTableFile, WhatNoKernelCouldRunIsRefused) {
  const char* const bad[] = {
      "{1024, 2048, DType::bf16, DType::f32, 2, 3, 1},",
      "{1024, 2048, DType::bf16, DType::f32, 2, 16, 1},",
      "{1024, 2048, DType::bf16, DType::f32, 2, 8, 7},",
      "{1024, 2048, DType::bf16, DType::f32, 2, -1, 1},",
      "{1024, 2048, DType::bf16, DType::f32, 0, 8, 1},",
      "{1024, 2048, DType::i8, DType::f32, 2, 8, 1},",
      "{99999999999999999999, 2048, DType::bf16, DType::f32, 2, 8, 1},",
      "{1024, 2048, DType::bf16, DType::f32, 2, 4294967304, 1},",
      "{1024, 2048, DType::bf16, DType::f32, 2, 0, 0, {0x1}},",
      "{1024, 2048, DType::bf16, DType::f32, 2, 0, 0, {0x1, 2, 3, 4, 5, 6, 7, 0x1ffffffffffffffff}},",
      "{1024"};
  for (const char* line : bad) {
    const LinearTableFile table = read(line);
    EXPECT_TRUE(table.choices.empty()) << line;
    EXPECT_EQ(table.num_refused, 1) << line;
  }
  EXPECT_EQ(read("\x7f"
                 "ELF\0garbage\n\n=,{")
                .choices.size(),
            0u);
}

TEST(LinearTableFile, TheCommittedTableIsWhole) {
  std::ifstream from(MSTAR_SOURCE_DIR "/src/mstar/ops/linear/linear_table.inc");
  const LinearTableFile table = read_linear_table(from);
  EXPECT_GT(table.choices.size(), 100u);
  EXPECT_EQ(table.num_refused, 0);
  EXPECT_GT(table.version, 0u);
}

}  // namespace
}  // namespace mstar
