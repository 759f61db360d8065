// What every value must be, read from the declaration's flow and from the record of what was made; it shares no code
// with the state machine that it judges.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mstar/base/value.h"
#include "mstar/decl/walk_flow.h"
#include "mstar/graph/compiled.h"

namespace mstar::graph::sim {

// A value with a number in place of content.
class Tracked final : public DeviceBuffer {
 public:
  Tracked(std::int64_t id, std::int64_t& live) : id_(id), live_(live) { ++live_; }
  ~Tracked() override { --live_; }
  DType dtype() const override { return DType::i32; }
  Dims dims() const override { return {1}; }
  std::size_t size_bytes() const override { return 4; }
  Result<HostValue> to_host() const override { return HostValue(); }
  std::int64_t id() const { return id_; }

 private:
  std::int64_t id_;
  std::int64_t& live_;
};

using Ids = std::vector<std::int64_t>;
// 0 for a value that no component made.
Ids ids_of(const Values& values);
std::string print(const Ids& ids);
std::string print(const LoopPath& path);

class Oracle {
 public:
  explicit Oracle(const CompiledModel& model);

  void begin_pass(decl::PartitionRef partition, decl::WalkRef walk);
  void made(decl::PartitionRef partition, NodeIndex node, int output, const LoopPath& path, Ids ids);
  // Ids that input `i` of the node must hold in this iteration; false when the first source is outside of the walk.
  bool expected(decl::PartitionRef partition, NodeIndex node, std::size_t input, const LoopPath& path, Ids& out) const;
  // What a Keep port holds after the pass.
  Ids last_travelled(decl::PartitionRef partition, decl::PortRef port) const;
  // All that left by the port's travel rules in this pass, sorted.
  Ids all_travelled(decl::PartitionRef partition, decl::PortRef port) const;

 private:
  struct Record {
    LoopPath path;
    Ids ids;
  };
  using Log = std::map<std::pair<int, int>, std::vector<Record>>;  // (node, output) -> in order of completion
  struct Pass {
    decl::WalkRef walk;
    Log log;
  };
  // The value of (node, output) as seen at `depth`, where the first `depth` iterations are those of `prefix`.
  Ids value_at(const Pass& pass, int node, int output, int depth, const LoopPath& prefix) const;
  const decl::WalkFlow& flow(const Pass& pass) const { return flows_[pass.walk.value]; }

  std::vector<decl::WalkFlow> flows_;
  std::map<decl::PartitionRef, Pass> passes_;
};

}  // namespace mstar::graph::sim
