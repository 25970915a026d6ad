//! An encoder inside another model: a trained network and a new linear head, trained together by an
//! optimiser of candle, and saved in one file.
//!
//! ```sh
//! cargo run -p chandlery --example head
//! ```
use candle::{DType, Device, Module};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss::cross_entropy};
use chandlery::datasets::{DataOptions, Feed, FeedConfig, open};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::RbmTrainConfig;
use chandlery::{Model, Philox, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::Cpu;
    let digits = open("mnist-sample", &DataOptions::default())?.train;
    let mut feed = Feed::new(&digits, &device, FeedConfig::new(100, 0))?;
    let dbn = Dbn::init(DbnConfig::new(&[784, 100]), Philox::new(0, 0), &device)?;
    let mut trainer = DbnTrainer::new(&dbn, vec![RbmTrainConfig::default()], Philox::new(0, 1))?;
    trainer.fit(&mut feed, &[3])?;

    let mut variables = VarMap::new();
    let encoder = trainer.model()?.store_in(&mut variables, "encoder")?;
    let head = linear(100, 10, VarBuilder::from_varmap(&variables, DType::F32, &device).pp("head"))?;
    let parameters = ParamsAdamW { lr: 2e-3, ..ParamsAdamW::default() };
    let mut adam = AdamW::new(variables.all_vars(), parameters)?;

    let mut losses = vec![];
    for epoch in 0..3 {
        feed.start_epoch(epoch, 0)?;
        while let Some(batch) = feed.next()? {
            let logits = head.forward(&encoder.forward(&batch.rows)?)?;
            let loss = cross_entropy(&logits, &batch.labels.ok_or("no labels")?)?;
            adam.backward_step(&loss)?;
            losses.push(loss.to_scalar::<f32>()?);
        }
    }
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("cross-entropy of a minibatch: {first:.2} at first, {last:.2} at last");
    assert!(last < first / 2.);

    let path = std::env::temp_dir().join(format!("chandlery-head-{}.safetensors", std::process::id()));
    variables.save(&path)?; // `encoder.…` and `head.…` side by side
    std::fs::remove_file(path)?;
    Ok(())
}
