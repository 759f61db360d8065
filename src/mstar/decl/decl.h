// Decl: everything that a model says about itself. Pure data; the runtime compiles it once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/decl/component.h"
#include "mstar/decl/emitter.h"
#include "mstar/decl/plan.h"
#include "mstar/decl/port.h"
#include "mstar/decl/resource.h"
#include "mstar/decl/split.h"
#include "mstar/decl/walk.h"
#include "mstar/decl/weight_rules.h"

namespace mstar::decl {

// One API route that the model serves.
struct Surface {
  Route route = Route::generate;
  // Names the ports' values, or an invalid_request that names the field. Thread: any. Pure.
  std::function<Result<Intake>(const ApiRequest&)> intake = {};
  // Turns a ToClient value into the chunk's value and metadata; empty: the value as it is.
  std::function<Result<Chunk>(PortRef, const HostValue&, const RequestParams&)> emit = {};
  // In place of emit, where chunks depend on what came before.
  MakeEmitter emitter = {};
  // Requests that are answered in parts; empty: none is.
  MakeSplitter split = {};
  // What fields are that a request leaves out, where the model has a say in it; for people, intake() knows.
  Params defaults = {};
  // A request to try, for people: /generate's JSON without "model". Empty: one with "text".
  std::string example = {};
};

// What of a text model's tokens clients may ask for without running it. Thread: any. Pure.
struct TextCodec {
  // The prompt that the intake of request.route makes of the request (chat_completions, completions). Errors as there.
  std::function<Result<std::vector<std::int32_t>>(const ApiRequest&)> tokenize = {};
  // invalid_request with field "tokens" for an id that is none of the model's.
  std::function<Result<std::string>(std::span<const std::int32_t>)> detokenize = {};
  std::int64_t context_tokens = 0;  // prompt and answer together
};

struct Component {
  std::variant<DeviceComponent, HostComponent> spec;
  const std::string& name() const;
  bool on_host() const { return std::holds_alternative<HostComponent>(spec); }
  const DeviceComponent& device() const { return std::get<DeviceComponent>(spec); }
  const HostComponent& host() const { return std::get<HostComponent>(spec); }
};

class Decl {
 public:
  explicit Decl(std::string name) : name_(std::move(name)) {}

  PortRef port(PortSpec spec);
  ResourceRef resource(ResourceSpec spec);
  ComponentRef component(DeviceComponent spec);
  ComponentRef component(HostComponent spec);
  WalkRef walk(std::string name, Section root);
  // A walk belongs to exactly one partition. A Decl with no partition call gets one, "default", of all walks in order.
  PartitionRef partition(PartitionSpec spec);
  void surface(Surface s) { surfaces_.push_back(std::move(s)); }
  void text_codec(TextCodec codec) { text_codec_ = std::move(codec); }
  void weights(std::vector<WeightRule> rules) { weight_rules_ = std::move(rules); }
  void alias(std::string name) { aliases_.push_back(std::move(name)); }

  const std::string& name() const { return name_; }
  const std::vector<PortSpec>& ports() const { return ports_; }
  const std::vector<ResourceSpec>& resources() const { return resources_; }
  const std::vector<Component>& components() const { return components_; }
  const std::vector<Walk>& walks() const { return walks_; }
  const std::vector<PartitionSpec>& partitions() const { return partitions_; }
  const std::vector<Surface>& surfaces() const { return surfaces_; }
  const std::optional<TextCodec>& text_codec() const { return text_codec_; }  // models of text have one
  const std::vector<WeightRule>& weight_rules() const { return weight_rules_; }
  const std::vector<std::string>& aliases() const { return aliases_; }

  const PortSpec& at(PortRef ref) const { return ports_[ref.value]; }
  const ResourceSpec& at(ResourceRef ref) const { return resources_[ref.value]; }
  const Component& at(ComponentRef ref) const { return components_[ref.value]; }
  const Walk& at(WalkRef ref) const { return walks_[ref.value]; }
  const PartitionSpec& at(PartitionRef ref) const { return partitions_[ref.value]; }
  // Invalid when no port, walk or component has the name.
  PortRef find_port(std::string_view name) const;
  WalkRef find_walk(std::string_view name) const;
  ComponentRef find_component(std::string_view name) const;
  // The default partition of a Decl without partition calls is 0.
  PartitionRef partition_of(WalkRef walk) const;
  const Surface* surface_for(Route route) const;

  // All faults at once, each as one sentence; empty when the declaration can be compiled.
  std::vector<std::string> validate() const;

 private:
  std::string name_;
  std::vector<PortSpec> ports_;
  std::vector<ResourceSpec> resources_;
  std::vector<Component> components_;
  std::vector<Walk> walks_;
  std::vector<PartitionSpec> partitions_;
  std::vector<Surface> surfaces_;
  std::optional<TextCodec> text_codec_;
  std::vector<WeightRule> weight_rules_;
  std::vector<std::string> aliases_;
};

// Calls visit(const Run&) for every Run of a section, outermost first, in order.
template <class Visit>
void for_each_run(const Section& section, Visit&& visit) {
  struct Walker {
    Visit& visit;
    void list(const std::vector<Section>& sections) const {
      for (const Section& each : sections) (*this)(each);
    }
    void operator()(const Section& s) const {
      if (const auto* run = std::get_if<Run>(&s)) visit(*run);
      if (const auto* seq = std::get_if<Sequential>(&s)) list(seq->sections);
      if (const auto* par = std::get_if<Parallel>(&s)) list(par->sections);
      if (const auto* loop = std::get_if<Loop>(&s)) list(loop->body);
    }
  };
  Walker{visit}(section);
}

}  // namespace mstar::decl
