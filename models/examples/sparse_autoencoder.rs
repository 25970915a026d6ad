//! A sparse autoencoder of digits, by L-BFGS over all rows at once.
//!
//! ```sh
//! cargo run -p chandlery --example sparse_autoencoder
//! ```
use candle::Device;
use chandlery::datasets::{DataOptions, open};
use chandlery::sparse_autoencoder::{
    CostConfig, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
};
use chandlery::{Decode, Encode, Philox};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let digits = open("mnist-sample", &DataOptions::default())?.train.take(1000)?;
    let rows = digits.raw(&Device::Cpu)?;

    let config = SparseAutoencoderConfig::new(784, 64);
    let cost = CostConfig { sparsity_target: 0.1, sparsity_weight: 0.3, ..CostConfig::default() };
    let training = SparseAutoencoderLbfgsTrainConfig { cost, iterations: 100, ..Default::default() };
    let model = SparseAutoencoder::fit(config, &rows, training, Philox::new(0, 0))?;

    let active = model.encode(&rows)?.mean_all()?.to_scalar::<f32>()?;
    let error = model.reconstruction_error(&rows)?;
    println!("squared error of a digit {error:.1}; a feature is active {active:.2} of the time");
    assert!(error < 40. && active < 0.3);
    Ok(())
}
