//! A search whose queries are divided over the ranks of a group.
//!
//! Each rank has all rows and searches for its part of the queries. Its lists lie among zeros, so
//! that sums over ranks put them together exactly.
use super::{Entries, LeftOut, Metric, Neighbours, checked, find};
use crate::group::Group;
use candle::{DType, Result, Tensor};

/// What [`find`] finds, of which each rank searches a part; all get all of it.
pub(super) fn find_in_group(
    group: &Group,
    queries: &Tensor,
    rows: &Tensor,
    k: usize,
    metric: Metric,
    left_out: LeftOut<'_>,
    entries: Entries,
) -> Result<Neighbours> {
    if group.is_single() {
        return find(queries, rows, k, metric, left_out, entries);
    }
    let n_queries = checked(queries, rows, k, left_out)?.n_queries;
    let found = lists(n_queries, k, rows)?;
    let own = group.part(n_queries);
    if !own.is_empty() {
        let numbers: Vec<u32> = own.clone().map(|i| i as u32).collect();
        let left_out = match left_out {
            LeftOut::None => LeftOut::None,
            LeftOut::Same => LeftOut::Rows(&numbers),
            LeftOut::Rows(rows) => LeftOut::Rows(rows.get(own.clone()).unwrap_or_default()),
        };
        let part = find(&queries.narrow(0, own.start, own.len())?, rows, k, metric, left_out, entries)?;
        found.indices.slice_set(&part.indices, 0, own.start)?;
        found.distances.slice_set(&part.distances, 0, own.start)?;
    }
    joined_(group, &found)?;
    Ok(found)
}

/// Lists of zeros for so many queries, on the device of the rows.
pub(super) fn lists(n_queries: usize, k: usize, rows: &Tensor) -> Result<Neighbours> {
    let zeros = |dtype| Tensor::zeros((n_queries, k), dtype, rows.device());
    Ok(Neighbours { indices: zeros(DType::U32)?, distances: zeros(DType::F32)? })
}

/// Gives each rank the lists of all, of which each is one rank's and zero on the others.
pub(super) fn joined_(group: &Group, found: &Neighbours) -> Result<()> {
    group.all_reduce_(&found.indices)?;
    group.all_reduce_(&found.distances)
}
