//! The update of biases from the states of both phases of contrastive learning.
//!
//! ```text
//! g = (c Σ pos + s Σ neg)/B + κ(ρ − q)
//! v ← μ v + ε g,  b ← b + v
//! ```
//!
//! | symbol | name | where |
//! |---|---|---|
//! | `μ`, `ε` | momentum, rate | the tensor `scalars`, `[3]` |
//! | `c`, `s` | 1 and −1 in [`Phases::Difference`] | [`BiasStep::phases`] |
//! | `ρ κ q` | `target`, `cost`, running mean activation | [`Sparsity`], plane 2 of a state |
//!
//! Hinton, "A practical guide to training restricted Boltzmann machines", 2010, sections 9 and 11.
use crate::core::check::{expect, expect_layout};
use crate::core::op::{In, Io, Kernel, Out, operands};
use crate::layers::weight_step::check_scalars;
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use half::bf16;
use rayon::prelude::*;

const OP: &str = "bias_step_";
/// Partial sums that a unit's sum over rows is made of; the kernel's row lanes.
const LANES: usize = 16;
/// Units that one task of the CPU twin sums at once.
const UNITS: usize = 64;
/// Rows of a stretch, where there is memory for the sums of each; they are added from first to
/// last.
const STRETCH: usize = 4096;

/// A target for the mean activation of hidden units.
///
/// Lee, Ekanadham and Ng, "Sparse deep belief net model for visual area V2", 2007: the penalty acts
/// on the hidden biases. The mean activation is a running mean, as in Hinton 2010, section 11.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sparsity {
    /// Target mean activation of each unit, in (0, 1).
    pub target: f32,
    /// Weight of the penalty relative to the likelihood's gradient, above 0.
    pub cost: f32,
    /// Decay of the running mean, in [0, 1); with 0 it is the mean of the minibatch.
    pub decay: f32,
}

/// What the gradient of biases is made of, from a negative and a positive plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phases {
    /// `Σ pos − Σ neg`.
    #[default]
    Difference,
    /// `Σ pos + Σ neg`: the negative plane already carries a minus sign (that of `h_neg` does, so
    /// that one GEMM computes both phases).
    Sum,
    /// `Σ pos`.
    Positive,
    /// `Σ neg`.
    Negative,
}

impl Phases {
    /// Factors on the sums over the positive and the negative plane.
    fn factors(self) -> (f32, f32) {
        match self {
            Self::Difference => (1., -1.),
            Self::Sum => (1., 1.),
            Self::Positive => (1., 0.),
            Self::Negative => (0., 1.),
        }
    }
}

/// Options of [`bias_step_`].
#[derive(Clone, Copy)]
pub struct BiasStep<'a> {
    /// What the gradient is made of.
    pub phases: Phases,
    /// Sparsity target; for hidden units only.
    pub sparsity: Option<Sparsity>,
    /// Whether to add `Σ (pos − neg)²` to planes 2 and 3 of the state; for visible units only.
    pub gather_error: bool,
    /// Factor on each unit's gradient, `[n_units]` f32: `1/σ²` for Gaussian units.
    pub scale: Option<&'a Tensor>,
    /// Memory for sums, of [`bias_sums_shape`] or more rows, f32, whose content is lost: then many
    /// rows of few units, as the places of maps are, are summed in stretches of 4096 rows by many
    /// threads. Without it a unit's rows are summed by few.
    pub sums: Option<&'a Tensor>,
}

/// The shape of the memory of [`BiasStep::sums`] for `batch` rows: a row for each stretch, with
/// three sums for each unit.
pub fn bias_sums_shape(batch: usize, n_units: usize) -> (usize, usize) {
    (batch.div_ceil(STRETCH), 3 * n_units)
}

/// One update of a side's biases from the states of both phases.
///
/// `state` is `[4, n_units]` f32: bias, velocity, the running mean activation (hidden) or the
/// accumulated squared error (visible), and the rounding error of that sum. `planes` is
/// `[2, batch, n_units]` f32 or bf16: plane 0 is the negative phase, plane 1 the positive.
/// `scalars` is `[3]` as for [`weight_step_`](crate::layers::weight_step_).
///
/// Sums have the same order on every device, so the CPU and the GPU return the same bits; with
/// [`BiasStep::sums`] it is another order.
///
/// # Errors
/// When shapes, types or devices do not fit, `batch` is 0, or both `sparsity` and `gather_error`
/// are asked for.
pub fn bias_step_(state: &Tensor, planes: &Tensor, scalars: &Tensor, step: BiasStep<'_>) -> Result<()> {
    let [2, batch, units] = *planes.dims() else {
        candle::bail!("{OP}: planes must have shape [2, batch, n_units], got {:?}", planes.dims())
    };
    expect(OP, "state", state, &[DType::F32], &[4, units])?;
    check_scalars(OP, scalars)?;
    expect_layout(OP, "planes", planes, &[DType::F32, DType::BF16])?;
    if let Some(scale) = step.scale {
        expect(OP, "scale", scale, &[DType::F32], &[units])?;
    }
    if batch == 0 {
        candle::bail!("{OP}: planes must have at least one row each, got shape {:?}", planes.dims())
    }
    if let Some(sums) = step.sums {
        let (stretches, columns) = bias_sums_shape(batch, units);
        if sums.rank() != 2 || sums.dim(0)? < stretches || sums.dim(1)? != columns {
            candle::bail!("{OP}: sums must be [{stretches} or more, {columns}], got shape {:?}", sums.dims())
        }
        expect_layout(OP, "sums", sums, &[DType::F32])?;
    }
    if step.sparsity.is_some() && step.gather_error {
        candle::bail!("{OP}: sparsity is for hidden units and gather_error for visible units; set only one")
    }
    let stretches = step.sums.map(|_| batch.div_ceil(STRETCH));
    let op = ApplyBiasStep { rule: BiasRule::from(step), dtype: planes.dtype(), batch, units, stretches };
    let io = operands(OP).write("state", state).maybe_write("sums", step.sums);
    io.read("planes", planes).read("scalars", scalars).maybe("scale", step.scale).run(&op)
}

/// [`bias_step_`] computed with candle's own ops in f64 and rounded once, without compensated
/// summation; returns a new f32 tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn bias_step_reference(
    state: &Tensor,
    planes: &Tensor,
    scalars: &Tensor,
    step: BiasStep<'_>,
) -> Result<Tensor> {
    let [_, momentum, rate] = scalars.to_vec1::<f32>()?[..] else {
        candle::bail!("bias_step_reference: scalars")
    };
    let (state, planes) = (state.to_dtype(DType::F64)?, planes.to_dtype(DType::F64)?);
    let (neg, pos) = (planes.get(0)?, planes.get(1)?);
    let batch = pos.dims()[0] as f64;
    let (mut b, mut v, mut third, fourth) = (state.get(0)?, state.get(1)?, state.get(2)?, state.get(3)?);
    let (of_pos, of_neg) = step.phases.factors();
    let mut g = (((pos.sum(0)? * f64::from(of_pos))? + (neg.sum(0)? * f64::from(of_neg))?)? / batch)?;
    if let Some(Sparsity { target, cost, decay }) = step.sparsity {
        third = ((third * f64::from(decay))? + (pos.mean(0)? * f64::from(1. - decay))?)?;
        g = (g + third.affine(-f64::from(cost), f64::from(cost * target))?)?;
    }
    if let Some(scale) = step.scale {
        g = (g * scale.to_dtype(DType::F64)?)?;
    }
    v = ((v * f64::from(momentum))? + (g * f64::from(rate))?)?;
    b = (b + &v)?;
    if step.gather_error {
        third = (third + (pos - neg)?.sqr()?.sum(0)?)?;
    }
    Tensor::stack(&[&b, &v, &third, &fourth], 0)?.to_dtype(DType::F32)
}

/// The fields of `BiasRule` in kernels/layers/bias.cuh, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BiasRule {
    sign: f32,
    of_pos: f32,
    target: f32,
    cost: f32,
    decay: f32,
    error: u32,
}

impl From<BiasStep<'_>> for BiasRule {
    fn from(step: BiasStep<'_>) -> Self {
        let sparsity = step.sparsity.unwrap_or(Sparsity { target: 0., cost: 0., decay: 0. });
        let (of_pos, sign) = step.phases.factors();
        Self {
            sign,
            of_pos,
            target: sparsity.target,
            cost: sparsity.cost,
            decay: sparsity.decay,
            error: step.gather_error.into(),
        }
    }
}

// SAFETY: five floats and an unsigned, the same layout as the kernel's struct.
#[cfg(feature = "cuda")]
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for BiasRule {}

/// Of kernels/layers/bias_step.cu, and units that a block takes.
#[cfg(feature = "cuda")]
const THREADS: u32 = 512;
#[cfg(feature = "cuda")]
const BLOCK_UNITS: usize = 32;

struct ApplyBiasStep {
    rule: BiasRule,
    dtype: DType,
    batch: usize,
    units: usize,
    /// How many there are, where there is memory for their sums.
    stretches: Option<usize>,
}

/// The three sums over rows of up to [`UNITS`] neighbouring units.
struct Sums {
    pos: [f32; UNITS],
    neg: [f32; UNITS],
    err: [f32; UNITS],
}

impl Sums {
    /// Those of all rows of both planes for columns `first..first + width`.
    fn of<T: Copy + Sync>(
        planes: &[T],
        units: usize,
        first: usize,
        width: usize,
        stretches: bool,
        wide: &(impl Fn(T) -> f32 + Sync),
    ) -> Self {
        let (neg, pos) = planes.split_at(planes.len() / 2);
        if !stretches {
            return stretch(pos, neg, units, first, width, wide);
        }
        let stretches = pos.par_chunks(STRETCH * units).zip(neg.par_chunks(STRETCH * units));
        let each: Vec<_> = stretches.map(|(pos, neg)| stretch(pos, neg, units, first, width, wide)).collect();
        let zero = Self { pos: [0.; UNITS], neg: [0.; UNITS], err: [0.; UNITS] };
        each.iter().fold(zero, |mut sums, of| {
            for (sum, of) in [(&mut sums.pos, &of.pos), (&mut sums.neg, &of.neg), (&mut sums.err, &of.err)] {
                sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
            }
            sums
        })
    }
}

/// Sums columns `first..first + width` of rows of both planes: every 16th row to a lane, then a
/// tree over the lanes.
fn stretch<T: Copy>(
    pos_rows: &[T],
    neg_rows: &[T],
    units: usize,
    first: usize,
    width: usize,
    wide: &impl Fn(T) -> f32,
) -> Sums {
    let mut pos = [[0f32; UNITS]; LANES];
    let mut neg = [[0f32; UNITS]; LANES];
    let mut err = [[0f32; UNITS]; LANES];
    for (r, (p, q)) in pos_rows.chunks_exact(units).zip(neg_rows.chunks_exact(units)).enumerate() {
        let lane = r % LANES;
        let (p, q) = (&p[first..][..width], &q[first..][..width]);
        let sums = pos[lane].iter_mut().zip(&mut neg[lane]).zip(&mut err[lane]);
        for (((pos, neg), err), (&p, &q)) in sums.zip(p.iter().zip(q)) {
            let (p, q) = (wide(p), wide(q));
            *pos += p;
            *neg += q;
            *err += (p - q) * (p - q);
        }
    }
    Sums { pos: tree(pos), neg: tree(neg), err: tree(err) }
}

fn tree(mut lanes: [[f32; UNITS]; LANES]) -> [f32; UNITS] {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(&high[..half]) {
            low.iter_mut().zip(high).for_each(|(low, high)| *low += high);
        }
        half /= 2;
    }
    lanes[0]
}

impl ApplyBiasStep {
    /// The state, the memory for sums where there is some, and what is read.
    #[expect(clippy::type_complexity, reason = "the parts of a call")]
    fn operands<'a, S>(&self, io: Io<'a, S>) -> Result<(Out<'a, S>, Option<Out<'a, S>>, [In<'a, S>; 3])> {
        if self.stretches.is_none() {
            let ([state], read) = io.parts()?;
            return Ok((state, None, read));
        }
        let ([state, sums], read) = io.parts()?;
        Ok((state, Some(sums), read))
    }

    fn run_cpu<T: WithDType>(&self, io: Io<'_, CpuStorage>, wide: impl Fn(T) -> f32 + Sync) -> Result<()> {
        let (state, _, [planes, scalars, scale]) = self.operands(io)?;
        let (state, planes, scale) =
            (state.elements::<f32>()?, planes.elements::<T>()?, scale.maybe::<f32>()?);
        let (batch, units) = (self.batch, self.units);
        let &[_, momentum, rate] = scalars.elements::<f32>()? else { candle::bail!("{OP}: scalars") };
        let rule = self.rule;
        let (bias, rest) = state.split_at_mut(units);
        let (velocity, rest) = rest.split_at_mut(units);
        let (third, fourth) = rest.split_at_mut(units);
        let columns = bias
            .par_chunks_mut(UNITS)
            .zip(velocity.par_chunks_mut(UNITS))
            .zip(third.par_chunks_mut(UNITS))
            .zip(fourth.par_chunks_mut(UNITS));
        columns.enumerate().for_each(|(block, (((bias, velocity), third), fourth))| {
            let first = block * UNITS;
            let sums = Sums::of(planes, units, first, bias.len(), self.stretches.is_some(), &wide);
            for i in 0..bias.len() {
                let mut g = (rule.of_pos * sums.pos[i] + rule.sign * sums.neg[i]) / batch as f32;
                if rule.cost != 0. {
                    third[i] = rule.decay * third[i] + (1. - rule.decay) * (sums.pos[i] / batch as f32);
                    g += rule.cost * (rule.target - third[i]);
                }
                if let Some(scale) = scale {
                    g *= scale[first + i];
                }
                velocity[i] = momentum * velocity[i] + rate * g;
                bias[i] += velocity[i];
                if rule.error != 0 {
                    // Two-sum: what the addition rounds away goes to the fourth plane.
                    let (a, b) = (third[i], sums.err[i]);
                    let s = a + b;
                    let bb = s - a;
                    fourth[i] += (a - (s - bb)) + (b - bb);
                    third[i] = s;
                }
            }
        });
        Ok(())
    }
}

impl Kernel for ApplyBiasStep {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            DType::BF16 => self.run_cpu(io, bf16::to_f32),
            _ => self.run_cpu(io, |x: f32| x),
        }
    }

    fn is_serial(&self, _: usize) -> bool {
        self.units <= UNITS && self.stretches.is_none()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let dtype = self.dtype.as_str();
        for_type!(self.dtype, [BF16: bf16; f32], |T| {
            let (state, sums, [planes, scalars, scale]) = self.operands(io)?;
            let (mut state, planes) = (state.elements::<f32>()?, planes.elements::<T>()?);
            let (scalars, scale) = (scalars.elements::<f32>()?, scale.maybe::<f32>()?);
            let blocks = self.units.div_ceil(BLOCK_UNITS);
            if let (Some(sums), Some(stretches)) = (sums, self.stretches) {
                let mut sums = sums.elements::<f32>()?;
                let launch = gpu.launch(OP, "bias_step", &format!("bias_sums_{dtype}"))?.write(&mut sums);
                let launch = launch.read(&planes).count(self.batch).count(self.units);
                // SAFETY: (float*, const T*, unsigned, unsigned); `bias_step_` checked that there
                // is room for three sums for each unit and stretch and that planes hold two of
                // batch · units; the grid has a row of blocks for each stretch.
                unsafe { launch.grid([blocks, stretches, 1], (THREADS, 1, 1)).go()? };
                let sums = sums.as_view();
                let launch = gpu.launch(OP, "bias_step", "bias_step_of_sums")?.write(&mut state).read(&sums);
                let launch = launch.read(&scalars).maybe(&scale).num(self.rule);
                let launch = launch.count(self.batch).count(self.units).count(stretches);
                // SAFETY: (float*, 2 × const float*, const float* or null, BiasRule, 3 × unsigned),
                // sizes as above; threads beyond the units stop.
                return unsafe { launch.blocks(self.units.div_ceil(128), 128).go() };
            }
            let launch = gpu.launch(OP, "bias_step", &format!("bias_step_{dtype}"))?;
            let launch = launch.write(&mut state).read(&planes).read(&scalars);
            let launch = launch.maybe(&scale).num(self.rule).count(self.batch).count(self.units);
            // SAFETY: (float*, const T*, const float*, const float* or null, BiasRule, unsigned,
            // unsigned); the shapes were checked by `bias_step_`, and the kernel keeps to units <
            // `units`.
            unsafe { launch.blocks(blocks, THREADS).go() }
        })
    }
}
