#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mstar/base/check.h"
#include "mstar/base/dtype.h"
#include "mstar/base/host_value.h"
#include "mstar/base/params.h"
#include "mstar/base/queue.h"
#include "mstar/base/result.h"
#include "mstar/base/span_io.h"

namespace mstar {
namespace {

Result<int> parse_digit(char c) {
  if (c < '0' || c > '9') return std::move(invalid_request("not a digit")).with_field("c");
  return c - '0';
}
Result<int> sum(char a, char b) {
  MSTAR_TRY_ASSIGN(const int x, parse_digit(a));
  MSTAR_TRY_ASSIGN(const int y, parse_digit(b));
  return x + y;
}

TEST(Result, PassesValuesAndErrors) {
  EXPECT_EQ(*sum('1', '2'), 3);
  const auto bad = sum('1', 'x');
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::invalid_request);
  EXPECT_EQ(bad.error().field, "c");
}

TEST(Result, ReadingAFailedValueDies) {
  EXPECT_DEATH(
      {
        auto r = sum('x', '1');
        (void)*r;
      },
      "not a digit");
}

TEST(DType, EveryHalfRoundTrips) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float f = to_float(half);
    if (std::isnan(f)) continue;
    EXPECT_EQ(to_half(f).bits, half.bits) << bits;
  }
  EXPECT_EQ(to_half(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0f).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(to_float(to_half(NAN))));
}

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(NAN))));
}

TEST(HostValue, HoldsFewBytesInPlaceAndSharesMany) {
  const std::string longest(HostValue::kMostInPlace, 'a'), longer(HostValue::kMostInPlace + 1, 'b');
  for (const std::string& text : {std::string(), std::string("x"), longest, longer}) {
    auto value = std::make_unique<HostValue>(HostValue::utf8(text));
    const HostValue copy = *value;
    HostValue moved = std::move(*value);
    value.reset();
    const bool is_shared = text.size() > HostValue::kMostInPlace;
    for (const HostValue* each : {&copy, static_cast<const HostValue*>(&moved)}) {
      EXPECT_EQ(each->text(), text);
      EXPECT_EQ(each->size_bytes(), text.size());
      EXPECT_EQ(each->dims(), Dims({static_cast<std::int64_t>(text.size())}));
      EXPECT_EQ(each->owner() != nullptr, is_shared);
      EXPECT_FALSE(each->is_signal());
    }
    EXPECT_EQ(copy.bytes().data() == moved.bytes().data(), is_shared);
    moved = HostValue::i32(std::vector<std::int32_t>{7});  // from either kind to one in place
    EXPECT_EQ(moved.as<std::int32_t>()[0], 7);
    EXPECT_EQ(copy.text(), text);
  }
  const auto owner = std::make_shared<const std::string>("part");
  EXPECT_EQ(HostValue::shared_blob(owner).owner(), owner);  // what is shared stays so, however short
  EXPECT_EQ(HostValue(DType::i64, {1}, std::vector<std::byte>(8)).as<std::int64_t>()[0], 0);
  EXPECT_TRUE(HostValue().is_signal());
}

TEST(Params, CoerceAsLaxClientsExpect) {
  Params p;
  p.set("a", std::string("16"));
  p.set("b", 16.0);
  p.set("c", std::string("true"));
  p.set("d", 1.5);
  p.set("e", std::string("x"));
  EXPECT_EQ(*p.get_int("a", 0), 16);
  EXPECT_EQ(*p.get_int("b", 0), 16);
  EXPECT_TRUE(*p.get_bool("c", false));
  EXPECT_EQ(p.get_int("d", 0).error().field, "d");
  EXPECT_FALSE(p.get_number("e", 0));
  EXPECT_EQ(*p.get_int("missing", 7), 7);
  EXPECT_EQ(p.get_strings("e")->size(), 1u);
}

TEST(Queue, OrderPerProducerAndClose) {
  Queue<int> queue;
  std::jthread producer([&] {
    for (int i = 0; i < 1000; ++i) queue.push(i);
    queue.close();
  });
  int expected = 0;
  while (const auto item = queue.pop()) EXPECT_EQ(*item, expected++);
  EXPECT_EQ(expected, 1000);
  EXPECT_FALSE(queue.push(1));
}

TEST(Queue, LooksForAnItemUntilItsTime) {
  using std::chrono::steady_clock;
  Queue<int> queue;
  EXPECT_FALSE(queue.look_until(steady_clock::time_point()));
  const auto far = steady_clock::now() + std::chrono::hours(1);
  std::jthread producer([&] { queue.push(1); });
  EXPECT_TRUE(queue.look_until(far));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_FALSE(queue.look_until(steady_clock::now()));
  queue.close();
  EXPECT_TRUE(queue.look_until(far));
}

TEST(Queue, TakesAllWhatIsLeftInOrder) {
  Queue<int> queue;
  std::vector<int> items = {1, 2, 3, 4, 5};
  EXPECT_TRUE(queue.push_all(items));
  EXPECT_EQ(queue.pop(), 1);
  queue.push(6);
  EXPECT_EQ(queue.take_all(), (std::vector<int>{2, 3, 4, 5, 6}));
  EXPECT_TRUE(queue.take_all().empty());
  for (int i = 0; i < 100; ++i) queue.push(i);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(queue.pop(), i);
  std::vector<int> rest;
  queue.take_all(rest);
  ASSERT_EQ(rest.size(), 40u);
  EXPECT_EQ(rest.front(), 60);
  EXPECT_EQ(rest.back(), 99);
  queue.close();
  EXPECT_FALSE(queue.push_all(items));
  EXPECT_FALSE(queue.pop());
}

TEST(ByteReader, NeverReadsPastTheEnd) {
  const std::byte bytes[] = {std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{9}};
  ByteReader reader(bytes);
  EXPECT_EQ(*reader.read<std::uint32_t>("count"), 1u);
  EXPECT_FALSE(reader.read<std::uint16_t>("tail"));
  EXPECT_FALSE(reader.take(~0ull, "blob"));
  EXPECT_EQ(reader.take(1, "last")->size(), 1u);
}

}  // namespace
}  // namespace mstar
