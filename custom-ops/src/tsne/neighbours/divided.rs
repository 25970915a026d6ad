//! A search whose queries are divided over the ranks of a group.
//!
//! Each rank has all rows and searches for its part of the queries. Its lists lie among zeros, so
//! that sums over ranks put them together exactly.
use super::{Asked, LeftOut, Neighbours};
use crate::group::Group;
use candle::{DType, Result, Tensor};

impl Asked<'_> {
    /// The same, of which each rank searches a part; all get all of it.
    pub(super) fn find_in_group(&self, group: &Group) -> Result<Neighbours> {
        if group.is_single() {
            return self.find();
        }
        let n_queries = self.checked()?.n_queries;
        let found = lists(n_queries, self.k, self.rows)?;
        let own = group.part(n_queries);
        if !own.is_empty() {
            let numbers: Vec<u32> = own.clone().map(|i| i as u32).collect();
            let left_out = match self.left_out {
                LeftOut::None => LeftOut::None,
                LeftOut::Same => LeftOut::Rows(&numbers),
                LeftOut::Rows(rows) => LeftOut::Rows(rows.get(own.clone()).unwrap_or_default()),
            };
            let queries = &self.queries.narrow(0, own.start, own.len())?;
            let part = Asked { queries, left_out, ..*self }.find()?;
            found.indices.slice_set(&part.indices, 0, own.start)?;
            found.distances.slice_set(&part.distances, 0, own.start)?;
        }
        joined_(group, &found)?;
        Ok(found)
    }
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
