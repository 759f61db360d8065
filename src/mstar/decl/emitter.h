// What a request sends to its client, turned into chunks by an object that remembers what came before: incremental
// detokenisation, stop strings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/result.h"
#include "mstar/decl/plan.h"
#include "mstar/decl/refs.h"
#include "mstar/decl/request.h"

namespace mstar::decl {

struct Emitted {
  std::vector<Chunk> chunks;
  bool stop = false;  // the answer ends here with Finish::stop; what the request still makes is dropped
};

// One per request. Thread: the conductor's; microseconds a call, never blocks.
class Emitter {
 public:
  virtual ~Emitter() = default;
  // Values of one ToClient port, in their order. An Error fails the request.
  virtual Result<Emitted> push(PortRef port, std::span<const HostValue> values) = 0;
  // What was held back, when the request ends without a stop of push. `stop`: it ended in one after all.
  virtual Result<Emitted> finish(Finish finish) = 0;
  // Tokens of the answer so far, for usage; -1: what the runtime has counted.
  virtual std::int64_t num_tokens() const { return -1; }
};
using MakeEmitter = std::function<std::unique_ptr<Emitter>(const RequestParams&)>;

}  // namespace mstar::decl
