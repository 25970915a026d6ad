//! Saved models of every kind: which one a folder holds, and what is refused.
#![allow(clippy::expect_used)]
use crate::common::bits;
use candle::{Device, Result, Tensor};
use chandlery::dae::{Dae, DaeConfig, StackedDae, StackedDaeConfig};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::dictionary::{CodeError, Dictionary, DictionaryConfig};
use chandlery::feedforward::Feedforward;
use chandlery::labelled::LabelledDbn;
use chandlery::pretrained::{ModelType, model_type};
use chandlery::rbm::{HiddenUnit, Rbm, RbmConfig, VisibleUnit};
use chandlery::softmax::{Softmax, SoftmaxConfig};
use chandlery::sparse_autoencoder::sae::{Kind, Sae, SaeConfig};
use chandlery::sparse_autoencoder::{SparseAutoencoder, SparseAutoencoderConfig};
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use chandlery::tsne::{Embedding, TsneConfig};
use chandlery::{Encode, ImageShape, Layered, LoadOptions, Model, Preparation};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use serde_json::Value;
use std::path::Path;

const CPU: Device = Device::Cpu;

/// A number whose shortest decimal form is long, and whose neighbours a careless parser takes it
/// for.
const AWKWARD: f64 = 0.1 + 0.2;

fn rbm(visible: VisibleUnit) -> Result<Rbm> {
    let config =
        RbmConfig { visible, hidden: HiddenUnit::Rectified, weight_stdev: AWKWARD, ..RbmConfig::new(6, 4) };
    Rbm::init(config, Philox::new(1, 0), &CPU)
}

fn awkward() -> Result<Preparation> {
    Preparation::scale(AWKWARD).map_err(candle::Error::wrap)
}

fn dbn() -> Result<Dbn> {
    let preparation = awkward()?;
    let config = DbnConfig { preparation, image: Some(ImageShape::grey(2, 3)), ..DbnConfig::new(&[6, 4, 3]) };
    Dbn::init(config, Philox::new(1, 1), &CPU)
}

fn dictionary() -> Result<Dictionary> {
    let config =
        DictionaryConfig { error: Some(CodeError::Absolute(AWKWARD)), ..DictionaryConfig::new(5, 4, 2) };
    Dictionary::from_tensor(config, normal((5, 4), &CPU, Philox::new(1, 2))?)
}

fn dae(tied: bool) -> Result<Dae> {
    let (preparation, image) = (awkward()?, Some(ImageShape::grey(2, 3)));
    let config = DaeConfig { tied, preparation, image, ..DaeConfig::new(6, 4) };
    Dae::init(config, Philox::new(1, 3), &CPU)
}

fn stacked_dae() -> Result<StackedDae> {
    let (preparation, image) = (awkward()?, Some(ImageShape::grey(2, 3)));
    let config = StackedDaeConfig { preparation, image, ..StackedDaeConfig::new(&[6, 4, 3]) };
    StackedDae::init(config, Philox::new(1, 4), &CPU)
}

fn sparse_autoencoder() -> Result<SparseAutoencoder> {
    let config = SparseAutoencoderConfig { preparation: awkward()?, ..SparseAutoencoderConfig::new(6, 4) };
    SparseAutoencoder::init(config, Philox::new(1, 3), &CPU)
}

fn sae() -> Result<Sae> {
    let kind = Kind::Matryoshka { k: 2, prefixes: vec![3, 8] };
    let config = SaeConfig { preparation: awkward()?, skip: true, ..SaeConfig::new(6, 8, kind) };
    Sae::init(config, Philox::new(1, 9), &CPU)
}

fn sparse_coding() -> Result<SparseCoding> {
    let config = SparseCodingConfig { preparation: awkward()?, ..SparseCodingConfig::new(5, 4, AWKWARD) };
    SparseCoding::from_tensor(config, normal((5, 4), &CPU, Philox::new(1, 5))?)
}

fn embedding() -> Result<Embedding> {
    let config =
        TsneConfig { preparation: awkward()?, learning_rate: Some(AWKWARD), ..TsneConfig::default() };
    let rows = normal((5, 6), &CPU, Philox::new(1, 6))?;
    Embedding::from_tensors(config, normal((5, 2), &CPU, Philox::new(1, 7))?, Some(rows))
}

/// Saves a model of each type to a folder of its own name under `folder`.
fn save_all(folder: &Path) -> Result<()> {
    for model in ModelType::ALL {
        let folder = folder.join(model.name());
        match model {
            ModelType::Rbm => rbm(VisibleUnit::GaussianLearned)?.save_pretrained(&folder)?,
            ModelType::Dbn => dbn()?.save_pretrained(&folder)?,
            ModelType::LabelledDbn => LabelledDbn::from_dbn(&dbn()?, 2)?.save_pretrained(&folder)?,
            ModelType::Feedforward => Feedforward::from_dbn(&dbn()?, 2)?.save_pretrained(&folder)?,
            ModelType::Dictionary => dictionary()?.save_pretrained(&folder)?,
            ModelType::Dae => dae(false)?.save_pretrained(&folder)?,
            ModelType::StackedDae => stacked_dae()?.save_pretrained(&folder)?,
            ModelType::SparseAutoencoder => sparse_autoencoder()?.save_pretrained(&folder)?,
            ModelType::Sae => sae()?.save_pretrained(&folder)?,
            ModelType::SparseCoding => sparse_coding()?.save_pretrained(&folder)?,
            ModelType::Tsne => embedding()?.save_pretrained(&folder)?,
            ModelType::Softmax => {
                Softmax::init(SoftmaxConfig::new(6, 3), Philox::new(1, 8), &CPU)?.save_pretrained(&folder)?
            }
        }
    }
    Ok(())
}

/// Loads it as a model of this type.
fn load_as(model: ModelType, name: &str) -> Result<()> {
    fn load<M: Model>(name: &str) -> Result<()> {
        M::from_pretrained(name, &LoadOptions::default()).map(drop)
    }
    match model {
        ModelType::Rbm => load::<Rbm>(name),
        ModelType::Dbn => load::<Dbn>(name),
        ModelType::LabelledDbn => load::<LabelledDbn>(name),
        ModelType::Feedforward => load::<Feedforward>(name),
        ModelType::Dictionary => load::<Dictionary>(name),
        ModelType::Dae => load::<Dae>(name),
        ModelType::StackedDae => load::<StackedDae>(name),
        ModelType::SparseAutoencoder => load::<SparseAutoencoder>(name),
        ModelType::Sae => load::<Sae>(name),
        ModelType::SparseCoding => load::<SparseCoding>(name),
        ModelType::Tsne => load::<Embedding>(name),
        ModelType::Softmax => load::<Softmax>(name),
    }
}

fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The fields of a folder's configuration.
fn fields(folder: &Path) -> Result<serde_json::Map<String, Value>> {
    let text = std::fs::read_to_string(folder.join("config.json"))?;
    serde_json::from_str(&text).map_err(candle::Error::wrap)
}

fn write_fields(folder: &Path, fields: serde_json::Map<String, Value>) -> Result<()> {
    Ok(std::fs::write(folder.join("config.json"), Value::Object(fields).to_string())?)
}

#[test]
fn a_machine_comes_back_to_the_bit_with_or_without_deviations() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let name = folder.path().display().to_string();
    for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
        let saved = rbm(visible)?;
        saved.save_pretrained(folder.path())?;
        let back = Rbm::from_pretrained(&name, &LoadOptions::default())?;
        assert_eq!(back.config(), saved.config());
        assert_eq!(back.config().weight_stdev.to_bits(), AWKWARD.to_bits());
        assert!(bits(back.tensors())? == bits(saved.tensors())?);
    }
    // What another candle project does, without this crate.
    let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
    assert_eq!((tensors["weight"].dims(), tensors["bias"].dims()), (&[4, 6][..], &[4][..]));
    Ok(())
}

#[test]
fn an_autoencoder_comes_back_to_the_bit_with_or_without_weights_of_the_decoder() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let name = folder.path().display().to_string();
    for tied in [true, false] {
        let saved = dae(tied)?;
        saved.save_pretrained(folder.path())?;
        let back = Dae::from_pretrained(&name, &LoadOptions::default())?;
        assert_eq!(back.config(), saved.config());
        assert!(bits(back.tensors())? == bits(saved.tensors())?);
        let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
        assert_eq!((tensors["weight"].dims(), tensors["bias"].dims()), (&[4, 6][..], &[4][..]));
        assert_eq!(tensors.get("decoder_weight").map(|t| t.dims().to_vec()), (!tied).then(|| vec![6, 4]));
    }
    Ok(())
}

#[test]
fn a_configuration_says_type_and_format_and_its_numbers_come_back_to_the_bit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    save_all(folder.path())?;
    for model in ModelType::ALL {
        let at = folder.path().join(model.name());
        let fields = fields(&at)?;
        assert_eq!((&fields["model_type"], &fields["format"]), (&model.name().into(), &1.into()));
        let text = std::fs::read_to_string(at.join("config.json"))?;
        assert!(
            text.starts_with(&format!("{{\n  \"model_type\": \"{model}\",\n  \"format\": 1,\n")),
            "{text}"
        );
        assert_eq!(model_type(&at)?, model);
        load_as(model, &at.display().to_string())?;
    }
    let name = |model: ModelType| folder.path().join(model.name()).display().to_string();
    let same = |preparation: &Preparation| {
        let scale = preparation.as_scale(candle::DType::F32).expect("a scale");
        assert_eq!(scale.to_bits(), AWKWARD.to_bits());
    };
    same(&Dbn::from_pretrained(name(ModelType::Dbn), &LoadOptions::default())?.config().preparation);
    same(
        &Feedforward::from_pretrained(name(ModelType::Feedforward), &LoadOptions::default())?
            .config()
            .preparation,
    );
    same(
        &LabelledDbn::from_pretrained(name(ModelType::LabelledDbn), &LoadOptions::default())?
            .config()
            .preparation,
    );
    let back = StackedDae::from_pretrained(name(ModelType::StackedDae), &LoadOptions::default())?;
    assert_eq!(back.config(), stacked_dae()?.config());
    assert!(bits(back.tensors())? == bits(stacked_dae()?.tensors())?);
    let back = Dictionary::from_pretrained(name(ModelType::Dictionary), &LoadOptions::default())?;
    assert_eq!(back.config(), dictionary()?.config());
    assert!(bits([("", back.atoms())])? == bits([("", dictionary()?.atoms())])?);
    Ok(())
}

#[test]
fn another_model_is_refused_by_the_name_of_the_type_that_loads_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    save_all(folder.path())?;
    for model in ModelType::ALL {
        let name = folder.path().join(model.name()).display().to_string();
        for other in ModelType::ALL.into_iter().filter(|other| *other != model) {
            let error = first_line(load_as(other, &name).expect_err("loaded"));
            let want = format!(
                "{name}/config.json: this model is of type {model}, not {other}; load it with chandlery::"
            );
            assert!(error.starts_with(&want), "{error}");
        }
    }
    let name = folder.path().join(ModelType::Feedforward.name()).display().to_string();
    let error = first_line(Dbn::from_pretrained(&name, &LoadOptions::default()).expect_err("loaded"));
    assert!(error.ends_with("load it with chandlery::feedforward::Feedforward::from_pretrained"), "{error}");
    Ok(())
}

#[test]
fn what_a_newer_version_or_another_library_wrote_is_refused_with_the_reason() -> Result<()> {
    let folder = tempfile::tempdir()?;
    dbn()?.save_pretrained(folder.path())?;
    let name = folder.path().display().to_string();
    let (types, good) = (
        "rbm, deep-belief-network, labelled-deep-belief-network, feedforward, dictionary, denoising-autoencoder, stacked-denoising-autoencoder, sparse-autoencoder, sae, sparse-coding, t-sne, softmax",
        fields(folder.path())?,
    );
    let cases: [(&str, Value, String); 6] = [
        ("format", 3.into(), "format must be 1, got 3; another version of chandlery wrote it".to_owned()),
        ("format", 0.into(), "format must be 1, got 0; another version of chandlery wrote it".to_owned()),
        (
            "format",
            "1".into(),
            "format must be 1, got \"1\"; another version of chandlery wrote it".to_owned(),
        ),
        (
            "model_type",
            "bert".into(),
            format!(
                "model_type must be one of {types}, got \"bert\"; it is no model of this version of chandlery"
            ),
        ),
        (
            "model_type",
            Value::Null,
            format!(
                "model_type must be one of {types}, got null; it is no model of this version of chandlery"
            ),
        ),
        ("layers", 3.into(), "invalid type: integer `3`, expected a sequence".to_owned()),
    ];
    for (field, value, why) in cases {
        let mut fields = good.clone();
        fields.insert(field.to_owned(), value);
        write_fields(folder.path(), fields)?;
        let error = first_line(Dbn::from_pretrained(&name, &LoadOptions::default()).expect_err("loaded"));
        assert!(error.starts_with(&format!("{name}/config.json: cannot be read: {why}")), "{error}");
        assert_eq!(model_type(&name).is_ok(), field == "layers", "{field}");
    }
    // A newer version may have types that this one does not know: the version is what is said.
    let newer = [("model_type", "graph".into()), ("format", 3.into())];
    write_fields(
        folder.path(),
        newer.map(|(field, value): (_, Value)| (field.to_owned(), value)).into_iter().collect(),
    )?;
    let error = first_line(model_type(&name).expect_err("known"));
    assert!(error.contains("format must be 1, got 3; another version of chandlery wrote it"), "{error}");

    std::fs::write(folder.path().join("config.json"), "{\"hidden_size\": 768}")?;
    let error = first_line(model_type(&name).expect_err("known"));
    let want = "it has no model_type: it is no model of chandlery; give the folder of one";
    assert_eq!(error, format!("{name}/config.json: cannot be read: {want}"));
    let error = first_line(Dbn::from_pretrained(&name, &LoadOptions::default()).expect_err("loaded"));
    assert_eq!(error, format!("{name}/config.json: cannot be read: {want}"));
    Ok(())
}

#[test]
fn a_layer_of_recognition_is_what_its_weights_make() -> Result<()> {
    let labelled =
        LabelledDbn::from_dbn(&Dbn::init(DbnConfig::new(&[6, 5, 4, 3]), Philox::new(1, 0), &CPU)?, 2)?;
    let plain = Dbn::init(DbnConfig::new(&[6, 5, 4, 3]), Philox::new(1, 0), &CPU)?;
    let v = normal((7, 6), &CPU, Philox::new(2, 0))?;
    let same = |a: Tensor, b: Tensor| -> Result<()> {
        let off = (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        // The same products and sigmoids in f32, perhaps in another order.
        assert!(off < 1e-6, "{off}");
        Ok(())
    };
    for layer in 0..=2 {
        same(labelled.features(&v, layer)?, plain.features(&v, layer)?)?;
    }
    same(labelled.encode(&v)?, labelled.features(&v, 2)?)?;
    let error = first_line(labelled.features(&v, 3).expect_err("accepted"));
    assert_eq!(error, "LabelledDbn::features: layer must be 0 to 2, got 3");
    Ok(())
}

#[test]
fn a_reader_never_sees_the_configuration_of_one_model_and_the_weights_of_another() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let name = folder.path().display().to_string();
    // Of one shape: weights of c, and c in the configuration.
    let of = |c: f64| -> Result<Rbm> {
        let config = RbmConfig { weight_stdev: c, ..RbmConfig::new(40, 30) };
        let full = |shape: &[usize]| Tensor::full(c as f32, shape, &CPU);
        Rbm::from_tensors(config, full(&[30, 40])?, full(&[30])?, full(&[40])?, None)
    };
    let models = [of(1.)?, of(2.)?];
    models[0].save_pretrained(folder.path())?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            for i in 0..200 {
                models[i % 2].save_pretrained(folder.path())?;
            }
            done.store(true, std::sync::atomic::Ordering::Release);
            Ok(())
        });
        let mut reads = 0;
        while !done.load(std::sync::atomic::Ordering::Acquire) || reads == 0 {
            let rbm = Rbm::from_pretrained(&name, &LoadOptions::default())?;
            let weight = rbm.bias().to_vec1::<f32>()?[0];
            assert_eq!(f64::from(weight), rbm.config().weight_stdev, "read {reads}");
            reads += 1;
        }
        writer.join().expect("the writer ends")
    })
}
