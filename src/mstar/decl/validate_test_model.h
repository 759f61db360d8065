// A small valid model for the tests of validate(), and what they ask of its faults.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "mstar/decl/decl.h"

namespace mstar::decl {

using Step = decl::Run;  // testing::Test has a Run of its own

// A small valid model; each test spoils one thing.
struct Model {
  Decl d{"m"};
  ResourceRef kv =
      d.resource(PagedKv{.name = "kv", .layers = 1, .kv_heads = 1, .head_dim = 8, .labels = {"main", "uncond"}});
  PortRef text = d.port({.name = "text", .dtype = DType::i32, .travel = {FromRequest{}}});
  PortRef token = d.port({.name = "token", .dtype = DType::i32, .travel = {Keep{}, ToClient{}}});
  ComponentRef llm = d.component(DeviceComponent{.name = "llm", .uses = {kv}});
  WalkRef prefill;
  WalkRef decode;

  void add_prefill() { prefill = d.walk("prefill", Step{llm, {text}, {token}}); }
  Loop decode_loop() { return Loop{.name = "loop", .body = {Step{llm, {token}, {token}}}, .at_most = 4}; }
  Decl& with_walks() {
    add_prefill();
    decode = d.walk("decode", decode_loop());
    return d;
  }
};

inline testing::AssertionResult has_fault(const Decl& d, const std::string& part) {
  std::string all;
  for (const std::string& fault : d.validate()) {
    if (fault.find(part) != std::string::npos) return testing::AssertionSuccess();
    all += "\n  " + fault;
  }
  return testing::AssertionFailure() << "no fault with '" << part << "' among:" << all;
}

inline testing::AssertionResult only_fault(const Decl& d, const std::string& part) {
  if (d.validate().size() != 1)
    return testing::AssertionFailure() << d.validate().size() << " faults; " << has_fault(d, part).message();
  return has_fault(d, part);
}

}  // namespace mstar::decl
