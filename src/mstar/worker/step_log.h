// What the leader of ranks that work in step has its followers do: the entries of its log. Plain data.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/base/result.h"
#include "mstar/decl/refs.h"
#include "mstar/engine/component_body.h"

namespace mstar::worker {

// A component of a model, as every rank of the group has it.
struct LaneKey {
  std::uint32_t model = 0;  // index in the deployment
  decl::ComponentRef component;
  friend auto operator<=>(const LaneKey&, const LaneKey&) = default;
};

// A value on the device that a step made: each rank has its own of this name.
struct ValueName {
  std::uint64_t step = 0;
  std::uint32_t tag = 0;  // the row's
  std::uint16_t output = 0, index = 0;
  friend auto operator<=>(const ValueName&, const ValueName&) = default;
};

// ---- entries: what every rank does, in this order. Steps are numbered by the leader.
struct LogAdd {
  std::uint32_t model = 0;
  RequestId request;
  std::shared_ptr<const decl::RequestParams> params;
  bool added = true;  // false: the leader had no room, so nobody keeps it
};
struct LogRemove {
  std::uint32_t model = 0;
  RequestId request;
};
struct LogPrepare {
  struct Own {  // a value of the row that each rank takes from its own
    std::uint16_t port = 0, index = 0;
    ValueName name;
    bool on_host = false;  // the leader's had been read by the host
  };
  struct Row {
    engine::RowInputs inputs;
    std::vector<Own> own;
  };
  LaneKey lane;
  std::uint64_t step = 0;
  std::vector<Row> rows;
};
struct LogAdvance {  // one slice; answered by an Ack
  std::uint64_t step = 0;
};
struct LogPromise {  // the step's values can be named before it has finished
  std::uint64_t step = 0;
};
struct LogFinish {
  std::uint64_t step = 0;
  std::vector<std::uint32_t> dropped;  // tags
};
struct LogAbandon {
  std::uint64_t step = 0;
};
struct LogUndo {
  LaneKey lane;
  RequestId request;
  engine::Progress progress;
};
struct LogRelease {  // nobody holds the leader's values of these names any more
  std::vector<ValueName> names;
};
struct LogUnload {};  // engines, pools and weights go; no request is left
struct LogLoad {};    // the first entry after that: they come again; answered by an Ack of kLoading
inline constexpr std::uint64_t kLoading = 0;  // no step has this number
using LogAction = std::variant<LogAdd, LogRemove, LogPrepare, LogAdvance, LogPromise, LogFinish, LogAbandon, LogUndo,
                               LogRelease, LogUnload, LogLoad>;

struct LogEntry {
  std::uint64_t number = 0;
  // What the leader's replicated state was before this entry; a follower whose state differs must not go on.
  std::optional<std::uint64_t> state = {};
  LogAction action;
};

// What became of a LogAdvance, or of a LogLoad, at one follower.
struct Ack {
  int rank = 0;  // in the group
  std::uint64_t step = 0;
  Status status;
};

}  // namespace mstar::worker
