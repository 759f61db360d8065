// The toy decoder on the CPU: the oracle of the CUDA bench must itself hold together.
#include "mstar/engine/toy_decoder_fixture.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "mstar/device/cpu/cpu_device.h"

namespace mstar::engine {
namespace {

const ToyConfig kSmall{.layers = 2, .dim = 64, .heads = 2, .ffn_dim = 128, .vocab = 97, .max_positions = 64};

std::vector<DecodeRequest> requests_of(int count) {
  std::vector<DecodeRequest> out;
  for (int i = 0; i < count; ++i) {
    DecodeRequest request{.max_tokens = 10 + i, .start_at_step = i};
    for (int t = 0; t < 1 + 5 * i % 17; ++t) request.prompt.push_back((i * 37 + t * 11 + 3) % kSmall.vocab);
    out.push_back(std::move(request));
  }
  return out;
}

Result<std::vector<DecodeResult>> run(const std::vector<DecodeRequest>& requests, bool run_ahead) {
  auto device = make_cpu_device();
  MSTAR_TRY_ASSIGN(DecoderEngine decoder,
                   DecoderEngine::create(declare_toy_decoder(kSmall, {1, 2, 4, 8}, 8, true),
                                         {.max_requests = 8, .max_rows = 8, .max_tokens = 128}, *device));
  EXPECT_EQ(decoder.engine->buckets().size(), 0);  // a CPU captures nothing
  return decode(decoder, *device, requests, {.run_ahead = run_ahead});
}

TEST(ToyDecoder, TogetherOneByOneAndAheadAreTheSameBits) {
  const auto requests = requests_of(6);
  auto together = run(requests, false), ahead = run(requests, true);
  ASSERT_TRUE(together) << together.error().message;
  ASSERT_TRUE(ahead) << ahead.error().message;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto alone = run({requests[i]}, false);
    ASSERT_TRUE(alone) << alone.error().message;
    for (const DecodeResult* other : {&(*ahead)[i], &(*alone)[0]}) {
      EXPECT_EQ((*together)[i].tokens, other->tokens) << i;
      ASSERT_EQ((*together)[i].logits.size(), other->logits.size());
      EXPECT_EQ(std::memcmp((*together)[i].logits.data(), other->logits.data(), other->logits.size() * sizeof(float)),
                0);
    }
    EXPECT_EQ(static_cast<int>((*together)[i].tokens.size()), requests[i].max_tokens);
  }
}

// A component that does not cut itself is whole on each rank of a group, with its resources.
TEST(ToyDecoder, OnAGroupItIsWhole) {
  auto device = make_cpu_device();
  const resource::PoolLimits limits{.max_requests = 8, .max_rows = 8, .max_tokens = 128};
  auto sharded = limits;
  sharded.head_shards = 2;
  const auto requests = requests_of(2);
  const auto bytes_and_tokens = [&](const resource::PoolLimits& own) {
    auto decoder = DecoderEngine::create(declare_toy_decoder(kSmall, {}, 8, false), own, *device);
    EXPECT_TRUE(decoder) << decoder.error().message;
    auto decoded = decode(*decoder, *device, requests, {});
    EXPECT_TRUE(decoded) << decoded.error().message;
    return std::pair(decoder->resources->usage()[0].bytes, (*decoded)[1].tokens);
  };
  EXPECT_EQ(bytes_and_tokens(sharded), bytes_and_tokens(limits));
}

}  // namespace
}  // namespace mstar::engine
