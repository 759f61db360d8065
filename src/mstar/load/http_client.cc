#include "mstar/load/http_client.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>

namespace mstar::load {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using net::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::uint32_t kHeaderLimitBytes = 64 << 10;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Beast's parser without a message to fill: hands the body on as it comes.
class AnswerParser final : public http::basic_parser<false> {
 public:
  explicit AnswerParser(AnswerSink& sink) : sink_(sink) {
    eager(true);
    header_limit(kHeaderLimitBytes);
    body_limit(boost::none);
  }

  int status_of() const { return start_.status; }

 private:
  using Text = boost::beast::string_view;
  void on_request_impl(http::verb, Text, Text, int, error_code&) override {}
  void on_response_impl(int code, Text, int, error_code&) override { start_.status = code; }
  void on_field_impl(http::field field, Text, Text value, error_code&) override {
    if (field == http::field::content_type) start_.content_type = view(value);
    if (field == http::field::server) start_.server = view(value);
  }
  void on_header_impl(error_code&) override {
    if (start_.status >= 200) sink_.on_start(start_);
  }
  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code&) override {}
  std::size_t on_body_impl(Text body, error_code&) override {
    sink_.on_body(view(body));
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, Text, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, Text body, error_code&) override {
    sink_.on_body(view(body));
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  AnswerSink& sink_;
  ResponseStart start_;
};

std::string head_of(const HttpCall& call, const HttpUrl& url) {
  std::string out = call.method + " " + url.base_path + call.target + " HTTP/1.1\r\nHost: " + url.authority() +
                    "\r\nUser-Agent: mstar-bench\r\nAccept: */*\r\n";
  if (!call.api_key.empty()) out += "Authorization: Bearer " + call.api_key + "\r\n";
  if (!call.body.empty() || call.method == "POST")
    out += "Content-Type: application/json\r\nContent-Length: " + std::to_string(call.body.size()) + "\r\n";
  return out + "\r\n";
}

}  // namespace

Result<std::vector<tcp::endpoint>> resolve(const HttpUrl& url) {
  net::io_context io;
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(url.host, std::to_string(url.port), error);
  if (error || found.empty()) return unavailable("the host '" + url.host + "' is not known: " + error.message());
  std::vector<tcp::endpoint> out;
  for (const auto& each : found) out.push_back(each.endpoint());
  return out;
}

class HttpClient::Wire : public std::enable_shared_from_this<HttpClient::Wire> {
 public:
  Wire(net::io_context& io, const HttpUrl& url, const std::vector<tcp::endpoint>& endpoints, bool kernel_times)
      : url_(url), endpoints_(endpoints), socket_(io), kernel_times_(kernel_times) {}

  std::optional<Clock::time_point> arrived() const { return arrived_; }

  void start(HttpCall call, AnswerSink& sink) {
    ++call_;
    sink_ = &sink;
    head_ = head_of(call, url_);
    body_ = std::move(call.body);
    may_send_again_ = socket_.is_open();
    if (may_send_again_) return send();
    connect();
  }

  void cancel() {
    ++call_;  // what still completes is of no call
    sink_ = nullptr;
    close();
  }

 private:
  void close() {
    error_code ignored;
    socket_.close(ignored);
    buffer_.clear();
    parser_.reset();
  }

  void connect() {
    net::async_connect(socket_, endpoints_,
                       [self = shared_from_this(), call = call_](const error_code& error, const tcp::endpoint&) {
                         if (self->call_ != call) return;
                         if (error) return self->end(ExchangeFault::connect, error.message());
                         error_code ignored;
                         self->socket_.set_option(tcp::no_delay(true), ignored);
                         if (self->kernel_times_) self->ask_for_times();
                         self->send();
                       });
  }

  void send() {
    parser_.emplace(*sink_);
    num_received_ = 0;
    const std::array<net::const_buffer, 2> bytes = {net::buffer(head_), net::buffer(body_)};
    net::async_write(socket_, bytes, [self = shared_from_this(), call = call_](const error_code& error, std::size_t) {
      if (self->call_ != call || !error) return;
      // The answer may say why (a body that is too large): the reader tells how it ended.
      error_code ignored;
      self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
    });
    read();
  }

  void ask_for_times() {
    const int yes = 1;
    (void)::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
    error_code ignored;
    socket_.non_blocking(true, ignored);
  }

  void read() {
    if (kernel_times_) return read_with_time();
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this(), call = call_](const error_code& error, std::size_t num_bytes) {
                              if (self->call_ == call) self->on_read(error, num_bytes);
                            });
  }

  void read_with_time() {
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), call = call_](error_code error) {
      if (self->call_ != call) return;
      std::size_t num_bytes = 0;
      if (!error) num_bytes = self->receive(error);
      if (error == net::error::would_block) return self->read_with_time();
      self->on_read(error, num_bytes);
    });
  }

  std::size_t receive(error_code& error) {
    const auto room = buffer_.prepare(kReadBytes);
    iovec part{room.data(), room.size()};
    alignas(cmsghdr) std::array<char, 128> control;
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
    if (got == 0) error = net::error::eof;
    if (got < 0) error = error_code(errno, boost::system::system_category());
    arrived_.reset();
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); got > 0 && each; each = CMSG_NXTHDR(&message, each)) {
      if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_TIMESTAMPNS) continue;
      // The stamp is of the wall clock, which may be set while we run: only its age is of use.
      timespec at = {}, now = {};
      std::memcpy(&at, CMSG_DATA(each), sizeof at);
      (void)::clock_gettime(CLOCK_REALTIME, &now);
      const auto age =
          std::chrono::seconds(now.tv_sec - at.tv_sec) + std::chrono::nanoseconds(now.tv_nsec - at.tv_nsec);
      arrived_ = Clock::now() - std::max(age, std::chrono::nanoseconds(0));
    }
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  }

  void on_read(const error_code& error, std::size_t num_bytes) {
    buffer_.commit(num_bytes);
    num_received_ += num_bytes;
    error_code fault;
    while (buffer_.size() > 0 && !parser_->is_done()) {
      const std::size_t used = parser_->put(buffer_.data(), fault);
      buffer_.consume(used);
      if (parser_->is_done() && parser_->is_header_done() && interim()) continue;
      if (fault || used == 0) break;
    }
    if (fault == http::error::need_more) fault = {};
    if (fault) return end(ExchangeFault::malformed, fault.message());
    if (parser_->is_done()) return end(ExchangeFault::none, {});
    if (!error) return read();
    if (num_received_ == 0 && may_send_again_) {
      may_send_again_ = false;
      ++call_;
      close();
      return connect();
    }
    if (error == net::error::eof && parser_->is_header_done()) {
      parser_->put_eof(fault);  // a body without a length ends with its connection
      if (!fault) return end(ExchangeFault::none, {});
    }
    end(ExchangeFault::broken, error == net::error::eof ? "the server closed the connection" : error.message());
  }

  // After 1xx comes the real answer.
  bool interim() {
    if (parser_->status_of() >= 200) return false;
    parser_.emplace(*sink_);
    return true;
  }

  void end(ExchangeFault fault, const std::string& message) {
    AnswerSink* const sink = sink_;
    const bool keep = fault == ExchangeFault::none && parser_->keep_alive() && buffer_.size() == 0;
    ++call_;
    sink_ = nullptr;
    if (keep) {
      parser_.reset();
    } else {
      close();
    }
    sink->on_end(fault, message);
  }

  HttpUrl url_;
  std::vector<tcp::endpoint> endpoints_;
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::optional<AnswerParser> parser_;
  AnswerSink* sink_ = nullptr;
  std::string head_, body_;
  std::uint64_t call_ = 0;
  std::size_t num_received_ = 0;
  bool may_send_again_ = false;
  const bool kernel_times_;
  std::optional<Clock::time_point> arrived_;
};

HttpClient::HttpClient(net::io_context& io, const HttpUrl& url, const std::vector<tcp::endpoint>& endpoints,
                       bool kernel_times)
    : wire_(std::make_shared<Wire>(io, url, endpoints, kernel_times)) {}
std::optional<std::chrono::steady_clock::time_point> HttpClient::arrived() const { return wire_->arrived(); }
HttpClient::~HttpClient() { wire_->cancel(); }
void HttpClient::start(HttpCall call, AnswerSink& sink) { wire_->start(std::move(call), sink); }
void HttpClient::cancel() { wire_->cancel(); }

}  // namespace mstar::load
