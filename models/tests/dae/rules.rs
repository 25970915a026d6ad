//! What is refused, in words, and what is noticed.
use super::{CPU, awake, first_line, grey};
use candle::{Result, Tensor};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::feedforward::Activation;
use chandlery::schedule::Schedule;
use chandlery::{ImageShape, MinibatchTrainer, Philox, Precision, Trainer};
use chandlery_ops::layers::Corruption;

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let refused = |change: &dyn Fn(&mut DaeConfig)| {
        let mut config = DaeConfig::new(6, 4);
        change(&mut config);
        first_line(Dae::init(config, Philox::new(0, 0), &CPU).expect_err("taken"))
    };
    for (got, want) in [
        (refused(&|c| c.n_visible = 0), "DaeConfig: n_visible must be at least 1, got 0"),
        (refused(&|c| c.n_hidden = 0), "DaeConfig: n_hidden must be at least 1, got 0"),
        (
            refused(&|c| c.output = Activation::Identity),
            "DaeConfig: loss must be squared-error unless outputs are sigmoid, got cross-entropy and Identity",
        ),
        (
            refused(&|c| c.image = Some(ImageShape::grey(2, 2))),
            "DaeConfig: image must have as many values as a row, 6, got 2x2x1 with 4",
        ),
    ] {
        assert_eq!(got, want);
    }
}

#[test]
fn training_that_makes_no_sense_is_refused() -> Result<()> {
    let dae = awake(DaeConfig::new(6, 4), 1)?;
    let refused = |change: &dyn Fn(&mut DaeTrainConfig)| {
        let mut config = DaeTrainConfig::default();
        change(&mut config);
        first_line(DaeTrainer::new(&dae, config, Philox::new(0, 0)).err().expect("taken"))
    };
    for (got, want) in [
        (refused(&|c| c.batch = 0), "DaeTrainConfig: batch must be at least 1, got 0"),
        (
            refused(&|c| c.learning_rate = Schedule::constant(-1.)),
            "DaeTrainConfig: learning_rate must be at least 0, got -1",
        ),
        (
            refused(&|c| c.momentum = Schedule::constant(1.)),
            "DaeTrainConfig: momentum must be in [0, 1), got 1",
        ),
        (refused(&|c| c.weight_decay = f64::NAN), "DaeTrainConfig: weight_decay must be at least 0, got NaN"),
        (
            refused(&|c| c.corruption = Corruption::Masking(1.5)),
            "DaeTrainConfig: Corruption: the share of replaced values must be in [0, 1], got 1.5",
        ),
    ] {
        assert_eq!(got, want);
    }
    let mut trainer = DaeTrainer::new(&dae, DaeTrainConfig::default(), Philox::new(0, 0))?;
    let error = first_line(trainer.step(&grey(9, 6)?, None).expect_err("taken"));
    assert_eq!(error, "DaeTrainer::step: rows must have shape [8, 6], or fewer rows, at least 1, got [9, 6]");
    let above = awake(DaeConfig::new(5, 4), 2)?;
    let lower = [dae.clone()];
    let config = DaeTrainConfig::default();
    let error = DaeTrainer::above(&lower, &above, &Default::default(), config, Philox::new(0, 0));
    assert_eq!(
        first_line(error.err().expect("taken")),
        "DaeTrainer: a layer must read as many values as the one below has hidden units, got 5 above 4"
    );
    Ok(())
}

#[test]
fn parameters_of_other_shapes_are_refused() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, candle::DType::F32, &CPU);
    let made = |weight: &[usize], bias: usize, visible: usize, decoder: Option<&[usize]>, tied: bool| {
        let decoder = decoder.map(zeros).transpose()?;
        let config = DaeConfig { tied, ..DaeConfig::new(6, 4) };
        Dae::from_tensors(config, zeros(weight)?, zeros(&[bias])?, zeros(&[visible])?, decoder)
    };
    let refused = |r: Result<Dae>| first_line(r.expect_err("taken"));
    assert!(made(&[4, 6], 4, 6, None, true).is_ok() && made(&[4, 6], 4, 6, Some(&[6, 4]), false).is_ok());
    for (got, want) in [
        (made(&[6, 4], 4, 6, None, true), "Dae: weight must have shape [4, 6], got [6, 4]"),
        (made(&[4, 6], 6, 6, None, true), "Dae: bias must have shape [4], got [6]"),
        (made(&[4, 6], 4, 4, None, true), "Dae: visible_bias must have shape [6], got [4]"),
        (made(&[4, 6], 4, 6, Some(&[4, 6]), false), "Dae: decoder_weight must have shape [6, 4], got [4, 6]"),
        (
            made(&[4, 6], 4, 6, None, false),
            "Dae: decoder_weight must be given exactly when weights are not tied, got none with tied = false",
        ),
        (
            made(&[4, 6], 4, 6, Some(&[6, 4]), true),
            "Dae: decoder_weight must be given exactly when weights are not tied, got one with tied = true",
        ),
    ] {
        assert_eq!(refused(got), want);
    }
    Ok(())
}

#[test]
fn training_that_has_diverged_names_the_steps() -> Result<()> {
    let dae = awake(DaeConfig::new(6, 4), 3)?;
    let mut trainer = DaeTrainer::new(&dae, DaeTrainConfig::default(), Philox::new(0, 0))?;
    let rows = grey(8, 6)?;
    trainer.step(&rows, None)?;
    trainer.metrics()?;
    trainer.step(&rows, None)?;
    trainer.step(&(rows * f64::NAN)?, None)?;
    let want =
        "DaeTrainer: the loss became NaN between steps 2 and 3; lower the learning rate, or scale the input";
    assert_eq!(first_line(trainer.check().expect_err("finite")), want);
    assert_eq!(first_line(trainer.metrics().expect_err("finite")), want);
    Ok(())
}

#[test]
fn settings_of_training_are_read_back() -> Result<()> {
    let config = DaeTrainConfig {
        corruption: Corruption::Gaussian(0.1),
        precision: Precision::Tf32,
        ..DaeTrainConfig::default()
    };
    let text = serde_json::to_string(&config).map_err(candle::Error::wrap)?;
    assert!(text.contains("\"corruption\":\"gaussian:0.1\""), "{text}");
    assert_eq!(serde_json::from_str::<DaeTrainConfig>(&text).map_err(candle::Error::wrap)?, config);
    let error =
        serde_json::from_str::<DaeTrainConfig>(r#"{"corruption": "salt"}"#).err().map(|e| e.to_string());
    assert!(error.as_ref().is_some_and(|e| e.starts_with("corruption must be none, ")), "{error:?}");
    Ok(())
}

#[test]
fn momentum_is_taken_or_refused_and_never_dropped() -> Result<()> {
    let dae = awake(DaeConfig::new(6, 4), 1)?;
    let rows = grey(8, 6)?;
    let config = |momentum: f64| DaeTrainConfig { momentum: momentum.into(), ..DaeTrainConfig::default() };
    for begins in [0., 0.5] {
        let mut trainer = DaeTrainer::new(&dae, config(begins), Philox::new(1, 1))?;
        trainer.step(&rows, None)?;
        match trainer.set_schedules(&config(0.9)) {
            Ok(()) => assert_eq!(trainer.config().momentum, 0.9.into()),
            Err(e) => {
                // Only of steps that have no velocities.
                assert_eq!(begins, 0.);
                let words = "DaeTrainer::set_schedules: momentum must stay Constant(0.0)";
                assert!(e.to_string().starts_with(words), "{e}");
                assert_eq!(trainer.config().momentum, 0f64.into());
            }
        }
        // Another rate alone is always taken.
        let slow = DaeTrainConfig { learning_rate: 0.01.into(), ..trainer.config().clone() };
        trainer.set_schedules(&slow)?;
        trainer.step(&rows, None)?;
        assert_eq!(trainer.config(), &slow);
    }
    Ok(())
}
