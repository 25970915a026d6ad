//! Neighbours that were found elsewhere, looked at row by row.
use super::Neighbours;
use candle::{DType, Device, Result, Tensor};

/// Rows with their neighbours as another program wrote them, line by line of `k`: what
/// [`GivenNeighbours::checked`] makes of them is what a run takes.
#[derive(Debug, Clone, Copy)]
pub struct GivenNeighbours<'a> {
    /// The neighbours of each row, `[n, k]`.
    pub indices: &'a [i64],
    /// Their distances, not squared, `[n, k]`.
    pub distances: &'a [f64],
    /// The number of neighbours in a line, at least 1.
    pub k: usize,
}

/// Which of the two has what makes no sense, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrongNeighbours {
    /// The indices.
    Indices(String),
    /// The distances.
    Distances(String),
}

impl std::fmt::Display for WrongNeighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Indices(what) => write!(f, "indices {what}"),
            Self::Distances(what) => write!(f, "distances {what}"),
        }
    }
}

impl std::error::Error for WrongNeighbours {}

/// Lines that hold what a run takes.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedNeighbours {
    indices: Vec<u32>,
    distances: Vec<f32>,
    k: usize,
    /// Distances are this times those that were given.
    unit: f64,
    /// What was changed, in words, a sentence each.
    pub notes: Vec<String>,
}

impl GivenNeighbours<'_> {
    /// Refuses what is no neighbour or no distance, and brings the rest into the form that a run
    /// takes: nearest first, and no row its own neighbour. Other programs give the row itself as
    /// its nearest; where any line has it, all lines become one shorter, and those without it lose
    /// their farthest. Distances too large or small for f32 are scaled, all alike
    /// ([`CheckedNeighbours::unit`]), which changes no affinity of a perplexity.
    ///
    /// # Errors
    /// When there are not as many distances as indices, an index is negative or not below the
    /// number of rows, a row is there twice in a line, or a distance is negative, infinite or NaN;
    /// the message names row and column, counted from 0.
    pub fn checked(&self) -> std::result::Result<CheckedNeighbours, WrongNeighbours> {
        let Self { indices, distances, k } = *self;
        if k == 0 || !indices.len().is_multiple_of(k) {
            return Err(WrongNeighbours::Indices(format!(
                "must be lines of at least 1, got {} in lines of {k}",
                indices.len()
            )));
        }
        if distances.len() != indices.len() {
            return Err(WrongNeighbours::Distances(format!(
                "must be as many as indices, {}, got {}",
                indices.len(),
                distances.len()
            )));
        }
        let n = indices.len() / k;
        let each = || (0..n).zip(indices.chunks_exact(k).zip(distances.chunks_exact(k)));
        let (mut is_sorted, mut selves) = (true, 0usize);
        for (i, (indices, distances)) in each() {
            check_line(i, n, indices, distances)?;
            is_sorted &= distances.is_sorted();
            selves += usize::from(indices.contains(&(i as i64)));
        }
        let mut notes = vec![];
        if !is_sorted {
            notes.push("distances did not ascend in every row: neighbours were sorted by them".to_owned());
        }
        let kept = if selves > 0 { k - 1 } else { k };
        if selves > 0 {
            if kept == 0 {
                return Err(WrongNeighbours::Indices(
                    "must hold other rows than the row itself, got none in row 0, column 0".to_owned(),
                ));
            }
            let of = if selves == n {
                "its own neighbour".to_owned()
            } else {
                format!("its own neighbour in {selves} of {n} rows")
            };
            notes.push(format!("a row was {of}: it was left out, and {kept} neighbours of each row remain"));
        }
        let largest = distances.iter().copied().fold(0., f64::max);
        let scale = match largest {
            _ if (1e-15..=1e30).contains(&largest) || largest == 0. => 1.,
            largest => (-largest.log2().ceil()).exp2(),
        };
        let mut checked =
            CheckedNeighbours { indices: vec![], distances: vec![], k: kept, unit: scale, notes };
        let mut line: Vec<(f64, u32)> = vec![];
        for (i, (indices, distances)) in each() {
            line.clear();
            line.extend(distances.iter().zip(indices).map(|(&d, &j)| (d, j as u32)));
            line.retain(|(_, j)| *j as usize != i);
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            checked.indices.extend(line.iter().take(kept).map(|(_, j)| j));
            checked.distances.extend(line.iter().take(kept).map(|(d, _)| (d * scale) as f32));
        }
        Ok(checked)
    }
}

/// Refuses what is no distance.
pub(super) fn check_distance(d: f64, row: usize, column: usize) -> std::result::Result<(), WrongNeighbours> {
    if d.is_finite() && d >= 0. {
        return Ok(());
    }
    let must = if d.is_finite() { "at least 0" } else { "finite" };
    Err(WrongNeighbours::Distances(format!("must be {must}, got {d} in row {row}, column {column}")))
}

/// Refuses a line of row `i` of `n` that makes no sense.
fn check_line(
    i: usize,
    n: usize,
    indices: &[i64],
    distances: &[f64],
) -> std::result::Result<(), WrongNeighbours> {
    let mut seen: Vec<(u32, usize)> = Vec::with_capacity(indices.len());
    for (column, &j) in indices.iter().enumerate() {
        match u32::try_from(j) {
            Ok(j) if (j as usize) < n => seen.push((j, column)),
            _ => {
                return Err(WrongNeighbours::Indices(format!(
                    "must be from 0 to {}, got {j} in row {i}, column {column}",
                    n - 1
                )));
            }
        }
    }
    distances.iter().enumerate().try_for_each(|(column, &d)| check_distance(d, i, column))?;
    seen.sort_unstable();
    if let Some(&[_, (j, column)]) = seen.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(WrongNeighbours::Indices(format!(
            "must hold a row once in a line, got {j} again in row {i}, column {column}"
        )));
    }
    Ok(())
}

impl CheckedNeighbours {
    /// The number of rows.
    pub fn n(&self) -> usize {
        self.indices.len() / self.k
    }

    /// The same on a device.
    ///
    /// # Errors
    /// When memory is short.
    pub fn to_device(&self, device: &Device) -> Result<Neighbours> {
        let shape = (self.n(), self.k);
        Ok(Neighbours {
            indices: Tensor::from_slice(&self.indices, shape, device)?,
            distances: Tensor::from_slice(&self.distances, shape, device)?,
        })
    }

    /// What distances were multiplied by: a power of two, 1 where f32 holds them as they were
    /// given.
    pub fn unit(&self) -> f64 {
        self.unit
    }

    /// Checks those on a device.
    pub(super) fn of(neighbours: &Neighbours) -> Result<Self> {
        let (n, k) = neighbours.indices.dims2()?;
        if neighbours.distances.dims() != [n, k] {
            candle::bail!(
                "TsneTrainer: distances must have the shape of indices, [{n}, {k}], got {:?}",
                neighbours.distances.dims()
            )
        }
        let host = |t: &Tensor| t.to_device(&Device::Cpu)?.flatten_all();
        let indices: Vec<i64> = host(&neighbours.indices)?.to_dtype(DType::I64)?.to_vec1()?;
        let distances: Vec<f64> = host(&neighbours.distances)?.to_dtype(DType::F64)?.to_vec1()?;
        let checked = GivenNeighbours { indices: &indices, distances: &distances, k }.checked();
        checked.map_err(|wrong| candle::Error::Msg(format!("TsneTrainer: {wrong}")))
    }
}
