//! Dictionary learning: atoms of patches by approximate K-SVD, and sparse codes over them.
//!
//! ```sh
//! cargo run -p chandlery --example dictionary
//! ```
use candle::{DType, Device};
use chandlery::Philox;
use chandlery::datasets::{DataOptions, open};
use chandlery::dictionary::{Dictionary, DictionaryConfig, DictionaryTrainConfig};
use chandlery::{Decode, Encode};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let digits = open("mnist-sample", &DataOptions::default())?.train.take(1000)?;
    let rows = digits.to_tensor(&Device::Cpu)?.to_dtype(DType::F32)?;

    let config = DictionaryConfig::new(64, 784, 6); // six atoms of 64 a digit
    let training = DictionaryTrainConfig { iterations: 10, ..DictionaryTrainConfig::default() };
    let dictionary = Dictionary::fit(config, &rows, training, Philox::new(0, 0))?;

    let codes = dictionary.encode(&rows)?;
    let error = dictionary.reconstruction_error(&rows)?;
    let power = f64::from(rows.sqr()?.sum_all()?.to_scalar::<f32>()?) / 1000.;
    println!(
        "{} numbers in place of 784; {:.0} % of the power is left over",
        codes.width(),
        100. * error / power
    );
    assert!(error < 0.4 * power);
    Ok(())
}
