#include "mstar/server/test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "mstar/server/ascii.h"

namespace mstar::server {
namespace {

constexpr int kTimeout_s = 60;  // a sanitizer's build takes its time
constexpr std::string_view kBoundary = "----test-boundary";

}  // namespace

TestClient::TestClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  timeval timeout{kTimeout_s, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}
TestClient::~TestClient() { close(); }
TestClient::TestClient(TestClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), buffer_(std::move(other.buffer_)) {}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool TestClient::fill() {
  char bytes[65536];
  ssize_t got = 0;
  do got = recv(socket_, bytes, sizeof bytes, 0);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(got));
  return true;
}

std::string TestClient::read_until(std::string_view text) {
  std::size_t at = buffer_.find(text);
  while (at == std::string::npos) {
    if (!fill()) return {};
    at = buffer_.find(text);
  }
  std::string out = buffer_.substr(0, at + text.size());
  buffer_.erase(0, at + text.size());
  return out;
}

TestAnswer TestClient::read(bool head_only) {
  TestAnswer answer;
  std::string head = read_until("\r\n\r\n");
  if (head.size() < 12) return answer;
  std::from_chars(head.data() + 9, head.data() + 12, answer.status);
  std::string_view lines = head;
  lines.remove_prefix(lines.find("\r\n") + 2);
  while (lines.size() > 2) {
    const std::string_view line = lines.substr(0, lines.find("\r\n"));
    const std::size_t colon = line.find(':');
    answer.headers[lower(line.substr(0, colon))] = std::string(trim(line.substr(colon + 1)));
    lines.remove_prefix(line.size() + 2);
  }
  if (answer.status == 100) return read(head_only);
  if (head_only || answer.status == 204) {
    answer.complete = true;
    return answer;
  }
  if (answer.headers.count("content-length")) {
    const std::size_t length = std::stoul(answer.headers["content-length"]);
    while (buffer_.size() < length && fill()) {
    }
    answer.complete = buffer_.size() >= length;
    answer.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
  } else if (answer.headers.count("transfer-encoding")) {
    for (;;) {
      const std::string line = read_until("\r\n");
      if (line.empty()) return answer;
      const std::size_t size = std::stoul(line, nullptr, 16);
      while (buffer_.size() < size + 2 && fill()) {
      }
      if (buffer_.size() < size + 2) return answer;
      if (size) answer.chunks.push_back(buffer_.substr(0, size));
      answer.body += buffer_.substr(0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) break;
    }
    answer.complete = true;
  } else {
    while (fill()) {
    }
    answer.body = std::exchange(buffer_, {});
    answer.complete = true;
  }
  return answer;
}

bool TestClient::skip(std::size_t num_bytes) {
  while (num_bytes > 0) {
    if (buffer_.empty() && !fill()) return false;
    const std::size_t taken = std::min(num_bytes, buffer_.size());
    buffer_.erase(0, taken);
    num_bytes -= taken;
  }
  return true;
}

bool TestClient::closed_by_server() {
  char byte = 0;
  for (;;) {
    const ssize_t got = recv(socket_, &byte, 1, 0);
    if (got == 0) return true;
    if (got < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
  }
}

void TestClient::half_close() { shutdown(socket_, SHUT_WR); }
void TestClient::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}
void TestClient::reset() {
  linger hard{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}
void TestClient::shrink_receive_buffer() {
  int bytes = 4096;
  setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

std::string get(std::string_view path, std::string_view headers) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(headers) + "\r\n";
}

std::string post(std::string_view path, std::string_view content_type, std::string_view body,
                 std::string_view headers) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Type: " + std::string(content_type) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + std::string(headers) + "\r\n" +
         std::string(body);
}

std::string post_form(std::string_view path, const std::vector<std::pair<std::string, std::string>>& fields,
                      std::string_view headers) {
  std::string body;
  for (const auto& [name, value] : fields) {
    body.append("--").append(kBoundary).append("\r\nContent-Disposition: form-data; name=\"");
    if (name.front() == '@') {
      body.append(name.substr(1)).append("\"; filename=\"").append(name.substr(1)).append(".wav\"\r\n");
      body += "Content-Type: audio/wav\r\n\r\n";
    } else {
      body.append(name).append("\"\r\n\r\n");
    }
    body.append(value).append("\r\n");
  }
  body.append("--").append(kBoundary).append("--\r\n");
  return post(path, "multipart/form-data; boundary=" + std::string(kBoundary), body, headers);
}

TestAnswer ask(std::uint16_t port, std::string_view request) {
  TestClient client(port);
  client.send(request);
  return client.read(request.starts_with("HEAD"));
}

}  // namespace mstar::server
