// How an endpoint turns a request's events into the bytes of an HTTP answer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/conductor/frontend.h"
#include "mstar/decl/request.h"
#include "mstar/server/api_error.h"

namespace mstar::server {

// One per call; used by one thread at a time. Each function appends to `out`. A streamed answer's bytes leave at once;
// those of a whole answer leave when the last choice has finished, and are dropped for an error answer if one fails.
// `choice` counts the call's choices; those of one request follow each other.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual bool streams() const = 0;
  virtual std::string_view content_type() const = 0;
  virtual Status on_chunk(std::size_t choice, const decl::Chunk& chunk, std::string& out) = 0;
  virtual Status on_finished(std::size_t choice, const Finished& finished, std::string& out) = 0;
  // The last bytes of a streamed answer whose status line has left already.
  virtual void on_failed(const HttpError& error, std::string& out) = 0;
  // What keeps an idle stream open; empty: nothing may be sent between events.
  virtual std::string_view keep_alive_frame() const { return {}; }
};

// A parsed API call: the requests that it makes of the runtime, and the way their one answer is written.
struct Call {
  std::vector<decl::ApiRequest> requests;
  int choices_per_request = 1;  // each is submitted that often, with seeds that count up from its own
  std::unique_ptr<AnswerWriter> answer;
  // A streamed answer's head leaves before its first chunk, for a client that must know that its request runs before it
  // sends more. Errors then come as the last bytes of the stream.
  bool head_at_once = false;
};

// "data: {json}\n\n"
void append_sse(std::string& out, std::string_view json);
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

}  // namespace mstar::server
