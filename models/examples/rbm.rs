//! A restricted Boltzmann machine: it learns digits without labels, then draws some of its own.
//!
//! ```sh
//! cargo run -p chandlery --example rbm
//! ```
use candle::Device;
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{Decode, MinibatchTrainer, Model, Philox, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?;
    let held_out = digits.train.take(500)?.raw(&device)?;

    let rbm = Rbm::init(RbmConfig::new(784, 128), Philox::new(0, 0), &device)?;
    let before = rbm.reconstruction_error(&held_out)?;
    let mut feed = Feed::new(&digits.train, &device, FeedConfig::new(100, 0))?;
    let mut trainer = RbmTrainer::new(&rbm, RbmTrainConfig::default(), Philox::new(0, 1))?;
    trainer.fit(&mut feed, 5)?;

    let rbm = trainer.model()?;
    let after = rbm.reconstruction_error(&held_out)?;
    println!("squared error of a digit: {before:.1} before training, {after:.1} after");
    assert!(after < before / 3.);

    // Gibbs sampling: 200 steps from the digits wander off to others.
    let drawn = rbm.gibbs(&rbm.prepare(&held_out.narrow(0, 0, 4)?)?, 200, Philox::new(0, 2))?;
    println!("{} pixels of four samples are on", drawn.sum_all()?.to_scalar::<f32>()?);
    Ok(())
}
