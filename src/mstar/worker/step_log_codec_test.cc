// Entries as bytes: there and back, and bytes that are none. How they drive a follower is in step_group_test.cc.
#include "mstar/worker/step_log_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "mstar/worker/toy_support_test.h"

namespace mstar::worker {
namespace {

using ::testing::HasSubstr;

class StepLogCodec : public ::testing::Test {
 protected:
  StepLogCodec() : decl_(toy::language_model("lm", 7, false, false)) {
    auto compiled = graph::CompiledModel::compile(decl_);
    EXPECT_TRUE(compiled);
    model_ = std::make_unique<graph::CompiledModel>(std::move(*compiled));
    models_ = {model_.get()};
    walk_ = decl_.find_walk("say");
    for (const graph::Node& node : model_->at(walk_).nodes)
      if (!decl_.at(node.component).on_host() && !node_) node_ = &node;
    EXPECT_TRUE(node_);
  }
  LogEntry add(std::uint64_t id) const {
    auto params = std::make_shared<decl::RequestParams>();
    params->sampling.max_tokens = 9;
    params->fields.set("note", std::string("x"));
    return {.number = 1, .state = 77, .action = LogAdd{0, RequestId(id), params, true}};
  }
  LogEntry prepare(std::uint64_t id) const {
    LogPrepare::Row row;
    row.inputs.request = RequestId(id);
    row.inputs.walk = walk_;
    row.inputs.run = node_->run;
    row.inputs.ports.resize(node_->run->inputs.size());
    row.inputs.ports[0] = {HostValue(DType::i32, {2}, std::vector<std::byte>(8)), {}};
    row.inputs.num_seen.assign(node_->run->inputs.size(), 0);
    row.inputs.flags =
        std::make_shared<const std::map<std::string, std::int64_t>>(std::map<std::string, std::int64_t>{{"last", 1}});
    row.inputs.iteration = 4;
    row.inputs.is_final = row.inputs.ahead = true;
    row.inputs.tag = 6;
    row.inputs.progress = {true, 1, 2, 3, 4};
    row.own = {{0, 1, {8, 5, 1, 2}, true}};
    return {.number = 2, .action = LogPrepare{{0, node_->component}, 9, {std::move(row)}}};
  }
  std::string bytes_of(const StepMessage& message) const {
    auto bytes = encode(message, models_);
    EXPECT_TRUE(bytes) << bytes.error().message;
    return bytes ? std::move(*bytes) : std::string();
  }
  static Result<StepMessage> read(StepReader& reader, const std::string& bytes) {
    return reader.decode(std::as_bytes(std::span(bytes)));
  }
  std::string refusal(StepReader& reader, const StepMessage& message) const {
    const auto got = read(reader, bytes_of(message));
    return got ? "" : got.error().message;
  }

  decl::Decl decl_;
  std::unique_ptr<graph::CompiledModel> model_;
  std::vector<const graph::CompiledModel*> models_;
  decl::WalkRef walk_;
  const graph::Node* node_ = nullptr;
};

TEST_F(StepLogCodec, EveryKindComesBackAsItWas) {
  const LaneKey lane{0, node_->component};
  const std::vector<StepMessage> messages = {
      add(5),
      prepare(5),
      LogEntry{.number = 3, .action = LogAdvance{9}},
      LogEntry{.number = 4, .action = LogPromise{9}},
      LogEntry{.number = 5, .action = LogFinish{9, {1, 2}}},
      LogEntry{.number = 6, .action = LogAbandon{10}},
      LogEntry{.number = 7, .action = LogUndo{lane, RequestId(5), {true, 1, 2, 3, 4}}},
      LogEntry{.number = 8, .action = LogRelease{{{1, 2, 3, 4}, {5, 6, 7, 8}}}},
      LogEntry{.number = 9, .action = LogRemove{0, RequestId(5)}},
      LogEntry{.number = 10, .action = LogUnload{}},
      LogEntry{.number = 0, .action = LogLoad{}},
      Ack{1, 9, ok_status()},
      Ack{2, 9, unavailable("told to")},
      StepEnd{"because"},
      StepKey{std::string("\0key", 4)}};
  StepReader reader(models_);
  for (const StepMessage& each : messages) {
    const std::string bytes = bytes_of(each);
    auto got = read(reader, bytes);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->index(), each.index());
    EXPECT_EQ(bytes_of(*got), bytes);
  }
}

TEST_F(StepLogCodec, ARowGetsItsRunAndItsRequestsParametersAgain) {
  StepReader reader(models_);
  const LogEntry added = add(5);
  ASSERT_TRUE(read(reader, bytes_of(added)));
  auto got = read(reader, bytes_of(prepare(5)));
  ASSERT_TRUE(got) << got.error().message;
  const auto& entry = std::get<LogEntry>(*got);
  EXPECT_FALSE(entry.state);
  const LogPrepare::Row& row = std::get<LogPrepare>(entry.action).rows.at(0);
  EXPECT_EQ(row.inputs.run, node_->run);
  EXPECT_EQ(row.inputs.params->sampling.max_tokens, 9);
  EXPECT_EQ(row.inputs.flag("last", 0), 1);
  EXPECT_EQ(row.inputs.progress.num_parts, 4);
  EXPECT_EQ(row.inputs.ports[0][0].host.size_bytes(), 8u);
  EXPECT_EQ(row.own.at(0).name, (ValueName{8, 5, 1, 2}));
}

TEST_F(StepLogCodec, WhatSpeaksOfNothingIsRefused) {
  StepReader reader(models_);
  EXPECT_THAT(refusal(reader, prepare(5)), HasSubstr("a request that was not added"));
  ASSERT_TRUE(read(reader, bytes_of(add(5))));
  EXPECT_EQ(refusal(reader, prepare(5)), "");
  const auto with = [&](const std::function<void(LogPrepare&)>& change) {
    LogEntry entry = prepare(5);
    change(std::get<LogPrepare>(entry.action));
    return entry;
  };
  EXPECT_THAT(refusal(reader, with([](LogPrepare& p) { p.lane.component = decl::ComponentRef(900); })),
              HasSubstr("a component that no rank runs"));
  EXPECT_THAT(refusal(reader, with([](LogPrepare& p) { p.rows[0].own[0].index = 2; })),
              HasSubstr("a value of a port that there is not"));
  EXPECT_THAT(refusal(reader, with([](LogPrepare& p) { p.rows[0].own[0].port = 99; })),
              HasSubstr("a value of a port that there is not"));
  EXPECT_THAT(refusal(reader, with([](LogPrepare& p) { p.rows[0].inputs.ports.emplace_back(); })),
              HasSubstr("other ports"));
  EXPECT_THAT(refusal(reader, LogEntry{.action = LogRemove{1, RequestId(5)}}), HasSubstr("a model that there is not"));
  EXPECT_THAT(refusal(reader, LogEntry{.action = LogUndo{{0, decl::ComponentRef(99)}, RequestId(5), {}}}),
              HasSubstr("a component that no rank runs"));
  ASSERT_TRUE(read(reader, bytes_of(LogEntry{.action = LogRemove{0, RequestId(5)}})));
  EXPECT_THAT(refusal(reader, prepare(5)), HasSubstr("a request that was not added"));
}

TEST_F(StepLogCodec, AnotherVersionAndEveryCutAreRefused) {
  for (const StepMessage& each : {StepMessage(add(5)), StepMessage(prepare(5)), StepMessage(Ack{1, 2, ok_status()})}) {
    const std::string bytes = bytes_of(each);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      StepReader reader(models_);
      (void)read(reader, bytes_of(add(5)));
      EXPECT_FALSE(read(reader, bytes.substr(0, size))) << size;
    }
    StepReader reader(models_);
    EXPECT_FALSE(read(reader, bytes + '\0'));
    std::string other = bytes;
    ++other[0];
    EXPECT_THAT(read(reader, other).error().message, HasSubstr("version"));
  }
}

// Bytes that were changed at random are refused, or are a message that is itself again.
TEST_F(StepLogCodec, NoBytesDoHarm) {
  std::mt19937 random(5);
  const std::vector<std::string> seeds = {bytes_of(add(5)), bytes_of(prepare(5)),
                                          bytes_of(LogEntry{.action = LogRelease{{{1, 2, 3, 4}}}}),
                                          bytes_of(Ack{2, 9, unavailable("told to")})};
  int num_read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seeds[random() % seeds.size()];
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes)
      bytes[8 + random() % (bytes.size() - 8)] = static_cast<char>(random() % 3 ? random() % 4 : random());
    StepReader reader(models_);
    ASSERT_TRUE(read(reader, seeds[0]));
    const auto got = read(reader, bytes);
    if (!got) {
      EXPECT_EQ(got.error().code, Code::internal);
      continue;
    }
    ++num_read;
    const auto again = encode(*got, models_);
    if (!again) continue;
    StepReader second(models_);
    ASSERT_TRUE(read(second, seeds[0]));
    const auto same = read(second, *again);
    ASSERT_TRUE(same) << same.error().message;
    EXPECT_EQ(bytes_of(*same), *again);
  }
  EXPECT_GT(num_read, 0);
}

}  // namespace
}  // namespace mstar::worker
