//! What tells a data set from another one of the same name.
use crate::source::row_bytes;
use crate::{Result, RowType, Split};
use flate2::Crc;
use serde::{Deserialize, Serialize};

/// Bytes of rows that are read, at most, but for [`FEWEST_ROWS`].
const BYTES: usize = 16 << 20;
/// Rows that are read, at most.
const MOST_ROWS: usize = 4096;
/// Rows that are read, however large they are.
const FEWEST_ROWS: usize = 16;

/// Sizes and checksums of a data set: what changes when its content does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Of each split.
    splits: Vec<OfSplit>,
    /// CRC-32 of the names of the classes.
    class_names: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OfSplit {
    n_samples: usize,
    n_features: usize,
    bytes: bool,
    /// CRC-32 of rows at even distances, the first and the last among them: of all where there are
    /// few.
    rows: u32,
    /// CRC-32 of all labels.
    labels: Option<u32>,
}

impl Fingerprint {
    /// Of these splits. At most 4,096 rows of each are read, 16 MiB of them or 16 rows.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn of<'a>(
        splits: impl IntoIterator<Item = &'a Split>,
        class_names: Option<&[String]>,
    ) -> Result<Self> {
        let names = class_names.map(|names| checksum(names.iter().flat_map(|name| [name.as_bytes(), &[0]])));
        Ok(Self { splits: splits.into_iter().map(OfSplit::of).collect::<Result<_>>()?, class_names: names })
    }

    /// What differs from another one, in words; none where nothing does.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let differs = |of: fn(&OfSplit) -> (usize, usize, u32)| {
            !self.splits.iter().map(of).eq(other.splits.iter().map(of))
        };
        if differs(|split| (split.n_samples, 0, 0)) {
            Some("the number of its rows")
        } else if differs(|split| (split.n_features, usize::from(split.bytes), 0)) {
            Some("the size or the type of its rows")
        } else if differs(|split| (0, 0, split.rows)) {
            Some("the values of its rows")
        } else if self.class_names != other.class_names {
            Some("the names of its classes")
        } else {
            (self != other).then_some("its labels")
        }
    }
}

impl OfSplit {
    fn of(split: &Split) -> Result<Self> {
        let n_samples = split.n_samples();
        let n = (BYTES / row_bytes(split.rows.as_ref()).max(1)).clamp(FEWEST_ROWS, MOST_ROWS).min(n_samples);
        let place = |i: usize| (i as u64 * (n_samples as u64 - 1) / (n as u64 - 1).max(1)) as u32;
        let mut rows = Crc::new();
        let mut row = vec![0; row_bytes(split.rows.as_ref())];
        for i in 0..n {
            split.rows.read_rows(&[place(i)], &mut row)?;
            rows.update(&row);
        }
        let labels = split.labels.as_deref();
        Ok(Self {
            n_samples,
            n_features: split.n_features(),
            bytes: split.row_type() == RowType::U8,
            rows: rows.sum(),
            labels: labels.map(|labels| checksum([bytemuck::cast_slice(labels)])),
        })
    }
}

fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut checksum = Crc::new();
    parts.into_iter().for_each(|part| checksum.update(part));
    checksum.sum()
}
