//! The product in place: equal to plain loops in f64, whatever way the operands lie.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::split_into_;
use chandlery_ops::core::{Draws, bernoulli, normal, uniform};
use chandlery_ops::layers::{
    Factors, Unit, UnitPlanes, gemm_, gemm_batched_, gemm_onto_, gemm_parts_, gemm_reference, gemm_split_,
    units_of_product_,
};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, devices, sizes_here};

/// Error of a product of k terms of order 1, relative to their size √k: rounding of the operands,
/// and of the sum.
fn tolerance(precision: Precision, dtype: DType, k: usize) -> f32 {
    let operands = match (precision, dtype) {
        (_, DType::F64) => return 1e-12,
        (_, DType::F16) => 2f32.powi(-10),
        (Precision::Bf16, _) | (_, DType::BF16) => 2f32.powi(-8),
        (Precision::Tf32, _) => 2f32.powi(-10),
        (Precision::F32, _) => 0.,
    };
    // Two operands a term, errors adding as a random walk with room for the worst of many entries.
    let sum = 2f32.powi(-24) * (k as f32).sqrt();
    6. * (operands + sum) * (k as f32).sqrt()
}

/// An `[rows, cols]` matrix inside a larger buffer, as it lies or as the transposed view of one.
fn operand(rows: usize, cols: usize, transposed: bool, dtype: DType, stream: u64) -> Result<Tensor> {
    let (r, c) = if transposed { (cols, rows) } else { (rows, cols) };
    let buffer = normal((r + 3, c), &Device::Cpu, Philox::new(20, stream))?.to_dtype(dtype)?;
    let inside = buffer.narrow(0, 2, r)?;
    if transposed { inside.t() } else { Ok(inside) }
}

/// The same view on another device, not a contiguous copy of it.
fn moved(t: &Tensor, transposed: bool, device: &Device) -> Result<Tensor> {
    let base = if transposed { t.t()? } else { t.clone() };
    // One row before it, so that the view starts at an offset there too.
    let padded = Tensor::cat(&[&base.narrow(0, 0, 1)?, &base], 0)?.to_device(device)?;
    let inside = padded.narrow(0, 1, base.dim(0)?)?;
    if transposed { inside.t() } else { Ok(inside) }
}

#[test]
fn gemm_matches_plain_loops_for_every_layout_and_precision() -> Result<()> {
    let sizes = [
        (1, 1, 1),
        (1, 7, 3),
        (5, 1, 9),
        (3, 4, 1),
        (31, 33, 32),
        (64, 65, 130),
        (129, 100, 257),
        // Few rows, up to the last for which nothing is packed and beyond; long sums; few terms.
        (1, 150, 2061),
        (6, 83, 67),
        (16, 71, 2100),
        (17, 71, 40),
        (150, 77, 16),
        (61, 83, 33),
    ];
    for device in devices()? {
        for (m, n, k) in sizes {
            for (a_t, b_t) in [(false, false), (false, true), (true, false), (true, true)] {
                for (precision, dtype, out) in [
                    (Precision::F32, DType::F32, DType::F32),
                    (Precision::Tf32, DType::F32, DType::F32),
                    (Precision::Bf16, DType::F32, DType::F32),
                    (Precision::Bf16, DType::BF16, DType::F32),
                    (Precision::Tf32, DType::F16, DType::F32),
                    (Precision::F32, DType::F64, DType::F64),
                ] {
                    let a = operand(m, k, a_t, dtype, 0)?;
                    let b = operand(k, n, b_t, dtype, 1)?;
                    let c = normal((m, n), &Device::Cpu, Philox::new(20, 2))?.to_dtype(out)?;
                    for (alpha, beta) in [(1., 0.), (-0.5, 0.75)] {
                        let got = c.to_device(&device)?.copy()?;
                        let (a_d, b_d) = (moved(&a, a_t, &device)?, moved(&b, b_t, &device)?);
                        gemm_(&got, &a_d, &b_d, Factors::Host { alpha, beta }, precision)?;
                        let want = gemm_reference(&c, &a, &b, alpha, beta)?;
                        let what = format!(
                            "gemm {m}x{n}x{k} a_t={a_t} b_t={b_t} {precision:?} {dtype:?} alpha={alpha} on {:?}",
                            device.location()
                        );
                        assert_close(
                            &what,
                            &got.to_device(&Device::Cpu)?,
                            &want,
                            1e-6,
                            tolerance(precision, dtype, k),
                        )?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Gradients of large matrices of weights, for which capability 9.0 has a kernel: operands in lines
/// that lie apart, and results that end within a tile.
#[test]
fn products_onto_a_large_matrix_match_those_of_the_cpu() -> Result<()> {
    for (m, n, k) in [(2944, 2944, 1), (3001, 2948, 70), (2890, 3008, 270)] {
        let operand = |width: usize, stream| {
            let line = width.next_multiple_of(8) + 8;
            normal((k + 1, line), &Device::Cpu, Philox::new(21, stream))?.to_dtype(DType::BF16)
        };
        let (a, b) = (operand(m, 0)?, operand(n, 1)?);
        let old = normal(m * n + 8, &Device::Cpu, Philox::new(21, 2))?;
        let inside = |t: &Tensor| t.narrow(0, 4, m * n)?.reshape((m, n));
        let lines = |t: &Tensor, width| t.narrow(0, 1, k)?.narrow(1, 8, width);
        let product = |device: &Device| {
            let whole = Tensor::full(f32::NAN, m * n + 8, device)?;
            let [a, b, there] = [&a, &b, &old].map(|t| t.to_device(device));
            let there = there?;
            let (a, b) = (lines(&a?, m)?, lines(&b?, n)?);
            gemm_onto_(&inside(&whole)?, &inside(&there)?, &a.t()?, &b, 0.75, Precision::F32)?;
            let what = format!("{m}x{n}x{k} on {:?}", device.location());
            let beside = [whole.narrow(0, 0, 4)?, whole.narrow(0, m * n + 4, 4)?];
            for beside in beside {
                assert!(beside.to_vec1::<f32>()?.iter().all(|x| x.is_nan()), "{what}: written beside");
            }
            assert_eq!(there.to_vec1::<f32>()?, old.to_vec1::<f32>()?, "{what}");
            inside(&whole)?.to_device(&Device::Cpu)
        };
        let want = product(&Device::Cpu)?;
        for device in devices()? {
            // Products of bf16 numbers are exact in f32, so that only sums round.
            let sums = 6. * 2f32.powi(-24) * k as f32;
            assert_close(&format!("{m}x{n}x{k}"), &product(&device)?, &want, 1e-6, sums)?;
        }
    }
    Ok(())
}

#[test]
fn products_onto_a_matrix_match_plain_loops_and_leave_it_as_it_is() -> Result<()> {
    for device in devices()? {
        // Matrices that begin on any multiple of 4 bytes, with lines that are whole 16 bytes or not.
        for (m, n, k) in [(1, 1, 1), (5, 1, 9), (31, 33, 7), (64, 72, 130), (129, 101, 257), (785, 501, 193)]
        {
            for (a_t, b_t) in [(false, false), (false, true), (true, false), (true, true)] {
                for (precision, dtype) in [
                    (Precision::F32, DType::F32),
                    (Precision::Tf32, DType::F32),
                    (Precision::Bf16, DType::BF16),
                    (Precision::F32, DType::F16),
                ] {
                    if m > 700 && a_t == b_t {
                        continue;
                    }
                    let (a, b) = (operand(m, k, a_t, dtype, 0)?, operand(k, n, b_t, dtype, 1)?);
                    let old = normal(m * n + 1, &Device::Cpu, Philox::new(20, 2))?;
                    let inside = |t: &Tensor| t.narrow(0, 1, m * n)?.reshape((m, n));
                    let there = old.to_device(&device)?;
                    let whole = Tensor::full(f32::NAN, m * n + 2, &device)?;
                    let (a_d, b_d) = (moved(&a, a_t, &device)?, moved(&b, b_t, &device)?);
                    gemm_onto_(&inside(&whole)?, &inside(&there)?, &a_d, &b_d, 0.75, precision)?;
                    let want = gemm_reference(&inside(&old)?, &a, &b, 1., 0.75)?;
                    let what = format!(
                        "{m}x{n}x{k} a_t={a_t} b_t={b_t} {precision:?} {dtype:?} on {:?}",
                        device.location()
                    );
                    let tolerance = tolerance(precision, dtype, k);
                    assert_close(&what, &inside(&whole)?.to_device(&Device::Cpu)?, &want, 1e-6, tolerance)?;
                    let beside = whole.to_vec1::<f32>()?;
                    assert!(beside[0].is_nan() && beside[m * n + 1].is_nan(), "{what}: written beside");
                    assert_eq!(there.to_vec1::<f32>()?, old.to_vec1::<f32>()?, "{what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gemm_overwrites_even_a_nan_and_leaves_the_rest_of_the_buffer() -> Result<()> {
    for device in devices()? {
        let buffer = Tensor::full(f32::NAN, (3, 2, 5), &device)?;
        let (a, b) = (Tensor::ones((2, 3), DType::F32, &device)?, Tensor::ones((3, 5), DType::F32, &device)?);
        gemm_(&buffer.get(1)?, &a, &b, Factors::OVERWRITE, Precision::F32)?;
        let values = buffer.flatten_all()?.to_vec1::<f32>()?;
        for (i, x) in values.iter().enumerate() {
            assert!(if (10..20).contains(&i) { *x == 3. } else { x.is_nan() }, "entry {i} is {x}");
        }
    }
    Ok(())
}

#[test]
fn factors_on_the_device_are_those_of_the_host() -> Result<()> {
    for device in devices()? {
        let draw = |shape: (usize, usize), stream| normal(shape, &device, Philox::new(21, stream));
        let (a, b, c) = (draw((17, 40), 0)?, draw((40, 23), 1)?, draw((17, 23), 2)?);
        let (host, tensor) = (c.copy()?, c.copy()?);
        let factors = Tensor::new(&[9f32, 0.25, -1.5, 9.], &device)?.narrow(0, 1, 2)?;
        gemm_(&host, &a, &b, Factors::Host { alpha: 0.25, beta: -1.5 }, Precision::F32)?;
        gemm_(&tensor, &a, &b, Factors::Tensor(&factors), Precision::F32)?;
        assert_close("factors as a tensor", &tensor, &host, 1e-6, 1e-6)?;
        // And the handle serves candle's own products again.
        let plain = a.matmul(&b)?;
        gemm_(&host, &a, &b, Factors::OVERWRITE, Precision::F32)?;
        assert_close("candle's matmul afterwards", &plain, &host, 1e-6, 1e-5)?;
    }
    Ok(())
}

#[test]
fn operands_that_were_broadcast_multiply_alike_on_every_device() -> Result<()> {
    let one = |shape: (usize, usize), stream: u64| normal(shape, &Device::Cpu, Philox::new(23, stream));
    let factors = Factors::Host { alpha: 0.5, beta: 1. };
    for device in devices()? {
        for (m, n, k) in [(7, 5, 6), (1, 5, 6), (7, 1, 6), (7, 5, 1), (1, 1, 1)] {
            let old = one((m, n), 2)?;
            // Rows alike, columns alike, all alike, and none.
            for a_shape in [(1, k), (m, 1), (1, 1), (m, k)] {
                for b_shape in [(1, n), (k, 1), (1, 1), (k, n)] {
                    let what = format!("{a_shape:?} {b_shape:?} to {m}x{n}x{k} on {:?}", device.location());
                    let a = one(a_shape, 0)?.to_device(&device)?.broadcast_as((m, k))?;
                    let b = one(b_shape, 1)?.to_device(&device)?.broadcast_as((k, n))?;
                    let on_cpu = |t: &Tensor| t.contiguous()?.to_device(&Device::Cpu);
                    let want = gemm_reference(&old, &on_cpu(&a)?, &on_cpu(&b)?, 0.5, 1.)?;
                    let c = old.to_device(&device)?.copy()?;
                    gemm_(&c, &a, &b, factors, Precision::F32)?;
                    assert_close(&what, &on_cpu(&c)?, &want, 1e-6, 1e-5)?;
                    let all = |t: &Tensor| t.unsqueeze(0)?.broadcast_as([&[2], t.dims()].concat());
                    let c = all(&old)?.contiguous()?.to_device(&device)?;
                    gemm_batched_(&c, &all(&a)?, &all(&b)?, factors, Precision::F32)?;
                    for i in 0..2 {
                        assert_close(&format!("{what}, batch {i}"), &on_cpu(&c.get(i)?)?, &want, 1e-6, 1e-5)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn parts_that_share_memory_are_refused_on_every_device() -> Result<()> {
    for device in devices()? {
        let out = Tensor::zeros((1, 3, 4), DType::F16, &device)?.broadcast_as((2, 3, 4))?;
        let x = Tensor::zeros((3, 4), DType::F32, &device)?;
        let refused = split_into_(&out, &x, 1.).expect_err("accepted").to_string();
        let want = "split_into_: the parts of out must be at least 12 entries apart, got strides [0, 4, 1]";
        assert_eq!(refused.lines().next(), Some(want), "on {:?}", device.location());
    }
    Ok(())
}

#[test]
fn gemm_says_what_is_wrong() -> Result<()> {
    let zeros = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let (a, b, c) = (zeros((2, 3))?, zeros((3, 5))?, zeros((2, 5))?);
    let first =
        |r: Result<()>| r.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned();
    let run = |c: &Tensor, a: &Tensor, b: &Tensor| first(gemm_(c, a, b, Factors::OVERWRITE, Precision::F32));
    assert_eq!(
        run(&c, &b, &a),
        "gemm_: a must be [2, k] and b [k, 5] for c [2, 5], got a [3, 5] and b [2, 3]"
    );
    assert_eq!(
        run(&c, &a, &b.to_dtype(DType::F64)?),
        "gemm_: a, b and c must all be f32, all f64, or bf16 operands with an f32 or bf16 c, or f16 ones with an f32 c, got F32, F64, F32"
    );
    assert_eq!(
        run(&zeros((5, 2))?.t()?, &a, &b),
        "gemm_: c must be contiguous, got shape [2, 5] with strides [1, 2]"
    );
    let wide = zeros((3, 10))?.reshape((3, 5, 2))?.narrow(2, 0, 1)?.squeeze(2)?;
    assert_eq!(
        run(&c, &a, &wide),
        "gemm_: b must have unit stride along rows or columns, got shape [3, 5] with strides [10, 2]; call .contiguous() first"
    );
    let short = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
    assert_eq!(
        first(gemm_(&c, &a, &b, Factors::Tensor(&short), Precision::F32)),
        "gemm_: factors must have at least 2 entries and c be f32, got shape [1] and c F32"
    );
    Ok(())
}

/// Root mean square of `got − want` over that of `want`.
fn relative_error(got: &Tensor, want: &Tensor) -> Result<f64> {
    let square = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>();
    let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok((square((got - want)?)? / square(want.clone())?).sqrt())
}

/// `[2, ..]` f16 parts of `scale · x`.
fn parts(x: &Tensor, scale: f32) -> Result<Tensor> {
    let out = Tensor::zeros([&[2], x.dims()].concat(), DType::F16, x.device())?;
    split_into_(&out, x, scale)?;
    Ok(out)
}

#[test]
fn products_of_two_parts_err_no_more_than_those_of_f32() -> Result<()> {
    // The products of a machine's step: grey levels or probabilities by weights, and drawn states
    // by weights. The longest sums of the benchmarks on a GPU, where an error would add up; shorter
    // ones on the CPU.
    for device in devices()? {
        let sizes: &[(usize, usize)] = if device.is_cpu() {
            &[(576, 64)]
        } else {
            &[(576, 1024), (1024, 4096), (2304, 16000), (4096, 11008)]
        };
        for &(n_visible, n_hidden) in sizes {
            let weight = (normal((n_hidden, n_visible), &device, Philox::new(60, 0))? * 0.05)?;
            let v = uniform((48, n_visible), &device, Philox::new(60, 1))?;
            let h = bernoulli(&Tensor::full(0.3f32, (48, n_hidden), &device)?, Philox::new(60, 2))?;
            let copy = parts(&weight, 64.)?;
            for (name, a, a_parts, b, b_parts) in [
                ("v Wᵀ", &v, parts(&v, 1.)?, weight.t()?, copy.transpose(1, 2)?),
                ("h W", &h, h.to_dtype(DType::F16)?.unsqueeze(0)?, weight.clone(), copy.clone()),
            ] {
                let want =
                    a.to_dtype(DType::F64)?.matmul(&b.to_dtype(DType::F64)?)?.to_device(&Device::Cpu)?;
                let got = Tensor::zeros(want.dims(), DType::F32, &device)?;
                gemm_(&got, a, &b, Factors::OVERWRITE, Precision::F32)?;
                let of_f32 = relative_error(&got, &want)?;
                gemm_parts_(&got, &a_parts, &b_parts, 1. / 64.)?;
                let error = relative_error(&got, &want)?;
                // The same in the kernel that makes units of it: Gaussian means are the product, in
                // two parts.
                let planes = Tensor::zeros([&[2], want.dims()].concat(), DType::F16, &device)?;
                let bias = Tensor::zeros(want.dim(1)?, DType::F32, &device)?;
                let out = UnitPlanes { mean: Some(0), low: Some(1), ..UnitPlanes::default() };
                let (scale, unit) = (1. / 64., Unit::Gaussian);
                units_of_product_(&planes, &got, &a_parts, &b_parts, scale, &bias, unit, out, Draws::Mode)?;
                let fused = relative_error(&planes.to_dtype(DType::F64)?.sum(0)?, &want)?;
                println!(
                    "{name} {n_visible}x{n_hidden} on {:?}: parts {error:.2e}, with units {fused:.2e}, f32 {of_f32:.2e}",
                    device.location()
                );
                // A CPU sums f32 along the whole product either way: the second parts may only add
                // their own 2^-22.
                let room = if device.is_cpu() { 2f64.powi(-22) } else { 0. };
                for error in [error, fused] {
                    assert!(
                        error <= of_f32 + room,
                        "{name} {n_visible}x{n_hidden} on {:?}: relative error {error:e}, of f32 {of_f32:e}",
                        device.location()
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn products_of_parts_say_what_is_wrong() -> Result<()> {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu);
    let c = zeros(&[2, 3], DType::F32)?;
    let product = |a: &[usize], b: &[usize], dtype| {
        let refused = gemm_parts_(&c, &zeros(a, dtype)?, &zeros(b, dtype)?, 1.).expect_err("accepted");
        Ok::<_, candle::Error>(refused.to_string().lines().next().unwrap_or_default().to_owned())
    };
    assert_eq!(
        product(&[3, 2, 4], &[1, 4, 3], DType::F16)?,
        "gemm_parts_: a must have shape [1 or 2, m, k], got [3, 2, 4]"
    );
    assert_eq!(
        product(&[1, 2, 4], &[1, 5, 3], DType::F16)?,
        "gemm_parts_: b must have shape [1 or 2, 4, n], got [1, 5, 3]"
    );
    assert_eq!(
        product(&[1, 2, 4], &[1, 4, 3], DType::F32)?,
        "gemm_parts_: a and b must be bf16 or f16, got F32"
    );
    assert_eq!(
        product(&[1, 2, 0], &[1, 0, 3], DType::F16)?,
        "gemm_parts_: k must be at least 1, got a [1, 2, 0] and b [1, 0, 3]"
    );
    Ok(())
}

/// The largest error of an entry of `got`, relative to the sum of the sizes of its terms.
fn largest_error(got: &Tensor, want: &Tensor, size: &Tensor) -> Result<f64> {
    let apart = (got.to_device(&Device::Cpu)?.to_dtype(DType::F64)? - want)?.abs()?;
    (apart / size)?.flatten_all()?.max(0)?.to_scalar::<f64>()
}

#[test]
fn products_in_two_tf32_parts_are_as_exact_as_those_of_f32() -> Result<()> {
    for device in devices()? {
        // Results that are large enough for parts, of sizes that are multiples of nothing, with
        // sums around the terms of a part and above; the last is made without.
        let sizes = [(2053, 2050, 513), (4099, 1030, 256), (131, 33_001, 261), (300, 200, 100)];
        for (m, n, k) in sizes_here(&sizes, |(m, n, k)| m * n * k) {
            for (a_t, b_t) in [(false, false), (false, true), (true, false), (true, true)] {
                // Terms of one sign, where tensor cores lose most, in one of the layouts.
                let one_sign = a_t && !b_t;
                let of = |rows, cols, transposed, stream| {
                    let x = operand(rows, cols, transposed, DType::F32, stream)?;
                    match (one_sign, transposed) {
                        (false, _) => Ok(x),
                        (true, false) => x.abs(),
                        (true, true) => x.t()?.abs()?.t(),
                    }
                };
                let (a, b) = (of(m, k, a_t, 0)?, of(k, n, b_t, 1)?);
                let c = normal((m, n), &Device::Cpu, Philox::new(20, 2))?;
                let (a_d, b_d) = (moved(&a, a_t, &device)?, moved(&b, b_t, &device)?);
                let wide = |t: &Tensor| t.contiguous()?.to_dtype(DType::F64);
                let (alpha, beta) = (0.5, 0.75);
                let want = ((wide(&a)?.matmul(&wide(&b)?)? * alpha)? + (wide(&c)? * beta)?)?;
                let size = wide(&a.abs()?)?.matmul(&wide(&b.abs()?)?)?;
                let error = |split: bool| -> Result<f64> {
                    let got = c.to_device(&device)?.copy()?;
                    let factors = Factors::Host { alpha, beta };
                    match split {
                        true => gemm_split_(&got, &a_d, &b_d, factors)?,
                        false => gemm_(&got, &a_d, &b_d, factors, Precision::F32)?,
                    }
                    largest_error(&got, &want, &size)
                };
                let (split, plain) = (error(true)?, error(false)?);
                let what = format!("{m}x{n}x{k} a_t={a_t} b_t={b_t} on {:?}", device.location());
                // The largest of millions of errors varies: half as much again, and one rounding.
                // Tensor cores cut off up to 2⁻²³ of the sum so far for each 8 of 256 terms, where
                // that grows from 0: 32 times half of it.
                let cut = if one_sign { 32. * 2f64.powi(-24) } else { 0. };
                let allowed = (1.5 * plain + 2f64.powi(-24)).max(cut);
                assert!(split <= allowed, "{what}: {split:e}, plain products {plain:e}, allowed {allowed:e}");
            }
        }
    }
    Ok(())
}
