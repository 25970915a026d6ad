//! A dense layer between products in bf16, forward and backward: what the next product reads, and
//! its sums over rows, in one pass over what the product before wrote.
//!
//! ```text
//! y = f(a + b)
//! forward    out ← bf16(y)                       sums ← Σ_rows y
//! backward   out ← bf16((δ + s) ∘ f'(y))         sums ← Σ_rows (δ + s) ∘ f'(y)
//! ```
//!
//! | symbol | argument | shape |
//! |--------|----------|-----------------------------------------------------------------------|
//! | `a`    | `a`      | `[rows, n_units]` f32, the product of the layer, in both passes         |
//! | `b s`  | `bias`, `pull` | `[n_units]` f32                                                   |
//! | `δ`    | `delta`  | `[rows, n_units]` f32, the product of the layer above                   |
//! |        | `out`    | `[rows, n_units]` bf16, rounded to nearest, ties to even                |
//! |        | `sums`   | `[n_units]` f32                                                         |
//!
//! Sums are of numbers before they are rounded, in the order of
//! [`column_sums_`](crate::arrays::column_sums_), and the way back computes `y` again from `a`: so
//! nothing but the operands of products is rounded, and an output near 1 keeps what it lacks of it.
//! Lines of matrices are contiguous and may lie apart, so that products read and write lines that
//! begin on 16 bytes whatever the width.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use chandlery_ops::layers::{Activation, layer_forward_sums_};
//! # fn main() -> candle::Result<()> {
//! let a = Tensor::new(&[[1f32, -3.], [0., 2.]], &Cpu)?;
//! let bias = Tensor::new(&[-1f32, 1.], &Cpu)?;
//! let (out, sums) = (Tensor::zeros((2, 2), DType::BF16, &Cpu)?, Tensor::zeros(2, DType::F32, &Cpu)?);
//! layer_forward_sums_(&out, &sums, &a, &bias, Activation::Identity)?;
//! assert_eq!(out.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[0., -2.], [-1., 3.]]);
//! assert_eq!(sums.to_vec1::<f32>()?, [-1., 1.]);
//! # Ok(()) }
//! ```
use crate::arrays::sums::{LANES, add_in_halves};
use crate::core::check::{expect, lines};
use crate::core::op::{In, Io, Kernel, operands};
use crate::layers::activation::{Activation, with_activation};
use crate::layers::layer::{backward_tiles, forward_tiles};
use candle::{CpuStorage, DType, Result, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// Elements below which other threads are not worth waking.
const GRAIN: usize = 16 * 1024;

/// `out ← bf16(y)` and `sums ← Σ_rows y`, `y = f(a + bias)`; see the [module](self) for shapes. The
/// same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or there is no row or no unit.
pub fn layer_forward_sums_(
    out: &Tensor,
    sums: &Tensor,
    a: &Tensor,
    bias: &Tensor,
    activation: Activation,
) -> Result<()> {
    run("layer_forward_sums_", [out, sums, a, bias], None, activation)
}

/// `out ← bf16(d)` and `sums ← Σ_rows d`, `d = (delta + pull) ∘ f'(y)`, for the layer whose product
/// was `a`: the derivative of a loss by `a`, where `delta` is that by `y`, and `pull` a part of it
/// that all rows have alike. See the [module](self) for shapes. The same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or there is no row or no unit.
pub fn layer_backward_sums_(
    out: &Tensor,
    sums: &Tensor,
    delta: &Tensor,
    pull: &Tensor,
    (a, bias): (&Tensor, &Tensor),
    activation: Activation,
) -> Result<()> {
    run("layer_backward_sums_", [out, sums, a, bias], Some([delta, pull]), activation)
}

fn run(
    op: &'static str,
    [out, sums, a, bias]: [&Tensor; 4],
    back: Option<[&Tensor; 2]>,
    activation: Activation,
) -> Result<()> {
    let &[rows, n_units] = out.dims() else {
        candle::bail!("{op}: out must be [rows, n_units], got shape {:?}", out.dims())
    };
    if rows * n_units == 0 {
        candle::bail!("{op}: out must have at least one entry, got shape {:?}", out.dims())
    }
    let wide = |name, t| lines(op, name, t, &[DType::F32], [rows, n_units]);
    let out_line = lines(op, "out", out, &[DType::BF16], [rows, n_units])?;
    let a_line = wide("a", a)?;
    let delta_line = back.map(|[delta, _]| wide("delta", delta)).transpose()?;
    let pull = back.map(|[_, pull]| pull);
    for (name, t) in [("sums", sums), ("bias", bias)].into_iter().chain(pull.map(|pull| ("pull", pull))) {
        expect(op, name, t, &[DType::F32], &[n_units])?;
    }
    let pass = LayerSums { op, activation, rows, n_units, out_line, a_line, delta_line };
    let io = operands(op).write("out", out).write("sums", sums).read("a", a).read("bias", bias);
    io.maybe("delta", back.map(|[delta, _]| delta)).maybe("pull", pull).run(&pass)
}

/// A pass whose operands were checked.
struct LayerSums {
    op: &'static str,
    activation: Activation,
    rows: usize,
    n_units: usize,
    /// How far lines are from each other.
    out_line: usize,
    a_line: usize,
    /// On the way back.
    delta_line: Option<usize>,
}

impl LayerSums {
    /// Entries from the first of a matrix to its last.
    fn span(&self, line: usize) -> usize {
        (self.rows - 1) * line + self.n_units
    }

    /// The entries of a matrix.
    fn read<'a>(&self, x: In<'a, CpuStorage>, line: usize) -> Result<&'a [f32]> {
        Ok(&x.all::<f32>()?[x.layout()?.start_offset()..][..self.span(line)])
    }
}

impl Kernel for LayerSums {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out, sums], [a, bias, delta, pull]) = io.parts()?;
        let start = out.layout().start_offset();
        let out = &mut out.all::<bf16>()?[start..][..self.span(self.out_line)];
        let (a, bias) = (self.read(a, self.a_line)?, bias.elements::<f32>()?);
        let delta = self.delta_line.map(|line| Ok::<_, candle::Error>((self.read(delta, line)?, line)));
        let (delta, pull) = (delta.transpose()?, pull.maybe::<f32>()?.unwrap_or_default());
        let n = self.n_units;
        // A lane has the rows of its sum.
        let mut lanes: Vec<Vec<_>> = (0..LANES).map(|_| vec![]).collect();
        for (r, out) in out.chunks_mut(self.out_line).enumerate() {
            lanes[r % LANES].push((r, out));
        }
        let lane = |rows: Vec<(usize, &mut [bf16])>| {
            let mut sums = vec![0f32; n];
            for (r, out) in rows {
                let mut x = a[r * self.a_line..][..n].to_vec();
                with_activation!(self.activation, forward_tiles(&mut x, 0, bias, None, 0., 1.));
                if let Some((delta, line)) = delta {
                    let mut d = delta[r * line..][..n].to_vec();
                    let no_dropout = (0., 1., 1.);
                    with_activation!(self.activation, backward_tiles(&mut d, &x, 0, pull, None, no_dropout));
                    x = d;
                }
                sums.iter_mut().zip(&x).for_each(|(sum, x)| *sum += x);
                out[..n].convert_from_f32_slice(&x);
            }
            sums
        };
        let mut lanes: Vec<Vec<f32>> = match self.rows * n < GRAIN {
            true => lanes.into_iter().map(lane).collect(),
            false => lanes.into_par_iter().map(lane).collect(),
        };
        add_in_halves(&mut lanes);
        sums.elements()?.copy_from_slice(&lanes[0]);
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        self.rows * self.n_units < GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        /// Units of a block: as many as leave a block for each multiprocessor, and at most those of
        /// the kernel.
        const UNITS: [usize; 3] = [16, 8, 4];
        let ([out, sums], [a, bias, delta, pull]) = io.parts()?;
        let mut out = out.span::<bf16>(self.span(self.out_line))?;
        let (mut sums, bias) = (sums.elements::<f32>()?, bias.elements::<f32>()?);
        let a = a.span::<f32>(self.span(self.a_line))?;
        let delta_line = self.delta_line.unwrap_or(self.n_units);
        let delta = delta.maybe_span::<f32>(self.span(delta_line))?;
        let pull = pull.maybe::<f32>()?;
        let way = if self.delta_line.is_some() { "backward" } else { "forward" };
        let kernel = format!("layer_{way}_sums_{}", self.activation.kernel());
        let launch = gpu.launch(self.op, "layer_sums", &kernel)?.write(&mut out).write(&mut sums);
        let launch = launch.read(&a).read(&bias).maybe(&delta).maybe(&pull).num(self.rows).num(self.n_units);
        let launch = launch.num(self.out_line).num(self.a_line).num(delta_line);
        let blocks = |units: usize| self.n_units.div_ceil(units);
        let least = gpu.limits().multiprocessors;
        let units = UNITS.into_iter().find(|&units| blocks(units) >= least).unwrap_or(UNITS[2]);
        // SAFETY: (bf16*, float*, 2 × const float*, 2 × const float* or null, 5 × size_t): matrices
        // have `rows` lines of n_units entries, which their spans reach over, and the others
        // n_units, by `run`; blocks are of 32 lanes of at most 16 units, the kernel's.
        unsafe { launch.grid([blocks(units), 1, 1], (units as u32, LANES as u32, 1)).go() }
    }
}
