//! Fused units: equal to the reference, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::split_into_;
use chandlery_ops::core::{Draws, advance_, bernoulli, normal, uniform};
use chandlery_ops::layers::{
    Unit, UnitPlanes, deltas_of_product_, deltas_of_product_reference, error_places, errors_of_product_,
    errors_of_product_reference, units_, units_of_product_, units_of_product_reference, units_reference,
};
use chandlery_tests::{assert_close, assert_same_bits, devices, sizes_here};

const UNITS: [Unit; 3] = [Unit::Bernoulli, Unit::Gaussian, Unit::Rectified];
const PLACE: Philox = Philox { seed: 11, stream: 22, offset: u64::MAX - 5 };
const BOTH: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: 1., sample: Some(1), low: None };

/// Rows and units: tails of 1, 2 and 3 elements, sizes around a warp and a block, units that are
/// and are not a multiple of four, layers of a 784-500-500 network, and more elements than one grid
/// has threads for (the last).
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

/// The sigmoid is within 2.5 ulp of the truth and so are candle's exp and division; 8 · 2⁻²³ covers
/// both. Normal draws are exact on both sides, so that only the last sum and the root of a sigmoid
/// add to it.
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

    /// Planes of f16: mean, sample, and the second part of each.
    fn parts(&self, unit: Unit, draws: Draws) -> Result<Tensor> {
        let (rows, n_units) = self.pre.dims2()?;
        let planes = Tensor::full(7f32, (4, rows, n_units), self.pre.device())?.to_dtype(DType::F16)?;
        let out = UnitPlanes { low: Some(2), ..BOTH };
        units_(&planes, &self.pre, &self.bias, unit, out, draws, self.std_for(unit))?;
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
            for (unit, draws) in
                UNITS.into_iter().flat_map(|unit| [(unit, Draws::At(PLACE)), (unit, Draws::Mode)])
            {
                let what = format!("{unit:?} [{rows}, {n_units}] on {:?}", device.location());
                let got = there.planes(unit, DType::F32, draws)?;
                assert_same_bits(&what, &got, &case.planes(unit, DType::F32, draws)?)?;
                let got = there.parts(unit, draws)?;
                assert_same_bits(&format!("{what}, two parts"), &got, &case.parts(unit, draws)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn two_parts_are_the_f32_number_to_22_bits() -> Result<()> {
    for device in devices()? {
        let case = Case::new(33, 31)?.to(&device)?;
        for unit in UNITS {
            let parts = case.parts(unit, Draws::At(PLACE))?.to_dtype(DType::F32)?;
            let want = case.planes(unit, DType::F32, Draws::At(PLACE))?;
            let what = format!("{unit:?} on {:?}", device.location());
            // 2^-22 of the number, or half of f16's smallest step.
            assert_close(&what, &(parts.get(0)? + parts.get(2)?)?, &want.get(0)?, 2.4e-7, 3e-8)?;
            // Bernoulli samples are whole: their second plane keeps its sevens.
            let rest = match unit {
                Unit::Bernoulli => parts.get(1)?.zeros_like()?,
                _ => parts.get(3)?,
            };
            assert_close(&what, &(parts.get(1)? + rest)?, &want.get(1)?, 2.4e-7, 3e-8)?;
        }
    }
    Ok(())
}

#[test]
fn sixteen_bit_planes_are_the_f32_numbers_rounded() -> Result<()> {
    for device in devices()? {
        for (rows, n_units) in SHAPES {
            let case = Case::new(rows, n_units)?.to(&device)?;
            for (dtype, ulp) in [(DType::BF16, 2f32.powi(-7)), (DType::F16, 2f32.powi(-10))] {
                for unit in UNITS {
                    let what = format!("{unit:?} [{rows}, {n_units}] {dtype:?} on {:?}", device.location());
                    let got = case.planes(unit, dtype, Draws::At(PLACE))?;
                    let want = case.planes(unit, DType::F32, Draws::At(PLACE))?;
                    // f16 below 6e-5 has steps of 6e-8.
                    assert_close(&what, &got.get(0)?, &want.get(0)?, ulp, 6e-8)?;
                    if unit != Unit::Bernoulli {
                        assert_close(&what, &got.get(1)?, &want.get(1)?, ulp, 6e-8)?;
                        continue;
                    }
                    // A draw falls between two means that differ by 2^-20 once in a million.
                    let differ = (got.get(1)?.to_dtype(DType::F32)? - want.get(1)?)?.abs()?.sum_all()?;
                    let (differ, n) = (differ.to_scalar::<f32>()?, (rows * n_units) as f32);
                    assert!(differ <= 1. + n * 4e-6, "{what}: {differ} samples of {n} differ");
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
                let out = UnitPlanes { mean: Some(2), mean_scale: -1., sample: Some(0), low: None };
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
        let bias = case.bias.to_device(device)?;
        let refused = units_(&planes, &case.pre, &bias, Unit::Gaussian, BOTH, Draws::Mode, None);
        let message = refused.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        let want = "units_: pre must be on Cuda { gpu_id: 0 }, the device of the result, got Cpu";
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}

/// How the operands of a layer are stored: grey levels by weights, or drawn states by weights.
#[derive(Debug, Clone, Copy)]
enum Operands {
    One(DType),
    Two,
}

/// `[1, ..]` of a type, or the `[2, ..]` f16 parts, of `scale · x`.
fn stored(x: &Tensor, operands: Operands, scale: f32) -> Result<Tensor> {
    let scaled = (x * f64::from(scale))?;
    match operands {
        Operands::One(dtype) => scaled.to_dtype(dtype)?.unsqueeze(0),
        Operands::Two => {
            let out = Tensor::zeros([&[2], x.dims()].concat(), DType::F16, x.device())?;
            split_into_(&out, x, scale)?;
            Ok(out)
        }
    }
}

/// The kernels have a loop for every sixteenth row of a warpgroup and every form of a tile: 44 for
/// numbers in one part.
#[test]
fn units_of_a_product_have_tiles_of_every_number_of_rows() -> Result<()> {
    let sizes: &[(usize, usize, &[usize])] = &[
        // Two warpgroups below each other.
        (136, 72, &[8, 40]),
        (4328, 72, &[72, 104]),
        (4328, 264, &[152]),
        (8200, 520, &[168]),
        (2056, 2056, &[200]),
        (4104, 520, &[500]),
        // Two beside each other.
        (12_808, 72, &[8, 24, 40]),
        (4328, 72, &[152]),
        (4328, 520, &[200]),
        (12_808, 1032, &[88, 136]),
        (16_000, 520, &[104]),
        (16_000, 1032, &[120, 168]),
        (12_808, 2056, &[152, 200, 232]),
        (16_000, 2056, &[184]),
        (2304, 8200, &[448]),
        (16_384, 8192, &[256]),
        // Three.
        (25_000, 72, &[8, 24, 40]),
        (4328, 72, &[200]),
        (25_000, 72, &[72]),
        (4104, 72, &[500]),
        (25_000, 72, &[104, 120, 136]),
        (25_000, 72, &[152, 168, 184]),
        // Four.
        (33_000, 72, &[8, 24]),
        (12_808, 72, &[72, 104, 136, 168]),
        (12_808, 72, &[200, 232]),
    ];
    check_tiles(Operands::One(DType::BF16), &["up", "down"], sizes)
}

/// For numbers in two parts 40 each up and down, of which 36 and 35 are chosen: two by two warpgroups
/// are faster for most multiples of 32 rows than two beside each other.
#[test]
fn units_of_a_product_of_two_parts_have_tiles_of_every_number_of_rows() -> Result<()> {
    let up: &[(usize, usize, &[usize])] = &[
        // Two warpgroups below each other.
        (136, 72, &[8]),
        (136, 264, &[800]),
        (784, 2056, &[72, 168]),
        (520, 520, &[500]),
        (2304, 520, &[152]),
        (1288, 1032, &[200]),
        (264, 2056, &[1000]),
        // Three.
        (1288, 72, &[40, 400]),
        (2056, 72, &[500]),
        (784, 520, &[500]),
        (2304, 520, &[200]),
        // Two beside each other.
        (4328, 136, &[8]),
        (8200, 4104, &[24]),
        (4328, 520, &[40]),
        (520, 8200, &[168]),
        (520, 4104, &[200, 500]),
        (784, 2056, &[336]),
        (1288, 2056, &[272]),
        (12_808, 72, &[200]),
        // Two by two.
        (4328, 72, &[56, 104, 200]),
        (12_808, 72, &[104, 136, 168]),
        // Three beside each other.
        (25_000, 72, &[8, 24, 40, 56, 88, 104]),
        (4328, 72, &[400, 600]),
    ];
    let down: &[(usize, usize, &[usize])] = &[
        // Two warpgroups below each other.
        (136, 72, &[8]),
        (784, 72, &[600]),
        (784, 2056, &[72, 200]),
        (784, 520, &[336]),
        (2304, 520, &[152]),
        (784, 4104, &[168]),
        (1288, 2056, &[248]),
        // Three.
        (1288, 136, &[40]),
        (1288, 72, &[400]),
        (2056, 72, &[500]),
        (2304, 520, &[168, 200]),
        // Two beside each other.
        (4104, 136, &[8]),
        (8200, 4104, &[24, 72]),
        (4328, 520, &[40]),
        (520, 8200, &[336, 500]),
        (1288, 4104, &[272]),
        (12_808, 72, &[200]),
        // Two by two.
        (4328, 72, &[56, 104, 200, 400]),
        (12_808, 72, &[104, 168]),
        // Three beside each other.
        (25_000, 72, &[8, 24, 40, 56, 72, 88, 104]),
        (4328, 72, &[600]),
    ];
    check_tiles(Operands::Two, &["up"], up)?;
    check_tiles(Operands::Two, &["down"], down)
}

/// Gaussian units beside sums in f32, for columns, terms and several rows.
fn check_tiles(operands: Operands, ways: &[&str], sizes: &[(usize, usize, &[usize])]) -> Result<()> {
    let two = matches!(operands, Operands::Two);
    let sizes: Vec<_> = sizes.iter().flat_map(|&(n, k, rows)| rows.iter().map(move |&m| (m, n, k))).collect();
    for device in devices()? {
        for (m, n, k) in sizes_here(&sizes, |(m, n, k)| m * n * k) {
            let weight = uniform((n, k), &device, Philox::new(75, 0))?.affine(2., -1.)?;
            let weight = stored(&weight, operands, 1.)?;
            let levels = uniform((m, k), &device, Philox::new(75, 1))?;
            let bias = normal(n, &device, Philox::new(75, 2))?;
            for &way in ways {
                // Down from numbers in one part.
                let of_a = if two && way == "down" { Operands::One(DType::F16) } else { operands };
                let a = stored(&levels, of_a, 1.)?;
                let b = weight.transpose(1, 2)?;
                let b = if way == "up" { b } else { b.contiguous()? };
                let sum = |parts: &Tensor| parts.to_dtype(DType::F32)?.sum(0);
                let exact = sum(&a)?.matmul(&sum(&weight)?.t()?)?;
                let exact = exact.broadcast_add(&bias)?.to_device(&Device::Cpu)?;
                let planes = Tensor::full(7f32, (3, m, n), &device)?.to_dtype(a.dtype())?;
                let pre = Tensor::zeros((m, n), DType::F32, &device)?;
                let out = UnitPlanes { sample: None, low: two.then_some(2), ..BOTH };
                units_of_product_(&planes, &pre, &a, &b, 1., &bias, Unit::Gaussian, out, Draws::Mode)?;
                let what = format!("{way} {operands:?} [{m}, {n}, {k}] on {:?}", device.location());
                let got = planes.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
                let mean = if two { (got.get(0)? + got.get(2)?)? } else { got.get(0)? };
                // The rounding to 16-bit numbers, and sums of k terms below 1.
                let rounding = if two { 2f32.powi(-21) } else { 2f32.powi(-8) };
                assert_close(&what, &mean, &exact, rounding, 2f32.powi(-23) * k as f32 + 1e-6)?;
                let untouched = if two { &[1][..] } else { &[1, 2] };
                for &plane in untouched {
                    let before = Tensor::full(7f32, (m, n), &Device::Cpu)?;
                    assert_same_bits(&what, &got.get(plane)?, &before)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn units_of_a_product_match_their_reference_at_awkward_sizes() -> Result<()> {
    // Around tiles of 128 and 192 rows and 64 columns, stretches of 32 terms over 8 and 2 blocks,
    // lines of 4 and of 8 entries, sizes that clusters of 8, of 2 and single blocks take, and one
    // that goes through a product and units.
    let sizes = [
        (1, 3, 5),
        (5, 4, 8),
        (65, 60, 36),
        (100, 500, 784),
        (128, 72, 1000),
        (192, 1024, 576),
        (193, 64, 260),
        (200, 2048, 64),
        (192, 4096, 72),
        (30, 9000, 40),
        // Long sums over clusters of every size, two tiles of rows.
        (190, 136, 2056),
        (400, 264, 600),
        (64, 1440, 520),
        (192, 12_288, 136),
        // Of two parts, tiles of 128 columns in clusters, whose descriptors say how far blocks of 64
        // lie apart.
        (100, 2560, 2048),
        // Tiles of 64, 128, 192 and 256 columns.
        (200, 520, 264),
        (88, 12_808, 1032),
        (190, 25_000, 72),
        (250, 12_800, 72),
    ];
    const SCALE: f32 = 64.;
    for device in devices()? {
        for (m, n, k) in sizes_here(&sizes, |(m, n, k)| m * n * k) {
            let weight = (normal((n, k), &Device::Cpu, Philox::new(70, 0))? * 0.3)?;
            let levels = uniform((m, k), &Device::Cpu, Philox::new(70, 1))?;
            let states = bernoulli(&Tensor::full(0.4f32, (m, k), &Device::Cpu)?, Philox::new(70, 2))?;
            let bias = normal(n, &Device::Cpu, Philox::new(70, 3))?;
            for operands in [Operands::One(DType::BF16), Operands::One(DType::F16), Operands::Two] {
                let two = matches!(operands, Operands::Two);
                let one = Operands::One(if two { DType::F16 } else { stored(&bias, operands, 1.)?.dtype() });
                let up = (stored(&levels, operands, 1.)?, stored(&weight, operands, SCALE)?.transpose(1, 2)?);
                let down = (stored(&states, one, 1.)?, stored(&weight.t()?.contiguous()?, operands, SCALE)?);
                for (way, (a, b)) in [("up", up), ("down", down)] {
                    for unit in [Unit::Bernoulli, Unit::Gaussian] {
                        let (mean, sample) =
                            units_of_product_reference(&a, &b, 1. / SCALE, &bias, unit, Some(PLACE))?;
                        let planes = Tensor::full(7f32, (6, m, n), &device)?.to_dtype(a.dtype())?;
                        let pre = Tensor::zeros((m, n), DType::F32, &device)?;
                        let out = UnitPlanes { low: two.then_some(3), mean_scale: -1., ..BOTH };
                        let there = |t: &Tensor| t.to_device(&device);
                        // The transposed view of what lies there, not a copy that is laid out anew.
                        let b = if way == "up" {
                            there(&b.transpose(1, 2)?)?.transpose(1, 2)?
                        } else {
                            there(&b)?
                        };
                        units_of_product_(
                            &planes,
                            &pre,
                            &there(&a)?,
                            &b,
                            1. / SCALE,
                            &there(&bias)?,
                            unit,
                            out,
                            Draws::At(PLACE),
                        )?;
                        let what =
                            format!("{way} {unit:?} [{m}, {n}, {k}] {operands:?} on {:?}", device.location());
                        let planes = planes.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                        let (low, rounding) = match (two, a.dtype()) {
                            (true, _) => (planes.get(3)?, 2f32.powi(-21)),
                            (false, DType::BF16) => (planes.get(3)?.zeros_like()?, 2f32.powi(-7)),
                            (false, _) => (planes.get(3)?.zeros_like()?, 2f32.powi(-10)),
                        };
                        // Sums of k terms of deviation .2, in f32: 2^-24 each, as a walk, twelve
                        // deviations.
                        let sum = 2f32.powi(-24) * 12. * 0.3 * (k as f32);
                        let got = (planes.get(0)? + low)?.neg()?;
                        assert_close(&what, &got, &mean, rounding, sum + 1e-7)?;
                        let drawn = planes.get(1)?;
                        if unit == Unit::Gaussian {
                            let drawn = if two { (drawn + planes.get(4)?)? } else { drawn };
                            assert_close(&what, &drawn, &sample, rounding, sum + 1e-6)?;
                            continue;
                        }
                        // A draw between two means that differ by `sum`: fewer than that share of
                        // all, with room.
                        let differ = (drawn - sample)?.abs()?.sum_all()?.to_scalar::<f32>()?;
                        assert!(
                            differ <= 2. + 4. * sum * (m * n) as f32,
                            "{what}: {differ} samples of {} differ",
                            m * n
                        );
                        assert_same_bits(&what, &planes.get(2)?, &Tensor::full(7f32, (m, n), &Device::Cpu)?)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn errors_and_deltas_of_products_match_their_references_at_awkward_sizes() -> Result<()> {
    // Rows, columns, terms: as above, and sizes that no kernel takes.
    let sizes = [
        (1, 4, 8),
        (5, 3, 7),
        (65, 36, 60),
        (100, 784, 500),
        (128, 500, 784),
        (193, 260, 64),
        (512, 784, 500),
        (200, 2048, 64),
        // Around the tiles of warpgroups, with slices that end within and clusters of every size.
        (33, 40, 8),
        (64, 64, 32),
        (65, 136, 200),
        (130, 72, 1000),
        (32, 784, 504),
        (128, 504, 784),
        (512, 784, 504),
        // Tiles of 64, 128, 192 and 256 columns.
        (200, 520, 264),
        (88, 12_808, 1032),
        (190, 25_000, 72),
        (250, 12_800, 72),
    ];
    let here = || sizes_here(&sizes, |(m, n, k)| m * n * k);
    for device in devices()? {
        // Scale of the weights, what rounding takes of a result, and of the sums.
        let kinds = [
            (Operands::Two, 64., 2f32.powi(-20), 2e-6),
            (Operands::One(DType::F16), 64., 2f32.powi(-11), 5e-6),
            (Operands::One(DType::BF16), 1., 2f32.powi(-8), 2e-5),
        ];
        for ((m, n, k), kind) in here().flat_map(|size| kinds.map(|kind| (size, kind))) {
            let (operands, scale, rounded, of_sums) = kind;
            let two = matches!(operands, Operands::Two);
            let (n_parts, low) = if two { (2, Some(3)) } else { (1, None) };
            let numbers = uniform((m, k), &Device::Cpu, Philox::new(71, 0))?;
            let weight = (normal((k, n), &Device::Cpu, Philox::new(71, 1))? * 0.2)?;
            let bias = normal(n, &Device::Cpu, Philox::new(71, 2))?;
            let target = uniform((m, n), &Device::Cpu, Philox::new(71, 3))?;
            let units = uniform((m, n), &Device::Cpu, Philox::new(71, 4))?;
            let a = stored(&numbers, operands, 1.)?;
            let turned = stored(&weight, operands, scale)?;
            let straight = stored(&weight.t()?.contiguous()?, operands, scale)?;
            let what = format!("[{m}, {n}, {k}] of {operands:?} on {:?}", device.location());
            let there = |t: &Tensor| t.to_device(&device);
            let whole = |planes: &Tensor, at: usize| {
                let planes = planes.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                match two {
                    true => planes.get(at)? + planes.get(at + 3)?,
                    false => planes.get(at),
                }
            };
            // Sums of k terms of deviation .1, in f32: 2^-24 each, as a walk, twelve deviations.
            let atol = 2f32.powi(-24) * 12. * 0.2 * (k as f32) + 2e-7;

            let planes = Tensor::full(7f32, (3 * n_parts, m, n), &device)?.to_dtype(a.dtype())?;
            let places = error_places(&device, m, n, k)? + 3;
            let gathered = Tensor::ones((2, places), DType::F64, &device)?;
            let (want, sums) = errors_of_product_reference(&a, &turned, 1. / scale, &bias, &target)?;
            for _ in 0..2 {
                let (bias, target) = (there(&bias)?, there(&target)?);
                let (a, b) = (there(&a)?, there(&turned)?);
                errors_of_product_(&planes, (1, low), &a, &b, 1. / scale, &bias, &target, &gathered)?;
            }
            assert_close(&format!("errors {what}"), &whole(&planes, 1)?, &want, rounded, atol)?;
            let (got, want) = (gathered.sum(1)?.to_vec1::<f64>()?, sums.to_vec1::<f64>()?);
            for (got, want) in got.iter().zip(want) {
                let sum = (got - places as f64) / 2.;
                assert!((sum / want - 1.).abs() < of_sums, "errors {what}: {sum} for {want}");
            }

            let states = stored(&units, operands, 1.)?;
            let blank = Tensor::full(7f32, (m, n), &Device::Cpu)?.to_dtype(a.dtype())?;
            let of_part = |part: usize| Ok([blank.clone(), blank.clone(), states.get(part)?]);
            let all = (0..n_parts).map(of_part).collect::<Result<Vec<_>>>()?.concat();
            let planes = there(&Tensor::stack(&all, 0)?)?;
            let b = there(&straight)?.transpose(1, 2)?;
            deltas_of_product_(&planes, (0, 2, low), &there(&a)?, &b, 1. / scale)?;
            let units = states.to_dtype(DType::F32)?.sum(0)?;
            let want = deltas_of_product_reference(&a, &straight.transpose(1, 2)?, 1. / scale, &units)?;
            assert_close(&format!("deltas {what}"), &whole(&planes, 0)?, &want, rounded, atol)?;
            for untouched in if two { &[1, 4][..] } else { &[1] } {
                assert_same_bits(&what, &planes.get(*untouched)?.to_device(&Device::Cpu)?, &blank)?;
            }
        }
    }
    Ok(())
}
