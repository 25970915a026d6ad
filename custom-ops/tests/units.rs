//! Units have the means and distributions of their formulas, and write where they are told.
use candle::cpu::erf::erfc_f64;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, bernoulli, math, normal};
use chandlery_ops::layers::{Unit, UnitPlanes, unit_mean, unit_sample, units_};

const PLACE: Philox = Philox { seed: 11, stream: 22, offset: 33 };
const UNITS: [Unit; 3] = [Unit::Bernoulli, Unit::Gaussian, Unit::Rectified];
const BOTH: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: 1., sample: Some(1), low: None };

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?.iter().map(|x| x.to_bits()).collect())
}

fn planes(n: usize, rows: usize, n_units: usize) -> Result<Tensor> {
    Tensor::full(7f32, (n, rows, n_units), &Cpu)
}

/// The formulas of the module on one number, with one uniform and one normal draw.
fn by_hand(unit: Unit, x: f32, std: f32, u: f32, z: f32) -> (f32, f32) {
    match unit {
        Unit::Bernoulli => (math::sigmoid(x), f32::from(u8::from(u < math::sigmoid(x)))),
        Unit::Gaussian => (x, x + std * z),
        Unit::Rectified => (x.max(0.), (x + math::sigmoid(x).sqrt() * z).max(0.)),
    }
}

#[test]
fn units_follow_their_formulas_bit_by_bit() -> Result<()> {
    // Rows that end within a block of Philox, a tile of 128 that holds many rows, and more than one
    // task of 65,536.
    for (rows, n_units) in [(1, 1), (3, 1), (5, 3), (2, 127), (7, 33), (129, 5), (131, 517), (3, 65_537)] {
        let pre = (normal((rows, n_units), &Cpu, Philox::new(1, 0))? * 3.)?;
        let bias = normal(n_units, &Cpu, Philox::new(1, 1))?;
        let std = normal(n_units, &Cpu, Philox::new(1, 2))?.abs()?;
        let (x, s) = (pre.broadcast_add(&bias)?.flatten_all()?.to_vec1::<f32>()?, std.to_vec1::<f32>()?);
        for unit in UNITS {
            let out = planes(2, rows, n_units)?;
            let of_gaussian = (unit == Unit::Gaussian).then_some(&std);
            units_(&out, &pre, &bias, unit, BOTH, Draws::At(PLACE), of_gaussian)?;
            let (mean, sample) = (out.get(0)?.flatten_all()?, out.get(1)?.flatten_all()?);
            let (mean, sample) = (mean.to_vec1::<f32>()?, sample.to_vec1::<f32>()?);
            for e in 0..rows * n_units {
                let block = PLACE.block(e as u64 / 4);
                let word = |i: usize| block[i];
                let z = math::normal_of(word(e % 4 / 2 * 2), word(e % 4 / 2 * 2 + 1));
                let z = if e % 2 == 0 { z.0 } else { z.1 };
                let want = by_hand(unit, x[e], s[e % n_units], math::uniform_of(word(e % 4)), z);
                assert_eq!(
                    (mean[e], sample[e]),
                    want,
                    "{unit:?} [{rows}, {n_units}], element {e}, x = {}",
                    x[e]
                );
            }
        }
    }
    Ok(())
}

/// The mean and the variance of many samples of one unit with pre-activation `x`.
fn moments(unit: Unit, x: f32, n: usize) -> Result<(f64, f64)> {
    let pre = Tensor::zeros((n / 8, 8), DType::F32, &Cpu)?;
    let sample = unit_sample(&pre, &Tensor::full(x, 8, &Cpu)?, unit, PLACE)?;
    let sample = sample.flatten_all()?.to_dtype(DType::F64)?;
    let mean = sample.mean_all()?.to_scalar::<f64>()?;
    let variance = (sample - mean)?.sqr()?.mean_all()?.to_scalar::<f64>()?;
    Ok((mean, variance))
}

#[test]
fn samples_have_the_mean_and_variance_of_their_distribution() -> Result<()> {
    const N: usize = 1 << 20;
    /// Five standard errors of a sum of N draws; the seed is fixed.
    const SIGMAS: f64 = 5.;
    for x in [-1f32, 0., 0.3, 2., 6.] {
        let p = 1. / (1. + (-f64::from(x)).exp());
        let (mean, _) = moments(Unit::Bernoulli, x, N)?;
        let error = (p * (1. - p) / N as f64).sqrt();
        assert!((mean - p).abs() <= SIGMAS * error, "Bernoulli at {x}: {mean} against {p}");

        let (mean, variance) = moments(Unit::Gaussian, x, N)?;
        assert!((mean - f64::from(x)).abs() <= SIGMAS / (N as f64).sqrt(), "Gaussian at {x}: mean {mean}");
        assert!(
            (variance - 1.).abs() <= SIGMAS * (2. / N as f64).sqrt(),
            "Gaussian at {x}: variance {variance}"
        );

        // A normal draw of mean x and variance p cut at 0 has mean x Φ(x/s) + s φ(x/s), s² = p.
        let (mean, variance) = moments(Unit::Rectified, x, N)?;
        let (x, s) = (f64::from(x), p.sqrt());
        let density = (-(x / s).powi(2) / 2.).exp() / std::f64::consts::TAU.sqrt();
        let below = 0.5 * erfc_f64(-x / s / std::f64::consts::SQRT_2);
        let want = x * below + s * density;
        assert!(
            (mean - want).abs() <= SIGMAS * (variance / N as f64).sqrt(),
            "Rectified at {x}: {mean}, want {want}"
        );
    }
    Ok(())
}

#[test]
fn a_bernoulli_sample_is_a_draw_from_the_mean() -> Result<()> {
    let pre = normal((37, 21), &Cpu, Philox::new(3, 3))?;
    let bias = Tensor::zeros(21, DType::F32, &Cpu)?;
    let sample = unit_sample(&pre, &bias, Unit::Bernoulli, PLACE)?;
    let same = bernoulli(&unit_mean(&pre, &bias, Unit::Bernoulli)?, PLACE)?;
    assert_eq!(bits(&sample)?, bits(&same)?);
    Ok(())
}

#[test]
fn without_draws_a_unit_takes_its_most_probable_state() -> Result<()> {
    let pre = Tensor::new(&[[-1f32, 0., 1.]], &Cpu)?;
    let bias = Tensor::zeros(3, DType::F32, &Cpu)?;
    for (unit, want) in
        [(Unit::Bernoulli, [0f32, 0., 1.]), (Unit::Gaussian, [-1., 0., 1.]), (Unit::Rectified, [0., 0., 1.])]
    {
        let out = planes(2, 1, 3)?;
        units_(&out, &pre, &bias, unit, BOTH, Draws::Mode, None)?;
        assert_eq!(out.get(1)?.to_vec2::<f32>()?, [want], "{unit:?}");
    }
    Ok(())
}

#[test]
fn the_scale_is_on_the_stored_mean_only() -> Result<()> {
    let pre = normal((5, 6), &Cpu, Philox::new(3, 3))?;
    let bias = Tensor::zeros(6, DType::F32, &Cpu)?;
    for unit in UNITS {
        let (plain, scaled) = (planes(2, 5, 6)?, planes(2, 5, 6)?);
        units_(&plain, &pre, &bias, unit, BOTH, Draws::At(PLACE), None)?;
        units_(&scaled, &pre, &bias, unit, UnitPlanes { mean_scale: -1., ..BOTH }, Draws::At(PLACE), None)?;
        assert_eq!(bits(&plain.get(0)?.neg()?)?, bits(&scaled.get(0)?)?, "{unit:?} mean");
        assert_eq!(bits(&plain.get(1)?)?, bits(&scaled.get(1)?)?, "{unit:?} sample");
    }
    Ok(())
}

#[test]
fn planes_that_are_not_named_keep_their_bits() -> Result<()> {
    let pre = normal((6, 5), &Cpu, Philox::new(3, 3))?;
    let bias = normal(5, &Cpu, Philox::new(3, 4))?;
    let whole = planes(2, 6, 5)?;
    units_(&whole, &pre, &bias, Unit::Bernoulli, BOTH, Draws::At(PLACE), None)?;
    // Three of the planes of a larger buffer, and rows 2..8 of 10 in each.
    let buffer = planes(5, 10, 5)?;
    let part = buffer.narrow(0, 1, 3)?.narrow(1, 2, 6)?;
    let out = UnitPlanes { mean: Some(2), sample: Some(0), ..BOTH };
    units_(&part, &pre, &bias, Unit::Bernoulli, out, Draws::At(PLACE), None)?;
    assert_eq!(bits(&buffer.get(3)?.narrow(0, 2, 6)?)?, bits(&whole.get(0)?)?, "mean");
    assert_eq!(bits(&buffer.get(1)?.narrow(0, 2, 6)?)?, bits(&whole.get(1)?)?, "sample");
    let untouched = buffer.eq(7f32)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
    assert_eq!(untouched as usize, 5 * 10 * 5 - 2 * 6 * 5);
    // And from a part of a larger input.
    let inputs = Tensor::cat(&[&pre, &pre], 0)?;
    let biases = Tensor::cat(&[&bias, &bias], 0)?;
    let again = planes(2, 6, 5)?;
    let (pre, bias) = (inputs.narrow(0, 6, 6)?, biases.narrow(0, 5, 5)?);
    units_(&again, &pre, &bias, Unit::Bernoulli, BOTH, Draws::At(PLACE), None)?;
    assert_eq!(bits(&again)?, bits(&whole)?);
    Ok(())
}

#[test]
fn one_plane_alone_is_the_same_as_with_the_other() -> Result<()> {
    let (rows, n_units) = (140, 517);
    let pre = normal((rows, n_units), &Cpu, Philox::new(3, 3))?;
    let bias = normal(n_units, &Cpu, Philox::new(3, 4))?;
    for unit in UNITS {
        let out = planes(2, rows, n_units)?;
        units_(&out, &pre, &bias, unit, BOTH, Draws::At(PLACE), None)?;
        assert_eq!(bits(&unit_mean(&pre, &bias, unit)?)?, bits(&out.get(0)?)?, "{unit:?} mean");
        assert_eq!(bits(&unit_sample(&pre, &bias, unit, PLACE)?)?, bits(&out.get(1)?)?, "{unit:?} sample");
    }
    Ok(())
}

#[test]
fn a_counter_moves_the_draws_as_the_offset_does() -> Result<()> {
    let pre = normal((9, 7), &Cpu, Philox::new(3, 3))?;
    let bias = Tensor::zeros(7, DType::F32, &Cpu)?;
    for (offset, counter) in [(33u64, 0i64), (30, 3), (40, -7), (u64::MAX, 34)] {
        let counter = Tensor::new(&[counter], &Cpu)?;
        let draws = Draws::Counter { philox: Philox { offset, ..PLACE }, counter: &counter };
        for unit in UNITS {
            let (at, moved) = (planes(2, 9, 7)?, planes(2, 9, 7)?);
            units_(&at, &pre, &bias, unit, BOTH, Draws::At(PLACE), None)?;
            units_(&moved, &pre, &bias, unit, BOTH, draws, None)?;
            assert_eq!(bits(&at)?, bits(&moved)?, "{unit:?} from {offset}");
        }
    }
    Ok(())
}

#[test]
fn bf16_planes_hold_the_rounded_mean_and_the_same_sample() -> Result<()> {
    let pre = normal((9, 13), &Cpu, Philox::new(3, 3))?;
    let bias = normal(13, &Cpu, Philox::new(3, 4))?;
    for unit in UNITS {
        let (wide, narrow) = (planes(2, 9, 13)?, planes(2, 9, 13)?.to_dtype(DType::BF16)?);
        units_(&wide, &pre, &bias, unit, BOTH, Draws::At(PLACE), None)?;
        units_(&narrow, &pre, &bias, unit, BOTH, Draws::At(PLACE), None)?;
        // candle rounds to nearest even too. A Bernoulli sample is decided before the mean is
        // rounded.
        assert_eq!(bits(&narrow)?, bits(&wide.to_dtype(DType::BF16)?)?, "{unit:?}");
    }
    Ok(())
}

#[test]
fn a_nan_gives_a_nan_mean_and_never_a_one() -> Result<()> {
    let pre = Tensor::full(f32::NAN, (50, 3), &Cpu)?;
    let bias = Tensor::zeros(3, DType::F32, &Cpu)?;
    for unit in UNITS {
        for draws in [Draws::At(PLACE), Draws::Mode] {
            let out = planes(2, 50, 3)?;
            units_(&out, &pre, &bias, unit, BOTH, draws, None)?;
            let out = out.flatten(1, 2)?.to_vec2::<f32>()?;
            assert!(out[0].iter().all(|x| x.is_nan()), "{unit:?} mean");
            match unit {
                Unit::Bernoulli => assert!(out[1].iter().all(|&x| x == 0.), "{unit:?} sample"),
                _ => assert!(out[1].iter().all(|x| x.is_nan()), "{unit:?} sample"),
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_happens_without_rows() -> Result<()> {
    let (pre, bias) = (Tensor::zeros((0, 3), DType::F32, &Cpu)?, Tensor::zeros(3, DType::F32, &Cpu)?);
    assert_eq!(unit_mean(&pre, &bias, Unit::Bernoulli)?.dims(), [0, 3]);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Cpu);
    let (out, pre, bias) = (zeros(&[2, 4, 3])?, zeros(&[4, 3])?, zeros(&[3])?);
    let (unit, draws) = (Unit::Bernoulli, Draws::Mode);
    let std_inside = out.get(0)?.get(0)?;
    let counter = zeros(&[1])?;
    let counted = Draws::Counter { philox: PLACE, counter: &counter };
    let planes = |mean, sample| UnitPlanes { mean, sample, ..BOTH };
    let cases = [
        (
            units_(&pre, &pre, &bias, unit, BOTH, draws, None),
            "units_: planes must be [n_planes, rows, n_units], got shape [4, 3]",
        ),
        (
            units_(&out.to_dtype(DType::F64)?, &pre, &bias, unit, BOTH, draws, None),
            "units_: planes must be f32, bf16 or f16, got F64",
        ),
        (
            units_(&out.transpose(1, 2)?, &pre, &bias, unit, BOTH, draws, None),
            "units_: each of planes must be contiguous, got shape [2, 3, 4] with strides [12, 1, 3]",
        ),
        (
            units_(&out, &zeros(&[3, 4])?, &bias, unit, BOTH, draws, None),
            "units_: pre must have shape [4, 3] to go with planes [2, 4, 3], got [3, 4]",
        ),
        (
            units_(&out, &zeros(&[3, 4])?.t()?, &bias, unit, BOTH, draws, None),
            "units_: pre must be contiguous, got shape [4, 3] with strides [1, 4]; call .contiguous() first",
        ),
        (
            units_(&out, &pre, &zeros(&[4])?, unit, BOTH, draws, None),
            "units_: bias must have shape [3] to go with planes [2, 4, 3], got [4]",
        ),
        (
            units_(&out, &pre, &bias.to_dtype(DType::BF16)?, unit, BOTH, draws, None),
            "units_: bias must be f32, got BF16",
        ),
        (
            units_(&out, &pre, &bias, unit, planes(Some(2), None), draws, None),
            "units_: mean must name one of 2 planes, got 2",
        ),
        (
            units_(&out, &pre, &bias, unit, planes(None, Some(5)), draws, None),
            "units_: sample must name one of 2 planes, got 5",
        ),
        (
            units_(&out, &pre, &bias, unit, planes(Some(1), Some(1)), draws, None),
            "units_: mean and sample must go to different planes, got 1 for both",
        ),
        (
            units_(&out, &pre, &bias, unit, planes(None, None), draws, None),
            "units_: out must name a plane for the mean or the sample, got none",
        ),
        (
            units_(&out, &pre, &bias, unit, BOTH, draws, Some(&bias)),
            "units_: std is only for Gaussian units, got it for Bernoulli units",
        ),
        (
            units_(&out, &pre, &bias, Unit::Gaussian, BOTH, draws, Some(&std_inside)),
            "units_: std must not share the storage of planes, which is written; copy one of them first",
        ),
        (
            units_(&out, &pre, &bias, unit, BOTH, counted, None),
            "units_: counter must be one i64, got F32 of shape [1]",
        ),
    ];
    for (result, want) in cases {
        let message = result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(message.as_deref(), Some(want));
    }
    // Input and output in one storage is candle's to refuse.
    assert!(units_(&out, &out.get(0)?, &bias, unit, BOTH, draws, None).is_err());
    Ok(())
}
