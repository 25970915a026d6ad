//! Scaling, scalars, counters and recorded steps.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{scale_into_, scale_into_reference, split_into_};
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

/// Lines of every alignment and length, from rows that begin on any, and what lies between them.
#[test]
fn scaling_into_columns_of_a_wider_matrix_leaves_the_others_alone() -> Result<()> {
    const LINES: [(usize, usize, usize, usize); 8] = [
        (1, 0, 5, 5),
        (3, 0, 785, 792),
        (40, 0, 784, 792),
        (7, 1, 3, 8),
        (300, 3, 501, 512),
        (33, 4, 64, 72),
        (5, 0, 1, 2),
        (4, 2, 4, 6),
    ];
    const SCALE: f32 = 1. / 255.;
    for device in devices()? {
        for (n, first, len, line) in LINES {
            let numbers = (normal((n + 1, len), &device, Philox::new(41, 0))? * 40.)?;
            let bytes = numbers.abs()?.to_dtype(DType::U8)?;
            // A row further on, rows of an odd length begin on no multiple of four.
            for x in [&numbers, &bytes].map(|all| all.narrow(0, 1, n)) {
                let x = x?;
                let scaled = scale_into_reference(&x, SCALE)?;
                let of = |dtype| {
                    format!(
                        "{n} {first} {len} {line} {:?} to {dtype:?} on {:?}",
                        x.dtype(),
                        device.location()
                    )
                };
                let check = |what: &str, out: &Tensor, want: &Tensor| {
                    let sevens = Tensor::full(7f32, (n, line), &device)?.to_dtype(out.dtype())?;
                    assert_same_bits(what, &out.narrow(1, first, len)?, want)?;
                    let others = [(0, first), (first + len, line - first - len)];
                    others.into_iter().filter(|&(_, n)| n > 0).try_for_each(|(at, n)| {
                        assert_same_bits(what, &out.narrow(1, at, n)?, &sevens.narrow(1, at, n)?)
                    })
                };
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let out = Tensor::full(7f32, (n, line), &device)?.to_dtype(dtype)?;
                    scale_into_(&out.narrow(1, first, len)?, &x, SCALE)?;
                    check(&of(dtype), &out, &scaled.to_dtype(dtype)?)?;
                }
                let parts = Tensor::full(7f32, (2, n, line), &device)?.to_dtype(DType::F16)?;
                split_into_(&parts.narrow(2, first, len)?, &x, SCALE)?;
                let upper = scaled.to_dtype(DType::F16)?;
                let lower = (scaled - upper.to_dtype(DType::F32)?)?.to_dtype(DType::F16)?;
                check(&of(DType::F16), &parts.get(0)?, &upper)?;
                check(&of(DType::F16), &parts.get(1)?, &lower)?;
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
