// Two tiny models that compute on the CPU with host and device components, and can be told to fail in any place. For
// tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mstar/decl/decl.h"

namespace mstar::toy {

inline constexpr int kVocab = 16;
inline constexpr int kStopId = 0;
inline constexpr int kMaxContext = 64;  // tokens of one request's KV
inline constexpr int kMaxNewTokens = 48;
inline constexpr int kEncoderSlices = 3;

// A language model with a partition that writes its tokens down:
//   hear:  tokenise (host) -> encoder (device, three slices) -> decoder (device, paged KV, a state slot, a sampler row)
//   -> first token say:   the decoder's loop, ends at a stop id or the budget; the walk `hear` is a prefill walk write:
//   each token -> text -> client, in its own partition
// `salt` makes the tokens of two models differ. Request fields: text, max_tokens, ignore_eos, and for failures `fail`
// (a place below) and `fail_at` (iteration of the decode loop).
//   tokenise | tokenise_throw | tokenise_for_ever (until it is abandoned) | wrong_outputs | bad_value | declare |
//   declare_throw | fail_row | forward | forward_of_SALT (that of the model) | forward_throw | detokenise | plan |
//   plan_throw | emit | intake | intake_throw
// and `brief`, which is no failure: the request's tokenise says that it is brief.
// `walks_apart`: the decoder's rows of `hear` and `say` never share a step. `tensor_parallel`: the decoder says that
// ranks in step compute it together, though each computes the whole.
decl::Decl language_model(std::string name, std::uint32_t salt = 7, bool walks_apart = false,
                          bool tensor_parallel = false);

// What the language model answers, computed without it.
std::vector<std::int32_t> expected_tokens(const std::string& text, std::int64_t max_tokens, bool ignore_eos,
                                          std::uint32_t salt = 7);
std::string expected_text(const std::string& text, std::int64_t max_tokens, bool ignore_eos, std::uint32_t salt = 7);

// One component under two labels of the same request at once: tokenise -> {twice, thrice} -> join -> client. `fail`:
// label_b.
decl::Decl two_branches(std::string name);
std::string expected_branches(const std::string& text);

decl::ApiRequest request(std::string model, std::string text, std::int64_t max_tokens = -1, bool ignore_eos = false);
decl::ApiRequest failing_request(std::string model, std::string text, std::string place, std::int64_t at = 0);

}  // namespace mstar::toy
