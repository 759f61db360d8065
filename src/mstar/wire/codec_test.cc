#include "mstar/wire/codec.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mstar::wire {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Random frames of every kind, with lists of random length.
class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  template <class T>
  T number() {
    return static_cast<T>(random_());
  }
  std::string text() {
    std::string out(below(12), 'a');
    for (char& c : out) c = static_cast<char>(random_());
    return out;
  }
  template <class Make>
  auto list(Make make) {
    std::vector<decltype(make())> out;
    for (std::uint64_t left = below(4); left > 0; --left) out.push_back(make());
    return out;
  }
  decl::PortRef port() { return decl::PortRef(number<std::uint16_t>()); }
  RequestId request() { return RequestId(random_()); }
  WorkerId worker() { return WorkerId(number<std::uint32_t>()); }
  decl::PartitionRef partition() { return decl::PartitionRef(number<std::uint16_t>()); }
  HostValue host() {
    switch (below(5)) {
      case 0:
        return HostValue();
      case 1:
        return HostValue::utf8(text());
      case 2:
        return HostValue::i32(list([&] { return number<std::int32_t>(); }));
      case 3:
        return HostValue(DType::f16, {2, 0, 3}, {});
      default:
        return HostValue(DType::i64, {}, std::vector<std::byte>(8, std::byte{7}));
    }
  }
  Values values() {
    return list([&] { return Value(host()); });
  }
  Error error() {
    return std::move(std::move(Error(static_cast<Code>(below(6)), text())).with_field(text())).with_reason(text());
  }
  Params params() {
    Params out;
    for (std::uint64_t left = below(4); left > 0; --left) {
      ParamValue value = true;
      const auto kind = below(6);
      if (kind == 1) value = number<std::int64_t>();
      if (kind == 2) value = 1.5 * number<std::int32_t>();
      if (kind == 3) value = text();
      if (kind == 4) value = list([&] { return text(); });
      if (kind == 5) value = list([&] { return 0.5 * number<std::int32_t>(); });
      out.set(text(), std::move(value));
    }
    return out;
  }
  graph::LoopPath path() {
    graph::LoopPath out;
    for (auto& at : out.at) at = number<std::int32_t>();
    out.depth = number<std::uint8_t>();
    return out;
  }
  auto port_values() {
    return list([&] { return std::pair(port(), values()); });
  }
  auto port_counts() {
    return list([&] { return std::pair(port(), number<std::int64_t>()); });
  }
  graph::Signal signal() {
    switch (below(7)) {
      case 0: {
        graph::StartPass out{.walk = decl::WalkRef(number<std::uint16_t>()), .pass = number<std::int32_t>()};
        out.caps = list([&] { return std::pair(number<graph::LoopIndex>(), number<std::int32_t>()); });
        out.flags[text()] = number<std::int64_t>();
        out.inputs = port_values();
        out.kept = list([&] { return std::pair(port(), number<std::int32_t>()); });
        out.stream_base = port_counts();
        out.forget = list([&] { return port(); });
        return out;
      }
      case 1:
        return graph::Delivery{number<std::int32_t>(), number<graph::EdgeIndex>(), path(), values()};
      case 2:
        return graph::KeptValue{port(), number<std::int32_t>(), values()};
      case 3:
        return graph::StreamItems{port(), number<std::int64_t>(), values()};
      case 4:
        return graph::StreamEnd{port(), number<std::int64_t>()};
      case 5:
        return graph::LoopStop{number<std::int32_t>(), number<graph::LoopIndex>(), path()};
      default:
        return graph::Removal{};
    }
  }
  ToWorker to_worker() {
    switch (below(10)) {
      case 0: {
        auto made = std::make_shared<decl::RequestParams>();
        made->sampling = {.temperature = 0.25,
                          .top_k = number<int>(),
                          .seed = random_(),
                          .max_tokens = number<std::int64_t>(),
                          .ignore_eos = below(2) == 1};
        made->sampling.stop_ids = list([&] { return number<std::int32_t>(); });
        made->output_modalities = list([&] { return static_cast<decl::Modality>(below(8)); });
        made->fields = params();
        return AddRequest{request(), number<std::uint32_t>(), made, list([&] { return worker(); }), port_values()};
      }
      case 1:
        return PartitionMessage{request(), {partition(), signal()}};
      case 2:
        return CancelPartition{request(), partition(), below(2) == 1};
      case 3:
        return RemoveRequest{request()};
      case 4:
        return Unload{};
      case 5:
        return Load{};
      case 6:
        return HandOver{request(), partition(), list([&] { return decl::ResourceRef(number<std::uint16_t>()); }),
                        worker()};
      case 7:
        return AwaitState{request(), number<std::uint32_t>()};
      case 8:
        return StateParcel{request(),
                           list([&] { return std::pair(decl::ResourceRef(number<std::uint16_t>()), values()); })};
      default:
        return Shutdown{};
    }
  }
  ToConductor to_conductor() {
    switch (below(6)) {
      case 0:
        return WorkerReady{worker()};
      case 1:
        return WorkerFailed{worker(), error()};
      case 2: {
        graph::FragmentDone done{.walk = decl::WalkRef(number<std::uint16_t>()), .pass = number<std::int32_t>()};
        done.loop_ends = list([&] {
          return graph::FragmentLoopEnd{number<graph::LoopIndex>(), static_cast<decl::LoopEnd>(below(2)),
                                        number<std::int32_t>()};
        });
        done.kept = list([&] { return port(); });
        done.produced = port_counts();
        done.consumed = port_counts();
        done.num_tokens = number<std::int64_t>();
        done.final_consumed = below(2) == 1;
        done.end_partition = below(2) == 1;
        done.budget_spent = below(2) == 1;
        done.cancelled = below(2) == 1;
        return FragmentReport{request(),
                              worker(),
                              partition(),
                              done,
                              list([&] { return std::pair(port(), list([&] { return host(); })); }),
                              number<std::int64_t>()};
      }
      case 3:
        return ClientValues{
            worker(), list([&] {
              return ClientValues::Part{request(), port(), number<std::uint32_t>(), number<std::int64_t>()};
            }),
            list([&] { return host(); })};
      case 4:
        return RequestFailed{request(), error()};
      default:
        return Removed{request(), worker()};
    }
  }
  Frame frame() {
    switch (below(9)) {
      case 0:
        return to_worker();
      case 1:
        return to_conductor();
      case 5:
        return PeerSocket{worker()};
      case 6:
        return Ping{};
      case 7:
        return Pong{random_()};
      case 8:
        return StepBytes{text()};
      case 2:
        return PeerMessage{worker(), to_worker()};
      case 3: {
        WorkerStats out;
        out.pools = list([&] {
          return WorkerStats::Pool{text(),
                                   text(),
                                   number<std::int64_t>(),
                                   number<std::int64_t>(),
                                   random_(),
                                   number<std::int64_t>(),
                                   number<std::int64_t>(),
                                   number<std::int64_t>(),
                                   number<std::int64_t>()};
        });
        out.components = list([&] {
          return WorkerStats::Component{text(), text(), number<std::int64_t>(), 1, 2,
                                        3,      4,      number<std::int64_t>(), 5, 6,
                                        7,      8,      number<std::int64_t>()};
        });
        out.num_requests = number<std::int64_t>();
        out.weight_bytes = random_();
        out.handed_over_bytes = random_();
        out.state_wait_us = random_();
        out.num_graphs = random_();
        out.captured_bytes = random_();
        return out;
      }
      default: {
        WorkerSetup out{.worker = worker(), .device = 3, .on_cuda = true, .num_threads = 2, .log_level = text()};
        out.models = list([&] {
          return WorkerSetup::Model{
              text(), text(), params(), list([&] { return decl::ComponentRef(number<std::uint16_t>()); }),
              1,      2,      3,        list([&] { return decl::ComponentRef(number<std::uint16_t>()); })};
        });
        out.group = list([&] { return worker(); });
        out.computes_together = below(2) == 1;
        out.num_row_parts = 1 + static_cast<std::int32_t>(below(4));
        return out;
      }
    }
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

TEST(Codec, EveryFrameComesBackTheSame) {
  std::set<std::size_t> kinds;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const Frame frame = Maker(seed).frame();
    kinds.insert(frame.index());
    const auto bytes = encode(frame);
    ASSERT_TRUE(bytes) << bytes.error().message;
    const auto back = decode(bytes_of(*bytes));
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_EQ(back->index(), frame.index());
    const auto again = encode(*back);
    ASSERT_TRUE(again);
    ASSERT_EQ(*again, *bytes) << seed;
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Frame>);
}

TEST(Codec, FieldsKeepTheirPlaces) {
  auto params = std::make_shared<decl::RequestParams>();
  params->sampling = {.temperature = 0.5,
                      .top_k = 3,
                      .top_p = 0.9,
                      .min_p = 0.1,
                      .repetition_penalty = 1.2,
                      .seed = 77,
                      .max_tokens = 5,
                      .ignore_eos = true,
                      .stop_ids = {4, 5}};
  params->output_modalities = {decl::Modality::audio};
  params->fields.set("name", std::string("x"));
  const AddRequest sent{
      RequestId(9), 2, params, {WorkerId(1), WorkerId()}, {{decl::PortRef(3), {HostValue::utf8("hi")}}}};
  const auto bytes = encode(Frame(ToWorker(sent)));
  ASSERT_TRUE(bytes);
  const auto frame = decode(bytes_of(*bytes));
  ASSERT_TRUE(frame);
  const auto& got = std::get<AddRequest>(std::get<ToWorker>(*frame));
  EXPECT_EQ(got.request, sent.request);
  EXPECT_EQ(got.model, 2u);
  EXPECT_EQ(got.placement, sent.placement);
  EXPECT_EQ(got.inputs[0].first, decl::PortRef(3));
  EXPECT_EQ(got.inputs[0].second[0].host.text(), "hi");
  EXPECT_EQ(got.inputs[0].second[0].host.dtype(), DType::utf8);
  const auto& s = got.params->sampling;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.repetition_penalty, 1.2);
  EXPECT_EQ(s.seed, 77u);
  EXPECT_EQ(s.max_tokens, 5);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.stop_ids, (std::vector<std::int32_t>{4, 5}));
  EXPECT_TRUE(got.params->wants(decl::Modality::audio));
  EXPECT_EQ(got.params->fields.get_string("name", "").value_or(""), "x");
}

TEST(Codec, CutDamagedAndForeignFramesAreErrors) {
  int num_refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Maker maker(seed);
    const auto bytes = encode(maker.frame());
    ASSERT_TRUE(bytes);
    for (std::size_t size = 0; size < bytes->size(); ++size) EXPECT_FALSE(decode(bytes_of(bytes->substr(0, size))));
    EXPECT_FALSE(decode(bytes_of(*bytes + "x")));
    for (int flips = 0; flips < 20; ++flips) {
      std::string damaged = *bytes;
      damaged[maker.below(damaged.size())] = static_cast<char>(maker.random()());
      const auto frame = decode(bytes_of(damaged));
      num_refused += !frame;
      if (frame) {
        EXPECT_TRUE(encode(*frame));
      }
    }
    std::string other = *bytes;
    ++other[0];
    const auto refused = decode(bytes_of(other));
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("version"), std::string::npos);
  }
  EXPECT_GT(num_refused, 500);
}

class FakeBuffer final : public DeviceBuffer {
 public:
  explicit FakeBuffer(bool lost) : lost_(lost) {}
  DType dtype() const override { return DType::i32; }
  Dims dims() const override { return {2}; }
  std::size_t size_bytes() const override { return 8; }
  Result<HostValue> to_host() const override {
    if (lost_) return unavailable("the device is gone");
    return HostValue::i32(std::vector<std::int32_t>{4, 2});
  }

 private:
  bool lost_;
};

Result<std::string> encode_value(Value value) {
  return encode(Frame(ToWorker(PartitionMessage{
      RequestId(1), {decl::PartitionRef(0), graph::KeptValue{decl::PortRef(0), 1, {std::move(value)}}}})));
}

TEST(Codec, DeviceValuesTravelAsHostBytes) {
  const auto bytes = encode_value(Value(std::make_shared<FakeBuffer>(false)));
  ASSERT_TRUE(bytes);
  const auto frame = decode(bytes_of(*bytes));
  ASSERT_TRUE(frame);
  const auto& kept = std::get<graph::KeptValue>(std::get<PartitionMessage>(std::get<ToWorker>(*frame)).signal.signal);
  EXPECT_EQ(kept.values[0].device, nullptr);
  ASSERT_EQ(kept.values[0].host.size_bytes(), 8u);
  EXPECT_EQ(kept.values[0].host.as<std::int32_t>()[0], 4);
  const auto lost = encode_value(Value(std::make_shared<FakeBuffer>(true)));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::unavailable);
}

TEST(Codec, ValuesThatDoNotFillTheirShapeAreNotSent) {
  EXPECT_FALSE(encode_value(HostValue(DType::f32, {3}, std::vector<std::byte>(8))));
  EXPECT_FALSE(encode_value(HostValue(DType::f32, {-1, -2}, std::vector<std::byte>(8))));
  EXPECT_FALSE(encode_value(HostValue(DType::u8, {std::int64_t{1} << 40, std::int64_t{1} << 40}, {})));
  EXPECT_TRUE(encode_value(HostValue(DType::f32, {0}, {})));
  EXPECT_TRUE(encode_value(HostValue()));
}

}  // namespace
}  // namespace mstar::wire
