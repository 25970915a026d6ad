//! Optimisation 1: the symmetric graph of the affinities.
//!
//! ```text
//! i ← RowPointer[row]++ : values[i], columns[i], rows[i] = p, column, row
//! j ← RowPointer[column]++ : values[j], columns[j], rows[j] = p, row, column
//! ```
//!
//! An edge is written twice, once from each end; both stand in the coordinates, and are not added
//! where both ends know each other. The plain form writes the pairs one after the other and sorts
//! them by row into other arrays; [`symmetrize`] merges both ends into one entry of compressed
//! rows.
use super::data::clusters;
use super::{SEED, table};
use crate::bench::paper::{Cell, Paper};
use crate::bench::timing::time;
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery_ops::arrays::sort_by_key;
use chandlery_ops::core::most_memory;
use chandlery_ops::tsne::{Metric, knn, perplexity_search, symmetrize};
use rayon::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Neighbours of a row.
const NEIGHBOURS: usize = 90;

/// Both directions of each edge by coordinates, `p_j|i / 2n` each, in the order of their rows.
struct Pairs {
    rows: Tensor,
    columns: Tensor,
    values: Tensor,
}

/// Entry `2e` is edge `e`, entry `2e + 1` its reverse, from `indices` u32 and `p` f32, `[n, k]`;
/// then both are sorted by row.
fn written_and_sorted(indices: &Tensor, p: &Tensor) -> Result<Pairs> {
    let (n, k) = indices.dims2()?;
    let own = Tensor::arange(0u32, n as u32, indices.device())?.unsqueeze(1)?.broadcast_as((n, k))?;
    let both = |a: &Tensor, b: &Tensor| Tensor::stack(&[a, b], 2)?.flatten_all();
    let half = (p / (2. * n.max(1) as f64))?;
    let (rows, columns, values) = (both(&own, indices)?, both(indices, &own)?, both(&half, &half)?);
    let order = sort_by_key(&rows, n)?.order;
    let sorted = |t: &Tensor| t.index_select(&order, 0);
    Ok(Pairs { rows: sorted(&rows)?, columns: sorted(&columns)?, values: sorted(&values)? })
}

/// The pair of writes as printed, on the CPU: row pointers are counted and added up, and each edge
/// takes a place behind both of its rows. On several threads the order within a row is not the same
/// in every run.
fn written_at_row_pointers(indices: &Tensor, p: &Tensor) -> Result<Pairs> {
    let (n, k) = indices.dims2()?;
    let to = indices.flatten_all()?.to_vec1::<u32>()?;
    let p = p.flatten_all()?.to_vec1::<f32>()?;
    let scale = 1. / (2. * n.max(1) as f32);
    let counts: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(k as u32)).collect();
    to.par_iter().for_each(|&j| {
        counts[j as usize].fetch_add(1, Relaxed);
    });
    let mut end = 0;
    for count in &counts {
        end += count.swap(end, Relaxed);
    }
    let pointers = counts;
    let [rows, columns, values] =
        [(); 3].map(|()| (0..2 * n * k).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    to.par_iter().zip(&p).enumerate().for_each(|(e, (&column, &p))| {
        let row = (e / k) as u32;
        for (row, column) in [(row, column), (column, row)] {
            let at = pointers[row as usize].fetch_add(1, Relaxed) as usize;
            rows[at].store(row, Relaxed);
            columns[at].store(column, Relaxed);
            values[at].store((p * scale).to_bits(), Relaxed);
        }
    });
    let plain = |of: Vec<AtomicU32>| of.into_iter().map(AtomicU32::into_inner).collect::<Vec<_>>();
    let values: Vec<f32> = plain(values).into_iter().map(f32::from_bits).collect();
    Ok(Pairs {
        rows: Tensor::new(plain(rows), &Device::Cpu)?,
        columns: Tensor::new(plain(columns), &Device::Cpu)?,
        values: Tensor::new(values, &Device::Cpu)?,
    })
}

/// Bytes of tensors.
fn bytes(of: &[&Tensor]) -> f64 {
    of.iter().map(|t| (t.elem_count() * t.dtype().size_in_bytes()) as f64).sum()
}

const MIB: f64 = 1048576.;

/// What a form does: seconds, bytes of its result, and the most bytes while it works, on a GPU.
struct Measured {
    seconds: f64,
    result: f64,
    most: Option<f64>,
}

fn measured(device: &Device, repeats: u32, mut form: impl FnMut() -> Result<f64>) -> Result<Measured> {
    let (result, most) = most_memory(device, &mut form)?;
    let result = result?;
    let seconds = time(device, repeats, || form().map(|_| ()))?.median;
    Ok(Measured { seconds, result, most: most.map(|bytes| bytes as f64) })
}

/// The table.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    if !paper.wants("optimisation-1") {
        return Ok(());
    }
    let n = match (paper.quick(), paper.device().is_cuda()) {
        (true, _) => 2_000,
        (false, false) => 20_000,
        (false, true) => 51_200,
    };
    let rows = clusters(n, 50)?;
    let repeats = paper.repeats().min(3);
    // Of every place the same neighbours, of the fastest.
    let there = rows.to_device(paper.device())?;
    let found = knn(&there, NEIGHBOURS, Metric::Euclidean)?;
    let p = perplexity_search(&found.distances, &[30.])?;
    let (indices, p) = (found.indices.to_device(&Device::Cpu)?, p.to_device(&Device::Cpu)?);
    drop((there, found));
    let mut lines = Vec::new();
    for place in paper.places()? {
        let name = place.name();
        let device = &place.device;
        let forms: Vec<(&str, Measured)> = place.run(|| {
            let (indices, p) = (indices.to_device(device)?, p.to_device(device)?);
            let mut forms = vec![(
                "plain: pairs written, then sorted",
                measured(device, repeats, || {
                    let Pairs { rows, columns, values } = written_and_sorted(&indices, &p)?;
                    Ok(bytes(&[&rows, &columns, &values]))
                })?,
            )];
            if device.is_cpu() {
                forms.push((
                    "the paper's: pairs written at row pointers",
                    measured(device, repeats, || {
                        let Pairs { rows, columns, values } = written_at_row_pointers(&indices, &p)?;
                        Ok(bytes(&[&rows, &columns, &values]))
                    })?,
                ));
            }
            forms.push((
                "ours: both ends merged in compressed rows",
                measured(device, repeats, || {
                    let graph = symmetrize(&indices, &p)?;
                    Ok(bytes(&[&graph.offsets, &graph.columns, &graph.values]))
                })?,
            ));
            anyhow::Ok(forms)
        })?;
        let plain = forms.first().map(|(_, plain)| (plain.seconds, plain.result));
        for (form, Measured { seconds, result, most }) in &forms {
            let (all_seconds, all_bytes) = plain.unwrap_or((f64::NAN, f64::NAN));
            lines.push(vec![
                Cell::text(*form),
                Cell::text(name.clone()),
                Cell::seconds(*seconds),
                Cell::factor(all_seconds / seconds),
                Cell::number(result / MIB, 1),
                Cell::number(100. * (1. - result / all_bytes), 0),
                most.map_or_else(Cell::none, |most| Cell::number(most / MIB, 1)),
            ]);
        }
    }
    paper.table(table(
        "Optimisation 1: the symmetric graph",
        &["form", "where", "seconds", "as fast", "MiB of the graph", "less, %", "MiB at most"],
        lines,
        vec![
            format!("{n} rows of ten clusters with {NEIGHBOURS} neighbours each (seed {SEED})."),
            "The paper: 30 % less memory, and 1 % of the time of a run where it was 25 %.".to_owned(),
            "An entry of coordinates is 12 bytes, of compressed rows 8; two entries of one edge \
                 are one there."
                .to_owned(),
            "Pairs at row pointers need atomic counters: they are the form of the CPU here; the \
                 most memory is counted on a GPU alone."
                .to_owned(),
        ],
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery_ops::tsne::symmetrize_reference;

    /// The graph as a dense matrix.
    fn dense(n: usize, rows: &[u32], columns: &[u32], values: &[f32]) -> Vec<f64> {
        let mut dense = vec![0.; n * n];
        for ((&i, &j), &p) in rows.iter().zip(columns).zip(values) {
            dense[i as usize * n + j as usize] += f64::from(p);
        }
        dense
    }

    #[test]
    fn pairs_of_both_forms_add_up_to_the_merged_graph_and_stand_by_row() {
        let (n, k) = (300, 17);
        let found = knn(&clusters(n, 6).unwrap(), k, Metric::Euclidean).unwrap();
        let p = perplexity_search(&found.distances, &[6.]).unwrap();
        let graph = symmetrize_reference(&found.indices, &p).unwrap();
        let offsets = graph.offsets.to_vec1::<u32>().unwrap();
        let rows: Vec<u32> =
            (0..n).flat_map(|i| vec![i as u32; (offsets[i + 1] - offsets[i]) as usize]).collect();
        let (columns, values) = (graph.columns.to_vec1().unwrap(), graph.values.to_vec1().unwrap());
        let want = dense(n, &rows, &columns, &values);
        for pairs in [written_and_sorted(&found.indices, &p), written_at_row_pointers(&found.indices, &p)] {
            let Pairs { rows, columns, values } = pairs.unwrap();
            let rows = rows.to_vec1::<u32>().unwrap();
            assert!(rows.len() == 2 * n * k && rows.is_sorted());
            let got = dense(n, &rows, &columns.to_vec1().unwrap(), &values.to_vec1().unwrap());
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((got - want).abs() < 1e-9, "{at}: {got}, {want}");
            }
        }
    }
}
