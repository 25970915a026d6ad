// phases.cuh: the order in which updates of contrastive learning sum both phases.
#pragma once

// The phase of k-block s of both, 0 the negative one, and its number within the phase. Phases
// alternate, and so does which of them comes first: sums of long minibatches stay near where they
// end, and what tensor cores cut off them, always towards 0, nearly cancels.
struct KBlockOfPhases {
  int phase, index;
  __device__ explicit KBlockOfPhases(int s) : phase((s + 1) / 2 % 2), index(s / 2) {}
};
