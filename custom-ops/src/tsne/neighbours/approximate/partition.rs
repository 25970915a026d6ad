//! Rows in cells around centres.
use super::super::{Asked, Entries, Metric};
use super::OP;
use crate::arrays::{gather_rows, sort_by_key};
use crate::core::philox::Philox;
use crate::group::Group;
use candle::{Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Times that a cell may hold its usual number of rows.
const MOST: usize = 4;
/// Times that cells which hold more are divided again.
const LEVELS: usize = 3;
/// Rows for each cell that its centre is found from.
const SAMPLE: usize = 64;
/// Rounds of Lloyd's algorithm.
const ROUNDS: usize = 6;

/// Rows by cell, and queries beside them.
pub(in super::super) struct Partition {
    /// `[n_cells, n_features]`
    pub centres: Tensor,
    /// Rows by cell, ascending within one; then queries that are no rows by the cell of the nearest
    /// centre, ascending within one, counted on from the rows.
    pub order: Vec<u32>,
    /// Where each part of a cell begins in `order`, and the end of the last. A cell has one part,
    /// or several equal ones where it could not be divided: as a rule its rows are equal then.
    pub parts: Vec<usize>,
    /// The first part of each cell, and the number of parts.
    pub first_parts: Vec<usize>,
    /// The cell of each query that is no row, ascending.
    query_cells: Vec<u32>,
}

/// Rows that are searched together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Tile {
    pub cell: usize,
    /// Their places in the order of the partition.
    pub queries: Range<usize>,
    /// The places of the rows of their own cell that they see.
    pub own: Range<usize>,
}

impl Partition {
    /// Points, f32 `[n, n_features]`, in cells of about `cell` rows and at least `least`: the same
    /// on each rank of the group, all of which have all points.
    pub(super) fn new(
        group: &Group,
        points: &Tensor,
        cell: usize,
        least: usize,
        philox: Philox,
    ) -> Result<Self> {
        let mut cells = Self::cells(group, points, cell, philox)?;
        // A cell of few rows would not have enough neighbours for its own.
        let (few, mut enough): (Vec<_>, Vec<_>) = cells.drain(..).partition(|(rows, _)| rows.len() < least);
        if enough.is_empty() {
            candle::bail!("{OP}: cells must hold {least} rows, got {} smaller ones", few.len())
        }
        let centres = Tensor::cat(&enough.iter().map(|(_, centre)| centre).collect::<Vec<_>>(), 0)?;
        let moved: Vec<u32> = few.into_iter().flat_map(|(rows, _)| rows).collect();
        if !moved.is_empty() {
            let to = nearest(group, &gather_rows(points, &moved)?, &centres)?.to_vec1::<u32>()?;
            moved.iter().zip(to).for_each(|(&row, cell)| enough[cell as usize].0.push(row));
            enough.par_iter_mut().for_each(|(rows, _)| rows.sort_unstable());
        }
        let (mut order, mut parts, mut first_parts) = (vec![], vec![], vec![]);
        for (rows, _) in enough {
            first_parts.push(parts.len());
            let places = order.len()..order.len() + rows.len();
            parts.extend(shares(places, MOST * cell).map(|part| part.start));
            order.extend(rows);
        }
        first_parts.push(parts.len());
        parts.push(order.len());
        Ok(Self { centres, order, parts, first_parts, query_cells: vec![] })
    }

    /// The same, of which these queries are searched in place of the rows.
    pub(super) fn with_queries(mut self, group: &Group, queries: &Tensor) -> Result<Self> {
        let n = self.order.len() as u32;
        let sorted = sort_by_key(&nearest(group, queries, &self.centres)?, self.n_cells())?;
        let (offsets, order) = (sorted.offsets.to_vec1::<u32>()?, sorted.order.to_vec1::<u32>()?);
        self.order.extend(order.into_iter().map(|query| n + query));
        for (cell, at) in (0..).zip(offsets.windows(2)) {
            self.query_cells.extend(std::iter::repeat_n(cell, (at[1] - at[0]) as usize));
        }
        Ok(self)
    }

    /// Rows, without queries that are none.
    pub(in super::super) fn n_rows(&self) -> usize {
        self.order.len() - self.query_cells.len()
    }

    /// The places of what is searched.
    pub(in super::super) fn searched(&self) -> Range<usize> {
        if self.query_cells.is_empty() { 0..self.order.len() } else { self.n_rows()..self.order.len() }
    }

    /// The rows of each cell, ascending, and its centre.
    fn cells(group: &Group, points: &Tensor, cell: usize, philox: Philox) -> Result<Vec<(Vec<u32>, Tensor)>> {
        let (mut cells, mut divisions) = (vec![], 0);
        let whole = divided(group, points, cell, philox)?.into_iter().rev();
        let mut waiting: Vec<_> = whole.map(|(rows, centre)| (rows, centre, 1)).collect();
        while let Some((rows, centre, level)) = waiting.pop() {
            if rows.len() <= MOST * cell || level > LEVELS {
                cells.push((rows, centre));
                continue;
            }
            // What the sample did not see, as many rows in one place, is divided once more.
            divisions += 1;
            let philox = Philox { offset: philox.offset.wrapping_add(divisions << 32), ..philox };
            let parts = divided(group, &gather_rows(points, &rows)?, cell, philox)?;
            // Equal rows stay together whatever is tried.
            let level = if parts.len() > 1 { level + 1 } else { LEVELS + 1 };
            let of_all =
                |part: Vec<u32>| -> Vec<u32> { part.into_iter().map(|i| rows[i as usize]).collect() };
            waiting.extend(parts.into_iter().rev().map(|(part, centre)| (of_all(part), centre, level)));
        }
        Ok(cells)
    }

    pub(in super::super) fn n_cells(&self) -> usize {
        self.first_parts.len() - 1
    }

    /// The places of a part's rows.
    pub(in super::super) fn part(&self, part: usize) -> Range<usize> {
        self.parts[part]..self.parts[part + 1]
    }

    /// The places of a cell's rows.
    fn cell(&self, cell: usize) -> Range<usize> {
        self.parts[self.first_parts[cell]]..self.parts[self.first_parts[cell + 1]]
    }

    /// The places of those that rows of other cells see.
    pub(in super::super) fn visible(&self, cell: usize) -> Range<usize> {
        self.part(self.first_parts[cell])
    }

    /// The cell of each place.
    pub(in super::super) fn cell_of_places(&self) -> Vec<u32> {
        let mut cells = vec![0; self.n_rows()];
        (0..self.n_cells()).for_each(|cell| cells[self.cell(cell)].fill(cell as u32));
        cells.extend(&self.query_cells);
        cells
    }

    /// For each place the part of its own cell that it sees.
    #[cfg(feature = "cuda")]
    pub(in super::super) fn part_of_places(&self) -> Vec<u32> {
        let mut parts = vec![0; self.n_rows()];
        (0..self.parts.len() - 1).for_each(|part| parts[self.part(part)].fill(part as u32));
        parts.extend(self.query_cells.iter().map(|&cell| self.first_parts[cell as usize] as u32));
        parts
    }

    /// All that is searched, at most `height` together. Rows of a cell that could not be divided
    /// see a part of it each: the cost does not grow with their square.
    pub(in super::super) fn tiles(&self, height: usize) -> Vec<Tile> {
        let mut tiles = vec![];
        let mut place = self.n_rows();
        for queries in self.query_cells.chunk_by(|a, b| a == b) {
            let (cell, places) = (queries[0] as usize, place..place + queries.len());
            place = places.end;
            let queries = shares(places, height);
            tiles.extend(queries.map(|queries| Tile { cell, queries, own: self.visible(cell) }));
        }
        if !tiles.is_empty() {
            return tiles;
        }
        for cell in 0..self.n_cells() {
            for own in (self.first_parts[cell]..self.first_parts[cell + 1]).map(|part| self.part(part)) {
                let queries = shares(own.clone(), height);
                tiles.extend(queries.map(|queries| Tile { cell, queries, own: own.clone() }));
            }
        }
        tiles
    }
}

/// Equal shares of a range, each of at most `most`.
fn shares(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let each = range.len().div_ceil(range.len().div_ceil(most).max(1)).max(1);
    range.clone().step_by(each).map(move |start| start..range.end.min(start + each))
}

/// Points around each of about `n / cell` centres, ascending, and the centre, `[1, n_features]`;
/// those of no points are left out.
fn divided(group: &Group, points: &Tensor, cell: usize, philox: Philox) -> Result<Vec<(Vec<u32>, Tensor)>> {
    let n = points.dim(0)?;
    let n_cells = (n / cell).max(1);
    // Of each stretch of rows the same share, for files that are sorted.
    let count = (n_cells * SAMPLE).min(n);
    let sample: Vec<u32> = (0..count).map(|i| (i as u64 * n as u64 / count as u64) as u32).collect();
    let centres = centres(group, &gather_rows(points, &sample)?, n_cells, philox)?;
    let own = nearest(group, points, &centres)?;
    let sorted = sort_by_key(&own, n_cells)?;
    let (offsets, order) = (sorted.offsets.to_vec1::<u32>()?, sorted.order.to_vec1::<u32>()?);
    let cells = offsets.windows(2).enumerate().filter(|(_, at)| at[0] < at[1]);
    cells
        .map(|(c, at)| Ok((order[at[0] as usize..at[1] as usize].to_vec(), centres.narrow(0, c, 1)?)))
        .collect()
}

/// The nearest centre of each point, u32 `[n]`.
fn nearest(group: &Group, points: &Tensor, centres: &Tensor) -> Result<Tensor> {
    let asked = Asked { entries: Entries::Finite, ..Asked::of(points, centres, 1, Metric::Euclidean) };
    asked.find_in_group(group)?.indices.flatten_all()
}

/// Centres of cells of the sampled points, `[n_cells, n_features]`; one without points stays where
/// it is.
fn centres(group: &Group, sample: &Tensor, n_cells: usize, philox: Philox) -> Result<Tensor> {
    let (m, d) = sample.dims2()?;
    let mut centres = gather_rows(sample, &philox.sample(m, n_cells))?;
    let values = sample.flatten_all()?.to_vec1::<f32>()?;
    for _ in 0..ROUNDS {
        let own = nearest(group, sample, &centres)?.to_vec1::<u32>()?;
        let (mut sums, mut counts) = (vec![0f64; n_cells * d], vec![0u32; n_cells]);
        for (row, &cell) in values.chunks(d.max(1)).zip(&own) {
            counts[cell as usize] += 1;
            let sum = &mut sums[cell as usize * d..][..d];
            sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        let mut means = centres.flatten_all()?.to_vec1::<f32>()?;
        for (c, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let mean = means[c * d..][..d].iter_mut().zip(&sums[c * d..][..d]);
            mean.for_each(|(mean, sum)| *mean = (sum / f64::from(count)) as f32);
        }
        centres = Tensor::from_vec(means, (n_cells, d), sample.device())?;
    }
    Ok(centres)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::normal;
    use candle::Device;

    /// 12,000 rows, of which 7 of each 12 are equal.
    fn with_equal_rows() -> Result<Tensor> {
        let (n, d) = (12_000, 6);
        let mut all = normal(n * d, &Device::Cpu, Philox::new(5, 1))?.to_vec1::<f32>()?;
        for i in (0..n).filter(|i| i % 12 < 7) {
            all[i * d..(i + 1) * d].fill(0.25);
        }
        Tensor::from_vec(all, (n, d), &Device::Cpu)
    }

    #[test]
    fn each_row_is_a_query_once_and_cells_of_equal_rows_are_taken_in_parts() -> Result<()> {
        let partition = Partition::new(&Group::single(), &with_equal_rows()?, 512, 128, Philox::new(5, 2))?;
        let sizes: Vec<usize> = (0..partition.n_cells()).map(|cell| partition.cell(cell).len()).collect();
        assert!(sizes.iter().max() >= Some(&7000), "the equal rows are not in one cell: {sizes:?}");
        assert_eq!(sizes.iter().filter(|&&size| size > MOST * 512).count(), 1, "{sizes:?}");
        assert!(sizes.iter().all(|&size| size >= 128), "{sizes:?}");
        let mut searched = vec![0; 12_000];
        for tile in partition.tiles(300) {
            assert!(tile.queries.len() <= 300 && tile.own.len() <= MOST * 512, "{tile:?}");
            assert!(tile.own.start <= tile.queries.start && tile.queries.end <= tile.own.end, "{tile:?}");
            assert!(partition.order[tile.own.clone()].is_sorted());
            partition.order[tile.queries].iter().for_each(|&row| searched[row as usize] += 1);
        }
        assert!(searched.iter().all(|&times| times == 1));
        Ok(())
    }
}
