//! A classifier: a deep belief network, fine-tuned as a whole by backpropagation until held-out
//! rows get no better.
//!
//! ```sh
//! cargo run -p chandlery --example feedforward
//! ```
use candle::Device;
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::feedforward::{Feedforward, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::rbm::RbmTrainConfig;
use chandlery::{Philox, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?;
    let (train, held_out) = digits.train.hold_out(500, 0)?;
    let mut feed = Feed::new(&train, &device, FeedConfig::new(100, 0))?;

    let dbn = Dbn::init(DbnConfig::new(&[784, 128, 64]), Philox::new(0, 0), &device)?;
    let mut pretraining = DbnTrainer::new(&dbn, vec![RbmTrainConfig::default(); 2], Philox::new(0, 1))?;
    pretraining.fit(&mut feed, &[3, 3])?;

    let network = Feedforward::from_dbn(&pretraining.model()?, 10)?;
    let mut trainer =
        FeedforwardTrainer::new(&network, FeedforwardTrainConfig::default(), Philox::new(0, 2))?;
    let best = trainer.fit_until(&mut feed, 30, &held_out, 5)?;
    println!("best after epoch {}: {:.1} % of held-out digits wrong", best.epoch + 1, 100. * best.figure);
    assert!(best.figure < 0.1);
    Ok(())
}
