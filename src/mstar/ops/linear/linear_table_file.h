// A table of linear_tune's as a file, for a machine or a library that the committed table is not for.
#pragma once

#include <cstddef>
#include <istream>
#include <vector>

#include "mstar/ops/linear/linear_table.h"

namespace mstar {

struct LinearTableFile {
  std::vector<LinearChoice> choices;
  std::size_t version = 0;  // of the cuBLASLt that it names algorithms of; 0: it does not say
  int num_refused = 0;      // entries that are none, or that no kernel could run
};

// Any bytes; lines that are no entries are passed over.
LinearTableFile read_linear_table(std::istream& from);

}  // namespace mstar
