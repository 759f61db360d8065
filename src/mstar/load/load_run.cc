#include "mstar/load/load_run.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "mstar/load/http_client.h"
#include "mstar/load/sse_parser.h"

namespace mstar::load {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// How often each thread looks for requests that take too long.
constexpr std::chrono::milliseconds kSweep{100};
constexpr std::size_t kErrorBodyBytes = 4096;

class Shard;

}  // namespace

struct LoadRun::Shared {
  LoadConfig config;
  std::vector<net::ip::tcp::endpoint> endpoints;
  std::vector<double> arrivals_s;  // open loop
  Clock::time_point start;
  std::atomic<int> next{0};  // the next request of the workload, unless they come at their times
  std::atomic<bool> stopping{false};
  std::atomic<int> num_ended{0}, num_failed{0}, num_open{0};
  std::atomic<std::int64_t> num_pieces{0};
  std::mutex mutex;
  std::vector<Shard*> shards;  // guarded by mutex, for stop()

  std::int64_t us(Clock::time_point at) const {
    return std::chrono::duration_cast<std::chrono::microseconds>(at - start).count();
  }
  std::int64_t now_us() const { return us(Clock::now()); }
};

namespace {

// One client: a connection and the request that is open on it.
class Lane final : public AnswerSink {
 public:
  Lane(Shard& shard, LoadRun::Shared& shared, net::io_context& io)
      : shard_(shard),
        shared_(shared),
        io_(io),
        client_(io, shared.config.url, shared.endpoints, shared.config.kernel_times) {}

  bool is_open() const { return open_; }
  std::int64_t begin_us() const { return record_.begin_us; }

  void begin(int number, std::optional<std::int64_t> due_us) {
    const LoadConfig& config = shared_.config;
    record_ = {};
    record_.index = config.first_index + static_cast<std::uint64_t>(number);
    PlannedRequest planned = plan_request(config.workload, record_.index);
    record_.input_tokens = planned.input_tokens;
    record_.output_tokens = planned.output_tokens;
    record_.piece_us.reserve(static_cast<std::size_t>(planned.output_tokens));
    parser_.reset();
    error_body_.clear();
    start_ = {};
    streams_ = saw_last_ = false;
    open_ = true;
    shared_.num_open.fetch_add(1, std::memory_order_relaxed);
    record_.begin_us = shared_.now_us();
    record_.due_us = due_us.value_or(record_.begin_us);
    client_.start({.target = planned.path, .api_key = config.api_key, .body = std::move(planned.body)}, *this);
  }
  void time_out() {
    fail("timeout", "no end after " + std::to_string(std::lround(shared_.config.timeout_s)) + " s");
    give_up();
  }
  void interrupt() {
    record_.interrupted = true;
    give_up();
  }

  void on_start(const ResponseStart& start) override {
    start_ = start;
    streams_ = start.status == 200 && start.content_type.starts_with("text/event-stream");
  }
  void on_body(std::string_view bytes) override {
    if (!streams_) {
      error_body_.append(bytes.substr(0, kErrorBodyBytes - std::min(kErrorBodyBytes, error_body_.size())));
      return;
    }
    // Never before its request: that one's clock is read by this process, and a stamp may be of the same moment.
    const std::int64_t now_us = std::max(shared_.us(client_.arrived().value_or(Clock::now())), record_.begin_us);
    // The kernel stamps only after a while once it is asked to: what it took in before that has the time of its
    // reading, which may be after a later one's. The earlier piece had come by then.
    for (auto each = record_.piece_us.rbegin(); each != record_.piece_us.rend() && *each > now_us; ++each)
      *each = now_us;
    const Status fine = parser_.push(bytes, [&](std::string_view, std::string_view data) { on_event(data, now_us); });
    if (!fine) fail("malformed stream", fine.error().message);
    // A stream that has failed need not end; but its client is at work right now.
    if (!record_.failure.empty())
      net::post(io_, [this] {
        if (open_ && !record_.failure.empty()) give_up();
      });
  }
  void on_end(ExchangeFault fault, const std::string& message) override {
    if (fault == ExchangeFault::connect) {
      fail("connect", message);
    } else if (fault == ExchangeFault::malformed) {
      fail("malformed http", message);
    } else if (start_.status != 0 && start_.status != 200) {
      fail("http " + std::to_string(start_.status), error_message(error_body_));
    } else if (fault == ExchangeFault::broken) {
      fail(start_.status == 0 ? "no answer" : "broken stream", message);
    } else if (!streams_) {
      fail("no stream", "the answer is '" + start_.content_type + "', not text/event-stream");
    } else if (!saw_last_) {
      fail("cut stream", "the stream ended without [DONE]");
    } else if (record_.piece_us.empty() && (!record_.usage || record_.usage->completion_tokens == 0)) {
      fail("empty", "the answer has no token");
    }
    end();
  }

 private:
  void on_event(std::string_view data, std::int64_t now_us) {
    auto event = reader_.read(data);
    if (!event) return fail("malformed stream", event.error().message);
    if (!event->error.empty()) return fail("error in stream", event->error);
    saw_last_ |= event->is_last;
    if (event->usage) record_.usage = event->usage;
    if (!event->finish_reason.empty()) record_.finish_reason = std::move(event->finish_reason);
    if (!event->has_text) return;
    record_.piece_us.push_back(now_us);
    shared_.num_pieces.fetch_add(1, std::memory_order_relaxed);
  }
  // The first one counts.
  void fail(std::string kind, std::string message) {
    if (!record_.failure.empty()) return;
    record_.failure = std::move(kind);
    record_.message = std::move(message);
  }
  void give_up() {
    client_.cancel();
    end();
  }
  void end();

  Shard& shard_;
  LoadRun::Shared& shared_;
  net::io_context& io_;
  HttpClient client_;
  SseParser parser_;
  CompletionEventReader reader_;
  RequestRecord record_;
  ResponseStart start_;
  std::string error_body_;
  bool open_ = false, streams_ = false, saw_last_ = false;
};

// The clients of one thread.
class Shard {
 public:
  Shard(LoadRun::Shared& shared, int number)
      : shared_(shared), number_(number), sweep_(io_), arrival_(io_), next_arrival_(number) {}

  void run() {
    const LoadConfig& config = shared_.config;
    if (config.mode == LoadMode::open) {
      await_arrival();
    } else {
      const int num_lanes =
          config.mode == LoadMode::offline ? config.num_requests : std::min(config.concurrency, config.num_requests);
      for (int i = number_; i < num_lanes; i += config.num_threads) begin_next(new_lane());
    }
    await_sweep();
    io_.run();
  }
  // Any thread.
  void stop() {
    net::post(io_, [this] {
      arrival_.cancel();
      for (const auto& lane : lanes_)
        if (lane->is_open()) lane->interrupt();
      sweep_.cancel();
    });
  }
  // Of this thread.
  void on_ended(Lane& lane, RequestRecord record) {
    records_.push_back(std::move(record));
    if (shared_.stopping) return;
    if (shared_.config.mode == LoadMode::open) {
      idle_.push_back(&lane);
    } else {
      // Not from inside of the client that has just ended.
      net::post(io_, [this, &lane] { begin_next(lane); });
    }
  }
  std::vector<RequestRecord> take_records() { return std::move(records_); }

 private:
  Lane& new_lane() {
    lanes_.push_back(std::make_unique<Lane>(*this, shared_, io_));
    return *lanes_.back();
  }
  void begin_next(Lane& lane) {
    if (shared_.stopping) return;
    const int number = shared_.next.fetch_add(1, std::memory_order_relaxed);
    if (number < shared_.config.num_requests) lane.begin(number, std::nullopt);
  }
  bool has_arrivals() const {
    return shared_.config.mode == LoadMode::open && next_arrival_ < shared_.config.num_requests;
  }
  void await_arrival() {
    if (!has_arrivals() || shared_.stopping) return;
    const auto due = std::chrono::duration<double>(shared_.arrivals_s[static_cast<std::size_t>(next_arrival_)]);
    arrival_.expires_at(shared_.start + std::chrono::duration_cast<Clock::duration>(due));
    arrival_.async_wait([this, due](const error_code& error) {
      if (error || shared_.stopping) return;
      Lane* lane = idle_.empty() ? &new_lane() : idle_.back();
      if (!idle_.empty()) idle_.pop_back();
      const int number = next_arrival_;
      next_arrival_ += shared_.config.num_threads;
      lane->begin(number, std::llround(due.count() * 1e6));
      await_arrival();
    });
  }
  bool is_idle() const {
    return std::none_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->is_open(); });
  }
  void await_sweep() {
    sweep_.expires_after(kSweep);
    sweep_.async_wait([this](const error_code&) {
      if (shared_.stopping) return;
      const std::int64_t oldest = shared_.now_us() - std::llround(shared_.config.timeout_s * 1e6);
      for (std::size_t i = 0; i < lanes_.size(); ++i)
        if (lanes_[i]->is_open() && lanes_[i]->begin_us() < oldest) lanes_[i]->time_out();
      const bool all_begun = shared_.config.mode == LoadMode::open
                                 ? !has_arrivals()
                                 : shared_.next.load(std::memory_order_relaxed) >= shared_.config.num_requests;
      if (all_begun && is_idle()) return io_.stop();
      await_sweep();
    });
  }

  LoadRun::Shared& shared_;
  int number_;
  net::io_context io_{1};
  net::steady_timer sweep_, arrival_;
  int next_arrival_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> idle_;  // open loop
  std::vector<RequestRecord> records_;
};

void Lane::end() {
  open_ = false;
  record_.end_us = shared_.now_us();
  shared_.num_open.fetch_sub(1, std::memory_order_relaxed);
  if (!record_.interrupted) shared_.num_ended.fetch_add(1, std::memory_order_relaxed);
  if (!record_.failure.empty()) shared_.num_failed.fetch_add(1, std::memory_order_relaxed);
  shard_.on_ended(*this, std::move(record_));
}

// Waits for a whole answer.
class OneAnswer final : public AnswerSink {
 public:
  explicit OneAnswer(net::io_context& io) : io_(io) {}
  void on_start(const ResponseStart& start) override {
    answer.status = start.status;
    answer.server = start.server;
  }
  void on_body(std::string_view bytes) override {
    if (answer.body.size() < (std::size_t{1} << 20)) answer.body += bytes;
  }
  void on_end(ExchangeFault f, const std::string& m) override {
    fault = f;
    message = m;
    ended = true;
    io_.stop();
  }

  PlainAnswer answer;
  ExchangeFault fault = ExchangeFault::none;
  std::string message;
  bool ended = false;

 private:
  net::io_context& io_;
};

}  // namespace

Result<std::unique_ptr<LoadRun>> LoadRun::make(LoadConfig config) {
  auto shared = std::make_unique<Shared>();
  MSTAR_TRY_ASSIGN(shared->endpoints, resolve(config.url));
  config.num_threads = std::clamp(config.num_threads, 1, 64);
  if (config.mode == LoadMode::open)
    shared->arrivals_s = poisson_arrivals(config.workload.seed, config.rate_per_s, config.num_requests);
  shared->config = std::move(config);
  return std::unique_ptr<LoadRun>(new LoadRun(std::move(shared)));
}

LoadRun::LoadRun(std::unique_ptr<Shared> shared) : shared_(std::move(shared)) {}
LoadRun::~LoadRun() = default;

std::vector<RequestRecord> LoadRun::run() {
  std::vector<std::unique_ptr<Shard>> shards;
  for (int i = 0; i < shared_->config.num_threads; ++i) shards.push_back(std::make_unique<Shard>(*shared_, i));
  shared_->start = Clock::now();
  {
    std::lock_guard lock(shared_->mutex);
    for (const auto& each : shards) shared_->shards.push_back(each.get());
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < shards.size(); ++i) threads.emplace_back([shard = shards[i].get()] { shard->run(); });
  shards.front()->run();
  for (std::thread& each : threads) each.join();
  {
    std::lock_guard lock(shared_->mutex);
    shared_->shards.clear();
  }
  std::vector<RequestRecord> out;
  for (const auto& shard : shards)
    for (RequestRecord& each : shard->take_records()) out.push_back(std::move(each));
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  duration_us_ = 0;
  for (const RequestRecord& each : out) duration_us_ = std::max(duration_us_, each.end_us);
  return out;
}

void LoadRun::stop() {
  shared_->stopping = true;
  std::lock_guard lock(shared_->mutex);
  for (Shard* each : shared_->shards) each->stop();
}

LoadProgress LoadRun::progress() const {
  return {.num_ended = shared_->num_ended,
          .num_failed = shared_->num_failed,
          .num_open = shared_->num_open,
          .num_pieces = shared_->num_pieces};
}

Result<PlainAnswer> http_get(const HttpUrl& url, const std::string& target, const std::string& api_key,
                             double timeout_s) {
  MSTAR_TRY_ASSIGN(const auto endpoints, resolve(url));
  net::io_context io{1};
  OneAnswer sink(io);
  HttpClient client(io, url, endpoints);
  client.start({.method = "GET", .target = target, .api_key = api_key, .body = {}}, sink);
  io.run_for(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(timeout_s)));
  if (!sink.ended) {
    client.cancel();
    return unavailable(url.text() + " took the connection but has not answered within " +
                       std::to_string(std::lround(timeout_s)) + " s");
  }
  if (sink.fault == ExchangeFault::malformed)
    return invalid_request("what answers at " + url.text() + " speaks no HTTP: " + sink.message);
  if (sink.fault != ExchangeFault::none)
    return unavailable((sink.fault == ExchangeFault::connect ? "nothing answers at " : "no whole answer from ") +
                       url.text() + ": " + sink.message);
  return std::move(sink.answer);
}

}  // namespace mstar::load
