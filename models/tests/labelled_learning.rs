//! What a network with labels has learnt shows in its classes and in its samples.
use candle::{Device, Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer, Stage};
use chandlery::rbm::RbmTrainConfig;
use chandlery::schedule::Schedule;
use chandlery::{MinibatchTrainer, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::bernoulli;

const CPU: Device = Device::Cpu;

/// Rows of 16 inputs whose left half is mostly on in class 0 and whose right half in class 1.
fn halves(n: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..n as u32).map(|i| i % 2).collect();
    let means =
        labels.iter().flat_map(|&c| (0..16).map(move |i| if (i < 8) == (c == 0) { 0.9f32 } else { 0.1 }));
    let means = Tensor::from_iter(means, &CPU)?.reshape((n, 16))?;
    Ok((bernoulli(&means, Philox::new(seed, 0))?, Tensor::new(labels, &CPU)?))
}

/// Share of rows that are more on in the half of their label than in the other.
fn of_their_class(rows: &Tensor, labels: &Tensor) -> Result<f64> {
    let labels = labels.to_vec1::<u32>()?;
    let right = rows.to_vec2::<f32>()?.into_iter().zip(&labels).filter(|(row, label)| {
        let (left, right) = row.split_at(8);
        (left.iter().sum::<f32>() > right.iter().sum::<f32>()) == (**label == 0)
    });
    Ok(right.count() as f64 / labels.len() as f64)
}

#[test]
fn learning_makes_samples_of_the_class_that_is_asked_for() -> Result<()> {
    let (rows, labels) = halves(400, 1)?;
    let (test, test_labels) = halves(400, 2)?;
    let asked = Tensor::from_iter((0..200u32).map(|i| i % 2), &CPU)?;
    let dbn = Dbn::init(DbnConfig::new(&[16, 12, 10]), Philox::new(3, 0), &CPU)?;
    let cd = RbmTrainConfig { batch: 20, ..RbmTrainConfig::default() };
    let mut greedy = DbnTrainer::new(&dbn, vec![cd; 2], Philox::new(3, 10))?;
    let minibatch = |t: &Tensor, step: usize| t.narrow(0, step % 20 * 20, 20);
    loop {
        for step in 0..200 {
            greedy.step(&minibatch(&rows, step)?, None)?;
        }
        if !greedy.next_layer()? {
            break;
        }
    }
    let mut dbn = LabelledDbn::from_dbn(&greedy.model()?, 2)?;
    // Without labels learnt, a class that is asked for changes nothing, and all rows go to the
    // first class.
    let untrained = of_their_class(&dbn.sample(&asked, 50, Philox::new(4, 0))?, &asked)?;
    assert!(untrained < 0.7, "untrained: {untrained} of samples are of their class");
    assert!(dbn.accuracy(&test, &test_labels)? < 0.6);

    let mut errors = Vec::new();
    for stage in [Stage::Top, Stage::UpDown] {
        let training = LabelledDbnTrainConfig {
            stage,
            batch: 20,
            learning_rate: Schedule::constant(0.1),
            ..LabelledDbnTrainConfig::default()
        };
        let mut trainer = LabelledDbnTrainer::new(&dbn, training, Philox::new(5, stage as u64))?;
        for step in 0..1500 {
            trainer.step(&minibatch(&rows, step)?, Some(&minibatch(&labels, step)?))?;
        }
        let metrics = trainer.metrics()?;
        assert_eq!(metrics.steps, 1500);
        errors.push(metrics.label_error);
        dbn = trainer.model()?;
        let accuracy = dbn.accuracy(&test, &test_labels)?;
        assert!(accuracy > 0.97, "{stage:?}: accuracy {accuracy}");
        let share = of_their_class(&dbn.sample(&asked, 50, Philox::new(4, 0))?, &asked)?;
        // The layers below are still those that learnt without labels after the first stage.
        let enough = if stage == Stage::Top { 0.85 } else { 0.95 };
        assert!(share > enough, "{stage:?}: {share} of samples are of their class");
    }
    assert!(errors[1] < 0.1, "the chain keeps the label of nearly every row in the end: {errors:?}");
    // A chain that begins at a row of one class and is told the other ends in the other.
    let other = test_labels.to_vec1::<u32>()?.into_iter().map(|c| 1 - c).collect::<Vec<_>>();
    let other = Tensor::new(other, &CPU)?;
    let turned = of_their_class(&dbn.sample_from(&test, &other, 300, Philox::new(6, 0))?, &other)?;
    assert!(turned > 0.9, "{turned} of rows took the class they were told");
    Ok(())
}
