//! A step of Adam for encoder and decoder, latent by latent, without a gradient in memory.
use super::gradients::{ALIGN, LATENTS, LatentGradients, Lists, Sizes, Sums};
use super::types::on_device;
use crate::codes::atoms::normalize;
use crate::core::adam::{AdamRule, AdamStep};
use crate::core::check::{expect, expect_aligned};
use crate::core::op::{In, Io, Kernel, Out, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use half::bf16;
use rayon::prelude::*;

const OP: &str = "latent_step_";

/// What [`latent_step_`] steps: parameters and their two moments, `[3, n, d]` f32.
#[derive(Debug, Clone, Copy)]
pub struct LatentState<'a> {
    /// `d` is that of `x`.
    pub encoder: &'a Tensor,
    /// `d` is that of the errors.
    pub decoder: &'a Tensor,
    /// Copies in bf16 of the parameters of both, `[n, d]`, which are written as well.
    pub halves: Option<[&'a Tensor; 2]>,
}

/// One step of Adam over encoder and decoder. Rows of the decoder have length 1 afterwards where
/// the gradients are [`unit`](LatentGradients::unit).
///
/// `scalars` is `[2]` f32: the rate, and a factor on gradients. `steps` is one i64, the number of
/// earlier steps. Cost: that of [`latent_gradients`](super::latent_gradients), and each parameter
/// and moment read and written once. On a GPU rows have at most 65,536 values.
///
/// # Errors
/// When shapes, types or devices do not fit, or a constant is out of its range.
pub fn latent_step_(
    state: LatentState<'_>,
    of: &LatentGradients<'_>,
    scalars: &Tensor,
    steps: &Tensor,
    step: AdamStep,
) -> Result<()> {
    let sizes = of.sizes(OP)?;
    let &Sizes { n, d_in, d_out, dtype, .. } = &sizes;
    let LatentState { encoder, decoder, halves } = state;
    if dtype != DType::F32 {
        candle::bail!("{OP}: x must be f32 or bf16, got {dtype:?}")
    }
    expect(OP, "encoder", encoder, &[dtype], &[3, n, d_in])?;
    expect(OP, "decoder", decoder, &[dtype], &[3, n, d_out])?;
    expect_aligned(OP, "encoder", encoder, ALIGN)?;
    expect_aligned(OP, "decoder", decoder, ALIGN)?;
    expect(OP, "scalars", scalars, &[dtype], &[2])?;
    expect(OP, "steps", steps, &[DType::I64], &[1])?;
    let rule = step.rule(OP)?;
    let [half_encoder, half_decoder] = halves.map_or([None; 2], |halves| halves.map(Some));
    for (name, half, d) in [("halves", half_encoder, d_in), ("halves", half_decoder, d_out)] {
        if let Some(half) = half {
            expect(OP, name, half, &[DType::BF16], &[n, d])?;
            expect_aligned(OP, name, half, ALIGN)?;
        }
    }
    let (x, errors) = (&on_device(of.x)?, &on_device(of.errors)?);
    let of = LatentGradients { x, errors, ..*of };
    let io = operands(OP).write("encoder", encoder).write("decoder", decoder);
    let io = halves.into_iter().flatten().fold(io, |io, half| io.write("halves", half));
    let io = of.read(io).read("scalars", scalars).read("steps", steps);
    io.run(&Step { sizes: Sizes { rows: x.dtype(), ..sizes }, rule, halves: halves.is_some() })
}

pub(super) struct Step {
    pub sizes: Sizes,
    pub rule: AdamRule,
    /// Whether copies in bf16 are written.
    pub halves: bool,
}

/// What a step writes, and what it reads.
type Parts<'a, S> = ([Out<'a, S>; 2], Option<[Out<'a, S>; 2]>, [In<'a, S>; 9]);

impl Step {
    pub(super) fn parts<'a, S>(&self, io: Io<'a, S>) -> Result<Parts<'a, S>> {
        if self.halves {
            let ([encoder, decoder, first, second], read) = io.parts()?;
            return Ok(([encoder, decoder], Some([first, second]), read));
        }
        let (states, read) = io.parts()?;
        Ok((states, None, read))
    }
}

/// The rows of the three planes of a state.
fn planes(state: &mut [f32], n: usize, d: usize) -> [&mut [f32]; 3] {
    let (w, moments) = state.split_at_mut(n * d);
    let (m, v) = moments.split_at_mut(n * d);
    [w, m, v]
}

impl Kernel for Step {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Sizes { n, d_in, d_out, .. } = &self.sizes;
        let ([encoder, decoder], halves, [a, b, c, d, e, f, g, scalars, steps]) = self.parts(io)?;
        let sums = Sums::<f32>::of(&self.sizes, [a, b, c, d, e, f, g])?;
        let (&[rate, factor], &[t]) = (scalars.elements::<f32>()?, steps.elements::<i64>()?) else {
            candle::bail!("{OP}: scalars must be two numbers and steps one")
        };
        let at = self.rule.at(rate, t.wrapping_add(1));
        let (encoder, decoder) = (encoder.elements()?, decoder.elements()?);
        let [we, me, ve] = planes(encoder, n, d_in);
        let [wd, md, vd] = planes(decoder, n, d_out);
        let of_encoder = we.par_chunks_mut(d_in).zip(me.par_chunks_mut(d_in)).zip(ve.par_chunks_mut(d_in));
        let of_decoder = wd.par_chunks_mut(d_out).zip(md.par_chunks_mut(d_out)).zip(vd.par_chunks_mut(d_out));
        let room = || (Lists::default(), vec![0f32; d_in], vec![0f32; d_out]);
        of_encoder.zip(of_decoder).enumerate().with_min_len(LATENTS).for_each_init(
            room,
            |(lists, ge, gd), (j, (((we, me), ve), ((wd, md), vd)))| {
                sums.write(j, wd, lists, ge, gd);
                if factor != 1. {
                    ge.iter_mut().chain(gd.iter_mut()).for_each(|g| *g *= factor);
                }
                at.step(we, ge, me, ve);
                at.step(wd, gd, md, vd);
                if self.sizes.unit {
                    normalize(wd);
                }
            },
        );
        for (half, w) in halves.into_iter().flatten().zip([encoder, decoder]) {
            let half = half.elements::<bf16>()?;
            half.par_iter_mut().zip(w.par_iter()).for_each(|(half, w)| *half = bf16::from_f32(*w));
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_type!(self.sizes.rows, [BF16: bf16; f32], |T| self.launch::<T>(gpu, io))
    }
}
