#include "mstar/load/fake_completions.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace mstar::load {

void FakeWire::send(std::string_view bytes) {
  while (!bytes.empty() && open) {
    const ssize_t sent = ::send(socket_, bytes.data(), std::min(piece_bytes, bytes.size()), MSG_NOSIGNAL);
    if (sent <= 0) return close();
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void FakeWire::answer(int status, std::string_view content_type, std::string_view body) {
  send("HTTP/1.1 " + std::to_string(status) + " Text\r\nServer: fake/1\r\nContent-Type: " + std::string(content_type) +
       "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
}

void FakeWire::begin_stream() {
  send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n");
}

void FakeWire::chunk(std::string_view bytes) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  send(std::string(size) + std::string(bytes) + "\r\n");
}

void FakeWire::event(std::string_view data) { chunk("data: " + std::string(data) + "\n\n"); }
void FakeWire::end_stream() { send("0\r\n\r\n"); }

void FakeWire::wait(int milliseconds) {
  for (int i = 0; i < milliseconds && !stopping_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

FakeCompletions::FakeCompletions(Script script) : script_(std::move(script)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 1024) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    std::abort();
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept(); });
}

FakeCompletions::~FakeCompletions() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  {
    std::lock_guard lock(mutex_);
    for (const int each : sockets_) ::shutdown(each, SHUT_RDWR);
  }
  for (std::thread& each : threads_) each.join();
  for (const int each : sockets_) ::close(each);
}

std::vector<FakeRequest> FakeCompletions::requests() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

void FakeCompletions::accept() {
  for (;;) {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0 || stopping_) {
      if (socket >= 0) ::close(socket);
      return;
    }
    const int one = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    ++num_connections_;
    std::lock_guard lock(mutex_);
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { serve(socket); });
  }
}

void FakeCompletions::serve(int socket) {
  FakeWire wire(socket, stopping_);
  std::string buffer;
  const auto fill_to = [&](std::size_t num_bytes) {
    char bytes[4096];
    while (buffer.size() < num_bytes) {
      const ssize_t got = ::recv(socket, bytes, sizeof bytes, 0);
      if (got <= 0) return false;
      buffer.append(bytes, static_cast<std::size_t>(got));
    }
    return true;
  };
  while (wire.open) {
    std::size_t end;
    while ((end = buffer.find("\r\n\r\n")) == buffer.npos)
      if (!fill_to(buffer.size() + 1)) return;
    FakeRequest request{.head = buffer.substr(0, end), .path = {}, .body = {}};
    const std::size_t path = request.head.find(' ') + 1;
    request.path = request.head.substr(path, request.head.find(' ', path) - path);
    const std::size_t length = request.head.find("Content-Length: ");
    const std::size_t num_bytes =
        length == buffer.npos ? 0 : static_cast<std::size_t>(std::atoi(request.head.c_str() + length + 16));
    if (!fill_to(end + 4 + num_bytes)) return;
    request.body = buffer.substr(end + 4, num_bytes);
    buffer.erase(0, end + 4 + num_bytes);
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    script_(request, wire);
  }
  ::shutdown(socket, SHUT_RDWR);
}

int FakeCompletions::number_in(const FakeRequest& request, std::string_view name) {
  const std::size_t at = request.body.find("\"" + std::string(name) + "\":");
  return at == request.body.npos ? -1 : std::atoi(request.body.c_str() + at + name.size() + 3);
}

void FakeCompletions::well(const FakeRequest& request, FakeWire& wire) {
  const int num_tokens = number_in(request, "max_tokens");
  wire.begin_stream();
  for (int i = 0; i < num_tokens; ++i)
    wire.event(request.path == "/v1/completions"
                   ? R"({"choices":[{"index":0,"text":"a ","finish_reason":null}],"usage":null})"
                   : R"({"choices":[{"index":0,"delta":{"content":"a "},"finish_reason":null}]})");
  wire.event(R"({"choices":[{"index":0,"text":"","delta":{},"finish_reason":"length"}]})");
  wire.event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":)" + std::to_string(num_tokens) +
             R"(,"prompt_tokens_details":{"cached_tokens":2}}})");
  wire.event("[DONE]");
  wire.end_stream();
}

}  // namespace mstar::load
