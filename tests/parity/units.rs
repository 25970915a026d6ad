//! Fused units: equal to the reference, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{Draws, Philox, Unit, UnitPlanes, advance_, normal, units_, units_reference};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const UNITS: [Unit; 3] = [Unit::Bernoulli, Unit::Gaussian, Unit::Rectified];
const PLACE: Philox = Philox { seed: 11, stream: 22, offset: u64::MAX - 5 };
const BOTH: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: 1., sample: Some(1) };

/// Rows and units: tails of 1, 2 and 3 elements, sizes around a warp and a block, units that are and are not a multiple
/// of four, layers of a 784-500-500 network, and more elements than one grid has threads for (the last).
const SHAPES: [(usize, usize); 17] = [
    (1, 1),
    (1, 3),
    (2, 2),
    (5, 1),
    (1, 31),
    (1, 32),
    (3, 11),
    (2, 127),
    (4, 64),
    (7, 37),
    (33, 31),
    (31, 33),
    (100, 500),
    (101, 784),
    (20, 4099),
    (513, 2),
    (1025, 4100),
];

/// The sigmoid is within 2.5 ulp of the truth and so are candle's exp and division; 8 · 2⁻²³ covers both. Normal draws
/// are exact on both sides, so that only the last sum and the root of a sigmoid add to it.
const RTOL: f32 = 1e-6;
/// A sum of x and noise that nearly cancels keeps the error of its terms, which are below 32.
const ATOL: f32 = 32. * RTOL;

struct Case {
    pre: Tensor,
    bias: Tensor,
    std: Tensor,
}

impl Case {
    fn new(rows: usize, n_units: usize) -> Result<Self> {
        Ok(Self {
            pre: (normal((rows, n_units), &Device::Cpu, Philox::new(1, 0))? * 3.)?,
            bias: normal(n_units, &Device::Cpu, Philox::new(1, 1))?,
            std: normal(n_units, &Device::Cpu, Philox::new(1, 2))?.abs()?,
        })
    }

    fn to(&self, device: &Device) -> Result<Self> {
        Ok(Self {
            pre: self.pre.to_device(device)?,
            bias: self.bias.to_device(device)?,
            std: self.std.to_device(device)?,
        })
    }

    fn std_for(&self, unit: Unit) -> Option<&Tensor> {
        (unit == Unit::Gaussian).then_some(&self.std)
    }

    /// Planes of 7s, of which 0 is the mean and 1 the sample.
    fn planes(&self, unit: Unit, dtype: DType, draws: Draws) -> Result<Tensor> {
        let (rows, n_units) = self.pre.dims2()?;
        let planes = Tensor::full(7f32, (3, rows, n_units), self.pre.device())?.to_dtype(dtype)?;
        units_(&planes, &self.pre, &self.bias, unit, BOTH, draws, self.std_for(unit))?;
        Ok(planes)
    }
}

#[test]
fn units_match_the_reference_on_every_device() -> Result<()> {
    for device in devices()? {
        for (rows, n_units) in SHAPES {
            let case = Case::new(rows, n_units)?.to(&device)?;
            for unit in UNITS {
                for philox in [Some(PLACE), None] {
                    let what = |part: &str| {
                        format!("{part} of {unit:?} [{rows}, {n_units}] on {:?}", device.location())
                    };
                    let draws = philox.map_or(Draws::Mode, Draws::At);
                    let got = case.planes(unit, DType::F32, draws)?;
                    let (mean, sample) =
                        units_reference(&case.pre, &case.bias, unit, philox, case.std_for(unit))?;
                    assert_close(&what("mean"), &got.get(0)?, &mean, RTOL, 0.)?;
                    // A Bernoulli sample is 0 or 1: no tolerance lets a wrong one pass.
                    assert_close(&what("sample"), &got.get(1)?, &sample, RTOL, ATOL)?;
                    assert_same_bits(
                        &what("third plane"),
                        &got.get(2)?,
                        &sample.ones_like()?.affine(7., 0.)?,
                    )?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn units_are_the_same_bits_on_every_device() -> Result<()> {
    for device in devices()? {
        for (rows, n_units) in SHAPES {
            let case = Case::new(rows, n_units)?;
            let there = case.to(&device)?;
            for (unit, dtype) in UNITS.into_iter().flat_map(|unit| [(unit, DType::F32), (unit, DType::BF16)])
            {
                for draws in [Draws::At(PLACE), Draws::Mode] {
                    let what = format!("{unit:?} [{rows}, {n_units}] {dtype:?} on {:?}", device.location());
                    let got = there.planes(unit, dtype, draws)?;
                    assert_same_bits(&what, &got, &case.planes(unit, dtype, draws)?)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn units_write_any_part_of_a_buffer() -> Result<()> {
    // Planes, rows and inputs that start at any place within 16 bytes.
    for device in devices()? {
        for n_units in [1, 3, 4, 6] {
            let case = Case::new(12, n_units)?.to(&device)?;
            for (unit, start) in UNITS.into_iter().flat_map(|unit| (0..4).map(move |start| (unit, start))) {
                let buffer = Tensor::full(7f32, (4, 12, n_units), &device)?;
                let part = buffer.narrow(0, 1, 3)?.narrow(1, start, 8)?;
                let pre = case.pre.narrow(0, start, 8)?;
                let out = UnitPlanes { mean: Some(2), mean_scale: -1., sample: Some(0) };
                units_(&part, &pre, &case.bias, unit, out, Draws::At(PLACE), None)?;

                let whole = Tensor::full(7f32, (2, 8, n_units), &device)?;
                let scaled = UnitPlanes { mean_scale: -1., ..BOTH };
                units_(&whole, &pre.copy()?, &case.bias, unit, scaled, Draws::At(PLACE), None)?;
                let mut want = Tensor::full(7f32, (4, 12, n_units), &Device::Cpu)?.to_vec3::<f32>()?;
                let whole = whole.to_vec3::<f32>()?;
                want[3][start..start + 8].clone_from_slice(&whole[0]);
                want[1][start..start + 8].clone_from_slice(&whole[1]);
                let want = Tensor::new(want, &Device::Cpu)?;
                let what = format!("{unit:?} rows {start}.. of {n_units} units on {:?}", device.location());
                assert_same_bits(&what, &buffer, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn units_keep_nan_and_infinity_on_every_device() -> Result<()> {
    for device in devices()? {
        let pre = Tensor::new(&[[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0., 1e30, -1e30]], &device)?;
        let bias = Tensor::zeros(6, DType::F32, &device)?;
        let case = Case { pre, std: bias.clone(), bias };
        for (unit, mean, sample) in [
            (Unit::Bernoulli, [f32::NAN, 1., 0., 0.5, 1., 0.], [0f32, 1., 0., 0., 1., 0.]),
            (
                Unit::Gaussian,
                [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0., 1e30, -1e30],
                [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0., 1e30, -1e30],
            ),
            (
                Unit::Rectified,
                [f32::NAN, f32::INFINITY, 0., 0., 1e30, 0.],
                [f32::NAN, f32::INFINITY, 0., 0., 1e30, 0.],
            ),
        ] {
            let got = case.planes(unit, DType::F32, Draws::Mode)?;
            let want = Tensor::new(&[mean, sample], &device)?.unsqueeze(1)?;
            assert_close(
                &format!("{unit:?} on {:?}", device.location()),
                &got.narrow(0, 0, 2)?,
                &want,
                0.,
                0.,
            )?;
            let drawn = case.planes(unit, DType::F32, Draws::At(PLACE))?.get(1)?.to_vec2::<f32>()?;
            assert!(
                drawn[0][0].is_nan() || unit == Unit::Bernoulli && drawn[0][0] == 0.,
                "{unit:?}: {drawn:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_counter_on_the_device_moves_the_draws_of_units() -> Result<()> {
    for device in devices()? {
        let case = Case::new(9, 7)?.to(&device)?;
        let counter = Tensor::new(&[0i64], &device)?;
        for step in 0..3u64 {
            let at = Philox { offset: PLACE.offset.wrapping_add(16 * step), ..PLACE };
            for unit in UNITS {
                let got =
                    case.planes(unit, DType::F32, Draws::Counter { philox: PLACE, counter: &counter })?;
                let want = case.planes(unit, DType::F32, Draws::At(at))?;
                assert_same_bits(&format!("{unit:?} step {step} on {:?}", device.location()), &got, &want)?;
            }
            advance_(&counter, 16)?;
        }
    }
    Ok(())
}

#[cfg(feature = "cuda")]
#[test]
fn units_refuse_operands_of_another_device() -> Result<()> {
    for device in devices()?.iter().filter(|device| !device.is_cpu()) {
        let case = Case::new(4, 3)?;
        let planes = Tensor::zeros((3, 4, 3), DType::F32, device)?;
        let refused = units_(&planes, &case.pre, &case.bias, Unit::Gaussian, BOTH, Draws::Mode, None);
        let message = refused.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        let want = "units_: pre must be on Cuda { gpu_id: 0 }, the device of the result, got Cpu";
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}
