//! A stable sort of entries by small integer keys, which gives the list of entries of each key.
//!
//! ```text
//! offsets[j] = #{ e : keys[e] < j },  j ≤ n_keys
//! order[offsets[j] .. offsets[j + 1]] = { e : keys[e] = j }, ascending
//! ```
//!
//! The CPU counts the keys of each run of entries and copies each entry to its place. A GPU sorts
//! by digits of at most ten bits, the lowest first, with one stable counting sort over tiles per
//! digit (Merrill and Grimshaw, "Revisiting sorting for GPGPU stream architectures", 2010). Its
//! scratch memory is proportional to the number of entries and does not depend on the number of
//! keys. One block sorts few entries with few keys in one launch.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! // Key 1 is that of entries 0, 2 and 4; key 9 is none below 3.
//! let sorted = chandlery_ops::arrays::sort_by_key(&Tensor::new(&[1u32, 0, 1, 9, 1, 2], &Cpu)?, 3)?;
//! assert_eq!(sorted.offsets.to_vec1::<u32>()?, [0, 1, 4, 5]);
//! assert_eq!(sorted.order.to_vec1::<u32>()?, [1, 0, 2, 4, 5, 0]);
//! # Ok(()) }
//! ```
#[cfg(feature = "cuda")]
mod cuda;

use crate::core::check::expect;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "sort_by_key";
/// Entries that one task of the CPU twin sorts, at least.
const CHUNK: usize = 64 * 1024;

/// The entries of each key.
#[derive(Debug, Clone)]
pub struct SortedKeys {
    /// Start of each key's entries, and the end of the last: u32 `[n_keys + 1]`.
    pub offsets: Tensor,
    /// The entries in the order of their keys, ascending within a key: u32 `[n]`. Places beyond the
    /// last entry are 0.
    pub order: Tensor,
}

/// The entries of each key below `n_keys`, in a stable order. Entries with other keys, for example
/// [`u32::MAX`], are skipped.
///
/// `keys` is a contiguous u32 `[n]`, `n` below 2³². The result is the same bits on every device.
///
/// Cost: `O(n + n_keys)`. On a GPU it is one launch for up to 16,384 entries of 512 keys; else, for
/// each ten bits of `n_keys`, two passes over keys and order and a scattered write, with scratch of
/// `n` bytes, or `17n` for more than ten bits. On the CPU it is two passes, with scratch of at most
/// `8n` bytes plus 20 bytes per key.
///
/// # Errors
/// When `keys` is not such a vector, `n_keys` is 0 or above 2³² − 2, or a step is being recorded.
pub fn sort_by_key(keys: &Tensor, n_keys: usize) -> Result<SortedKeys> {
    Sort { op: OP, n_keys, rows: None }.run(keys)
}

/// The same computed by a stable sort of pairs.
///
/// # Errors
/// When candle cannot read `keys`.
pub fn sort_by_key_reference(keys: &Tensor, n_keys: usize) -> Result<SortedKeys> {
    let keys_read = keys.to_vec1::<u32>()?;
    let mut order: Vec<u32> =
        (0..keys_read.len() as u32).filter(|&e| (keys_read[e as usize] as usize) < n_keys).collect();
    order.sort_by_key(|&e| keys_read[e as usize]);
    let sorted: Vec<usize> = order.iter().map(|&e| keys_read[e as usize] as usize).collect();
    let offsets: Vec<u32> = (0..=n_keys).map(|j| sorted.partition_point(|&key| key < j) as u32).collect();
    order.resize(keys_read.len(), 0);
    Ok(SortedKeys {
        offsets: Tensor::new(offsets, keys.device())?,
        order: Tensor::new(order, keys.device())?,
    })
}

/// A sort whose entries may be those of rows with a count each.
#[derive(Clone, Copy)]
pub(crate) struct Sort<'a> {
    pub op: &'static str,
    pub n_keys: usize,
    /// `count` and the width of a row: entry `i · width + k` is there where `k < count[i]`. On the
    /// CPU its key must then be below `n_keys`.
    pub rows: Option<(&'a Tensor, usize)>,
}

impl Sort<'_> {
    pub(crate) fn run(self, keys: &Tensor) -> Result<SortedKeys> {
        let op = self.op;
        expect(op, "keys", keys, &[DType::U32], &[keys.elem_count()])?;
        if u32::try_from(keys.elem_count()).is_err() {
            candle::bail!("{op}: there must be fewer than 2^32 keys, got {}", keys.elem_count())
        }
        if self.n_keys == 0 || self.n_keys >= u32::MAX as usize {
            candle::bail!("{op}: the number of different keys must be in 1..2^32 - 1, got {}", self.n_keys)
        }
        let new = |len| new_tensor(op, len, DType::U32, keys.device());
        let sorted = SortedKeys { offsets: new(self.n_keys + 1)?, order: new(keys.elem_count())? };
        let io = operands(op).write("offsets", &sorted.offsets).write("order", &sorted.order);
        io.read("keys", keys).maybe("count", self.rows.map(|(count, _)| count)).run(&self)?;
        Ok(sorted)
    }
}

impl Kernel for Sort<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([offsets, order], [keys, count]) = io.parts()?;
        self.sort(offsets.elements()?, order.elements()?, keys.elements()?, count.maybe()?)
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

/// The entries of a stretch, sorted.
struct Part {
    /// `[n_keys + 1]`
    offsets: Vec<u32>,
    entries: Vec<u32>,
}

impl Sort<'_> {
    fn sort(
        &self,
        offsets: &mut [u32],
        order: &mut [u32],
        keys: &[u32],
        count: Option<&[u32]>,
    ) -> Result<()> {
        // Counts of a stretch are no more than its entries.
        let chunk = CHUNK.max(self.n_keys);
        let parts: Vec<Part> = keys
            .par_chunks(chunk)
            .enumerate()
            .map(|(c, keys)| self.part(keys, count, c * chunk))
            .collect::<Result<_>>()?;
        for part in &parts {
            offsets.iter_mut().zip(&part.offsets).for_each(|(all, part)| *all += part);
        }
        // Each key's list is that of the first part, then that of the second, and so on.
        let mut lists = Vec::with_capacity(self.n_keys);
        let mut rest = order;
        for o in offsets.windows(2) {
            let (list, after) = rest.split_at_mut((o[1] - o[0]) as usize);
            lists.push(list);
            rest = after;
        }
        let join = |(j, list): (usize, &mut [u32])| {
            let mut at = 0;
            for part in &parts {
                let from = &part.entries[part.offsets[j] as usize..part.offsets[j + 1] as usize];
                list[at..at + from.len()].copy_from_slice(from);
                at += from.len();
            }
        };
        match parts.len() {
            0 | 1 => lists.into_iter().enumerate().for_each(join),
            _ => lists.into_par_iter().enumerate().for_each(join),
        }
        Ok(())
    }

    /// Sorts entries `first..first + keys.len()`.
    fn part(&self, keys: &[u32], count: Option<&[u32]>, first: usize) -> Result<Part> {
        let n = self.n_keys;
        // The key of an entry that is there.
        let key_of = |(e, &key): (usize, &u32)| -> Result<Option<usize>> {
            let (key, e) = (key as usize, first + e);
            match (count, self.rows) {
                (Some(count), Some((_, width))) if e % width >= count[e / width] as usize => Ok(None),
                (Some(_), Some((_, width))) if key >= n => candle::bail!(
                    "{}: indices must be below n_atoms {n}, got {key} for signal {}",
                    self.op,
                    e / width
                ),
                _ => Ok((key < n).then_some(key)),
            }
        };
        let mut offsets = vec![0u32; n + 2];
        for entry in keys.iter().enumerate() {
            if let Some(key) = key_of(entry)? {
                offsets[key + 2] += 1;
            }
        }
        for j in 2..n + 2 {
            offsets[j] += offsets[j - 1];
        }
        // offsets[j + 1] is where the next entry of key j goes, and in the end where key j + 1
        // begins.
        let mut entries = vec![0; offsets[n + 1] as usize];
        for entry in keys.iter().enumerate() {
            if let Some(key) = key_of(entry)? {
                let next = &mut offsets[key + 1];
                entries[*next as usize] = (first + entry.0) as u32;
                *next += 1;
            }
        }
        offsets.truncate(n + 1);
        Ok(Part { offsets, entries })
    }
}

/// How a GPU sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One block with a count of each key for each of its warps in shared memory.
    Small { shared_bytes: usize },
    /// Digits of so many bits, the lowest first; blocks count them for each of their warps in
    /// shared memory.
    Digits { passes: u32, bits: u32, shared_bytes: usize },
}

impl Form {
    const SMALL_ENTRIES: usize = 16 * 1024;
    const SMALL_KEYS: usize = 512;
    const MOST_BITS: u32 = 10;

    /// The one for `n` entries.
    fn of(n: usize, n_keys: usize) -> Self {
        if n <= Self::SMALL_ENTRIES && n_keys <= Self::SMALL_KEYS {
            return Self::Small { shared_bytes: SMALL_WARPS * n_keys * size_of::<u32>() };
        }
        let all = (n_keys - 1).max(1).ilog2() + 1;
        let passes = all.div_ceil(Self::MOST_BITS);
        let bits = all.div_ceil(passes);
        Self::Digits { passes, bits, shared_bytes: (WARPS << bits) * size_of::<u32>() }
    }
}

/// Of kernels/arrays/sort_by_key.cu: warps of the block that sorts by itself, and of those that
/// sort tiles of `TILE` entries.
const SMALL_WARPS: usize = 32;
const WARPS: usize = 8;
#[cfg(feature = "cuda")]
const TILE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn blocks_of_every_gpu_have_room_for_any_number_of_keys() {
        for gpu in gpus::ALL {
            for (n, n_keys) in [
                (5, 1),
                (16_384, 512),
                (16_385, 512),
                (5, 513),
                (5, 1025),
                (5, 1 << 20),
                (5, u32::MAX as usize - 1),
            ] {
                let (Form::Small { shared_bytes } | Form::Digits { shared_bytes, .. }) = Form::of(n, n_keys);
                assert!(
                    shared_bytes <= gpu.shared_bytes,
                    "{gpu:?} has too little for {n_keys} keys: {shared_bytes}"
                );
            }
        }
    }

    #[test]
    fn digits_cover_the_largest_key_and_no_pass_is_in_vain() {
        for (n_keys, want) in [
            (1, (1, 1)),
            (2, (1, 1)),
            (3, (1, 2)),
            (1024, (1, 10)),
            (1025, (2, 6)),
            (1 << 20, (2, 10)),
            (1_000_001, (2, 10)),
            (u32::MAX as usize - 1, (4, 8)),
        ] {
            let Form::Digits { passes, bits, .. } = Form::of(1 << 20, n_keys) else { panic!("small") };
            assert_eq!((passes, bits), want, "{n_keys} keys");
            assert!((n_keys as u64 - 1) >> (passes * bits) == 0);
        }
    }
}
