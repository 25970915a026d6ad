//! The end of a step of contrastive divergence for a layer of patches: the last means of its hidden
//! units, and the update from them.
use super::grid::PatchGrid;
use super::sizes::{PatchDirection, Sizes};
use super::step::{check, update};
use super::units::units_of_patches_;
use crate::core::draw::Draws;
use crate::core::limits::Limits;
use crate::layers::cd_update::{CdOperands, CdUpdate, LastStep};
use crate::layers::units::{Unit, UnitPlanes};
use candle::{Result, Tensor};

const OP: &str = "patch_last_step_";

/// `h₋ ← −p(h | v₋)` for the states of the negative phase, plane 0 of `hidden` and of `visible`, and
/// then [`patch_cd_update_`](super::patch_cd_update_): what ends a step of contrastive
/// divergence whose last hidden units are not drawn.
///
/// Arguments and shapes are those of `patch_cd_update_`; `unit` is the kind of the hidden units.
/// The means are of `to.copy` divided by `step.copy_scale`, or of the weights where there is no
/// copy, and of the biases in `to.hidden_state`. `pre`, `[batch, n_patches · hidden]` f32, is scratch
/// memory, and what plane 0 of `hidden` holds afterwards is not specified.
///
/// On GPUs of capability 9.0 one kernel does both for Bernoulli units and weights in halves, where
/// the hidden units of a patch are a multiple of 128 or 192, there are 129 to 192 rows, and tiles of
/// 128 or 192 units leave at most a tenth of the multiprocessors idle. It does not store the means.
///
/// Cost: that of `patch_cd_update_` and `2 · batch · n_patches · hidden · window_len` FLOP.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
#[expect(clippy::too_many_arguments, reason = "those of the update, and of the means")]
pub fn patch_last_step_(
    to: CdOperands<'_>,
    hidden: &Tensor,
    pre: &Tensor,
    visible: &Tensor,
    grid: &PatchGrid,
    unit: Unit,
    scalars: &Tensor,
    step: CdUpdate<'_>,
) -> Result<()> {
    let (sizes, parts) = check(OP, to, hidden, visible, grid, scalars, step)?;
    #[cfg(feature = "cuda")]
    if super::cuda::step_fits(to, hidden, visible, step, &sizes, parts)?
        && let Some(form) = super::cuda::last_step(to, &sizes, unit)?
    {
        return super::cuda::step(to, hidden, visible, scalars, step, sizes, parts, Some(form));
    }
    if !hidden.is_contiguous() {
        candle::bail!("{OP}: hidden must be contiguous, got strides {:?}", hidden.stride())
    }
    let (weight, scale) = match to.copy {
        Some(copy) => (copy.clone(), 1. / step.copy_scale),
        None => (to.params.narrow(0, 0, 1)?, 1.),
    };
    let (planes, negative) = (hidden.flatten(0, 1)?, visible.narrow(1, 0, 1)?.squeeze(1)?);
    let low = (parts == 2).then_some(hidden.dim(1)?);
    let (out, bias) =
        (UnitPlanes { mean: Some(0), mean_scale: -1., sample: None, low }, to.hidden_state.get(0)?);
    let (up, drawn) = (PatchDirection::Up, Draws::Mode);
    units_of_patches_(&planes, pre, &negative, &weight, grid, up, scale, &bias, unit, out, drawn, None)?;
    update(to, hidden, visible, scalars, step, sizes, parts)
}

/// Of `kernels/layers/sm_90a/patch_last_step.cu`: rows of a minibatch at most, hidden units of a
/// warpgroup, stages in shared memory besides two for each warpgroup, and their bytes.
const ROWS: usize = 192;
const UNITS: usize = 64;
const PASSING: usize = 3;
const STAGE_BYTES: usize = ROWS * 128;

/// The form of the kernel for an update; none where means and update are faster one after the other:
/// a block takes long for its tile, so that the last ones must leave few multiprocessors idle.
pub(super) fn form(limits: Limits, sizes: &Sizes) -> Option<LastStep> {
    let rows = ROWS - UNITS + 1..=ROWS;
    let known =
        limits.has_warpgroup_products() && sizes.grid.has_boxed_windows() && rows.contains(&sizes.batch);
    let at_once = limits.multiprocessors;
    let of = |(kernel, warpgroups): (&'static str, usize)| {
        let units = warpgroups * UNITS;
        let tiles = sizes.grid.n_patches() * sizes.hidden / units;
        let shared_bytes = (PASSING + 2 * warpgroups) * STAGE_BYTES + 1024;
        let fits = sizes.hidden.is_multiple_of(units) && shared_bytes + 512 <= limits.shared_bytes;
        let busy = 10 * tiles >= 9 * at_once * tiles.div_ceil(at_once);
        let threads = 128 * (warpgroups as u32 + 1);
        let form = LastStep { kernel, blocks: tiles.min(at_once), threads, shared_bytes, box_rows: ROWS };
        (fits && busy).then_some(form)
    };
    known.then(|| [("patch_last_step_3", 3), ("patch_last_step_2", 2)].into_iter().find_map(of)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn tiles_are_whole_warpgroups_of_a_patch_and_keep_a_gpu_busy() {
        let sizes = |side: usize, hidden: usize, batch: usize| {
            let grid = PatchGrid { planes: 1, height: side, width: side, depth: 64, window: 3, stride: 1 };
            Sizes { grid, hidden, batch }
        };
        let of = |side, hidden, batch| {
            let form = form(gpus::ALL[3], &sizes(side, hidden, batch));
            form.map(|form| (form.kernel, form.blocks, form.threads))
        };
        assert_eq!(of(18, 192, 192), Some(("patch_last_step_3", 132, 512)), "256 tiles of 264");
        assert_eq!(of(18, 192, 129), Some(("patch_last_step_3", 132, 512)));
        assert_eq!(of(20, 256, 192), Some(("patch_last_step_2", 132, 384)));
        assert_eq!(of(13, 192, 192), Some(("patch_last_step_3", 121, 512)), "121 of 132");
        assert_eq!(of(12, 192, 192), None, "100 of 132");
        assert_eq!(of(14, 192, 192), None, "144 of 264");
        assert_eq!(of(18, 64, 192), None);
        assert_eq!(of(18, 192, 128), None);
        assert_eq!(of(18, 192, 193), None);
        // Those of tests/parity/patches/steps.rs, so that it runs this kernel.
        for ([planes, side, depth, window], hidden, batch, warpgroups) in [
            ([1, 13, 64, 3], 192, 192, 3),
            ([1, 13, 64, 3], 192, 130, 3),
            ([2, 12, 64, 2], 128, 192, 2),
            ([1, 16, 384, 1], 192, 180, 3),
            ([1, 18, 64, 3], 256, 192, 2),
        ] {
            let grid = PatchGrid { planes, height: side, width: side, depth, window, stride: 1 };
            let form = form(gpus::ALL[3], &Sizes { grid, hidden, batch });
            assert_eq!(form.map(|form| form.threads), Some(128 * (warpgroups + 1)), "{grid:?}");
        }
        for gpu in gpus::ALL.into_iter().filter(|gpu| !gpu.has_warpgroup_products()) {
            assert_eq!(form(gpu, &sizes(18, 192, 192)), None, "{gpu:?}");
        }
    }
}
