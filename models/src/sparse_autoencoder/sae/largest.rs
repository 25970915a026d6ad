//! The largest latents of each row, also of latents that several ranks have between them.
//!
//! Of the latents of each rank the `k` largest are found; their values, `k` a row and rank, are
//! gathered, and the `k` largest of these are those of all. The columns of what is gathered are in
//! the order of latents, so that of equal values the same go first as on one rank.
use super::config::BIAS;
use super::pass::Pass;
use super::{Kind, LossConfig, Moment, Sae};
use crate::share::padded;
use candle::{Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{SparseCodes, top_k};

/// Pre-activations that TopK has in memory at a time: 4 GB of f32.
const MOST_PRODUCTS: usize = 1 << 30;

/// Latents that AuxK may use.
#[derive(Debug, Clone)]
pub(super) struct Dead {
    /// Those that this rank has, u32, ascending; none where it has none.
    pub own: Option<Tensor>,
    /// How many all ranks have.
    pub n: usize,
}

/// The largest of each row, of this rank's latents.
#[derive(Debug, Default)]
pub(super) struct Largest {
    /// By the number that was asked for.
    of_all: Vec<(usize, SparseCodes)>,
    of_dead: Option<SparseCodes>,
}

impl Largest {
    /// All that TopK asks for, without all pre-activations in memory.
    pub fn of(
        sae: &Sae,
        narrow: &Tensor,
        config: &LossConfig,
        moment: Moment,
        dead: Option<&Dead>,
    ) -> Result<Self> {
        let rows = narrow.dim(0)?;
        let multi = config.multi_top_k.then_some(super::top_k::MULTI * moment.k);
        let wanted: Vec<usize> = [moment.k].into_iter().chain(multi).collect();
        let dead = dead.and_then(|dead| dead.own.as_ref()).filter(|_| config.aux_k > 0);
        let bias = sae.other(BIAS)?;
        let mut of_all = vec![vec![]; wanted.len()];
        let mut of_dead = vec![];
        let at_a_time = rows_at_a_time(&sae.config.kind, sae.config.n_latents);
        for first in (0..rows).step_by(at_a_time) {
            let products = sae.products(&narrow.narrow(0, first, at_a_time.min(rows - first))?)?;
            for (list, &k) in of_all.iter_mut().zip(&wanted) {
                list.push(top_k(&products, bias, k, None)?);
            }
            if let Some(dead) = dead {
                of_dead.push(top_k(&products, bias, config.aux_k, Some(dead))?);
            }
        }
        let of_all = wanted.into_iter().zip(&of_all).map(|(k, list)| Ok((k, SparseCodes::stacked(list)?)));
        let of_dead = if of_dead.is_empty() { None } else { Some(SparseCodes::stacked(&of_dead)?) };
        Ok(Self { of_all: of_all.collect::<Result<_>>()?, of_dead })
    }
}

impl Pass<'_> {
    /// Codes of the `k` largest of each row, of TopK.
    pub fn largest(&self, k: usize) -> Result<SparseCodes> {
        match self.largest.of_all.iter().find(|(of, _)| *of == k) {
            Some((_, own)) => self.of_all_latents(own, k),
            None => candle::bail!("Sae: the {k} largest of a row were not looked for"),
        }
    }

    /// Codes of the `k` of AuxK that are largest among the dead.
    pub fn largest_of_dead(&self, dead: &Dead) -> Result<SparseCodes> {
        let k = self.config.aux_k;
        let own = match (&dead.own, &self.largest.of_dead) {
            (_, Some(own)) => own.clone(),
            (Some(among), None) => top_k(self.products()?, self.bias()?, k, Some(among))?,
            (None, None) => self.none()?,
        };
        self.of_all_latents(&own, k)
    }

    /// Codes without entries.
    fn none(&self) -> Result<SparseCodes> {
        let (rows, device) = (self.x.dim(0)?, self.x.device());
        Ok(SparseCodes {
            indices: Tensor::zeros((rows, 1), candle::DType::U32, device)?,
            values: Tensor::zeros((rows, 1), self.x.dtype(), device)?,
            count: Tensor::zeros(rows, candle::DType::U32, device)?,
            n_atoms: self.sae.config.n_latents,
        })
    }

    /// Of the codes of this rank's largest, those that are among the `k` largest of all ranks.
    fn of_all_latents(&self, own: &SparseCodes, k: usize) -> Result<SparseCodes> {
        let group = self.latents;
        if group.is_single() {
            return Ok(own.clone());
        }
        let largest = |values: &Tensor| {
            top_k(values, &Tensor::zeros(values.dim(1)?, values.dtype(), values.device())?, k, None)
        };
        let values = gathered_columns(group, &padded(&own.values, k)?)?;
        let chosen = largest(&values)?.to_dense()?;
        let mine = largest(&chosen.narrow(1, group.rank() * k, k)?.contiguous()?)?;
        let there = mine.mask()?.to_dtype(candle::DType::U32)?;
        let indices = (padded(&own.indices, k)?.gather(&mine.indices, 1)? * there)?;
        Ok(SparseCodes { indices, n_atoms: own.n_atoms, ..mine })
    }
}

/// The columns of a matrix of each rank side by side, on every rank: `[rows, world · n]` of
/// `[rows, n]` each.
pub(super) fn gathered_columns(group: &Group, own: &Tensor) -> Result<Tensor> {
    let ((rows, n), world) = (own.dims2()?, group.world());
    let all = Tensor::zeros((world, rows, n), own.dtype(), own.device())?;
    group.all_gather_(&all, &own.contiguous()?)?;
    all.transpose(0, 1)?.contiguous()?.reshape((rows, world * n))
}

/// Whether a kind chooses of each row by itself, so that not all pre-activations are needed at once.
pub(super) fn is_by_row(kind: &Kind) -> bool {
    matches!(kind, Kind::TopK { .. })
}

/// Rows whose pre-activations are in memory at a time.
pub(super) fn rows_at_a_time(kind: &Kind, n_latents: usize) -> usize {
    if is_by_row(kind) { (MOST_PRODUCTS / n_latents).max(1) } else { usize::MAX }
}
