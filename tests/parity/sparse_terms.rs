//! What stands between the products of a pass of a sparse autoencoder: the bits of the CPU, or
//! within the rounding of a logarithm of them.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    Activation, SparseCost, SparseParameters, SparseParts, divergence_parts, layer_backward_biased_,
    sparse_begin_, sparse_figures, sparse_figures_of_lines, sparse_figures_of_products, sparsity_pull_,
    square_parts,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;
/// Visible units and features, around the 256 lanes of a part and the 4096 entries that a block
/// takes at once: lines shorter, as long and longer than the lanes, and matrices that end with a
/// part, or one entry before or after.
const SIZES: [(usize, usize); 11] = [
    (1, 1),
    (3, 1),
    (17, 33),
    (1, 1023),
    (45, 23),
    (785, 501),
    (64, 1025),
    (256, 16),
    (257, 255),
    (241, 17),
    (1, 4095),
];

fn cost(n_visible: usize, n_hidden: usize) -> SparseCost {
    SparseCost {
        n_visible,
        n_hidden,
        decoder: Activation::Sigmoid,
        weight_decay: 0.003,
        sparsity_weight: 3.,
        sparsity_target: 0.05,
    }
}

fn bits(t: &Tensor) -> Result<Vec<u64>> {
    let t = t.to_device(&CPU)?.flatten_all()?.to_dtype(DType::F64)?;
    Ok(t.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
}

/// Distances of lines for their widths: as they are, those of whole 16 bytes, and others.
const DISTANCES: [fn(usize) -> usize; 3] = [|n| n, |n| n.next_multiple_of(8), |n| n + 3];

/// Weights in lines so far apart in matrices, of which all is NaN, and biases.
fn parameters(
    (v, h): (usize, usize),
    line: fn(usize) -> usize,
    dtype: DType,
    device: &Device,
) -> Result<([Tensor; 2], SparseParameters)> {
    let nans = |shape: &[usize]| Tensor::full(f32::NAN, shape, device);
    let all = [nans(&[h, line(v)])?.to_dtype(dtype)?, nans(&[v, line(h)])?.to_dtype(dtype)?];
    let own = SparseParameters {
        weight: all[0].narrow(1, 0, v)?,
        decoder_weight: all[1].narrow(1, 0, h)?,
        bias: nans(&[h])?,
        visible_bias: nans(&[v])?,
    };
    Ok((all, own))
}

#[test]
fn passes_begin_with_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (v, h) in SIZES {
            let (cost, n) = (cost(v, h), 2 * v * h + v + h);
            // At an offset, as parameters beside others are.
            let theta = normal(n + 1, &CPU, Philox::new(40, 1))?;
            for (line, dtype) in
                DISTANCES.into_iter().flat_map(|line| [(line, DType::F32), (line, DType::BF16)])
            {
                let made = |device: &Device| -> Result<[Tensor; 6]> {
                    // What lies beside the weights must stay.
                    let ([weight, decoder], copy) = parameters((v, h), line, dtype, device)?;
                    let squares = Tensor::full(f64::NAN, square_parts(cost), device)?;
                    let gathered = Tensor::full(f64::NAN, (2, 1001), device)?;
                    let theta = theta.to_device(device)?.narrow(0, 1, n)?;
                    sparse_begin_(&copy, &squares, &gathered, &theta, cost)?;
                    Ok([weight, decoder, copy.bias, copy.visible_bias, squares, gathered])
                };
                for (got, want) in made(&device)?.iter().zip(&made(&CPU)?) {
                    let what = format!("{v}-{h} {dtype:?} on {:?}", device.location());
                    match got.dtype() {
                        DType::F64 => assert_eq!(bits(got)?, bits(want)?, "{what}"),
                        _ => assert_same_bits(&what, &got.to_device(&CPU)?, want)?,
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn passes_of_large_networks_begin_with_the_bits_of_the_cpu() -> Result<()> {
    // So many weights that a part is of more than 4096 entries; lines of odd lengths.
    let (v, h) = (4099, 4097);
    let (cost, n) = (cost(v, h), 2 * v * h + v + h);
    let theta = normal(n + 3, &CPU, Philox::new(46, 0))?;
    for device in devices()? {
        for (line, dtype) in [(DISTANCES[0], DType::F32), (DISTANCES[1], DType::BF16)] {
            let made = |device: &Device| -> Result<(Vec<u64>, SparseParameters)> {
                let (_, copy) = parameters((v, h), line, dtype, device)?;
                let squares = Tensor::full(f64::NAN, square_parts(cost), device)?;
                let gathered = Tensor::zeros(1, DType::F64, device)?;
                let theta = theta.to_device(device)?.narrow(0, 3, n)?;
                sparse_begin_(&copy, &squares, &gathered, &theta, cost)?;
                Ok((bits(&squares)?, copy))
            };
            let ((squares, copy), (want_squares, want)) = (made(&device)?, made(&CPU)?);
            let what = format!("{dtype:?} on {:?}", device.location());
            assert_eq!(squares, want_squares, "{what}");
            for (got, want) in [
                (copy.weight, want.weight),
                (copy.decoder_weight, want.decoder_weight),
                (copy.bias, want.bias),
                (copy.visible_bias, want.visible_bias),
            ] {
                assert_same_bits(&what, &got.to_device(&CPU)?, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn figures_of_lines_are_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (v, h) in SIZES {
            let (cost, n, m) = (cost(v, h), 2 * v * h + v + h, 193);
            let (theta, numbers) =
                (normal(n + 1, &CPU, Philox::new(45, 0))?, normal(n, &CPU, Philox::new(45, 1))?);
            let sums = uniform(m, &CPU, Philox::new(45, 2))?.to_dtype(DType::F64)?;
            for line in DISTANCES {
                let made = |device: &Device| -> Result<(Tensor, Tensor)> {
                    let (_, of_rows) = parameters((v, h), line, DType::F32, device)?;
                    let f64s = |n: usize| Tensor::zeros(n, DType::F64, device);
                    let (squares, gathered) = (f64s(square_parts(cost))?, f64s(1)?);
                    sparse_begin_(&of_rows, &squares, &gathered, &numbers.to_device(device)?, cost)?;
                    let sums = sums.to_device(device)?;
                    let divergence = Tensor::new(&[0.25], device)?;
                    let parts = SparseParts { losses: sums.clone(), squares: sums, divergence };
                    let theta = theta.to_device(device)?.narrow(0, 1, n)?;
                    sparse_figures_of_lines(&parts, &theta, &of_rows, cost, m)
                };
                let ((figures, gradient), (want, want_gradient)) = (made(&device)?, made(&CPU)?);
                let what = format!("{v}-{h} on {:?}", device.location());
                assert_eq!(bits(&figures)?, bits(&want)?, "{what}");
                assert_same_bits(&what, &gradient.to_device(&CPU)?, &want_gradient)?;
            }
        }
    }
    Ok(())
}

#[test]
fn figures_of_products_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (v, h) in SIZES {
            for m in [7, 193] {
                let (n, whole) = (v * h, |n: usize| n.next_multiple_of(8));
                let theta = normal(2 * n + v + h, &CPU, Philox::new(44, 0))?;
                let random = |n: usize, at| normal((m, whole(n)), &CPU, Philox::new(44, at));
                let [x, a, delta, hidden] = [random(v, 1)?, random(h, 2)?, random(v, 3)?, random(h, 4)?];
                let biases = normal(v + h, &CPU, Philox::new(44, 5))?;
                let sums = uniform(m, &CPU, Philox::new(44, 6))?.to_dtype(DType::F64)?;
                for dtype in [DType::BF16, DType::F32] {
                    let made = |device: &Device| -> Result<(Tensor, Tensor)> {
                        // In lines of whole 16 bytes, as the passes have them.
                        let of = |t: &Tensor, n| t.to_dtype(dtype)?.to_device(device)?.narrow(1, 0, n);
                        let (hidden, delta) = (of(&hidden, h)?.t()?, of(&delta, v)?.t()?);
                        let (x, a) = (of(&x, v)?, of(&a, h)?);
                        let sums = sums.to_device(device)?;
                        let divergence = Tensor::new(&[0.25], device)?;
                        let parts = SparseParts { losses: sums.clone(), squares: sums, divergence };
                        let (theta, biases) = (theta.to_device(device)?, biases.to_device(device)?);
                        let products = [(&hidden, &x), (&delta, &a)];
                        sparse_figures_of_products(&parts, &theta, products, &biases, cost(v, h), m)
                    };
                    let ((figures, gradient), (want, want_gradient)) = (made(&device)?, made(&CPU)?);
                    let what = format!("{v}-{h}, {m} rows, {dtype:?} on {:?}", device.location());
                    assert_eq!(bits(&figures)?, bits(&want)?, "{what}");
                    // Products of 8 bits each are exact, and sums of m of about 1 round by 2⁻²⁴ of
                    // about √m, or twice that where tensor cores cut off, m times at most.
                    let atol = (m as f32).powf(1.5) * 2f32.powi(-23);
                    assert_close(&what, &gradient, &want_gradient, 1e-6, atol)?;
                    let of_biases = |t: &Tensor| t.narrow(0, 2 * n, v + h)?.to_device(&CPU);
                    assert_same_bits(&what, &of_biases(&gradient)?, &of_biases(&want_gradient)?)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn pulls_and_the_divergence_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (n, m) in [(1, 1), (3, 2), (255, 7), (256, 3), (257, 1000), (4097, 10_001)] {
            for (of_sums, to) in [
                (DType::F32, DType::F32),
                (DType::F32, DType::F64),
                (DType::F64, DType::F32),
                (DType::F64, DType::F64),
            ] {
                let sums = (uniform(n, &CPU, Philox::new(41, 0))? * m as f64)?;
                let mut sums = sums.to_dtype(DType::F64)?.to_vec1::<f64>()?;
                // Always off, always on, and barely.
                for (sum, mean) in sums.iter_mut().zip([0., 1., 1e-31, 2e-30]) {
                    *sum = mean * m as f64;
                }
                let sums = Tensor::new(sums, &CPU)?.to_dtype(of_sums)?;
                let made = |device: &Device| -> Result<(Tensor, Vec<f64>)> {
                    let pull = Tensor::zeros(n, to, device)?;
                    let divergence = Tensor::full(f64::NAN, divergence_parts(cost(5, n)), device)?;
                    sparsity_pull_(&pull, &divergence, &sums.to_device(device)?, cost(5, n), m)?;
                    Ok((pull.to_device(&CPU)?, divergence.to_vec1::<f64>()?))
                };
                let ((got, divergence), (want, want_divergence)) = (made(&device)?, made(&CPU)?);
                let what = format!("{n} of {m} rows, {of_sums:?} to {to:?} on {:?}", device.location());
                // No logarithm goes into a pull.
                assert_eq!(bits(&got)?, bits(&want)?, "{what}");
                for (i, (got, want)) in divergence.iter().zip(&want_divergence).enumerate() {
                    // The two terms of a feature are below 3, and cancel near the target.
                    let within = (got - want).abs() <= 1e-14 * want.abs() + 1e-15;
                    assert!(within, "{what}, part {i}: {got}, want {want}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn figures_and_gradient_are_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (v, h) in SIZES {
            for dtype in [DType::F32, DType::F64] {
                let (n, m) = (2 * v * h + v + h, 1000 + h);
                let random = |n: usize, at| uniform(n, &CPU, Philox::new(42, at))?.to_dtype(DType::F64);
                let (theta, of_rows) =
                    (normal(n, &CPU, Philox::new(42, 0))?, normal(n, &CPU, Philox::new(42, 1))?);
                let gathered = random(2 * m, 2)?.reshape((2, m))?;
                let (squares, divergence) = (random(square_parts(cost(v, h)), 3)?, random(1 + h / 9, 4)?);
                let made = |device: &Device| -> Result<(Tensor, Tensor)> {
                    let parts = SparseParts {
                        losses: gathered.to_device(device)?.narrow(0, 0, 1)?,
                        squares: squares.to_device(device)?,
                        divergence: divergence.to_device(device)?,
                    };
                    let there = |t: &Tensor| t.to_dtype(dtype)?.to_device(device);
                    sparse_figures(&parts, &there(&theta)?, &there(&of_rows)?, cost(v, h), m)
                };
                let ((figures, gradient), (want, want_gradient)) = (made(&device)?, made(&CPU)?);
                let what = format!("{v}-{h} {dtype:?} on {:?}", device.location());
                assert_eq!(bits(&figures)?, bits(&want)?, "{what}");
                assert_eq!(bits(&gradient)?, bits(&want_gradient)?, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn deltas_with_a_part_for_each_unit_are_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        // Units that are a multiple of four and not, and elements that are where units are not.
        for (rows, n) in [(1, 1), (4, 7), (3, 5), (33, 130), (100, 196), (513, 1001)] {
            let delta = normal((rows, n), &CPU, Philox::new(43, 0))?;
            let (a, bias) =
                (uniform((rows, n), &CPU, Philox::new(43, 1))?, normal(n, &CPU, Philox::new(43, 2))?);
            for f in [Activation::Identity, Activation::Sigmoid, Activation::Relu, Activation::Tanh] {
                let made = |device: &Device| -> Result<Tensor> {
                    let delta = delta.to_device(device)?.copy()?;
                    layer_backward_biased_(&delta, &a.to_device(device)?, &bias.to_device(device)?, f)?;
                    delta.to_device(&CPU)
                };
                let what = format!("[{rows}, {n}] {f:?} on {:?}", device.location());
                assert_same_bits(&what, &made(&device)?, &made(&CPU)?)?;
            }
        }
    }
    Ok(())
}
