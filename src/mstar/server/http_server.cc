#include "mstar/server/http_server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <thread>
#include <vector>

#include "mstar/base/log.h"
#include "mstar/server/connection.h"
#include "mstar/server/io_loop.h"

namespace mstar::server {
namespace {

using boost::system::error_code;
using net::ip::tcp;

// After a failed accept (most often: no file descriptor is left).
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::size_t kBackgroundThreads = 2;

// A client that vanished without a word (its machine or network went down) is noticed within two minutes.
void keep_alive(Socket& socket) {
  error_code ignored;
  socket.set_option(net::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, 60);
  set(TCP_KEEPINTVL, 15);
  set(TCP_KEEPCNT, 4);
}

Result<tcp::endpoint> resolve(net::io_context& io, const ServerConfig& config) {
  error_code error;
  const net::ip::address literal = net::ip::make_address(config.host, error);
  if (!error) return tcp::endpoint(literal, config.port);
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(config.host, std::to_string(config.port), tcp::resolver::passive, error);
  if (error || found.empty())
    return std::move(invalid_request("cannot listen on host '" + config.host + "': " + error.message()))
        .with_field("host");
  return found.begin()->endpoint();
}

std::vector<std::shared_ptr<IoLoop>> make_loops(ServerCore& core) {
  std::vector<std::shared_ptr<IoLoop>> out;
  for (int i = 0; i < std::max(1, core.config.num_io_threads); ++i)
    out.push_back(std::make_shared<IoLoop>(core.metrics, core.config.io_uring, core.config.stays_awake));
  return out;
}

}  // namespace

struct HttpServer::Threads {
  Threads(const ServerConfig& config, Frontend& frontend)
      : core(std::make_shared<ServerCore>(config, frontend)),
        loops(make_loops(*core)),
        acceptor(loops.front()->context()),
        pause(acceptor.get_executor()),
        background(kBackgroundThreads) {
    for (const auto& each : loops) work_guards.emplace_back(each->context().get_executor());
    // One piece of work a connection waits there at most, with the memory of its body.
    core->in_background = [this](std::function<void()> work) {
      net::post(background, [work = std::move(work)] {
        try {
          work();
        } catch (const std::exception& thrown) {  // its request runs into its time-out
          log_error("a request was lost to an exception: {}", thrown.what());
        }
      });
    };
  }

  Status listen();
  void accept();
  void on_accepted(const error_code& error, Socket socket, const std::shared_ptr<IoLoop>& loop);

  std::shared_ptr<ServerCore> core;
  std::vector<std::shared_ptr<IoLoop>> loops;  // each has a thread; the first one also accepts
  std::vector<net::executor_work_guard<Executor>> work_guards;
  std::size_t next_loop = 0;
  net::basic_socket_acceptor<tcp, Executor> acceptor;
  Timer pause;
  net::thread_pool background;
  std::uint16_t port = 0;
  std::vector<std::thread> threads;
};

Status HttpServer::Threads::listen() {
  const ServerConfig& config = core->config;
  MSTAR_TRY_ASSIGN(const tcp::endpoint endpoint, resolve(loops.front()->context(), config));
  error_code error;
  const auto failed = [&] {
    const std::string where = config.host + " port " + std::to_string(config.port);
    if (error == net::error::address_in_use)
      return std::move(unavailable(where + " is already in use; choose another port or stop what uses it"))
          .with_field("port");
    return std::move(unavailable("cannot listen on " + where + ": " + error.message())).with_field("port");
  };
  acceptor.open(endpoint.protocol(), error);
  if (error) return failed();
  acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (error) return failed();
  acceptor.bind(endpoint, error);
  if (error) return failed();
  acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) return failed();
  port = acceptor.local_endpoint(error).port();
  return error ? Status(failed()) : ok_status();
}

// Connections are dealt out in turn and stay with their loop.
void HttpServer::Threads::accept() {
  const std::size_t at = next_loop++ % loops.size();
  acceptor.async_accept(loops[at]->context(), [this, at](const error_code& error, Socket socket) {
    on_accepted(error, std::move(socket), loops[at]);
  });
}

void HttpServer::Threads::on_accepted(const error_code& error, Socket socket, const std::shared_ptr<IoLoop>& loop) {
  if (core->draining || error == net::error::operation_aborted) return;
  if (error) {
    log_warn("cannot accept a connection: {}", error.message());
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](const error_code& stopped) {
      if (!stopped && !core->draining) accept();
    });
    return;
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  keep_alive(socket);
  auto connection = std::make_shared<Connection>(loop, std::move(socket), core);
  switch (core->add(connection)) {
    case ServerCore::Admission::accepted:
      connection->start();
      break;
    case ServerCore::Admission::over_limit:
      connection->start_turned_away();
      break;
    case ServerCore::Admission::refused:
      break;
  }
  accept();
}

HttpServer::HttpServer(std::unique_ptr<Threads> threads) : threads_(std::move(threads)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const ServerConfig& config, Frontend& frontend) try {
  auto server = std::unique_ptr<HttpServer>(new HttpServer(std::make_unique<Threads>(config, frontend)));
  Threads* threads = server->threads_.get();
  MSTAR_TRY(threads->listen());
  threads->accept();
  for (const auto& each : threads->loops) threads->threads.emplace_back([loop = each.get()] { loop->run(); });
  return server;
} catch (const std::exception& thrown) {  // no descriptors or threads are left
  return exhausted(std::string("cannot start the HTTP server: ") + thrown.what());
}

HttpServer::~HttpServer() {
  stop_accepting();
  threads_->core->refuse_all();
  for (const auto& connection : threads_->core->connections()) connection->stop_now();
  // What is in the background comes back to its connection, to be told that it is over.
  threads_->background.join();
  // With every socket and timer closed the threads run out of work.
  threads_->work_guards.clear();
  for (std::thread& each : threads_->threads) each.join();
  // A loop without a thread, when they could not be started.
  for (std::size_t i = threads_->threads.size(); i < threads_->loops.size(); ++i) threads_->loops[i]->run();
  for (const auto& each : threads_->loops) each->close();
}

std::uint16_t HttpServer::port() const { return threads_->port; }

void HttpServer::stop_accepting() {
  if (threads_->core->draining.exchange(true)) return;
  net::post(threads_->acceptor.get_executor(), [t = threads_.get()] {
    error_code ignored;
    t->acceptor.close(ignored);
    t->pause.cancel();
  });
  for (const auto& connection : threads_->core->connections()) connection->stop_when_idle();
}

bool HttpServer::drain(std::chrono::milliseconds timeout) {
  stop_accepting();
  return threads_->core->wait_until_idle(timeout);
}

}  // namespace mstar::server
