#include "mstar/device/rank_mesh.h"

#include <utility>

#include "mstar/base/check.h"
#include "mstar/device/cpu/thread_communicator.h"

namespace mstar {

Result<RankMesh> RankMesh::create(MeshSize size, const MakeGroup& make) {
  MSTAR_CHECK(size.tensor >= 1 && size.sequence >= 1, "a mesh without ranks");
  RankMesh out;
  out.size_ = size;
  std::vector<int> everyone;
  for (int rank = 0; rank < size.num_ranks(); ++rank) everyone.push_back(rank);
  MSTAR_TRY_ASSIGN(out.all_, make(everyone));
  if (size.tensor == 1 || size.sequence == 1) return out;
  // `count` groups whose ranks lie `step` apart.
  const auto make_axis = [&](Ends& ends, int count, int length, int apart, int step) -> Status {
    ends.resize(everyone.size());
    for (int group = 0; group < count; ++group) {
      std::vector<int> ranks;
      for (int i = 0; i < length; ++i) ranks.push_back(group * apart + i * step);
      MSTAR_TRY_ASSIGN(Ends made, make(ranks));
      for (int i = 0; i < length; ++i)
        ends[static_cast<std::size_t>(ranks[static_cast<std::size_t>(i)])] =
            std::move(made[static_cast<std::size_t>(i)]);
    }
    return ok_status();
  };
  MSTAR_TRY(make_axis(out.tensor_, size.sequence, size.tensor, size.tensor, 1));
  MSTAR_TRY(make_axis(out.sequence_, size.tensor, size.sequence, 1, size.tensor));
  return out;
}

RankMesh RankMesh::of_threads(MeshSize size) {
  auto made = create(size, [](const std::vector<int>& ranks) -> Result<Ends> {
    return make_thread_group(static_cast<int>(ranks.size()));
  });
  MSTAR_CHECK(made, "a group of threads cannot fail");
  return std::move(*made);
}

std::vector<int> RankMesh::group_sizes(MeshSize size) {
  std::vector<int> out = {size.num_ranks()};
  if (size.tensor == 1 || size.sequence == 1) return out;
  out.insert(out.end(), static_cast<std::size_t>(size.sequence), size.tensor);
  out.insert(out.end(), static_cast<std::size_t>(size.tensor), size.sequence);
  return out;
}

MeshEnds RankMesh::ends(int rank) const {
  if (empty() || size_.num_ranks() == 1) return {};
  const auto at = static_cast<std::size_t>(rank);
  Communicator* const all = all_[at].get();
  if (size_.sequence == 1) return {all, all, nullptr};
  if (size_.tensor == 1) return {all, nullptr, all};
  return {all, tensor_[at].get(), sequence_[at].get()};
}

void RankMesh::abort(const std::string& reason) const {
  for (const Ends* const ends : {&all_, &tensor_, &sequence_})
    for (const auto& each : *ends)
      if (each) each->abort(reason);
}

Status RankMesh::failure() const {
  for (const Ends* const ends : {&all_, &tensor_, &sequence_})
    for (const auto& each : *ends)
      if (each) MSTAR_TRY(each->failure());
  return ok_status();
}

}  // namespace mstar
