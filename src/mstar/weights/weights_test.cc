#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "mstar/weights/checkpoint.h"
#include "mstar/weights/weight_map.h"

namespace mstar::weights {
namespace {
TEST(Real, Opens) {
  const char* dir = std::getenv("MSTAR_TEST_CHECKPOINT");
  if (!dir) GTEST_SKIP() << "MSTAR_TEST_CHECKPOINT names no checkpoint";
  auto opened = Checkpoint::open(dir);
  ASSERT_TRUE(opened) << opened.error().message;
  std::printf("%s %s %zu weights %zu aliases\n", std::string((*opened)->format_name()).c_str(),
              (*opened)->spec_name().c_str(), (*opened)->weights().size(), (*opened)->aliases().size());
  auto map = WeightMap::create(std::shared_ptr<const Checkpoint>(std::move(*opened)), {});
  ASSERT_TRUE(map) << map.error().message;
  std::printf("%s", map->describe().c_str());
}
}  // namespace
}  // namespace mstar::weights
