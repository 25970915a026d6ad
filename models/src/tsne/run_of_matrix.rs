//! Runs over the distances of all pairs of rows.
use super::config::noted;
use super::unique::{self, Unique};
use super::{GivenDistances, StageSeconds, TsneConfig, TsneTrainer};
use crate::{Group, Philox};
use candle::{DType, Device, Result, Tensor};

impl TsneTrainer {
    /// A run over the distances of all pairs of rows, f32 or f64 `[n, n]`, on their device; see
    /// [`GivenDistances`]. A perplexity that is too large for so few rows is lowered
    /// ([`TsneConfig::lowered`]), and [`notes`](Self::notes) say so. It begins at random, or with
    /// [`Start::Spectral`](super::Start::Spectral), and the embedding cannot take new rows.
    ///
    /// With [`TsneConfig::unique`] rows are equal that are at distance 0 from each other, and as
    /// far from all others, seen from both.
    ///
    /// Measures of its layout are those of [`TrueDistances::Matrix`].
    ///
    /// [`TrueDistances::Matrix`]: super::measure::TrueDistances::Matrix
    ///
    /// Cost: `O(n²)` on the host, and `8 n²` bytes, 16 where the distances are on a GPU or f32.
    ///
    /// # Errors
    /// When the matrix is not square, a distance makes no sense (the message names row and column),
    /// the configuration does not fit, or memory is short.
    pub fn from_distances(config: TsneConfig, philox: Philox, distances: &Tensor) -> Result<Self> {
        let (n, columns) = distances.dims2()?;
        if n != columns {
            candle::bail!(
                "TsneTrainer: distances must be of all pairs of rows, [{n}, {n}], got [{n}, {columns}]"
            )
        }
        let host =
            distances.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        Self::from_given_distances(config, philox, &GivenDistances { all: &host, n }, distances.device())
    }

    /// The same over distances in host memory.
    ///
    /// # Errors
    /// As [`from_distances`](Self::from_distances).
    pub fn from_given_distances(
        config: TsneConfig,
        philox: Philox,
        distances: &GivenDistances<'_>,
        device: &Device,
    ) -> Result<Self> {
        config.validate()?;
        let n = distances.n;
        let (config, notes) = noted(&config, config.lowered(n), &format!("{n} rows"));
        config.check_neighbours(n)?;
        let refused = |wrong| candle::Error::Msg(format!("TsneTrainer: {wrong}"));
        if config.unique {
            distances.check().map_err(refused)?;
        }
        let Some(unique) = Unique::of_distances(&config, distances, device)? else {
            let near = distances.nearest(config.neighbours_of(n), philox).map_err(refused)?;
            let given = (&near.to_device(device)?, near.unit());
            return Ok(Self::over_given(config, philox, given, &near.notes)?.with_notes(notes));
        };
        let (all, n) = (distances.among(unique.firsts()), unique.n());
        let (near, unit) = match n {
            1 => (unique::none(device)?, 1.),
            _ => {
                let points = GivenDistances { all: &all, n };
                let near = points.nearest(config.neighbours_of(n), philox).map_err(refused)?;
                (near.to_device(device)?, near.unit())
            }
        };
        config.check_free_memory(n, 0, device)?;
        let (group, seconds) = (Group::single(), StageSeconds::default());
        let run = Self::of_neighbours(&group, config, philox, (&near, unit), None, Some(unique), seconds)?;
        Ok(run.with_notes(notes))
    }
}
