//! From what was asked for to what is trained: the RBMs, and how each learns.
use super::args::{Settings, Visible};
use super::streams;
use crate::layer_arg::{LayerArg, stacked};
use crate::options::plan_by_rows;
use crate::precision::RbmPrecision;
use crate::rows::{Data, OutsideUnit};
use anyhow::{Context, Result, bail, ensure};
use candle::{Device, Tensor};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::{Division, HiddenUnit, RbmConfig, RbmTrainConfig, SparsityConfig, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery::{Philox, in_unit_interval};
use chandlery_datasets::preparation::{Preparation, RowStatistics, StepConfig, WhiteningKind};
use chandlery_datasets::{ImageShape, Split, count};

/// Chooses by the training rows what was not asked for; returns what to say of it.
pub fn choose(train: &Split, settings: &mut Settings) -> Result<Vec<String>> {
    let n = train.n_samples();
    let said = plan_by_rows(RbmTrainConfig::PLAN, n, &mut settings.batch, &mut settings.epochs);
    let mut notes = Vec::from_iter(said);
    if RbmTrainConfig::PLAN.for_rows(n).batch < RbmTrainConfig::PLAN.batch {
        // Few chains and few steps: they would lag behind the weights.
        settings.persistent.get_or_insert(false);
    }
    if settings.visible.is_none()
        && settings.prepare.prepare.is_none()
        && !settings.binarize
        && let Some(OutsideUnit { range: (min, max), one_scale }) = OutsideUnit::of(train, settings.seed)?
    {
        let other = if one_scale {
            settings.prepare.choose([StepConfig::MinMax]);
            "--visible gaussian --prepare standardise"
        } else {
            settings.prepare.choose([StepConfig::Standardise]);
            settings.visible = Some(Visible::Gaussian);
            // The usual rate of real-valued units is for rows of many values, where larger steps
            // run away.
            if settings.learning_rate.is_empty()
                && train.n_features() <= FEW_COLUMNS
                && !settings.has_real_hidden()
            {
                settings.learning_rate = vec![FEW_COLUMNS_RATE];
            }
            "--prepare minmax"
        };
        notes.push(format!(
            "values from {min} to {max}: {}, chosen for this table; {other} is the other way",
            chosen(settings)
        ));
    }
    Ok(notes)
}

/// Columns of a table for which real-valued units learn at the higher of the usual rates, and that
/// rate.
const FEW_COLUMNS: usize = 100;
const FEW_COLUMNS_RATE: f64 = 0.01;

/// How rows are read, as options.
fn chosen(settings: &Settings) -> String {
    let steps: Vec<String> = settings.prepare.steps().iter().map(ToString::to_string).collect();
    let visible = match settings.visible {
        Some(Visible::Gaussian) => "--visible gaussian ",
        _ => "",
    };
    let rate = settings.learning_rate.first().filter(|_| settings.visible.is_some());
    let rate = rate.map_or(String::new(), |rate| format!(" --learning-rate {rate}"));
    format!("{visible}--prepare {}{rate}", steps.join(","))
}

/// A trainer at its first step.
pub fn new_trainer(data: &Data, settings: &Settings, device: &Device) -> Result<DbnTrainer> {
    let visible = settings.visible_units();
    let gaussian = visible.is_gaussian();
    if visible == VisibleUnit::GaussianLearned
        && let all @ [lowest, _, ..] = settings.all_layers().as_slice()
    {
        let one = match lowest {
            LayerArg::Dense(n) => format!("--hidden {n}"),
            LayerArg::Patch { .. } | LayerArg::Conv { .. } => format!("--layers {lowest}"),
        };
        bail!(
            "--visible gaussian-learned: there must be one layer, got {}; use gaussian, or {one}",
            all.len()
        )
    }
    if gaussian && settings.binarize {
        bail!("--binarize: --visible must be bernoulli, got {visible}; leave one of them out")
    }
    let image = image_under_places(&data.train, settings)?;
    let (preparation, statistics) = prepare(&data.train, settings)?;
    let n_visible = preparation.n_outputs(data.train.n_features())?;
    let layers = layers(n_visible, image, settings)?;
    let config = DbnConfig { layers, preparation, image: data.train.image };
    let training = training_of(&config, settings)?;
    let dbn = Dbn::init(config, Philox::new(settings.seed, streams::WEIGHTS), device)?;
    let mut trainer = DbnTrainer::new(&dbn, training, Philox::new(settings.seed, streams::UNITS))?;
    trainer.set_visible_mean(&Tensor::new(statistics.mean, device)?)?;
    Ok(trainer)
}

/// How each layer of a network is trained, lowest first.
pub fn training_of(config: &DbnConfig, settings: &Settings) -> Result<Vec<RbmTrainConfig>> {
    let (rates, n) = (settings.learning_rate.len(), config.layers.len());
    ensure!(
        rates <= 1 || rates == n,
        "--learning-rate: there must be one rate, or one for each of {}, got {rates}",
        count(n, "layer")
    );
    config.layers.iter().enumerate().map(|(i, layer)| training(i, layer, settings)).collect()
}

/// What is done to raw rows before the lowest layer reads them, fitted to the training rows; and
/// what rows look like then.
///
/// Real-valued units have the standard deviation 1, and so get rows; binary ones must get
/// probabilities.
fn prepare(train: &Split, settings: &Settings) -> Result<(Preparation, RowStatistics)> {
    let gaussian = settings.visible_units().is_gaussian();
    // Columns of deviation 1 stay what they are, also where some are constant.
    let unit = gaussian && settings.prepare.steps().last() != Some(&StepConfig::Standardise);
    let unit = unit.then_some(StepConfig::UnitVariance);
    let steps: Vec<StepConfig> = settings.prepare.steps().iter().copied().chain(unit).collect();
    let flag = if settings.prepare.steps().is_empty() { "--visible gaussian" } else { "--prepare" };
    let preparation = Preparation::fit(train, &steps, settings.seed).context(flag)?;
    let statistics = RowStatistics::of(train, &preparation, settings.seed)?;
    ensure!(
        gaussian || in_unit_interval(statistics.min, statistics.max),
        "--visible bernoulli: rows must lie between 0 and 1, got {} to {}; use --prepare minmax, or --visible gaussian --prepare standardise",
        statistics.min,
        statistics.max
    );
    Ok((preparation, statistics))
}

/// The image that the windows or filters of the lowest layer lie on: that of a raw row, whose
/// places the preparation must keep. None where the lowest layer is dense.
fn image_under_places(train: &Split, settings: &Settings) -> Result<Option<ImageShape>> {
    let layers = settings.all_layers();
    let Some(lowest) = layers.first().filter(|lowest| lowest.lies_on_places()) else { return Ok(None) };
    let Some(image) = train.image else {
        bail!(
            "--layers: layer 1: rows must be images for {lowest}, got rows of {} without a height and a width; use a data set of images, or \
             dense layers",
            count(train.n_features(), "value")
        )
    };
    let moves = |step: &&StepConfig| match step {
        StepConfig::Pca { .. } => true,
        StepConfig::Whiten(whitening) => whitening.kind == WhiteningKind::Pca,
        _ => false,
    };
    if let Some(step) = settings.prepare.steps().iter().find(moves) {
        bail!(
            "--layers: layer 1: --prepare must leave the pixels of images where they are for {lowest}, got {step}, which makes components of \
             them; use zca, or dense layers"
        )
    }
    Ok(Some(image))
}

/// The RBMs of a network, lowest first; `image` is that of a row where the lowest layer has patches
/// or filters.
fn layers(n_features: usize, image: Option<ImageShape>, settings: &Settings) -> Result<Vec<RbmConfig>> {
    let sizes = stacked(&settings.all_layers(), n_features, image)?;
    let top = sizes.len().saturating_sub(1);
    let mut visible = settings.visible_units();
    let units = |(i, sizes): (usize, RbmConfig)| {
        let unit = settings.code_unit.filter(|_| i == top).unwrap_or(settings.hidden_unit);
        let hidden = HiddenUnit::from(unit);
        let layer = RbmConfig { visible, hidden, ..sizes };
        visible = hidden.as_visible();
        layer
    };
    Ok(sizes.into_iter().enumerate().map(units).collect())
}

/// How the RBM of layer `i` is trained.
fn training(i: usize, layer: &RbmConfig, settings: &Settings) -> Result<RbmTrainConfig> {
    let real = layer.visible.is_gaussian() || layer.hidden != HiddenUnit::Bernoulli;
    let rates = &settings.learning_rate;
    // The gradient of a filter is a mean over its places, of which few are on.
    let shared = layer.filter_grid().is_some();
    let usual = if real { 0.001 } else { 0.1 } * if shared { 10. } else { 1. };
    let rate = rates.get(i).or(rates.first()).copied().unwrap_or(usual);
    let persistent = settings.persistent.unwrap_or(!real && !shared);
    // Chains that persist must keep up with the weights: momentum, which makes long steps, leaves
    // them behind.
    let momentum = settings.momentum.unwrap_or(if persistent { 0. } else { 0.9 });
    let epochs = settings.n_epochs();
    let slow = (epochs / 5).max(1);
    let precision: RbmPrecision =
        settings.precision.parse().map_err(|err| anyhow::anyhow!("--precision: {err}"))?;
    Ok(RbmTrainConfig {
        batch: settings.n_batch(),
        learning_rate: Schedule::linear(rate, settings.final_learning_rate, epochs),
        momentum: Schedule::steps([(0, momentum.min(0.5)), (slow, momentum)]),
        k: settings.k,
        persistent,
        sample_visible: settings.sample_visible,
        l1: settings.l1,
        l2: settings.weight_decay,
        max_norm: settings.max_norm,
        sparsity: settings
            .sparsity_target
            .zip(settings.sparsity_weight)
            .filter(|(_, weight)| *weight > 0.)
            .map(|(target, cost)| SparsityConfig { target, cost, decay: 0.9 }),
        binarize: settings.binarize,
        any_range: false,
        precision: precision.products,
        weights: precision.weights,
        division: settings.divide.map(Division::from).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dbn::cli::Cli;
    use chandlery::conv_rbm::ConvGrid;
    use clap::Parser;

    fn settings(flags: &[&str]) -> Settings {
        Cli::try_parse_from(["dbn"].iter().chain(flags)).unwrap().train.settings()
    }

    #[test]
    fn units_of_a_layer_are_those_that_the_one_below_has() {
        let settings = settings(&["--hidden", "7,5,3", "--hidden-unit", "rectified"]);
        let layers = layers(9, None, &settings).unwrap();
        let shapes: Vec<_> = layers.iter().map(|l| (l.n_visible, l.n_hidden, l.visible)).collect();
        use VisibleUnit::{Bernoulli, Gaussian};
        assert_eq!(shapes, [(9, 7, Bernoulli), (7, 5, Gaussian), (5, 3, Gaussian)]);
        DbnConfig { layers, ..DbnConfig::new(&[1, 1]) }.validate().unwrap();
        let rates: Vec<_> = super::layers(9, None, &settings)
            .unwrap()
            .iter()
            .map(|layer| training(0, layer, &settings).unwrap().learning_rate.at(0))
            .collect();
        assert_eq!(rates, [0.001; 3]);
    }

    #[test]
    fn a_learning_rate_is_for_all_layers_or_for_each() {
        let config = DbnConfig::new(&[9, 7, 5]);
        let rates = |flags: &[&str]| {
            let training = training_of(&config, &settings(flags))?;
            anyhow::Ok(training.iter().map(|cd| cd.learning_rate.at(0)).collect::<Vec<_>>())
        };
        assert_eq!(rates(&[]).unwrap(), [0.1, 0.1]);
        assert_eq!(rates(&["--learning-rate", "0.3"]).unwrap(), [0.3, 0.3]);
        assert_eq!(rates(&["--learning-rate", "0.3,0.02"]).unwrap(), [0.3, 0.02]);
        assert_eq!(
            rates(&["--learning-rate", "1,2,3"]).unwrap_err().to_string(),
            "--learning-rate: there must be one rate, or one for each of 2 layers, got 3"
        );
        let grid = ConvGrid::of_image([4, 4, 1], 2, 3);
        let filters = training(0, &RbmConfig::convolution(grid).unwrap(), &settings(&[])).unwrap();
        assert!(filters.learning_rate.at(0) == 1. && !filters.persistent);
        for flags in [&[][..], &["--learning-rate", "0.25"], &["--learning-rate", "0.5,1.5"]] {
            let settings = settings(flags);
            let again: Settings = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
            assert_eq!(again, settings);
        }
    }

    #[test]
    fn the_code_layer_may_have_units_of_its_own() {
        let settings = settings(&["--hidden", "7,2", "--code-unit", "gaussian"]);
        let layers = layers(9, None, &settings).unwrap();
        let units: Vec<_> = layers.iter().map(|l| (l.visible, l.hidden)).collect();
        let binary = VisibleUnit::Bernoulli;
        assert_eq!(units, [(binary, HiddenUnit::Bernoulli), (binary, HiddenUnit::Gaussian)]);
        let config = training(1, &layers[1], &settings).unwrap();
        assert!(config.learning_rate.at(0) == 0.001 && !config.persistent);
    }

    #[test]
    fn windows_lie_on_the_image_and_on_the_patches_below() {
        // The network of Raina, Madhavan and Ng 2009: 96 million parameters.
        let settings = settings(&["--layers", "patch:24/8x256,patch:4/2x128,patch:4/2x512,dense:1024"]);
        let image = ImageShape::grey(160, 160);
        let layers = layers(25600, Some(image), &settings).unwrap();
        let shapes: Vec<_> = layers.iter().map(|l| (l.n_visible, l.n_hidden, l.weight_shape())).collect();
        let want = [
            (25600, 82944, vec![324, 256, 576]),
            (82944, 8192, vec![64, 128, 4096]),
            (8192, 4608, vec![9, 512, 2048]),
            (4608, 1024, vec![1024, 4608]),
        ];
        assert_eq!(shapes, want);
        DbnConfig { layers, image: Some(image), ..DbnConfig::new(&[1, 1]) }.validate().unwrap();
    }

    #[test]
    fn layers_that_cannot_lie_there_are_refused_by_their_number() {
        let refused = |list: &str| {
            let err =
                layers(784, Some(ImageShape::grey(28, 28)), &settings(&["--layers", list])).unwrap_err();
            // With a backtrace, candle puts it below the message.
            format!("{err:#}").lines().next().unwrap().to_owned()
        };
        assert_eq!(
            refused("patch:9/4x3"),
            "--layers: layer 1: windows of 9 every 4 must end with the grid: its height must be 25 or 29, got 28"
        );
        assert_eq!(
            refused("patch:8/4x3,patch:3/2x3"),
            "--layers: layer 2: windows of 3 every 2 must end with the grid: its height must be 5 or 7, got 6"
        );
        assert_eq!(
            refused("patch:8/4x3,patch:7/1x3"),
            "--layers: layer 2: window must be at most the height of the grid, 6, got 7"
        );
        assert_eq!(
            refused("30,patch:2/1x3"),
            "--layers: layer 2: patch:2/1x3 must not lie on a dense layer; put dense layers on top"
        );
    }

    #[test]
    fn patches_need_images_whose_pixels_stay_where_they_are() {
        let rows = Split::from_u8(vec![7; 32], 16, None).unwrap();
        let patches = ["--layers", "patch:2/2x3"];
        let refused = |rows: &Split, more: &[&str]| {
            image_under_places(rows, &settings(&[&patches, more].concat())).map_err(|err| err.to_string())
        };
        assert_eq!(
            refused(&rows, &[]).unwrap_err(),
            "--layers: layer 1: rows must be images for patch:2/2x3, got rows of 16 values without a height and a width; use a data set of images, or \
             dense layers"
        );
        let image = ImageShape::grey(4, 4);
        let images = rows.with_image(Some(image)).unwrap();
        assert_eq!(refused(&images, &["--prepare", "row-mean,zca"]), Ok(Some(image)));
        for step in ["pca=16", "whiten"] {
            let want = format!(
                "--layers: layer 1: --prepare must leave the pixels of images where they are for patch:2/2x3, got {step}, which makes components \
                 of them; use zca, or dense layers"
            );
            assert_eq!(refused(&images, &["--prepare", step]).unwrap_err(), want);
        }
    }

    #[test]
    fn rows_that_units_cannot_hold_are_refused() {
        let split = Split::from_f32(vec![0., -2., 1., 0.5], 2, None).unwrap();
        let err = prepare(&split, &settings(&[])).unwrap_err();
        assert_eq!(
            err.to_string(),
            "--visible bernoulli: rows must lie between 0 and 1, got -2 to 1; use --prepare minmax, or --visible gaussian --prepare standardise"
        );
        let flat = Split::from_f32(vec![3.; 4], 2, None).unwrap();
        let err = prepare(&flat, &settings(&["--visible", "gaussian"])).unwrap_err();
        assert_eq!(
            format!("{err:#}"),
            "--visible gaussian: Preparation: rows must vary to be given unit variance, got 3 everywhere"
        );
    }

    #[test]
    fn rows_of_real_valued_units_have_unit_variance_after_what_was_asked_for() {
        let bytes = Split::from_u8(vec![0, 255, 51, 255, 102, 255], 2, None).unwrap();
        let (preparation, statistics) = prepare(&bytes, &settings(&["--visible", "gaussian"])).unwrap();
        // Feature 0: 0, 0.2, 0.4; feature 1 is 1. Variances 0.08/3 and 0; their mean is 0.04/3.
        assert!((statistics.stdev - 1.).abs() < 1e-6);
        let scale = preparation.as_scale(candle::DType::F32).unwrap();
        assert!((scale - 75f64.sqrt()).abs() < 1e-3, "{scale}");
        let asked = settings(&["--visible", "gaussian", "--prepare", "row-mean,pca=1"]);
        let (preparation, statistics) = prepare(&bytes, &asked).unwrap();
        assert_eq!((preparation.n_outputs(2).unwrap(), statistics.mean.len()), (1, 1));
        assert!((statistics.stdev - 1.).abs() < 1e-6);
    }

    #[test]
    fn momentum_rises_after_a_fifth_of_the_epochs() {
        let settings = settings(&["--epochs", "20", "--momentum", "0.8"]);
        let config = training(0, &RbmConfig::new(2, 2), &settings).unwrap();
        assert_eq!([0, 3, 4, 19].map(|epoch| config.momentum.at(epoch)), [0.5, 0.5, 0.8, 0.8]);
        let persistent = training(0, &RbmConfig::new(2, 2), &self::settings(&[])).unwrap();
        assert!(persistent.persistent && persistent.momentum.at(19) == 0.);
        let plain = training(0, &RbmConfig::new(2, 2), &self::settings(&["--persistent=false"])).unwrap();
        assert!(!plain.persistent && plain.momentum.at(19) == 0.9);
        let short = training(0, &RbmConfig::new(2, 2), &self::settings(&["--epochs", "1"])).unwrap();
        short.validate().unwrap();
    }
}
