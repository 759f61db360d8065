// The words for the pieces of a declaration. Pure.
#pragma once

#include <string>
#include <vector>

#include "mstar/decl/decl.h"
#include "mstar/resource/resource.h"

namespace mstar::apps {

// "f32[positions=1500, dim=512]"; a size that varies shows its name alone.
std::string type_text(const decl::PortSpec& port);
// "kept", "streams to codec in chunks of 25 with 25 before", "to the client as text (segment)", ...; one for each way.
std::vector<std::string> travel_texts(const decl::PortSpec& port);
// "paged_kv", "cross_kv", ...
std::string resource_kind(const decl::ResourceSpec& spec);
// What one more request takes of the pool, in bytes; 0 for kinds without device memory.
std::size_t bytes_per_request(const decl::ResourceSpec& spec, const resource::PoolLimits& limits);
// Of one more snapshot of a recurrent state, else 0.
std::size_t bytes_per_snapshot(const decl::ResourceSpec& spec, const resource::PoolLimits& limits);
// Of one page of a paged KV, else 0.
std::size_t bytes_per_page(const decl::ResourceSpec& spec);
// "stops at a token of 2 ids", "ends at its cap", "ends by a component's signal".
std::string stop_text(const decl::Decl& decl, const decl::Stop& stop);
// "temperature 0.7, top_p 0.8": its fields' defaults. Empty: it has none of its own.
std::string defaults_text(const decl::Surface& surface);
// "a, b" of ports.
std::string port_names(const decl::Decl& decl, const std::vector<decl::PortRef>& ports);

}  // namespace mstar::apps
