//! Images in arrays: which shapes are images, and rows whose channels lie side by side as planes.
//!
//! | shape of a sample                  | image                                                                     |
//! |------------------------------------|---------------------------------------------------------------------------|
//! | `[height, width]`                  | grey                                                                      |
//! | `[channels, height, width]`        | planes one after the other, as rows are stored here: 1 or 3 channels      |
//! | `[height, width, channels]`        | channels side by side: 1, 3, or 4, of which the last, opacity, is dropped |
//!
//! A shape that could be both has its channels first.
use crate::source::{check_read, row_bytes};
use crate::{ImageShape, Result, Rounding, RowType, Source};
use rayon::prelude::*;
use std::sync::Arc;

/// How the values of a sample of an array make an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: ImageShape,
    /// Channels that lie side by side; 1 where planes lie one after the other.
    interleaved: usize,
}

impl Layout {
    /// Of samples of this shape; none where they are no images.
    pub(crate) fn of(sample: &[usize]) -> Option<Self> {
        let planes =
            |height, width, channels| Self { shape: ImageShape { height, width, channels }, interleaved: 1 };
        match *sample {
            [height, width] => Some(planes(height, width, 1)),
            [channels @ (1 | 3), height, width] => Some(planes(height, width, channels)),
            [height, width, 1] => Some(planes(height, width, 1)),
            [height, width, interleaved @ (3 | 4)] => Some(Self { interleaved, ..planes(height, width, 3) }),
            _ => None,
        }
    }

    /// Whether rows must be put into planes.
    pub(crate) fn is_interleaved(&self) -> bool {
        self.interleaved > 1
    }

    /// Rows of the array as planes.
    pub(crate) fn planes(self, rows: Arc<dyn Source>) -> Arc<dyn Source> {
        if self.is_interleaved() { Arc::new(Planes { rows, layout: self }) } else { rows }
    }
}

/// Rows of planes of rows whose channels lie side by side.
#[derive(Debug)]
struct Planes {
    rows: Arc<dyn Source>,
    layout: Layout,
}

impl Source for Planes {
    fn n_samples(&self) -> usize {
        self.rows.n_samples()
    }

    fn n_features(&self) -> usize {
        self.layout.shape.n_features()
    }

    fn row_type(&self) -> RowType {
        self.rows.row_type()
    }

    fn rounding(&self) -> Option<&Rounding> {
        self.rows.rounding()
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        /// Bytes that are held at a time.
        const BLOCK: usize = 16 << 20;
        check_read(self, indices, out)?;
        let (from, to, size) = (row_bytes(self.rows.as_ref()), row_bytes(self), self.row_type().size_bytes());
        let at_once = (BLOCK / from).max(1);
        let mut there = vec![0; from * at_once.min(indices.len())];
        for (indices, out) in indices.chunks(at_once).zip(out.chunks_mut(to * at_once)) {
            let there = &mut there[..from * indices.len()];
            self.rows.read_rows(indices, there)?;
            out.par_chunks_exact_mut(to).zip(there.par_chunks_exact(from)).for_each(|(out, there)| {
                let pixel = self.layout.interleaved * size;
                for (c, plane) in out.chunks_exact_mut(to / self.layout.shape.channels).enumerate() {
                    for (value, pixel) in plane.chunks_exact_mut(size).zip(there.chunks_exact(pixel)) {
                        value.copy_from_slice(&pixel[c * size..(c + 1) * size]);
                    }
                }
            });
        }
        Ok(())
    }

    fn origin(&self, row: usize) -> usize {
        self.rows.origin(row)
    }
}
