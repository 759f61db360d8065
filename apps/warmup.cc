#include "warmup.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "media_file.h"
#include "mstar/base/log.h"
#include "waiting_sink.h"

namespace mstar::apps {
namespace {

constexpr std::chrono::milliseconds kTryAgain{5};
constexpr int kMaxTries = 6000;

std::string name_of(std::size_t request) { return "warmup-" + std::to_string(request); }
std::string name_of(std::size_t request, std::string_view copy) { return name_of(request) + "." + std::string(copy); }

// On each replica one at least.
std::size_t num_copies(int concurrency, const std::vector<std::size_t>& counts) {
  return std::max(static_cast<std::size_t>(concurrency), *std::max_element(counts.begin(), counts.end()));
}

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

// Replicas of each group of the model, which may be named by an alias.
std::vector<std::size_t> counts_of(const Frontend& frontend, const std::string& model, const ReplicaCounts& replicas) {
  for (const ServedModel& each : frontend.models()) {
    const bool is_alias = std::find(each.aliases.begin(), each.aliases.end(), model) != each.aliases.end();
    if (each.name != model && !is_alias) continue;
    const auto found = replicas.find(each.name);
    if (found != replicas.end() && !found->second.empty()) return found->second;
  }
  return {1};
}

// Copies that were submitted, oldest first, and the first failure among those that ended.
class Copies {
 public:
  // Of request `index` of the list.
  Copies(Frontend& frontend, std::size_t index) : frontend_(frontend), index_(index) {}

  void submit(const decl::ApiRequest& request, const std::string& name) {
    for (int num_tries = 0;; ++num_tries) {
      auto sink = std::make_shared<WaitingSink>();
      const auto id = frontend_.submit(request, sink);
      if (id) {
        log_debug("{} is request {}", name, id->value);
        running_.emplace_back(name, std::move(sink));
        return;
      }
      if (id.error().code != Code::exhausted || num_tries == kMaxTries) return note(name, id.error());
      // No place even in the queue. When one of these ends there is, a moment later.
      if (running_.empty())
        std::this_thread::sleep_for(kTryAgain);
      else
        wait_for_oldest();
    }
  }

  Status finish() {
    while (!running_.empty()) wait_for_oldest();
    return std::move(first_);
  }

 private:
  void note(const std::string& name, Error error) {
    if (first_.ok()) first_ = std::move(error).in("warmup request " + std::to_string(index_ + 1) + " (" + name + ")");
  }
  void wait_for_oldest() {
    const auto [name, sink] = std::move(running_.front());
    running_.pop_front();
    if (auto end = sink->wait(); !end) note(name, std::move(end.error()));
  }

  Frontend& frontend_;
  const std::size_t index_;
  std::deque<std::pair<std::string, std::shared_ptr<WaitingSink>>> running_;
  Status first_ = ok_status();
};

Status run_one(Frontend& frontend, std::size_t index, decl::ApiRequest request, int concurrency,
               const std::vector<std::size_t>& counts) {
  const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end());
  if (*fewest != *most) {
    Copies solo(frontend, index);
    request.replica = 0;
    solo.submit(request, name_of(index, "solo"));
    MSTAR_TRY(solo.finish());
  }
  Copies copies(frontend, index);
  for (std::size_t i = 0; i < num_copies(concurrency, counts); ++i) {
    request.replica = static_cast<std::uint32_t>(i);
    copies.submit(request, name_of(index, std::to_string(i)));
  }
  return copies.finish();
}

}  // namespace

Status check_warmup(const std::vector<WarmupRequest>& requests) {
  for (std::size_t i = 0; i < requests.size(); ++i)
    for (const std::string& file : requests[i].files)
      if (auto media = read_media(file); !media)
        return std::move(media.error()).in("warmup_requests[" + std::to_string(i) + "]");
  return ok_status();
}

Status run_warmup(Frontend& frontend, const std::vector<WarmupRequest>& requests, const ReplicaCounts& replicas) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto request = to_request(frontend, requests[i]);
    if (!request) return std::move(request.error()).in("warmup_requests[" + std::to_string(i) + "]");
    const std::vector<std::size_t> counts = counts_of(frontend, request->model, replicas);
    MSTAR_TRY(run_one(frontend, i, std::move(*request), requests[i].concurrency, counts));
  }
  return ok_status();
}

Result<std::vector<conductor::WarmupCall>> warmup_calls(const Frontend& frontend,
                                                        const std::vector<WarmupRequest>& requests,
                                                        const ReplicaCounts& replicas) {
  std::vector<conductor::WarmupCall> out;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto request = to_request(frontend, requests[i]);
    if (!request) return std::move(request.error()).in("warmup_requests[" + std::to_string(i) + "]");
    const std::size_t copies = num_copies(requests[i].concurrency, counts_of(frontend, request->model, replicas));
    out.push_back({name_of(i), std::move(*request), static_cast<std::uint32_t>(copies)});
  }
  return out;
}

}  // namespace mstar::apps
