//! How the launch of `kernels/denoising_steps.cu` divides a network.
use crate::limits::Limits;

/// Of the kernel.
pub(super) const RANKS: usize = 8;
#[cfg(feature = "cuda")]
pub(super) const THREADS: u32 = 256;
const ROWS: usize = 32;
const MOST_COLUMNS: usize = 128;
const WARPS: usize = 8;
/// Above so many samples each block of a cluster sums an eighth of the hidden units for all, in place of all of them by itself.
const DIRECT: usize = 16;

/// The parts that blocks and threads take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Clusters of [`RANKS`] blocks.
    pub clusters: usize,
    /// Hidden units of a cluster.
    pub rows: usize,
    /// Visible units of a block.
    pub columns: usize,
    /// Of these, the ones whose reconstructions the block computes.
    pub own: usize,
    /// Samples of a minibatch, rounded up to `at_once`.
    pub padded: usize,
    /// Samples that a thread takes at a time.
    pub at_once: usize,
    pub scatters: bool,
}

impl Shape {
    /// None where the kernel does not take these sizes, or the GPU has too little for them.
    pub(super) fn of(limits: Limits, n_visible: usize, n_hidden: usize, batch: usize) -> Option<Self> {
        if !limits.has_clusters() || n_visible == 0 || n_hidden == 0 || batch == 0 {
            return None;
        }
        let (clusters, columns) = (n_hidden.div_ceil(ROWS), n_visible.div_ceil(RANKS));
        if columns > MOST_COLUMNS || clusters * RANKS > limits.multiprocessors {
            return None;
        }
        u32::try_from(batch.checked_mul(n_visible)?).ok()?;
        let at_once = batch.next_power_of_two().min(8);
        let shape = Self {
            clusters,
            rows: n_hidden.div_ceil(clusters),
            columns,
            own: columns.div_ceil(clusters),
            padded: batch.next_multiple_of(at_once),
            at_once,
            scatters: batch > DIRECT,
        };
        (shape.shared_bytes() <= limits.shared_bytes).then_some(shape)
    }

    /// The end of the kernel's name.
    pub(super) fn form(&self) -> String {
        format!("{}_{}", self.at_once, if self.scatters { "scatter" } else { "direct" })
    }

    /// Corrupted values of two steps and errors; hidden units and their errors; sums of the warps; sums from the other blocks; biases.
    pub(super) fn shared_bytes(&self) -> usize {
        let Self { columns, own, padded, at_once, .. } = *self;
        let received = match self.scatters {
            true => RANKS * padded * (ROWS / RANKS),
            false => 2 * RANKS * padded * ROWS,
        };
        let floats =
            3 * padded * columns + 2 * padded * ROWS + 2 * WARPS * at_once * ROWS + received + ROWS + own;
        // At the end, two f64 for each of 256 threads.
        (4 * floats).max(4096)
    }

    /// Words of one step: sums that wait for their owner, and errors that wait for the blocks of a rank.
    #[cfg(feature = "cuda")]
    pub(super) fn words(&self) -> [usize; 2] {
        let sums = RANKS * self.clusters * self.clusters * self.own * self.padded;
        [sums, RANKS * self.columns * self.padded]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::gpus;

    #[test]
    fn every_unit_has_a_place() {
        let [.., h200, _, _, _] = gpus::ALL;
        for (v, h, batch) in
            [(784, 500, 1), (784, 500, 100), (1, 1, 1), (9, 33, 5), (1024, 512, 16), (17, 512, 64)]
        {
            let shape = Shape::of(h200, v, h, batch).unwrap_or_else(|| panic!("{v}x{h}, batch {batch}"));
            assert!(shape.clusters * shape.rows >= h && shape.rows <= ROWS, "{shape:?}");
            assert!(shape.columns * RANKS >= v && shape.own * shape.clusters >= shape.columns, "{shape:?}");
            assert!(shape.padded >= batch && shape.padded.is_multiple_of(shape.at_once), "{shape:?}");
        }
    }

    #[test]
    fn networks_that_do_not_fit_are_for_the_other_ops() {
        for gpu in gpus::ALL {
            assert!(Shape::of(gpu, 1025, 500, 8).is_none() && Shape::of(gpu, 784, 2000, 8).is_none());
            assert!(Shape::of(gpu, 784, 500, 100_000).is_none());
            assert_eq!(
                Shape::of(gpu, 784, 500, 8).is_some(),
                gpu.built >= 90 && gpu.multiprocessors >= 128,
                "{gpu:?}"
            );
        }
    }
}
