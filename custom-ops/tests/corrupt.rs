//! Corrupted rows have the noise that they are named after, and each value's noise depends on its
//! place only.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, advance_, uniform};
use chandlery_ops::layers::{Corruption, corrupt, corrupt_, corrupt_minibatches_, corrupt_reference};

const CPU: Device = Device::Cpu;
const PLACE: Philox = Philox { seed: 31, stream: 6, offset: u64::MAX - 3 };
const LAWS: [Corruption; 5] = [
    Corruption::None,
    Corruption::SaltAndPepper(0.3),
    Corruption::Masking(0.25),
    Corruption::Gaussian(0.5),
    Corruption::Flip(0.3),
];

fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.flatten_all()?.to_vec1()
}

#[test]
fn values_are_those_of_the_reference_and_of_their_elements() -> Result<()> {
    // Around a block of Philox, a tile of 128 and a task of 128 tiles.
    for n in [1, 2, 3, 4, 5, 127, 128, 129, 16_383, 16_384, 16_385, 40_003] {
        let rows = uniform(n, &CPU, PLACE.advanced(n))?;
        let x = values(&rows)?;
        for law in LAWS {
            let got = values(&corrupt(&rows, law, PLACE)?)?;
            assert_eq!(got, values(&corrupt_reference(&rows, law, PLACE)?)?, "{law}, {n}");
            for e in 0..n {
                assert_eq!(got[e], law.of_element(x[e], PLACE, e as u64), "{law}, element {e} of {n}");
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_corrupted_alone_are_those_of_the_whole() -> Result<()> {
    // Widths that are no multiple of a Philox block, so that rows begin within one.
    for (rows, width) in [(7, 5), (9, 31), (5, 130), (40, 785)] {
        let x = uniform((rows, width), &CPU, PLACE.advanced(1))?;
        for law in LAWS {
            let want = corrupt(&x, law, PLACE)?;
            for parts in [1, 2, 3] {
                let out = Tensor::full(9f32, (rows, width), &CPU)?;
                let height = rows.div_ceil(parts);
                for from in (0..rows).step_by(height) {
                    let n = height.min(rows - from);
                    let (to, x) = (out.narrow(0, from, n)?, x.narrow(0, from, n)?);
                    corrupt_(&to, &x, law, Draws::At(PLACE), from * width)?;
                }
                assert_eq!(values(&out)?, values(&want)?, "{law}, {rows}×{width} in {parts} parts");
            }
        }
    }
    Ok(())
}

#[test]
fn columns_of_wider_rows_are_corrupted_as_by_themselves() -> Result<()> {
    for (n, rows, width, wide) in
        [(1, 7, 5, 8), (3, 4, 12, 16), (2, 40, 785, 792), (3, 1, 6, 9), (1, 1, 5, 8)]
    {
        let x = uniform((n, rows, wide), &CPU, PLACE.advanced(1))?;
        let own = x.narrow(2, 0, width)?;
        for law in LAWS {
            let want = corrupt(&own.contiguous()?, law, PLACE)?;
            let beside = Tensor::full(9f32, (n, rows, wide - width), &CPU)?;
            let want = Tensor::cat(&[&want, &beside], 2)?;
            let what = format!("{law}, {n}×{rows}×{width} of {wide}");
            let out = Tensor::full(9f32, (n, rows, wide), &CPU)?;
            corrupt_(&out.narrow(2, 0, width)?, &own, law, Draws::At(PLACE), 0)?;
            assert_eq!(values(&out)?, values(&want)?, "{what}");
            // Rows of 16 bits, beside other planes.
            for (parts, dtype) in [(1, DType::BF16), (1, DType::F16), (2, DType::F16)] {
                let all = Tensor::full(9f32, (parts, n, 2, rows, wide), &CPU)?.to_dtype(dtype)?;
                let out = all.narrow(2, 1, 1)?.squeeze(2)?;
                corrupt_(&out.narrow(3, 0, width)?, &own, law, Draws::At(PLACE), 0)?;
                let high = want.to_dtype(dtype)?;
                assert_eq!(values_of(&out.get(0)?)?, values_of(&high)?, "{what}, {dtype:?}");
                if parts == 2 {
                    let low = (&want - high.to_dtype(DType::F32)?)?.to_dtype(dtype)?.narrow(2, 0, width)?;
                    let got = out.get(1)?.narrow(2, 0, width)?;
                    assert_eq!(values_of(&got)?, values_of(&low)?, "{what}, the second part");
                }
                assert!(values_of(&all.narrow(2, 0, 1)?)?.iter().all(|x| *x == 9.), "{what}: another plane");
                let beside = values_of(&all.narrow(4, width, wide - width)?)?;
                assert!(beside.iter().all(|x| *x == 9.), "{what}: other columns");
            }
        }
    }
    Ok(())
}

#[test]
fn each_of_some_minibatches_has_the_draws_of_a_step_of_its_own() -> Result<()> {
    // Of 35 values, 9 blocks each, and of 32 in 8.
    for (n, rows, width, wide) in [(3, 7, 5, 5), (3, 7, 5, 8), (2, 4, 8, 8)] {
        let x = uniform((n, rows, wide), &CPU, PLACE.advanced(1))?;
        let own = x.narrow(2, 0, width)?;
        for law in LAWS {
            let out = Tensor::zeros((n, rows, wide), DType::F32, &CPU)?;
            corrupt_minibatches_(&out.narrow(2, 0, width)?, &own, law, Draws::At(PLACE))?;
            let mut place = PLACE;
            for i in 0..n {
                let want = corrupt(&own.get(i)?.contiguous()?, law, place)?;
                let got = out.get(i)?.narrow(1, 0, width)?;
                let what = format!("{law}, minibatch {i} of {n}×{rows}×{width} of {wide}");
                assert_eq!(values(&got)?, values(&want)?, "{what}");
                place = place.advanced(rows * width);
            }
        }
    }
    Ok(())
}

fn values_of(x: &Tensor) -> Result<Vec<f32>> {
    values(&x.to_dtype(DType::F32)?)
}

#[test]
fn a_counter_gives_each_step_the_draws_of_its_number() -> Result<()> {
    let x = uniform((3, 7), &CPU, PLACE)?;
    let (out, counter) = (x.zeros_like()?, Tensor::new(&[0i64], &CPU)?);
    let start = Philox::new(8, 1);
    for step in 0..4u64 {
        corrupt_(&out, &x, LAWS[1], Draws::Counter { philox: start, counter: &counter }, 0)?;
        // 21 values use 6 blocks.
        let want = corrupt(&x, LAWS[1], Philox { offset: 6 * step, ..start })?;
        assert_eq!(values(&out)?, values(&want)?, "step {step}");
        advance_(&counter, 6)?;
    }
    Ok(())
}

#[test]
fn shares_and_deviations_are_those_asked_for() -> Result<()> {
    const N: usize = 1 << 18;
    let half = Tensor::full(0.5f32, N, &CPU)?;
    // Four standard errors of a share.
    let near = |what: &str, got: usize, p: f64| {
        let off = (got as f64 / N as f64 - p).abs();
        assert!(off < 4. * (p * (1. - p) / N as f64).sqrt(), "{what}: {got} of {N}, want a share of {p}");
    };
    let count = |x: &[f32], of: f32| x.iter().filter(|x| **x == of).count();
    let noisy = values(&corrupt(&half, Corruption::SaltAndPepper(0.3), PLACE)?)?;
    near("pepper", count(&noisy, 0.), 0.15);
    near("salt", count(&noisy, 1.), 0.15);
    near("left", count(&noisy, 0.5), 0.7);
    let masked = values(&corrupt(&half, Corruption::Masking(0.25), PLACE)?)?;
    near("masked", count(&masked, 0.), 0.25);
    assert_eq!(count(&masked, 0.) + count(&masked, 0.5), N);
    // What is on is turned off, and the other way round: 0.25 becomes 0.75.
    let quarter = Tensor::full(0.25f32, N, &CPU)?;
    let flipped = values(&corrupt(&quarter, Corruption::Flip(0.3), PLACE)?)?;
    near("flipped", count(&flipped, 0.75), 0.3);
    assert_eq!(count(&flipped, 0.75) + count(&flipped, 0.25), N);
    let normal = values(&corrupt(&half, Corruption::Gaussian(2.), PLACE)?)?;
    let z: Vec<f64> = normal.iter().map(|x| (f64::from(*x) - 0.5) / 2.).collect();
    let moment = |k: i32| z.iter().map(|z| z.powi(k)).sum::<f64>() / N as f64;
    // The variances of a normal draw and of its square are 1 and 2.
    assert!(moment(1).abs() < 4. / (N as f64).sqrt(), "mean {}", moment(1));
    assert!((moment(2) - 1.).abs() < 4. * (2. / N as f64).sqrt(), "variance {}", moment(2));
    Ok(())
}

#[test]
fn a_share_of_nought_or_one_leaves_nothing_to_chance_and_nan_stays() -> Result<()> {
    let x = Tensor::new(&[0.25f32, f32::NAN, -3., 7.], &CPU)?.repeat(50)?;
    let bits =
        |x: &Tensor| Ok::<_, candle::Error>(values(x)?.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    for law in [
        Corruption::None,
        Corruption::SaltAndPepper(0.),
        Corruption::Masking(0.),
        Corruption::Flip(0.),
        Corruption::Gaussian(0.),
    ] {
        assert_eq!(bits(&corrupt(&x, law, PLACE)?)?, bits(&x)?, "{law}");
    }
    assert!(values(&corrupt(&x, Corruption::Masking(1.), PLACE)?)?.iter().all(|x| *x == 0.));
    let extremes = values(&corrupt(&x, Corruption::SaltAndPepper(1.), PLACE)?)?;
    assert!(extremes.iter().all(|x| *x == 0. || *x == 1.));
    let flipped = values(&corrupt(&x, Corruption::Flip(1.), PLACE)?)?;
    assert_eq!((flipped[0], flipped[2], flipped[3]), (0.75, 4., -6.));
    assert!(flipped[1].is_nan());
    let noisy = values(&corrupt(&x, Corruption::Gaussian(1.), PLACE)?)?;
    assert_eq!(noisy.iter().filter(|x| x.is_nan()).count(), 50);
    Ok(())
}

#[test]
fn the_text_of_a_corruption_is_read_back() {
    for (text, law) in [
        ("none", Corruption::None),
        ("salt-and-pepper:0.3", Corruption::SaltAndPepper(0.3)),
        ("masking:0.25", Corruption::Masking(0.25)),
        ("flip:0.3", Corruption::Flip(0.3)),
        ("gaussian:0.5", Corruption::Gaussian(0.5)),
    ] {
        assert_eq!(law.to_string(), text);
        assert_eq!(text.parse(), Ok(law));
    }
    let forms =
        "corruption must be none, salt-and-pepper:SHARE, masking:SHARE, flip:SHARE or gaussian:DEVIATION";
    for text in ["", "salt", "masking", "masking:", "masking:half", "flip", "none:1", "gauss:1"] {
        assert_eq!(text.parse::<Corruption>(), Err(format!("{forms}, got `{text}`")));
    }
    for (text, want) in [
        ("masking:1.5", "the share of replaced values must be in [0, 1], got 1.5"),
        ("flip:-0.1", "the share of replaced values must be in [0, 1], got -0.1"),
        ("salt-and-pepper:nan", "the share of replaced values must be in [0, 1], got NaN"),
        ("gaussian:-1", "the standard deviation must be a finite number of at least 0, got -1"),
        ("gaussian:inf", "the standard deviation must be a finite number of at least 0, got inf"),
    ] {
        assert_eq!(text.parse::<Corruption>(), Err(format!("Corruption: {want} in `{text}`")));
    }
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let first_line =
        |r: Result<()>| r.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
    let x = Tensor::zeros((2, 3), DType::F32, &CPU)?;
    let out = x.zeros_like()?;
    let at = Draws::At(PLACE);
    for (result, want) in [
        (corrupt(&x.to_dtype(DType::U8)?, LAWS[1], PLACE).map(drop), "corrupt: rows must be f32, got U8"),
        (
            corrupt(&x.t()?, LAWS[1], PLACE).map(drop),
            "corrupt: rows must be contiguous, got shape [3, 2] with strides [1, 3]; call .contiguous() first",
        ),
        (
            corrupt_(&out, &x.narrow(0, 0, 1)?, LAWS[1], at, 0),
            "corrupt_: rows must have shape [2, 3], got [1, 3]",
        ),
        (
            corrupt_(
                &out.narrow(1, 0, 2)?,
                &Tensor::zeros((2, 4), DType::F32, &CPU)?.narrow(1, 0, 2)?,
                LAWS[1],
                at,
                0,
            ),
            "corrupt_: out must be as many columns of as wide rows as rows, f32, f16 or bf16, got F32 [2, 2] with strides [3, 1] for [2, 2] with [4, 1]",
        ),
        (
            corrupt_(&out, &x, LAWS[1], Draws::Mode, 0),
            "corrupt_: draws must be At or Counter, got Mode, which draws nothing",
        ),
        (
            corrupt_(&out, &x, Corruption::Masking(2.), at, 0),
            "Corruption: the share of replaced values must be in [0, 1], got 2",
        ),
        (
            corrupt_(&x, &x, LAWS[1], at, 0),
            "corrupt_: rows must not share the storage of out, which is written; copy one of them first",
        ),
    ] {
        assert_eq!(first_line(result).as_deref(), Some(want));
    }
    Ok(())
}
