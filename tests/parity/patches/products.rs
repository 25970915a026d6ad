//! Products of windows, rows cell by cell, and their units.
use super::{CPU, Case, DOWN, UP, case, fused_grids, grid, odd_grids, split, warpgroup_grids};
use candle::{DType, Device, Result, Tensor};
use chandlery::Philox;
use chandlery::patch_rbm::PatchGrid;
use chandlery_ops::core::{Draws, normal, uniform};
use chandlery_ops::images::{
    cells_into_, cells_into_reference, patch_gradient_, patch_gradient_reference, patch_product,
    patch_product_, patch_product_reference, patch_steps_fuse, sums_of_patches_, units_of_patches_,
};
use chandlery_ops::layers::{Factors, Unit, UnitPlanes, units_reference};
use chandlery_tests::{assert_close, devices, sizes_here};

/// Products of a row. Each size is multiplied some ten times.
fn products((grid, hidden): (PatchGrid, usize)) -> usize {
    grid.n_patches() * hidden * grid.window_len()
}

#[test]
fn products_of_any_size_match_their_reference() -> Result<()> {
    for device in devices()? {
        for at in odd_grids().into_iter().chain(fused_grids()) {
            for batch in sizes_here(&[1, 65], |batch| 10 * batch * products(at)) {
                let Case { grid, weight, visible, states, .. } = case(at, batch)?;
                for dtype in [DType::F32, DType::F64, DType::BF16] {
                    let wide = |t: &Tensor| t.to_dtype(dtype)?.to_dtype(DType::F64);
                    let there = |t: &Tensor| t.to_dtype(dtype)?.to_device(&device)?.unsqueeze(0);
                    let sum = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                    // Sums of up to 3,000 terms of order 1/50, rounded one by one.
                    let tolerance = if sum == DType::F64 { 1e-12 } else { 3e-5 };
                    for (direction, x) in [(UP, &visible), (DOWN, &states)] {
                        let want = patch_product_reference(&wide(x)?, &wide(&weight)?, &grid, direction)?;
                        let out = Tensor::full(f32::NAN, want.shape(), &device)?.to_dtype(sum)?;
                        patch_product_(&out, &there(x)?, &there(&weight)?, &grid, direction, 1.)?;
                        let what =
                            format!("{direction:?} {grid:?} {batch} {dtype:?} on {:?}", device.location());
                        let (got, want) = (out.to_dtype(DType::F32)?, want.to_dtype(DType::F32)?);
                        assert_close(&what, &got.to_device(&CPU)?, &want, tolerance, tolerance)?;
                    }
                    let want = patch_gradient_reference(&wide(&states)?, &wide(&visible)?, &grid)?;
                    let out = Tensor::full(f32::NAN, want.shape(), &device)?.to_dtype(sum)?;
                    patch_gradient_(&out, &there(&states)?, &there(&visible)?, &grid, Factors::OVERWRITE)?;
                    let what = format!("gradient {grid:?} {batch} {dtype:?} on {:?}", device.location());
                    let (got, want) = (out.to_dtype(DType::F32)?, want.to_dtype(DType::F32)?);
                    assert_close(&what, &got.to_device(&CPU)?, &want, tolerance, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn rows_cell_by_cell_match_their_reference() -> Result<()> {
    for device in devices()? {
        // Runs of eight, four, two and three values.
        for at in [
            grid([1, 24, 40, 1], 24, 8),
            grid([2, 8, 12, 1], 8, 4),
            grid([3, 6, 4, 1], 2, 2),
            grid([2, 4, 6, 3], 2, 1),
        ] {
            let rows = (uniform((7, at.n_values()), &CPU, Philox::new(64, 0))? * 255.)?;
            for from in [DType::U8, DType::F32] {
                let x = rows.to_dtype(from)?.to_device(&device)?;
                let want = cells_into_reference(&rows.to_dtype(from)?, &at, 1. / 255.)?;
                // f32 exactly, two f16 numbers to 2^-22, f16 to 2^-11, bf16 to 2^-8.
                for (to, parts, tolerance) in [
                    (DType::F32, 1, 0.),
                    (DType::F16, 2, 3e-7),
                    (DType::F16, 1, 5e-4),
                    (DType::BF16, 1, 4e-3),
                ] {
                    let shape = if parts == 2 { vec![2, 7, at.n_values()] } else { vec![7, at.n_values()] };
                    let out = Tensor::full(9f32, shape, &device)?.to_dtype(to)?;
                    cells_into_(&out, &x, &at, 1. / 255.)?;
                    let got = out.to_device(&CPU)?.to_dtype(DType::F32)?;
                    let got = if parts == 2 { got.sum(0)? } else { got };
                    let what = format!("{at:?} {from:?} to {parts} x {to:?} on {:?}", device.location());
                    assert_close(&what, &got, &want, tolerance, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn derivatives_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        let Case { grid, weight, visible, .. } = case(odd_grids()[3], 9)?;
        let run = |device: &Device| -> Result<[Tensor; 2]> {
            let of = |t: &Tensor| candle::Var::from_tensor(&t.to_device(device)?);
            let (x, w) = (of(&visible)?, of(&weight)?);
            let all = patch_product(&x, &w, &grid, UP)?.sin()?.sum_all()?.backward()?;
            let of = |t: &Tensor| match all.get(t) {
                Some(t) => t.to_device(&CPU),
                None => candle::bail!("a derivative is missing"),
            };
            Ok([of(&x)?, of(&w)?])
        };
        for (got, want) in run(&device)?.iter().zip(run(&CPU)?) {
            assert_close("derivative", got, &want, 3e-5, 3e-5)?;
        }
    }
    Ok(())
}

#[test]
fn units_of_16_bit_products_match_their_reference() -> Result<()> {
    let philox = Philox::new(61, 5);
    for device in devices()? {
        for at in fused_grids().into_iter().chain(warpgroup_grids()) {
            for batch in sizes_here(&[1, 130, 193], |batch| 10 * batch * products(at)) {
                let Case { grid, hidden, weight, visible, states } = case(at, batch)?;
                if device.is_cuda() {
                    assert!(patch_steps_fuse(&device, &grid, hidden), "{grid:?} {hidden}");
                }
                for (direction, x, unit) in [
                    (UP, &visible, Unit::Bernoulli),
                    (DOWN, &states, Unit::Bernoulli),
                    (DOWN, &states, Unit::Gaussian),
                ] {
                    let n = match direction {
                        UP => grid.n_patches() * hidden,
                        DOWN => grid.n_values(),
                    };
                    let bias = normal(n, &CPU, Philox::new(61, 0))?;
                    for (dtype, parts) in [(DType::F16, 2), (DType::F16, 1), (DType::BF16, 1)] {
                        let x_parts = if direction == UP { parts } else { 1 };
                        let there = |t: &Tensor, parts: usize, scale: f32| match parts {
                            2 => split(t, scale, &device),
                            _ => (t * f64::from(scale))?.to_dtype(dtype)?.to_device(&device)?.unsqueeze(0),
                        };
                        let scale = if dtype == DType::F16 { 64. } else { 1. };
                        let (x, w) = (there(x, x_parts, 1.)?, there(&weight, parts, scale)?);
                        let whole = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F64)?.sum(0);
                        let pre = patch_product_reference(&whole(&x)?, &whole(&w)?, &grid, direction)?;
                        let pre = (pre / f64::from(scale))?.to_dtype(DType::F32)?;
                        let sums = pre.clone();
                        let (mean, sample) = units_reference(&pre, &bias, unit, Some(philox), None)?;
                        let planes = Tensor::full(7f32, (3 * parts, batch, n), &device)?.to_dtype(dtype)?;
                        let scratch = Tensor::zeros((batch, n), DType::F32, &device)?;
                        let low = (parts == 2).then_some(3);
                        let out = UnitPlanes { mean: Some(2), mean_scale: -1., sample: Some(0), low };
                        let bias = bias.to_device(&device)?;
                        let draws = Draws::At(philox);
                        units_of_patches_(
                            &planes,
                            &scratch,
                            &x,
                            &w,
                            &grid,
                            direction,
                            1. / scale,
                            &bias,
                            unit,
                            out,
                            draws,
                            None,
                        )?;
                        let planes = planes.to_device(&CPU)?.to_dtype(DType::F32)?;
                        let read = |plane: usize, low: bool| match low {
                            true => planes.get(plane)? + planes.get(plane + 3)?,
                            false => planes.get(plane),
                        };
                        let what = format!(
                            "{direction:?} {unit:?} {grid:?} x {hidden}, {batch} rows, {parts} x {dtype:?} on {:?}",
                            device.location()
                        );
                        // Two parts round at 2^-22, f16 at 2^-11 and bf16 at 2^-8; sums at 1e-6.
                        let tolerance = match (parts, dtype) {
                            (2, _) => 4e-6,
                            (_, DType::F16) => 6e-4,
                            _ => 5e-3,
                        };
                        assert_close(&what, &read(2, parts == 2)?.neg()?, &mean, tolerance, tolerance)?;
                        let got = read(0, parts == 2 && unit == Unit::Gaussian)?;
                        if unit == Unit::Gaussian {
                            assert_close(&what, &got, &sample, tolerance, 4. * tolerance)?;
                        } else {
                            // A draw within the error of its mean may fall to the other side.
                            let differ = (got - sample)?.abs()?.sum_all()?.to_scalar::<f32>()?;
                            let allowed = 2. + 10. * tolerance * (batch * n) as f32;
                            assert!(differ <= allowed, "{what}: {differ} of {} samples differ", batch * n);
                        }
                        sums_of_patches_(&scratch, &x, &w, &grid, direction, 1. / scale)?;
                        assert_close(&format!("sums, {what}"), &scratch.to_device(&CPU)?, &sums, 1e-5, 2e-5)?;
                        let free = planes.get(1)?.ne(7f32)?.to_dtype(DType::F32)?.sum_all()?;
                        assert_eq!(free.to_scalar::<f32>()?, 0., "{what}: another plane was written");
                    }
                }
            }
        }
    }
    Ok(())
}
