//! A graph with its points in another order.
use super::{Affinities, REORDER as OP};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

/// The same affinities with the points in another order: point `i` of the result is point
/// `order[i]` of `affinities`, in rows and columns.
///
/// `order` is a contiguous u32 `[n]` that holds each point once. Edges of a row ascend by column;
/// on a GPU those of a row of more than 2,048 do so in stretches of 2,048. The same bits in every
/// run.
///
/// Cost: reads and writes each edge once, and sorts the rows.
///
/// # Errors
/// When shapes, types or devices differ from these, or a step is being recorded.
pub fn affinities_in_order(affinities: &Affinities, order: &Tensor) -> Result<Affinities> {
    let new = |of: &Tensor| new_tensor(OP, of.dims(), of.dtype(), of.device());
    let made = Affinities {
        offsets: new(&affinities.offsets)?,
        columns: new(&affinities.columns)?,
        values: new(&affinities.values)?,
    };
    affinities_in_order_(&made, affinities, order)?;
    Ok(made)
}

/// The same into a graph of as many points and edges.
///
/// # Errors
/// As [`affinities_in_order`], and when `made` has another size or shares a storage with an
/// operand.
pub fn affinities_in_order_(made: &Affinities, affinities: &Affinities, order: &Tensor) -> Result<()> {
    let (n, n_edges) = (affinities.n(), affinities.columns.elem_count());
    expect(OP, "order", order, &[DType::U32], &[n])?;
    for graph in [made, affinities] {
        expect(OP, "offsets", &graph.offsets, &[DType::U32], &[n + 1])?;
        expect(OP, "columns", &graph.columns, &[DType::U32], &[n_edges])?;
        expect(OP, "values", &graph.values, &[DType::F32], &[n_edges])?;
    }
    not_recording(OP, order.device())?;
    #[cfg(feature = "cuda")]
    if order.device().is_cuda() && n > 0 {
        return super::cuda::reorder(made, affinities, order);
    }
    let io = operands(OP).write("offsets", &made.offsets).write("columns", &made.columns);
    let io = io.write("values", &made.values).read("order", order).read("from_offsets", &affinities.offsets);
    io.read("from_columns", &affinities.columns).read("from_values", &affinities.values).run(&Reorder)
}

struct Reorder;

impl Kernel for Reorder {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([to_offsets, to_columns, to_values], [order, offsets, columns, values]) = io.parts()?;
        let (order, offsets) = (order.elements::<u32>()?, offsets.elements::<u32>()?);
        let (columns, values) = (columns.elements::<u32>()?, values.elements::<f32>()?);
        let to_offsets = to_offsets.elements::<u32>()?;
        let n = order.len();
        if let Some([from, to]) = offsets.windows(2).find(|o| o[0] > o[1] || o[1] as usize > columns.len()) {
            candle::bail!(
                "{OP}: offsets must ascend to {}, the number of edges, got {from} and then {to}",
                columns.len()
            )
        }
        if let Some(j) = columns.iter().find(|&&j| j as usize >= n) {
            candle::bail!("{OP}: columns must be below {n}, the number of points, got {j}")
        }
        let mut places = vec![0u32; n];
        for (place, &i) in order.iter().enumerate() {
            match places.get_mut(i as usize) {
                Some(of) => *of = place as u32,
                None => candle::bail!("{OP}: order must hold points below {n}, got {i}"),
            }
        }
        let edges = |i: u32| offsets[i as usize] as usize..offsets[i as usize + 1] as usize;
        // Each row's part of the result, in the order of the rows.
        let (mut columns_left, mut values_left) =
            (to_columns.elements::<u32>()?, to_values.elements::<f32>()?);
        let mut rows = Vec::with_capacity(n);
        to_offsets[0] = 0;
        for (r, &i) in order.iter().enumerate() {
            let len = edges(i).len();
            if len > columns_left.len() {
                candle::bail!("{OP}: order must hold each point once")
            }
            to_offsets[r + 1] = to_offsets[r] + len as u32;
            let (own_columns, own_values);
            (own_columns, columns_left) = columns_left.split_at_mut(len);
            (own_values, values_left) = values_left.split_at_mut(len);
            rows.push((i, own_columns, own_values));
        }
        rows.into_par_iter().with_min_len(256).for_each_init(Vec::new, |row, (i, to_columns, to_values)| {
            row.clear();
            row.extend(edges(i).map(|e| (places[columns[e] as usize], values[e])));
            row.sort_unstable_by_key(|&(j, _)| j);
            for ((column, value), &(j, p)) in to_columns.iter_mut().zip(to_values).zip(&*row) {
                (*column, *value) = (j, p);
            }
        });
        Ok(())
    }
}
