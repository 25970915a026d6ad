//! Some columns of a matrix: copied, and drawn as one rank of several draws them, whose draws are those
//! that one rank takes for these columns.
use candle::{DType, Device, Result, Tensor};
use chandlery::patch_rbm::PatchGrid;
use chandlery_ops::Philox;
use chandlery_ops::arrays::columns_into_;
use chandlery_ops::core::{Draws, bernoulli_into_, normal, uniform};
use chandlery_ops::images::{PatchDirection, PoolShape, PoolSide, pool_units_, units_of_patches_};
use chandlery_ops::layers::{Unit, UnitPlanes};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;
const PHILOX: Philox = Philox { seed: 12, stream: 23, offset: 5 };

/// The number of blocks that were drawn before.
fn counter(device: &Device) -> Result<Tensor> {
    Tensor::new(&[7i64], device)
}

#[test]
fn columns_are_copied_wherever_lines_begin() -> Result<()> {
    // Lines and columns of whole fours and eights, of bytes alone, and one.
    for (rows, of, from, to, n) in [
        (3, 64, 16, 32, 32),
        (5, 37, 3, 0, 31),
        (1, 9, 8, 1, 1),
        (200, 2048, 1024, 0, 1024),
        (4, 12, 4, 8, 4),
    ] {
        let x = (uniform((rows, of), &CPU, Philox::new(1, 0))? * 250.)?;
        for dtype in [DType::F32, DType::U8] {
            let x = x.to_dtype(dtype)?;
            let full = Tensor::full(7f32, (rows, of), &CPU)?.to_dtype(dtype)?;
            let mut parts = vec![x.narrow(1, from, n)?];
            if to > 0 {
                parts.insert(0, full.narrow(1, 0, to)?);
            }
            if to + n < of {
                parts.push(full.narrow(1, to + n, of - to - n)?);
            }
            let want = Tensor::cat(&parts, 1)?;
            for device in devices()? {
                let (x, out) = (x.to_device(&device)?, full.to_device(&device)?.copy()?);
                columns_into_(&out.narrow(1, to, n)?, &x.narrow(1, from, n)?)?;
                let got = out.to_device(&CPU)?.to_dtype(DType::F32)?;
                assert_same_bits(&format!("{n} of {of} {dtype:?}"), &got, &want.to_dtype(DType::F32)?)?;
            }
        }
    }
    let x = Tensor::zeros((2, 4), DType::F32, &CPU)?;
    let refused = columns_into_(&x, &x.narrow(1, 0, 2)?).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(refused.starts_with("columns_into_: x must be F32 [2, 4] with contiguous lines"), "{refused}");
    Ok(())
}

#[test]
fn states_of_some_columns_take_the_draws_of_these() -> Result<()> {
    let (rows, of, first, n) = (37, 44, 12, 20);
    let p = uniform((rows, of), &CPU, Philox::new(1, 0))?;
    for device in devices()? {
        let (p, counter) = (p.to_device(&device)?, counter(&device)?);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let zeros = |n: usize| Tensor::zeros((rows, n), dtype, &device);
            let (whole, some) = (zeros(of)?, zeros(n)?);
            bernoulli_into_(&whole, &p, Draws::Counter { philox: PHILOX, counter: &counter })?;
            let draws = Draws::Columns { philox: PHILOX, counter: &counter, first, of };
            bernoulli_into_(&some, &p.narrow(1, first, n)?.contiguous()?, draws)?;
            let read = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F32)?.contiguous();
            assert_same_bits("states", &read(&some)?, &read(&whole.narrow(1, first, n)?)?)?;
        }
    }
    Ok(())
}

#[test]
fn units_of_some_maps_take_the_draws_of_these() -> Result<()> {
    let (rows, of, first, n) = (5, 44, 12, 20);
    for pool in [1, 2, 3] {
        let shape = PoolShape { height: 6, width: 12, n_maps: of, pool };
        let own = PoolShape { n_maps: n, ..shape };
        let pre = normal((rows * 72, of), &CPU, Philox::new(1, 0))?;
        let bias = normal(of, &CPU, Philox::new(1, 1))?;
        for device in devices()? {
            let counter = counter(&device)?;
            for side in [PoolSide::Detection, PoolSide::Pooled] {
                let made = |shape: PoolShape, from: usize, draws: Draws<'_>| -> Result<Tensor> {
                    let units = match side {
                        PoolSide::Detection => shape.n_units(),
                        PoolSide::Pooled => shape.n_pooled(),
                    };
                    let planes = Tensor::zeros((1, rows, units), DType::F32, &device)?;
                    let pre = pre.narrow(1, from, shape.n_maps)?.contiguous()?.reshape((rows, ()))?;
                    let bias = bias.narrow(0, from, shape.n_maps)?.contiguous()?;
                    let (pre, bias) = (pre.to_device(&device)?, bias.to_device(&device)?);
                    let out = UnitPlanes { sample: Some(0), ..UnitPlanes::default() };
                    pool_units_(&planes, &pre, &bias, shape, side, out, draws)?;
                    planes.to_device(&CPU)?.reshape(((), shape.n_maps))
                };
                let whole = made(shape, 0, Draws::Counter { philox: PHILOX, counter: &counter })?;
                let draws = Draws::Columns { philox: PHILOX, counter: &counter, first, of };
                let want = whole.narrow(1, first, n)?.contiguous()?;
                assert!(want.sum_all()?.to_scalar::<f32>()? > 0., "none is on");
                assert_same_bits(&format!("{side:?}, blocks of {pool}"), &made(own, first, draws)?, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn units_of_some_patches_take_the_draws_of_these() -> Result<()> {
    let grid = |[height, width, depth]: [usize; 3], window, stride| PatchGrid {
        planes: 1,
        height,
        width,
        depth,
        window,
        stride,
    };
    // Of plain products, of tiles, and of warpgroups with units in registers and through memory.
    for (grid, hidden) in [
        (grid([9, 4, 1], 3, 1), 2),
        (grid([11, 7, 8], 3, 2), 24),
        (grid([9, 5, 64], 3, 1), 64),
        (grid([9, 5, 64], 3, 1), 192),
    ] {
        let (rows, line, windows) = (130, grid.width * grid.depth, 1..grid.down() - 1);
        let places = windows.start * grid.stride..(windows.end - 1) * grid.stride + grid.window;
        let own = PatchGrid { height: places.len(), ..grid };
        let per_line = grid.across() * hidden;
        let stdev = 1. / (grid.window_len() as f64).sqrt();
        let weight =
            (normal((grid.n_patches(), hidden, grid.window_len()), &CPU, Philox::new(1, 0))? * stdev)?;
        let visible = uniform((rows, grid.n_values()), &CPU, Philox::new(1, 1))?;
        for device in devices()? {
            let counter = counter(&device)?;
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                for unit in [Unit::Bernoulli, Unit::Rectified] {
                    let made = |grid: &PatchGrid, x: &Tensor, w: &Tensor, draws: Draws<'_>| {
                        let n = grid.n_patches() * hidden;
                        let planes = Tensor::zeros((2, rows, n), dtype, &device)?;
                        let there =
                            |t: &Tensor| t.contiguous()?.to_dtype(dtype)?.to_device(&device)?.unsqueeze(0);
                        let pre = Tensor::zeros((rows, n), DType::F32, &device)?;
                        let bias = Tensor::zeros(n, DType::F32, &device)?;
                        let out = UnitPlanes { mean: Some(0), sample: Some(1), ..UnitPlanes::default() };
                        let (x, w, up) = (there(x)?, there(w)?, PatchDirection::Up);
                        units_of_patches_(
                            &planes, &pre, &x, &w, grid, up, 1., &bias, unit, out, draws, None,
                        )?;
                        planes.to_device(&CPU)?.to_dtype(DType::F32)
                    };
                    let all =
                        made(&grid, &visible, &weight, Draws::Counter { philox: PHILOX, counter: &counter })?;
                    let (first, n) = (windows.start * per_line, windows.len() * per_line);
                    let want = all.narrow(2, first, n)?.contiguous()?;
                    let draws = Draws::Columns { philox: PHILOX, counter: &counter, first, of: all.dim(2)? };
                    let x = visible.narrow(1, places.start * line, places.len() * line)?;
                    let across = grid.across();
                    let w = weight.narrow(0, windows.start * across, windows.len() * across)?;
                    let got = made(&own, &x, &w, draws)?;
                    let what = format!("{grid:?} x {hidden}, {unit:?} {dtype:?} on {:?}", device.location());
                    // Tiles of other widths may add in another order, and a number of 16 bits round to the
                    // one beside.
                    let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
                    assert_close(&what, &got.get(0)?, &want.get(0)?, tolerance, tolerance)?;
                    let differ = (got.get(1)? - want.get(1)?)?.abs()?.gt(0.1)?.to_dtype(DType::F32)?;
                    let differ = differ.sum_all()?.to_scalar::<f32>()?;
                    assert!(differ <= 2. + 1e-3 * (rows * n) as f32, "{what}: {differ} samples differ");
                }
            }
        }
    }
    Ok(())
}
