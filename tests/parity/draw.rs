//! Draws: the same bits on every device. What they are, and how they are distributed, is tested on
//! the CPU in `custom-ops/tests`.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, advance_, bernoulli, bernoulli_into_, normal, normal_, uniform, uniform_};
use chandlery_tests::{assert_same_bits, devices};

const PLACE: Philox = Philox { seed: 0x1234_5678_9abc_def0, stream: u64::MAX, offset: u64::MAX - 2 };

/// Around a block of Philox, a warp, a thread block, and beyond a grid of 4096 blocks of 256
/// threads of 4 elements.
const SIZES: [usize; 16] =
    [1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 100_003, 4096 * 256 * 4 + 4097];

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn draws_are_the_same_bits_on_every_device_at_any_size() -> Result<()> {
    for device in devices()? {
        for n in SIZES {
            let at = |name| format!("{name} n={n} on {:?}", device.location());
            let u = uniform(n, &Device::Cpu, PLACE)?;
            assert_same_bits(&at("uniform"), &uniform(n, &device, PLACE)?, &u)?;
            assert_same_bits(&at("normal"), &normal(n, &device, PLACE)?, &normal(n, &Device::Cpu, PLACE)?)?;
            let sample = bernoulli(&u, PLACE.advanced(n))?;
            assert_same_bits(
                &at("bernoulli"),
                &bernoulli(&u.to_device(&device)?, PLACE.advanced(n))?,
                &sample,
            )?;
            for dtype in [DType::F32, DType::BF16] {
                let out = Tensor::ones(n, dtype, &device)?;
                bernoulli_into_(&out, &u.to_device(&device)?, Draws::At(PLACE.advanced(n)))?;
                assert_same_bits(&at("bernoulli_into_"), &out.to_dtype(DType::F32)?, &sample)?;
            }
        }
    }
    Ok(())
}

#[test]
fn draws_at_any_address_stay_inside_and_do_not_move() -> Result<()> {
    // Starts at every place within 16 bytes: vector stores where they are legal, single ones where
    // not.
    for device in devices()? {
        for start in 0..5 {
            for n in [1, 7, 8, 64, 501] {
                let buffer = Tensor::full(9f32, n + 10, &device)?;
                normal_(&buffer.narrow(0, start, n)?, Draws::At(PLACE))?;
                let mut want = vec![9f32; n + 10];
                want[start..start + n].copy_from_slice(&normal(n, &Device::Cpu, PLACE)?.to_vec1::<f32>()?);
                let want = Tensor::new(want, &Device::Cpu)?;
                assert_same_bits(&format!("{n} from {start} on {:?}", device.location()), &buffer, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_counter_on_the_device_moves_the_draws() -> Result<()> {
    for device in devices()? {
        let counter = Tensor::new(&[-3i64], &device)?;
        let (got, want) = (Tensor::zeros(1001, candle::DType::F32, &device)?, PLACE);
        for step in 0..4u64 {
            let at = Philox { offset: want.offset.wrapping_sub(3).wrapping_add(251 * step), ..want };
            uniform_(&got, Draws::Counter { philox: want, counter: &counter })?;
            let what = format!("step {step} on {:?}", device.location());
            assert_same_bits(&what, &got, &uniform(1001, &device, at)?)?;
            advance_(&counter, 251)?;
        }
    }
    Ok(())
}

#[cfg(feature = "cuda")]
#[test]
fn a_counter_elsewhere_is_refused() -> Result<()> {
    for device in devices()?.iter().filter(|device| !device.is_cpu()) {
        let counter = Tensor::new(&[0i64], &Device::Cpu)?;
        let out = Tensor::zeros(4, candle::DType::F32, device)?;
        let refused = uniform_(&out, Draws::Counter { philox: PLACE, counter: &counter });
        let message = refused.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        let want = "uniform_: counter must be on Cuda { gpu_id: 0 }, the device of the result, got Cpu";
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}
