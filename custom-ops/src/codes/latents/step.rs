//! A step of Adam for encoder and decoder, latent by latent, without a gradient in memory.
use super::gradients::{LATENTS, LatentGradients, Lists, Sizes, Sums, latent_gradients};
use crate::codes::atoms::normalize;
use crate::core::adam::{AdamRule, AdamStep};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "latent_step_";

/// One step of Adam over `encoder` and `decoder`, each `[3, n, d]` f32: parameters and their two
/// moments. Rows of the decoder have length 1 afterwards where the gradients are
/// [`unit`](LatentGradients::unit).
///
/// `scalars` is `[2]` f32: the rate, and a factor on gradients. `steps` is one i64, the number of
/// earlier steps. Cost: that of [`latent_gradients`], and each parameter and moment read and written
/// once.
///
/// # Errors
/// When shapes, types or devices do not fit, or a constant is out of its range.
pub fn latent_step_(
    encoder: &Tensor,
    decoder: &Tensor,
    of: &LatentGradients<'_>,
    scalars: &Tensor,
    steps: &Tensor,
    step: AdamStep,
) -> Result<()> {
    let sizes = of.sizes(OP)?;
    let Sizes { n, d_in, d_out, dtype, .. } = sizes;
    if dtype != DType::F32 {
        candle::bail!("{OP}: x must be f32, got {dtype:?}")
    }
    expect(OP, "encoder", encoder, &[dtype], &[3, n, d_in])?;
    expect(OP, "decoder", decoder, &[dtype], &[3, n, d_out])?;
    expect(OP, "scalars", scalars, &[dtype], &[2])?;
    expect(OP, "steps", steps, &[DType::I64], &[1])?;
    let rule = step.rule(OP)?;
    if !of.x.device().is_cpu() {
        for (state, stepped) in [encoder, decoder]
            .into_iter()
            .zip(latent_step_reference(encoder, decoder, of, scalars, steps, step)?)
        {
            state.slice_set(&stepped, 0, 0)?;
        }
        return Ok(());
    }
    let io = of.read(operands(OP).write("encoder", encoder).write("decoder", decoder));
    io.read("scalars", scalars).read("steps", steps).run(&Step { sizes, rule })
}

/// The same by candle's ops, from gradients in memory; gives new tensors. Waits for the device.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn latent_step_reference(
    encoder: &Tensor,
    decoder: &Tensor,
    of: &LatentGradients<'_>,
    scalars: &Tensor,
    steps: &Tensor,
    step: AdamStep,
) -> Result<[Tensor; 2]> {
    let (scalars, t) = (scalars.to_vec1::<f32>()?, steps.to_vec1::<i64>()?);
    let (&[rate, factor], &[t]) = (&scalars[..], &t[..]) else {
        candle::bail!("{OP}: scalars must be two numbers and steps one")
    };
    let AdamStep { beta1, beta2, epsilon, .. } = step;
    let gradients = latent_gradients(of, &decoder.get(0)?)?;
    let scale = |beta: f64| 1. / (1. - beta.powi((t + 1) as i32));
    let stepped = |state: &Tensor, gradient: Tensor| {
        let g = (gradient * f64::from(factor))?;
        let m = ((state.get(1)? * beta1)? + (&g * (1. - beta1))?)?;
        let v = ((state.get(2)? * beta2)? + (g.sqr()? * (1. - beta2))?)?;
        let by = ((&m * scale(beta1))? / ((&v * scale(beta2))?.sqrt()? + f64::from(epsilon))?)?;
        Ok::<_, candle::Error>([(state.get(0)? - (by * f64::from(rate))?)?, m, v])
    };
    let encoder = stepped(encoder, gradients.0)?;
    let mut decoder = stepped(decoder, gradients.1)?;
    if of.unit {
        let norms = decoder[0].sqr()?.sum_keepdim(1)?.sqrt()?;
        decoder[0] = decoder[0].broadcast_div(&norms.maximum(f64::from(f32::MIN_POSITIVE))?)?;
    }
    Ok([Tensor::stack(&encoder, 0)?, Tensor::stack(&decoder, 0)?])
}

struct Step {
    sizes: Sizes,
    rule: AdamRule,
}

/// The rows of the three planes of a state.
fn planes(state: &mut [f32], n: usize, d: usize) -> [&mut [f32]; 3] {
    let (w, moments) = state.split_at_mut(n * d);
    let (m, v) = moments.split_at_mut(n * d);
    [w, m, v]
}

impl Kernel for Step {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let Sizes { n, d_in, d_out, .. } = self.sizes;
        let ([encoder, decoder], [a, b, c, d, e, f, g, scalars, steps]) = io.parts()?;
        let sums = Sums::<f32>::of(self.sizes, [a, b, c, d, e, f, g])?;
        let (&[rate, factor], &[t]) = (scalars.elements::<f32>()?, steps.elements::<i64>()?) else {
            candle::bail!("{OP}: scalars must be two numbers and steps one")
        };
        let at = self.rule.at(rate, t.wrapping_add(1));
        let [we, me, ve] = planes(encoder.elements()?, n, d_in);
        let [wd, md, vd] = planes(decoder.elements()?, n, d_out);
        let encoder = we.par_chunks_mut(d_in).zip(me.par_chunks_mut(d_in)).zip(ve.par_chunks_mut(d_in));
        let decoder = wd.par_chunks_mut(d_out).zip(md.par_chunks_mut(d_out)).zip(vd.par_chunks_mut(d_out));
        let room = || (Lists::default(), vec![0f32; d_in], vec![0f32; d_out]);
        encoder.zip(decoder).enumerate().with_min_len(LATENTS).for_each_init(
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
        Ok(())
    }
}
