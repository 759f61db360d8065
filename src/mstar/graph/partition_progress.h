// The conductor's side of one partition of one request: turns a plan's decision into start messages and fragment
// reports into what the plan may look at. Thread: the conductor's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mstar/graph/placement.h"
#include "mstar/graph/signals.h"

namespace mstar::graph {

class PartitionProgress {
 public:
  // `given`: the FromRequest ports that the request has values for.
  PartitionProgress(std::shared_ptr<const PlacedModel> placed, decl::PartitionRef partition,
                    std::set<decl::PortRef> given);

  // One StartPass per worker that runs a part of the walk. Fails (internal: a plan is wrong) for a walk of another
  // partition, an input that nothing gives, an unknown loop, a cap < 1, or while a pass runs.
  Result<std::vector<std::pair<WorkerId, StartPass>>> begin(const decl::NextWalk& next);
  // True when this was the pass's last fragment; a cancelled pass ends the same way, when all its fragments have said
  // so. Reports of other passes or workers, and repeated ones, are ignored.
  bool on_fragment(WorkerId worker, const FragmentDone& done);

  bool running() const { return !waiting_.empty(); }
  std::int32_t pass() const { return pass_; }
  int num_walks() const { return num_walks_; }          // ended so far
  decl::WalkRef finished() const { return finished_; }  // the last ended walk
  std::int64_t num_tokens() const { return num_tokens_; }
  bool final_consumed() const { return final_consumed_; }  // the partition is done: a stream that it reads has ended
  bool end_partition() const { return end_partition_; }    // a stop at prefill: the partition is done
  bool budget_spent() const { return budget_spent_; }      // that stop was one of the token budget
  const std::map<std::string, decl::LoopEnd>& loop_ends() const { return loop_ends_; }  // of the last ended walk
  // Items that this partition's passes produced, by stream port; of complete passes.
  std::int64_t produced(decl::PortRef port) const;
  std::int64_t consumed(decl::PortRef port) const;
  // All stream ports that this partition may write, with their consumers.
  const std::vector<std::pair<decl::PortRef, decl::PartitionRef>>& out_streams() const { return out_streams_; }

 private:
  std::shared_ptr<const PlacedModel> placed_;
  decl::PartitionRef partition_;
  std::vector<std::pair<decl::PortRef, decl::PartitionRef>> out_streams_;
  std::map<decl::PortRef, std::int32_t> kept_;  // pass that last wrote each
  std::map<decl::PortRef, std::int64_t> produced_;
  std::map<decl::PortRef, std::int64_t> consumed_;
  std::map<std::string, decl::LoopEnd> loop_ends_;
  std::map<WorkerId, std::vector<decl::PortRef>> forget_;  // not told yet
  std::vector<WorkerId> waiting_;                          // few, each once
  decl::WalkRef walk_;
  decl::WalkRef finished_;
  std::int32_t pass_ = 0;
  int num_walks_ = 0;
  std::int64_t num_tokens_ = 0;
  bool final_consumed_ = false;
  bool end_partition_ = false;
  bool budget_spent_ = false;
};

}  // namespace mstar::graph
