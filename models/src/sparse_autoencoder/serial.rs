//! The cost and its gradient in plain loops on one thread: the standard that the parallel code is
//! measured by.
//!
//! One row after the other, as the baseline program of Klaus and Welles goes (their figure 5): a
//! pass for the mean activations, then for each row forward, back, and its share of the gradient.
//! No blocks, no vectors, no libraries. See the [module above](super) for the equations. It is in
//! this crate because the tests of this crate hold the fast cost to it; the other forms that the
//! paper prints are in the program `bench`, which is held to this one.
use super::{CostConfig, Decoder, SparseAutoencoderConfig};
use chandlery_ops::layers::LEAST_ACTIVATION;
use nalgebra::{RealField, convert};

/// `J` and its gradient at `theta`, in the order of [`flat`](super::SparseAutoencoder::flat), over
/// prepared rows, `[m, n_visible]` row by row; f32 or f64. None when the lengths do not fit the
/// sizes.
///
/// Cost: `12 m n_visible n_hidden` FLOP.
pub fn serial_cost<T: RealField + Copy>(
    model: &SparseAutoencoderConfig,
    cost: &CostConfig,
    theta: &[T],
    rows: &[T],
) -> Option<(T, Vec<T>)> {
    let (n_visible, n_hidden) = (model.n_visible, model.n_hidden);
    if theta.len() != model.n_parameters()
        || rows.is_empty()
        || n_visible == 0
        || !rows.len().is_multiple_of(n_visible)
    {
        return None;
    }
    let m: T = convert((rows.len() / n_visible) as f64);
    let (half, one) = (convert::<f64, T>(0.5), T::one());
    let [decay, beta, rho] =
        [cost.weight_decay, cost.sparsity_weight, cost.sparsity_target].map(convert::<f64, T>);
    let (weights, biases) = theta.split_at(2 * n_visible * n_hidden);
    let (weight, decoder) = weights.split_at(n_visible * n_hidden);
    let (bias, visible_bias) = biases.split_at(n_hidden);

    let mut mean = vec![T::zero(); n_hidden];
    let mut a = vec![T::zero(); n_hidden];
    for x in rows.chunks_exact(n_visible) {
        layer(&mut a, weight, bias, x, Decoder::Sigmoid);
        for (mean, a) in mean.iter_mut().zip(&a) {
            *mean += *a / m;
        }
    }
    let mut value = T::zero();
    let mut pull = vec![T::zero(); n_hidden];
    let least = convert::<f64, T>(LEAST_ACTIVATION);
    let log = |share: T, of: T| share * (share / if of < least { least } else { of }).ln();
    let slope = |share: T, of: T| if of < least { T::zero() } else { share / of };
    for (pull, &r) in pull.iter_mut().zip(&mean) {
        value += beta * (log(rho, r) + log(one - rho, one - r));
        *pull = beta * (slope(one - rho, one - r) - slope(rho, r));
    }
    for w in weights {
        value += half * decay * *w * *w;
    }

    let mut gradient: Vec<T> = weights.iter().map(|&w| decay * w).collect();
    gradient.resize(theta.len(), T::zero());
    let (weights, biases) = gradient.split_at_mut(2 * n_visible * n_hidden);
    let (weight_gradient, decoder_gradient) = weights.split_at_mut(n_visible * n_hidden);
    let (bias_gradient, visible_gradient) = biases.split_at_mut(n_hidden);
    let mut h = vec![T::zero(); n_visible];
    for x in rows.chunks_exact(n_visible) {
        layer(&mut a, weight, bias, x, Decoder::Sigmoid);
        layer(&mut h, decoder, visible_bias, &a, model.decoder);
        for (h, &x) in h.iter_mut().zip(x) {
            let apart = *h - x;
            value += half * apart * apart / m;
            let slope = if model.decoder == Decoder::Sigmoid { *h * (one - *h) } else { one };
            *h = apart * slope / m;
        }
        for (i, &delta) in h.iter().enumerate() {
            visible_gradient[i] += delta;
            for (j, &a) in a.iter().enumerate() {
                decoder_gradient[i * n_hidden + j] += delta * a;
            }
        }
        for j in 0..n_hidden {
            let mut delta = pull[j] / m;
            for (i, &above) in h.iter().enumerate() {
                delta += above * decoder[i * n_hidden + j];
            }
            delta *= a[j] * (one - a[j]);
            bias_gradient[j] += delta;
            for (i, &x) in x.iter().enumerate() {
                weight_gradient[j * n_visible + i] += delta * x;
            }
        }
    }
    Some((value, gradient))
}

/// `out ← f(x wᵀ + b)` for one row.
fn layer<T: RealField + Copy>(out: &mut [T], weight: &[T], bias: &[T], x: &[T], f: Decoder) {
    for ((out, weight), &bias) in out.iter_mut().zip(weight.chunks_exact(x.len())).zip(bias) {
        let mut z = bias;
        for (&w, &x) in weight.iter().zip(x) {
            z += w * x;
        }
        *out = if f == Decoder::Sigmoid { T::one() / (T::one() + (-z).exp()) } else { z };
    }
}
