//! Families divided over two GPUs against one: `cargo test --features cuda --test parity -- --ignored
//! two_gpus`, on a machine that has them.
#![cfg(feature = "cuda")]
use super::two_gpus::{both, each, in_turn};
use candle::{DType, Device, Result, Tensor};
use chandlery::conv_rbm::ConvGrid;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig,
    OnlineDictionaryTrainer, UpdateRule,
};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer, Stage};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::likelihood::{Ais, AisConfig};
use chandlery::rbm::{self, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig};
use chandlery::sparse_autoencoder::sae::{Division, Kind, Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::sparse_autoencoder::{
    SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::{Encode, FullBatchTrainer, MinibatchTrainer, Model, Share, Trainer};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::{Group, Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits};

/// Rows of a minibatch and their width.
const BATCH: usize = 100;
const WIDTH: usize = 50;
/// Of their labels.
const CLASSES: u32 = 5;

/// Parameters of a model, on the CPU.
fn parameters<M: Model>(model: &M) -> Result<Vec<Tensor>> {
    model.tensors().into_iter().map(|(_, t)| t.to_device(&Device::Cpu)).collect()
}

/// Steps enough to record one; some minibatches are not full, and of some one rank has no row.
fn trained<T>(trainer: T) -> Result<Vec<Tensor>>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    trained_on(trainer, WIDTH)
}

/// The same of rows of another width.
fn trained_on<T>(mut trainer: T, width: usize) -> Result<Vec<Tensor>>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    for i in 0..20 {
        let n = [BATCH, BATCH, BATCH, 37, 3][i % 5];
        let rows = uniform((n, width), trainer.device(), Philox::new(2, i as u64))?;
        // Models without labels ignore them.
        let labels =
            Tensor::from_iter((0..n as u32).map(|j| (7 * j + i as u32) % CLASSES), trainer.device())?;
        trainer.step(&rows, Some(&labels))?;
    }
    trainer.check()?;
    trainer.metrics()?;
    trainer.gather()?;
    parameters(&trainer.model()?)
}

/// Holds what two GPUs make against what one makes, within a share of `most`.
fn held(what: &str, most: f32, made: impl Fn(&Group, &Device) -> Result<Vec<Tensor>> + Sync) -> Result<()> {
    let devices = both()?;
    let alone = made(&Group::single(), &devices[0])?;
    let _turn = in_turn();
    let first = each(Group::on_gpus(&devices)?, &devices, &made)?;
    let again = each(Group::on_gpus(&devices)?, &devices, &made)?;
    for (i, want) in alone.iter().enumerate() {
        assert_close(what, &first[0][i], want, most, most)?;
        assert_same_bits(&format!("{what}, the other rank"), &first[1][i], &first[0][i])?;
        assert_same_bits(&format!("{what}, another run"), &again[0][i], &first[0][i])?;
    }
    Ok(())
}

/// Atoms of which one is 0, so that it is replaced.
fn atoms(device: &Device) -> Result<Tensor> {
    let atoms = normal((70, WIDTH), device, Philox::new(1, 0))?;
    atoms.slice_set(&atoms.narrow(0, 5, 1)?.zeros_like()?, 0, 5)?;
    Ok(atoms)
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_learn_the_dictionaries_of_one() -> Result<()> {
    held("online dictionary", 1e-4, |group, device| {
        let dictionary = Dictionary::from_tensor(DictionaryConfig::new(70, WIDTH, 4), atoms(device)?)?;
        let config = OnlineDictionaryTrainConfig { max_idle: 200, ..OnlineDictionaryTrainConfig::default() };
        trained(OnlineDictionaryTrainer::new(dictionary, config, Philox::new(1, 1))?.in_group(group)?)
    })?;
    held("sparse coding", 1e-3, |group, device| {
        let config = SparseCodingConfig { tolerance: 1e-7, ..SparseCodingConfig::new(70, WIDTH, 0.3) };
        let config = (SparseCoding::from_tensor(config, atoms(device)?)?, SparseCodingTrainConfig::default());
        trained(SparseCodingTrainer::new(&config.0, config.1, Philox::new(1, 1))?.in_group(group)?)
    })?;
    for rule in [UpdateRule::AkSvd, UpdateRule::Nsgk, UpdateRule::Mod] {
        held(rule.name(), 1e-3, |group, device| {
            let signals = uniform((1003, WIDTH), device, Philox::new(2, 0))?;
            let dictionary = Dictionary::from_tensor(DictionaryConfig::new(70, WIDTH, 4), atoms(device)?)?;
            let config = DictionaryTrainConfig { rule, ..DictionaryTrainConfig::default() };
            let trainer = DictionaryTrainer::new(dictionary, &signals, config, Philox::new(1, 1))?;
            let mut trainer = trainer.in_group(group)?;
            for _ in 0..5 {
                trainer.step()?;
            }
            parameters(trainer.current())
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_learn_the_autoencoders_of_one() -> Result<()> {
    held("denoising autoencoder", 1e-4, |group, device| {
        let dae = Dae::init(DaeConfig::new(WIDTH, 40), Philox::new(1, 0), device)?;
        let config = DaeTrainConfig { batch: BATCH, momentum: 0.5.into(), ..DaeTrainConfig::default() };
        trained(DaeTrainer::new(&dae, config, Philox::new(1, 1))?.in_group(group)?)
    })?;
    // One GPU of capability 9.0 has its weights in halves; a rate at which rounding stays rounding.
    held("denoising autoencoder, bf16", 2e-3, |group, device| {
        let dae = Dae::init(DaeConfig::new(1789, 1797), Philox::new(1, 0), device)?;
        let config = DaeTrainConfig {
            batch: BATCH,
            learning_rate: 0.01.into(),
            momentum: 0.5.into(),
            precision: Precision::Bf16,
            ..DaeTrainConfig::default()
        };
        let mut trainer = DaeTrainer::new(&dae, config, Philox::new(1, 1))?;
        // The group begins with weights and velocities that have learned.
        trainer.step(&uniform((BATCH, 1789), device, Philox::new(3, 0))?, None)?;
        trained_on(trainer.in_group(group)?, 1789)
    })?;
    let model = |device: &Device| {
        SparseAutoencoder::init(SparseAutoencoderConfig::new(WIDTH, 40), Philox::new(1, 0), device)
    };
    held("sparse autoencoder by minibatches", 1e-4, |group, device| {
        let config = SparseAutoencoderTrainConfig { batch: BATCH, ..SparseAutoencoderTrainConfig::default() };
        trained(SparseAutoencoderTrainer::new(&model(device)?, config)?.in_group(group)?)
    })?;
    held("sparse autoencoder by L-BFGS", 1e-7, |group, device| {
        let rows = uniform((1003, WIDTH), device, Philox::new(2, 0))?;
        let config = SparseAutoencoderLbfgsTrainConfig {
            double: true,
            chunk: Some(300),
            ..SparseAutoencoderLbfgsTrainConfig::default()
        };
        let run = SparseAutoencoderLbfgsTrainer::new(&model(device)?, config, &rows)?;
        let mut run = run.in_group(group)?;
        for _ in 0..10 {
            run.step()?;
        }
        parameters(&run.model()?)
    })
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_learn_the_rbms_of_one() -> Result<()> {
    // States of bf16 double a rounding that falls the other way.
    for (precision, most) in [(Precision::F32, 1e-4), (Precision::Tf32, 2e-3), (Precision::Bf16, 2e-2)] {
        // With and without the kernels of whole tiles; parts of 128 and of 20 hidden units.
        for hidden in [256, 40] {
            for (what, persistent, k) in [("one step", false, 1), ("persistent chains", true, 2)] {
                held(&format!("RBM of {hidden} in {precision:?}, {what}"), most, |group, device| {
                    let rbm = Rbm::init(RbmConfig::new(WIDTH + 2, hidden), Philox::new(1, 0), device)?;
                    let config = RbmTrainConfig {
                        batch: BATCH,
                        precision,
                        persistent,
                        k,
                        learning_rate: 0.02.into(),
                        ..RbmTrainConfig::default()
                    };
                    let trainer = RbmTrainer::new(&rbm, config, Philox::new(1, 1))?;
                    let trainer = trainer.in_group(group)?;
                    trained_on(trainer, WIDTH + 2)
                })?;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_that_divide_rows_learn_the_rbms_of_one() -> Result<()> {
    let image = PatchGrid { planes: 1, height: 9, width: 4, depth: 1, window: 3, stride: 1 };
    let filters = ConvGrid { pool: 2, ..ConvGrid::of_image([10, 8, 3], 3, 24) };
    let cases = [
        // Stored in f32 and bf16, of which one GPU alone stores the first in f16.
        ("dense", RbmConfig::new(WIDTH + 2, 256)),
        ("dense, odd", RbmConfig::new(WIDTH + 1, 37)),
        ("patches", RbmConfig::patches(image, 8)?),
        ("pooled maps", RbmConfig::convolution(filters)?),
    ];
    let sparsity = Some(SparsityConfig { target: 0.1, cost: 0.5, decay: 0.9 });
    for (precision, most) in [(Precision::F32, 2e-4), (Precision::Tf32, 4e-3), (Precision::Bf16, 3e-2)] {
        for (of, rbm) in &cases {
            for (what, persistent, k, binarize) in
                [("sparse, one step", false, 1, false), ("persistent chains of drawn rows", true, 2, true)]
            {
                held(&format!("{of} by rows in {precision:?}, {what}"), most, |group, device| {
                    let config = RbmTrainConfig {
                        batch: BATCH,
                        precision,
                        persistent,
                        binarize,
                        k,
                        division: rbm::Division::Rows,
                        sparsity: sparsity.filter(|_| !persistent),
                        learning_rate: 0.02.into(),
                        ..RbmTrainConfig::default()
                    };
                    let rbm = Rbm::init(rbm.clone(), Philox::new(1, 0), device)?;
                    let width = rbm.config().n_visible;
                    trained_on(RbmTrainer::new(&rbm, config, Philox::new(1, 1))?.in_group(group)?, width)
                })?;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_learn_by_the_up_down_algorithm_as_one() -> Result<()> {
    for (precision, most) in [(Precision::F32, 1e-4), (Precision::Tf32, 2e-3)] {
        for (what, stage, persistent) in [
            ("chains from the data", Stage::UpDown, false),
            ("persistent chains", Stage::UpDown, true),
            ("the top alone", Stage::Top, true),
        ] {
            held(&format!("up-down in {precision:?}, {what}"), most, |group, device| {
                let dbn = Dbn::init(DbnConfig::new(&[WIDTH, 29, 23, 31]), Philox::new(1, 0), device)?;
                let dbn = LabelledDbn::from_dbn(&dbn, CLASSES as usize)?;
                let config = LabelledDbnTrainConfig {
                    stage,
                    batch: BATCH,
                    persistent,
                    precision,
                    learning_rate: 0.02.into(),
                    label_rate: 1.,
                    momentum: 0.5.into(),
                    l2: 1e-3,
                    ..LabelledDbnTrainConfig::default()
                };
                trained(LabelledDbnTrainer::new(&dbn, config, Philox::new(1, 1))?.in_group(group)?)
            })?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_learn_the_patches_and_filters_of_one() -> Result<()> {
    let grid = |[planes, height, width, depth]: [usize; 4], window, stride| PatchGrid {
        planes,
        height,
        width,
        depth,
        window,
        stride,
    };
    let filters = ConvGrid { pool: 2, ..ConvGrid::of_image([10, 8, 3], 3, 24) };
    let cases = [
        // Cells of 64 values and warpgroups, whose units are made in registers;
        // tiles; plain products; colours, whose lines lie apart.
        ("warpgroups", RbmConfig::patches(grid([1, 72, 48, 1], 24, 8), 192)?),
        ("tiles", RbmConfig::patches(grid([1, 11, 6, 8], 3, 1), 24)?),
        ("plain", RbmConfig::patches(grid([1, 9, 4, 1], 3, 1), 2)?),
        ("colours", RbmConfig::patches(grid([3, 9, 8, 1], 3, 1), 8)?),
        ("pooled maps", RbmConfig::convolution(filters)?),
        ("maps", RbmConfig::convolution(ConvGrid { pool: 1, ..filters })?),
    ];
    for (precision, most) in [(Precision::F32, 2e-4), (Precision::Tf32, 4e-3), (Precision::Bf16, 3e-2)] {
        for (of, rbm) in &cases {
            for (what, persistent, k, binarize) in
                [("one step", false, 1, false), ("persistent chains of drawn rows", true, 2, true)]
            {
                held(&format!("{of} in {precision:?}, {what}"), most, |group, device| {
                    let config = RbmTrainConfig {
                        batch: BATCH,
                        precision,
                        persistent,
                        binarize,
                        k,
                        learning_rate: 0.02.into(),
                        ..RbmTrainConfig::default()
                    };
                    let rbm = Rbm::init(rbm.clone(), Philox::new(1, 0), device)?;
                    let width = rbm.config().n_visible;
                    trained_on(RbmTrainer::new(&rbm, config, Philox::new(1, 1))?.in_group(group)?, width)
                })?;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_learn_the_latents_of_one() -> Result<()> {
    for kind in [Kind::TopK { k: 4 }, Kind::BatchTopK { k: 4 }, Kind::JumpRelu, Kind::matryoshka(4, 256)] {
        held(&format!("{kind:?}"), 2e-3, |group, device| {
            let model = Sae::init(SaeConfig::new(WIDTH, 256, kind.clone()), Philox::new(1, 0), device)?;
            let config = SaeTrainConfig { batch: BATCH, dead_rows: 300, ..SaeTrainConfig::default() };
            trained(SaeTrainer::new(&model, config, Philox::new(1, 1))?.in_group(group)?)
        })?;
    }
    for kind in [Kind::TopK { k: 4 }, Kind::BatchTopK { k: 4 }, Kind::Relu] {
        held(&format!("{kind:?}, latents by rank"), 2e-3, |group, device| {
            let config = SaeTrainConfig {
                batch: BATCH,
                dead_rows: 300,
                clip: Some(1.),
                division: Division::Latents,
                ..SaeTrainConfig::default()
            };
            let (model, places) =
                (SaeConfig::new(WIDTH, 250, kind.clone()), [0, 1].map(|i| Philox::new(1, i)));
            trained(SaeTrainer::init(model, config, places, group, device)?)
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_anneal_and_encode_as_one() -> Result<()> {
    held("annealing", 1e-9, |group, device| {
        let rbm = Rbm::init(RbmConfig::new(WIDTH, 40), Philox::new(1, 0), device)?;
        let config = AisConfig { n_chains: 503, stages: AisConfig::stages(100), ..AisConfig::default() };
        let ais = Ais::new(&rbm, &Tensor::zeros(WIDTH, DType::F32, device)?, config)?.in_group(group)?;
        let run = ais.forward(Philox::new(2, 0), &mut |_, _| {})?;
        Ok(vec![Tensor::new(&[run.log_z.value], &Device::Cpu)?, run.states.to_device(&Device::Cpu)?])
    })?;
    held("codes", 1e-5, |group, device| {
        let dictionary = Dictionary::from_tensor(DictionaryConfig::new(70, WIDTH, 4), atoms(device)?)?;
        // One rank has no row of the last.
        let of = |n: usize| {
            let (rows, share) = (uniform((n, WIDTH), device, Philox::new(2, 0))?, Share::new(group, n));
            let codes = share.gathered_codes(&dictionary.encode(&share.own(&rows)?)?)?;
            codes.to_dense()?.to_device(&Device::Cpu)
        };
        Ok(vec![of(1003)?, of(3)?])
    })
}
