// A raw HTTP client for the server's tests: sends any bytes, reads any answer, never retries.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mstar::server {

struct TestAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // with chunks joined
  std::vector<std::string> chunks;             // of a chunked body
  bool complete = false;                       // the whole body arrived
};

class TestClient {
 public:
  explicit TestClient(std::uint16_t port);  // connects to 127.0.0.1
  ~TestClient();
  TestClient(TestClient&& other) noexcept;
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool send(std::string_view bytes);  // false when the server has closed
  // One answer. `head_only` for HEAD. Status 0 when the connection ended first or 20 s passed.
  TestAnswer read(bool head_only = false);
  // Bytes until something of that text has arrived; empty when the connection ended first.
  std::string read_until(std::string_view text);
  // Reads that many bytes and drops them; false when the connection ended first.
  bool skip(std::size_t num_bytes);
  bool closed_by_server();  // waits for the end of the connection
  void half_close();
  void close();
  void reset();  // closes with RST
  void shrink_receive_buffer();

 private:
  bool fill();
  int socket_ = -1;
  std::string buffer_;
};

// "GET path HTTP/1.1" with the given headers.
std::string get(std::string_view path, std::string_view headers = {});
std::string post(std::string_view path, std::string_view content_type, std::string_view body,
                 std::string_view headers = {});
// A multipart POST: each field is (name, value); a name that begins with '@' is a file "name.wav".
std::string post_form(std::string_view path, const std::vector<std::pair<std::string, std::string>>& fields,
                      std::string_view headers = {});
// Connects, sends, reads one answer.
TestAnswer ask(std::uint16_t port, std::string_view request);

}  // namespace mstar::server
