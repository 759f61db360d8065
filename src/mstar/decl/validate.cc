#include "mstar/decl/decl.h"

namespace mstar::decl {

std::vector<std::string> Decl::validate() const { return {}; }

}  // namespace mstar::decl
