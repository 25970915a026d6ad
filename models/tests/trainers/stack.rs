//! Stacks, layer by layer.
use super::{BATCH, CPU, N, cd, first_line, flat, half};
use candle::Result;
use chandlery::datasets::{Feed, FeedConfig, Split};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::RbmTrainConfig;
use chandlery::{Epochs, Event, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::core::uniform;
use std::ops::ControlFlow;

#[test]
fn a_stack_is_fitted_layer_by_layer() -> Result<()> {
    let rows = Split::from_tensors(&uniform((34, N), &CPU, Philox::new(9, 0))?, None)
        .map_err(candle::Error::wrap)?;
    let mut feed = Feed::new(&rows, &CPU, FeedConfig::new(BATCH, 5)).map_err(candle::Error::wrap)?;
    let new = || {
        let config = DbnConfig { preparation: half()?, ..DbnConfig::new(&[N, 5, 4]) };
        let dbn = Dbn::init(config, Philox::new(2, 0), &CPU)?;
        DbnTrainer::new(&dbn, vec![cd(), cd()], Philox::new(2, 1))
    };
    let values = |trainer: &DbnTrainer| {
        let dbn = trainer.model()?;
        flat(dbn.layers().iter().flat_map(|rbm| rbm.tensors().into_iter().map(|(_, t)| t)))
    };
    let (mut fitted, mut looped, mut raw) = (new()?, new()?, new()?);
    let metrics = fitted.fit(&mut feed, &[2, 3])?;
    assert_eq!(metrics.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
    for (layer, epochs) in [2, 3].into_iter().enumerate() {
        // Each epoch has an order of its own.
        let of_layer = || Epochs { earlier: 2 * layer, ..epochs.into() };
        let mut made = looped.feed_of_layer(&feed)?;
        assert_eq!(made.as_ref().map(Feed::n_features), (layer == 1).then_some(5));
        MinibatchTrainer::fit(&mut looped, made.as_mut().unwrap_or(&mut feed), of_layer())?;
        assert_eq!(looped.next_layer()?, layer == 0);
        MinibatchTrainer::fit(&mut raw, &mut feed, of_layer())?;
        assert_eq!(raw.next_layer()?, layer == 0);
    }
    assert!(values(&fitted)? == values(&looped)?);
    // What the lower layer makes is the same for each minibatch, up to rounding.
    let far = values(&fitted)?.into_iter().zip(values(&raw)?).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
    assert!(far < 1e-5, "{far}");
    // One that is broken off goes on with the layer under way.
    let mut broken = new()?;
    let made = broken.fit_with(&mut feed, &[2, 3], |event| {
        let ends = matches!(event, Event::Epoch { epoch: 0, trainer, .. } if trainer.layer() == 1);
        Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    assert_eq!((made.iter().map(Vec::len).collect::<Vec<_>>(), broken.layer()), (vec![2, 1], 1));
    let path = std::env::temp_dir().join(format!("chandlery-stack-{}.safetensors", std::process::id()));
    broken.save(&path, &serde_json::Value::Null)?;
    let (mut broken, _) = DbnTrainer::load(&path, &CPU)?;
    std::fs::remove_file(&path)?;
    let Some(mut made) = broken.feed_of_layer(&feed)? else { candle::bail!("rows are on the device") };
    MinibatchTrainer::fit(&mut broken, &mut made, Epochs { earlier: 2, ..(1..3).into() })?;
    assert!(values(&broken)? == values(&fitted)?);
    // The same of rows that stream.
    let streamed = FeedConfig { resident_bytes: None, ..FeedConfig::new(BATCH, 5) };
    let mut streamed = Feed::new(&rows, &CPU, streamed).map_err(candle::Error::wrap)?;
    let mut from_stream = new()?;
    from_stream.fit(&mut streamed, &[2, 3])?;
    assert!(values(&from_stream)? == values(&fitted)?);
    // What reads states that are drawn anew is made anew in each step.
    let drawn = RbmTrainConfig { binarize: true, ..cd() };
    let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(2, 0), &CPU)?;
    let mut drawn = DbnTrainer::new(&dbn, vec![drawn; 2], Philox::new(2, 1))?;
    assert!(drawn.next_layer()? && drawn.feed_of_layer(&feed)?.is_none());
    let error = first_line(new()?.fit(&mut feed, &[2]).expect_err("fitted"));
    assert_eq!(error, "DbnTrainer::fit: epochs must have one number for each of 2 layers, got 1");
    Ok(())
}
