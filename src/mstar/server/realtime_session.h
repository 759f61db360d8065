// WS /v1/realtime: one client that speaks, over a WebSocket.
#pragma once

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>
#include <deque>
#include <memory>
#include <string>

#include "mstar/live/live_hearing.h"
#include "mstar/media/resampler.h"
#include "mstar/server/realtime_events.h"
#include "mstar/server/request_head.h"
#include "mstar/server/server_core.h"

namespace mstar::server {

// Owners: its pending operations and its connection. Thread: its socket's loop, but for what says "any".
class RealtimeSession final : public std::enable_shared_from_this<RealtimeSession> {
 public:
  using Executor = boost::asio::io_context::executor_type;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Executor>;

  // `on_end` is called once, when the socket is closed.
  RealtimeSession(Socket socket, std::shared_ptr<ServerCore> core, RealtimeSettings settings,
                  std::function<void()> on_end);
  ~RealtimeSession();

  // Answers the request, whose head asked for a WebSocket.
  void start(const RequestHead& head);
  // The server goes away: what runs is cut off. Any.
  void stop();

 private:
  using Timer = boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                                  boost::asio::wait_traits<std::chrono::steady_clock>, Executor>;
  void on_accepted(const boost::system::error_code& error);
  void read();
  void on_message();
  void on_event(const LiveEvent& event);
  void on(UpdateSession update);
  void on(const AppendSound& sound);
  void apply();
  void send(const std::string& type, const std::string& members);
  void send_error(const Error& error, const std::string& event_id, const char* code);
  void write();
  void arm_timer();
  void on_timer();
  void end(boost::beast::websocket::close_code code, const std::string& reason);
  void finish();
  std::string item_of(std::uint64_t turn) const;

  boost::beast::websocket::stream<Socket> socket_;
  const std::shared_ptr<ServerCore> core_;
  RealtimeSettings settings_;
  std::function<void()> on_end_;
  boost::beast::http::request<boost::beast::http::empty_body> request_;
  boost::beast::flat_buffer buffer_;
  std::shared_ptr<LiveHearing> hearing_;
  std::unique_ptr<Resampler> resampler_;  // null: the sound comes at the detector's rate
  Timer timer_;
  std::deque<std::string> out_;
  std::size_t out_bytes_ = 0;
  std::string id_;
  std::uint64_t num_events_ = 0;
  std::chrono::steady_clock::time_point last_sound_;
  bool writing_ = false, ending_ = false, is_paused_ = false, is_open_ = false;
  std::uint64_t last_committed_ = 0;
};

// A served model that transcribes: of this name or alias, or the first one for none. invalid_request with field
// "model".
Result<std::string> find_live_model(const Frontend& frontend, const std::string& name);

}  // namespace mstar::server
