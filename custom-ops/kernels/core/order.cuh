// order.cuh: programmatic dependent launch: kernels that start while the previous one still runs
// (`Launch::overlapped`).
//
//   wait_for_previous   returns when the previous launch has ended and its writes are visible. An
//                       overlapped kernel calls it in every thread before it reads or writes what
//                       an earlier launch touches, weights that are older than the previous launch
//                       as a rule included: the caller may put a launch that writes them right
//                       before this one. Before it a kernel may only ask for memory to be brought
//                       into the second-level cache, through which all writes go. In kernels that
//                       are not overlapped it returns at once
//   launch_dependents   from here on the next launch may begin, up to its own wait. Called after
//                       wait_for_previous, so that whatever ran before this kernel has ended for
//                       the next one too
//
// Below capability 9.0 both do nothing, and launches never overlap.
#pragma once

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
