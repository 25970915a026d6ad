//! A deep belief network with label units, trained by the up-down algorithm: it tells digits apart
//! and draws those of a label.
//!
//! ```sh
//! cargo run -p chandlery --example labelled
//! ```
use candle::{Device, Tensor};
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::rbm::RbmTrainConfig;
use chandlery::{MinibatchTrainer, Philox, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?;
    let mut feed = Feed::new(&digits.train, &device, FeedConfig::new(100, 0))?;

    let dbn = Dbn::init(DbnConfig::new(&[784, 100, 100]), Philox::new(0, 0), &device)?;
    let mut pretraining = DbnTrainer::new(&dbn, vec![RbmTrainConfig::default(); 2], Philox::new(0, 1))?;
    pretraining.fit(&mut feed, &[3, 3])?;

    let labelled = LabelledDbn::from_dbn(&pretraining.model()?, 10)?;
    let training = LabelledDbnTrainConfig { batch: 100, ..LabelledDbnTrainConfig::default() };
    let mut trainer = LabelledDbnTrainer::new(&labelled, training, Philox::new(0, 2))?;
    trainer.fit(&mut feed, 5)?;
    let labelled = trainer.model()?;

    let rows = digits.train.take(500)?;
    let labels = rows.labels_tensor(&device)?.ok_or("no labels")?;
    let accuracy = labelled.accuracy(&rows.raw(&device)?, &labels)?;
    println!("{:.1} % of 500 training digits told right", 100. * accuracy);
    let twos = labelled.sample(&Tensor::full(2u32, 3, &device)?, 100, Philox::new(0, 3))?;
    println!("three drawn twos: {:?}", twos.dims());
    assert!(accuracy > 0.5);
    Ok(())
}
