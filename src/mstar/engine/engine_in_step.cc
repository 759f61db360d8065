// What ranks that work in step compare, and how a step fails on all of them alike.
#include <algorithm>

#include "mstar/base/digest.h"
#include "mstar/engine/engine.h"
#include "mstar/engine/step.h"

namespace mstar::engine {
namespace {

constexpr std::size_t kComparedBytes = 256;  // of one value: tokens whole, the beginning of large ones

void add_progress(Digest& digest, const Progress& progress) {
  digest.add(static_cast<std::uint64_t>(progress.begun));
  digest.add(static_cast<std::uint64_t>(progress.label_start));
  digest.add(static_cast<std::uint64_t>(progress.done));
  digest.add(static_cast<std::uint64_t>(progress.num_parts));
}

// Texts of errors may name what is one rank's own.
void add_result(Digest& digest, const RowResult& result) {
  digest.add(result.request.value);
  digest.add(result.tag);
  digest.add(result.error ? 1 + static_cast<std::uint64_t>(result.error->code) : 0);
  digest.add(static_cast<std::uint64_t>(result.partial));
  add_progress(digest, result.progress);
  for (const std::string& loop : result.stopped_loops) digest.add(std::as_bytes(std::span(loop)));
  for (const Values& values : result.outputs) {
    digest.add(values.size());
    for (const Value& value : values) {
      const auto bytes = value.host.bytes();
      digest.add(bytes.subspan(0, std::min(bytes.size(), kComparedBytes)));
    }
  }
}

}  // namespace

std::uint64_t ResourceSet::digest(std::span<const decl::ResourceRef> refs) const {
  Digest digest;
  for (const decl::ResourceRef ref : refs)
    if (const resource::Resource* const each = at(ref)) digest.add(each->digest());
  return digest.value();
}

Status Engine::status(const Step& step) { return step.failure ? Status(*step.failure) : ok_status(); }

void Engine::fail(Step& step, const Error& error) {
  step.failure = error;
  for (RowResult& result : step.results) {
    result.error = error;
    result.stopped_loops.clear();
  }
}

std::uint64_t Engine::digest(const Prepared& prepared) const {
  Digest digest;
  if (prepared.step) {
    const Step& step = *prepared.step;
    digest.add(static_cast<std::uint64_t>(step.own_slot));
    digest.add(step.bucket ? 1 + static_cast<std::uint64_t>(*step.bucket) : 0);
    for (const CapturedGraph* const each : step.regions) digest.add(each != nullptr);
    digest.add(step.rows.rows.size());  // with those that pad: all stand in the sums
    digest.add(static_cast<std::uint64_t>(step.rows.packed));
    for (int r = 0; r < step.num_rows(); ++r) {
      const resource::StepRow& row = step.rows.rows[static_cast<std::size_t>(r)];
      digest.add(row.request.value);
      digest.add(step.row(r).tag);
      digest.add(static_cast<std::uint64_t>(row.demand.label));
      digest.add(static_cast<std::uint64_t>(row.demand.tokens));
      digest.add(static_cast<std::uint64_t>(row.demand.recomputed));
      digest.add(static_cast<std::uint64_t>(row.demand.ends));
    }
  }
  digest.add(prepared.waiting.size());
  for (const RowInputs& row : prepared.waiting) {
    digest.add(row.tag);
    add_progress(digest, row.progress);
  }
  for (const RowResult& result : prepared.failed) add_result(digest, result);
  return digest.value();
}

std::uint64_t Engine::digest(const std::vector<RowResult>& results) {
  Digest digest;
  for (const RowResult& result : results) add_result(digest, result);
  return digest.value();
}

}  // namespace mstar::engine
