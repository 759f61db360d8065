// The door between the API surfaces and the runtime: submit a request, receive its events, abort it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/base/result.h"
#include "mstar/decl/decl.h"
#include "mstar/decl/plan.h"
#include "mstar/decl/request.h"

namespace mstar {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  double audio_seconds = 0;
  std::int64_t cached_tokens = -1;  // of the prompt, found in a cache and not computed again; -1: not counted
};
struct Finished {
  decl::Finish finish = decl::Finish::stop;
  Usage usage;
  Params metadata;  // what the model says of the whole answer: language, duration, ...
};
struct Failed {
  Error error;
};
using RequestEvent = std::variant<decl::Chunk, Finished, Failed>;

// Receives a request's chunks in order and then exactly one of Finished or Failed. Thread: the runtime's; must not
// block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(RequestEvent event) = 0;
};

struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;
  std::vector<decl::Route> routes;
  std::int64_t created_s = 0;            // when serving began, since the epoch
  std::vector<std::string> inputs = {};  // ports that a client may send to while its request runs
  std::string example = {};              // of a /generate request, as its surface has it
};
struct RuntimeState {
  bool ready = false;  // every worker is warm
  bool draining = false;
  std::string reason;  // why it is not ready, for people
};

// A worker that an operator may take out of service and back: one for each rank.
struct WorkerInfo {
  // warming: it has come back, and answers its warm-up requests before it gets others. drained: it gets no requests and
  // has none. removed: it has let go of what it had loaded, too.
  enum class State : std::uint8_t { starting, warming, running, draining, drained, removed, failed };
  struct Part {
    std::string model;
    std::vector<std::string> components;
  };
  int rank = 0;
  State state = State::starting;
  std::string reason;    // of failed; of warming, what keeps it from getting warm
  int num_requests = 0;  // that it has a part of, until nothing of them is left there
  std::vector<Part> parts;
};
std::string_view worker_state_name(WorkerInfo::State state);
// drain: it gets no new requests; those that it has go on. remove: the same, and when the last one has left, it lets go
// of weights, pools and caches. resume: it gets requests again, as soon as it is ready.
enum class WorkerOrder : std::uint8_t { drain, remove, resume };

// What one call of a client asks of the runtime: each request as often as it wants answers of it.
struct CallRequests {
  std::vector<decl::ApiRequest> requests;
  int choices_per_request = 1;  // their seeds count up from the request's own
  // One for each choice; those of one request follow each other. Owners: the caller and the runtime.
  std::vector<std::shared_ptr<EventSink>> sinks;
  // Asked before each request is read, from the thread of submit_call: false when nobody waits for the answers any
  // more. Empty: somebody does.
  std::function<bool()> wanted = {};
};

// Implemented by the conductor; a fake one drives the server's tests. Thread: any.
class Frontend {
 public:
  virtual ~Frontend() = default;
  // All choices get places at once, or none does; each request's prompt is read once. A sink's last event comes after
  // every chunk. Errors at once, and then no sink hears anything: unknown model (invalid_request, field "model"), more
  // choices than there are places (invalid_request, field "n" or "prompt"), a bad field, exhausted when too few places
  // are free (429), unavailable while draining (503), cancelled when the call is not wanted any more. Cost: that of
  // reading the prompts.
  virtual Result<std::vector<RequestId>> submit_call(CallRequests call) = 0;
  // One request of one choice.
  Result<RequestId> submit(decl::ApiRequest request, std::shared_ptr<EventSink> sink) {
    CallRequests call;
    call.requests.push_back(std::move(request));
    call.sinks.push_back(std::move(sink));
    MSTAR_TRY_ASSIGN(const std::vector<RequestId> ids, submit_call(std::move(call)));
    return ids.front();
  }
  // The client went away: work stops, pages return; the sink gets Failed{cancelled} if it had no terminal event yet.
  virtual void abort(RequestId request) = 0;
  // More of an input that arrives while the request waits or runs (a FromClient port, by name); `done`: nothing
  // follows. A value of dtype bytes holds the port's elements as they are, f32 and i64 numbers are converted; see
  // conductor/client_inputs.h for how it is cut. Errors: invalid_request with field "request_id" (unknown, or it has
  // ended), "port", "done" or "body"; exhausted when too much waits to be read.
  virtual Status push(RequestId request, std::string_view port, const HostValue& value, bool done) = 0;
  virtual std::vector<ServedModel> models() const = 0;
  // How a served model cuts text into tokens. invalid_request with field "model" when there is none of that name, or it
  // reads no text. Valid while the frontend is there.
  virtual Result<decl::TextCodec> text_codec(std::string_view model) const {
    return std::move(invalid_request("the model '" + std::string(model) + "' has no tokens")).with_field("model");
  }
  virtual RuntimeState state() const = 0;
  // By rank; none where the runtime has none.
  virtual std::vector<WorkerInfo> workers() const { return {}; }
  // The worker of a rank as it stands then. What is asked for again changes nothing. invalid_request with field "rank"
  // when there is none.
  virtual Result<WorkerInfo> order_worker(int rank, WorkerOrder) {
    return invalid_request("there is no rank " + std::to_string(rank)).with_field("rank");
  }
  // Prometheus text exposition of the runtime's metrics.
  virtual std::string metrics_text() const = 0;
  // Where the time of the workers' steps went, as JSON. unavailable where no profile is taken.
  virtual Result<std::string> profile_json() const {
    return unavailable("no profile is taken here: start the server with --profile phases");
  }
};

}  // namespace mstar
