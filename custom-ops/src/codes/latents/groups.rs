//! Groups of latents, for losses of nested prefixes of them.
use candle::Result;

/// Groups of latents at most.
pub const MOST_GROUPS: usize = 16;

/// Checks that `ends` are those of groups of `n` latents: ascending, 1 to [`MOST_GROUPS`] of them,
/// the last one `n`.
pub(super) fn check_groups(op: &str, ends: &[usize], n: usize) -> Result<()> {
    if ends.is_empty()
        || ends.len() > MOST_GROUPS
        || ends.last() != Some(&n)
        || !ends.is_sorted_by(|a, b| a < b)
    {
        candle::bail!(
            "{op}: groups must be 1 to {MOST_GROUPS} ascending ends, the last {n}, the number of latents, got {ends:?}"
        )
    }
    Ok(())
}

/// The group of a latent.
pub(super) fn group_of(ends: &[usize], latent: usize) -> usize {
    ends.iter().take_while(|&&end| end <= latent).count()
}

/// `Groups` of kernels/codes/latents.cu.
#[cfg(feature = "cuda")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    n: u32,
    at: [u32; MOST_GROUPS],
}
// SAFETY: seventeen numbers of 32 bits, the same layout as the kernel's struct.
#[cfg(feature = "cuda")]
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Groups {}

#[cfg(feature = "cuda")]
impl Groups {
    /// No groups.
    pub(super) const NONE: Self = Self { n: 0, at: [0; MOST_GROUPS] };

    /// Of ends that were checked.
    pub(super) fn of(ends: &[usize]) -> Self {
        let mut at = [0; MOST_GROUPS];
        at.iter_mut().zip(ends).for_each(|(at, &end)| *at = end as u32);
        Self { n: ends.len() as u32, at }
    }
}
