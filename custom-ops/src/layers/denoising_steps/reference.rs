//! Plain loops over rows and units.
use super::{DenoisingParams, DenoisingSteps};
use crate::core::Philox;
use crate::core::math::{sigmoid, softplus};
use candle::{DType, Result, Tensor};

/// The parameters after the steps of [`denoising_steps_`](super::denoising_steps_), as a new tensor
/// like `params.values`, and the sums of cross-entropy and squared error: one row and one unit
/// after the other, in f32.
///
/// # Errors
/// When shapes do not fit.
pub fn denoising_steps_reference(
    params: DenoisingParams<'_>,
    rows: &Tensor,
    steps: DenoisingSteps,
    philox: Philox,
) -> Result<(Tensor, [f64; 2])> {
    let DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at } = params;
    let mut values = values.to_vec1::<f32>()?;
    let x: Vec<f32> = rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let x: Vec<f32> = x.iter().map(|x| steps.scale * x).collect();
    let size = steps.batch * n_visible;
    let mut figures = [0.; 2];
    let mut philox = philox;
    for x in x.chunks_exact(size) {
        let corrupted: Vec<f32> =
            (0..).zip(x).map(|(e, &x)| steps.corruption.of_element(x, philox, e)).collect();
        philox = philox.advanced(size);
        let mut change = vec![0.; values.len()];
        for (x, corrupted) in x.chunks_exact(n_visible).zip(corrupted.chunks_exact(n_visible)) {
            let w = |h: usize, v: usize| values[h * n_visible + v];
            let hidden: Vec<f32> = (0..n_hidden)
                .map(|h| {
                    sigmoid((0..n_visible).map(|v| w(h, v) * corrupted[v]).sum::<f32>() + values[bias_at + h])
                })
                .collect();
            let mut error = vec![0.; n_visible];
            for v in 0..n_visible {
                let a = (0..n_hidden).map(|h| w(h, v) * hidden[h]).sum::<f32>() + values[visible_bias_at + v];
                error[v] = x[v] - sigmoid(a);
                figures[0] += f64::from(softplus(a) - x[v] * a);
                figures[1] += f64::from(error[v]).powi(2);
                change[visible_bias_at + v] += error[v];
            }
            for h in 0..n_hidden {
                let back: f32 = (0..n_visible).map(|v| w(h, v) * error[v]).sum();
                let hidden_error = hidden[h] * (1. - hidden[h]) * back;
                change[bias_at + h] += hidden_error;
                for v in 0..n_visible {
                    change[h * n_visible + v] += hidden_error * corrupted[v] + hidden[h] * error[v];
                }
            }
        }
        let rate = steps.learning_rate / steps.batch as f32;
        let keep = 1. - steps.learning_rate * steps.weight_decay;
        values[..n_hidden * n_visible].iter_mut().for_each(|weight| *weight *= keep);
        values.iter_mut().zip(change).for_each(|(value, change)| *value += rate * change);
    }
    Ok((Tensor::new(values, rows.device())?, figures))
}
