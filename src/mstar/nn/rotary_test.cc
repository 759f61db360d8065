#include "mstar/nn/rotary.h"

#include <gtest/gtest.h>

#include "mstar/device/cpu/cpu_device.h"

namespace mstar::nn {
namespace {

using Axes = std::vector<std::int32_t>;

TEST(PairAxes, SectionsLieBehindEachOther) {
  const int sections[] = {2, 3, 3};
  const auto axes = pair_axes(sections, AxisLayout::sections);
  ASSERT_TRUE(axes);
  EXPECT_EQ(*axes, (Axes{0, 0, 1, 1, 1, 2, 2, 2}));
}

// As transformers' Qwen3-VL has it: axis a takes the pairs a, a + 3, … below three times its section.
TEST(PairAxes, AxesTakeTurnsAsFarAsTheirSectionsReach) {
  for (const std::vector<int>& sections :
       {std::vector<int>{11, 11, 10}, {24, 20, 20}, {2, 1, 1}, {4, 2, 3}, {5, 0, 1}}) {
    const auto axes = pair_axes(sections, AxisLayout::alternating);
    ASSERT_TRUE(axes);
    Axes expected(axes->size(), 0);
    for (std::size_t axis = 1; axis < sections.size(); ++axis)
      for (std::size_t pair = axis; pair < 3 * static_cast<std::size_t>(sections[axis]) && pair < expected.size();
           pair += 3)
        expected[pair] = static_cast<std::int32_t>(axis);
    EXPECT_EQ(*axes, expected);
  }
}

TEST(PairAxes, WhatIsNoSectionIsRefused) {
  const int sections[] = {2, -1, 3};
  EXPECT_EQ(pair_axes(sections, AxisLayout::sections).error().code, Code::bad_model);
  const auto device = make_cpu_device();
  const float frequencies[] = {1, 0.5f, 0.25f};
  const std::int32_t axes[] = {0, 1};
  EXPECT_EQ(Rotary::create(*device, frequencies, false, axes).error().code, Code::bad_model);
}

}  // namespace
}  // namespace mstar::nn
