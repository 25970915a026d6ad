//! The form whose directions are in the registers and the shared memory of a block, or of the
//! blocks of a cluster: `kernels/codes/pursuit_split.cuh`.
use crate::core::limits::Limits;

/// Of a compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::codes::pursuit) struct Split {
    /// The most atoms.
    pub atoms: usize,
    /// Warps of a block, and blocks that share a signal.
    pub team: usize,
    pub cluster: usize,
    /// Shared memory of a block.
    pub bytes: usize,
}

impl Split {
    /// Warps of a block and blocks of a cluster, fewest atoms first: 256 atoms a warp.
    const COMPILED: [(usize, usize); 7] = [(1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (4, 4), (4, 8)];
    /// Atoms of a lane, directions in registers and most steps: `SLOTS`, `HELD` and
    /// `MOST_SPLIT_STEPS` there.
    pub(super) const SLOTS: usize = 8;
    const HELD: usize = 16;
    pub(super) const MOST_STEPS: usize = 64;

    /// For `n` atoms and `s` steps; none where no kernel has so many, or a block of this GPU too
    /// little shared memory.
    pub(super) fn of(limits: Limits, n: usize, s: usize) -> Option<Self> {
        let kernels = Self::COMPILED.map(|(team, cluster)| Self {
            atoms: team * cluster * 32 * Self::SLOTS,
            team,
            cluster,
            bytes: Self::shared(team, cluster, s),
        });
        let fits = |split: &Self| {
            n <= split.atoms
                && s <= Self::MOST_STEPS
                && split.bytes <= limits.shared_bytes
                && (split.cluster == 1 || limits.has_clusters())
        };
        kernels.into_iter().find(fits)
    }

    /// Whether it is faster than the form by steps, which multiplies lines of so many features anew
    /// in each of `s` steps: as measured on an H200 at 64 to 256 features, 256 to 8192 atoms and 16
    /// to 64 steps.
    pub(super) fn is_faster_than_steps(&self, line: usize, s: usize) -> bool {
        match (self.team, self.cluster) {
            (1 | 2, 1) => true,
            (_, 1) => line > 128 && s <= 48,
            (_, 2 | 4) => line >= 256 && s <= 32,
            _ => false,
        }
    }

    /// What the head of `pursuit_split.cuh` lists, in bytes.
    fn shared(team: usize, cluster: usize, s: usize) -> usize {
        let rows = s.saturating_sub(1 + Self::HELD).max(1) * team * 32 * Self::SLOTS;
        let bids = 2 * team * cluster * (4 + s.max(Self::HELD).next_multiple_of(4));
        4 * (rows + bids + s * (s - 1) / 2 + 3 * s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn a_signal_gets_the_warps_that_its_atoms_need() {
        let warps = |gpu| {
            [
                (256, 32),
                (257, 32),
                (1024, 32),
                (1025, 32),
                (1025, 50),
                (4096, 32),
                (8192, 32),
                (8193, 32),
                (256, 65),
            ]
            .map(|(n, s)| Split::of(gpu, n, s).map_or((0, 0), |split| (split.team, split.cluster)))
        };
        let (one, none) = ([(1, 1), (2, 1), (4, 1)], (0, 0));
        let [without, small, large] =
            [[none; 4], [(4, 2), none, (4, 4), (4, 8)], [(8, 1), (4, 2), (4, 4), (4, 8)]];
        let want = |more: [(usize, usize); 4]| [&one[..], &more, &[none; 2]].concat();
        let ampere = [(8, 1), none, none, none];
        let want = [ampere, without, without, large, large, small, small].map(want);
        assert_eq!(gpus::ALL.map(|gpu| warps(gpu).to_vec()), want);
    }

    #[test]
    fn three_blocks_of_32_steps_fit_a_multiprocessor_of_an_h200() {
        // Registers allow no fourth; a block has 1 KiB of the system's.
        for n in [1024, 4096, 8192] {
            let bytes = Split::of(gpus::ALL[3], n, 32).map(|split| 3 * (split.bytes + 1024));
            assert!(
                bytes.is_some_and(|bytes| bytes <= gpus::ALL[3].shared_bytes + 1024),
                "{n} atoms: {bytes:?}"
            );
        }
    }
}
