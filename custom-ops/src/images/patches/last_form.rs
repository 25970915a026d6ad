//! The choice of the form of `kernels/layers/sm_90a/patch_last_step.cu` for the end of a step.
use super::sizes::Sizes;
use crate::core::limits::Limits;
use crate::layers::cd_update::LastStep;

/// Of the kernel: rows of a minibatch at most, hidden units of a
/// warpgroup, stages in shared memory besides two for each warpgroup, and their bytes.
const ROWS: usize = 192;
const UNITS: usize = 64;
const PASSING: usize = 3;
const STAGE_BYTES: usize = ROWS * 128;

/// The form of the kernel for an update; none where means and update are faster one after the
/// other: a block takes long for its tile, so that the last ones must leave few multiprocessors
/// idle.
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
    use super::super::grid::PatchGrid;
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
