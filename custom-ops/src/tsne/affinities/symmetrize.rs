//! A directed graph of neighbours made symmetric.
use super::Affinities;
use crate::core::check::{expect, matrix};
use crate::core::op::{not_recording, same_device};
use candle::{DType, Device, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "symmetrize";
/// Rows of a task.
const ROWS: usize = 256;

/// `p_ij = (p_j|i + p_i|j) / 2n` over the edges `i → indices[i, ·]` and their reverses, each once,
/// in rows sorted by column.
///
/// `indices` is u32 `[n, k]` with entries below `n`, none of them twice in a row; one that is the
/// row itself gets `p_i|i / n`. `p` is f32 `[n, k]`. Both are contiguous. The same bits in every
/// run.
///
/// Cost: `O(n · k)`; the result takes 8 bytes an edge, of which there are at most `2 n k`.
///
/// # Errors
/// When shapes, types or devices differ from these, an index is not below `n`, or a step is being
/// recorded.
pub fn symmetrize(indices: &Tensor, p: &Tensor) -> Result<Affinities> {
    let (n, k) = matrix(OP, "indices", "[n, k]", indices, &[DType::U32])?;
    expect(OP, "p", p, &[DType::F32], &[n, k])?;
    same_device(OP, "p", p, indices.device())?;
    if n * k > (u32::MAX / 2) as usize {
        candle::bail!("{OP}: n times k must be below 2^31, got {n} times {k}; take fewer neighbours")
    }
    not_recording(OP, indices.device())?;
    match indices.device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => super::cuda::symmetrize(indices, p, n, k),
        device => merge(indices, p, n, k, device),
    }
}

fn merge(indices: &Tensor, p: &Tensor, n: usize, k: usize, device: &Device) -> Result<Affinities> {
    let (to, p) = (indices.flatten_all()?.to_vec1::<u32>()?, p.flatten_all()?.to_vec1::<f32>()?);
    if let Some(e) = to.iter().position(|&j| j as usize >= n) {
        candle::bail!("{OP}: indices must be below {n}, got {} in row {}", to[e], e / k)
    }
    let reversed = crate::arrays::sort_by_key(&indices.flatten_all()?, n)?;
    let (starts, order) = (reversed.offsets.to_vec1::<u32>()?, reversed.order.to_vec1::<u32>()?);
    let scale = 1. / (2. * n as f32);
    let parts: Vec<Part> = (0..n.div_ceil(ROWS))
        .into_par_iter()
        .map(|part| {
            let rows = part * ROWS..((part + 1) * ROWS).min(n);
            let (mut out, mut entries) = (Part::default(), vec![]);
            for i in rows {
                let key = |j: u32, e: usize| u64::from(j) << 32 | u64::from(p[e].to_bits());
                let others = order[starts[i] as usize..starts[i + 1] as usize].iter();
                entries.clear();
                entries.extend((i * k..(i + 1) * k).map(|e| key(to[e], e)));
                entries.extend(others.map(|&e| key((e as usize / k) as u32, e as usize)));
                entries.sort_unstable();
                out.add_row(&entries, scale);
            }
            out
        })
        .collect();
    let mut offsets = Vec::with_capacity(n + 1);
    offsets.push(0u32);
    let mut end = 0;
    for len in parts.iter().flat_map(|part| &part.lens) {
        end += len;
        offsets.push(end);
    }
    let columns: Vec<&[u32]> = parts.iter().map(|part| &part.columns[..]).collect();
    let values: Vec<&[f32]> = parts.iter().map(|part| &part.values[..]).collect();
    Ok(Affinities {
        offsets: Tensor::new(offsets, device)?,
        columns: Tensor::new(columns.concat(), device)?,
        values: Tensor::new(values.concat(), device)?,
    })
}

/// Some rows of the merged graph.
#[derive(Default)]
struct Part {
    lens: Vec<u32>,
    columns: Vec<u32>,
    values: Vec<f32>,
}

impl Part {
    /// Adds a row of sorted entries, the column in the upper bits and the value in the lower. Two
    /// of a column make one.
    fn add_row(&mut self, entries: &[u64], scale: f32) {
        let before = self.columns.len();
        for same in entries.chunk_by(|a, b| a >> 32 == b >> 32) {
            self.columns.push((same[0] >> 32) as u32);
            self.values.push(scale * same.iter().map(|&entry| f32::from_bits(entry as u32)).sum::<f32>());
        }
        self.lens.push((self.columns.len() - before) as u32);
    }
}
