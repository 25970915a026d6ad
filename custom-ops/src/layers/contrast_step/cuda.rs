//! The update in one launch of `kernels/layers/contrast_step.cu`, or of `kernels/layers/patch_step.cu` for the weights of patches; that of large matrices on GPUs
//! of capability 9.0 in one of `kernels/layers/sm_90a/contrast_step.cu` for the weights, or of `contrast_step_parts.cu` there for states in two parts, and
//! one for the biases; that of small ones there in one of `kernels/layers/sm_90a/contrast_step_small.cu`.
use super::shape::{Chunk, Shape};
use super::small::{self, Small};
use super::{Contrast, ContrastStep, OP, Sizes, hidden_biases, visible_biases};
use crate::core::cuda::{Address, Fetch, Gpu, Grid, TensorMap};
use crate::core::limits::Limits;
use crate::core::op::{Io, Kernel, operands};
use crate::layers::bias_step::BiasRule;
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use candle::{CudaStorage, DType, Device, Result, Tensor};
use half::{bf16, f16};

/// Of kernels/layers/contrast_step.cu.
pub(super) const THREADS: u32 = 256;
pub(super) const UNITS: usize = 32;
/// Threads of the kernels that take all sizes, each of which steps a weight.
pub(super) const ANY_THREADS: u32 = 512;
/// Units of a block of the kernel of biases beside that of warpgroups.
const BESIDE_UNITS: usize = 64;
/// Of kernels/layers/sm_90a/contrast_step.cu and contrast_step_parts.cu: the sides of a tile, bytes of a line of a block, rows of a k-block, k-blocks of both
/// phases at most, shared memory (`SHARED` and `ONES_BYTES`, which states of two parts leave), and threads for states of one part and of two.
pub(super) const TILE: usize = 64;
const LINE: usize = 128;
pub(super) const K_BLOCK_DEPTH: usize = 64;
const K_BLOCKS: usize = 6;
pub(super) const WARPGROUP_SHARED: usize = 217 * 1024 + 2048;
pub(super) const WARPGROUP_THREADS: [u32; 2] = [384, 320];
/// Squares side by side in a tile of weights of 16 bits.
pub(super) const WIDE: usize = 2;
/// Tiles of a multiprocessor for which it is the faster kernel.
const LEAST_TILES: usize = 6;

/// Whether the checked operands are for one kernel; else the ops go one after the other.
///
/// # Errors
/// When the kernel takes them, but for an option.
pub(super) fn fits(to: Contrast<'_>, hidden: &Tensor, step: ContrastStep<'_>, sizes: Sizes) -> Result<bool> {
    let states = hidden.dtype();
    let fuses = to.params.device().is_cuda()
        && counted(sizes)
        && states != DType::F32
        && to.velocity.is_some() == (states == DType::BF16)
        && to.copy.is_some();
    if fuses && step.visible_scale.is_some() {
        candle::bail!("{OP}: visible_scale is for f32 states, got {states:?}")
    }
    Ok(fuses)
}

/// Whether the kernels can count these sizes.
pub(super) fn counted(Sizes { batch, rows, cols, .. }: Sizes) -> bool {
    [batch, rows, cols].iter().all(|&n| i32::try_from(n).is_ok())
}

/// What kernels copy at once of these operands: the one rule for all forms. `hidden` and `visible` are the states.
pub(super) fn chunk_of(to: Contrast<'_>, hidden: &Tensor, visible: &Tensor, sizes: Sizes) -> Chunk {
    let start = |t: &Tensor| t.layout().start_offset();
    let mut narrow = vec![];
    for states in [hidden, visible] {
        narrow.push(start(states));
        if sizes.parts == 2 {
            narrow.push(states.stride()[0]);
        }
    }
    narrow.extend(to.velocity.into_iter().chain(to.copy).map(start));
    let masters = to.params.dtype() == DType::F32;
    if !masters {
        narrow.push(start(to.params));
    }
    let wide = if masters { &[start(to.params)][..] } else { &[] };
    Chunk::of(&[sizes.rows, sizes.cols], &narrow, wide)
}

/// Patches, each with a matrix of weights of its own.
#[derive(Clone, Copy)]
pub(crate) struct Patches {
    pub grid: Grid,
    pub n: usize,
    /// Values of a row of the grid.
    pub values: usize,
    /// Whether the products of warpgroups can read windows; see `PatchGrid::has_boxed_windows`.
    pub boxed_windows: bool,
}

/// Runs the kernel; with `patches`, `sizes` are those of the matrix of one.
#[expect(clippy::too_many_arguments, reason = "those of the op")]
pub(crate) fn run(
    op: &'static str,
    to: Contrast<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: ContrastStep<'_>,
    sizes: Sizes,
    patches: Option<Patches>,
) -> Result<()> {
    let Some(copy) = to.copy else { candle::bail!("{op}: copy is missing") };
    let io = operands(op).write("params", to.params).write("copy", copy);
    let io = io.write("hidden_state", to.hidden_state).write("visible_state", to.visible_state);
    let io = io.write("counter", to.counter);
    let io = io.read("hidden", hidden).read("visible", visible).read("scalars", scalars);
    let halves = to.params.dtype() == DType::I16;
    let chunk = chunk_of(to, hidden, visible, sizes);
    let kernel = Fused { op, step, sizes, patches, dtype: hidden.dtype(), halves, chunk };
    match to.velocity {
        Some(velocity) => io.write("velocity", velocity).run(&kernel),
        None => io.run(&kernel),
    }
}

/// The update in one kernel.
struct Fused<'a> {
    op: &'static str,
    step: ContrastStep<'a>,
    sizes: Sizes,
    patches: Option<Patches>,
    /// Of the states.
    dtype: DType,
    /// Whether the weights are stored in halves.
    halves: bool,
    chunk: Chunk,
}

/// `Numbers` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    h_part: u64,
    x_part: u64,
    copy_part: u64,
    by: i64,
    hidden: BiasRule,
    visible: BiasRule,
    l1: f32,
    l2: f32,
    scale: f32,
    rows: i32,
    cols: i32,
    batch: i32,
}
// SAFETY: four 64-bit numbers and then 32-bit ones, without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Numbers {}

impl Numbers {
    /// Of the update of `n` matrices, from states whose parts are so many entries apart.
    pub(super) fn of(
        step: ContrastStep<'_>,
        sizes: Sizes,
        n: usize,
        (h_part, x_part): (usize, usize),
    ) -> Self {
        let Sizes { batch, rows, cols, .. } = sizes;
        Self {
            h_part: h_part as u64,
            x_part: x_part as u64,
            copy_part: (n * rows * cols) as u64,
            by: step.advance,
            hidden: BiasRule::from(hidden_biases(step)),
            visible: BiasRule::from(visible_biases(step)),
            l1: step.weights.l1,
            l2: step.weights.l2,
            scale: step.copy_scale,
            rows: rows as i32,
            cols: cols as i32,
            batch: batch as i32,
        }
    }

    /// For [`launch_biases`] of so many units.
    pub(super) fn of_biases(self, hidden: usize, visible: usize) -> Self {
        Self { rows: hidden as i32, cols: visible as i32, ..self }
    }
}

impl Fused<'_> {
    fn launch<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let Self { op, step, patches, sizes: Sizes { parts, batch, rows, cols }, .. } = *self;
        let n = patches.map_or(1, |patches| patches.n);
        let (n_hidden, n_visible) = (n * rows, patches.map_or(cols, |patches| patches.values));
        let (params, copy, hidden_state, visible_state, counter, velocity, [h, x, scalars]) = match self.dtype
        {
            DType::BF16 => {
                let ([params, copy, hidden, visible, counter, velocity], read) = io.parts()?;
                (params, copy, hidden, visible, counter, Some(velocity), read)
            }
            _ => {
                let ([params, copy, hidden, visible, counter], read) = io.parts()?;
                (params, copy, hidden, visible, counter, None, read)
            }
        };
        let (h_part, x_part) = (h.layout()?.stride()[0], x.layout()?.stride()[0]);
        let span = |part: usize, width: usize| (parts - 1) * part + 2 * batch * width;
        let (h, x) = (h.span::<T>(span(h_part, n_hidden))?, x.span::<T>(span(x_part, n_visible))?);
        let mut copy = copy.elements::<T>()?;
        let mut weights = match self.halves {
            true => Weights::Lower(params.elements::<i16>()?),
            false => Weights::Whole(params.elements::<f32>()?),
        };
        let mut velocity = velocity.map(|velocity| velocity.elements::<bf16>()).transpose()?;
        let (mut hidden_state, mut visible_state) =
            (hidden_state.elements::<f32>()?, visible_state.elements::<f32>()?);
        let (scalars, mut counter) = (scalars.elements::<f32>()?, counter.elements::<i64>()?);
        let numbers = Numbers::of(step, self.sizes, n, (h_part, x_part));
        let of_biases = n_hidden.div_ceil(UNITS) + n_visible.div_ceil(UNITS);
        let wide = self.chunk == Chunk::Eight;
        if wide
            && patches.is_none_or(|patches| patches.boxed_windows)
            && warpgroups(gpu.limits(), self.sizes, n)
        {
            let velocity = velocity.as_mut();
            let hidden = &mut hidden_state;
            let operands =
                Operands { weights: &mut weights, velocity, copy: &mut copy, hidden, h: &h, x: &x };
            self.launch_warpgroups(dtype, gpu, operands, &scalars, numbers)?;
            let states = States { h: &h, x: &x, hidden: &mut hidden_state, visible: &mut visible_state };
            // Those of hidden units are done where states are of one part.
            let numbers = numbers.of_biases(if parts == 1 { 0 } else { n_hidden }, n_visible);
            return launch_biases(op, dtype, gpu, states, &scalars, &mut counter, numbers);
        }
        let Weights::Whole(mut params) = weights else {
            candle::bail!(
                "{op}: no kernel takes weights in halves here, see contrast_step_takes_halves and patch_step_takes_halves, or views that begin between 16 bytes, got {rows} x {cols}"
            )
        };
        if let Some(form) = Small::of(gpu.limits(), self.sizes).filter(|_| wide && patches.is_none()) {
            let (h_map, _h) = self.states(gpu, &h, rows, numbers.h_part, form.depth)?;
            let (x_map, _x) = self.states(gpu, &x, cols, numbers.x_part, form.depth)?;
            let kernel = format!("contrast_step_small_{dtype}_{}", form.cluster);
            let launch = gpu.launch(op, "sm_90a/contrast_step_small", &kernel)?;
            let launch =
                launch.write(&mut params).maybe_write(&mut velocity).read(&h).read(&x).write(&mut copy);
            let launch = launch.write(&mut hidden_state).write(&mut visible_state).read(&scalars);
            let launch = launch.write(&mut counter).num(h_map).num(x_map).num(numbers);
            let launch = launch.blocks(form.blocks(of_biases), small::THREADS).shared(form.shared_bytes());
            // SAFETY: (float*, V* or null, 2 × const T*, T*, 2 × float*, const float*, long long*, 2 × TensorMap, Numbers) with the shapes that
            // `Sizes::of` checked and maps of the states; by `Chunk::of` lines are multiples of 16 bytes, on which views and parts begin. Blocks,
            // clusters and shared memory are those of the form.
            return unsafe { launch.clusters_of(form.cluster as u32).overlapped().go() };
        }
        let (file, form, blocks, threads, shared_bytes) = match (patches, self.chunk) {
            (None, Chunk::One) => {
                let blocks = (rows * cols).div_ceil(ANY_THREADS as usize);
                ("contrast_step", "any", blocks, ANY_THREADS, 0)
            }
            (None, chunk) => {
                let shape = Shape::of(gpu.limits(), parts, rows, cols, chunk);
                ("contrast_step", shape.name, shape.tiles(rows, cols), THREADS, shape.shared_bytes())
            }
            (Some(_), _) => {
                let shape = Shape::of_patches(gpu.limits(), parts, rows, cols);
                ("patch_step", shape.name, n * shape.tiles(rows, cols), THREADS, shape.shared_bytes())
            }
        };
        let launch = gpu.launch(op, file, &format!("{file}_{form}_{dtype}"))?;
        let launch = launch.write(&mut params).maybe_write(&mut velocity).read(&h).read(&x).write(&mut copy);
        let launch = launch.write(&mut hidden_state).write(&mut visible_state).read(&scalars);
        let launch = launch.write(&mut counter).num(numbers);
        let launch = match patches {
            Some(patches) => launch.num(patches.grid),
            None => launch,
        };
        // SAFETY: (float*, V* or null, 2 × const T*, T*, 2 × float*, const float*, long long*, Numbers, and Grid for patches) with the shapes
        // that `Sizes::of` or `patch_contrast_step_` checked; by `Chunk::of`, or the callers for patches, lines, views and parts begin on what the form
        // copies at once. Shared memory is the shape's `SHARED`.
        unsafe { launch.blocks(blocks + of_biases, threads).shared(shared_bytes).overlapped().go() }
    }

    /// The states of one side, `width` units and parts `part` entries apart, as the kernels of warpgroups see them, `depth` rows at a time. The use
    /// of their memory is logged when the address is dropped.
    fn states<'a, T: CudaDType>(
        &self,
        gpu: &'a Gpu,
        view: &'a CudaView<'_, T>,
        width: usize,
        part: u64,
        depth: usize,
    ) -> Result<(TensorMap, Address<'a>)> {
        let Sizes { parts, batch, .. } = self.sizes;
        let at = gpu.to_read(view);
        Ok((map_of_states(at.at, self.dtype, [width, batch, parts], part as usize, depth)?, at))
    }
}

/// What the launch of the biases beside the kernel of warpgroups reads and changes.
pub(super) struct States<'a, 'b, T> {
    pub h: &'a CudaView<'b, T>,
    pub x: &'a CudaView<'b, T>,
    pub hidden: &'a mut CudaViewMut<'b, f32>,
    pub visible: &'a mut CudaViewMut<'b, f32>,
}

/// The biases of `numbers.rows` hidden units and `numbers.cols` visible ones, and the counter, beside the weights, where there is room for its blocks:
/// it waits for the launch before at its end.
pub(super) fn launch_biases<T: CudaDType>(
    op: &'static str,
    dtype: &str,
    gpu: &Gpu,
    states: States<'_, '_, T>,
    scalars: &CudaView<'_, f32>,
    counter: &mut CudaViewMut<'_, i64>,
    numbers: Numbers,
) -> Result<()> {
    let biases = gpu.launch(op, "contrast_step", &format!("contrast_biases_{dtype}"))?;
    let biases = biases.read(states.h).read(states.x).write(states.hidden).write(states.visible);
    let blocks = [numbers.rows, numbers.cols].map(|n| (n as usize).div_ceil(BESIDE_UNITS)).iter().sum();
    let biases = biases.read(scalars).write(counter).num(numbers);
    // SAFETY: (2 × const T*, 2 × float*, const float*, long long*, Numbers) with the shapes that `Sizes::of` or `patch_contrast_step_` checked.
    unsafe { biases.blocks(blocks, THREADS).overlapped().go() }
}

/// Whether the kernel of warpgroups is for an update of `n` matrices: on capability 9.0, for so many tiles that each multiprocessor has several,
/// and states that it can hold. The matrices of patches follow each other, so that a tile must not go beyond one.
pub(super) fn warpgroups(limits: Limits, sizes: Sizes, n: usize) -> bool {
    let Sizes { batch, rows, cols, .. } = sizes;
    limits.has_warpgroup_products()
        && limits.shared_bytes >= WARPGROUP_SHARED + 512
        && rows.is_multiple_of(8)
        && cols.is_multiple_of(8)
        && 2 * batch.div_ceil(K_BLOCK_DEPTH) <= K_BLOCKS
        && (n == 1 || rows.is_multiple_of(TILE))
        && n * warpgroup_tiles(sizes) >= LEAST_TILES * limits.multiprocessors
        && [n * rows, cols, batch].iter().all(|&size| i32::try_from(size).is_ok())
}

/// Its tiles of a matrix.
fn warpgroup_tiles(Sizes { rows, cols, .. }: Sizes) -> usize {
    rows.div_ceil(TILE) * cols.div_ceil(TILE)
}

/// Blocks, one for each multiprocessor, as far as there are runs of tiles, of which `across` lie beside each other and `down` below each other. Where
/// x should stay (`keeps`), a multiple of `across`, if that leaves at most a tenth of the multiprocessors idle: each block then stays in a column of
/// tiles, where blocks that move on wait for another x a tenth of the time.
pub(super) fn warpgroup_blocks(limits: Limits, down: usize, across: usize, keeps: bool) -> usize {
    let most = (down * across).min(limits.multiprocessors);
    let keeping = most - most % across;
    if keeps && 10 * keeping >= 9 * most { keeping } else { most }
}

/// Tiles of a run in the matrix of a patch: all that lie below each other, in equal runs of at most four, since long ones leave multiprocessors
/// idle at the end.
fn run_height(rows: usize) -> usize {
    let down = rows.div_ceil(TILE);
    down.div_ceil(down.div_ceil(4))
}

/// Whether the update of `n` matrices takes weights in halves.
pub(crate) fn takes_halves(device: &Device, sizes: Sizes, n: usize) -> bool {
    let Device::Cuda(device) = device else { return false };
    Gpu::of(device).is_ok_and(|gpu| warpgroups(gpu.limits(), sizes, n))
}

/// States of both phases as copies of `depth` rows see them, in parts `part` entries apart.
pub(super) fn map_of_states(
    at: u64,
    dtype: DType,
    [width, batch, parts]: [usize; 3],
    part: usize,
    depth: usize,
) -> Result<TensorMap> {
    let (sizes, apart) = ([width, batch, 2, parts], [width, batch * width, part]);
    // One part has no place for the next.
    TensorMap::of(at, dtype, &sizes[..2 + parts], &apart[..1 + parts], [LINE, depth], Fetch::TwoLines)
}

/// Weights, velocities or a copy as its copies see them.
pub(super) fn map_of_weights(
    at: u64,
    dtype: DType,
    [rows, cols]: [usize; 2],
    fetch: Fetch,
) -> Result<TensorMap> {
    TensorMap::of(at, dtype, &[cols, rows], &[cols], [LINE, TILE], fetch)
}

/// Weights as they are stored.
enum Weights<'b> {
    /// f32, with the velocity behind them unless that is stored apart.
    Whole(CudaViewMut<'b, f32>),
    /// The lower halves of weights whose upper halves are the copy.
    Lower(CudaViewMut<'b, i16>),
}

/// What the kernel of warpgroups changes and reads.
struct Operands<'a, 'b, T> {
    weights: &'a mut Weights<'b>,
    velocity: Option<&'a mut CudaViewMut<'b, bf16>>,
    copy: &'a mut CudaViewMut<'b, T>,
    /// Biases of the hidden units, see `bias_step_`.
    hidden: &'a mut CudaViewMut<'b, f32>,
    h: &'a CudaView<'b, T>,
    x: &'a CudaView<'b, T>,
}

impl Fused<'_> {
    fn launch_warpgroups<T: CudaDType>(
        &self,
        dtype: &str,
        gpu: &Gpu,
        operands: Operands<'_, '_, T>,
        scalars: &CudaView<'_, f32>,
        numbers: Numbers,
    ) -> Result<()> {
        let Self { op, patches, sizes: Sizes { parts, rows, cols, .. }, .. } = *self;
        let Operands { weights, velocity, copy, hidden, h, x } = operands;
        let kind = if patches.is_some() { "patch_step" } else { "contrast_step" };
        // One matrix has no grid. The weights of patches lie below each other.
        let whole = Patches { grid: Grid::default(), n: 1, values: cols, boxed_windows: true };
        let patches = patches.unwrap_or(whole);
        let height = if kind == "patch_step" { run_height(rows) } else { 1 };
        let down = patches.n * rows.div_ceil(TILE).div_ceil(height);
        let rows = patches.n * rows;
        let (h_map, _h) = self.states(gpu, h, rows, numbers.h_part, K_BLOCK_DEPTH)?;
        let (x_map, _x) = self.states(gpu, x, patches.values, numbers.x_part, K_BLOCK_DEPTH)?;
        let file = if parts == 1 { "sm_90a/contrast_step" } else { "sm_90a/contrast_step_parts" };
        let keeps = parts == 1 && kind == "contrast_step";
        let (form, wide) = match weights {
            Weights::Lower(_) => ("halves", WIDE),
            Weights::Whole(_) => (dtype, 1),
        };
        let blocks = warpgroup_blocks(gpu.limits(), down, cols.div_ceil(wide * TILE), keeps);
        let launch = gpu.launch(op, file, &format!("{kind}_{form}"))?;
        let launch =
            launch.blocks(blocks, WARPGROUP_THREADS[parts - 1]).shared(WARPGROUP_SHARED).overlapped();
        let height = height as i32;
        if let (Weights::Whole(params), 2) = (&mut *weights, parts) {
            let launch = launch.write(params).write(copy).num(h_map).num(x_map).read(scalars);
            // SAFETY: (float*, half*, 2 × TensorMap, const float*, Numbers, Grid, int): weights with the velocity behind them and two parts of a
            // copy, maps of the states, whose memory has addresses that are alive, in the blocks that the kernel takes; the callers checked shapes
            // and where views and parts begin, `warpgroups` that lines are multiples of 16 bytes and that the states fit.
            return unsafe { launch.num(numbers).num(patches.grid).num(height).go() };
        }
        // The map of lower halves only needs their size.
        let (weights, of_weights) = match weights {
            Weights::Whole(params) => (gpu.to_write(params), DType::F32),
            Weights::Lower(lower) => (gpu.to_write(lower), DType::BF16),
        };
        let (copy, velocity) = (gpu.to_write(copy), velocity.map(|velocity| gpu.to_write(velocity)));
        // Without a velocity of its own, that of f32 lies behind the weights.
        let (of_velocity, velocity_at) = match &velocity {
            Some(velocity) => (DType::BF16, velocity.at),
            None => (DType::F32, weights.at + 4 * (rows * cols) as u64),
        };
        // Blocks take the tiles of a patch that lie beside each other further apart.
        let fetch = if kind == "patch_step" { Fetch::Line } else { Fetch::TwoLines };
        let map = |at, dtype| map_of_weights(at, dtype, [rows, cols], fetch);
        let launch = launch.num(h_map).num(x_map).num(map(weights.at, of_weights)?);
        let launch = launch.num(map(velocity_at, of_velocity)?).num(map(copy.at, self.dtype)?);
        let launch = launch.write(hidden).read(scalars);
        // SAFETY: (5 × TensorMap, float*, const float*, Numbers, Grid, int): maps of the states, of the weights, the velocity and the copy, whose memory
        // has addresses that are alive, in the blocks that the kernel takes; shapes and where views begin were checked as above. Weights in halves
        // have a velocity of their own.
        unsafe { launch.num(numbers).num(patches.grid).num(height).go() }
    }
}

impl Kernel for Fused<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.dtype, self.sizes.parts) {
            (DType::BF16, _) => self.launch::<bf16>("bf16", gpu, io),
            (_, 1) => self.launch::<f16>("f16", gpu, io),
            _ => self.launch::<f16>("f16x2", gpu, io),
        }
    }
}
