//! The update in one launch of `kernels/layers/cd_update.cu`, or of
//! `kernels/layers/patch_step.cu` for the weights of patches; that of large matrices on GPUs of
//! capability 9.0 in one of `kernels/layers/sm_90a/cd_update.cu` for the weights, or of
//! `patch_step_parts.cu` there for patches and states in two parts, of `cd_update_pingpong.cu` for
//! others in two parts and, as `cd_update_deep.cu`, for minibatches of more rows, and one for the
//! biases; that of small ones there in one of `kernels/layers/sm_90a/cd_update_small.cu`.
use super::deep::{self, Deep};
use super::pingpong::PingPong;
use super::plan::{Matrices, Plain, Plan, THREADS, WARPGROUP_SHARED, large, warpgroups};
use super::shape::Chunk;
use super::small::{self, Small};
use super::staying::{K_BLOCK_DEPTH, K_BLOCKS, Rooms, TILE, k_blocks};
use super::{CdOperands, CdUpdate, LastStep, OP, Sizes, hidden_biases, visible_biases};
use crate::core::cuda::{Address, Fetch, Gpu, Grid, TensorMap};
use crate::core::limits::Limits;
use crate::core::op::{Io, Kernel, operands};
use crate::layers::bias_step::BiasRule;
use crate::layers::pingpong;
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use candle::{CudaStorage, DType, Device, Result, Tensor};
use half::{bf16, f16};

/// Units that a block of kernels/layers/cd_update.cu has the biases of.
pub(super) const UNITS: usize = 32;
/// Where the kernels of biases run: their names, and the units of a block.
const BESIDE: (&str, usize) = ("cd_biases", 64);
pub(super) const BEHIND: (&str, usize) = ("cd_biases_behind", 32);
/// Of kernels/layers/sm_90a/cd_update.cu and patch_step_parts.cu: bytes of a line of a
/// block, and threads for states of one part and of two.
pub(super) const LINE: usize = 128;
const WARPGROUP_THREADS: [u32; 2] = [384, 320];
/// Most subtiles in its shared memory.
const SUBTILES: usize = 3;
/// Subtiles side by side in a tile of weights of 16 bits.
pub(super) const WIDE: usize = 2;

/// Whether the checked operands are for one kernel; else the ops go one after the other.
///
/// # Errors
/// When the kernel takes them, but for an option.
pub(super) fn fits(to: CdOperands<'_>, hidden: &Tensor, step: CdUpdate<'_>, sizes: Sizes) -> Result<bool> {
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

/// What kernels copy at once of these operands: the one rule for all forms. `hidden` and `visible`
/// are the states.
pub(super) fn chunk_of(to: CdOperands<'_>, hidden: &Tensor, visible: &Tensor, sizes: Sizes) -> Chunk {
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
    /// The form of the kernel that has the last means of hidden units, too, for weights in halves;
    /// see `patch_last_step_`.
    pub last_step: Option<LastStep>,
}

/// Runs the kernel; with `patches`, `sizes` are those of the matrix of one.
#[expect(clippy::too_many_arguments, reason = "those of the op")]
pub(crate) fn run(
    op: &'static str,
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
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
    io.maybe_write("velocity", to.velocity).run(&kernel)
}

/// The update in one kernel.
struct Fused<'a> {
    op: &'static str,
    step: CdUpdate<'a>,
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
// SAFETY: four 64-bit numbers and then 32-bit ones, without padding, the same layout as the
// kernel's struct.
unsafe impl DeviceRepr for Numbers {}

impl Numbers {
    /// Of the update of `n` matrices, from states whose parts are so many entries apart.
    pub(super) fn of(step: CdUpdate<'_>, sizes: Sizes, n: usize, (h_part, x_part): (usize, usize)) -> Self {
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
        let matrices = match self.patches {
            Some(Patches { n, boxed_windows, .. }) => Matrices::Patches { n, boxed_windows },
            None if self.halves => Matrices::Halves,
            None => Matrices::One,
        };
        let of = self.operands::<T>(io)?;
        match Plan::of(gpu.limits(), self.sizes, self.chunk, matrices) {
            Plan::Warpgroups => self.launch_warpgroups(dtype, gpu, of),
            Plan::PingPong(form) => self.launch_pingpong(form, dtype, gpu, of),
            Plan::Deep(form) => self.launch_deep(form, dtype, gpu, of),
            Plan::Small(form) => self.launch_small(form, dtype, gpu, of),
            Plan::Plain(form) => self.launch_plain(form, dtype, gpu, of),
        }
    }

    /// Units of both sides.
    fn units(&self) -> (usize, usize) {
        let Sizes { rows, cols, .. } = self.sizes;
        self.patches.map_or((rows, cols), |patches| (patches.n * rows, patches.values))
    }

    fn operands<'a, T: CudaDType>(&self, io: Io<'a, CudaStorage>) -> Result<Operands<'a, T>> {
        let Sizes { parts, batch, .. } = self.sizes;
        let (params, copy, hidden, visible, counter, velocity, [h, x, scalars]) = match self.dtype {
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
        let (n_hidden, n_visible) = self.units();
        let span = |part: usize, width: usize| (parts - 1) * part + 2 * batch * width;
        let n = self.patches.map_or(1, |patches| patches.n);
        Ok(Operands {
            weights: match self.halves {
                true => Weights::Lower(params.elements::<i16>()?),
                false => Weights::Whole(params.elements::<f32>()?),
            },
            velocity: velocity.map(|velocity| velocity.elements::<bf16>()).transpose()?,
            copy: copy.elements::<T>()?,
            hidden: hidden.elements::<f32>()?,
            visible: visible.elements::<f32>()?,
            counter: counter.elements::<i64>()?,
            h: h.span::<T>(span(h_part, n_hidden))?,
            x: x.span::<T>(span(x_part, n_visible))?,
            scalars: scalars.elements::<f32>()?,
            numbers: Numbers::of(self.step, self.sizes, n, (h_part, x_part)),
        })
    }

    /// The plain kernels: a block for each tile of the weights, then those of the biases.
    fn launch_plain<T: CudaDType>(
        &self,
        form: Plain,
        dtype: &str,
        gpu: &Gpu,
        mut of: Operands<'_, T>,
    ) -> Result<()> {
        let mut params = of.weights.whole(self.op, self.sizes)?;
        let file = if self.patches.is_some() { "patch_step" } else { "cd_update" };
        let launch = gpu.launch(self.op, file, &format!("{file}_{}_{dtype}", form.name))?;
        let launch = launch.write(&mut params).maybe_write(&mut of.velocity).read(&of.h).read(&of.x);
        let launch =
            launch.write(&mut of.copy).write(&mut of.hidden).write(&mut of.visible).read(&of.scalars);
        let launch = launch.write(&mut of.counter).num(of.numbers);
        let launch = match self.patches {
            Some(patches) => launch.num(patches.grid),
            None => launch,
        };
        let launch = launch.blocks(form.blocks + self.bias_blocks(), form.threads).shared(form.shared_bytes);
        // SAFETY: (float*, V* or null, 2 × const T*, T*, 2 × float*, const float*, long long*,
        // Numbers, and Grid for patches) with the shapes that `Sizes::of` or `patch_cd_update_`
        // checked; by `Chunk::of`, or the callers for patches, lines, views and parts begin on what
        // the form copies at once. Shared memory is the shape's `SHARED`.
        unsafe { launch.overlapped().go() }
    }

    /// The kernel of small matrices on capability 9.0.
    fn launch_small<T: CudaDType>(
        &self,
        form: Small,
        dtype: &str,
        gpu: &Gpu,
        mut of: Operands<'_, T>,
    ) -> Result<()> {
        let Sizes { rows, cols, .. } = self.sizes;
        let mut params = of.weights.whole(self.op, self.sizes)?;
        let (h_map, _h) = self.states(gpu, &of.h, rows, of.numbers.h_part, form.depth)?;
        let (x_map, _x) = self.states(gpu, &of.x, cols, of.numbers.x_part, form.depth)?;
        let kernel = format!("cd_update_small_{dtype}_{}", form.cluster);
        let launch = gpu.launch(self.op, "sm_90a/cd_update_small", &kernel)?;
        let launch = launch.write(&mut params).maybe_write(&mut of.velocity).read(&of.h).read(&of.x);
        let launch =
            launch.write(&mut of.copy).write(&mut of.hidden).write(&mut of.visible).read(&of.scalars);
        let launch = launch.write(&mut of.counter).num(h_map).num(x_map).num(of.numbers);
        let launch = launch.blocks(form.blocks(self.bias_blocks()), small::THREADS);
        let launch = launch.shared(form.shared_bytes()).clusters_of(form.cluster as u32);
        // SAFETY: (float*, V* or null, 2 × const T*, T*, 2 × float*, const float*, long long*, 2 ×
        // TensorMap, Numbers) with the shapes that `Sizes::of` checked and maps of the states; by
        // `Chunk::of` lines are multiples of 16 bytes, on which views and parts begin. Blocks,
        // clusters and shared memory are those of the form.
        unsafe { launch.overlapped().go() }
    }

    /// The kernel of large matrices for minibatches of some rows, and behind it the biases and the
    /// counter.
    fn launch_pingpong<T: CudaDType>(
        &self,
        form: PingPong,
        dtype: &str,
        gpu: &Gpu,
        mut of: Operands<'_, T>,
    ) -> Result<()> {
        let Sizes { parts, batch, rows, cols } = self.sizes;
        let Operands { weights, velocity, copy, h, x, scalars, numbers, .. } = &mut of;
        let numbers = *numbers;
        let (of_h, of_x) = (gpu.to_read(h), gpu.to_read(x));
        let columns = |at, width, part| {
            let block = [pingpong::TILE, form.depth];
            columns_of_states(at, self.dtype, [width, batch, parts], part as usize, block)
        };
        let (h_map, x_map) =
            (columns(of_h.at, rows, numbers.h_part)?, columns(of_x.at, cols, numbers.x_part)?);
        let of_velocity = if velocity.is_some() { 2 } else { 4 };
        let (kernel, of_weight) = match weights {
            Weights::Whole(_) => (dtype, 4),
            Weights::Lower(_) => ("halves", 2),
        };
        let rooms = form.rooms(of_weight + of_velocity + parts * self.dtype.size_in_bytes());
        let maps = self.weights(gpu, (weights, velocity, copy), parts, [rows, cols], Fetch::TwoLines)?;
        let kernel = format!("cd_update_pingpong_{kernel}");
        let launch = gpu.launch(self.op, "sm_90a/cd_update_pingpong", &kernel)?;
        let launch = launch.num(h_map).num(x_map).num(maps.weights).num(maps.velocity);
        let launch = maps.copies[..parts].iter().fold(launch, |launch, &copy| launch.num(copy));
        let launch = launch.read(scalars).num(numbers).num(rooms.subtiles as i32);
        let launch = launch.blocks(form.blocks, pingpong::THREADS).shared(rooms.shared_bytes);
        // SAFETY: (4 × TensorMap and one for each part of the copy, const float*, Numbers, int): maps
        // of the states, of the weights, the velocity and the copy, whose memory has addresses that
        // are alive, in the blocks that the kernel takes; `Sizes::of` checked shapes, and `Chunk::of`
        // that lines are multiples of 16 bytes, on which views begin. Weights in halves have a
        // velocity of their own. Blocks and shared memory are the form's.
        unsafe { launch.overlapped().go()? };
        drop((maps, of_h, of_x));
        self.launch_biases_behind(dtype, gpu, of)
    }

    /// The kernel of minibatches of many rows, and behind it the biases and the counter.
    fn launch_deep<T: CudaDType>(
        &self,
        form: Deep,
        dtype: &str,
        gpu: &Gpu,
        mut of: Operands<'_, T>,
    ) -> Result<()> {
        let Sizes { parts, batch, rows, cols } = self.sizes;
        let (of_h, of_x) = (gpu.to_read(&of.h), gpu.to_read(&of.x));
        let columns = |at, width, part, most| {
            columns_of_states(at, self.dtype, [width, batch, parts], part as usize, [most, form.depth])
        };
        let h_map = columns(of_h.at, rows, of.numbers.h_part, deep::ROWS)?;
        let x_map = columns(of_x.at, cols, of.numbers.x_part, form.columns())?;
        let kernel = if self.halves { "halves" } else { dtype };
        let kernel = format!("cd_update_deep_{kernel}_{}", form.columns());
        let launch = gpu.launch(self.op, "sm_90a/cd_update_deep", &kernel)?;
        let launch = match &mut of.weights {
            Weights::Whole(params) => launch.write(params),
            Weights::Lower(lower) => launch.write(lower),
        };
        let launch = launch.maybe_write(&mut of.velocity).write(&mut of.copy).read(&of.scalars);
        let launch = launch.num(h_map).num(x_map).num(of.numbers).num(form.cluster() as i32);
        let launch = launch.blocks(form.blocks, deep::THREADS).shared(form.shared_bytes());
        // SAFETY: (W*, V* or null, T*, const float*, 2 × TensorMap, Numbers, int) with the shapes
        // that `Sizes::of` checked and maps of the states, whose memory has addresses that are
        // alive; by `Chunk::of` lines are multiples of 16 bytes, on which views begin. Weights in
        // halves have a velocity of their own. Blocks, clusters and shared memory are the form's.
        unsafe { launch.clusters_of(form.cluster() as u32).overlapped().go()? };
        drop((of_h, of_x));
        self.launch_biases_behind(dtype, gpu, of)
    }

    /// The biases of both sides and the counter, [`BEHIND`] the weights.
    fn launch_biases_behind<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, of: Operands<'_, T>) -> Result<()> {
        let Operands { mut hidden, mut visible, mut counter, h, x, scalars, numbers, .. } = of;
        let states = States { h: &h, x: &x, hidden: &mut hidden, visible: &mut visible };
        launch_biases(self.op, BEHIND, dtype, gpu, states, &scalars, &mut counter, numbers)
    }

    /// Blocks of the biases in the launch of the weights.
    fn bias_blocks(&self) -> usize {
        let (n_hidden, n_visible) = self.units();
        n_hidden.div_ceil(UNITS) + n_visible.div_ceil(UNITS)
    }

    /// The kernels of warpgroups: the weights, and beside or behind them the biases and the
    /// counter.
    fn launch_warpgroups<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, mut of: Operands<'_, T>) -> Result<()> {
        self.launch_weights(dtype, gpu, &mut of)?;
        let Operands { mut hidden, mut visible, mut counter, h, x, scalars, numbers, .. } = of;
        let (n_hidden, n_visible) = self.units();
        // Those of hidden units are done where states are of one part.
        let numbers = numbers.of_biases(if self.sizes.parts == 1 { 0 } else { n_hidden }, n_visible);
        let states = States { h: &h, x: &x, hidden: &mut hidden, visible: &mut visible };
        launch_biases(
            self.op,
            place_of_biases(self.sizes.batch),
            dtype,
            gpu,
            states,
            &scalars,
            &mut counter,
            numbers,
        )
    }

    /// The states of one side, `width` units and parts `part` entries apart, as the kernels of
    /// warpgroups see them, `depth` rows at a time. The use of their memory is logged when the
    /// address is dropped.
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

    /// The weights, their velocity and the copy in so many parts, of `rows × cols` each, as these
    /// kernels see them: copies in two parts by half as many columns.
    fn weights<'a, T: CudaDType>(
        &self,
        gpu: &'a Gpu,
        (weights, velocity, copy): (
            &'a mut Weights<'_>,
            &'a mut Option<CudaViewMut<'_, bf16>>,
            &'a mut CudaViewMut<'_, T>,
        ),
        parts: usize,
        [rows, cols]: [usize; 2],
        fetch: Fetch,
    ) -> Result<WeightMaps<'a>> {
        // The map of lower halves only needs their size.
        let (weights, of_weights) = match weights {
            Weights::Whole(params) => (gpu.to_write(params), DType::F32),
            Weights::Lower(lower) => (gpu.to_write(lower), DType::BF16),
        };
        let (copy, velocity) = (gpu.to_write(copy), velocity.as_mut().map(|velocity| gpu.to_write(velocity)));
        // Without a velocity of its own, that of f32 lies behind the weights.
        let (of_velocity, velocity_at) = match &velocity {
            Some(velocity) => (DType::BF16, velocity.at),
            None => (DType::F32, weights.at + 4 * (rows * cols) as u64),
        };
        let map = |at, dtype, line| map_of_weights(at, dtype, [rows, cols], line, fetch);
        let part = |i: usize| map(copy.at + (2 * i * rows * cols) as u64, self.dtype, LINE / parts);
        Ok(WeightMaps {
            weights: map(weights.at, of_weights, LINE)?,
            velocity: map(velocity_at, of_velocity, LINE)?,
            copies: [part(0)?, part(parts - 1)?],
            _used: (weights, velocity, copy),
        })
    }
}

/// Tensor maps of weights, velocity and copy. The use of their memory is logged when this is
/// dropped.
struct WeightMaps<'a> {
    weights: TensorMap,
    velocity: TensorMap,
    /// Of the first part, and of the last.
    copies: [TensorMap; 2],
    _used: (Address<'a>, Option<Address<'a>>, Address<'a>),
}

/// What the launch of the biases beside the kernel of warpgroups reads and changes.
pub(super) struct States<'a, 'b, T> {
    pub h: &'a CudaView<'b, T>,
    pub x: &'a CudaView<'b, T>,
    pub hidden: &'a mut CudaViewMut<'b, f32>,
    pub visible: &'a mut CudaViewMut<'b, f32>,
}

/// The biases of `numbers.rows` hidden units and `numbers.cols` visible ones, and the counter,
/// [`BESIDE`] the weights, where there is room for its blocks, or [`BEHIND`] them: it waits for the launch before at its
/// end.
#[expect(clippy::too_many_arguments, reason = "those of the op, and where it runs")]
pub(super) fn launch_biases<T: CudaDType>(
    op: &'static str,
    (name, units): (&str, usize),
    dtype: &str,
    gpu: &Gpu,
    states: States<'_, '_, T>,
    scalars: &CudaView<'_, f32>,
    counter: &mut CudaViewMut<'_, i64>,
    numbers: Numbers,
) -> Result<()> {
    let biases = gpu.launch(op, "cd_update", &format!("{name}_{dtype}"))?;
    let biases = biases.read(states.h).read(states.x).write(states.hidden).write(states.visible);
    let blocks = [numbers.rows, numbers.cols].map(|n| (n as usize).div_ceil(units)).iter().sum();
    let biases = biases.read(scalars).write(counter).num(numbers);
    // SAFETY: (2 × const T*, 2 × float*, const float*, long long*, Numbers) with the shapes that
    // `Sizes::of` or `patch_cd_update_` checked.
    unsafe { biases.blocks(blocks, THREADS).overlapped().go() }
}

/// Where the biases of a minibatch of so many rows are updated that stay in shared memory.
pub(super) fn place_of_biases(batch: usize) -> (&'static str, usize) {
    if k_blocks(batch) <= K_BLOCKS { BESIDE } else { BEHIND }
}

/// Blocks, one for each multiprocessor, as far as there are runs of tiles, of which `across` lie
/// beside each other and `down` below each other. Where x should stay (`keeps`), a multiple of
/// `across`, if that leaves at most a tenth of the multiprocessors idle: each block then stays in a
/// column of tiles, where blocks that move on wait for another x a tenth of the time.
pub(super) fn warpgroup_blocks(limits: Limits, down: usize, across: usize, keeps: bool) -> usize {
    let most = (down * across).min(limits.multiprocessors);
    let keeping = most - most % across;
    if keeps && 10 * keeping >= 9 * most { keeping } else { most }
}

/// Tiles of a run in the matrix of a patch: all that lie below each other, in equal runs of at most
/// four, since long ones leave multiprocessors idle at the end.
fn run_height(rows: usize) -> usize {
    let down = rows.div_ceil(TILE);
    down.div_ceil(down.div_ceil(4))
}

/// Whether the update of one matrix, or of those of so many patches, takes weights in halves.
pub(crate) fn takes_halves(device: &Device, sizes: Sizes, patches: Option<usize>) -> bool {
    let Device::Cuda(device) = device else { return false };
    Gpu::of(device).is_ok_and(|gpu| match patches {
        // Minibatches of more rows than `warpgroups` takes have a kernel for halves, too.
        None => large(gpu.limits(), sizes, 1),
        Some(n) => warpgroups(gpu.limits(), sizes, n),
    })
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

/// States of both phases as kernels see them that copy `columns` columns of `depth` rows at once, in
/// parts `part` entries apart.
pub(super) fn columns_of_states(
    at: u64,
    dtype: DType,
    [width, batch, parts]: [usize; 3],
    part: usize,
    [columns, depth]: [usize; 2],
) -> Result<TensorMap> {
    let planes = [(2, batch * width), (parts, part)];
    // One part has no place for the next.
    TensorMap::of_columns(at, dtype, [width, batch, width], &planes[..parts], [columns / TILE, depth])
}

/// Weights, velocities or a copy as copies of lines of `line` bytes see them.
pub(super) fn map_of_weights(
    at: u64,
    dtype: DType,
    [rows, cols]: [usize; 2],
    line: usize,
    fetch: Fetch,
) -> Result<TensorMap> {
    TensorMap::of(at, dtype, &[cols, rows], &[cols], [line, TILE], fetch)
}

/// Weights as they are stored.
enum Weights<'b> {
    /// f32, with the velocity behind them unless that is stored apart.
    Whole(CudaViewMut<'b, f32>),
    /// The lower halves of weights whose upper halves are the copy.
    Lower(CudaViewMut<'b, i16>),
}

impl<'b> Weights<'b> {
    /// Those in f32.
    ///
    /// # Errors
    /// When they are stored in halves, which only the kernels of warpgroups take.
    fn whole(self, op: &str, Sizes { rows, cols, .. }: Sizes) -> Result<CudaViewMut<'b, f32>> {
        match self {
            Self::Whole(weights) => Ok(weights),
            Self::Lower(_) => candle::bail!(
                "{op}: no kernel takes weights in halves here, see cd_update_takes_halves and patch_step_takes_halves, or views that begin between 16 bytes, got {rows} x {cols}"
            ),
        }
    }
}

/// What the kernels change and read.
struct Operands<'a, T> {
    weights: Weights<'a>,
    velocity: Option<CudaViewMut<'a, bf16>>,
    copy: CudaViewMut<'a, T>,
    /// Biases of both sides, see `bias_step_`.
    hidden: CudaViewMut<'a, f32>,
    visible: CudaViewMut<'a, f32>,
    counter: CudaViewMut<'a, i64>,
    h: CudaView<'a, T>,
    x: CudaView<'a, T>,
    scalars: CudaView<'a, f32>,
    numbers: Numbers,
}

impl Fused<'_> {
    fn launch_weights<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, of: &mut Operands<'_, T>) -> Result<()> {
        let Self { op, patches, sizes: Sizes { parts, batch, rows, cols }, .. } = *self;
        let Operands { weights, velocity, copy, hidden, h, x, scalars, numbers, .. } = of;
        let numbers = *numbers;
        let kind = if patches.is_some() { "patch_step" } else { "cd_update" };
        // One matrix has no grid. The weights of patches lie below each other.
        let whole =
            Patches { grid: Grid::default(), n: 1, values: cols, boxed_windows: true, last_step: None };
        let patches = patches.unwrap_or(whole);
        let height = if kind == "patch_step" { run_height(rows) } else { 1 };
        let down = patches.n * rows.div_ceil(TILE).div_ceil(height);
        let rows = patches.n * rows;
        let depth = patches.last_step.map_or(K_BLOCK_DEPTH, |form| form.box_rows);
        let (h_map, _h) = self.states(gpu, h, rows, numbers.h_part, depth)?;
        let (x_map, _x) = self.states(gpu, x, patches.values, numbers.x_part, depth)?;
        let file = if parts == 1 { "sm_90a/cd_update" } else { "sm_90a/patch_step_parts" };
        let keeps = kind == "cd_update";
        let of_velocity = if velocity.is_some() { 2 } else { 4 };
        let (form, wide, of_weight) = match weights {
            Weights::Lower(_) => ("halves", WIDE, 2),
            Weights::Whole(_) => (dtype, 1, 4),
        };
        let of_weight = of_weight + of_velocity + self.dtype.size_in_bytes();
        let (rooms, shared_bytes) = Rooms::of(batch, wide, SUBTILES, of_weight);
        let launch = match patches.last_step {
            Some(form) => {
                let launch = gpu.launch(op, "sm_90a/patch_last_step", form.kernel)?;
                launch.blocks(form.blocks, form.threads).shared(form.shared_bytes)
            }
            None => {
                let blocks = warpgroup_blocks(gpu.limits(), down, cols.div_ceil(wide * TILE), keeps);
                let launch = gpu.launch(op, file, &format!("{kind}_{form}"))?;
                let shared_bytes = if parts == 1 { shared_bytes } else { WARPGROUP_SHARED };
                launch.blocks(blocks, WARPGROUP_THREADS[parts - 1]).shared(shared_bytes)
            }
        };
        let launch = launch.overlapped();
        let height = height as i32;
        if let (Weights::Whole(params), 2) = (&mut *weights, parts) {
            let launch = launch.write(params).write(copy).num(h_map).num(x_map).read(scalars);
            // SAFETY: (float*, half*, 2 × TensorMap, const float*, Numbers, Grid, int): weights
            // with the velocity behind them and two parts of a copy, maps of the states, whose
            // memory has addresses that are alive, in the blocks that the kernel takes; the callers
            // checked shapes and where views and parts begin, `warpgroups` that lines are multiples
            // of 16 bytes and that the states fit.
            return unsafe { launch.num(numbers).num(patches.grid).num(height).go() };
        }
        // Blocks take the tiles of a patch that lie beside each other further apart.
        let fetch = if kind == "patch_step" { Fetch::Line } else { Fetch::TwoLines };
        let maps = self.weights(gpu, (weights, velocity, copy), 1, [rows, cols], fetch)?;
        let launch = launch.num(h_map).num(x_map).num(maps.weights).num(maps.velocity).num(maps.copies[0]);
        let launch = launch.write(hidden).read(scalars);
        let launch = launch.num(numbers).num(patches.grid);
        match patches.last_step {
            // SAFETY: (5 × TensorMap, float*, const float*, Numbers, Grid): maps of the states, of
            // the weights, the velocity and the copy, whose memory has addresses that are alive, in
            // the blocks that the kernel takes; shapes and where views begin were checked as above,
            // and the form was chosen by what else this kernel needs. Weights in halves have a
            // velocity of their own.
            Some(_) => unsafe { launch.go() },
            // SAFETY: the same with an int and Rooms, by which shared memory is divided.
            None => unsafe { launch.num(height).num(rooms).go() },
        }
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
