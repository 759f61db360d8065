// What the kernel takes for a token's bytes on their way to a client of this machine: short frames to many TCP
// connections, each read by another process, and nothing else. The floor of bench/host_path.py.
//
//   send_floor [STREAMS [ROUNDS [PACE_US [BYTES [ADDRESS NETNS]]]]]
//
// ADDRESS is this side's (127.0.0.1), NETNS the name of the network namespace in which the reader lives (`ip netns`).

// Prints the sending thread's CPU (CLOCK_THREAD_CPUTIME_ID) and time a frame: one send() each, and io_uring's batches.
// On the loopback a send also does the receiver's half, up to waking it; between two machines it would not.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "mstar/server/send_batch.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  int streams = 1000;
  int rounds = 100;
  int pace_us = 25'000;
  std::size_t bytes = 200;
  std::string address = "127.0.0.1";
  std::string netns = {};
};

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(1);
}

double thread_cpu_us() {
  timespec at = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return static_cast<double>(at.tv_sec) * 1e6 + static_cast<double>(at.tv_nsec) / 1e3;
}

void enter_netns(const std::string& name) {
  const int netns = ::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (netns < 0 || ::setns(netns, CLONE_NEWNET) != 0) give_up(name.c_str());
}

// Connects to `address` and reads until the other side closes.
void read_all(const sockaddr_in& address, int streams) {
  const int poll = ::epoll_create1(0);
  for (int i = 0; i < streams; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) give_up("connect");
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = socket;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, socket, &event);
  }
  std::array<epoll_event, 256> events;
  std::array<char, 65536> buffer;
  for (;;) {
    const int num = ::epoll_wait(poll, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < num; ++i)
      if (::recv(events[static_cast<std::size_t>(i)].data.fd, buffer.data(), buffer.size(), 0) <= 0) return;
  }
}

std::vector<int> accept_all(int listener, int streams) {
  std::vector<int> out;
  const int yes = 1;
  for (int i = 0; i < streams; ++i) {
    out.push_back(::accept(listener, nullptr, nullptr));
    if (out.back() < 0) give_up("accept");
    ::setsockopt(out.back(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  return out;
}

void measure(const Shape& shape, const std::vector<int>& sockets, bool io_uring) {
  constexpr std::size_t kTogether = 64;  // as the server has it
  mstar::server::SendBatch batch(io_uring);
  const std::string frame(shape.bytes, 'x');
  double cpu_us = 0, wall_us = 0;
  auto next = Clock::now();
  for (int round = 0; round < shape.rounds; ++round) {
    std::this_thread::sleep_until(next += std::chrono::microseconds(shape.pace_us));
    const double cpu = thread_cpu_us();
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      batch.add(sockets[i], frame);
      if (batch.size() < kTogether && i + 1 < sockets.size()) continue;
      for (const auto& each : batch.send())
        if (each.result != static_cast<std::ptrdiff_t>(frame.size())) std::puts("a frame was not taken whole");
      batch.clear();
    }
    cpu_us += thread_cpu_us() - cpu;
    wall_us += std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }
  if (io_uring && !batch.uses_io_uring()) std::puts("io_uring is not to be had; without it:");
  const double num = static_cast<double>(shape.rounds) * static_cast<double>(sockets.size());
  std::printf("%-10s %.2f us of CPU, %.2f us of time a frame\n", io_uring ? "io_uring" : "send", cpu_us / num,
              wall_us / num);
}

}  // namespace

int main(int argc, char** argv) {
  Shape shape;
  if (argc > 1) shape.streams = std::atoi(argv[1]);
  if (argc > 2) shape.rounds = std::atoi(argv[2]);
  if (argc > 3) shape.pace_us = std::atoi(argv[3]);
  if (argc > 4) shape.bytes = static_cast<std::size_t>(std::atoi(argv[4]));
  if (argc > 6) {
    shape.address = argv[5];
    shape.netns = argv[6];
  }
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);

  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (::inet_aton(shape.address.c_str(), &address.sin_addr) == 0) give_up("address");
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0) give_up("bind");
  if (::listen(listener, 4096) != 0) give_up("listen");
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const pid_t reader = ::fork();
  if (reader < 0) give_up("fork");
  if (reader == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (!shape.netns.empty()) enter_netns(shape.netns);
    read_all(address, shape.streams);
    return 0;
  }
  const std::vector<int> sockets = accept_all(listener, shape.streams);
  std::printf("%d streams, %d frames each of %zu bytes, a round every %d us\n", shape.streams, shape.rounds,
              shape.bytes, shape.pace_us);
  for (int repeat = 0; repeat < 3; ++repeat)
    for (const bool io_uring : {false, true}) measure(shape, sockets, io_uring);
  for (const int socket : sockets) ::close(socket);
  ::waitpid(reader, nullptr, 0);
}
