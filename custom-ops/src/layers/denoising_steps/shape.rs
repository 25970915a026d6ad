//! How the launch of `kernels/layers/denoising_steps.cu` divides a network.
use crate::core::limits::Limits;

/// Of the kernel.
pub(super) const RANKS: usize = 8;
#[cfg(feature = "cuda")]
pub(super) const THREADS: u32 = 256;
const ROWS: usize = 40;
const MOST_COLUMNS: usize = 128;
const WARPS: usize = 8;
/// Above so many samples one launch after the other is as fast: on an H200 at 784-500, 76 µs a step
/// of 128 against 70.
const MOST_SAMPLES: usize = 112;
/// What the shared memory may have room for.
const SPANS: [usize; 3] = [4, 2, 1];
/// Above so many samples each block of a cluster sums an eighth of the hidden units for all, in
/// place of all of them by itself.
const DIRECT: usize = 8;

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
    /// How many times `at_once` samples go through the sums of a block before its threads wait for
    /// each other.
    pub span: usize,
}

impl Shape {
    /// None where the kernel does not take these sizes, or the GPU has too little for them.
    pub(super) fn of(limits: Limits, n_visible: usize, n_hidden: usize, batch: usize) -> Option<Self> {
        if !limits.has_clusters() || n_visible == 0 || n_hidden == 0 || !(1..=MOST_SAMPLES).contains(&batch) {
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
            span: 1,
        };
        let fits = |span| Some(Self { span, ..shape }).filter(|it| it.shared_bytes() <= limits.shared_bytes);
        SPANS.into_iter().find_map(fits)
    }

    /// The end of the kernel's name.
    pub(super) fn form(&self) -> String {
        format!("{}_{}", self.at_once, if self.scatters { "scatter" } else { "direct" })
    }

    /// Corrupted values of two steps and errors; hidden units and their errors; sums of the warps;
    /// sums from the other blocks; biases.
    pub(super) fn shared_bytes(&self) -> usize {
        let Self { columns, own, padded, at_once, span, .. } = *self;
        let received = match self.scatters {
            true => RANKS * padded * (ROWS / RANKS),
            false => 2 * RANKS * padded * ROWS,
        };
        let floats =
            3 * padded * columns + 2 * padded * ROWS + span * WARPS * at_once * ROWS + received + ROWS + own;
        // At the end, two f64 for each of 256 threads.
        (4 * floats).max(4096)
    }

    /// Words of one step: sums that wait for their owner, and errors that wait for the blocks of a
    /// rank.
    #[cfg(feature = "cuda")]
    pub(super) fn words(&self) -> [usize; 2] {
        let sums = RANKS * self.clusters * self.clusters * self.own * self.padded;
        [sums, RANKS * self.columns * self.padded]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn every_unit_has_a_place() {
        let [.., h200, _, _, _] = gpus::ALL;
        for (v, h, batch) in [
            (784, 500, 1),
            (784, 500, 100),
            (1, 1, 1),
            (9, 33, 5),
            (1024, 600, 16),
            (17, 512, 64),
            (784, 500, 112),
        ] {
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
            assert!(Shape::of(gpu, 784, 500, 128).is_none());
            assert_eq!(
                Shape::of(gpu, 784, 500, 8).is_some(),
                gpu.built >= 90 && gpu.multiprocessors >= 104,
                "{gpu:?}"
            );
        }
    }
}
