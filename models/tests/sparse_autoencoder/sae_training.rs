//! Training of sparse autoencoders with latents: known features are found, runs go on to the same
//! bits, and what makes no sense is refused.
#![allow(clippy::expect_used)]
use super::{CPU, first_line};
use candle::{DType, Result, Tensor};
use chandlery::sparse_autoencoder::sae::{
    Kind, LossConfig, Penalty, Resampling, Sae, SaeConfig, SaeTrainConfig, SaeTrainer, geometric_median,
};
use chandlery::sparse_autoencoder::{
    CostConfig, Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderTrainConfig,
    SparseAutoencoderTrainer,
};
use chandlery::{Decode, Encode, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::core::{normal, uniform};
use serde_json::json;

/// Rows that are sums of `active` of so many features of length 1, with weights in [0.5, 1.5], and
/// noise of a share of the rows' length.
struct Planted {
    features: Tensor,
    active: usize,
    noise: f64,
}

impl Planted {
    fn new(n: usize, d: usize, active: usize, noise: f64) -> Result<Self> {
        let features = normal((n, d), &CPU, Philox::new(70, 0))?;
        let features = features.broadcast_div(&features.sqr()?.sum_keepdim(1)?.sqrt()?)?;
        Ok(Self { features, active, noise })
    }

    /// Minibatch `i`.
    fn rows(&self, batch: usize, i: u64) -> Result<Tensor> {
        let (n, d) = self.features.dims2()?;
        let weights = (uniform((batch, self.active), &CPU, Philox::new(71, i))? + 0.5)?;
        let chosen: Vec<u32> =
            (0..batch).flat_map(|r| Philox::new(72 + i, r as u64).sample(n, self.active)).collect();
        let named = self.features.index_select(&Tensor::new(chosen, &CPU)?, 0)?;
        let named = named.reshape((batch, self.active, d))?;
        let rows = named.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)?;
        let length = (self.active as f64 * 13. / 12.).sqrt();
        rows + (normal((batch, d), &CPU, Philox::new(73, i))? * (self.noise * length / (d as f64).sqrt()))?
    }

    /// The share of features whose cosine with a row of `found` is above .95.
    fn found(&self, found: &Tensor) -> Result<f64> {
        let found = found.broadcast_div(&found.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(1e-12)?)?;
        let best = self.features.matmul(&found.t()?)?.max(1)?.to_vec1::<f32>()?;
        Ok(best.iter().filter(|cosine| **cosine > 0.95).count() as f64 / best.len() as f64)
    }
}

#[test]
fn top_k_finds_the_features_of_planted_data_and_the_tutorials_kind_fewer() -> Result<()> {
    let (n, d, active, batch) = (1024, 256, 8, 1024);
    let planted = Planted::new(n, d, active, 0.05)?;
    let steps = 350;
    let config = SaeTrainConfig {
        batch,
        steps: Some(steps),
        learning_rate: Some(3e-3),
        warm_up: 50,
        dead_rows: 20_000,
        loss: LossConfig { aux_k: 64, ..LossConfig::default() },
        ..SaeTrainConfig::default()
    };
    let sae = SaeConfig::new(d, n + n / 2, Kind::TopK { k: active });
    let sae = Sae::init(sae, Philox::new(1, 0), &CPU)?;
    let mut trainer = SaeTrainer::new(&sae, config, Philox::new(1, 1))?;
    // The tutorial's kind from the same rows; its cost has no scale of its own for such data, so it
    // gets a target of what is active.
    let tutorial =
        SparseAutoencoderConfig { decoder: Decoder::Linear, ..SparseAutoencoderConfig::new(d, n + n / 2) };
    let tutorial = SparseAutoencoder::init(tutorial, Philox::new(1, 0), &CPU)?;
    let cost = CostConfig {
        sparsity_target: active as f64 / n as f64,
        sparsity_weight: 0.1,
        ..CostConfig::default()
    };
    let of_tutorial = SparseAutoencoderTrainConfig {
        cost,
        batch,
        learning_rate: 3e-3.into(),
        ..SparseAutoencoderTrainConfig::default()
    };
    let mut other = SparseAutoencoderTrainer::new(&tutorial, of_tutorial)?;
    // As many epochs of the same minibatches for both.
    let minibatches = (0..32).map(|i| planted.rows(batch, i)).collect::<Result<Vec<_>>>()?;
    for (_, rows) in (0..steps).zip(minibatches.iter().cycle()) {
        trainer.step(rows, None)?;
        other.step(rows, None)?;
    }
    assert_eq!(trainer.steps(), other.steps());
    let metrics = trainer.metrics()?;
    let found = planted.found(trainer.model()?.decoder())?;
    let tutorial = other.model()?;
    let mut fewer = planted.found(tutorial.weight())?;
    for (name, t) in tutorial.tensors() {
        if name == "decoder_weight" {
            fewer = fewer.max(planted.found(&t.t()?.contiguous()?)?);
        }
    }
    assert!(found >= 0.95, "{found} of the features; {metrics:?}");
    assert!(fewer < found, "the tutorial's kind finds {fewer}");
    assert!(planted.found(sae.decoder())? < 0.01, "found before training");
    Ok(())
}

fn kinds(n: usize) -> [Kind; 6] {
    [
        Kind::Relu,
        Kind::TopK { k: 3 },
        Kind::BatchTopK { k: 3 },
        Kind::JumpRelu,
        Kind::Gated,
        Kind::matryoshka(3, n),
    ]
}

/// Settings by which everything that a checkpoint holds matters.
fn settings(kind: &Kind) -> SaeTrainConfig {
    let is_relu = *kind == Kind::Relu;
    SaeTrainConfig {
        batch: 32,
        steps: Some(20),
        learning_rate: Some(0.01),
        warm_up: 3,
        sparsity_warm_up: 4,
        first_k: kind.k().map(|k| 2 * k),
        k_steps: 8,
        dead_rows: 40,
        clip: (!is_relu).then_some(0.5),
        resampling: is_relu.then_some(Resampling { every: 3, until: 18 }),
        loss: LossConfig {
            sparsity: 0.02,
            bandwidth: 0.2,
            aux_k: if is_relu { 0 } else { 4 },
            penalty: Penalty::Tanh { scale: 4. },
            multi_top_k: matches!(kind, Kind::TopK { .. }),
            unit_atoms: *kind != Kind::Gated,
            ..LossConfig::default()
        },
        ..SaeTrainConfig::default()
    }
}

fn parameters(sae: &Sae) -> Result<Vec<(String, Vec<u32>)>> {
    let bits = |t: Tensor| -> Result<Vec<u32>> {
        Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    sae.tensors().into_iter().map(|(name, t)| Ok((name, bits(t)?))).collect()
}

#[test]
fn every_kind_learns_and_goes_on_from_a_checkpoint_to_the_same_bits() -> Result<()> {
    let planted = Planted::new(30, 12, 3, 0.05)?;
    let folder = tempfile::tempdir()?;
    for kind in kinds(40) {
        let sae = Sae::init(SaeConfig::new(12, 40, kind.clone()), Philox::new(3, 0), &CPU)?;
        let mut trainer = SaeTrainer::new(&sae, settings(&kind), Philox::new(3, 1))?;
        let mut losses = vec![];
        let path = folder.path().join("checkpoint.safetensors");
        for i in 0..20 {
            if i == 11 {
                trainer.save(&path, &json!({"at": i}))?;
            }
            trainer.step(&planted.rows(if i % 5 == 4 { 7 } else { 32 }, i % 4)?, None)?;
            if i % 5 == 3 {
                losses.push(trainer.metrics()?);
            }
        }
        trainer.check()?;
        let (first, last) = (&losses[0], &losses[losses.len() - 1]);
        assert!(last.fvu < first.fvu && last.fvu > 0., "{kind:?}: {losses:?}");
        assert!(last.l0 > 0. && last.l0 <= 40. && (0. ..=1.).contains(&last.dead), "{kind:?}: {losses:?}");
        if let Kind::TopK { k } = kind {
            assert!(last.l0 <= k as f64, "{losses:?}");
        }
        let done = trainer.model()?;
        if settings(&kind).loss.unit_atoms {
            let lengths = done.decoder().sqr()?.sum(1)?.sqrt()?.to_vec1::<f32>()?;
            assert!(lengths.iter().all(|l| (l - 1.).abs() < 1e-5), "{kind:?}: {lengths:?}");
        }

        let (mut again, progress) = SaeTrainer::load(&path, &CPU)?;
        assert_eq!((progress, again.steps()), (json!({"at": 11}), 11));
        for i in 11..20 {
            again.step(&planted.rows(if i % 5 == 4 { 7 } else { 32 }, i % 4)?, None)?;
            if i % 5 == 3 {
                assert_eq!(again.metrics()?, losses[i as usize / 5], "{kind:?}");
            }
        }
        assert_eq!(parameters(&again.model()?)?, parameters(&done)?, "{kind:?}");
    }
    Ok(())
}

#[test]
fn thresholds_of_batch_top_k_give_the_mean_number_of_latents_on_new_rows() -> Result<()> {
    let planted = Planted::new(60, 24, 4, 0.05)?;
    let kind = Kind::BatchTopK { k: 4 };
    let sae = Sae::init(SaeConfig::new(24, 96, kind), Philox::new(3, 0), &CPU)?;
    let config = SaeTrainConfig {
        batch: 256,
        learning_rate: Some(0.005),
        warm_up: 5,
        threshold_decay: 0.9,
        loss: LossConfig { aux_k: 0, ..LossConfig::default() },
        ..SaeTrainConfig::default()
    };
    let mut trainer = SaeTrainer::new(&sae, config, Philox::new(3, 1))?;
    for i in 0..150 {
        trainer.step(&planted.rows(256, i % 16)?, None)?;
    }
    let model = trainer.model()?;
    let rows = planted.rows(500, 99)?;
    let codes = model.encode(&rows)?;
    let mean = codes.count.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()?;
    assert!((mean - 4.).abs() < 0.4, "{mean} latents");
    let error = model.reconstruction_error(&rows)?;
    let length = rows.sqr()?.sum_all()?.to_scalar::<f32>()? / 500.;
    assert!(error < 0.3 * f64::from(length), "{error} of {length}");
    Ok(())
}

#[test]
fn thresholds_of_jump_relu_start_where_a_share_of_the_latents_is_active() -> Result<()> {
    let planted = Planted::new(60, 24, 4, 0.05)?;
    let rows = planted.rows(256, 0)?;
    let sae = Sae::init(SaeConfig::new(24, 96, Kind::JumpRelu), Philox::new(3, 0), &CPU)?;
    let started = |start_share: f64| -> Result<(Vec<f32>, f64)> {
        let config = SaeTrainConfig {
            start_share,
            // No step moves anything else.
            learning_rate: Some(1e-12),
            start_at_median: false,
            ..SaeTrainConfig::default()
        };
        let mut trainer = SaeTrainer::new(&sae, config, Philox::new(3, 1))?;
        trainer.step(&rows, None)?;
        let l0 = trainer.metrics()?.l0;
        let tensors = trainer.model()?.tensors();
        let (_, thresholds) = tensors.iter().find(|(name, _)| name == "threshold").expect("thresholds");
        Ok((thresholds.to_vec1()?, l0))
    };
    for share in [1. / 48., 0.25] {
        let (thresholds, l0) = started(share)?;
        assert!((l0 - share * 96.).abs() < 0.02, "{l0} latents of a share of {share}");
        assert!(thresholds.iter().all(|t| *t == thresholds[0] && *t > 0.01), "{thresholds:?}");
    }
    let (thresholds, _) = started(0.)?;
    assert!(thresholds.iter().all(|t| (t - 0.01).abs() < 1e-6), "{thresholds:?}");
    Ok(())
}

#[test]
fn a_transcoder_learns_a_map_that_skips_its_latents_and_one_that_does_not() -> Result<()> {
    let planted = Planted::new(30, 12, 3, 0.)?;
    let map = normal((5, 12), &CPU, Philox::new(9, 9))?;
    for skip in [false, true] {
        let config = SaeConfig { skip, ..SaeConfig::transcoder(12, 48, 5, Kind::TopK { k: 3 }) };
        let sae = Sae::init(config, Philox::new(3, 0), &CPU)?;
        let config = SaeTrainConfig {
            batch: 128,
            learning_rate: Some(0.01),
            warm_up: 5,
            loss: LossConfig { unit_atoms: false, aux_k: 0, ..LossConfig::default() },
            ..SaeTrainConfig::default()
        };
        let mut trainer = SaeTrainer::new(&sae, config, Philox::new(3, 1))?;
        let rows = |i| -> Result<(Tensor, Tensor)> {
            let x = planted.rows(128, i)?;
            let y = x.matmul(&map.t()?)?;
            Ok((x, y))
        };
        let mut fvu = vec![];
        for i in 0..240 {
            let (x, y) = rows(i % 8)?;
            trainer.step_to(&x, &y)?;
            if i % 40 == 39 {
                fvu.push(trainer.metrics()?.fvu);
            }
        }
        // The map is linear: what skips the latents can be all of it.
        assert!(fvu[5] < if skip { 0.02 } else { 0.4 } && fvu[5] < fvu[0], "skip {skip}: {fvu:?}");
        let (x, y) = rows(99)?;
        let model = trainer.model()?;
        let back = model.reconstruct_prepared(&x)?;
        assert_eq!(back.dims(), [128, 5]);
        let left = (back - &y)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
        let all = y.sqr()?.sum_all()?.to_scalar::<f32>()?;
        assert!(left < 0.6 * all, "skip {skip}: {left} of {all}");
        let said = first_line(trainer.step(&x, None).expect_err("a step without targets"));
        assert_eq!(said, "SaeTrainer::step: a transcoder must have targets; give them to step_to");
    }
    Ok(())
}

#[test]
fn the_geometric_median_is_where_the_sum_of_distances_is_least() -> Result<()> {
    let x = normal((41, 3), &CPU, Philox::new(6, 0))?.to_dtype(DType::F64)?;
    // One far row moves the mean and hardly the median.
    let x = Tensor::cat(&[&x, &Tensor::new(&[[1000f64, 0., 0.]], &CPU)?], 0)?;
    let median = geometric_median(&x)?;
    let sum =
        |at: &Tensor| -> Result<f64> { x.broadcast_sub(at)?.sqr()?.sum(1)?.sqrt()?.sum_all()?.to_scalar() };
    let least = sum(&median)?;
    for axis in 0..3 {
        for by in [-0.01, 0.01] {
            let mut step = vec![0f64; 3];
            step[axis] = by;
            assert!(sum(&(&median + Tensor::new(step, &CPU)?)?)? > least, "axis {axis} by {by}");
        }
    }
    assert!(median.to_vec1::<f64>()?[0].abs() < 1.);
    // All rows alike: the row.
    let same = geometric_median(&Tensor::new(&[[2f32, 3.], [2., 3.]], &CPU)?)?;
    assert_eq!(same.to_vec1::<f64>()?, [2., 3.]);
    Ok(())
}

#[test]
fn nan_and_settings_without_sense_are_refused() -> Result<()> {
    let top_k = |k| SaeConfig::new(4, 6, Kind::TopK { k });
    let said = |config: SaeConfig| {
        first_line(Sae::init(config, Philox::new(1, 0), &CPU).map(drop).expect_err("a model"))
    };
    assert_eq!(said(top_k(7)), "SaeConfig: k must be 1 to 6, the number of latents, got 7");
    assert_eq!(said(top_k(0)), "SaeConfig: k must be 1 to 6, the number of latents, got 0");
    assert_eq!(said(SaeConfig::new(4, 0, Kind::Relu)), "SaeConfig: n_latents must be at least 1, got 0");
    let prefixes = Kind::Matryoshka { k: 1, prefixes: vec![3, 3, 6] };
    assert_eq!(
        said(SaeConfig::new(4, 6, prefixes)),
        "SaeConfig: prefixes must be 1 to 16 and ascend from 1 or more to 6, the latents, got [3, 3, 6]"
    );
    let sae = Sae::init(top_k(2), Philox::new(1, 0), &CPU)?;
    let refused = |config: SaeTrainConfig| {
        first_line(SaeTrainer::new(&sae, config, Philox::new(1, 1)).map(drop).expect_err("a trainer"))
    };
    let usual = SaeTrainConfig { batch: 8, ..SaeTrainConfig::default() };
    assert_eq!(
        refused(SaeTrainConfig { first_k: Some(7), ..usual.clone() }),
        "SaeTrainConfig: first_k must be 1 to 6, of a kind that has k, got 7"
    );
    assert_eq!(
        refused(SaeTrainConfig { learning_rate: Some(f64::NAN), ..usual.clone() }),
        "SaeTrainConfig: learning_rate must be above 0, got NaN"
    );
    assert_eq!(
        refused(SaeTrainConfig { start_share: 1.5, ..usual.clone() }),
        "SaeTrainConfig: start_share must be in [0, 1], got 1.5"
    );
    let mut trainer = SaeTrainer::new(&sae, usual, Philox::new(1, 1))?;
    trainer.step(&normal((8, 4), &CPU, Philox::new(1, 2))?, None)?;
    trainer.metrics()?;
    trainer.step(&Tensor::full(f32::NAN, (8, 4), &CPU)?, None)?;
    let said = first_line(trainer.metrics().map(drop).expect_err("metrics"));
    assert!(
        said.starts_with("SaeTrainer: the loss or an error became infinite or NaN between steps 2 and 2"),
        "{said}"
    );
    Ok(())
}
