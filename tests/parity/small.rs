//! Scaling, scalars, counters and recorded steps.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{scale_into_, scale_into_reference};
use chandlery_ops::core::{Draws, Replay, advance_, normal, set_scalars_, uniform_};
use chandlery_tests::{assert_same_bits, devices};

#[test]
fn scaling_matches_its_reference_for_every_pair_of_types() -> Result<()> {
    for device in devices()? {
        for n in [1, 31, 256, 257, 70_001] {
            let numbers = (normal((n, 2), &device, Philox::new(40, 0))? * 40.)?;
            let bytes = numbers.abs()?.to_dtype(DType::U8)?;
            for x in [numbers, bytes] {
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    // One row into a buffer, to write at an offset.
                    let buffer = Tensor::full(7f32, (n + 2, 2), &device)?.to_dtype(dtype)?;
                    scale_into_(&buffer.narrow(0, 1, n)?, &x, 1. / 255.)?;
                    let want = scale_into_reference(&x, 1. / 255.)?.to_dtype(dtype)?;
                    let what =
                        format!("scale_into_ {n} {:?} to {dtype:?} on {:?}", x.dtype(), device.location());
                    assert_same_bits(&what, &buffer.narrow(0, 1, n)?, &want)?;
                    let edges = [buffer.get(0)?, buffer.get(n + 1)?];
                    for edge in edges {
                        assert_same_bits(
                            "the rows around",
                            &edge,
                            &Tensor::full(7f32, 2, &device)?.to_dtype(dtype)?,
                        )?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn scalars_and_counters_are_set_in_place() -> Result<()> {
    for device in devices()? {
        let scalars = Tensor::zeros(5, DType::F32, &device)?;
        set_scalars_(&scalars.narrow(0, 1, 3)?, &[1., -2.5, 3e-9])?;
        assert_eq!(scalars.to_vec1::<f32>()?, [0., 1., -2.5, 3e-9, 0.]);
        let counter = Tensor::new(&[5i64], &device)?;
        advance_(&counter, 1 << 40)?;
        advance_(&counter, -3)?;
        assert_eq!(counter.to_vec1::<i64>()?, [(1 << 40) + 2]);
    }
    Ok(())
}

#[test]
fn a_recorded_step_draws_anew_each_time_as_if_it_were_not_recorded() -> Result<()> {
    for device in devices()? {
        let run = |recorded: bool| -> Result<Vec<Vec<f32>>> {
            let out = Tensor::zeros(6, DType::F32, &device)?;
            let counter = Tensor::new(&[0i64], &device)?;
            let seen = out.clone();
            let step = move || {
                uniform_(&out, Draws::Counter { philox: Philox::new(41, 0), counter: &counter })?;
                advance_(&counter, 2)
            };
            let mut replay =
                if recorded { Replay::new(&device, step) } else { Replay::unrecorded(&device, step) };
            (0..6)
                .map(|_| {
                    replay.run()?;
                    seen.to_vec1::<f32>()
                })
                .collect()
        };
        let recorded = run(true)?;
        assert_eq!(recorded, run(false)?);
        for (i, draws) in recorded.iter().enumerate() {
            let want = chandlery_ops::core::uniform(
                6,
                &Device::Cpu,
                Philox { offset: 2 * i as u64, ..Philox::new(41, 0) },
            )?;
            assert_eq!(*draws, want.to_vec1::<f32>()?, "run {i} on {:?}", device.location());
        }
    }
    Ok(())
}
