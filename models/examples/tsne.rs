//! t-SNE: digits in the plane, and new ones placed among them.
//!
//! ```sh
//! cargo run -p chandlery --example tsne
//! ```
use candle::Device;
use chandlery::datasets::{DataOptions, open};
use chandlery::tsne::measure::knn_label_accuracy;
use chandlery::tsne::{Tsne, TsneConfig};
use chandlery::{Encode, Philox};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let digits = open("mnist-sample", &DataOptions::default())?.train;
    let (rows, new) = (digits.take(1000)?, digits.select(&[1000, 1001, 1002])?);

    let tsne = Tsne { config: TsneConfig::default(), philox: Philox::new(0, 0) };
    let embedding = tsne.fit(&rows.raw(&Device::Cpu)?)?;

    let labels = rows.labels_tensor(&Device::Cpu)?.ok_or("no labels")?;
    let accuracy = knn_label_accuracy(embedding.layout(), &labels, 10)?;
    println!("{:.1} % of the digits lie among their own", 100. * accuracy);
    println!("places of three new ones: {:?}", embedding.encode(&new.raw(&Device::Cpu)?)?.to_vec2::<f32>()?);
    assert!(accuracy > 0.8);
    Ok(())
}
