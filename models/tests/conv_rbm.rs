//! A convolutional RBM is the network that its equations say: its measures, its units and its
//! learning.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Module, Result, Tensor, Var};
use chandlery::conv_rbm::{ConvGrid, ConvRbm, Padding};
use chandlery::datasets::ImageShape;
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::labelled::LabelledDbn;
use chandlery::patch_rbm::{PatchGrid, PatchRbm};
use chandlery::rbm::{HiddenUnit, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery::{Decode, Layered, LoadOptions, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::core::{bernoulli, normal, uniform};

const CPU: Device = Device::Cpu;

fn first_line<T>(result: Result<T>) -> String {
    let text = result.err().map(|e| e.to_string()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The largest difference; a NaN is the largest.
fn worst(got: &Tensor, want: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), want.dims());
    let difference = (got.to_dtype(DType::F64)? - want.to_dtype(DType::F64)?)?.abs()?.flatten_all()?;
    Ok(difference.to_vec1::<f64>()?.into_iter().fold(0., |a, b| if b.is_nan() || b > a { b } else { a }))
}

/// Parameters of order a half, f32.
fn machine(config: RbmConfig) -> Result<ConvRbm> {
    let draw = |n: usize, stream| normal(n, &CPU, Philox::new(1, stream))? * 0.5;
    let weight = (normal(config.weight_shape(), &CPU, Philox::new(1, 0))? * 0.5)?;
    let (bias, visible_bias) = (draw(config.n_hidden_biases(), 1)?, draw(config.n_visible_biases(), 2)?);
    Rbm::from_tensors(config, weight, bias, visible_bias, None)
}

/// Valid and same, even and odd filters, images of several planes and places of several values,
/// with blocks of one to three places.
fn grids() -> Vec<ConvGrid> {
    let base = ConvGrid::of_image(ImageShape::grey(7, 9), 2, 3);
    vec![
        base,
        ConvGrid { pool: 2, ..base },
        ConvGrid { pool: 3, padding: Padding::Same, height: 6, ..base },
        ConvGrid { size: 3, planes: 3, padding: Padding::Same, ..base },
        ConvGrid { size: 4, depth: 5, pool: 2, ..base },
        ConvGrid { size: 2, planes: 2, depth: 2, pool: 2, ..base },
        ConvGrid { size: 3, stride: 2, ..base },
        ConvGrid { size: 1, planes: 2, stride: 2, pool: 2, width: 7, ..base },
    ]
}

fn configs() -> Result<Vec<RbmConfig>> {
    let mut configs = Vec::new();
    for grid in grids() {
        for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian] {
            configs.push(RbmConfig { visible, ..RbmConfig::convolution(grid)? });
        }
    }
    Ok(configs)
}

/// Filters and windows at the same places with the same weights.
fn tied(grid: ConvGrid, visible: VisibleUnit) -> Result<(ConvRbm, PatchRbm)> {
    let conv = machine(RbmConfig { visible, ..RbmConfig::convolution(grid)? })?;
    let ConvGrid { planes, height, width, depth, size, n_filters, stride, .. } = grid;
    let patches = PatchGrid { planes, height, width, depth, window: size, stride };
    let config = RbmConfig { visible, ..RbmConfig::patches(patches, n_filters)? };
    let n = patches.n_patches();
    let weight = conv.weight().broadcast_left(n)?.contiguous()?;
    let bias = conv.bias().broadcast_left(n)?.contiguous()?.flatten_all()?;
    let visible_bias = conv.visible_bias().broadcast_left(height * width)?.contiguous()?.flatten_all()?;
    Ok((conv, Rbm::from_tensors(config, weight, bias, visible_bias, None)?))
}

/// Grids on which a window and a filter have their values in the same order.
fn grids_of_both() -> [ConvGrid; 4] {
    let base = ConvGrid::of_image(ImageShape::grey(7, 6), 3, 4);
    let apart = ConvGrid { stride: 2, width: 9, ..base };
    [
        base,
        ConvGrid { depth: 3, size: 2, ..base },
        apart,
        ConvGrid { depth: 2, size: 4, stride: 3, width: 10, ..base },
    ]
}

#[test]
fn with_windows_at_the_places_of_filters_and_tied_weights_patches_are_a_convolution() -> Result<()> {
    for grid in grids_of_both() {
        for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian] {
            let (conv, patches) = tied(grid, visible)?;
            let v = uniform((5, grid.n_values()), &CPU, Philox::new(2, 0))?;
            let h = uniform((5, grid.n_units()), &CPU, Philox::new(2, 1))?;
            let both = |of: &dyn Fn(&Rbm) -> Result<Tensor>| worst(&of(&conv)?, &of(&patches)?);
            assert!(both(&|rbm| rbm.hidden_input(&v))? < 1e-5);
            assert!(both(&|rbm| rbm.hidden_mean(&v))? < 1e-5);
            assert!(both(&|rbm| rbm.visible_mean(&h))? < 2e-5);
            assert!(both(&|rbm| rbm.reconstruct(&v))? < 1e-4);
            assert!(both(&|rbm| rbm.free_energy(&v))? < 1e-3);
            // The same draws: no probability is within rounding of one.
            let draws = Philox::new(3, 0);
            assert_eq!(both(&|rbm| rbm.sample_hidden(&v, draws))?, 0.);
            assert!(both(&|rbm| rbm.gibbs(&v, 3, draws))? < 1e-4);
            assert!(worst(conv.dense()?.weight(), patches.dense()?.weight())? < 1e-6);
        }
    }
    Ok(())
}

/// Plain contrastive divergence: what a step adds is the rate times the gradient.
fn plain(batch: usize) -> RbmTrainConfig {
    RbmTrainConfig { batch, l2: 0., learning_rate: Schedule::constant(0.5), ..RbmTrainConfig::default() }
}

#[test]
fn a_step_of_filters_is_the_mean_over_the_patches_of_theirs() -> Result<()> {
    for grid in grids_of_both() {
        for (visible, persistent) in
            [(VisibleUnit::Bernoulli, false), (VisibleUnit::Bernoulli, true), (VisibleUnit::Gaussian, false)]
        {
            let (conv, patches) = tied(grid, visible)?;
            let rows = uniform((6, grid.n_values()), &CPU, Philox::new(4, 0))?;
            let after = |rbm: &Rbm| -> Result<Rbm> {
                let config = RbmTrainConfig { persistent, k: 2, ..plain(6) };
                let mut trainer = RbmTrainer::new(rbm, config, Philox::new(4, 1))?;
                trainer.step(&rows, None)?;
                trainer.model()
            };
            let (got, want) = (after(&conv)?, after(&patches)?);
            // Differences of means of up to 30 products of order 1.
            assert!(worst(got.weight(), &want.weight().mean(0)?)? < 2e-6);
            let of_maps = want.bias().reshape((grid.n_positions(), grid.n_filters))?.mean(0)?;
            assert!(worst(got.bias(), &of_maps)? < 2e-6);
            let of_places = want.visible_bias().reshape((grid.height * grid.width, grid.depth))?.mean(0)?;
            assert!(worst(got.visible_bias(), &of_places)? < 2e-6);
        }
    }
    Ok(())
}

/// `F(v) = −ln Σ_h e^−E(v, h)`, over all states of the units in which each block has at most one
/// that is on.
fn free_energy_by_states(rbm: &ConvRbm, v: &[f64]) -> Result<f64> {
    let grid = rbm.config().filter_grid().expect("a convolution");
    let row = Tensor::from_slice(v, (1, v.len()), &CPU)?.to_dtype(DType::F32)?;
    let x = rbm.hidden_input(&row)?.get(0)?.to_vec1::<f32>()?;
    let b = rbm.visible_bias().to_vec1::<f32>()?;
    assert_eq!(b.len(), 1);
    let p = grid.pool;
    let (down, across) = (grid.maps_height() / p, grid.maps_width() / p);
    // The states of a block are independent of those of another: the sum of products is the product
    // of sums.
    let mut log = v.iter().sum::<f64>() * f64::from(b[0]);
    for (y, bx, map) in
        (0..down).flat_map(|y| (0..across).flat_map(move |x| (0..grid.n_filters).map(move |m| (y, x, m))))
    {
        let mut sum = 1.;
        for (dy, dx) in (0..p).flat_map(|dy| (0..p).map(move |dx| (dy, dx))) {
            let place = (y * p + dy) * grid.maps_width() + bx * p + dx;
            sum += f64::from(x[place * grid.n_filters + map]).exp();
        }
        log += sum.ln();
    }
    Ok(-log)
}

#[test]
fn the_free_energy_is_the_sum_over_the_states_of_every_block() -> Result<()> {
    for pool in [1, 2] {
        let grid = ConvGrid { pool, ..ConvGrid::of_image(ImageShape::grey(5, 7), 2, 3) };
        let rbm = machine(RbmConfig::convolution(grid)?)?;
        let v = uniform((4, 35), &CPU, Philox::new(5, 0))?;
        let got = rbm.free_energy(&v)?.to_vec1::<f32>()?;
        for (got, row) in got.iter().zip(v.to_dtype(DType::F64)?.to_vec2::<f64>()?) {
            let want = free_energy_by_states(&rbm, &row)?;
            assert!((f64::from(*got) - want).abs() < 1e-4, "{got} {want}");
        }
    }
    Ok(())
}

#[test]
fn hidden_means_are_the_derivatives_of_the_free_energy() -> Result<()> {
    for config in configs()? {
        let rbm = machine(config.clone())?.to(DType::F64, &CPU)?;
        let grid = config.filter_grid().expect("a convolution");
        let v = normal((3, config.n_visible), &CPU, Philox::new(6, 0))?.to_dtype(DType::F64)?;
        let bias = Var::from_tensor(rbm.bias())?;
        let with = Rbm::from_tensors(
            config.clone(),
            rbm.weight().clone(),
            bias.as_tensor().clone(),
            rbm.visible_bias().clone(),
            None,
        )?;
        let gradient = with.free_energy(&v)?.sum_all()?.backward()?;
        let got = gradient.get(&bias).expect("a gradient").neg()?;
        // Pooled means add up to those of the units.
        let pooled = rbm.hidden_mean(&v)?.reshape(((), grid.n_filters))?.sum(0)?;
        assert!(worst(&got, &pooled)? < 1e-9, "{config:?}");
    }
    Ok(())
}

#[test]
fn a_step_follows_the_gradient_of_the_free_energies_of_both_phases() -> Result<()> {
    for config in configs()? {
        let rbm = machine(config.clone())?;
        let grid = config.filter_grid().expect("a convolution");
        let rows = uniform((6, config.n_visible), &CPU, Philox::new(7, 0))?;
        let draws = Philox::new(7, 1);
        // One Gibbs step with the trainer's draws, in f32.
        let model = rbm.gibbs(&rows, 1, draws)?;
        let weight = Var::from_tensor(&rbm.weight().to_dtype(DType::F64)?)?;
        let wide = rbm.to(DType::F64, &CPU)?;
        let with = Rbm::from_tensors(
            config.clone(),
            weight.as_tensor().clone(),
            wide.bias().clone(),
            wide.visible_bias().clone(),
            None,
        )?;
        let energy = |v: &Tensor| with.free_energy(&v.to_dtype(DType::F64)?)?.sum_all();
        let gradient = (energy(&model)? - energy(&rows)?)?.backward()?;
        let gradient = gradient.get(&weight).expect("a gradient");
        let rate = 0.5 / (6 * grid.n_positions()) as f64;
        let want = (weight.as_tensor() + (gradient * rate)?)?;

        let mut trainer = RbmTrainer::new(&rbm, plain(6), draws)?;
        trainer.step(&rows, None)?;
        let after = trainer.model()?;
        // A gradient is a mean of up to 400 terms of order 1 in f32.
        assert!(worst(after.weight(), &want)? < 5e-7, "{config:?}: {}", worst(after.weight(), &want)?);
        let moved = worst(after.weight(), rbm.weight())?;
        assert!(moved > 1e-3, "{moved}");
        // Visible biases by the mean difference of the pixels of a channel, the error by their
        // squares.
        let difference = (&rows - &model)?;
        let last = difference.reshape((6, grid.planes, (), grid.depth))?.transpose(1, 2)?.contiguous()?;
        let of_channels = last.reshape(((), grid.channels()))?.mean(0)?;
        let want = (rbm.visible_bias() + (of_channels * 0.5)?)?;
        assert!(worst(after.visible_bias(), &want)? < 1e-6);
        let error = difference.sqr()?.sum_all()?.to_scalar::<f32>()? / 6.;
        let measured = trainer.metrics()?.reconstruction_error as f32;
        assert!((measured - error).abs() < 1e-4 * error, "{measured} {error}");
    }
    Ok(())
}

#[test]
fn forward_has_gradients_and_is_the_same_in_every_form() -> Result<()> {
    for config in configs()? {
        let rbm = machine(config.clone())?;
        let v = uniform((3, config.n_visible), &CPU, Philox::new(8, 0))?;
        let plain = rbm.forward(&v)?;
        assert_eq!(plain.dims(), [3, config.n_hidden]);
        // With gradients it is made of candle's ops, without by the op.
        let tracked = Var::from_tensor(&v)?;
        let with_gradients = rbm.forward(tracked.as_tensor())?;
        assert!(worst(&plain, &with_gradients)? < 1e-6);
        let wide = rbm.to(DType::F64, &CPU)?.hidden_mean(&v.to_dtype(DType::F64)?)?;
        assert!(worst(&plain, &wide)? < 1e-5);
        let gradients = with_gradients.sum_all()?.backward()?;
        let got = gradients.get(&tracked).expect("a gradient").to_vec2::<f32>()?;
        // Against a difference along one direction, in f64.
        let direction = normal(v.shape(), &CPU, Philox::new(8, 1))?.to_dtype(DType::F64)?;
        let wide = rbm.to(DType::F64, &CPU)?;
        let at = |step: f64| {
            wide.hidden_mean(&(v.to_dtype(DType::F64)? + (&direction * step)?)?)?
                .sum_all()?
                .to_scalar::<f64>()
        };
        let want = (at(1e-5)? - at(-1e-5)?) / 2e-5;
        let along: f64 = got
            .concat()
            .iter()
            .zip(direction.flatten_all()?.to_vec1::<f64>()?)
            .map(|(g, d)| f64::from(*g) * d)
            .sum();
        assert!((along - want).abs() < 1e-3 * want.abs().max(1.), "{along} {want}");
    }
    Ok(())
}

#[test]
fn pooled_units_go_down_as_an_equal_share_of_their_block() -> Result<()> {
    let grid = ConvGrid { pool: 2, ..ConvGrid::of_image(ImageShape::grey(5, 5), 2, 1) };
    let weight = Tensor::new(&[[1f32, 2., 4., 8.]], &CPU)?;
    let zeros = |n: usize| Tensor::zeros(n, DType::F32, &CPU);
    let config = RbmConfig { visible: VisibleUnit::Gaussian, ..RbmConfig::convolution(grid)? };
    let rbm = Rbm::from_tensors(config, weight, zeros(1)?, zeros(1)?, None)?;
    // The upper left block: units at (0, 0), (0, 1), (1, 0) and (1, 1), a quarter each.
    let down =
        rbm.visible_mean(&Tensor::new(&[[4f32, 0., 0., 0.]], &CPU)?)?.reshape((5, 5))?.to_vec2::<f32>()?;
    assert_eq!(down[0], [1., 3., 2., 0., 0.]);
    assert_eq!(down[1], [5., 15., 10., 0., 0.]);
    assert_eq!(down[2], [4., 12., 8., 0., 0.]);
    assert_eq!(down[3], [0.; 5]);
    Ok(())
}

/// Images of 12x12 pixels with bars of two pixels' width, lying or standing, at random places.
fn bars(n: usize, seed: u64) -> Result<Tensor> {
    let draws = uniform((n, 4), &CPU, Philox::new(seed, 9))?.to_vec2::<f32>()?;
    let mut rows = vec![0f32; n * 144];
    for (row, draw) in rows.chunks_mut(144).zip(draws) {
        for pair in draw.chunks(2) {
            let (lying, at) = (pair[0] < 0.5, (pair[1] * 11.) as usize);
            for (along, across) in (0..12).flat_map(|a| (0..2).map(move |b| (a, at + b))) {
                let (y, x) = if lying { (across, along) } else { (along, across) };
                row[y * 12 + x] = 1.;
            }
        }
    }
    Tensor::from_vec(rows, (n, 144), &CPU)
}

/// The stack of the tests: two convolutions and a dense layer.
fn stack() -> Result<DbnConfig> {
    let image = ImageShape::grey(12, 12);
    let first = RbmConfig::convolution(ConvGrid { pool: 2, ..ConvGrid::of_image(image, 3, 6) })?;
    let grid = first.hidden_conv_grid(2, 5).expect("places");
    let second = RbmConfig::convolution(ConvGrid { pool: 2, ..grid })?;
    let dense = RbmConfig::new(second.n_hidden, 7);
    Ok(DbnConfig { layers: vec![first, second, dense], image: Some(image), ..DbnConfig::new(&[1, 1]) })
}

#[test]
fn upper_layers_learn_from_the_pooled_means_of_those_below() -> Result<()> {
    let dbn = Dbn::init(stack()?, Philox::new(10, 0), &CPU)?;
    let rows = bars(8, 1)?;
    for layer in 1..3 {
        let (lower, top) = (&dbn.layers()[..layer], &dbn.layers()[layer]);
        let preparation = &dbn.config().preparation;
        let mut above = RbmTrainer::above(lower, top, preparation, plain(8), Philox::new(10, 1))?;
        let mut alone = RbmTrainer::new(top, plain(8), Philox::new(10, 1))?;
        let features = dbn.features(&rows, layer)?;
        for _ in 0..3 {
            above.step(&rows, None)?;
            alone.step(&features, None)?;
        }
        assert!(worst(above.model()?.weight(), alone.model()?.weight())? < 1e-5, "layer {}", layer + 1);
    }
    Ok(())
}

#[test]
fn a_stack_learns_saves_loads_and_goes_on_bit_for_bit() -> Result<()> {
    let rows = bars(64, 2)?;
    let dbn = Dbn::init(stack()?, Philox::new(11, 0), &CPU)?;
    let sparsity = SparsityConfig { target: 0.1, cost: 0.5, decay: 0.9 };
    let training = RbmTrainConfig {
        batch: 16,
        learning_rate: Schedule::constant(0.2),
        persistent: true,
        sparsity: Some(sparsity),
        max_norm: Some(5.),
        binarize: true,
        ..RbmTrainConfig::default()
    };
    let of_upper = RbmTrainConfig { binarize: false, persistent: false, ..training.clone() };
    let training = vec![training, of_upper.clone(), of_upper];
    let epoch =
        |trainer: &mut DbnTrainer| rows.chunk(4, 0)?.iter().try_for_each(|rows| trainer.step(rows, None));
    let mut trainer = DbnTrainer::new(&dbn, training, Philox::new(11, 1))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint");
    for _ in 0..3 {
        epoch(&mut trainer)?;
        trainer.save(&path, &serde_json::json!(17u32))?;
        let (mut resumed, progress) = DbnTrainer::load(&path, &CPU)?;
        assert_eq!(progress, 17);
        resumed.begin_epoch(1)?;
        trainer.begin_epoch(1)?;
        epoch(&mut trainer)?;
        epoch(&mut resumed)?;
        for (a, b) in trainer.model()?.layers().iter().zip(resumed.model()?.layers()) {
            for ((name, a), (_, b)) in a.tensors().into_iter().zip(b.tensors()) {
                assert_eq!(worst(&a, &b)?, 0., "{name}");
            }
        }
        trainer.next_layer()?;
    }
    let trained = trainer.model()?;
    trained.save_pretrained(folder.path())?;
    let loaded = Dbn::from_pretrained(folder.path().to_str().expect("a path"), &LoadOptions::default())?;
    assert_eq!(loaded.config(), trained.config());
    assert_eq!(worst(&loaded.forward(&rows)?, &trained.forward(&rows)?)?, 0.);
    assert_eq!(loaded.sample(3, 2, Philox::new(0, 0))?.dims(), [3, 144]);
    assert_eq!(loaded.sample_from(&rows, 2, Philox::new(0, 0))?.dims(), [64, 144]);
    assert_eq!(loaded.reconstruct(&rows)?.dims(), [64, 144]);
    Ok(())
}

#[test]
fn filters_learn_what_images_are_made_of() -> Result<()> {
    let rows = bars(200, 3)?;
    let grid = ConvGrid { pool: 2, ..ConvGrid::of_image(ImageShape::grey(12, 12), 5, 8) };
    let rbm = Rbm::init(RbmConfig::convolution(grid)?, Philox::new(12, 0), &CPU)?;
    let mut trainer =
        RbmTrainer::new(&rbm, RbmTrainConfig { batch: 20, ..RbmTrainConfig::default() }, Philox::new(12, 1))?;
    trainer.set_visible_mean(&rows.mean(0)?)?;
    let test = bars(50, 4)?;
    let untrained = trainer.model()?.reconstruction_error(&test)?;
    for epoch in 0..40 {
        trainer.begin_epoch(epoch)?;
        for rows in rows.chunk(10, 0)? {
            trainer.step(&rows, None)?;
        }
    }
    let trained = trainer.model()?.reconstruction_error(&test)?;
    // The mean image gives about 36; pixels as they are 0.
    assert!(untrained > 25. && trained < 0.35 * untrained, "{untrained} {trained}");
    Ok(())
}

#[test]
fn colour_planes_give_what_values_beside_each_other_give() -> Result<()> {
    let planes = ConvGrid { pool: 2, ..ConvGrid::of_image([6, 8, 3], 3, 4) };
    let beside = ConvGrid { planes: 1, depth: 3, ..planes };
    let rows = bernoulli(&uniform((5, 144), &CPU, Philox::new(13, 0))?, Philox::new(13, 1))?;
    let turned = rows.reshape((5, 3, 48))?.transpose(1, 2)?.contiguous()?.reshape((5, 144))?;
    let [a, b] = [(planes, &rows), (beside, &turned)].map(|(grid, rows)| {
        let rbm = machine(RbmConfig::convolution(grid)?)?;
        let mut trainer = RbmTrainer::new(&rbm, plain(5), Philox::new(13, 2))?;
        trainer.step(rows, None)?;
        let rbm = trainer.model()?;
        Ok::<_, candle::Error>((rbm.weight().clone(), rbm.hidden_mean(rows)?, rbm.free_energy(rows)?))
    });
    let (a, b) = (a?, b?);
    assert_eq!((worst(&a.0, &b.0)?, worst(&a.1, &b.1)?), (0., 0.));
    assert!(worst(&a.2, &b.2)? < 1e-4);
    Ok(())
}

#[test]
fn what_a_convolution_cannot_be_is_refused() -> Result<()> {
    let grid = ConvGrid { pool: 2, ..ConvGrid::of_image(ImageShape::grey(7, 7), 2, 3) };
    let config = RbmConfig::convolution(grid)?;
    let refused = |config: RbmConfig| first_line(config.validate());
    assert_eq!(
        first_line(RbmConfig::convolution(ConvGrid { height: 8, ..grid })),
        "RbmConfig: blocks of 2x2 must tile the maps of 7x6 that filters of 2x2 give; sizes of the grid that fit: height 7 or 9 instead of 8"
    );
    assert_eq!(
        refused(RbmConfig { n_hidden: 26, ..config.clone() }),
        "RbmConfig: n_hidden must be 27, as the convolution has it, got 26"
    );
    assert_eq!(
        refused(RbmConfig { hidden: HiddenUnit::Rectified, ..config.clone() }),
        "RbmConfig: hidden units of a convolution must be bernoulli, got rectified"
    );
    assert!(
        refused(RbmConfig { visible: VisibleUnit::GaussianLearned, ..config.clone() })
            .contains("must be bernoulli or gaussian")
    );
    let rbm = machine(config.clone())?;
    assert!(first_line(rbm.dense()).contains("hidden units must not be pooled, got blocks of 2x2"));
    assert!(first_line(rbm.exact_log_z(&mut |_, _| {})).contains("must not be those of a convolution"));
    let network = |layers: Vec<RbmConfig>| DbnConfig { layers, ..DbnConfig::new(&[1, 1]) };
    let other = ConvGrid { height: 1, width: 9, ..config.hidden_conv_grid(1, 2).expect("places") };
    assert!(
        first_line(network(vec![config.clone(), RbmConfig::convolution(other)?]).validate())
            .contains("layers[1] must lie on the hidden units of layers[0], a grid of 3x3 places of 3")
    );
    let dbn = Dbn::init(network(vec![config]), Philox::new(0, 0), &CPU)?;
    assert!(first_line(LabelledDbn::from_dbn(&dbn, 3)).contains("got 3 filters"));
    Ok(())
}
