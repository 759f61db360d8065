// What a client sends into a request that runs: the streams of its FromClient ports, from any thread to the workers.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/result.h"
#include "mstar/decl/decl.h"

namespace mstar::conductor {

// Items of one port, in the order in which the client sent them.
struct ClientItems {
  decl::PortRef port;
  std::int64_t first_index = 0;
  std::vector<HostValue> items;
  std::int64_t total = -1;  // set with the last ones: how many there are in all
};

// One per request. Thread: any. `model` is borrowed.
class ClientInputs {
 public:
  explicit ClientInputs(const decl::Decl& model) : model_(model) {}

  static constexpr std::int64_t kMaxWaitingItems = 65'536;
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;

  // Cuts a value into items of the port and numbers them. A value of dtype bytes holds the port's elements as they are
  // (little-endian); f32 and i64 numbers are converted. Where all axes of the port are fixed, an item is one such
  // tensor; where one varies, and for utf8, bytes and pcm, the whole value is one item. An empty value has no items.
  // Errors: invalid_request with field "port" (the model takes no such input), "done" (the stream has ended) or "body"
  // (not whole items, numbers that the port's dtype can't hold); exhausted when more than the above waits unread.
  Result<ClientItems> accept(std::string_view port, const HostValue& value, bool done);
  // The walks have taken the port's items up to here.
  void note_consumed(decl::PortRef port, std::int64_t num_items);
  struct Counts {
    std::int64_t num_items = 0;
    bool done = false;
  };
  Counts counts(decl::PortRef port) const;

 private:
  struct Waiting {
    std::int64_t num_items = 0, num_consumed = 0;
    std::vector<std::size_t> item_bytes;  // of items [num_consumed, num_items)
    std::size_t bytes = 0;
    bool done = false;
  };
  const decl::Decl& model_;
  mutable std::mutex mutex_;
  std::map<decl::PortRef, Waiting> waiting_;
};

// Names of the ports that clients may send to.
std::vector<std::string> client_input_ports(const decl::Decl& model);

}  // namespace mstar::conductor
