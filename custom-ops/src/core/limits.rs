//! The limits of a GPU for a launch.

/// The limits of a GPU that decide which form of a kernel it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    /// The capability whose code this GPU runs, ten times major plus minor: the largest one built
    /// that is not above its own.
    pub built: u32,
    /// Its own capability, in the same form.
    pub capability: u32,
    /// Most bytes of shared memory of a block, once asked for.
    pub shared_bytes: usize,
    pub multiprocessors: usize,
}

impl Limits {
    /// Whether blocks can form clusters that see each other's shared memory.
    pub(crate) fn has_clusters(&self) -> bool {
        self.built >= 90
    }

    /// Whether tensor cores make TF32 products more than three times as fast as f32 ones are made
    /// without: on the data-centre GPUs, A100 to B300. Those of 8.6, 8.9 and 12.x make them once to
    /// twice as fast.
    pub(crate) fn has_fast_tf32(&self) -> bool {
        matches!(self.capability, 80 | 90 | 100 | 103)
    }

    /// Bytes of [`Gpu::with_room`](crate::core::cuda::Gpu::with_room).
    pub(crate) const ROOM: usize = 192 << 20;

    /// Whether kernels of `kernels/sm_90a` run: they are machine code for 9.0 alone.
    pub(crate) fn has_warpgroup_products(&self) -> bool {
        (self.built, self.capability) == (90, 90)
    }
}

/// Of the built capabilities the one whose code a GPU of capability `of_gpu` runs: machine code of
/// its own major version or, for a newer GPU, what the driver makes of the PTX.
pub(crate) fn code_for(built: &[u32], of_gpu: u32) -> Option<u32> {
    built.iter().copied().filter(|&capability| capability <= of_gpu).max()
}

/// GPUs of each capability by NVIDIA's tables ("CUDA C++ Programming Guide", technical
/// specifications): what the driver says of them, without one at hand.
#[cfg(test)]
pub(crate) mod gpus {
    use super::Limits;

    const fn gpu(built: u32, kib: usize, multiprocessors: usize) -> Limits {
        Limits { built, capability: built, shared_bytes: kib * 1024, multiprocessors }
    }

    /// A100, RTX 3090, RTX 4090, H200, B200, RTX 5090 and RTX 5060.
    pub(crate) const ALL: [Limits; 7] = [
        gpu(80, 163, 108),
        gpu(86, 99, 82),
        gpu(89, 99, 128),
        gpu(90, 227, 132),
        gpu(100, 227, 148),
        gpu(120, 99, 170),
        gpu(120, 99, 30),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_centre_gpus_have_fast_tf32_products_and_no_others() {
        let fast = |capability| Limits { capability, ..gpus::ALL[0] }.has_fast_tf32();
        assert_eq!([80, 90, 100, 103].map(fast), [true; 4]);
        assert_eq!([86, 87, 89, 110, 120, 121].map(fast), [false; 6]);
    }

    #[test]
    fn a_gpu_runs_the_newest_code_that_is_not_newer_than_itself() {
        let built = [80, 86, 90];
        let got = [75, 80, 86, 89, 90, 100, 120].map(|gpu| code_for(&built, gpu));
        assert_eq!(got, [None, Some(80), Some(86), Some(86), Some(90), Some(90), Some(90)]);
    }
}
