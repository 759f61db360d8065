#include "mstar/graph/fixtures/fixtures.h"

#include <gtest/gtest.h>

#include "mstar/graph/placement.h"

namespace mstar::graph {
namespace {

TEST(Fixtures, EveryModelIsValid) {
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    const decl::Decl model = fixture.make();
    EXPECT_EQ(model.name(), fixture.name);
    const std::vector<std::string> faults = model.validate();
    EXPECT_TRUE(faults.empty()) << fixture.name << ": " << (faults.empty() ? "" : faults.front());
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled) << compiled.error().message;
    EXPECT_EQ(compiled->walks().size(), model.walks().size());
  }
}

TEST(Fixtures, EveryModelMayRunOnOneWorkerPerComponent) {
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    const decl::Decl model = fixture.make();
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled) << compiled.error().message;
    RequestPlacement placement(*compiled, WorkerId(0));
    for (std::size_t c = 0; c < model.components().size(); ++c)
      placement.set(decl::ComponentRef(static_cast<std::uint16_t>(c)), WorkerId(static_cast<std::uint32_t>(c)));
    const auto placed = PlacedModel::place(*compiled, placement);
    EXPECT_TRUE(placed) << fixture.name << ": " << (placed ? "" : placed.error().message);
  }
}

}  // namespace
}  // namespace mstar::graph
