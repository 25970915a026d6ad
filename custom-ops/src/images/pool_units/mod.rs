//! Units of maps with probabilistic max-pooling: bias, mean and draw in one pass over the
//! pre-activations.
//!
//! ```text
//! x_t = pre_t + bias of its map                     t runs over the units of a block of pool · pool places in one map
//! p(h_t = 1) = e^x_t / (1 + Σ_s e^x_s)              at most one unit of a block is on
//! p(pooled = 1) = Σ_t e^x_t / (1 + Σ_s e^x_s)       the pooled unit is on where one of its block is
//! sample   the first t, row by row, with u < p(h_1 = 1) + … + p(h_t = 1); none where there is no such t
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `pre` | `pre` | `[batch, height · width · n_maps]` f32, maps last |
//! | | `bias` | `[n_maps]` f32 |
//! | `h` | `planes` of [`PoolSide::Detection`] | `[n_planes, batch, height · width · n_maps]` f32, bf16 or f16 |
//! | | `planes` of [`PoolSide::Pooled`] | `[n_planes, batch, height/pool · width/pool · n_maps]` |
//! | `u` | [`Draws`] | uniform; element: that of the pooled unit; [`Draws::Columns`] are some of the maps |
//!
//! With a `pool` of 1 these are Bernoulli units, `p = sigmoid(x)`.
//!
//! Source: Lee, Grosse, Ranganath and Ng, "Convolutional deep belief networks for scalable
//! unsupervised learning of hierarchical representations", ICML 2009, section 3.3.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use chandlery_ops::core::Draws;
//! use chandlery_ops::images::{PoolShape, PoolSide, pool_units_};
//! use chandlery_ops::layers::UnitPlanes;
//! # fn main() -> candle::Result<()> {
//! // One map of 2 x 2 places in one block.
//! let shape = PoolShape { height: 2, width: 2, n_maps: 1, pool: 2 };
//! let pre = Tensor::new(&[[0f32, 0., 0., 0.], [-200., 200., -200., -200.]], &Cpu)?;
//! let bias = Tensor::zeros(1, DType::F32, &Cpu)?;
//! let mean = UnitPlanes { mean: Some(0), ..UnitPlanes::default() };
//! // Four units and "none of them" are as probable as each other.
//! let units = Tensor::zeros((1, 2, 4), DType::F32, &Cpu)?;
//! pool_units_(&units, &pre, &bias, shape, PoolSide::Detection, mean, Draws::Mode)?;
//! assert_eq!(units.get(0)?.to_vec2::<f32>()?, [[0.2; 4], [0., 1., 0., 0.]]);
//! let pooled = Tensor::zeros((1, 2, 1), DType::F32, &Cpu)?;
//! pool_units_(&pooled, &pre, &bias, shape, PoolSide::Pooled, mean, Draws::Mode)?;
//! assert_eq!(pooled.get(0)?.to_vec2::<f32>()?, [[0.8], [1.]]);
//! # Ok(()) }
//! ```
pub mod backward;
mod cpu;
pub mod means;
mod reference;

pub use backward::{pool_backward_, pool_backward_reference};
pub use means::{block_means_, block_means_reference, spread_blocks_, spread_blocks_reference};
pub use reference::pool_units_reference;

use crate::core::draw::{Draws, Place, RowBlocks};
use crate::core::op::{Io, Kernel, operands};
use crate::layers::units::{Plane, UnitPlanes, check_planes, plane_range};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};

const OP: &str = "pool_units_";

/// Maps, and the square blocks of places whose units are pooled. All sizes are at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Lines of a map, a multiple of `pool`.
    pub height: usize,
    /// Places in a line, a multiple of `pool`.
    pub width: usize,
    /// Maps: units at a place.
    pub n_maps: usize,
    /// Side of a block, in places.
    pub pool: usize,
}

impl PoolShape {
    /// # Errors
    /// When a size is 0, or blocks do not tile the maps; then the message names the nearest sizes
    /// that fit.
    pub fn validate(&self, op: &str) -> Result<()> {
        let Self { height, width, n_maps, pool } = *self;
        for (name, size) in [("height", height), ("width", width), ("n_maps", n_maps), ("pool", pool)] {
            if size == 0 {
                candle::bail!("{op}: {name} must be at least 1, got 0")
            }
        }
        for (name, side) in [("height", height), ("width", width)] {
            let below = side - side % pool;
            match side % pool {
                0 => {}
                _ if below == 0 => {
                    candle::bail!("{op}: pool must be at most the {name} of the maps, {side}, got {pool}")
                }
                _ => candle::bail!(
                    "{op}: blocks of {pool}x{pool} must tile the maps: their {name} must be {below} or {}, got {side}",
                    below + pool
                ),
            }
        }
        let units = [height, width, n_maps].iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        match units.filter(|&n| i32::try_from(n).is_ok()) {
            Some(_) => Ok(()),
            None => candle::bail!("{op}: maps must have fewer than 2^31 units, got {self:?}"),
        }
    }

    /// Units of all maps.
    pub fn n_units(&self) -> usize {
        self.height * self.width * self.n_maps
    }

    /// Pooled units of all maps: one for each block of each map.
    pub fn n_pooled(&self) -> usize {
        (self.height / self.pool) * (self.width / self.pool) * self.n_maps
    }
}

/// Which units [`pool_units_`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolSide {
    /// Those of the maps.
    Detection,
    /// One for each block.
    Pooled,
}

/// Writes means and samples of the units, or of the pooled units, to planes of `planes`; the other
/// planes do not change.
///
/// `planes` are as for [`units_`](crate::layers::units_). With [`Draws::Mode`] the sample is the
/// most probable state: the unit with the largest `x` of its block where that is above 0, none
/// otherwise; of equal ones the first. The samples of both sides agree for the same draws.
///
/// A NaN or an infinity in a block gives NaN means there and no unit that is on. Results are the
/// same bits on CPU and CUDA.
///
/// Cost: reads `pre` three times, mostly from caches, and takes two exponentials for each unit.
///
/// # Errors
/// When blocks do not tile the maps, shapes, types or devices do not fit, or `out` names no plane,
/// one that does not exist or one for both.
pub fn pool_units_(
    planes: &Tensor,
    pre: &Tensor,
    bias: &Tensor,
    shape: PoolShape,
    side: PoolSide,
    out: UnitPlanes,
    draws: Draws<'_>,
) -> Result<()> {
    shape.validate(OP)?;
    let n_units = match side {
        PoolSide::Detection => shape.n_units(),
        PoolSide::Pooled => shape.n_pooled(),
    };
    let (batch, got) = check_planes(OP, planes, out)?;
    if got != n_units {
        candle::bail!(
            "{OP}: planes must be [n_planes, batch, {n_units}] for {side:?} units of {shape:?}, got {:?}",
            planes.dims()
        )
    }
    for (name, t, want) in [("pre", pre, &[batch, shape.n_units()][..]), ("bias", bias, &[shape.n_maps])] {
        crate::core::check::expect(OP, name, t, &[DType::F32], want)?;
    }
    let (place, blocks) = draws.place_of_columns(OP, shape.n_maps, planes.device())?.unzip();
    if batch == 0 {
        return Ok(());
    }
    let blocks = blocks.flatten();
    let op = PoolUnits { shape, side, out, place, blocks, dtype: planes.dtype(), batch };
    let io = operands(OP).write("planes", planes).read("pre", pre).read("bias", bias);
    io.maybe("counter", place.and_then(|place| place.counter)).run(&op)
}

/// The rows of `units`, which must be all units of maps of this shape, contiguous f32.
fn batch_of(op: &str, name: &str, units: &Tensor, shape: PoolShape) -> Result<usize> {
    shape.validate(op)?;
    let batch = units.dims().first().copied().unwrap_or_default();
    crate::core::check::expect(op, name, units, &[DType::F32], &[batch, shape.n_units()])?;
    Ok(batch)
}

struct PoolUnits<'a> {
    shape: PoolShape,
    side: PoolSide,
    out: UnitPlanes,
    place: Option<Place<'a>>,
    blocks: Option<RowBlocks>,
    dtype: DType,
    batch: usize,
}

impl PoolUnits<'_> {
    fn run_cpu<T: Plane + WithDType>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([planes], [pre, bias, _]) = io.parts()?;
        let (layout, planes) = (planes.layout(), planes.all::<T>()?);
        let low = |plane: Option<usize>| plane.zip(self.out.low).map(|(plane, low)| plane + low);
        // 0 and 1 have no second part.
        let wanted = [self.out.mean, self.out.sample, low(self.out.mean)];
        let [mean, sample, mean_low] =
            planes.get_disjoint_mut(wanted.map(|plane| plane_range(layout, plane))).map_err(|_| {
                candle::Error::Msg(format!("{OP}: planes overlap, with strides {:?}", layout.stride()))
            })?;
        let pass = cpu::Pass {
            shape: self.shape,
            side: self.side,
            pre: pre.elements()?,
            bias: bias.elements()?,
            mean_scale: self.out.mean_scale,
            philox: self.place.map(|place| place.philox),
            blocks: self.blocks,
        };
        pass.run(mean, mean_low, sample);
        Ok(())
    }
}

impl Kernel for PoolUnits<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            DType::BF16 => self.run_cpu::<half::bf16>(io),
            DType::F16 => self.run_cpu::<half::f16>(io),
            _ => self.run_cpu::<f32>(io),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let dtype = self.dtype.as_str();
        for_type!(self.dtype, [BF16: half::bf16, F16: half::f16; f32], |T| {
            let ([planes], [pre, bias, counter]) = io.parts()?;
            let layout = planes.layout();
            let (side, units) = match self.side {
                PoolSide::Detection => ("detection", self.shape.n_units()),
                PoolSide::Pooled => ("pooled", self.shape.n_pooled()),
            };
            let at = self.out.places(layout.stride()[0], self.batch * units);
            let mut planes = planes.span::<T>(at.end)?;
            let (pre, bias, counter) = (pre.elements::<f32>()?, bias.elements::<f32>()?, counter.maybe()?);
            let sizes = Sizes::of(OP, self.shape)?;
            let n = self.batch * self.shape.n_pooled();
            let RowBlocks { by, at: first } = self.blocks.unwrap_or(RowBlocks { by: 0, at: 0 });
            let philox = self.place.map_or(crate::core::Philox::new(0, 0), |place| place.philox);
            let philox = philox.skipped(first as u64);
            let launch = gpu.launch(OP, "pool_units", &format!("pool_units_{side}_{dtype}"))?;
            let launch = launch.write(&mut planes).num(at.mean).num(at.sample).num(at.low);
            let launch = launch.num(self.out.mean_scale).read(&pre).read(&bias).num(n).num(sizes).num(by);
            let launch = launch.num(u32::from(self.place.is_some())).draws(philox, &counter);
            // SAFETY: (T*, 2 × long long, size_t, float, 2 × const float*, size_t, Sizes, size_t,
            // unsigned, 3 × unsigned long long, const long long*). `pool_units_` checked that blocks tile the
            // maps, that pre holds all units of the batch and bias n_maps floats; the span reaches
            // to the end of the last plane that is written, and planes of a tensor do not overlap.
            // The counter is one i64 or null.
            unsafe { launch.linear(n).go() }
        })
    }
}

/// The sizes as the kernels take them.
#[cfg(feature = "cuda")]
#[repr(C)]
#[derive(Clone, Copy)]
struct Sizes {
    down: u32,
    across: u32,
    width: u32,
    n_maps: u32,
    pool: u32,
}

// SAFETY: five unsigned numbers, the same layout as the kernel's struct.
#[cfg(feature = "cuda")]
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Sizes {}

#[cfg(feature = "cuda")]
impl Sizes {
    fn of(op: &'static str, shape: PoolShape) -> Result<Self> {
        let PoolShape { height, width, n_maps, pool } = shape;
        let count = |n| crate::core::cuda::count(op, n);
        Ok(Self {
            down: count(height / pool)?,
            across: count(width / pool)?,
            width: count(width)?,
            n_maps: count(n_maps)?,
            pool: count(pool)?,
        })
    }
}
