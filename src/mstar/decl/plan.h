// Plans: which walk a partition runs next. One per request and partition, run by the conductor, never near a device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/result.h"
#include "mstar/decl/refs.h"
#include "mstar/decl/request.h"

namespace mstar::decl {

struct StreamCounts {
  std::int64_t produced = 0;  // items
  std::int64_t consumed = 0;
  bool producer_done = false;
};
enum class LoopEnd : std::uint8_t { cap, stop };

// What a plan may look at. `kept` holds the values of Keep ports that are on the host and at most 64 KiB.
struct PlanView {
  const RequestParams& params;
  WalkRef finished;   // the walk that just ended; invalid at the start
  int num_walks = 0;  // ended so far in this partition
  const std::map<PortRef, std::vector<HostValue>>& kept;
  const std::map<PortRef, StreamCounts>& streams;
  const std::map<std::string, LoopEnd>& loop_ends;  // of the finished walk
  std::int64_t num_tokens = 0;                      // counted so far in this partition
};

struct NextWalk {
  WalkRef walk;
  std::vector<std::pair<PortRef, std::vector<HostValue>>> inputs = {};  // beside kept, request and stream ports
  std::map<std::string, int> caps = {};            // loop name -> largest number of iterations, >= 1
  std::map<std::string, std::int64_t> flags = {};  // step parameters that components read
  std::vector<PortRef> forget = {};                // kept ports whose value is not needed again
};
enum class Finish : std::uint8_t { stop, length, tool_calls, error };
struct Done {
  Finish finish = Finish::stop;
};
using Decision = std::variant<NextWalk, Done>;

class Plan {
 public:
  virtual ~Plan() = default;
  // Pure but for the object's own scratch. An Error fails the request. Cost: microseconds.
  virtual Result<Decision> next(const PlanView& view) = 0;
};
using MakePlan = std::function<std::unique_ptr<Plan>(const RequestParams&)>;

// Runs `walk` for each chunk that arrives until the final one was consumed.
MakePlan each_chunk(WalkRef walk);
// Runs the walks in order, once each.
MakePlan in_order(std::vector<WalkRef> walks);

struct PartitionSpec {
  std::string name = "default";
  std::vector<WalkRef> walks = {};
  MakePlan plan = {};
};

}  // namespace mstar::decl
