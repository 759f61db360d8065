// Regions of a component without resources: segments, a step as one row, leases in the middle of a forward.
#include "mstar/engine/regions.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/engine/engine.h"

namespace mstar::engine {
namespace {

constexpr int kMaxTokens = 48, kMaxRows = 8, kMaxSegments = 4;
using Ints = std::vector<std::int32_t>;

// One row: numbers of several segments.
struct Picture {
  std::vector<Ints> segments;
};

std::int32_t square_of(const Picture& picture) {
  std::int32_t sum = 0;
  for (std::size_t s = 0; s < picture.segments.size(); ++s)
    sum +=
        static_cast<std::int32_t>(s + 1) * std::accumulate(picture.segments[s].begin(), picture.segments[s].end(), 0);
  return sum * sum;
}

struct Kinds {
  decl::PortRef pixels, lengths, square;
  bool comes_to_squares = true;
};

// "segments" sums each segment of the step, as one row, into the border of its first token; then each row's sums are
// put together outside; "squares" takes them row by row.
class Body final : public ComponentBody {
 public:
  explicit Body(const Kinds& kinds) : kinds_(kinds) {}
  std::vector<SlotSpec> input_slots() const override {
    return {{.name = "pixels", .dtype = DType::i32, .per_token = true},
            {.name = "lengths", .dtype = DType::i32, .max_items = 64}};
  }
  std::vector<SlotSpec> output_slots() const override {
    return {{.name = "square", .dtype = DType::i32, .to_host = true}};
  }
  std::vector<SlotSpec> borders() const override {
    return {{.name = "sums", .dtype = DType::i32, .per_token = true},
            {.name = "num_segments", .dtype = DType::i32, .item_dims = {1}},
            {.name = "rows", .dtype = DType::i32},
            {.name = "squares", .dtype = DType::i32}};
  }
  std::vector<RegionSpec> regions() const override {
    CaptureSpec segment, row;
    segment.packed = true;
    segment.row.sources = {{1, &no_length_}};
    segment.row.results = row.row.results = {{.slot = 0, .output = 0, .items = 1}};
    row.row.sources = {{0, &no_pixel_}, {1, &no_length_}};
    row.row.resources.tokens = 1;
    return {{.name = "segments", .kinds = {segment}}, {.name = "squares", .kinds = {row}}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    RowDemand out;
    out.sources = {{0, row.value(kinds_.pixels)}, {1, row.value(kinds_.lengths)}};
    out.resources.tokens = static_cast<int>(row.value(kinds_.pixels)->host.as<std::int32_t>().size());
    out.segments = static_cast<int>(row.value(kinds_.lengths)->host.as<std::int32_t>().size());
    out.results = {{.slot = 0, .output = 0, .items = 1}};
    return out;
  }
  std::size_t workspace_bytes(int, int) const override { return 256; }
  Status forward(Forward& step, int) override {
    auto& device = static_cast<DeferredDevice&>(step.ops().device);
    const auto* const pixels = step.input(0).data<std::int32_t>();
    const auto* const lengths = step.input(1).data<std::int32_t>();
    auto* const sums = step.border(0).data<std::int32_t>();
    auto* const count = step.border(1).data<std::int32_t>();
    auto* const rows = step.border(2).data<std::int32_t>();
    auto* const squares = step.border(3).data<std::int32_t>();
    Ints segments;  // of each row
    for (int r = 0; r < step.num_rows(); ++r) segments.push_back(step.demand(r).segments);
    const int num_segments = std::accumulate(segments.begin(), segments.end(), 0), num_rows = step.num_rows();
    MSTAR_TRY(step.run_region(0, [&] {
      device.launch([=] {
        *count = 0;
        for (int s = 0, at = 0; s < num_segments; at += lengths[s++]) {
          if (lengths[s] == 0) continue;  // padding
          ++*count;
          sums[at] = std::accumulate(pixels + at, pixels + at + lengths[s], 0);
        }
      });
      return ok_status();
    }));
    device.launch([=] {
      int s = 0, at = 0;
      for (std::size_t r = 0; r < segments.size(); ++r) {
        rows[r] = 0;
        for (int i = 0; i < segments[r]; at += lengths[s++]) rows[r] += ++i * (lengths[s] ? sums[at] : 0);
      }
      if (*count != 0 && *count != s) rows[0] = -1;  // segments that are not the step's
    });
    const auto take_squares = [&] {
      device.launch([=] {
        for (int r = 0; r < num_rows; ++r) squares[r] = rows[r] * rows[r];
      });
      return ok_status();
    };
    MSTAR_TRY(kinds_.comes_to_squares ? step.run_region(1, take_squares) : take_squares());
    auto* const out = step.output(0).data<std::int32_t>();
    device.launch([=] { std::copy(squares, squares + num_rows, out); });
    return ok_status();
  }

 private:
  const Kinds& kinds_;
  Value no_length_ = HostValue::i32(Ints{0}), no_pixel_ = HostValue::i32(Ints{0});
};

class Regions : public testing::Test {
 protected:
  static std::vector<decl::PiecewiseRegion> both() {
    return {{.name = "segments",
             .rows = {1},
             .tokens = {8, 20},
             .lease_before_step = true,
             .one_row_per_step = true,
             .max_segments_per_request = kMaxSegments},
            {.name = "squares", .rows = {1, 2, 4}}};
  }
  Status make(std::vector<decl::PiecewiseRegion> regions, std::size_t most_nodes = 1000) {
    decl_ = std::make_unique<decl::Decl>("pictures");
    kinds_.pixels = decl_->port({.name = "pixels", .dtype = DType::i32, .travel = {decl::FromRequest{}}});
    kinds_.lengths = decl_->port({.name = "lengths", .dtype = DType::i32, .travel = {decl::FromRequest{}}});
    kinds_.square = decl_->port({.name = "square", .dtype = DType::i32, .travel = {decl::Keep{}}});
    decl::DeviceComponent component{.name = "pictures"};
    component.capture.regions = std::move(regions);
    component.build = [this](BuildContext&) -> Result<std::unique_ptr<ComponentBody>> {
      return std::unique_ptr<ComponentBody>(std::make_unique<Body>(kinds_));
    };
    component_ = decl_->component(std::move(component));
    walk_ = decl_->walk("look", decl::Run{component_, {kinds_.pixels, kinds_.lengths}, {kinds_.square}});
    decl::for_each_run(decl_->at(walk_).root, [&](const decl::Run& run) { run_ = &run; });
    const resource::PoolLimits limits{.max_requests = 16, .max_rows = kMaxRows, .max_tokens = kMaxTokens};
    MSTAR_TRY_ASSIGN(resources_, ResourceSet::build(*decl_, std::span(&component_, 1), limits, device_));
    MSTAR_TRY_ASSIGN(weights::WeightMap map, weights::WeightMap::create(nullptr, {}));
    Engine::Options options{.limits = limits, .buffers = std::make_shared<BufferPool>(device_)};
    options.most_graph_nodes = most_nodes;
    MSTAR_TRY_ASSIGN(engine_, Engine::create(*decl_, component_, std::move(options), resources_, map, device_));
    return engine_->capture();
  }
  StepPtr launch(const std::vector<Picture>& pictures) {
    std::vector<RowInputs> rows;
    for (const Picture& picture : pictures) {
      Ints pixels, lengths;
      for (const Ints& segment : picture.segments) {
        pixels.insert(pixels.end(), segment.begin(), segment.end());
        lengths.push_back(static_cast<std::int32_t>(segment.size()));
      }
      RowInputs row{.request = RequestId(rows.size() + 1), .params = params_, .walk = walk_, .run = run_};
      row.ports = {{HostValue::i32(pixels)}, {HostValue::i32(lengths)}};
      rows.push_back(std::move(row));
    }
    auto prepared = engine_->prepare(std::move(rows));
    EXPECT_TRUE(prepared.waiting.empty() && prepared.failed.empty());
    auto whole = engine_->advance(*prepared.step);
    EXPECT_TRUE(whole && *whole);
    return std::move(prepared.step);
  }
  void finish(StepPtr step, const std::vector<Picture>& pictures) {
    const std::vector<RowResult> results = engine_->finish(std::move(step));
    ASSERT_EQ(results.size(), pictures.size());
    for (std::size_t r = 0; r < pictures.size(); ++r) {
      ASSERT_FALSE(results[r].error) << results[r].error->message;
      EXPECT_EQ(results[r].outputs[0][0].host.as<std::int32_t>()[0], square_of(pictures[r])) << r;
    }
  }
  // Graphs that the step took.
  std::int64_t replays_of(const std::vector<Picture>& pictures) {
    const std::int64_t before = counters().num_region_replays;
    finish(launch(pictures), pictures);
    return counters().num_region_replays - before;
  }
  const StepCounters& counters() const { return engine_->counters(); }

  DeferredDevice device_;
  Kinds kinds_;
  std::unique_ptr<decl::Decl> decl_;
  decl::ComponentRef component_;
  decl::WalkRef walk_;
  const decl::Run* run_ = nullptr;
  ResourceSet resources_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const decl::RequestParams> params_ = std::make_shared<decl::RequestParams>();
};

TEST_F(Regions, AllSegmentsOfAStepCountAgainstItsOneRow) {
  ASSERT_TRUE(make(both()));
  EXPECT_EQ(engine_->num_graphs(), (2 + 3) * resource::kNumSlots);
  const Picture one{{{1, 2, 3}}}, two{{{4, 5}, {6, 7, 8}}}, three{{{9}, {10}, {11}}};
  EXPECT_EQ(replays_of({one}), 2);
  EXPECT_EQ(replays_of({two, two}), 2) << "four segments of two rows";
  EXPECT_EQ(replays_of({one, three}), 2);
  EXPECT_EQ(replays_of({two, three}), 1) << "a fifth has no place; the rows' region does not mind";
  EXPECT_EQ(replays_of({one}), 2) << "behind a longer one";
  EXPECT_EQ(counters().num_eager, 0);
  EXPECT_EQ(counters().num_piecewise, 5);
  EXPECT_EQ(counters().num_padding_rows, 0);
}

TEST_F(Regions, WhatNoSizeHoldsRunsEagerly) {
  ASSERT_TRUE(make(both()));
  const Picture small{{{1}}}, wide{{Ints(21, 3)}};
  EXPECT_EQ(replays_of({wide}), 1) << "21 tokens";
  EXPECT_EQ(replays_of({small, small, small, small}), 2);
  EXPECT_EQ(replays_of(std::vector<Picture>(5, small)), 0);
  EXPECT_EQ(counters().num_eager, 1);
}

TEST_F(Regions, RandomStepsTwoInFlight) {
  ASSERT_TRUE(make(both()));
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Picture> before;
  StepPtr in_flight;
  for (int i = 0; i < 300; ++i) {
    device_.late_copies = below(2) == 0;
    std::vector<Picture> pictures(static_cast<std::size_t>(1 + below(5)));
    for (Picture& picture : pictures) {
      picture.segments.resize(static_cast<std::size_t>(1 + below(3)));
      for (Ints& segment : picture.segments)
        for (int t = 0; t < 1 + below(3); ++t) segment.push_back(below(10));
    }
    StepPtr next = launch(pictures);
    if (in_flight) finish(std::move(in_flight), before);
    in_flight = std::move(next);
    before = std::move(pictures);
    if (HasFailure()) FAIL() << "step " << i;
  }
  finish(std::move(in_flight), before);
  EXPECT_GT(counters().num_piecewise, 150);
  EXPECT_GT(counters().num_region_replays, counters().num_piecewise + 50);
  EXPECT_GT(counters().num_eager, 10);
}

TEST_F(Regions, ARegionThatTheForwardDoesNotComeToHasNoGraphs) {
  kinds_.comes_to_squares = false;
  ASSERT_TRUE(make(both()));
  EXPECT_EQ(engine_->num_graphs(), 2 * resource::kNumSlots);
  EXPECT_EQ(replays_of({{{{1, 2}}}}), 1);
}

TEST_F(Regions, ACaptureThatFailsLeavesThatSizeOut) {
  device_.fail_captures = 1;
  ASSERT_TRUE(make(both()));
  EXPECT_EQ(engine_->num_graphs(), 4 * resource::kNumSlots);
  EXPECT_EQ(replays_of({{{Ints(9, 1)}}}), 1) << "that of 20 tokens is missing";
  EXPECT_EQ(replays_of({{{Ints(8, 1)}}}), 2);
}

TEST_F(Regions, NoGraphIsRecordedPastTheMostNodes) {
  ASSERT_TRUE(make(both(), 5));  // a region's graph has one node, and there are two of each
  EXPECT_EQ(engine_->num_graphs(), 3 * resource::kNumSlots);
  EXPECT_EQ(replays_of({{{{1, 2}}}, {{{3}}}}), 2);
}

TEST_F(Regions, ADeclaredRegionIsOneOfTheBodys) {
  const Status made = make({{.name = "circles", .rows = {1}}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::bad_model);
  EXPECT_NE(made.error().message.find("'circles'"), std::string::npos);
}

}  // namespace
}  // namespace mstar::engine
