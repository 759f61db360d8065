// Checkpoint names -> homes in the model. First match wins; a weight with no home, or a home with no weight, is an error.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace mstar::decl {

// '*' matches any run of characters without a separator rule; the same captures fill '*' in `to`, in order.
struct Rename {
  std::string from;
  std::string to;
};
struct Fuse {  // several tensors, stacked along axis 0 in this order
  std::vector<std::string> from;
  std::string to;
};
struct Split {  // axis 0 cut into equal parts
  std::string from;
  std::vector<std::string> to;
};
struct Shard {  // which axis is cut over tensor-parallel ranks
  std::string name;
  int axis = 0;
};
struct Drop {
  std::string from;
};
using WeightRule = std::variant<Rename, Fuse, Split, Shard, Drop>;

}  // namespace mstar::decl
