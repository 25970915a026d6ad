//! f32 weights in two halves of 16 bits: nothing is lost, and training on them resumes bit for bit.
#![allow(clippy::expect_used)]
use crate::resume::resumed;
use candle::{DType, Device, Result, Tensor};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{MinibatchTrainer, Model, Trainer};
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

#[test]
fn large_bf16_networks_have_f32_masters_and_resume_bit_for_bit() -> Result<()> {
    const STEPS: usize = 6;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for device in devices()? {
        // As large as masters in halves need; on the CPU a small one.
        let (visible, hidden) = if device.is_cuda() { (1032, 4104) } else { (24, 20) };
        let grid = PatchGrid { planes: 1, height: 24, width: 24, depth: 64, window: 3, stride: 1 };
        let dense = (RbmConfig::new(visible, hidden), 0.1);
        let patches =
            device.is_cuda().then(|| RbmConfig::patches(grid, 64)).transpose()?.map(|config| (config, 0.01));
        for (config, rate) in [Some(dense), patches].into_iter().flatten() {
            let training = RbmTrainConfig {
                batch: 64,
                precision: Precision::Bf16,
                learning_rate: rate.into(),
                ..RbmTrainConfig::default()
            };
            let rows = uniform((64, config.n_visible), &CPU, Philox::new(53, 0))?.to_device(&device)?;
            let rbm = Rbm::init(config, Philox::new(53, 1), &device)?;
            let new = || RbmTrainer::new(&rbm, training.clone(), Philox::new(53, 2));
            let run = |trainer: &mut RbmTrainer, from: usize, to: usize| {
                (from..to).try_for_each(|_| trainer.step(&rows, None))
            };
            let mut whole = new()?;
            assert_same_bits("weights at the start", whole.model()?.weight(), rbm.weight())?;
            run(&mut whole, 0, STEPS)?;
            let whole = whole.model()?;
            let short = whole.weight().to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
            let lost = (whole.weight() - short)?.abs()?.sum_all()?.to_scalar::<f32>()?;
            assert!(lost > 0., "weights are bf16 numbers on {:?}", device.location());
            let resumed = resumed(&path, new()?, run, 2, STEPS)?.model()?;
            for ((part, got), (_, want)) in resumed.tensors().into_iter().zip(whole.tensors()) {
                assert_same_bits(&format!("{part} on {:?}", device.location()), &got, &want)?;
            }
        }
    }
    Ok(())
}
