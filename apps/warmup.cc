#include "warmup.h"

#include <algorithm>

#include "media_file.h"
#include "waiting_sink.h"

namespace mstar::apps {
namespace {

Result<decl::ApiRequest> to_request(const Frontend& frontend, const WarmupRequest& from) {
  decl::ApiRequest out;
  out.route = decl::Route::generate;
  out.model = from.model.empty() ? frontend.models().front().name : from.model;
  out.text = from.text;
  out.output_modalities = from.output_modalities;
  if (out.output_modalities.empty()) out.output_modalities = {decl::Modality::text};
  out.fields = from.model_kwargs;
  for (const std::string& file : from.files) {
    MSTAR_TRY_ASSIGN(decl::Media media, read_media(file));
    out.media.push_back(std::move(media));
  }
  return out;
}

Status run_copies(Frontend& frontend, decl::ApiRequest request, int num_copies) {
  Status first = ok_status();
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < num_copies; ++i) {
    auto sink = std::make_shared<WaitingSink>();
    request.replica = static_cast<std::uint32_t>(i);
    auto id = frontend.submit(request, sink);
    if (id) sinks.push_back(std::move(sink));
    if (!id && first.ok()) first = std::move(id.error());
  }
  for (const auto& sink : sinks) {
    auto end = sink->wait();
    if (!end && first.ok()) first = std::move(end.error());
  }
  return first;
}

}  // namespace

Status run_warmup(Frontend& frontend, const std::vector<WarmupRequest>& requests, int num_replicas) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::string where = "warmup request " + std::to_string(i + 1);
    auto request = to_request(frontend, requests[i]);
    if (!request) return std::move(request.error()).in(where);
    Status ran = run_copies(frontend, *request, 1);
    const int num_copies = std::max(requests[i].concurrency, num_replicas);
    if (ran.ok() && num_copies > 1) ran = run_copies(frontend, *request, num_copies);
    if (!ran) return std::move(ran.error()).in(where);
  }
  return ok_status();
}

}  // namespace mstar::apps
