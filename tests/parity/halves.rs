//! f32 weights in two halves of 16 bits: nothing is lost, and training on them resumes bit for bit.
#![allow(clippy::expect_used)]
use crate::resume::resumed;
use candle::{DType, Device, Result, Tensor};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{MinibatchTrainer, Model};
use chandlery_ops::arrays::{halves_into_, joined_into_};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

#[test]
fn halves_give_numbers_back_on_every_device() -> Result<()> {
    let odd = [0., -0., 1e-40, -1e-45, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, 1.003_906_3];
    let x = Tensor::cat(&[&Tensor::new(&odd, &CPU)?, &normal(100_003, &CPU, Philox::new(35, 0))?], 0)?;
    for device in devices()? {
        let x = x.to_device(&device)?;
        let zeros = |dtype| Tensor::zeros(x.shape(), dtype, &device);
        let (upper, lower, back) = (zeros(DType::BF16)?, zeros(DType::I16)?, zeros(DType::F32)?);
        halves_into_(&upper, &lower, &x)?;
        joined_into_(&back, &upper, &lower)?;
        let what = format!("halves on {:?}", device.location());
        assert_same_bits(&what, &back, &x)?;
        assert_close(
            &what,
            &upper.narrow(0, 9, 100_003)?.to_dtype(DType::F32)?,
            &x.narrow(0, 9, 100_003)?,
            2f32.powi(-8),
            0.,
        )?;
        let wrong = halves_into_(&upper, &back, &x).expect_err("accepted").to_string();
        assert!(wrong.starts_with("halves_into_: lower must be"), "{wrong}");
    }
    Ok(())
}

/// Asserts that a trainer that begins with `start` has its weights to the bit and moves f32 ones,
/// and that one that stops goes on with the same bits. Some minibatches are not full.
fn has_f32_masters_and_resumes<T>(
    what: &str,
    start: &T::Model,
    new: impl Fn() -> Result<T>,
    rows: &Tensor,
) -> Result<()>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    const STEPS: usize = 6;
    let (folder, what) = (tempfile::tempdir()?, format!("{what} on {:?}", rows.device().location()));
    let batch = rows.dim(0)?;
    let run = |trainer: &mut T, from: usize, to: usize| {
        let n = |step: usize| if step % 4 == 1 { batch - 3 } else { batch };
        (from..to).try_for_each(|step| trainer.step(&rows.narrow(0, 0, n(step))?, None))
    };
    let mut whole = new()?;
    assert_same_bits(
        &format!("{what}: weights at the start"),
        whole.model()?.parameter(),
        start.parameter(),
    )?;
    run(&mut whole, 0, STEPS)?;
    let whole = whole.model()?;
    let short = whole.parameter().to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
    let lost = (whole.parameter() - short)?.abs()?.sum_all()?.to_scalar::<f32>()?;
    assert!(lost > 0., "{what}: weights are bf16 numbers");
    let resumed = resumed(&folder.path().join("state.safetensors"), new()?, run, 2, STEPS)?.model()?;
    for ((part, got), (_, want)) in resumed.tensors().into_iter().zip(whole.tensors()) {
        assert_same_bits(&format!("{what}: {part}"), &got, &want)?;
    }
    Ok(())
}

#[test]
fn large_bf16_networks_have_f32_masters_and_resume_bit_for_bit() -> Result<()> {
    let (batch, precision, philox) = (64, Precision::Bf16, Philox::new(53, 2));
    for device in devices()? {
        let rows = |n: usize| uniform((batch, n), &CPU, Philox::new(53, 0))?.to_device(&device);
        // As large as masters in halves need; on the CPU a small one.
        let (visible, hidden) = if device.is_cuda() { (1032, 4104) } else { (24, 20) };
        let grid = PatchGrid { planes: 1, height: 24, width: 24, depth: 64, window: 3, stride: 1 };
        let dense = (RbmConfig::new(visible, hidden), 0.1);
        let patches =
            device.is_cuda().then(|| RbmConfig::patches(grid, 64)).transpose()?.map(|config| (config, 0.01));
        for (config, rate) in [Some(dense), patches].into_iter().flatten() {
            let learning_rate = rate.into();
            let training = RbmTrainConfig { batch, precision, learning_rate, ..RbmTrainConfig::default() };
            let rbm = Rbm::init(config, Philox::new(53, 1), &device)?;
            let new = || RbmTrainer::new(&rbm, training.clone(), philox);
            has_f32_masters_and_resumes("RBM", &rbm, new, &rows(rbm.config().n_visible)?)?;
        }
        // With units that stay at 0 beside its own, and without.
        for less in [0, 3] {
            let config = DaeConfig::new(visible - less, hidden - less);
            let momentum = 0.5.into();
            let training = DaeTrainConfig { batch, precision, momentum, ..DaeTrainConfig::default() };
            let dae = Dae::init(config, Philox::new(53, 1), &device)?;
            let new = || DaeTrainer::new(&dae, training.clone(), philox);
            let what = format!("denoising autoencoder of {hidden} - {less} units");
            has_f32_masters_and_resumes(&what, &dae, new, &rows(visible - less)?)?;
        }
    }
    Ok(())
}
