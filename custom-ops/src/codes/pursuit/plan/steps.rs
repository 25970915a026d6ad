//! The form that takes steps of all signals together: `kernels/codes/pursuit_steps.cu`.
use crate::core::limits::Limits;

/// The kernels of `pursuit_steps.cu`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::codes::pursuit) struct Steps {
    /// Whether the residuals of a tile of signals stay in shared memory.
    pub resident: bool,
    pub best_bytes: usize,
    /// Threads that have a signal, four features each at a time.
    pub lanes: usize,
    pub step_bytes: usize,
}

impl Steps {
    /// Most bytes that this form keeps at a time.
    pub(super) const MOST_BYTES: usize = 2 << 30;
    /// Fewest correlations of a step that pay for its launches, and most steps, that it is for.
    const CORRELATIONS: usize = 1 << 22;
    pub(super) const MOST_STEPS: usize = 512;
    /// Threads of a block.
    pub(in crate::codes::pursuit) const THREADS: usize = 256;
    /// Signals and atoms of a block of `best_atoms`, features at a time, and what is left free
    /// behind lines of shared memory: `TILE`, `DEPTH` and `PAD` there.
    pub(in crate::codes::pursuit) const TILE: usize = 128;
    const DEPTH: usize = 32;
    const PAD: usize = 8;
    /// Both parts of a slice of a tile.
    const SLICE_BYTES: usize = 2 * Self::TILE * (Self::DEPTH + Self::PAD) * 2;
    /// The most features whose tile of residuals stays in shared memory.
    const RESIDENT: usize = 128;
    /// What the kernels declare: the signals of a tile, and two counters.
    const DECLARED: [usize; 2] = [Self::TILE * 4, 16];

    /// For `m` signals, `width` atoms, lines of so many features and `s` steps; none for too few
    /// correlations, and where a block of this GPU has too little shared memory.
    pub(super) fn of(limits: Limits, m: usize, width: usize, line: usize, s: usize) -> Option<Self> {
        if m * width < Self::CORRELATIONS || s > Self::MOST_STEPS {
            return None;
        }
        let has = |bytes: usize, declared: usize| bytes + declared <= limits.shared_bytes;
        let [by_best, by_step] = Self::DECLARED;
        // Three slices of atoms and all of the residuals, or two slices of both.
        let line_bytes = (line.next_multiple_of(Self::DEPTH) + Self::PAD) * 2;
        let resident_bytes = 3 * Self::SLICE_BYTES + 2 * Self::TILE * line_bytes;
        let resident = line <= Self::RESIDENT && has(resident_bytes, by_best);
        let best_bytes = if resident { resident_bytes } else { 4 * Self::SLICE_BYTES };
        let lanes = if line <= 64 && s <= 32 { 16 } else { 32 };
        // `Scratch` there, for each signal.
        let step_bytes = Self::THREADS / lanes * (3 * s + s % 2 + lanes * (lanes + 1)) * 4;
        let steps = Self { resident, best_bytes, lanes, step_bytes };
        (has(best_bytes, by_best) && has(step_bytes, by_step)).then_some(steps)
    }

    /// Blocks of `best_atoms` for `m` signals, along them and along the atoms: few signals share
    /// the atoms among several blocks, for two waves of two blocks on each multiprocessor.
    pub(in crate::codes::pursuit) fn best_grid(
        &self,
        limits: Limits,
        m: usize,
        width: usize,
    ) -> (usize, usize) {
        let (tiles, atom_tiles) = (m.div_ceil(Self::TILE), width / Self::TILE);
        (tiles, (4 * limits.multiprocessors).div_ceil(tiles).min(atom_tiles))
    }

    /// Bytes that it keeps of a signal: the residual, whole and in parts, directions, and a few
    /// numbers.
    pub(super) fn bytes_of_signal(line: usize, s: usize) -> usize {
        8 * line + 2 * s * (s + 1) + 32
    }

    /// What its kernels want of shared memory, asked for and declared.
    #[cfg(test)]
    pub(super) fn shared(&self) -> [(&'static str, usize); 2] {
        let [by_best, by_step] = Self::DECLARED;
        [("best_atoms", self.best_bytes + by_best), ("pursuit_step", self.step_bytes + by_step)]
    }

    /// Signals of a block of `pursuit_step`.
    pub(in crate::codes::pursuit) fn teams(&self) -> usize {
        Self::THREADS / self.lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn residuals_stay_in_shared_memory_where_it_holds_a_tile_of_them() {
        let resident = |gpu| {
            [32, 64, 96, 128, 136]
                .map(|line| Steps::of(gpu, 1 << 20, 1024, line, 20).map(|steps| steps.resident))
        };
        let (large, small) =
            ([true, true, true, true, false].map(Some), [true, true, false, false, false].map(Some));
        assert_eq!(gpus::ALL.map(resident), [large, small, small, large, large, small, small]);
    }
}
