#include "mstar/conductor/client_inputs.h"

#include <gtest/gtest.h>

#include <cstring>

namespace mstar::conductor {
namespace {

using decl::FromClient;
using decl::FromRequest;

struct ClientInputsTest : testing::Test {
  ClientInputsTest() {
    const auto port = [&](const char* name, DType dtype, std::vector<decl::Axis> axes, decl::Travel travel) {
      model.port({.name = name, .dtype = dtype, .axes = std::move(axes), .travel = {std::move(travel)}});
    };
    port("action", DType::f32, {{"xy", 2}}, FromClient{});
    port("sound", DType::pcm, {{"samples"}}, FromClient{});
    port("key", DType::i32, {}, FromClient{});
    port("words", DType::utf8, {}, FromClient{});
    port("grid", DType::f32, {{"rows"}, {"columns", 3}}, FromClient{});
    port("any", DType::f32, {{"rows"}, {"columns"}}, FromClient{});
    port("half", DType::f16, {{"one", 1}}, FromClient{});
    port("text", DType::utf8, {}, FromRequest{});
  }
  std::string field_of(const Result<ClientItems>& result) {
    EXPECT_FALSE(result);
    return result ? "none" : result.error().field;
  }
  static HostValue floats(std::vector<float> numbers) { return HostValue::f32(numbers); }
  static HostValue whole(std::vector<std::int64_t> numbers) { return HostValue::of<std::int64_t>(DType::i64, numbers); }
  static HostValue raw(const std::vector<float>& numbers) {
    return HostValue::blob({reinterpret_cast<const char*>(numbers.data()), numbers.size() * 4});
  }

  decl::Decl model{"m"};
  ClientInputs inputs{model};
};

TEST_F(ClientInputsTest, FixedAxesMakeOneItemEach) {
  const auto first = inputs.accept("action", raw({1, 2, 3, 4}), false);
  ASSERT_TRUE(first) << first.error().message;
  ASSERT_EQ(first->items.size(), 2u);
  EXPECT_EQ(first->first_index, 0);
  EXPECT_EQ(first->total, -1);
  EXPECT_EQ(first->items[1].dims(), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(first->items[1].dtype(), DType::f32);
  EXPECT_EQ(first->items[1].as<float>()[0], 3);
  const auto second = inputs.accept("action", whole({5, -6}), true);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->first_index, 2);
  EXPECT_EQ(second->total, 3);
  EXPECT_EQ(second->items[0].as<float>()[1], -6);
  EXPECT_EQ(inputs.counts(second->port).num_items, 3);
  EXPECT_TRUE(inputs.counts(second->port).done);
  EXPECT_EQ(field_of(inputs.accept("action", raw({1, 2}), false)), "done");
}

TEST_F(ClientInputsTest, OneOpenAxisTakesTheWholeValue) {
  const auto sound = inputs.accept("sound", raw({1, 2, 3}), false);
  ASSERT_TRUE(sound);
  ASSERT_EQ(sound->items.size(), 1u);
  EXPECT_EQ(sound->items[0].dims(), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(sound->items[0].dtype(), DType::pcm);
  const auto grid = inputs.accept("grid", floats({1, 2, 3, 4, 5, 6}), false);
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->items[0].dims(), (std::vector<std::int64_t>{2, 3}));
  const auto words = inputs.accept("words", HostValue::blob("go left"), false);
  ASSERT_TRUE(words);
  EXPECT_EQ(words->items[0].text(), "go left");
  EXPECT_EQ(words->items[0].dtype(), DType::utf8);
}

TEST_F(ClientInputsTest, NumbersMustFit) {
  const auto keys = inputs.accept("key", whole({7, -2147483648ll}), false);
  ASSERT_TRUE(keys);
  ASSERT_EQ(keys->items.size(), 2u);
  EXPECT_EQ(keys->items[1].as<std::int32_t>()[0], std::numeric_limits<std::int32_t>::min());
  EXPECT_TRUE(inputs.accept("key", floats({3.0f}), false));
  EXPECT_EQ(field_of(inputs.accept("key", floats({0.5f}), false)), "body");
  EXPECT_EQ(field_of(inputs.accept("key", floats({std::numeric_limits<float>::quiet_NaN()}), false)), "body");
  EXPECT_EQ(field_of(inputs.accept("key", whole({2147483648ll}), false)), "body");
  EXPECT_EQ(field_of(inputs.accept("half", floats({1}), false)), "body");
  EXPECT_TRUE(inputs.accept("half", HostValue::blob("ab"), false));
}

TEST_F(ClientInputsTest, WrongOnesNameTheField) {
  EXPECT_EQ(field_of(inputs.accept("nothing", floats({1}), false)), "port");
  EXPECT_EQ(field_of(inputs.accept("text", HostValue::blob("a"), false)), "port");
  EXPECT_EQ(field_of(inputs.accept("any", floats({1}), false)), "port");
  EXPECT_EQ(field_of(inputs.accept("action", floats({1, 2, 3}), false)), "body");
  EXPECT_EQ(field_of(inputs.accept("action", HostValue::blob("abc"), false)), "body");
  EXPECT_EQ(field_of(inputs.accept("grid", floats({1, 2}), false)), "body");
  EXPECT_EQ(inputs.counts(model.find_port("action")).num_items, 0);
}

TEST_F(ClientInputsTest, AnEmptyValueHasNoItems) {
  for (const char* port : {"action", "sound", "words"}) {
    const auto end = inputs.accept(port, HostValue::blob(""), true);
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_TRUE(end->items.empty());
    EXPECT_EQ(end->total, 0);
  }
}

TEST_F(ClientInputsTest, WhatWaitsIsBounded) {
  const std::vector<float> many(2 * static_cast<std::size_t>(ClientInputs::kMaxWaitingItems));
  const auto first = inputs.accept("action", raw(many), false);
  ASSERT_TRUE(first);
  const auto refused = inputs.accept("action", raw({1, 2}), false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::exhausted);
  inputs.note_consumed(first->port, 10);
  inputs.note_consumed(first->port, 5);  // an older report
  EXPECT_TRUE(inputs.accept("action", raw(std::vector<float>(20)), false));
  EXPECT_FALSE(inputs.accept("action", raw({1, 2}), false));
  const std::vector<float> long_sound(ClientInputs::kMaxWaitingBytes / 4);
  EXPECT_TRUE(inputs.accept("sound", raw(long_sound), false));
  EXPECT_FALSE(inputs.accept("sound", raw({1}), false));
  inputs.note_consumed(model.find_port("sound"), 1);
  EXPECT_TRUE(inputs.accept("sound", raw({1}), false));
}

}  // namespace
}  // namespace mstar::conductor
