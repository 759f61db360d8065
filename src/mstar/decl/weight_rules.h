// Checkpoint names -> homes in the model. First match wins; a weight that no rule names keeps its name as its home. A
// weight with no home, or a home with no weight, is an error.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace mstar::decl {

// '*' matches any run of characters, separators too, as short as it can; the same captures fill '*' in `to`, in order.
struct Rename {
  std::string from;
  std::string to;
};
struct Fuse {  // several tensors, stacked along axis 0 in this order
  std::vector<std::string> from;
  std::string to;
  bool zero_fill = false;  // a missing part is zeros (Whisper's key projection has no bias); not all may be missing
};
struct Split {  // axis 0 cut into equal parts
  std::string from;
  std::vector<std::string> to;
};
struct Drop {
  std::string from;
};
using WeightRule = std::variant<Rename, Fuse, Split, Drop>;

}  // namespace mstar::decl
