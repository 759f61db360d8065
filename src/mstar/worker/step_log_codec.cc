#include "mstar/worker/step_log_codec.h"

#include <algorithm>

#include "mstar/wire/codec_fields.h"
#include "mstar/wire/codec_io.h"

namespace mstar::worker {
namespace {

// Bumped on every change of step_log.h or of a struct below; beside it stands that of the messages.
constexpr std::uint32_t kLogVersion = 2;

// A row without pointers into its rank.
struct PlainRow {
  RequestId request;
  decl::WalkRef walk;
  graph::NodeIndex node = graph::kNoNode;
  std::vector<Values> ports;
  std::vector<int> num_seen;
  bool has_flags = false;
  std::map<std::string, std::int64_t> flags;
  int iteration = 0;
  bool is_final = false;
  bool ahead = false;
  std::uint32_t tag = 0;
  engine::Progress progress;
  std::vector<LogPrepare::Own> own;
};
struct PlainPrepare {
  LaneKey lane;
  std::uint64_t step = 0;
  std::vector<PlainRow> rows;
};
using PlainAction = std::variant<LogAdd, LogRemove, PlainPrepare, LogAdvance, LogPromise, LogFinish, LogAbandon,
                                 LogUndo, LogRelease, LogUnload, LogLoad>;
struct PlainEntry {
  std::uint64_t number = 0;
  bool has_state = false;
  std::uint64_t state = 0;
  PlainAction action;
};
struct PlainAck {
  int rank = 0;
  std::uint64_t step = 0;
  bool ok = true;
  Error error;
};
using PlainMessage = std::variant<PlainEntry, PlainAck, StepEnd, StepKey>;

template <class Io>
struct LogFields : wire::Fields<Io> {
  using wire::Fields<Io>::of;
  template <class T>
  using Ref = typename Io::template Ref<T>;

  static void of(Io& io, Ref<LaneKey> l) { io(l.model, l.component); }
  static void of(Io& io, Ref<ValueName> n) { io(n.step, n.tag, n.output, n.index); }
  static void of(Io& io, Ref<engine::Progress> p) { io(p.begun, p.label, p.label_start, p.done, p.num_parts); }
  static void of(Io& io, Ref<LogAdd> a) { io(a.model, a.request, a.params, a.added); }
  static void of(Io& io, Ref<LogRemove> a) { io(a.model, a.request); }
  static void of(Io& io, Ref<LogPrepare::Own> o) { io(o.port, o.index, o.name, o.on_host); }
  static void of(Io& io, Ref<PlainRow> r) {
    io(r.request, r.walk, r.node, r.ports, r.num_seen, r.has_flags, r.flags, r.iteration, r.is_final, r.ahead, r.tag,
       r.progress, r.own);
  }
  static void of(Io& io, Ref<PlainPrepare> a) { io(a.lane, a.step, a.rows); }
  static void of(Io& io, Ref<LogAdvance> a) { io(a.step); }
  static void of(Io& io, Ref<LogPromise> a) { io(a.step); }
  static void of(Io& io, Ref<LogFinish> a) { io(a.step, a.dropped); }
  static void of(Io& io, Ref<LogAbandon> a) { io(a.step); }
  static void of(Io& io, Ref<LogUndo> a) { io(a.lane, a.request, a.progress); }
  static void of(Io& io, Ref<LogRelease> a) { io(a.names); }
  static void of(Io&, Ref<LogUnload>) {}
  static void of(Io&, Ref<LogLoad>) {}
  static void of(Io& io, Ref<PlainEntry> e) { io(e.number, e.has_state, e.state, e.action); }
  static void of(Io& io, Ref<PlainAck> a) { io(a.rank, a.step, a.ok, a.error); }
  static void of(Io& io, Ref<StepEnd> e) { io(e.reason); }
  static void of(Io& io, Ref<StepKey> k) { io(k.bytes); }
};

// ---- from what a rank has to what travels
Result<PlainRow> plain(const LogPrepare::Row& row, const graph::CompiledModel& model) {
  const engine::RowInputs& in = row.inputs;
  const auto& nodes = model.at(in.walk).nodes;
  const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const auto& each) { return each.run == in.run; });
  if (node == nodes.end()) return internal_error("a row of a run that is not in its walk");
  PlainRow out{.request = in.request,
               .walk = in.walk,
               .node = static_cast<graph::NodeIndex>(node - nodes.begin()),
               .ports = in.ports,
               .num_seen = in.num_seen,
               .has_flags = in.flags != nullptr,
               .flags = {},
               .iteration = in.iteration,
               .is_final = in.is_final,
               .ahead = in.ahead,
               .tag = in.tag,
               .progress = in.progress,
               .own = row.own};
  if (in.flags) out.flags = *in.flags;
  return out;
}

Result<PlainAction> plain(const LogAction& action, std::span<const graph::CompiledModel* const> models) {
  const auto* const prepare = std::get_if<LogPrepare>(&action);
  if (!prepare)
    return std::visit(
        [](const auto& each) -> PlainAction {
          if constexpr (std::is_same_v<std::decay_t<decltype(each)>, LogPrepare>)
            return PlainPrepare();
          else
            return each;
        },
        action);
  if (prepare->lane.model >= models.size()) return internal_error("a step of a model that there is not");
  PlainPrepare out{prepare->lane, prepare->step, {}};
  for (const LogPrepare::Row& each : prepare->rows) {
    MSTAR_TRY_ASSIGN(PlainRow row, plain(each, *models[prepare->lane.model]));
    out.rows.push_back(std::move(row));
  }
  return PlainAction(std::move(out));
}

Result<PlainMessage> plain(const StepMessage& message, std::span<const graph::CompiledModel* const> models) {
  if (const auto* const end = std::get_if<StepEnd>(&message)) return PlainMessage(*end);
  if (const auto* const key = std::get_if<StepKey>(&message)) return PlainMessage(*key);
  if (const auto* const ack = std::get_if<Ack>(&message))
    return PlainMessage(
        PlainAck{ack->rank, ack->step, ack->status.ok(), ack->status.ok() ? Error() : ack->status.error()});
  const auto& entry = std::get<LogEntry>(message);
  MSTAR_TRY_ASSIGN(PlainAction action, plain(entry.action, models));
  return PlainMessage(PlainEntry{entry.number, entry.state.has_value(), entry.state.value_or(0), std::move(action)});
}

using ParamsOf = std::map<RequestId, std::shared_ptr<const decl::RequestParams>>;

// ---- and back, where every number is checked against what there is
Error damaged(const char* what) { return internal_error(std::string("a log entry with ") + what); }

Result<LogPrepare::Row> whole(PlainRow row, LaneKey lane, const graph::CompiledModel& model, const ParamsOf& params) {
  const decl::Decl& decl = model.declaration();
  if (row.walk.value >= decl.walks().size()) return damaged("a walk that there is not");
  const auto& nodes = model.at(row.walk).nodes;
  if (row.node >= nodes.size() || nodes[row.node].component != lane.component)
    return damaged("a node that its component does not run");
  const decl::Run& run = *nodes[row.node].run;
  const bool seen_all = row.num_seen.empty() || row.num_seen.size() == run.inputs.size();
  if (row.ports.size() != run.inputs.size() || !seen_all) return damaged("a row of other ports than its node's");
  for (const LogPrepare::Own& own : row.own)
    if (own.port >= row.ports.size() || own.index >= row.ports[own.port].size())
      return damaged("a value of a port that there is not");
  const auto found = params.find(row.request);
  if (found == params.end()) return damaged("a request that was not added");
  LogPrepare::Row out{.inputs = {.request = row.request,
                                 .params = found->second,
                                 .walk = row.walk,
                                 .run = &run,
                                 .ports = std::move(row.ports),
                                 .num_seen = std::move(row.num_seen),
                                 .iteration = row.iteration,
                                 .is_final = row.is_final,
                                 .ahead = row.ahead,
                                 .tag = row.tag,
                                 .progress = row.progress},
                      .own = std::move(row.own)};
  if (row.has_flags)
    out.inputs.flags = std::make_shared<const std::map<std::string, std::int64_t>>(std::move(row.flags));
  return out;
}

Status check_lane(LaneKey lane, const std::vector<const graph::CompiledModel*>& models) {
  if (lane.model >= models.size()) return damaged("a model that there is not");
  const decl::Decl& decl = models[lane.model]->declaration();
  if (lane.component.value >= decl.components().size() || decl.at(lane.component).on_host())
    return damaged("a component that no rank runs");
  return ok_status();
}

struct ToLog {
  const std::vector<const graph::CompiledModel*>& models;
  ParamsOf& params;

  Result<LogAction> operator()(LogAdd add) const {
    if (add.model >= models.size()) return damaged("a model that there is not");
    if (add.added) params[add.request] = add.params;
    return LogAction(std::move(add));
  }
  Result<LogAction> operator()(const LogRemove& remove) const {
    if (remove.model >= models.size()) return damaged("a model that there is not");
    params.erase(remove.request);
    return LogAction(remove);
  }
  Result<LogAction> operator()(PlainPrepare prepare) const {
    MSTAR_TRY(check_lane(prepare.lane, models));
    LogPrepare out{.lane = prepare.lane, .step = prepare.step, .rows = {}};
    for (PlainRow& each : prepare.rows) {
      MSTAR_TRY_ASSIGN(LogPrepare::Row row, whole(std::move(each), prepare.lane, *models[prepare.lane.model], params));
      out.rows.push_back(std::move(row));
    }
    return LogAction(std::move(out));
  }
  Result<LogAction> operator()(LogUndo undo) const {
    MSTAR_TRY(check_lane(undo.lane, models));
    return LogAction(std::move(undo));
  }
  template <class Action>
  Result<LogAction> operator()(Action action) const {
    return LogAction(std::move(action));
  }
};

}  // namespace

Result<std::string> encode(const StepMessage& message, std::span<const graph::CompiledModel* const> models) {
  MSTAR_TRY_ASSIGN(const PlainMessage travels, plain(message, models));
  wire::BasicWriter<LogFields> writer;
  writer(kLogVersion, wire::kVersion, travels);
  if (writer.error) return std::move(*writer.error);
  return std::move(writer.bytes);
}

Result<StepMessage> StepReader::decode(std::span<const std::byte> bytes) {
  wire::BasicReader<LogFields> reader(bytes);
  std::uint32_t log_version = 0, version = 0;
  reader(log_version, version);
  if (reader.failed() || log_version != kLogVersion || version != wire::kVersion)
    return internal_error("a message between ranks in step of version " + std::to_string(log_version) + "." +
                          std::to_string(version) + " where " + std::to_string(kLogVersion) + "." +
                          std::to_string(wire::kVersion) + " is spoken");
  PlainMessage travels;
  reader(travels);
  if (reader.failed() || !reader.at_end())
    return internal_error("a damaged message between ranks in step, of " + std::to_string(bytes.size()) + " bytes");
  if (auto* const end = std::get_if<StepEnd>(&travels)) return StepMessage(std::move(*end));
  if (auto* const key = std::get_if<StepKey>(&travels)) return StepMessage(std::move(*key));
  if (auto* const ack = std::get_if<PlainAck>(&travels))
    return StepMessage(Ack{ack->rank, ack->step, ack->ok ? ok_status() : Status(std::move(ack->error))});
  auto& entry = std::get<PlainEntry>(travels);
  MSTAR_TRY_ASSIGN(LogAction action, std::visit(
                                         [&](auto& each) {
                                           return ToLog{models_, params_}(std::move(each));
                                         },
                                         entry.action));
  LogEntry out{.number = entry.number, .action = std::move(action)};
  if (entry.has_state) out.state = entry.state;
  return StepMessage(std::move(out));
}

}  // namespace mstar::worker
