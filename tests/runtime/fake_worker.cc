// A worker's process that misbehaves as the name of its first model says. For worker_process_test.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "mstar/base/queue.h"
#include "mstar/wire/channel.h"
#include "mstar/wire/codec.h"

using namespace mstar;

int main() {
  if (::getenv("MSTAR_FAKE_WORKER_DIES")) return 7;  // before it says anything
  Queue<wire::Frame> inbox;
  std::string mode;
  wire::Channel channel(3, {[&](std::span<const std::byte> bytes, const wire::Descriptor&) {
                              auto frame = wire::decode(bytes);
                              return frame && inbox.push(std::move(*frame));
                            },
                            [&] { std::_Exit(mode == "dies" ? 3 : 0); }});
  std::uint64_t num_turns = 0;
  WorkerId id;
  const auto send = [&](const wire::Frame& frame) {
    auto bytes = wire::encode(frame);
    if (bytes) channel.send(std::move(*bytes));
  };
  while (const auto frame = inbox.pop()) {
    if (const auto* setup = std::get_if<wire::WorkerSetup>(&*frame)) {
      mode = setup->models.at(0).name;
      id = setup->worker;
      if (mode != "stuck" && mode != "loads") send(wire::ToConductor(wire::WorkerReady{id}));
      if (mode == "nonsense") channel.send("this is no frame");
      if (mode == "dies") {
        channel.flush_and_close(std::chrono::seconds(60));
        return 3;
      }
    }
    if (std::holds_alternative<wire::Ping>(*frame) && mode != "mute") {
      if (mode != "hangs" && mode != "stuck") ++num_turns;
      if (mode == "loads" && num_turns == 8) send(wire::ToConductor(wire::WorkerReady{id}));
      send(wire::Pong{num_turns});
      send(wire::ToConductor(wire::Removed{RequestId(num_turns), id}));
    }
  }
}
