//! The update of bf16 weights on CUDA: one launch of `kernels/layers/cd_update.cu` and one for
//! the counter or, of large matrices on GPUs of capability 9.0, one of
//! `kernels/layers/sm_90a/cd_update.cu` for the weights and one for the biases and the counter.
use super::cuda::{
    BEHIND, LINE, Numbers, States, UNITS, WIDE, chunk_of, columns_of_states, counted, launch_biases,
    map_of_states, map_of_weights, place_of_biases, warpgroup_blocks,
};
use super::deep;
use super::plan::{Matrices, Plan};
use super::shape::Chunk;
use super::staying::{K_BLOCK_DEPTH, Rooms, TILE};
use super::{CdOperands, CdUpdate, OP, Sizes};
use crate::core::cuda::{Fetch, Gpu, Grid};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::Philox;
use crate::core::scalars::advance_on;
use crate::layers::pingpong;
use crate::layers::rounding::rounding_blocks;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Result, Tensor};
use half::bf16;

/// Threads of the kernel in sm_90a: three warpgroups that step, and one that copies.
const ROUNDED_THREADS: u32 = 512;
/// Most subtiles in its shared memory.
const SUBTILES: usize = 4;

/// Runs the kernel on operands that were checked.
#[expect(clippy::too_many_arguments, reason = "those of the op")]
pub(super) fn run(
    to: CdOperands<'_>,
    velocity: &Tensor,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
    draws: Philox,
    sizes: Sizes,
) -> Result<()> {
    if !counted(sizes) {
        let Sizes { batch, rows, cols, .. } = sizes;
        candle::bail!("{OP}: sizes must be below 2^31, got {rows} and {cols} for a batch of {batch}")
    }
    let chunk = chunk_of(to, hidden, visible, sizes);
    let io = operands(OP).write("params", to.params).write("velocity", velocity);
    let io = io.write("hidden_state", to.hidden_state).write("visible_state", to.visible_state);
    let io = io.write("counter", to.counter);
    let io = io.read("hidden", hidden).read("visible", visible).read("scalars", scalars);
    io.run(&Rounded { step, draws, sizes, chunk })
}

struct Rounded<'a> {
    step: CdUpdate<'a>,
    draws: Philox,
    sizes: Sizes,
    chunk: Chunk,
}

/// `Rounding` of kernels/layers/rounding.cuh, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rounding {
    seed: u64,
    stream: u64,
    offset: u64,
    blocks: u64,
}
// SAFETY: four 64-bit numbers, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Rounding {}

impl Kernel for Rounded<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let Self { step, draws: Philox { seed, stream, offset }, sizes, chunk } = *self;
        let Sizes { batch, rows, cols, .. } = sizes;
        let ([weight, velocity, hidden, visible, counter], [h, x, scalars]) = io.parts()?;
        let (mut weight, mut velocity) = (weight.elements::<bf16>()?, velocity.elements::<bf16>()?);
        let (mut hidden, mut visible) = (hidden.elements::<f32>()?, visible.elements::<f32>()?);
        let (h, x) = (h.span::<bf16>(2 * batch * rows)?, x.span::<bf16>(2 * batch * cols)?);
        let (scalars, mut counter) = (scalars.elements::<f32>()?, counter.elements::<i64>()?);
        let rounding = Rounding { seed, stream, offset, blocks: rounding_blocks(rows, cols) };
        let numbers = Numbers::of(step, sizes, 1, (0, 0));
        let form = match Plan::of(gpu.limits(), sizes, chunk, Matrices::Rounded) {
            Plan::Plain(form) => form,
            plan => {
                let (of_h, of_x) = (gpu.to_read(&h), gpu.to_read(&x));
                let states = |at, width| map_of_states(at, DType::BF16, [width, batch, 1], 0, K_BLOCK_DEPTH);
                let columns = |of_tile: [usize; 2]| {
                    let map = |at, width, most| {
                        columns_of_states(at, DType::BF16, [width, batch, 1], 0, [most, K_BLOCK_DEPTH])
                    };
                    Ok::<_, candle::Error>((map(of_h.at, rows, of_tile[0])?, map(of_x.at, cols, of_tile[1])?))
                };
                let (h_map, x_map) = match plan {
                    Plan::Deep(form) => columns([deep::ROWS, form.columns()])?,
                    Plan::PingPong(_) => columns([pingpong::TILE; 2])?,
                    _ => (states(of_h.at, rows)?, states(of_x.at, cols)?),
                };
                let (place, biases) = if let Plan::Deep(form) = plan {
                    let kernel = format!("cd_update_deep_rounded_{}", form.columns());
                    let launch = gpu.launch(OP, "sm_90a/cd_update_deep", &kernel)?;
                    let launch = launch.write(&mut weight).write(&mut velocity).read(&scalars);
                    let launch = launch.write(&mut counter).num(h_map).num(x_map).num(numbers);
                    let launch = launch.num(rounding).num(form.cluster() as i32);
                    let launch = launch.blocks(form.blocks, deep::THREADS).shared(form.shared_bytes());
                    // SAFETY: (2 × bf16*, const float*, const long long*, 2 × TensorMap, Numbers,
                    // Rounding, int): shapes and places are those of the kernel below. Blocks,
                    // clusters and shared memory are the form's.
                    unsafe { launch.clusters_of(form.cluster() as u32).overlapped().go()? };
                    (BEHIND, numbers.of_biases(rows, cols))
                } else {
                    let (of_weight, of_velocity) = (gpu.to_write(&mut weight), gpu.to_write(&mut velocity));
                    let weights = |at| map_of_weights(at, DType::BF16, [rows, cols], LINE, Fetch::TwoLines);
                    let maps = (weights(of_weight.at)?, weights(of_velocity.at)?);
                    let begin = |file, kernel| {
                        let launch = gpu.launch(OP, file, kernel)?.num(h_map).num(x_map);
                        Ok::<_, candle::Error>(launch.num(maps.0).num(maps.1))
                    };
                    // SAFETY of both: maps of the states, of the weights and the velocity, whose
                    // memory has addresses that are alive, in the blocks that the kernel takes;
                    // `Sizes::of` checked shapes, `Chunk::of` that lines are multiples of 16 bytes,
                    // on which views begin.
                    if let Plan::PingPong(form) = plan {
                        let launch = begin("sm_90a/cd_update_pingpong", "cd_update_pingpong_rounded")?;
                        let rooms = form.rooms(2 + 2);
                        let launch = launch.read(&scalars).write(&mut counter).num(numbers).num(rounding);
                        let launch = launch.num(rooms.subtiles as i32).shared(rooms.shared_bytes);
                        // SAFETY: (4 × TensorMap, const float*, const long long*, Numbers,
                        // Rounding, int). Blocks and shared memory are the form's.
                        unsafe { launch.blocks(form.blocks, pingpong::THREADS).overlapped().go()? };
                        drop((of_weight, of_velocity));
                        (BEHIND, numbers.of_biases(rows, cols))
                    } else {
                        let launch = begin("sm_90a/cd_update", "cd_update_rounded")?;
                        let (down, across) = (rows.div_ceil(TILE), cols.div_ceil(WIDE * TILE));
                        let blocks = warpgroup_blocks(gpu.limits(), down, across, true);
                        let launch = launch.blocks(blocks, ROUNDED_THREADS);
                        let (rooms, shared_bytes) = Rooms::of(batch, WIDE, SUBTILES, 2 + 2);
                        let launch = launch.shared(shared_bytes).overlapped();
                        let launch = launch.write(&mut hidden).read(&scalars);
                        let launch = launch.write(&mut counter).num(numbers).num(Grid::default());
                        // SAFETY: (4 × TensorMap, float*, const float*, const long long*, Numbers,
                        // Grid, Rounding, int, Rooms); the plan checked that the states fit.
                        unsafe { launch.num(rounding).num(1i32).num(rooms).go()? };
                        drop((of_weight, of_velocity));
                        // Those of hidden units are done.
                        (place_of_biases(batch), numbers.of_biases(0, cols))
                    }
                };
                drop((of_h, of_x));
                let states = States { h: &h, x: &x, hidden: &mut hidden, visible: &mut visible };
                return launch_biases(OP, place, "bf16", gpu, states, &scalars, &mut counter, biases);
            }
        };
        let blocks = form.blocks + rows.div_ceil(UNITS) + cols.div_ceil(UNITS);
        let launch = gpu.launch(OP, "cd_update", &format!("cd_update_{}_rounded", form.name))?;
        let launch = launch.write(&mut weight).write(&mut velocity).read(&h).read(&x);
        let launch = launch.write(&mut hidden).write(&mut visible).read(&scalars).write(&mut counter);
        let launch = launch.num(numbers).num(rounding).blocks(blocks, form.threads).shared(form.shared_bytes);
        // SAFETY: (2 × bf16*, 2 × const bf16*, 2 × float*, const float*, long long*, Numbers,
        // Rounding) with the shapes that `Sizes::of` checked; by `Chunk::of` lines and views begin
        // on what the form copies at once. Shared memory is the shape's `SHARED`.
        unsafe { launch.overlapped().go()? };
        advance_on(gpu, &mut counter, step.advance)
    }
}
