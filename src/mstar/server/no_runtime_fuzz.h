// A runtime that refuses everything, for the fuzz targets of the server.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "mstar/conductor/frontend.h"

namespace mstar::server {

inline void require(bool condition) {
  if (!condition) std::abort();
}

class NoRuntime final : public Frontend {
 public:
  Result<std::vector<RequestId>> submit_call(CallRequests) override { return unavailable("no runtime"); }
  void abort(RequestId) override {}
  Status push(RequestId, std::string_view, const HostValue&, bool) override { return unavailable("no runtime"); }
  std::vector<ServedModel> models() const override {
    return {{"m", {"alias"}, {decl::Route::generate, decl::Route::completions}, 1}};
  }
  RuntimeState state() const override { return {}; }
  std::string metrics_text() const override { return {}; }
};

}  // namespace mstar::server
