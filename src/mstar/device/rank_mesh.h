// The groups of ranks that work in step: all of them, and the rows and columns of their mesh.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mstar/device/communicator.h"

namespace mstar {

// Rank sequence_rank * mesh.tensor + tensor_rank: with 2 x 2 ranks, 0 and 1 hold the parts of the weights and so do 2
// and 3; 0 and 2 have the parts of the rows and so do 1 and 3. Owns the communicators. Thread: any, but for what the
// ends say.
class RankMesh {
 public:
  // The ends of a new group of these ranks of the mesh, in their order; null those of other processes.
  using MakeGroup = std::function<Result<std::vector<std::unique_ptr<Communicator>>>(const std::vector<int>& ranks)>;

  RankMesh() = default;  // nothing is computed together
  // A group of all ranks and, where the mesh has two axes, one for each of its rows and columns. The errors of `make`.
  static Result<RankMesh> create(MeshSize size, const MakeGroup& make);
  // Of ranks that are threads of one process.
  static RankMesh of_threads(MeshSize size);
  // How many ranks each group has that create() makes, in that order.
  static std::vector<int> group_sizes(MeshSize size);

  bool empty() const { return all_.empty(); }
  MeshSize size() const { return size_; }
  // Null ends where there is nobody else.
  MeshEnds ends(int rank) const;
  // Ends every group. The first reason stays.
  void abort(const std::string& reason) const;
  // The first failure of any group.
  Status failure() const;

 private:
  using Ends = std::vector<std::unique_ptr<Communicator>>;
  MeshSize size_;
  Ends all_;                // by rank
  Ends tensor_, sequence_;  // by rank; empty where that axis is the whole or one rank
};

}  // namespace mstar
