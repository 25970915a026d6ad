//! Sparse coding: a basis of which few atoms at a time, by a penalty, make up a digit.
//!
//! ```sh
//! cargo run -p chandlery --example sparse_coding
//! ```
use candle::Device;
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use chandlery::{Decode, Encode, Philox};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let digits = open("mnist-sample", &DataOptions::default())?.train;
    let mut feed = Feed::new(&digits, &Device::Cpu, FeedConfig::new(200, 0))?;

    let config = SparseCodingConfig::new(128, 784, 0.5); // atoms, features, penalty
    let model = SparseCoding::fit(config, &mut feed, Philox::new(0, 0))?;

    let rows = digits.take(200)?.raw(&Device::Cpu)?;
    let codes = model.encode(&rows)?;
    let used = codes.ne(0f32)?.to_dtype(candle::DType::F32)?.sum_all()?.to_scalar::<f32>()? / 200.;
    println!("{used:.1} of 128 atoms a digit, squared error {:.1}", model.reconstruction_error(&rows)?);
    assert!(used < 64.);
    Ok(())
}
