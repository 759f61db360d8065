#include "mstar/models/sampling_defaults.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/base/log.h"

namespace mstar::models {
namespace {

using nlohmann::json;

TEST(SamplingDefaults, AreReadFromGenerationConfig) {
  const Params got = hf_sampling_defaults(json::parse(R"({"do_sample":true,"temperature":0.7,"top_k":20,"top_p":0.8,
      "min_p":0.05,"repetition_penalty":1.05,"eos_token_id":[1,2],"max_new_tokens":2048,"typical_p":0.9})"));
  EXPECT_EQ(got.values().size(), 5u);
  EXPECT_EQ(got.get_number("temperature", 0).value(), 0.7);
  EXPECT_EQ(got.get_int("top_k", 0).value(), 20);
  EXPECT_EQ(got.get_number("top_p", 0).value(), 0.8);
  EXPECT_EQ(got.get_number("min_p", 0).value(), 0.05);
  EXPECT_EQ(got.get_number("repetition_penalty", 0).value(), 1.05);
  EXPECT_TRUE(hf_sampling_defaults(json::object()).values().empty());
}

TEST(SamplingDefaults, AModelThatDoesNotSampleIsGreedy) {
  const Params got = hf_sampling_defaults(json::parse(R"({"do_sample":false,"temperature":0.7})"));
  EXPECT_EQ(got.get_number("temperature", 1).value(), 0);
}

TEST(SamplingDefaults, WhatNoRequestCouldHaveIsLeftOut) {
  set_log_level("off");
  const Params got = hf_sampling_defaults(
      json::parse(R"({"temperature":null,"top_k":-7,"top_p":1.5,"min_p":"0.1","repetition_penalty":1e300})"));
  EXPECT_TRUE(got.values().empty());
}

TEST(SamplingDefaults, AreReadFromGguf) {
  weights::Metadata metadata;
  const auto add = [&](const char* key, weights::MetadataType type, auto value) {
    EXPECT_TRUE(metadata.add(key, {.type = type, .value = value}));
  };
  add("general.sampling.temp", weights::MetadataType::f32, 0.6);
  add("general.sampling.top_k", weights::MetadataType::i32, std::int64_t{20});
  add("general.sampling.top_p", weights::MetadataType::string, std::string_view("0.9"));
  add("general.sampling.penalty_repeat", weights::MetadataType::f32, 1.1);
  const Params got = gguf_sampling_defaults(metadata);
  EXPECT_EQ(got.values().size(), 3u);
  EXPECT_EQ(got.get_number("temperature", 0).value(), 0.6);
  EXPECT_EQ(got.get_int("top_k", 0).value(), 20);
  EXPECT_EQ(got.get_number("repetition_penalty", 0).value(), 1.1);
}

}  // namespace
}  // namespace mstar::models
