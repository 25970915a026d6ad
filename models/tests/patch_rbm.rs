//! Patches are a network whose other weights are 0: equal to it where both can be computed, and
//! trained by the same rules.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Module, Result, Tensor};
use chandlery::datasets::ImageShape;
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::labelled::LabelledDbn;
use chandlery::patch_rbm::{PatchGrid, PatchRbm};
use chandlery::rbm::{
    HiddenUnit, Rbm, RbmConfig, RbmConnections, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit,
};
use chandlery::schedule::Schedule;
use chandlery::{Decode, LoadOptions, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::core::{bernoulli, normal, uniform};

const CPU: Device = Device::Cpu;

fn first_line<T>(result: Result<T>) -> String {
    let text = result.err().map(|e| e.to_string()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn worst(got: &Tensor, want: &Tensor) -> Result<f64> {
    (got.to_dtype(DType::F64)? - want.to_dtype(DType::F64)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Parameters of order 1, f32.
fn machine(config: RbmConfig) -> Result<PatchRbm> {
    let draw = |n: usize, stream| normal(n, &CPU, Philox::new(1, stream));
    let (v, h) = (config.n_visible, config.n_hidden);
    let weight = normal(config.weight_shape(), &CPU, Philox::new(1, 0))?;
    let learned = config.visible == VisibleUnit::GaussianLearned;
    let log_variance = learned.then(|| draw(v, 3).and_then(|t| t * 0.5)).transpose()?;
    Rbm::from_tensors(config, weight, draw(h, 1)?, draw(v, 2)?, log_variance)
}

/// The same network with one matrix, in which weights outside the windows are 0.
fn dense(rbm: &PatchRbm) -> Result<Rbm> {
    let config = rbm.config();
    let grid = config.patch_grid().expect("patches");
    let per_patch = config.n_hidden / grid.n_patches();
    let weight = rbm.weight().flatten_all()?.to_vec1::<f32>()?;
    let mut full = vec![0f32; config.n_hidden * config.n_visible];
    for (i, w) in weight.into_iter().enumerate() {
        let (unit, entry) = (i / grid.window_len(), i % grid.window_len());
        full[unit * config.n_visible + grid.place(unit / per_patch, entry)] = w;
    }
    let full = Tensor::from_vec(full, (config.n_hidden, config.n_visible), &CPU)?;
    let config = RbmConfig { connections: RbmConnections::Dense, ..config.clone() };
    Rbm::from_tensors(
        config,
        full,
        rbm.bias().clone(),
        rbm.visible_bias().clone(),
        rbm.log_variance().cloned(),
    )
}

/// The weights of a dense network that lie in windows, in the order of patches.
fn in_windows(weight: &Tensor, like: &PatchRbm) -> Result<Tensor> {
    let config = like.config();
    let grid = config.patch_grid().expect("patches");
    let per_patch = config.n_hidden / grid.n_patches();
    let weight = weight.to_vec2::<f32>()?;
    let entry = |unit: usize, i: usize| weight[unit][grid.place(unit / per_patch, i)];
    let all = (0..config.n_hidden).flat_map(|unit| (0..grid.window_len()).map(move |i| (unit, i)));
    let values: Vec<f32> = all.map(|(unit, i)| entry(unit, i)).collect();
    Tensor::from_vec(values, config.weight_shape(), &CPU)
}

fn small() -> PatchGrid {
    PatchGrid { planes: 2, height: 4, width: 6, depth: 1, window: 2, stride: 2 }
}

fn overlapping() -> PatchGrid {
    PatchGrid { planes: 1, height: 5, width: 7, depth: 2, window: 3, stride: 2 }
}

#[test]
fn every_measure_is_that_of_the_network_with_one_matrix() -> Result<()> {
    for grid in [small(), overlapping()] {
        let patches = machine(RbmConfig::patches(grid, 3)?)?;
        assert_eq!(worst(patches.dense()?.weight(), dense(&patches)?.weight())?, 0.);
        for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
            for hidden in [HiddenUnit::Bernoulli, HiddenUnit::Rectified, HiddenUnit::Gaussian] {
                let config = RbmConfig { visible, hidden, ..RbmConfig::patches(grid, 3)? };
                let patches = machine(config)?;
                let dense = dense(&patches)?;
                let v = uniform((5, grid.n_values()), &CPU, Philox::new(2, 0))?;
                let h = uniform((5, dense.config().n_hidden), &CPU, Philox::new(2, 1))?;
                let both = |of: &dyn Fn(&Rbm) -> Result<Tensor>| worst(&of(&patches)?, &of(&dense)?);
                // Sums of up to 48 terms of order 1.
                assert!(both(&|rbm| rbm.hidden_mean(&v))? < 1e-5);
                assert!(both(&|rbm| rbm.visible_mean(&h))? < 2e-5);
                assert!(both(&|rbm| rbm.reconstruct(&v))? < 1e-4);
                assert!(both(&|rbm| rbm.free_energy(&v))? < 1e-3);
                let wide = patches.to(DType::F64, &CPU)?.free_energy(&v.to_dtype(DType::F64)?)?;
                let want = dense.to(DType::F64, &CPU)?.free_energy(&v.to_dtype(DType::F64)?)?;
                assert!(worst(&wide, &want)? < 1e-10);
            }
        }
    }
    Ok(())
}

#[test]
fn the_partition_function_is_that_of_the_network_with_one_matrix() -> Result<()> {
    let grid = PatchGrid { planes: 1, height: 3, width: 3, depth: 1, window: 2, stride: 1 };
    let patches = machine(RbmConfig::patches(grid, 2)?)?;
    let (got, want) = (patches.exact_log_z(&mut |_, _| {})?, dense(&patches)?.exact_log_z(&mut |_, _| {})?);
    assert!((got - want).abs() < 1e-9, "{got} {want}");
    Ok(())
}

#[test]
fn a_step_is_that_of_the_network_with_one_matrix() -> Result<()> {
    let sparsity = Some(SparsityConfig { target: 0.1, cost: 0.5, decay: 0.9 });
    let plain = RbmTrainConfig { batch: 6, ..RbmTrainConfig::default() };
    let others = [
        plain.clone(),
        RbmTrainConfig { sparsity, sample_visible: true, k: 2, l1: 1e-3, ..plain.clone() },
        RbmTrainConfig { persistent: true, max_norm: Some(0.5), ..plain.clone() },
        RbmTrainConfig { k: 3, ..plain.clone() },
    ];
    // So few visible units that one matrix trains without units beside them, which have draws too.
    let narrow = PatchGrid { width: 5, ..overlapping() };
    for grid in [small(), narrow] {
        for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
            for config in &others {
                let start = machine(RbmConfig { visible, ..RbmConfig::patches(grid, 3)? })?;
                // Weights beyond the windows become other than 0 in the second step.
                let v = uniform((6, grid.n_values()), &CPU, Philox::new(3, 0))?;
                let step = |rbm: &Rbm| -> Result<Rbm> {
                    let mut trainer = RbmTrainer::new(rbm, config.clone(), Philox::new(3, 1))?;
                    trainer.step(&v, None)?;
                    trainer.check()?;
                    trainer.model()
                };
                let (got, want) = (step(&start)?, step(&dense(&start)?)?);
                let what = format!("{grid:?} {visible:?} {config:?}");
                assert!(worst(got.bias(), want.bias())? < 1e-5, "{what}");
                assert!(worst(got.visible_bias(), want.visible_bias())? < 1e-5, "{what}");
                if config.max_norm.is_none() {
                    // A bound on the norm sees the weights beyond the windows too.
                    assert!(worst(got.weight(), &in_windows(want.weight(), &start)?)? < 1e-5, "{what}");
                }
                assert!(worst(got.weight(), start.weight())? > 1e-3, "{what}: nothing was learned");
                if let (Some(got), Some(want)) = (got.log_variance(), want.log_variance()) {
                    assert!(worst(got, want)? < 1e-4, "{what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn one_window_as_large_as_the_grid_is_an_rbm() -> Result<()> {
    let grid = PatchGrid::of_image(ImageShape::grey(4, 4), 4, 4);
    let patches = machine(RbmConfig::patches(grid, 5)?)?;
    let rows = uniform((40, 16), &CPU, Philox::new(4, 0))?;
    let train = |rbm: &Rbm| -> Result<Rbm> {
        let config = RbmTrainConfig { batch: 8, ..RbmTrainConfig::default() };
        let mut trainer = RbmTrainer::new(rbm, config, Philox::new(4, 1))?;
        for epoch in 0..3 {
            trainer.begin_epoch(epoch)?;
            for minibatch in rows.chunk(5, 0)? {
                trainer.step(&minibatch, None)?;
            }
        }
        trainer.model()
    };
    let (got, want) = (train(&patches)?, train(&dense(&patches)?)?);
    // The same sums in another order, through 15 steps.
    assert!(worst(got.weight(), &in_windows(want.weight(), &patches)?)? < 1e-5);
    Ok(())
}

/// Images of 8 x 8: each quarter is empty or full, by itself.
fn quarters(n: usize) -> Result<Tensor> {
    let coins = bernoulli(&Tensor::full(0.5f32, (n, 2, 1, 2, 1), &CPU)?, Philox::new(5, 0))?;
    coins.broadcast_as((n, 2, 4, 2, 4))?.contiguous()?.reshape((n, 64))
}

fn training(epochs: usize) -> RbmTrainConfig {
    RbmTrainConfig {
        batch: 20,
        learning_rate: Schedule::linear(0.1, 0., epochs),
        ..RbmTrainConfig::default()
    }
}

/// Patches, patches on top of their hidden units, and a layer that sees all of these.
fn three_layers() -> Result<DbnConfig> {
    let lowest = RbmConfig::patches(PatchGrid::of_image(ImageShape::grey(8, 8), 4, 2), 6)?;
    let middle = RbmConfig::patches(lowest.hidden_grid(2, 1).expect("patches"), 8)?;
    let top = RbmConfig::new(middle.n_hidden, 12);
    Ok(DbnConfig { layers: vec![lowest, middle, top], ..DbnConfig::new(&[1, 1]) })
}

#[test]
fn a_stack_of_patches_learns_saves_loads_and_reconstructs() -> Result<()> {
    let rows = quarters(200)?;
    let dbn = Dbn::init(three_layers()?, Philox::new(6, 0), &CPU)?;
    let untrained = dbn.reconstruction_error(&rows)?;
    let epochs = 30;
    let mut trainer = DbnTrainer::new(&dbn, vec![training(epochs); 3], Philox::new(6, 1))?;
    loop {
        for epoch in 0..epochs {
            trainer.begin_epoch(epoch)?;
            for minibatch in rows.chunk(10, 0)? {
                trainer.step(&minibatch, None)?;
            }
        }
        trainer.check()?;
        if !trainer.next_layer()? {
            break;
        }
    }
    let dbn = trainer.model()?;
    let learned = dbn.reconstruction_error(&rows)?;
    // Means alone leave a quarter of each of 64 pixels, 16; four bits tell everything.
    assert!(untrained > 12., "{untrained}");
    assert!(learned < 3., "{learned}");
    let folder = tempfile::tempdir()?;
    dbn.save_pretrained(folder.path())?;
    let again = Dbn::from_pretrained(folder.path(), &LoadOptions::default())?;
    assert_eq!(again.config(), dbn.config());
    assert_eq!(again.forward(&rows)?.to_vec2::<f32>()?, dbn.forward(&rows)?.to_vec2::<f32>()?);
    assert_eq!(dbn.sample(3, 5, Philox::new(6, 2))?.dims(), [3, 64]);
    Ok(())
}

#[test]
fn a_resumed_stack_goes_on_bit_for_bit() -> Result<()> {
    let rows = quarters(60)?;
    let dbn = Dbn::init(three_layers()?, Philox::new(7, 0), &CPU)?;
    let steps = |trainer: &mut DbnTrainer, n: usize| -> Result<()> {
        trainer.begin_epoch(0)?;
        (0..n).try_for_each(|i| trainer.step(&rows.narrow(0, i % 3 * 20, 20)?, None))
    };
    let new = || -> Result<DbnTrainer> {
        let mut trainer = DbnTrainer::new(&dbn, vec![training(2); 3], Philox::new(7, 1))?;
        steps(&mut trainer, 3)?;
        trainer.next_layer()?;
        steps(&mut trainer, 2)?;
        Ok(trainer)
    };
    let mut whole = new()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint.safetensors");
    whole.save(&path, &serde_json::json!(5u32))?;
    let (mut resumed, progress) = DbnTrainer::load(&path, &CPU)?;
    assert_eq!(progress, 5);
    for trainer in [&mut whole, &mut resumed] {
        steps(trainer, 4)?;
        assert!(trainer.next_layer()?);
        steps(trainer, 4)?;
    }
    let bits = |trainer: &DbnTrainer| -> Result<Vec<Vec<f32>>> {
        let weight = |rbm: &Rbm| rbm.weight().flatten_all()?.to_vec1();
        trainer.model()?.layers().iter().map(weight).collect()
    };
    assert_eq!(bits(&whole)?, bits(&resumed)?);
    Ok(())
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() -> Result<()> {
    let grid = PatchGrid::of_image(ImageShape::grey(8, 8), 3, 2);
    assert_eq!(
        first_line(RbmConfig::patches(grid, 4)),
        "RbmConfig: windows of 3 every 2 must end with the grid: its height must be 7 or 9, got 8"
    );
    let mut config = three_layers()?;
    let grid = config.layers[1].patch_grid().expect("patches");
    config.layers[1].connections = RbmConnections::Patches(PatchGrid { planes: 3, depth: 2, ..grid });
    assert!(first_line(config.validate()).starts_with(
        "DbnConfig: layers[1] must lie on the hidden units of layers[0], a grid of 3x3 places of 6, got [3, 3, 3, 2] as planes"
    ));
    let wrong = RbmConfig { n_hidden: 55, ..three_layers()?.layers[0].clone() };
    assert_eq!(
        first_line(wrong.validate()),
        "RbmConfig: n_hidden must be a multiple of the 9 patches, got 55"
    );
    let dbn = Dbn::init(three_layers()?, Philox::new(8, 0), &CPU)?;
    let refused = first_line(LabelledDbn::from_dbn(&dbn, 3));
    assert!(refused.contains("every hidden unit must see every visible one, got 9 patches"), "{refused}");
    Ok(())
}
