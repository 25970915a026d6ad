//! A deep belief network of two layers, trained one after the other, and a linear classifier of its
//! features.
//!
//! ```sh
//! cargo run -p chandlery --example dbn
//! ```
use candle::Device;
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::RbmTrainConfig;
use chandlery::softmax::{Softmax, SoftmaxTrainConfig};
use chandlery::{Encode, Layered, Philox, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?;

    let dbn = Dbn::init(DbnConfig::new(&[784, 128, 64]), Philox::new(0, 0), &device)?;
    let mut feed = Feed::new(&digits.train, &device, FeedConfig::new(100, 0))?;
    let mut trainer = DbnTrainer::new(&dbn, vec![RbmTrainConfig::default(); 2], Philox::new(0, 1))?;
    trainer.fit(&mut feed, &[5, 5])?;
    let dbn = trainer.model()?;

    let rows = digits.train.raw(&device)?; // raw rows: bytes here
    let labels = digits.train.labels_tensor(&device)?.ok_or("no labels")?;
    println!("features of the upper layer: {:?}", dbn.encode(&rows)?.dims());
    let (classifier, _) =
        Softmax::fit(&dbn.all_features(&rows)?, &labels, 10, &SoftmaxTrainConfig::default())?;
    let test = digits.test.as_ref().unwrap_or(&digits.train);
    let test_labels = test.labels_tensor(&device)?.ok_or("no labels")?;
    let accuracy = classifier.accuracy(&dbn.all_features(&test.raw(&device)?)?, &test_labels)?;
    println!("test digits told right by a linear classifier of all features: {:.1} %", 100. * accuracy);
    assert!(accuracy > 0.8);
    Ok(())
}
