// A Frontend without a runtime, for the server's tests and its demo.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mstar/conductor/frontend.h"

namespace mstar::server {

// One submitted request. Thread: its script's, but for `aborted`.
class FakeJob {
 public:
  FakeJob(decl::ApiRequest r, std::shared_ptr<EventSink> s) : request(std::move(r)), sink_(std::move(s)) {}
  void text(std::string_view text);  // a chunk of format "utf8"
  void segment(int id, double start_s, double end_s, std::string_view text);
  void chunk(decl::Chunk chunk) { sink_->on_event(std::move(chunk)); }
  void finish(Params metadata = {});
  void end(decl::Finish finish, Usage usage = {7, 9});
  // Waits for the next input that was pushed; nothing when none came in 20 s.
  struct Input {
    std::string port;
    HostValue value;
    bool done = false;
  };
  std::optional<Input> wait_input();
  void fail(Error error) { sink_->on_event(Failed{std::move(error)}); }
  // Sleeps until aborted or the time is over; true when aborted.
  bool wait_aborted(std::chrono::milliseconds time);

  const decl::ApiRequest request;
  std::atomic<bool> aborted{false};

 private:
  friend class FakeFrontend;
  std::shared_ptr<EventSink> sink_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Input> inputs_;
};

// Serves "fake-whisper" (alias "whisper-1") and "lab/fake-llm". Each request runs the script on its own thread.
class FakeFrontend final : public Frontend {
 public:
  using Script = std::function<void(FakeJob&)>;
  explicit FakeFrontend(Script script = two_segments);
  ~FakeFrontend() override;  // waits for the scripts
  // Says "Hello world." and "Bye." in two segments, in English, 4.5 seconds.
  static void two_segments(FakeJob& job);

  Result<std::vector<RequestId>> submit_call(CallRequests call) override;
  void abort(RequestId request) override;
  // Ports "action" and "sound"; the rest as the conductor has it.
  Status push(RequestId request, std::string_view port, const HostValue& value, bool done) override;
  std::vector<ServedModel> models() const override;
  // "lab/fake-llm": each byte is a token; of a chat, the bytes of its messages. 4096 tokens.
  Result<decl::TextCodec> text_codec(std::string_view model) const override;
  RuntimeState state() const override;
  std::string metrics_text() const override;
  Result<std::string> profile_json() const override;
  // Ranks 0 and 1, which the orders move at once, and where nothing runs.
  std::vector<WorkerInfo> workers() const override;
  Result<WorkerInfo> order_worker(int rank, WorkerOrder order) override;

  void set_script(Script script);
  void set_state(RuntimeState state);
  void set_profile(std::string json);            // empty: none is taken
  void refuse_with(std::optional<Error> error);  // what submit_call answers
  // Called before a call is taken in, on its thread; what it throws goes to the caller.
  void before_submit(std::function<void(const CallRequests&)> hook);
  // Called by the text codec's functions, likewise.
  void before_codec(std::function<void()> hook);
  int num_submitted() const { return num_submitted_; }
  int num_aborted() const { return num_aborted_; }
  // The last request submitted; empty before the first.
  decl::ApiRequest last_request() const;
  std::vector<decl::ApiRequest> requests() const;  // all, in their order

 private:
  Result<RequestId> take(decl::ApiRequest request, std::shared_ptr<EventSink> sink);

  mutable std::mutex mutex_;
  Script script_;
  RuntimeState state_;
  std::string profile_;
  std::vector<WorkerInfo> workers_ = {
      {.rank = 0, .state = WorkerInfo::State::running, .num_requests = 3, .parts = {{"lab/fake-llm", {"a", "b"}}}},
      {.rank = 1, .state = WorkerInfo::State::failed, .reason = "it \"died\""}};
  std::optional<Error> refusal_;
  std::function<void(const CallRequests&)> before_submit_;
  std::function<void()> before_codec_;
  std::vector<decl::ApiRequest> requests_;
  std::map<RequestId, std::shared_ptr<FakeJob>> jobs_;
  std::vector<std::thread> threads_;
  std::uint64_t next_id_ = 1;
  std::atomic<int> num_submitted_{0};
  std::atomic<int> num_aborted_{0};
};

}  // namespace mstar::server
