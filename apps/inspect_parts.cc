#include "inspect_parts.h"

#include <spdlog/fmt/fmt.h>

namespace mstar::apps {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string chunks_text(const decl::ChunkPolicy& policy) {
  return std::visit(
      Overloaded{
          [](const decl::FixedChunks& c) {
            return fmt::format("in chunks of {}{}", c.items, c.continue_after_done ? ", going on after the end" : "");
          },
          [](const decl::SlidingWindow& c) { return fmt::format("in windows of {}, {} apart", c.window, c.stride); },
          [](const decl::LeftContext& c) {
            std::string out = fmt::format("in chunks of {} with {} before", c.items, c.context);
            for (std::size_t i = 0; i < c.ramp.size(); ++i)
              out += (i ? ", " : ", the first ") + std::to_string(c.ramp[i]);
            return out;
          }},
      policy);
}

std::string travel_text(const decl::Travel& travel) {
  return std::visit(Overloaded{[](const decl::Keep&) { return std::string("kept for later walks"); },
                               [](const decl::Stream& t) { return "streams to " + t.to + " " + chunks_text(t.chunks); },
                               [](const decl::ToClient& t) {
                                 return "to the client as " + std::string(decl::modality_name(t.modality)) +
                                        (t.format.empty() ? "" : " (" + t.format + ")");
                               },
                               [](const decl::FromRequest& t) {
                                 return std::string(t.optional ? "from the request, optional" : "from the request");
                               },
                               [](const decl::FromClient& t) {
                                 return "from the client as " + std::string(decl::modality_name(t.modality)) + " " +
                                        chunks_text(t.chunks);
                               },
                               [](const decl::FromPlan&) { return std::string("from the plan"); }},
                    travel);
}

}  // namespace

std::string type_text(const decl::PortSpec& port) {
  std::string out(dtype_name(port.dtype));
  for (std::size_t i = 0; i < port.axes.size(); ++i) {
    out += (i ? ", " : "[") + port.axes[i].name;
    if (port.axes[i].size >= 0) out += "=" + std::to_string(port.axes[i].size);
  }
  return port.axes.empty() ? out : out + "]";
}

std::vector<std::string> travel_texts(const decl::PortSpec& port) {
  std::vector<std::string> out;
  for (const decl::Travel& each : port.travel) out.push_back(travel_text(each));
  return out;
}

std::string resource_kind(const decl::ResourceSpec& spec) {
  constexpr const char* kKinds[] = {"paged_kv",  "cross_kv",         "ring_kv",   "recurrent_state", "linear_attention",
                                    "attention", "ragged_attention", "positions", "sampler",         "latents"};
  static_assert(std::size(kKinds) == std::variant_size_v<decl::ResourceSpec>);
  return kKinds[spec.index()];
}

std::size_t bytes_per_request(const decl::ResourceSpec& spec, const resource::PoolLimits& limits) {
  // Pools grow in straight lines with the number of requests, beyond what they hold for none.
  resource::PoolLimits one = limits, two = limits;
  one.max_requests = 1;
  two.max_requests = 2;
  const std::size_t less = resource::planned_bytes(spec, one), more = resource::planned_bytes(spec, two);
  return more > less ? more - less : 0;
}

std::size_t bytes_per_snapshot(const decl::ResourceSpec& spec, const resource::PoolLimits& limits) {
  auto none = spec, one = spec;
  auto* const state = std::get_if<decl::RecurrentState>(&one);
  if (!state) return 0;
  state->snapshots = 1;
  std::get<decl::RecurrentState>(none).snapshots = 0;
  return resource::planned_bytes(one, limits) - resource::planned_bytes(none, limits);
}

std::size_t bytes_per_page(const decl::ResourceSpec& spec) {
  const auto* const kv = std::get_if<decl::PagedKv>(&spec);
  if (!kv) return 0;
  const std::int64_t width = kv->latent_dim > 0 ? kv->latent_dim : std::int64_t{2} * kv->kv_heads * kv->head_dim;
  return static_cast<std::size_t>(width * kv->layers * kv->page_tokens) * dtype_bytes(kv->dtype);
}

std::string stop_text(const decl::Decl& decl, const decl::Stop& stop) {
  if (const auto* token = std::get_if<decl::TokenStop>(&stop)) {
    std::string out = "stops when " + decl.at(token->token).name + " is";
    for (std::size_t i = 0; i < token->ids.size() && i < 4; ++i)
      out += (i ? ", " : " ") + std::to_string(token->ids[i]);
    return token->ids.size() > 4 ? out + fmt::format(" or one of {} more", token->ids.size() - 4) : out;
  }
  return std::holds_alternative<decl::ComponentSignal>(stop) ? "ends by a component's signal" : "ends at its cap";
}

std::string defaults_text(const decl::Surface& surface) {
  std::string out;
  for (const auto& [name, value] : surface.defaults.values()) {
    out += (out.empty() ? "" : ", ") + name + " ";
    if (const auto* number = std::get_if<double>(&value)) out += fmt::format("{:g}", *number);
    if (const auto* whole = std::get_if<std::int64_t>(&value)) out += std::to_string(*whole);
  }
  return out;
}

std::string port_names(const decl::Decl& decl, const std::vector<decl::PortRef>& ports) {
  std::string out;
  for (const decl::PortRef each : ports) out += (out.empty() ? "" : ", ") + decl.at(each).name;
  return out.empty() ? "nothing" : out;
}

}  // namespace mstar::apps
