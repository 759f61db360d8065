#include "mstar/decl/decl.h"

#include <algorithm>

namespace mstar::decl {
namespace {

constexpr std::string_view kModalities[] = {"text",   "image",  "video",  "audio",
                                            "action", "scalar", "tensor", "video_frame"};
constexpr std::string_view kRoutes[] = {"generate",           "chat_completions",   "completions",
                                        "responses",          "embeddings",         "audio_transcriptions",
                                        "audio_translations", "audio_speech",       "images_generations",
                                        "images_edits",       "videos_generations", "realtime"};

class EachChunk final : public Plan {
 public:
  explicit EachChunk(WalkRef walk) : walk_(walk) {}
  Result<Decision> next(const PlanView&) override { return Decision(NextWalk{.walk = walk_}); }

 private:
  WalkRef walk_;
};

class InOrder final : public Plan {
 public:
  explicit InOrder(std::vector<WalkRef> walks) : walks_(std::move(walks)) {}
  Result<Decision> next(const PlanView&) override {
    if (index_ == walks_.size()) return Decision(Done{});
    return Decision(NextWalk{.walk = walks_[index_++]});
  }

 private:
  std::vector<WalkRef> walks_;
  std::size_t index_ = 0;
};

template <class Ref, class List>
Ref find_named(const List& list, std::string_view name, std::string_view (*name_of)(const typename List::value_type&)) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (name_of(list[i]) == name) return Ref(static_cast<std::uint16_t>(i));
  return {};
}

}  // namespace

std::string_view modality_name(Modality modality) { return kModalities[static_cast<int>(modality)]; }
std::optional<Modality> modality_from_name(std::string_view name) {
  const auto* it = std::find(std::begin(kModalities), std::end(kModalities), name);
  if (it == std::end(kModalities)) return std::nullopt;
  return static_cast<Modality>(it - std::begin(kModalities));
}
std::string_view route_name(Route route) { return kRoutes[static_cast<int>(route)]; }

const std::string& resource_name(const ResourceSpec& spec) {
  return std::visit([](const auto& each) -> const std::string& { return each.name; }, spec);
}
const std::vector<std::string>* labels_of(const ResourceSpec& spec) {
  if (const auto* kv = std::get_if<PagedKv>(&spec)) return &kv->labels;
  if (const auto* state = std::get_if<RecurrentState>(&spec)) return &state->labels;
  return nullptr;
}
const std::string& Component::name() const {
  return std::visit([](const auto& each) -> const std::string& { return each.name; }, spec);
}

MakePlan each_chunk(WalkRef walk) {
  return [walk](const RequestParams&) { return std::make_unique<EachChunk>(walk); };
}
MakePlan in_order(std::vector<WalkRef> walks) {
  return [walks = std::move(walks)](const RequestParams&) { return std::make_unique<InOrder>(walks); };
}

PortRef Decl::port(PortSpec spec) {
  ports_.push_back(std::move(spec));
  return PortRef(static_cast<std::uint16_t>(ports_.size() - 1));
}
ResourceRef Decl::resource(ResourceSpec spec) {
  resources_.push_back(std::move(spec));
  return ResourceRef(static_cast<std::uint16_t>(resources_.size() - 1));
}
ComponentRef Decl::component(DeviceComponent spec) {
  components_.push_back({std::move(spec)});
  return ComponentRef(static_cast<std::uint16_t>(components_.size() - 1));
}
ComponentRef Decl::component(HostComponent spec) {
  components_.push_back({std::move(spec)});
  return ComponentRef(static_cast<std::uint16_t>(components_.size() - 1));
}
WalkRef Decl::walk(std::string name, Section root) {
  walks_.push_back({std::move(name), std::move(root)});
  return WalkRef(static_cast<std::uint16_t>(walks_.size() - 1));
}
PartitionRef Decl::partition(PartitionSpec spec) {
  partitions_.push_back(std::move(spec));
  return PartitionRef(static_cast<std::uint16_t>(partitions_.size() - 1));
}

PortRef Decl::find_port(std::string_view name) const {
  return find_named<PortRef>(
      ports_, name, +[](const PortSpec& p) -> std::string_view { return p.name; });
}
WalkRef Decl::find_walk(std::string_view name) const {
  return find_named<WalkRef>(
      walks_, name, +[](const Walk& w) -> std::string_view { return w.name; });
}
ComponentRef Decl::find_component(std::string_view name) const {
  return find_named<ComponentRef>(
      components_, name, +[](const Component& c) -> std::string_view { return c.name(); });
}
PartitionRef Decl::partition_of(WalkRef walk) const {
  if (partitions_.empty() && walk.value < walks_.size()) return PartitionRef(0);
  for (std::size_t i = 0; i < partitions_.size(); ++i)
    for (const WalkRef each : partitions_[i].walks)
      if (each == walk) return PartitionRef(static_cast<std::uint16_t>(i));
  return {};
}
const Surface* Decl::surface_for(Route route) const {
  for (const Surface& each : surfaces_)
    if (each.route == route) return &each;
  return nullptr;
}

}  // namespace mstar::decl
