#include "mstar/server/request_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cstring>
#include <utility>
#include <vector>

#include "mstar/server/access.h"
#include "mstar/server/ascii.h"
#include "mstar/server/request_id.h"

namespace mstar::server {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kBufferBytes = 64 << 10;

HttpError from_parser(const error_code& ec) {
  if (ec == http::error::header_limit) return http_error(431, "the request's header is too large", "header_too_large");
  if (ec == http::error::bad_version) return http_error(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  return http_error(400, "malformed HTTP request: " + ec.message(), "malformed_http");
}

// Splits and decodes the request target; false when it is malformed.
bool read_target(std::string_view target, RequestHead& head) {
  if (target == "*") {
    head.path = target;
    return true;
  }
  if (const std::size_t scheme = target.find("://"); scheme != std::string_view::npos && target.front() != '/') {
    const std::size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  if (target.empty() || target.front() != '/') return false;
  target = target.substr(0, target.find('#'));
  const std::size_t question = target.find('?');
  if (question != std::string_view::npos) head.query = target.substr(question + 1);
  auto path = percent_decode(target.substr(0, question), false);
  if (!path || path->find('\0') != std::string::npos) return false;
  head.path = std::move(*path);
  return true;
}

}  // namespace

// What Beast parses goes straight into our own head and form.
class RequestReader::Parser {
 public:
  Parser(const ServerConfig& config, BodyBudget& budget)
      : config_(config), budget_(budget), buffer_(std::max(kBufferBytes, config.header_limit_bytes + 4096)) {
    reset();
  }
  ~Parser() { give_back_body(); }

  std::span<char> room() {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    return {buffer_.data() + end_, buffer_.size() - end_};
  }
  void commit(std::size_t bytes) { end_ += bytes; }

  Step advance() {
    if (done_) return *done_;
    if (!started_) skip_blank_lines();
    while (begin_ < end_) {
      started_ = true;
      error_code ec;
      begin_ += beast_->put(boost::asio::const_buffer(buffer_.data() + begin_, end_ - begin_), ec);
      if (ec == http::error::need_more) {
        if (end_ - begin_ == buffer_.size()) return fail(http_error(400, "malformed HTTP request: a line is too long"));
        return Step::need_more;
      }
      if (ec) return fail(error_ ? *error_ : from_parser(ec));
      if (beast_->is_header_done() && !head_parsed_) {
        head_parsed_ = true;
        // After a head that makes no sense the end of its request is in doubt.
        const bool framing_is_sound = accept_head();
        if (error_ && (head_.has_body() || !framing_is_sound)) return finish(Step::failed);
        if (!beast_->is_done()) return Step::head_done;
      }
      if (beast_->is_done()) return complete();
    }
    return Step::need_more;
  }

  void discard() { begin_ = end_ = 0; }
  void next() {
    give_back_body();
    reset();
  }

  bool started() const { return started_ || begin_ < end_; }
  bool head_parsed() const { return head_parsed_; }
  const RequestHead& head() const { return head_; }
  const RouteMatch& match() const { return match_; }
  const std::optional<HttpError>& error() const { return error_; }
  Form take_form() { return std::move(form_); }
  std::size_t body_bytes() const { return body_bytes_; }
  std::size_t buffered_bytes() const { return end_ - begin_; }

 private:
  class Beast final : public http::basic_parser<true> {
   public:
    explicit Beast(Parser& owner) : owner_(owner) {}

   private:
    using string_view = boost::beast::string_view;
    static std::string_view view(string_view text) { return {text.data(), text.size()}; }

    void on_request_impl(http::verb, string_view method, string_view target, int version, error_code& ec) override {
      RequestHead& head = owner_.head_;
      head.method = view(method);
      head.version = version;
      if (!read_target(view(target), head)) ec = http::error::bad_target;
    }
    void on_response_impl(int, string_view, int, error_code& ec) override { ec = http::error::bad_version; }
    void on_field_impl(http::field, string_view name, string_view value, error_code& ec) override {
      ec = {};
      // Trailers of a chunked body are read and dropped.
      if (!owner_.head_parsed_) owner_.head_.headers.emplace_back(lower(view(name)), view(value));
    }
    void on_header_impl(error_code& ec) override { ec = {}; }
    void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code& ec) override { ec = {}; }
    std::size_t on_body_impl(string_view body, error_code& ec) override { return owner_.on_body(view(body), ec); }
    void on_chunk_header_impl(std::uint64_t, string_view, error_code& ec) override { ec = {}; }
    std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code& ec) override {
      return owner_.on_body(view(body), ec);
    }
    void on_finish_impl(error_code& ec) override { ec = {}; }

    Parser& owner_;
  };

  void reset() {
    beast_.emplace(*this);
    beast_->header_limit(static_cast<std::uint32_t>(config_.header_limit_bytes));
    beast_->body_limit(boost::none);  // ours is checked in accept_head and on_body
    head_ = RequestHead();
    head_.request_id = fresh_request_id();
    match_ = RouteMatch();
    error_.reset();
    done_.reset();
    body_bytes_ = 0;
    started_ = head_parsed_ = false;
  }

  void give_back_body() {
    body_.reset();
    form_ = Form();
    budget_.give_back(std::exchange(budgeted_bytes_, 0));
  }

  // Some clients end a body with an extra line break.
  void skip_blank_lines() {
    while (begin_ < end_ && (buffer_[begin_] == '\r' || buffer_[begin_] == '\n')) ++begin_;
  }

  Step finish(Step step) {
    done_ = step;
    if (error_) give_back_body();
    return step;
  }
  Step fail(HttpError error) {
    error_ = std::move(error);
    return finish(Step::failed);
  }

  Step complete() {
    if (error_ || !body_) return finish(Step::complete);
    auto form = body_->finish();
    body_.reset();
    if (form) {
      form_ = std::move(*form);
    } else {
      error_ = to_http(form.error(), Stage::body);
    }
    return finish(Step::complete);
  }

  // False when the head itself is refused; error_ may be set in either case.
  bool accept_head() {
    head_.keep_alive = beast_->keep_alive();
    head_.chunked = beast_->chunked();
    if (const auto length = beast_->content_length()) head_.content_length = *length;
    if (const auto id = head_.header("x-request-id"); is_sane_request_id(id)) head_.request_id = id;
    error_ = check_head();
    if (error_) return false;
    match_ = find_route(head_.method, head_.path);
    error_ = check_route();
    if (!error_) error_ = check_key();
    if (!error_ && head_.method != "OPTIONS" && match_.route->bodies != kNoBody) open_body();
    return true;
  }

  void open_body() {
    const std::string_view type = head_.header("content-type");
    if (match_.route->bodies == kRaw) {
      body_ = make_raw_body_reader(config_.input_limit_bytes);
      return;
    }
    const bool is_json_text = match_.route->bodies == kJsonText;
    if (!(body_kind(type) & (is_json_text ? kJson : match_.route->bodies))) {
      error_ = http_error(415, "Content-Type must be one of: " + body_kind_names(match_.route->bodies),
                          "unsupported_content_type");
      error_->param = "Content-Type";
      return;
    }
    if (is_json_text) {
      body_ = make_raw_body_reader(config_.json_limit_bytes);
      return;
    }
    auto reader = make_body_reader(type, config_.json_limit_bytes, head_.content_length.value_or(0));
    if (reader) {
      body_ = std::move(*reader);
    } else {
      error_ = to_http(reader.error(), Stage::body);
    }
  }

  std::optional<HttpError> check_head() {
    int num_hosts = 0;
    int num_encodings = 0;
    for (const auto& [name, value] : head_.headers) {
      if (name == "host") ++num_hosts;
      if (name != "transfer-encoding") continue;
      ++num_encodings;
      // Anything else would leave the end of the body in doubt.
      if (lower(trim(value)) != "chunked") return http_error(501, "only the chunked transfer encoding is supported");
    }
    if (num_encodings > 1 || (num_encodings == 1 && head_.version < 11) || (num_encodings == 1) != head_.chunked)
      return http_error(400, "malformed HTTP request: bad Transfer-Encoding", "malformed_http");
    if (num_hosts > 1 || (num_hosts == 0 && head_.version >= 11))
      return http_error(400, "malformed HTTP request: exactly one Host header is needed", "malformed_http");
    const std::string expect = lower(head_.header("expect"));
    if (!expect.empty() && expect != "100-continue") return http_error(417, "unknown expectation");
    head_.expect_continue = !expect.empty() && head_.version >= 11;
    if (head_.content_length.value_or(0) > config_.body_limit_bytes) return too_large();
    return std::nullopt;
  }

  std::optional<HttpError> check_route() {
    if (head_.method == "OPTIONS" && (match_.route || head_.path == "*")) return std::nullopt;
    if (!match_.route) return http_error(404, "no such route: " + head_.method + " " + head_.path, "not_found");
    if (match_.method_matches) return std::nullopt;
    HttpError error = http_error(405, head_.method + " is not allowed on " + head_.path, "method_not_allowed");
    error.allow = match_.allow;
    return error;
  }

  std::optional<HttpError> check_key() const {
    if (config_.api_keys.empty() || head_.method == "OPTIONS") return std::nullopt;
    const Endpoint endpoint = match_.route->endpoint;
    if (endpoint == Endpoint::health || endpoint == Endpoint::ready) return std::nullopt;
    const std::string_view authorization = head_.header("authorization");
    if (has_known_key(authorization, config_.api_keys)) return std::nullopt;
    return http_error(401,
                      authorization.empty() ? "an API key is needed: send 'Authorization: Bearer KEY'"
                                            : "the API key is not one of this server's",
                      "invalid_api_key");
  }

  HttpError too_large() const {
    return http_error(413, "the body is larger than " + std::to_string(config_.body_limit_bytes) + " bytes",
                      "request_too_large");
  }

  std::size_t on_body(std::string_view bytes, error_code& ec) {
    // What is within the limit is looked at first, so that the answer does not depend on how the body is cut.
    const std::string_view allowed = bytes.substr(0, config_.body_limit_bytes - body_bytes_);
    body_bytes_ += allowed.size();
    if (body_) feed_body(allowed);
    if (!error_ && allowed.size() < bytes.size()) error_ = too_large();
    ec = {};
    if (error_) ec = http::error::body_limit;
    return bytes.size();
  }

  void feed_body(std::string_view bytes) {
    if (!budget_.take(bytes.size())) {
      error_ = http_error(503, "too much memory is held by other requests' bodies; try again", "overloaded");
      return;
    }
    budgeted_bytes_ += bytes.size();
    if (Status fed = body_->feed(bytes); !fed) error_ = to_http(fed.error(), Stage::body);
  }

  const ServerConfig& config_;
  BodyBudget& budget_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // unparsed bytes are [begin_, end_) of buffer_
  std::size_t end_ = 0;

  std::optional<Beast> beast_;
  RequestHead head_;
  RouteMatch match_;
  std::unique_ptr<BodyReader> body_;
  Form form_;
  std::optional<HttpError> error_;
  std::optional<Step> done_;
  std::size_t body_bytes_ = 0;
  std::size_t budgeted_bytes_ = 0;
  bool started_ = false;
  bool head_parsed_ = false;
};

RequestReader::RequestReader(const ServerConfig& config, BodyBudget& budget)
    : parser_(std::make_unique<Parser>(config, budget)) {}
RequestReader::~RequestReader() = default;
std::span<char> RequestReader::room() { return parser_->room(); }
void RequestReader::commit(std::size_t bytes) { parser_->commit(bytes); }
RequestReader::Step RequestReader::advance() { return parser_->advance(); }
bool RequestReader::started() const { return parser_->started(); }
bool RequestReader::head_parsed() const { return parser_->head_parsed(); }
const RequestHead& RequestReader::head() const { return parser_->head(); }
const RouteMatch& RequestReader::match() const { return parser_->match(); }
const std::optional<HttpError>& RequestReader::error() const { return parser_->error(); }
Form RequestReader::take_form() { return parser_->take_form(); }
std::size_t RequestReader::body_bytes() const { return parser_->body_bytes(); }
std::size_t RequestReader::buffered_bytes() const { return parser_->buffered_bytes(); }
void RequestReader::discard() { parser_->discard(); }
void RequestReader::next() { parser_->next(); }

}  // namespace mstar::server
