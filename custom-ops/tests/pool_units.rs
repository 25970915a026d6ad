//! Units with probabilistic max-pooling equal plain loops, agree on both sides, and name what is
//! wrong.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, normal};
use chandlery_ops::images::{PoolShape, PoolSide, pool_units_, pool_units_reference};
use chandlery_ops::layers::{Unit, UnitPlanes, units_};

/// Blocks of one, two, three and five places; as large as the map; one map, and more than a vector
/// holds; lines of more than a tile.
const SHAPES: [PoolShape; 7] = [
    PoolShape { height: 3, width: 5, n_maps: 7, pool: 1 },
    PoolShape { height: 4, width: 6, n_maps: 1, pool: 2 },
    PoolShape { height: 2, width: 2, n_maps: 24, pool: 2 },
    PoolShape { height: 9, width: 6, n_maps: 5, pool: 3 },
    PoolShape { height: 10, width: 15, n_maps: 3, pool: 5 },
    PoolShape { height: 64, width: 70, n_maps: 33, pool: 2 },
    PoolShape { height: 6, width: 90, n_maps: 40, pool: 2 },
];

const MEAN: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: 1., sample: None, low: None };
const BOTH: UnitPlanes = UnitPlanes { mean: Some(0), mean_scale: 1., sample: Some(1), low: None };

/// Pre-activations of deviation 2 and a bias for each map.
fn operands(shape: PoolShape, batch: usize) -> Result<(Tensor, Tensor)> {
    let pre = (normal((batch, shape.n_units()), &Cpu, Philox::new(5, 0))? * 2.)?;
    Ok((pre, normal(shape.n_maps, &Cpu, Philox::new(5, 1))?))
}

fn planes(shape: PoolShape, side: PoolSide, n_planes: usize, batch: usize, dtype: DType) -> Result<Tensor> {
    let n = match side {
        PoolSide::Detection => shape.n_units(),
        PoolSide::Pooled => shape.n_pooled(),
    };
    Tensor::full(f32::NAN, (n_planes, batch, n), &Cpu)?.to_dtype(dtype)
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    let (got, want) = (values(got), values(want));
    assert_eq!(got.len(), want.len(), "{what}");
    let error = |i: usize| (got[i] - want[i]).abs();
    // A NaN is the worst.
    let worst = (0..got.len()).max_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap();
    assert!(
        error(worst) <= tolerance,
        "{what}: entry {worst} is {} and should be {}, {} times the tolerance away",
        got[worst],
        want[worst],
        error(worst) / tolerance
    );
}

/// Sums of up to 26 exponentials of an error of one unit in the last place each, and a quotient.
const TOLERANCE: f32 = 4e-6;

#[test]
fn means_and_draws_equal_those_of_plain_loops() -> Result<()> {
    let philox = Philox { seed: 3, stream: 1, offset: 77 };
    for shape in SHAPES {
        let (pre, bias) = operands(shape, 3)?;
        for draws in [Some(philox), None] {
            let place = draws.map_or(Draws::Mode, Draws::At);
            let want = pool_units_reference(&pre, &bias, shape, draws)?;
            for (side, [mean, sample]) in
                [(PoolSide::Detection, [&want[0], &want[1]]), (PoolSide::Pooled, [&want[2], &want[3]])]
            {
                let got = planes(shape, side, 2, 3, DType::F32)?;
                pool_units_(&got, &pre, &bias, shape, side, BOTH, place)?;
                assert_close(&format!("mean of {side:?} of {shape:?}"), &got.get(0)?, mean, TOLERANCE);
                // A draw within rounding of a threshold may fall on its other side: not one of
                // these does.
                assert_eq!(values(&got.get(1)?), values(sample), "{side:?} of {shape:?}, {draws:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn at_most_one_unit_of_a_block_is_on_and_the_pooled_unit_says_whether() -> Result<()> {
    for shape in SHAPES {
        let (pre, bias) = operands(shape, 2)?;
        let units = planes(shape, PoolSide::Detection, 2, 2, DType::F32)?;
        let pooled = planes(shape, PoolSide::Pooled, 2, 2, DType::F32)?;
        let draws = Draws::At(Philox::new(9, 0));
        pool_units_(&units, &pre, &bias, shape, PoolSide::Detection, BOTH, draws)?;
        pool_units_(&pooled, &pre, &bias, shape, PoolSide::Pooled, BOTH, draws)?;
        let p = shape.pool;
        let by_block = |t: Tensor| -> Result<Tensor> {
            t.reshape(vec![2, shape.height / p, p, shape.width / p, p, shape.n_maps])?
                .sum((2, 4))?
                .flatten_all()
        };
        assert_eq!(values(&by_block(units.get(1)?)?), values(&pooled.get(1)?), "{shape:?}");
        assert_close("means", &by_block(units.get(0)?)?, &pooled.get(0)?.flatten_all()?, TOLERANCE);
    }
    Ok(())
}

#[test]
fn draws_have_the_frequencies_of_the_means() -> Result<()> {
    let shape = PoolShape { height: 2, width: 2, n_maps: 3, pool: 2 };
    let (pre, bias) = operands(shape, 1)?;
    let batch = 40_000;
    let pre = pre.broadcast_as((batch, shape.n_units()))?.contiguous()?;
    let units = planes(shape, PoolSide::Detection, 2, batch, DType::F32)?;
    pool_units_(&units, &pre, &bias, shape, PoolSide::Detection, BOTH, Draws::At(Philox::new(2, 4)))?;
    // Five standard errors of a fair coin.
    assert_close(
        "frequencies",
        &units.get(1)?.mean(0)?,
        &units.get(0)?.get(0)?,
        5. * 0.5 / (batch as f32).sqrt(),
    );
    Ok(())
}

#[test]
fn without_pooling_they_are_bernoulli_units() -> Result<()> {
    let shape = SHAPES[0];
    let (pre, bias) = operands(shape, 4)?;
    let got = planes(shape, PoolSide::Detection, 2, 4, DType::F32)?;
    let draws = Draws::At(Philox::new(1, 2));
    pool_units_(&got, &pre, &bias, shape, PoolSide::Detection, BOTH, draws)?;
    let want = got.zeros_like()?.reshape((2, (), shape.n_maps))?;
    units_(&want, &pre.reshape(((), shape.n_maps))?, &bias, Unit::Bernoulli, BOTH, draws, None)?;
    assert_close("means", &got.get(0)?, &want.get(0)?, TOLERANCE);
    assert_eq!(values(&got.get(1)?), values(&want.get(1)?));
    Ok(())
}

#[test]
fn large_pre_activations_neither_overflow_nor_vanish() -> Result<()> {
    let shape = PoolShape { height: 2, width: 2, n_maps: 1, pool: 2 };
    let pre = Tensor::new(
        &[[1e30f32, -1e30, 0., 1e30], [-1e30, -1e30, -1e30, -1e30], [88., 89., 90., -90.]],
        &Cpu,
    )?;
    let bias = Tensor::zeros(1, DType::F32, &Cpu)?;
    let got = planes(shape, PoolSide::Detection, 1, 3, DType::F32)?;
    pool_units_(&got, &pre, &bias, shape, PoolSide::Detection, MEAN, Draws::Mode)?;
    let [a, b, c] = [1f32, (-1f32).exp(), (-2f32).exp()].map(|e| e / (1. + (-1f32).exp() + (-2f32).exp()));
    let want = Tensor::new(&[[0.5f32, 0., 0., 0.5], [0., 0., 0., 0.], [c, b, a, 0.]], &Cpu)?;
    assert_close("means", &got.get(0)?, &want, TOLERANCE);
    Ok(())
}

#[test]
fn a_nan_or_an_infinity_spoils_its_block_and_no_other() -> Result<()> {
    let shape = PoolShape { height: 2, width: 4, n_maps: 2, pool: 2 };
    let bias = Tensor::zeros(2, DType::F32, &Cpu)?;
    for bad in [f32::NAN, f32::INFINITY] {
        // Unit (1, 0) of map 1.
        let pre: Vec<f32> = (0..16).map(|i| if i == 9 { bad } else { 1. }).collect();
        let pre = Tensor::from_vec(pre, (1, 16), &Cpu)?;
        for draws in [Draws::Mode, Draws::At(Philox::new(0, 0))] {
            let units = planes(shape, PoolSide::Detection, 2, 1, DType::F32)?;
            pool_units_(&units, &pre, &bias, shape, PoolSide::Detection, BOTH, draws)?;
            let (mean, sample) = (values(&units.get(0)?), values(&units.get(1)?));
            for i in 0..16 {
                let (x, map) = (i / 2 % 4, i % 2);
                let spoilt = x < 2 && map == 1;
                assert_eq!(mean[i].is_nan(), spoilt, "unit {i} with {bad}");
                assert!(!spoilt || sample[i] == 0., "unit {i} with {bad}");
            }
        }
    }
    Ok(())
}

#[test]
fn planes_of_every_type_are_the_rounded_f32_ones_and_two_parts_are_as_exact() -> Result<()> {
    let scaled = UnitPlanes { mean_scale: -1., ..BOTH };
    for side in [PoolSide::Detection, PoolSide::Pooled] {
        let shape = SHAPES[3];
        let (pre, bias) = operands(shape, 2)?;
        let draws = Draws::At(Philox::new(8, 8));
        let want = planes(shape, side, 2, 2, DType::F32)?;
        pool_units_(&want, &pre, &bias, shape, side, scaled, draws)?;
        for dtype in [DType::F16, DType::BF16] {
            let got = planes(shape, side, 2, 2, dtype)?;
            pool_units_(&got, &pre, &bias, shape, side, scaled, draws)?;
            assert_eq!(values(&got), values(&want.to_dtype(dtype)?), "{side:?} as {dtype:?}");
        }
        let got = planes(shape, side, 4, 2, DType::F16)?;
        let out = UnitPlanes { low: Some(2), ..scaled };
        pool_units_(&got, &pre, &bias, shape, side, out, draws)?;
        let sum = (got.get(0)?.to_dtype(DType::F32)? + got.get(2)?.to_dtype(DType::F32)?)?;
        assert_close("both parts", &sum, &want.get(0)?, 2f32.powi(-21));
        assert_eq!(values(&got.get(1)?), values(&want.get(1)?));
    }
    Ok(())
}

#[test]
fn planes_that_are_not_named_stay_as_they_are() -> Result<()> {
    let shape = SHAPES[1];
    let (pre, bias) = operands(shape, 2)?;
    let all = Tensor::full(7f32, (3, 2, shape.n_units()), &Cpu)?;
    let out = UnitPlanes { mean: Some(2), ..UnitPlanes::default() };
    pool_units_(&all, &pre, &bias, shape, PoolSide::Detection, out, Draws::Mode)?;
    assert!(values(&all.narrow(0, 0, 2)?).iter().all(|&x| x == 7.));
    assert!(values(&all.get(2)?).iter().all(|&x| x < 1.));
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let shape = SHAPES[3];
    let (pre, bias) = operands(shape, 2)?;
    let run = |shape: PoolShape, pre: &Tensor, bias: &Tensor, out| {
        let planes = Tensor::zeros((2, 2, 9 * 6 * 5), DType::F32, &Cpu).unwrap();
        let result = pool_units_(&planes, pre, bias, shape, PoolSide::Detection, out, Draws::Mode);
        result.unwrap_err().to_string().lines().next().unwrap().to_owned()
    };
    assert_eq!(
        run(PoolShape { pool: 4, ..shape }, &pre, &bias, MEAN),
        "pool_units_: blocks of 4x4 must tile the maps: their height must be 8 or 12, got 9"
    );
    assert_eq!(
        run(PoolShape { pool: 7, ..shape }, &pre, &bias, MEAN),
        "pool_units_: blocks of 7x7 must tile the maps: their height must be 7 or 14, got 9"
    );
    assert_eq!(
        run(PoolShape { pool: 10, ..shape }, &pre, &bias, MEAN),
        "pool_units_: pool must be at most the height of the maps, 9, got 10"
    );
    assert_eq!(
        run(PoolShape { n_maps: 0, ..shape }, &pre, &bias, MEAN),
        "pool_units_: n_maps must be at least 1, got 0"
    );
    assert!(
        run(PoolShape { n_maps: 4, ..shape }, &pre, &bias, MEAN)
            .starts_with("pool_units_: planes must be [n_planes, batch, 216]")
    );
    assert!(
        run(shape, &pre.narrow(0, 0, 1)?, &bias, MEAN)
            .starts_with("pool_units_: pre must have shape [2, 270]")
    );
    assert!(
        run(shape, &pre, &bias.narrow(0, 0, 4)?, MEAN).starts_with("pool_units_: bias must have shape [5]")
    );
    let nowhere = UnitPlanes::default();
    assert!(run(shape, &pre, &bias, nowhere).starts_with("pool_units_: out must name a plane"));
    let beyond = UnitPlanes { mean: Some(2), ..MEAN };
    assert!(run(shape, &pre, &bias, beyond).starts_with("pool_units_: mean must name one of 2 planes"));
    Ok(())
}
