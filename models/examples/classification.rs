//! Classification by sparse codes: a dictionary for each digit; a row is the digit whose dictionary
//! leaves least of it.
//!
//! ```sh
//! cargo run -p chandlery --example classification
//! ```
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::datasets::{DataOptions, open};
use chandlery::dictionary::classify::ClassDictionaries;
use chandlery::dictionary::{DictionaryConfig, DictionaryTrainConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?;
    let train = digits.train.take(2000)?;
    let test = digits.test.ok_or("no test rows")?.take(500)?;

    let config = DictionaryConfig::new(40, 784, 5); // of each digit; five atoms a row
    let training = DictionaryTrainConfig { iterations: 5, ..DictionaryTrainConfig::default() };
    let labels = train.labels.as_deref().ok_or("no labels")?;
    let rows = train.raw(&device)?;
    let classes = ClassDictionaries::fit(&config, &rows, labels, 10, &training, Philox::new(0, 0))?;

    let labels = test.labels_tensor(&device)?.ok_or("no labels")?;
    let accuracy = classes.accuracy(&test.raw(&device)?, &labels)?;
    println!("{:.1} % of 500 test digits told right", 100. * accuracy);
    // What each dictionary leaves of the first one, which shows a 0.
    let left = classes.residuals(&test.take(1)?.raw(&device)?)?.to_vec2::<f64>()?;
    println!("left of the first one by each digit's dictionary: {:.1?}", left[0]);
    assert!(accuracy > 0.88);
    // One dictionary that does not know the labels tells nothing: all residuals are alike.
    let shuffled: Vec<u32> = (0..2000u32).map(|i| i / 10 % 10).collect();
    let others = ClassDictionaries::fit(&config, &rows, &shuffled, 10, &training, Philox::new(0, 0))?;
    assert!(
        others
            .accuracy(&test.raw(&device)?, &Tensor::new(test.labels.as_deref().unwrap_or(&[]), &device)?)?
            < 0.3
    );
    Ok(())
}
