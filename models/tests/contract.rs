//! Every model keeps the contract of the crate's page: one function over all of them, by the traits
//! that they have.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use chandlery::conv_rbm::{ConvGrid, Padding};
use chandlery::dae::{Dae, DaeConfig, StackedDae, StackedDaeConfig};
use chandlery::datasets::preparation::{StepConfig, WhiteningConfig};
use chandlery::datasets::{Feed, FeedConfig, Split};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::feedforward::{Feedforward, FeedforwardConfig};
use chandlery::labelled::{LabelledDbn, LabelledDbnConfig};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::likelihood::Estimate;
use chandlery::rbm::{Rbm, RbmConfig, VisibleUnit};
use chandlery::softmax::{Softmax, SoftmaxConfig};
use chandlery::sparse_autoencoder::sae::{Kind, Sae, SaeConfig};
use chandlery::sparse_autoencoder::{SparseAutoencoder, SparseAutoencoderConfig};
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use chandlery::tsne::{Embedding, TsneConfig};
use chandlery::{
    Decode, Encode, ImageShape, Layered, LoadOptions, Model, ModelConfig, ModelType, Philox, Preparation,
};
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;
/// Rows, values of a raw row, and those that a model reads of it.
const M: usize = 12;
const N: usize = 9;
const READ: usize = 6;
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
const PLACE: Philox = Philox { seed: 5, stream: 0, offset: 0 };

fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}

fn bytes() -> Result<Tensor> {
    (uniform((M, N), &CPU, Philox::new(1, 0))? * 255.)?.to_dtype(DType::U8)
}

/// The same rows in the type of a float.
fn floats(dtype: DType) -> Result<Tensor> {
    bytes()?.to_dtype(dtype)?.affine(1. / 255., 0.)
}

/// One that was fitted and gives rows of another width.
fn preparation() -> Result<Preparation> {
    let whiten = WhiteningConfig { epsilon: 0.5, ..WhiteningConfig::default() };
    let steps = [StepConfig::Center, StepConfig::Pca { n_components: READ }, StepConfig::Whiten(whiten)];
    Preparation::fit_tensor(&bytes()?, &steps, 0).map_err(candle::Error::wrap)
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Names and values, in the order of names, and the types.
fn parameters(model: &impl Model) -> Result<Vec<(String, DType, Vec<f64>)>> {
    let named = model.tensors().into_iter();
    let mut all = named.map(|(name, t)| Ok((name, t.dtype(), values(&t)?))).collect::<Result<Vec<_>>>()?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

/// A configuration as a file holds it: what was fitted of its preparation is elsewhere.
fn unfitted<C: ModelConfig>(config: &C) -> C {
    let text = serde_json::to_string(config).expect("it is written");
    serde_json::from_str(&text).expect("it is read")
}

/// What all models do; `seen` is something that the parameters and the preparation decide.
fn is_a_model<T: Model>(model: &T, seen: impl Fn(&T) -> Result<Tensor>) -> Result<()> {
    let name = T::TYPE.to_string();
    let same = |what: &str, other: &T| -> Result<()> {
        assert_eq!(other.config(), model.config(), "{name}: {what}");
        assert_eq!(parameters(other)?, parameters(model)?, "{name}: {what}");
        assert_eq!(values(&seen(other)?)?, values(&seen(model)?)?, "{name}: {what}");
        Ok(())
    };
    assert_eq!((model.dtype(), model.device().is_cpu()), (DType::F32, true), "{name}");
    assert_eq!(model.preparation(), model.config().preparation());
    // Moving.
    same("to_device", &model.to_device(&CPU)?)?;
    for dtype in FLOATS {
        match T::dtypes(model.config()).contains(&dtype) {
            true => {
                let moved = model.to_dtype(dtype)?;
                assert_eq!(moved.dtype(), dtype, "{name}");
                assert_eq!(moved.config(), model.config(), "{name}");
                if dtype == DType::F64 {
                    same("there and back", &moved.to_dtype(DType::F32)?)?;
                }
            }
            false => {
                let said = first_line(model.to_dtype(dtype).map(drop).expect_err("moved"));
                assert!(said.contains(": parameters must be f32") && said.contains(dtype.as_str()), "{said}");
            }
        }
    }
    // Files.
    let folder = tempfile::tempdir()?;
    model.save_pretrained(folder.path())?;
    same("from a folder", &T::from_pretrained(folder.path(), &LoadOptions::default())?)?;
    for dtype in T::dtypes(model.config()) {
        let options = LoadOptions { dtype: Some(*dtype), ..LoadOptions::on(&CPU) };
        assert_eq!(T::from_pretrained(folder.path(), &options)?.dtype(), *dtype, "{name}");
    }
    let options = LoadOptions { revision: Some("main".to_owned()), ..LoadOptions::default() };
    let said = first_line(T::from_pretrained(folder.path(), &options).map(drop).expect_err("loaded"));
    assert!(said.contains("revision must be none for a folder"), "{said}");
    // Any prefix, the fitted preparation with it.
    let file = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
    let below = file.into_iter().map(|(name, t)| (format!("a.b.{name}"), t)).collect();
    let vb = VarBuilder::from_tensors(below, DType::F32, &CPU);
    same("below a prefix", &T::new(unfitted(model.config()), vb.pp("a").pp("b"))?)?;
    let said = first_line(T::new(unfitted(model.config()), vb.pp("b")).map(drop).expect_err("made"));
    assert!(said.contains("b.preparation.0.mean is missing"), "{said}");
    Ok(())
}

/// What models do whose parameters can be variables.
fn can_be_variables<T: Model>(model: &T, seen: impl Fn(&T) -> Result<Tensor>) -> Result<()> {
    let name = T::TYPE.to_string();
    let mut variables = VarMap::new();
    let stored = model.store_in(&mut variables, "a.b")?;
    assert_eq!(values(&seen(&stored)?)?, values(&seen(model)?)?, "{name}");
    let said = first_line(model.store_in(&mut variables, "a.b").map(drop).expect_err("stored twice"));
    assert!(said.contains("give another prefix"), "{said}");
    // A file of the bigger model has all of it.
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bigger.safetensors");
    variables.save(&path)?;
    let vb = VarBuilder::from_tensors(candle::safetensors::load(&path, &CPU)?, DType::F32, &CPU);
    let back = T::new(unfitted(model.config()), vb.pp("a.b"))?;
    assert_eq!(values(&seen(&back)?)?, values(&seen(model)?)?, "{name}");
    // A variable is that of the stored model and none of the first.
    let before = values(model.parameter())?;
    for var in variables.all_vars() {
        var.set(&var.zeros_like()?)?;
    }
    assert!(values(stored.parameter())?.iter().all(|x| *x == 0.), "{name}");
    assert_eq!(values(model.parameter())?, before, "{name}");

    // New variables are drawn, and the preparation is among them.
    let fresh = VarMap::new();
    let vb = VarBuilder::from_varmap(&fresh, DType::F32, &CPU).pp("x");
    let drawn = T::new(model.config().clone(), vb)?;
    let weight = drawn.parameter();
    let units = weight.reshape(((), weight.dims()[weight.rank() - 1]))?.to_vec2::<f32>()?;
    assert_ne!(units[0], units[1], "{name}: units are alike");
    // Of 20 draws each, of 18 weights or more: the ratio of two standard deviations is off by 5 %
    // on average.
    let (mut of_candle, mut of_init) = (0., 0.);
    for stream in 0..20 {
        let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU);
        let drawn = T::new(model.config().clone(), vb)?;
        let init = T::init(model.config().clone(), Philox::new(5, stream), &CPU)?;
        let squares = |model: &T| values(&model.parameter().sqr()?.mean_all()?);
        of_candle += squares(&drawn)?[0];
        of_init += squares(&init)?[0];
    }
    let ratio = (of_candle / of_init).sqrt();
    assert!((0.75..1.33).contains(&ratio), "{name}: {ratio} times as large as those of init");
    let entries = fresh.data().lock().expect("one thread");
    let mean = entries.get("x.preparation.0.mean").expect("the preparation");
    assert!(values(mean)?.iter().any(|x| *x != 0.), "{name}");
    drop(entries);
    let again = T::new(unfitted(model.config()), VarBuilder::from_varmap(&fresh, DType::F32, &CPU).pp("x"))?;
    assert_eq!(values(&seen(&again)?)?, values(&seen(&drawn)?)?, "{name}");
    let none = VarMap::new();
    let vb = VarBuilder::from_varmap(&none, DType::F32, &CPU);
    assert!(T::new(unfitted(model.config()), vb).is_err(), "{name}: a preparation without numbers");
    Ok(())
}

/// What models do through which gradients flow.
fn trains<T: Model + Module>(config: &T::Config) -> Result<()> {
    let variables = VarMap::new();
    let model = T::new(config.clone(), VarBuilder::from_varmap(&variables, DType::F32, &CPU))?;
    let prepared = values(&model.prepare(&floats(DType::F32)?)?)?;
    let params = ParamsAdamW { lr: 0.02, weight_decay: 0., ..ParamsAdamW::default() };
    let mut adam = AdamW::new(variables.all_vars(), params)?;
    let rows = floats(DType::F32)?;
    let target = uniform(model.forward(&rows)?.shape(), &CPU, Philox::new(3, 0))?;
    let mut losses = Vec::new();
    for _ in 0..4 {
        let loss = (model.forward(&rows)? - &target)?.sqr()?.mean_all()?;
        losses.push(loss.to_scalar::<f32>()?);
        adam.backward_step(&loss)?;
    }
    assert!(losses[3] < losses[0], "{}: {losses:?}", T::TYPE);
    assert_eq!(values(&model.prepare(&rows)?)?, prepared, "{}: its preparation was trained", T::TYPE);
    Ok(())
}

/// What encoders do; `tensor` is what is compared of codes, `close` whether types give nearly the
/// same.
fn encodes<T: Encode>(model: &T, tensor: impl Fn(T::Codes) -> Result<Tensor>, close: bool) -> Result<()> {
    let name = T::TYPE.to_string();
    let encode = |model: &T, rows: &Tensor| tensor(model.encode(rows)?);
    let (bytes, rows) = (bytes()?, floats(DType::F32)?);
    let codes = encode(model, &bytes)?;
    assert_eq!(codes.dims()[0], M);
    assert_eq!(values(&codes)?, values(&encode(model, &rows)?)?, "{name}: bytes are floats over 255");
    let prepared = tensor(model.encode_prepared(&model.prepare(&rows)?)?)?;
    assert_eq!(values(&codes)?, values(&prepared)?, "{name}");
    // Rows of every type into models of every type.
    let exact = match T::dtypes(model.config()).contains(&DType::F64) {
        true => encode(&model.to_dtype(DType::F64)?, &floats(DType::F64)?)?,
        false => codes.clone(),
    };
    for dtype in T::dtypes(model.config()) {
        let moved = model.to_dtype(*dtype)?;
        // Rounding of the type over two layers and sums of at most 9 values below 10.
        let tolerance = match dtype {
            DType::F64 => 1e-6, // bytes go through f32
            DType::F32 => 1e-3,
            DType::F16 => 0.05,
            _ => 0.4,
        };
        for rows in [bytes.clone(), rows.clone(), floats(DType::F64)?] {
            let made = encode(&moved, &rows)?;
            assert_eq!(made.dims(), codes.dims(), "{name} in {dtype:?} of {:?}", rows.dtype());
            let off =
                values(&made)?.iter().zip(values(&exact)?).map(|(a, b)| (a - b).abs()).fold(0., f64::max);
            assert!(
                off.is_finite() && (off < tolerance || !close),
                "{name} in {dtype:?} of {:?} rows is off by {off}",
                rows.dtype()
            );
        }
    }
    // Rows that come in parts.
    let split = Split::from_tensors(&bytes, None).map_err(candle::Error::wrap)?;
    let mut feed = Feed::new(&split, &CPU, FeedConfig::in_order(M)).map_err(candle::Error::wrap)?;
    let mut parts = Vec::new();
    model.encode_all(&mut feed, |codes| {
        parts.push(tensor(codes)?);
        Ok(())
    })?;
    assert_eq!(values(&Tensor::cat(&parts, 0)?)?, values(&codes)?, "{name}");
    let mut feed = Feed::new(&split, &CPU, FeedConfig::in_order(5)).map_err(candle::Error::wrap)?;
    let mut n = 0;
    model.encode_all(&mut feed, |codes| {
        n += tensor(codes)?.dim(0)?;
        Ok(())
    })?;
    assert_eq!(n, M, "{name}");
    assert!(model.encode(&rows.narrow(1, 0, 4)?).is_err(), "{name} took rows of another width");
    Ok(())
}

/// What decoders do.
fn decodes<T: Decode>(model: &T) -> Result<()> {
    let (name, bytes) = (T::TYPE.to_string(), bytes()?);
    let x = model.prepare(&bytes)?;
    assert_eq!(x.dims(), [M, READ], "{name}");
    let down = model.decode(&model.encode(&bytes)?)?;
    assert_eq!(down.dims(), [M, READ], "{name}");
    let back = model.reconstruct_prepared(&x)?;
    assert_eq!(back.dims(), [M, READ], "{name}");
    let raw = model.preparation().inverse(&back).map_err(candle::Error::wrap)?;
    assert_eq!(raw.dims(), [M, N], "{name}");
    assert_eq!(values(&model.reconstruct(&bytes)?)?, values(&raw)?, "{name}");
    let squares: f64 = values(&back)?.iter().zip(values(&x)?).map(|(a, b)| (a - b).powi(2)).sum();
    let error = model.reconstruction_error(&bytes)?;
    assert!((error - squares / M as f64).abs() < 1e-12 * error && error > 0., "{name}: {error}");
    assert_eq!(model.reconstruction_error_prepared(&x)?, error, "{name}");
    assert!(model.reconstruction_error(&bytes.narrow(0, 0, 0)?).is_err(), "{name}: no rows have no error");
    Ok(())
}

/// What models of layers do.
fn is_layered<T: Layered>(model: &T) -> Result<()> {
    let (name, bytes, n) = (T::TYPE.to_string(), bytes()?, model.n_layers());
    assert_eq!(values(&model.features(&bytes, 0)?)?, values(&model.prepare(&bytes)?)?, "{name}");
    let each = (1..=n).map(|layer| model.features(&bytes, layer)).collect::<Result<Vec<_>>>()?;
    let all = model.all_features(&bytes)?;
    assert_eq!(values(&all)?, values(&Tensor::cat(&each, 1)?)?, "{name}");
    let said = first_line(model.features(&bytes, n + 1).map(drop).expect_err("a layer"));
    assert!(said.ends_with(&format!("::features: layer must be 0 to {n}, got {}", n + 1)), "{said}");
    Ok(())
}

/// All of it for a dense encoder through which gradients flow.
fn is_a_network<T: Decode<Codes = Tensor> + Module>(config: T::Config) -> Result<()> {
    let model = T::init(config.clone(), PLACE, &CPU)?;
    let seen = |model: &T| model.encode(&bytes()?);
    is_a_model(&model, seen)?;
    can_be_variables(&model, seen)?;
    encodes(&model, Ok, true)?;
    assert_eq!(values(&model.forward(&bytes()?)?)?, values(&model.encode(&bytes()?)?)?);
    decodes(&model)?;
    trains::<T>(&config)
}

fn rbm() -> Result<RbmConfig> {
    let visible = VisibleUnit::GaussianLearned;
    Ok(RbmConfig { visible, weight_stdev: 0.3, preparation: preparation()?, ..RbmConfig::new(READ, 5) })
}

fn dbn() -> Result<DbnConfig> {
    let lowest = RbmConfig { preparation: Preparation::default(), ..rbm()? };
    let upper = RbmConfig { weight_stdev: 0.3, ..RbmConfig::new(5, 4) };
    let image = Some(ImageShape::grey(3, 3));
    Ok(DbnConfig { layers: vec![lowest, upper], preparation: preparation()?, image })
}

/// A new model has an arm here, or this file does not compile.
fn keeps_the_contract(model: ModelType) -> Result<()> {
    let (place, preparation) = (PLACE, preparation()?);
    match model {
        ModelType::Rbm => is_a_network::<Rbm>(rbm()?),
        ModelType::Dbn => {
            is_a_network::<Dbn>(dbn()?)?;
            is_layered(&Dbn::init(dbn()?, place, &CPU)?)
        }
        ModelType::LabelledDbn => {
            let config = LabelledDbnConfig { preparation, ..LabelledDbnConfig::new(&[READ, 5, 4], 3) };
            let model = LabelledDbn::init(config, place, &CPU)?;
            let seen = |model: &LabelledDbn| model.free_energies(&bytes()?);
            is_a_model(&model, seen)?;
            can_be_variables(&model, seen)?;
            encodes(&model, Ok, true)?;
            decodes(&model)?;
            is_layered(&model)
        }
        ModelType::Feedforward => {
            let config = FeedforwardConfig { preparation, ..FeedforwardConfig::autoencoder(&[READ, 5, 4]) };
            let model = Feedforward::init(config.clone(), place, &CPU)?;
            let seen = |model: &Feedforward| model.forward(&bytes()?);
            is_a_model(&model, seen)?;
            can_be_variables(&model, seen)?;
            encodes(&model, Ok, true)?;
            decodes(&model)?;
            is_layered(&model)?;
            trains::<Feedforward>(&config)?;
            let config = FeedforwardConfig::classifier(&[READ, 5, 3]);
            let config = FeedforwardConfig { preparation: model.preparation().clone(), ..config };
            let classifier = Feedforward::init(config, place, &CPU)?;
            let said = first_line(classifier.reconstruct(&bytes()?).map(drop).expect_err("given back"));
            assert!(said.contains("must be an autoencoder, got a classifier"), "{said}");
            Ok(())
        }
        ModelType::Dictionary => {
            let config = DictionaryConfig { preparation, ..DictionaryConfig::new(8, READ, 2) };
            let model = Dictionary::init(config, place, &CPU)?;
            let seen = |model: &Dictionary| model.encode(&bytes()?)?.to_dense();
            is_a_model(&model, seen)?;
            can_be_variables(&model, seen)?;
            encodes(&model, |codes| codes.to_dense(), false)?;
            decodes(&model)
        }
        ModelType::Dae => {
            is_a_network::<Dae>(DaeConfig { preparation: preparation.clone(), ..DaeConfig::new(READ, 5) })?;
            is_a_network::<Dae>(DaeConfig { tied: false, preparation, ..DaeConfig::new(READ, 5) })
        }
        ModelType::StackedDae => {
            let config = StackedDaeConfig { preparation, ..StackedDaeConfig::new(&[READ, 5, 4]) };
            is_a_network::<StackedDae>(config.clone())?;
            is_layered(&StackedDae::init(config, place, &CPU)?)
        }
        ModelType::SparseAutoencoder => {
            let config = SparseAutoencoderConfig::new(READ, 5);
            is_a_network::<SparseAutoencoder>(SparseAutoencoderConfig { preparation, ..config })
        }
        ModelType::Sae => {
            for kind in [
                Kind::TopK { k: 3 },
                Kind::Relu,
                Kind::BatchTopK { k: 3 },
                Kind::JumpRelu,
                Kind::Gated,
                Kind::matryoshka(3, 8),
            ] {
                let config = SaeConfig { skip: true, ..SaeConfig::new(READ, 8, kind) };
                let config = SaeConfig { preparation: preparation.clone(), ..config };
                let model = Sae::init(config.clone(), place, &CPU)?;
                let seen = |model: &Sae| model.encode(&bytes()?)?.to_dense();
                is_a_model(&model, seen)?;
                can_be_variables(&model, seen)?;
                encodes(&model, |codes| codes.to_dense(), false)?;
                assert_eq!(values(&model.forward(&bytes()?)?)?, values(&seen(&model)?)?);
                decodes(&model)?;
                trains::<Sae>(&config)?;
            }
            Ok(())
        }
        ModelType::SparseCoding => {
            let config = SparseCodingConfig { preparation, ..SparseCodingConfig::new(8, READ, 0.1) };
            let model = SparseCoding::init(config, place, &CPU)?;
            let seen = |model: &SparseCoding| model.encode(&bytes()?);
            is_a_model(&model, seen)?;
            can_be_variables(&model, seen)?;
            encodes(&model, Ok, false)?;
            decodes(&model)
        }
        ModelType::Tsne => {
            let config = TsneConfig { preparation, ..TsneConfig::default() };
            let layout = normal((M, 2), &CPU, Philox::new(7, 0))?;
            for rows in [floats(DType::F32)?, bytes()?] {
                let model = Embedding::from_tensors(config.clone(), layout.clone(), Some(rows))?;
                is_a_model(&model, |model| model.encode(&bytes()?))?;
                encodes(&model, Ok, true)?;
                let said = first_line(model.store_in(&mut VarMap::new(), "").map(drop).expect_err("stored"));
                assert!(said.starts_with("Embedding::store_in: "), "{said}");
            }
            let said = first_line(Embedding::init(config, place, &CPU).map(drop).expect_err("drawn"));
            assert!(said.ends_with("take Tsne::fit"), "{said}");
            Ok(())
        }
        ModelType::Softmax => {
            let config = SoftmaxConfig { preparation, ..SoftmaxConfig::new(READ, 3) };
            let model = Softmax::init(config.clone(), place, &CPU)?;
            let seen = |model: &Softmax| model.forward(&bytes()?);
            is_a_model(&model, seen)?;
            can_be_variables(&model, seen)?;
            trains::<Softmax>(&config)
        }
    }
}

#[test]
fn every_model_keeps_the_contract() -> Result<()> {
    ModelType::ALL.into_iter().try_for_each(keeps_the_contract)
}

#[test]
fn windows_and_filters_take_rows_of_every_type_too() -> Result<()> {
    let grid = PatchGrid::of_image(ImageShape::grey(3, 3), 2, 1);
    let windows = Rbm::init(RbmConfig::patches(grid, 3)?, PLACE, &CPU)?;
    encodes(&windows, Ok, true)?;
    let said = first_line(windows.to_dtype(DType::F16).map(drop).expect_err("moved"));
    assert_eq!(
        said,
        "Rbm: parameters must be f32 or f64, got f16, in which it has no products; load it in one of these"
    );
    let grid = ConvGrid {
        planes: 1,
        height: 3,
        width: 3,
        depth: 1,
        size: 2,
        n_filters: 2,
        padding: Padding::Valid,
        stride: 1,
        pool: 1,
    };
    for pool in [1, 2] {
        let config = RbmConfig::convolution(ConvGrid { pool, ..grid })?;
        encodes(&Rbm::init(config, PLACE, &CPU)?, Ok, true)?;
    }
    Ok(())
}

#[test]
fn a_layer_out_of_a_stack_prepares_as_the_stack_does() -> Result<()> {
    let (dbn, bytes) = (Dbn::init(dbn()?, PLACE, &CPU)?, bytes()?);
    let by_hand = dbn.layers()[1].encode(&dbn.layers()[0].encode(&bytes)?)?;
    assert_eq!(values(&dbn.encode(&bytes)?)?, values(&by_hand)?);
    // Its configuration holds the preparation once.
    let folder = tempfile::tempdir()?;
    dbn.save_pretrained(folder.path())?;
    let text = std::fs::read_to_string(folder.path().join("config.json"))?;
    assert_eq!(text.matches("preparation").count(), 1, "{text}");
    Ok(())
}

#[test]
fn scores_are_log_likelihoods_of_rows_or_bounds() -> Result<()> {
    // All states of four binary units have probabilities that sum to one.
    let rbm = Rbm::init(RbmConfig { weight_stdev: 1., ..RbmConfig::new(4, 3) }, PLACE, &CPU)?;
    let states =
        Tensor::from_iter((0..64u32).map(|i| ((i / 4) >> (i % 4) & 1) as f32), &CPU)?.reshape((16, 4))?;
    let log_z = rbm.exact_log_z(&mut |_, _| {})?;
    let scores = rbm.score_samples(&states, log_z)?;
    assert_eq!((scores.dims(), scores.dtype()), (&[16][..], DType::F64));
    let sum: f64 = values(&scores)?.iter().map(|score| score.exp()).sum();
    assert!((sum - 1.).abs() < 1e-6, "{sum}");
    // Raw rows go through the preparation.
    let bytes = (&states * 255.)?.to_dtype(DType::U8)?;
    assert_eq!(values(&rbm.score_samples(&bytes, log_z)?)?, values(&scores)?);

    let layers = vec![rbm.config().clone(), RbmConfig { weight_stdev: 1., ..RbmConfig::new(3, 2) }];
    let dbn = Dbn::init(DbnConfig { layers, ..DbnConfig::new(&[4, 3, 2]) }, PLACE, &CPU)?;
    let log_z = dbn.layers()[1].exact_log_z(&mut |_, _| {})?;
    let scores = dbn.score_samples(&bytes, log_z, 4, Philox::new(9, 0))?;
    let bound = dbn.log_likelihood_bound(&states, &Estimate::exact(log_z), 4, Philox::new(9, 0))?;
    let mean = values(&scores)?.iter().sum::<f64>() / 16.;
    assert!((mean - bound.estimate.value).abs() < 1e-12, "{mean} and {bound:?}");
    // Bounds on probabilities that sum to one.
    assert!(values(&scores)?.iter().map(|score| score.exp()).sum::<f64>() < 1.05);
    Ok(())
}
