//! The largest of a rank's latents in each row, without all pre-activations in memory.
use super::config::BIAS;
use super::{Kind, LossConfig, Moment, Sae};
use candle::{Result, Tensor};
use chandlery_ops::codes::{SparseCodes, top_k};

/// Pre-activations that TopK has in memory at a time: 4 GB of f32.
const MOST_PRODUCTS: usize = 1 << 30;

/// How many times `k` latents multi-TopK takes.
pub(super) const MULTI: usize = 4;

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
    pub of_all: Vec<(usize, SparseCodes)>,
    pub of_dead: Option<SparseCodes>,
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
        let multi = config.multi_top_k.then_some(MULTI * moment.k);
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

/// Whether a kind chooses of each row by itself, so that not all pre-activations are needed at once.
pub(super) fn is_by_row(kind: &Kind) -> bool {
    matches!(kind, Kind::TopK { .. })
}

/// Rows whose pre-activations are in memory at a time.
pub(super) fn rows_at_a_time(kind: &Kind, n_latents: usize) -> usize {
    if is_by_row(kind) { (MOST_PRODUCTS / n_latents).max(1) } else { usize::MAX }
}
