//! The launches of `kernels/pursuit_steps.cu`.
use super::plan::{Plan, multiprocessors};
use super::products::a_warp_each;
use crate::cuda::{count, function};
use candle::Result;
use candle::cuda::cudarc::driver::{DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg};
use candle::cuda::{CudaDevice, WrapErr};

/// Signals and atoms of a block of `best_atoms`, features at a time, and what is left free behind lines of shared memory: `TILE`, `DEPTH`
/// and `PAD`.
const TILE: usize = 128;
const DEPTH: usize = 32;
const PAD: usize = 8;
/// Both parts of a slice of a tile.
const SLICE_BYTES: usize = 2 * TILE * (DEPTH + PAD) * 2;
/// The most features whose tile of residuals stays in shared memory.
const RESIDENT: usize = 128;

/// `Steps` of `kernels/pursuit_steps.cu`, field for field; addresses are of device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub signals: u64,
    pub unit: u64,
    pub unit_halves: u64,
    pub gram: u64,
    pub inverse_norms: u64,
    pub targets: u64,
    pub residuals: u64,
    pub halves: u64,
    pub states: u64,
    pub triangles: u64,
    pub best: u64,
    pub lists: u64,
    /// Set by [`run`], as is `step`.
    pub left: u64,
    pub indices: u64,
    pub values: u64,
    pub counts: u64,
    pub refused: u64,
    pub target: f64,
    pub m: usize,
    pub p: u32,
    pub line: u32,
    pub width: u32,
    pub s: u32,
    pub target_kind: u32,
    pub step: u32,
}

// SAFETY: plain numbers in C's layout, every byte of it set.
unsafe impl DeviceRepr for Steps {}

/// All steps of the pursuits of `steps.m` signals.
pub(super) fn run(op: &'static str, device: &CudaDevice, plan: &Plan, mut steps: Steps) -> Result<()> {
    let module = "pursuit_steps";
    let (m, s) = (steps.m, steps.s as usize);
    let rounds = plan.line.div_ceil(DEPTH);
    let resident = plan.line <= RESIDENT;
    let (name, best_bytes) = match resident {
        true => ("best_atoms_resident", 3 * SLICE_BYTES + 2 * TILE * (rounds * DEPTH + PAD) * 2),
        false => ("best_atoms_streamed", 4 * SLICE_BYTES),
    };
    // Threads that have a signal, four features each at a time.
    let lanes = if plan.line <= 64 && s <= 32 { 16 } else { 32 };
    let teams = 256 / lanes;
    let step_bytes = teams * (3 * s + s % 2 + lanes * (lanes + 1)) * 4;
    let begin = function(device, module, "begin_pursuit")?;
    let best = function(device, module, name)?;
    let step = function(device, module, if lanes == 16 { "pursuit_step_16" } else { "pursuit_step_32" })?;
    best.share(op, best_bytes)?;
    step.share(op, step_bytes)?;
    // Few signals share the atoms among several blocks: two waves of two blocks a multiprocessor.
    let (tiles, atom_tiles) = (m.div_ceil(TILE), plan.width / TILE);
    let splits = (4 * multiprocessors(device)?).div_ceil(tiles).min(atom_tiles);
    let best_config = LaunchConfig {
        grid_dim: (count(op, tiles)?, count(op, splits)?, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: best_bytes as u32,
    };
    let step_config = LaunchConfig {
        grid_dim: (count(op, m.div_ceil(teams))?, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: step_bytes as u32,
    };
    let stream = device.cuda_stream();
    let mut left = device.alloc_zeros::<u32>(s + 1)?;
    let (address, _left) = left.device_ptr_mut(&stream);
    steps.left = address;
    let mut launch = begin.builder();
    launch.arg(&steps);
    // SAFETY: all three take a Steps by value; its arrays were sized for m signals, s steps and the plan's width and line
    // (Workspace::new), and stay borrowed by the caller until all is queued.
    unsafe { launch.launch(a_warp_each(m)) }.w()?;
    for k in 0..steps.s {
        steps.step = k;
        for (kernel, config) in [(&best, best_config), (&step, step_config)] {
            let mut launch = kernel.builder();
            launch.arg(&steps);
            // SAFETY: as above.
            unsafe { launch.launch(config) }.w()?;
        }
    }
    Ok(())
}
