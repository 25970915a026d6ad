//! Artificial views of rows: each is corrupted and reconstructed again and again.
//!
//! ```text
//! x⁰ = x,   xᵗ = z(corrupt(xᵗ⁻¹)),   t = 1 … n
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `x` | `x`, prepared rows | `[batch, n_inputs]` |
//! | `xᵗ` | entry `t − 1` of the result | `[batch, n_inputs]` |
//! | `z` | [`crate::Decode::reconstruct_prepared`] of the network | |
//!
//! The chain is one of Markov, which walks over rows that look like those of the training: with the
//! noise of the training its share of visits to a row tends to the density of the data as training
//! goes on (Bengio et al.). Step `t` takes the draws from block `offset + (t − 1) ⌈batch · n / 4⌉`
//! on, so that a longer chain begins with a shorter one.
//!
//! Sources: Kumar and Giaquinto, "Parallelizing denoising autoencoders", section 2.3, who name the
//! use and give no algorithm; Bengio, Yao, Alain and Vincent, "Generalized denoising auto-encoders
//! as generative models", NIPS 2013, whose chain this is. Departure from the latter: a step gives
//! the mean of the reconstruction, not a draw from it, as views are to be looked at and trained on.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::dae::{Dae, DaeConfig, views};
//! use chandlery::{Decode, Philox};
//! use chandlery_ops::layers::Corruption;
//! # fn main() -> candle::Result<()> {
//! let dae = Dae::init(DaeConfig::new(3, 2), Philox::new(0, 0), &Cpu)?;
//! let x = Tensor::new(&[[0.2f32, 0.4, 1.]], &Cpu)?;
//! // Without noise a view is the reconstruction, and the next that of the view.
//! let chain = views(&dae, &x, Corruption::None, 2, Philox::new(7, 0))?;
//! assert_eq!(chain[0].to_vec2::<f32>()?, dae.reconstruct_prepared(&x)?.to_vec2::<f32>()?);
//! assert_eq!(chain[1].to_vec2::<f32>()?, dae.reconstruct_prepared(&chain[0])?.to_vec2::<f32>()?);
//! # Ok(()) }
//! ```
use crate::model::Decode;
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::layers::{Corruption, corrupt};

/// `n` views of prepared rows `x`, `[batch, n_inputs]` each, by an autoencoder or a stack of them;
/// see the [module](self). `philox` is where the noise begins.
///
/// # Errors
/// When `x` is not what the network reads, there are no rows, or `corruption` is out of its range.
pub fn views<M: Decode>(
    network: &M,
    x: &Tensor,
    corruption: Corruption,
    n: usize,
    philox: Philox,
) -> Result<Vec<Tensor>> {
    corruption.validate()?;
    if x.elem_count() == 0 {
        candle::bail!("views: x must have at least one row, got shape {:?}", x.dims())
    }
    let mut views = Vec::with_capacity(n);
    let (mut x, mut draws) = (x.to_dtype(DType::F32)?.contiguous()?, philox);
    for _ in 0..n {
        let corrupted = corrupt(&x, corruption, draws)?;
        draws = draws.advanced(x.elem_count());
        x = network.reconstruct_prepared(&corrupted)?.contiguous()?;
        views.push(x.clone());
    }
    Ok(views)
}
