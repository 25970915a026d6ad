//! A denoising autoencoder: it learns to give digits back from corrupted ones, and restores some.
//!
//! ```sh
//! cargo run -p chandlery --example dae
//! ```
use candle::Device;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::{Decode, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::layers::{Corruption, corrupt};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?.train;

    let dae = Dae::init(DaeConfig::new(784, 128), Philox::new(0, 0), &device)?;
    let mut feed = Feed::new(&digits, &device, FeedConfig::new(32, 0))?;
    let training =
        DaeTrainConfig { batch: 32, corruption: Corruption::Masking(0.3), ..DaeTrainConfig::default() };
    let mut trainer = DaeTrainer::new(&dae, training, Philox::new(0, 1))?;
    trainer.fit(&mut feed, 5)?;
    let dae = trainer.model()?;

    let clean = dae.prepare(&digits.take(200)?.raw(&device)?)?;
    let noisy = corrupt(&clean, Corruption::Masking(0.3), Philox::new(0, 2))?;
    let restored = dae.reconstruct_prepared(&noisy)?;
    let error = |x: &candle::Tensor| -> candle::Result<f32> {
        Ok((x - &clean)?.sqr()?.sum_all()?.to_scalar::<f32>()? / 200.)
    };
    let (before, after) = (error(&noisy)?, error(&restored)?);
    println!("squared error of a corrupted digit {before:.1}, restored {after:.1}");
    assert!(after < before);
    Ok(())
}
