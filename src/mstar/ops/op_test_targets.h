// Runs tests on every instruction set.
#pragma once

#include <gtest/gtest.h>

#include "mstar/ops/cpu_target.h"

namespace mstar::op_test {

// Runs a test's body with the kernels of every instruction set that the machine has.
template <class Body>
void on_every_target(Body body) {
  for (const CpuTarget target : cpu_targets()) {
    SCOPED_TRACE(cpu_target_name(target));
    force_cpu_target(target);
    body();
  }
  if (cpu_targets().empty()) body();
}

}  // namespace mstar::op_test
