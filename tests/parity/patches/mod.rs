//! Products and updates of patches: every form on every device, at sizes below, at and above its
//! tiles.
mod products;
mod steps;

use candle::{DType, Device, Result, Tensor};
use chandlery::Philox;
use chandlery::patch_rbm::PatchGrid;
use chandlery_ops::arrays::split_into_;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::images::PatchDirection;

const CPU: Device = Device::Cpu;
const UP: PatchDirection = PatchDirection::Up;
const DOWN: PatchDirection = PatchDirection::Down;

fn grid([planes, height, width, depth]: [usize; 4], window: usize, stride: usize) -> PatchGrid {
    PatchGrid { planes, height, width, depth, window, stride }
}

/// Any size: one patch, stride 1, windows that the stride does not divide, colours, depth, cells
/// above a tile.
fn odd_grids() -> Vec<(PatchGrid, usize)> {
    vec![
        (grid([1, 5, 5, 1], 5, 5), 3),
        (grid([1, 4, 6, 1], 3, 1), 65),
        (grid([3, 6, 4, 1], 2, 2), 7),
        (grid([2, 9, 7, 3], 5, 2), 5),
        (grid([1, 12, 4, 17], 4, 4), 66),
    ]
}

/// Sizes of the kernels for 16-bit numbers: windows that the stride divides and that it does not,
/// planes, one patch, units and cells below and above a tile.
fn fused_grids() -> Vec<(PatchGrid, usize)> {
    vec![
        (grid([1, 24, 40, 1], 24, 8), 8),
        (grid([1, 24, 40, 1], 16, 8), 104),
        (grid([3, 16, 24, 1], 16, 8), 72),
        (grid([2, 7, 11, 8], 3, 2), 24),
        (grid([1, 6, 10, 40], 4, 2), 200),
        (grid([1, 3, 5, 16], 3, 1), 64),
        (grid([1, 4, 4, 8], 4, 4), 96),
    ]
}

/// Sizes of the products of warpgroups: cells in pairs, of which the last may be alone, cells that
/// do not fill a tile, planes, one patch.
fn warpgroup_grids() -> Vec<(PatchGrid, usize)> {
    vec![
        (grid([1, 3, 5, 64], 3, 1), 64),
        (grid([1, 3, 6, 64], 2, 1), 128),
        (grid([2, 2, 3, 64], 2, 1), 192),
        (grid([1, 6, 10, 96], 4, 2), 192),
        (grid([1, 4, 4, 16], 4, 4), 320),
    ]
}

/// Sizes of the update by warpgroups: several tiles for each multiprocessor.
fn warpgroup_updates() -> Vec<(PatchGrid, usize)> {
    vec![(grid([1, 8, 8, 64], 3, 1), 192), (grid([2, 14, 14, 64], 2, 1), 128)]
}

struct Case {
    grid: PatchGrid,
    hidden: usize,
    weight: Tensor,
    visible: Tensor,
    states: Tensor,
}

/// Weights small enough that units do not saturate, grey levels, and states of 0 and 1.
fn case((grid, hidden): (PatchGrid, usize), batch: usize) -> Result<Case> {
    let n_hidden = grid.n_patches() * hidden;
    let stdev = 1. / (grid.window_len() as f64).sqrt();
    Ok(Case {
        grid,
        hidden,
        weight: (normal((grid.n_patches(), hidden, grid.window_len()), &CPU, Philox::new(60, 0))? * stdev)?,
        visible: uniform((batch, grid.n_values()), &CPU, Philox::new(60, 1))?,
        states: uniform((batch, n_hidden), &CPU, Philox::new(60, 2))?.lt(0.5)?.to_dtype(DType::F32)?,
    })
}

fn split(t: &Tensor, scale: f32, device: &Device) -> Result<Tensor> {
    let out = Tensor::zeros([&[2], t.dims()].concat(), DType::F16, &CPU)?;
    split_into_(&out, t, scale)?;
    out.to_device(device)
}
