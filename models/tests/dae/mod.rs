//! Denoising autoencoders: the update is the gradient, the trainer follows the serial program, and
//! noise is undone.
#![allow(clippy::expect_used)]
mod gradient;
mod learning;
mod rules;
mod serial;
mod stacked;

use candle::{DType, Device, Result, Tensor};
use chandlery::Philox;
use chandlery::dae::{Dae, DaeConfig};
use chandlery_ops::core::uniform;

const CPU: Device = Device::Cpu;

/// An autoencoder whose biases are not 0 either.
fn awake(config: DaeConfig, seed: u64) -> Result<Dae> {
    let (n_visible, n_hidden) = (config.n_visible, config.n_hidden);
    let dae = Dae::init(config.clone(), Philox::new(seed, 0), &CPU)?;
    let small = |n: usize, stream| uniform(n, &CPU, Philox::new(seed, stream))?.affine(0.6, -0.3);
    // A decoder that is not the transpose of the encoder.
    let decoder = match dae.decoder_weight() {
        Some(decoder) => {
            let noise = uniform((n_visible, n_hidden), &CPU, Philox::new(seed, 3))?.affine(0.2, -0.1)?;
            Some((decoder + noise)?)
        }
        None => None,
    };
    Dae::from_tensors(config, dae.weight().clone(), small(n_hidden, 1)?, small(n_visible, 2)?, decoder)
}

/// Rows in `[0, 1]`.
fn grey(n: usize, n_visible: usize) -> Result<Tensor> {
    uniform((n, n_visible), &CPU, Philox::new(99, 0))
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The largest difference, relative to the largest wanted value. A NaN is passed on.
fn off(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let size = want.iter().fold(0f64, |size, x| size.max(x.abs()));
    assert!(size > 0., "nothing to compare with");
    got.iter().zip(want).fold(0f64, |worst, (a, b)| {
        let part = (a - b).abs() / size;
        if part > worst || part.is_nan() { part } else { worst }
    })
}

fn first_line(error: candle::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
