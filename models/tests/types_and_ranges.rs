//! Rows of any float type and bytes go into models of any float type, and rows that a model's units
//! cannot take are named.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer, StackedDae, StackedDaeConfig};
use chandlery::datasets::preparation::{StepConfig, WhiteningConfig};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::feedforward::{
    Activation, Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer,
    ReconstructionLoss,
};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::sparse_autoencoder::{
    Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
};
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use chandlery::{Encode, LoadOptions, MinibatchTrainer, Model, Philox, Preparation, Trainer};
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;
const N: usize = 8;
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Bytes whose floats, byte / 255 times 255, are exact in all types.
fn bytes() -> Result<Tensor> {
    (uniform((40, N), &CPU, Philox::new(1, 0))? * 255.)?.to_dtype(DType::U8)
}

fn preparation() -> Result<Preparation> {
    let steps = [
        StepConfig::Center,
        StepConfig::Pca { n_components: N },
        StepConfig::Whiten(WhiteningConfig { epsilon: 0.1, ..WhiteningConfig::default() }),
    ];
    Preparation::fit_tensor(&bytes()?, &steps, 0).map_err(candle::Error::wrap)
}

/// What a model makes of raw rows, as a dense tensor.
type Encoder = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

fn encoder(model: impl Encode<Codes = Tensor> + 'static) -> Encoder {
    Box::new(move |rows| model.encode(rows))
}

/// Every model with a preparation that was fitted, in another type.
fn models(preparation: &Preparation, dtype: DType) -> Result<Vec<(&'static str, Encoder)>> {
    let preparation = || preparation.clone();
    let place = Philox::new(2, 0);
    let visible = VisibleUnit::Gaussian;
    let rbm = RbmConfig { preparation: preparation(), visible, ..RbmConfig::new(N, 5) };
    let dae = DaeConfig { preparation: preparation(), ..DaeConfig::new(N, 5) };
    let sae = SparseAutoencoderConfig { preparation: preparation(), ..SparseAutoencoderConfig::new(N, 5) };
    let network =
        FeedforwardConfig { preparation: preparation(), ..FeedforwardConfig::classifier(&[N, 5, 3]) };
    let mut models: Vec<(&'static str, Encoder)> = vec![
        ("Rbm", encoder(Rbm::init(rbm, place, &CPU)?.to(dtype, &CPU)?)),
        ("Dae", encoder(Dae::init(dae, place, &CPU)?.to(dtype, &CPU)?)),
        ("SparseAutoencoder", encoder(SparseAutoencoder::init(sae, place, &CPU)?.to(dtype, &CPU)?)),
        ("Feedforward", encoder(Feedforward::init(network, place, &CPU)?.to(dtype, &CPU)?)),
    ];
    if matches!(dtype, DType::F32 | DType::F64) {
        let config = SparseCodingConfig { preparation: preparation(), ..SparseCodingConfig::new(6, N, 0.2) };
        let basis = normal((6, N), &CPU, place)?;
        models.push(("SparseCoding", encoder(SparseCoding::from_tensor(config, basis)?.to(dtype, &CPU)?)));
        let config = DictionaryConfig { preparation: preparation(), ..DictionaryConfig::new(6, N, 2) };
        let atoms = normal((6, N), &CPU, place)?.to_dtype(dtype)?;
        let dictionary = Dictionary::from_tensor(config, atoms)?;
        models.push(("Dictionary", Box::new(move |rows| dictionary.encode(rows)?.to_dense())));
    }
    Ok(models)
}

#[test]
fn rows_of_every_type_go_into_models_of_every_type() -> Result<()> {
    let (bytes, preparation) = (bytes()?, preparation()?);
    let exact = models(&preparation, DType::F64)?;
    for dtype in FLOATS {
        // Errors of rounding to the type, of values up to 10 and sums of 8 of them.
        let tolerance = match dtype {
            DType::F64 => 1e-12,
            DType::F32 => 1e-4,
            DType::F16 => 0.05,
            _ => 0.3,
        };
        let f64_rows = (bytes.to_dtype(DType::F64)? / 255.)?;
        for ((name, model), (_, wide)) in models(&preparation, dtype)?.into_iter().zip(&exact) {
            let pursues = matches!(name, "SparseCoding" | "Dictionary"); // supports may differ in f32
            for from in [DType::U8].into_iter().chain(FLOATS) {
                let rows = if from == DType::U8 { bytes.clone() } else { f64_rows.to_dtype(from)? };
                let made = model(&rows)?;
                assert_eq!(made.dtype(), dtype, "{name} of {from:?} rows");
                // What the exact model makes of the same rounded rows, so that rows of 8 bits of
                // mantissa are no error.
                let want = wide(&rows)?;
                let off = (made.to_dtype(DType::F64)? - want)?.abs()?.max_all()?.to_scalar::<f64>()?;
                let within = off <= tolerance || pursues && dtype != DType::F64;
                assert!(within, "{name} in {dtype:?} of {from:?} rows is off by {off}");
            }
        }
    }
    Ok(())
}

#[test]
fn f64_models_keep_f64_through_their_preparation() -> Result<()> {
    // Columns far from 0: in f32 nothing of the rows is left.
    let steps = [StepConfig::Center, StepConfig::Pca { n_components: 3 }];
    let preparation = Preparation::fit_tensor(&uniform((50, 3), &CPU, Philox::new(3, 0))?, &steps, 0)
        .map_err(candle::Error::wrap)?;
    let rows = uniform((50, 3), &CPU, Philox::new(3, 0))?.to_dtype(DType::F64)?;
    let far = (&rows + 1e8)?;
    let config = RbmConfig { preparation, visible: VisibleUnit::Gaussian, ..RbmConfig::new(3, 2) };
    let rbm = Rbm::init(config, Philox::new(3, 1), &CPU)?.to(DType::F64, &CPU)?;
    let apart = (rbm.prepare(&far)? - rbm.prepare(&rows)?)?;
    // Each row moves by the same.
    let spread = apart.broadcast_sub(&apart.narrow(0, 0, 1)?)?.abs()?.max_all()?.to_scalar::<f64>()?;
    assert!(spread < 1e-6, "{spread}");
    let back = rbm.config().preparation.inverse(&rbm.prepare(&rows)?).map_err(candle::Error::wrap)?;
    assert!((back - &rows)?.abs()?.max_all()?.to_scalar::<f64>()? < 1e-12);
    Ok(())
}

#[test]
fn saved_weights_are_read_in_their_own_type_or_in_another() -> Result<()> {
    let folder = tempfile::tempdir().map_err(candle::Error::wrap)?;
    let name = folder.path().display().to_string();
    let third = |shape: &[usize]| Tensor::full(1. / 3., shape, &CPU);
    let rbm = Rbm::from_tensors(RbmConfig::new(3, 2), third(&[2, 3])?, third(&[2])?, third(&[3])?, None)?;
    rbm.save_pretrained(folder.path())?;
    let read =
        |dtype| Rbm::from_pretrained(&name, &LoadOptions { dtype: Some(dtype), ..LoadOptions::default() });
    assert_eq!(read(DType::F64)?.bias().to_vec1::<f64>()?, [1. / 3.; 2]);
    assert_eq!(read(DType::F16)?.weight().dtype(), DType::F16);
    assert_eq!(read(DType::F32)?.weight().dtype(), DType::F32);
    assert_eq!(Rbm::from_pretrained(&name, &LoadOptions::default())?.weight().dtype(), DType::F64);
    assert_eq!(
        read(DType::U8).map(drop).map_err(first_line),
        Err(format!(
            "{name}/model.safetensors: Rbm: parameters must be f32 or f64 or f16 or bf16, got u8, in which it has no products; load it in one of these"
        ))
    );
    Ok(())
}

#[test]
fn what_cannot_be_cast_names_the_model() -> Result<()> {
    let rows = Tensor::zeros((2, N), DType::I64, &CPU)?;
    let words =
        "Preparation: rows must be u8, f16, bf16, f32 or f64, to be read as one of the last four, got I64";
    for (name, model) in models(&Preparation::default(), DType::F32)? {
        let refused = first_line(model(&rows).expect_err("taken"));
        assert!(refused.starts_with(&format!("{name}: {words}")), "{refused}");
    }
    let coding = SparseCoding::from_tensor(
        SparseCodingConfig::new(6, N, 0.2),
        normal((6, N), &CPU, Philox::new(2, 0))?,
    )?;
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!(
            coding.to(dtype, &CPU).map(drop).map_err(first_line),
            Err(format!(
                "SparseCoding: parameters must be f32 or f64, got {}, in which it has no products; load it in one of these",
                dtype.as_str()
            ))
        );
    }
    Ok(())
}

#[test]
fn trainers_take_rows_of_every_float_type() -> Result<()> {
    let rows = uniform((16, N), &CPU, Philox::new(4, 0))?;
    let train = |rows: &Tensor| -> Result<Vec<f32>> {
        let rbm = Rbm::init(RbmConfig::new(N, 4), Philox::new(4, 1), &CPU)?;
        let mut trainer = RbmTrainer::new(
            &rbm,
            RbmTrainConfig { batch: 8, ..RbmTrainConfig::default() },
            Philox::new(4, 2),
        )?;
        trainer.steps_of(rows, None, 2)?;
        trainer.check()?;
        trainer.model()?.weight().flatten_all()?.to_vec1()
    };
    let want = train(&rows)?;
    assert_eq!(train(&rows.to_dtype(DType::F64)?)?, want);
    // A transposed view is no failure either.
    assert_eq!(train(&rows.t()?.contiguous()?.t()?)?, want);
    for dtype in [DType::F16, DType::BF16] {
        let rounded = rows.to_dtype(dtype)?;
        assert_eq!(train(&rounded)?, train(&rounded.to_dtype(DType::F32)?)?);
    }
    Ok(())
}

/// Every trainer whose units want rows between 0 and 1, by its name and what it needs: steps on
/// minibatches of 8, then looks.
fn on_unit_rows(rows: &Tensor, labels: &Tensor) -> Result<Vec<(&'static str, Result<()>)>> {
    fn look<T: MinibatchTrainer>(mut trainer: T, rows: &Tensor, labels: &Tensor) -> Result<()> {
        for i in 0..rows.dim(0)? / 8 {
            trainer.step(&rows.narrow(0, 8 * i, 8)?, Some(&labels.narrow(0, 8 * i, 8)?))?;
        }
        let checked = trainer.check();
        // Metrics say the same.
        assert_eq!(trainer.metrics().is_err(), checked.is_err());
        checked
    }
    let place = Philox::new(5, 0);
    let rbm = Rbm::init(RbmConfig::new(N, 4), place, &CPU)?;
    let dae = Dae::init(DaeConfig::new(N, 4), place, &CPU)?;
    let squared = DaeConfig { loss: ReconstructionLoss::SquaredError, ..DaeConfig::new(N, 4) };
    let squared = Dae::init(squared, place, &CPU)?;
    let config = DaeTrainConfig { batch: 8, ..DaeTrainConfig::default() };
    let larger = DaeTrainConfig { momentum: 0.5.into(), ..config.clone() };
    let network = FeedforwardConfig::autoencoder(&[N, 4]);
    let network = Feedforward::init(network, place, &CPU)?;
    let labelled = LabelledDbn::from_dbn(&Dbn::init(DbnConfig::new(&[N, 4, 3]), place, &CPU)?, 3)?;
    let sparse = SparseAutoencoder::init(SparseAutoencoderConfig::new(N, 4), place, &CPU)?;
    let noise = Philox::new(5, 1);
    Ok(vec![
        (
            "RbmTrainer",
            look(
                RbmTrainer::new(&rbm, RbmTrainConfig { batch: 8, ..RbmTrainConfig::default() }, noise)?,
                rows,
                labels,
            ),
        ),
        ("DaeTrainer", look(DaeTrainer::new(&dae, config.clone(), noise)?, rows, labels)),
        ("DaeTrainer", look(DaeTrainer::new(&dae, larger, noise)?, rows, labels)),
        ("DaeTrainer", look(DaeTrainer::new(&squared, config, noise)?, rows, labels)),
        (
            "FeedforwardTrainer",
            look(
                FeedforwardTrainer::new(
                    &network,
                    FeedforwardTrainConfig { batch: 8, ..FeedforwardTrainConfig::default() },
                    noise,
                )?,
                rows,
                labels,
            ),
        ),
        (
            "LabelledDbnTrainer",
            look(
                LabelledDbnTrainer::new(
                    &labelled,
                    LabelledDbnTrainConfig { batch: 8, ..LabelledDbnTrainConfig::default() },
                    noise,
                )?,
                rows,
                labels,
            ),
        ),
        (
            "SparseAutoencoderTrainer",
            look(
                SparseAutoencoderTrainer::new(
                    &sparse,
                    SparseAutoencoderTrainConfig { batch: 8, ..SparseAutoencoderTrainConfig::default() },
                )?,
                rows,
                labels,
            ),
        ),
        (
            "SparseAutoencoder",
            SparseAutoencoderLbfgsTrainer::new(&sparse, SparseAutoencoderLbfgsTrainConfig::default(), rows)
                .map(drop),
        ),
        (
            "SparseAutoencoder",
            SparseAutoencoderLbfgsTrainer::new(
                &sparse,
                SparseAutoencoderLbfgsTrainConfig {
                    chunk: Some(5),
                    double: true,
                    ..SparseAutoencoderLbfgsTrainConfig::default()
                },
                rows,
            )
            .map(drop),
        ),
    ])
}

#[test]
fn rows_outside_0_to_1_are_refused_by_name() -> Result<()> {
    let labels = Tensor::zeros(24, DType::U32, &CPU)?;
    let inside = uniform((24, N), &CPU, Philox::new(6, 0))?;
    for (name, result) in on_unit_rows(&inside, &labels)? {
        result.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let mut one_value = inside.flatten_all()?.to_vec1::<f32>()?;
    one_value[8 * N + 3] = -0.5; // in the second minibatch alone
    let cases = [
        (Tensor::from_vec(one_value, (24, N), &CPU)?, "got -0.5 to 0.99"),
        ((&inside * 1000.)?, "to 99"),
        ((normal((24, N), &CPU, Philox::new(6, 1))? + 0.)?, "got -"),
    ];
    for (rows, got) in cases {
        for (name, result) in on_unit_rows(&rows, &labels)? {
            let refused = result.map_err(first_line).expect_err(name);
            let begins = format!("{name}: prepared rows must lie between 0 and 1 for ");
            assert!(refused.starts_with(&begins) && refused.contains(got), "{refused}");
        }
    }
    // Bytes that count as 0 to 255.
    let rbm = RbmConfig { preparation: Preparation::default().of_byte_levels(), ..RbmConfig::new(N, 4) };
    let rbm = Rbm::init(rbm, Philox::new(6, 2), &CPU)?;
    let config = RbmTrainConfig { batch: 8, ..RbmTrainConfig::default() };
    let mut trainer = RbmTrainer::new(&rbm, config.clone(), Philox::new(6, 3))?;
    trainer.step(&bytes()?.narrow(0, 0, 8)?, None)?;
    assert!(first_line(trainer.check().expect_err("bytes of 255")).contains("for Bernoulli visible units"));
    let any = RbmTrainConfig { any_range: true, ..config.clone() };
    let mut trainer = RbmTrainer::new(&rbm, any, Philox::new(6, 3))?;
    trainer.step(&bytes()?.narrow(0, 0, 8)?, None)?;
    trainer.check()?;
    // Units and outputs that take any value.
    let gaussian = RbmConfig { visible: VisibleUnit::Gaussian, ..RbmConfig::new(N, 4) };
    let rows = normal((8, N), &CPU, Philox::new(6, 4))?;
    let low = RbmTrainConfig { learning_rate: 0.001.into(), ..config };
    let mut trainer =
        RbmTrainer::new(&Rbm::init(gaussian, Philox::new(6, 2), &CPU)?, low, Philox::new(6, 3))?;
    trainer.step(&rows, None)?;
    trainer.check()?;
    let linear = SparseAutoencoderConfig { decoder: Decoder::Linear, ..SparseAutoencoderConfig::new(N, 4) };
    let linear = SparseAutoencoder::init(linear, Philox::new(6, 2), &CPU)?;
    SparseAutoencoderLbfgsTrainer::new(&linear, SparseAutoencoderLbfgsTrainConfig::default(), &rows)?;
    Ok(())
}

#[test]
fn outputs_of_an_upper_layer_must_reach_what_the_layer_below_makes() {
    let stack = |hidden, output, loss| {
        let mut config = StackedDaeConfig::new(&[N, 5, 4]);
        config.layers[0].hidden = hidden;
        (config.layers[1].output, config.layers[1].loss) = (output, loss);
        StackedDae::init(config, Philox::new(7, 0), &CPU).map(drop).map_err(first_line)
    };
    let squared = ReconstructionLoss::SquaredError;
    for hidden in [Activation::Relu, Activation::Tanh, Activation::Identity] {
        for loss in [squared, ReconstructionLoss::CrossEntropy] {
            let want = format!(
                "StackedDaeConfig: layers[1].output must not be sigmoid, since layers[0].hidden is {hidden:?}, whose values leave 0 to 1; use \
                 identity or tanh with the squared error"
            );
            assert_eq!(stack(hidden, Activation::Sigmoid, loss), Err(want));
        }
        assert_eq!(stack(hidden, Activation::Identity, squared), Ok(()));
    }
    assert_eq!(stack(Activation::Sigmoid, Activation::Sigmoid, squared), Ok(()));
}

#[test]
fn a_trainer_does_not_draw_where_the_weights_were_drawn() -> Result<()> {
    let (place, other) = (Philox::new(8, 3), Philox::new(8, 4));
    let want = |name: &str| {
        Err(format!(
            "{name}: philox must not begin where the draws of the weights did, at seed 8, stream 3 and offset 0; give another stream"
        ))
    };
    let rbm = Rbm::init(RbmConfig::new(N, 4), place, &CPU)?;
    let of_rbm = |at| RbmTrainer::new(&rbm, RbmTrainConfig::default(), at).map(drop).map_err(first_line);
    assert_eq!((of_rbm(place), of_rbm(other)), (want("RbmTrainer"), Ok(())));
    let dae = Dae::init(DaeConfig::new(N, 4), place, &CPU)?;
    let of_dae = |at| DaeTrainer::new(&dae, DaeTrainConfig::default(), at).map(drop).map_err(first_line);
    assert_eq!((of_dae(place), of_dae(other)), (want("DaeTrainer"), Ok(())));
    let network = Feedforward::init(FeedforwardConfig::classifier(&[N, 4, 3]), place, &CPU)?;
    let of_network = |dropout: Vec<f64>, at| {
        let config = FeedforwardTrainConfig { dropout, ..FeedforwardTrainConfig::default() };
        FeedforwardTrainer::new(&network, config, at).map(drop).map_err(first_line)
    };
    assert_eq!(of_network(vec![0.2, 0.], place), want("FeedforwardTrainer"));
    assert_eq!((of_network(vec![0.2, 0.], other), of_network(vec![], place)), (Ok(()), Ok(())));
    Ok(())
}
