// A request that is answered in parts: each is a request of its own, and what they give becomes one answer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "mstar/base/result.h"
#include "mstar/decl/request.h"

namespace mstar::decl {

// One per request. Thread: next() that of the request's parts, one call at a time, which may take long; the rest any
// other, one call at a time, and brief.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // The next part; nothing after the last one. An Error fails the request. `gives_up` is to be asked often by what
  // takes long: true when nobody waits any more.
  virtual Result<std::optional<ApiRequest>> next(const std::function<bool()>& gives_up) = 0;
  // Whether the first part is to end before others begin: what it says of itself may be theirs, too.
  virtual bool first_goes_ahead() const { return false; }
  // The metadata of a part that has ended; of the first one before next() is called again, where that goes ahead.
  virtual void learn(std::size_t part, const Params& metadata) = 0;
  // A part's chunk as one of the whole answer. Parts come in order, and each one's chunks.
  virtual Result<Chunk> restore(std::size_t part, Chunk chunk) = 0;
  // Of the whole answer, once all parts have ended.
  virtual Params metadata() const = 0;
};
// Null: the request is not split. The errors of an intake.
using MakeSplitter = std::function<Result<std::unique_ptr<Splitter>>(const ApiRequest&)>;

}  // namespace mstar::decl
