//! What stands between the products of a pass of a sparse autoencoder is that of the formulas, also
//! where features are always off or on.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    Activation, Factors, LEAST_ACTIVATION, Precision, SparseCost, SparseParameters, SparseParts,
    divergence_parts, gemm_, layer_backward_biased_, sparse_begin_, sparse_figures, sparse_figures_of_lines,
    sparse_figures_of_products, sparsity_pull_, square_parts,
};

const RHO: f64 = 0.05;
const BETA: f64 = 3.;
const LAMBDA: f64 = 0.01;
/// Sizes around the 256 lanes and the 4096 entries of a part.
const SIZES: [(usize, usize); 7] = [(1, 1), (1, 5), (7, 3), (33, 31), (2, 1024), (45, 23), (61, 1100)];

fn cost(n_visible: usize, n_hidden: usize) -> SparseCost {
    SparseCost {
        n_visible,
        n_hidden,
        decoder: Activation::Sigmoid,
        weight_decay: LAMBDA,
        sparsity_weight: BETA,
        sparsity_target: RHO,
    }
}

fn zeros(n: usize, dtype: DType) -> Result<Tensor> {
    Tensor::zeros(n, dtype, &Cpu)
}

/// `KL(ρ‖ρ̂)` and `s` of a mean activation, by the definition: ρ ln(ρ/ρ̂) + (1 − ρ) ln((1 − ρ)/(1 − ρ̂)).
fn terms(mean: f64) -> (f64, f64) {
    let rest = 1. - mean;
    let on = if mean < LEAST_ACTIVATION {
        (RHO.ln() - LEAST_ACTIVATION.ln(), 0.)
    } else {
        (RHO.ln() - mean.ln(), 1. / mean)
    };
    let off = if rest < LEAST_ACTIVATION {
        ((1. - RHO).ln() - LEAST_ACTIVATION.ln(), 0.)
    } else {
        ((1. - RHO).ln() - rest.ln(), 1. / rest)
    };
    (RHO * on.0 + (1. - RHO) * off.0, BETA * ((1. - RHO) * off.1 - RHO * on.1))
}

/// The op at `sums` over `m` rows: pull in f64, and the sum of the parts of the divergence.
fn pull_of(sums: &Tensor, m: usize, dtype: DType) -> Result<(Vec<f64>, f64)> {
    let n = sums.dim(0)?;
    let (pull, divergence) = (zeros(n, dtype)?, zeros(divergence_parts(cost(3, n)), DType::F64)?);
    sparsity_pull_(&pull, &divergence, sums, cost(3, n), m)?;
    Ok((pull.to_dtype(DType::F64)?.to_vec1()?, divergence.to_vec1::<f64>()?.iter().sum()))
}

#[test]
fn pulls_and_the_divergence_are_those_of_the_formula() -> Result<()> {
    for (n, m) in [(1, 1), (2, 7), (31, 1000), (255, 3), (256, 64), (257, 10), (5000, 4097)] {
        for of_sums in [DType::F32, DType::F64] {
            let sums = (uniform(n, &Cpu, Philox::new(5, 0))?.affine(0.98, 0.01)? * m as f64)?;
            let sums = sums.to_dtype(of_sums)?;
            let want =
                sums.to_dtype(DType::F64)?.to_vec1::<f64>()?.into_iter().map(|sum| terms(sum / m as f64));
            let want: Vec<_> = want.collect();
            let total: f64 = want.iter().map(|want| want.0).sum();
            // Each result is rounded once; what logarithms and divisions round is far below.
            for (dtype, tolerance) in [(DType::F32, 2f64.powi(-24)), (DType::F64, 1e-14)] {
                let (got, divergence) = pull_of(&sums, m, dtype)?;
                for (j, (got, want)) in got.iter().zip(&want).enumerate() {
                    let want = want.1 / m as f64;
                    // 1/ρ̂ and 1/(1 − ρ̂) are up to 100, and may cancel.
                    assert!(
                        (got - want).abs() <= tolerance * want.abs() + 1e-12 / m as f64,
                        "{n} of {m} rows, {of_sums:?} to {dtype:?}, {j}: {got}, want {want}"
                    );
                }
                assert!((divergence - total).abs() <= 1e-12 * total, "{n}: {divergence}, want {total}");
            }
        }
    }
    Ok(())
}

#[test]
fn features_that_are_always_off_or_on_have_a_bounded_term_without_slope() -> Result<()> {
    // In f64 1 − 1e-16 is 1; the least is still within, what is below counts as it.
    let means = [0., 1., LEAST_ACTIVATION, 0.9 * LEAST_ACTIVATION, 1e-300, 1. - 1e-17, 1. - 1e-15, RHO];
    for m in [1usize, 12] {
        let sums: Vec<f64> = means.iter().map(|mean| mean * m as f64).collect();
        let (pull, divergence) = pull_of(&Tensor::new(sums.as_slice(), &Cpu)?, m, DType::F64)?;
        let of_sums: Vec<_> = sums.iter().map(|sum| terms(sum / m as f64)).collect();
        for ((mean, pull), (_, want)) in means.iter().zip(&pull).zip(&of_sums) {
            let want = want / m as f64;
            assert!((pull - want).abs() <= 1e-13 * want.abs() + 1e-14, "{mean}: {pull}, want {want}");
        }
        // Off: the slope of the other term alone. On: the same. At the target: none.
        assert!((pull[0] - BETA * (1. - RHO) / m as f64).abs() < 1e-14, "{}", pull[0]);
        assert!((pull[1] + BETA * RHO / m as f64).abs() < 1e-14, "{}", pull[1]);
        assert!(pull[7].abs() < 1e-13, "{}", pull[7]);
        let want: f64 = of_sums.iter().map(|of| of.0).sum();
        assert!((divergence - want).abs() < 1e-13 * want, "{divergence}, want {want}");
    }
    Ok(())
}

#[test]
fn a_nan_stays_with_its_feature_and_shows_in_the_divergence() -> Result<()> {
    let sums = Tensor::new(&[0.1f32, f32::NAN, 0.3], &Cpu)?;
    let (pull, divergence) = pull_of(&sums, 1, DType::F32)?;
    assert!(pull[0].is_finite() && pull[1].is_nan() && pull[2].is_finite() && divergence.is_nan());
    Ok(())
}

/// Weights within lines of which all else is NaN, and biases.
fn parameters(v: usize, h: usize, beside: usize, dtype: DType) -> Result<SparseParameters> {
    let nans = |shape: &[usize]| Tensor::full(f32::NAN, shape, &Cpu);
    let lines = |rows: usize, n: usize| nans(&[rows, n + beside])?.to_dtype(dtype)?.narrow(1, 0, n);
    Ok(SparseParameters {
        weight: lines(h, v)?,
        decoder_weight: lines(v, h)?,
        bias: nans(&[h])?,
        visible_bias: nans(&[v])?,
    })
}

/// One after the other.
fn in_one(of: &SparseParameters) -> Result<Vec<f32>> {
    let SparseParameters { weight, decoder_weight, bias, visible_bias } = of;
    let all = [weight, decoder_weight, bias, visible_bias]
        .map(|t| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>());
    all.into_iter().collect::<Result<Vec<_>>>().map(|all| all.concat())
}

#[test]
fn passes_begin_with_the_parameters_the_squares_of_weights_alone_and_nothing_gathered() -> Result<()> {
    // The last has more parameters than one thread takes.
    for (v, h) in SIZES.into_iter().chain([(401, 333)]) {
        for (beside, dtype) in [(0, DType::F32), (3, DType::F32), (0, DType::BF16), (3, DType::BF16)] {
            let (cost, n) = (cost(v, h), 2 * v * h + v + h);
            let theta: Tensor = normal(n, &Cpu, Philox::new(6, 2))?;
            let squares = Tensor::full(f64::NAN, square_parts(cost), &Cpu)?;
            let gathered = Tensor::full(f64::NAN, (2, 9), &Cpu)?;
            let copy = parameters(v, h, beside, dtype)?;
            sparse_begin_(&copy, &squares, &gathered, &theta, cost)?;
            assert_eq!(gathered.flatten_all()?.to_vec1::<f64>()?, [0.; 18]);
            let values = theta.to_vec1::<f32>()?;
            // Of weights before they are rounded; in parts, since one long sum is off by more.
            let square = |w: &f32| f64::from(*w) * f64::from(*w);
            let part = |weights: &[f32]| weights.iter().map(square).sum::<f64>();
            let want: f64 = values[..2 * v * h].chunks(256).map(part).sum();
            let got: f64 = squares.to_vec1::<f64>()?.iter().sum();
            assert!((got - want).abs() <= 1e-13 * want, "{v}-{h}: {got}, want {want}");
            for (i, (got, value)) in in_one(&copy)?.into_iter().zip(values).enumerate() {
                let rounds = dtype == DType::BF16 && i < 2 * v * h;
                let want = if rounds { half::bf16::from_f32(value).to_f32() } else { value };
                assert_eq!(got, want, "{v}-{h} {dtype:?}, parameter {i}");
            }
        }
    }
    Ok(())
}

#[test]
fn parts_of_squares_of_large_networks_are_larger_and_as_few() -> Result<()> {
    // 2 · 4097 · 4099 weights are more than 8192 parts of 4096.
    let (v, h, segment) = (4099, 4097, 8192);
    let cost = cost(v, h);
    let theta = normal(2 * v * h + v + h, &Cpu, Philox::new(6, 3))?;
    let squares = Tensor::full(f64::NAN, square_parts(cost), &Cpu)?;
    let copy = parameters(v, h, 5, DType::F32)?;
    sparse_begin_(&copy, &squares, &zeros(1, DType::F64)?, &theta, cost)?;
    let theta = theta.to_vec1::<f32>()?;
    let part = |weights: &[f32]| weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>();
    let matrices = theta[..2 * v * h].chunks(v * h);
    let want: Vec<f64> = matrices.flat_map(|weights| weights.chunks(segment)).map(part).collect();
    let got = squares.to_vec1::<f64>()?;
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= 1e-12 * want, "part {i}: {got}, want {want}");
    }
    assert!(in_one(&copy)? == theta);
    Ok(())
}

#[test]
fn figures_and_gradient_are_those_of_the_formula() -> Result<()> {
    for (v, h) in SIZES {
        for dtype in [DType::F32, DType::F64] {
            let (cost, n, m) = (cost(v, h), 2 * v * h + v + h, 1500);
            let theta = normal(n, &Cpu, Philox::new(7, 0))?.to_dtype(dtype)?;
            let of_rows = normal(n, &Cpu, Philox::new(7, 1))?.to_dtype(dtype)?;
            let random = |n: usize, at| uniform(n, &Cpu, Philox::new(7, at))?.to_dtype(DType::F64);
            // The first line of what rows gathered.
            let losses = random(2 * m, 2)?.reshape((2, m))?.narrow(0, 0, 1)?;
            let parts = SparseParts { losses, squares: random(3, 3)?, divergence: random(5, 4)? };
            let (figures, gradient) = sparse_figures(&parts, &theta, &of_rows, cost, m)?;
            let sum = |t: &Tensor| -> Result<f64> { Ok(t.flatten_all()?.to_vec1::<f64>()?.iter().sum()) };
            let q = sum(&parts.losses)? / m as f64;
            let (w, k) = (sum(&parts.squares)?, sum(&parts.divergence)?);
            let want = [q + 0.5 * LAMBDA * w + BETA * k, q, w, k];
            for (got, want) in figures.to_vec1::<f64>()?.iter().zip(want) {
                assert!((got - want).abs() <= 1e-13 * want, "{v}-{h}: {got}, want {want}");
            }
            assert_eq!(gradient.dtype(), dtype);
            let f64s = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec1::<f64>();
            let (theta, of_rows) = (f64s(&theta)?, f64s(&of_rows)?);
            for (i, got) in f64s(&gradient)?.into_iter().enumerate() {
                let want = if i < 2 * v * h { of_rows[i] + LAMBDA * theta[i] } else { of_rows[i] };
                // Rounded once to the type.
                let want = if dtype == DType::F32 { f64::from(want as f32) } else { want };
                assert_eq!(got, want, "{v}-{h} {dtype:?}, entry {i}");
            }
        }
    }
    Ok(())
}

#[test]
fn figures_of_lines_are_those_of_the_same_numbers_in_one() -> Result<()> {
    // The last has more parameters than one thread takes.
    for (v, h) in SIZES.into_iter().chain([(401, 333)]) {
        for beside in [0, 3] {
            let (cost, m) = (cost(v, h), 19);
            let of_rows = parameters(v, h, beside, DType::F32)?;
            let numbers = normal(2 * v * h + v + h, &Cpu, Philox::new(10, 0))?;
            let (squares, gathered) = (zeros(square_parts(cost), DType::F64)?, zeros(1, DType::F64)?);
            sparse_begin_(&of_rows, &squares, &gathered, &numbers, cost)?;
            let theta = normal(2 * v * h + v + h, &Cpu, Philox::new(10, 1))?;
            let sums = uniform(m, &Cpu, Philox::new(10, 2))?.to_dtype(DType::F64)?;
            let divergence = Tensor::new(&[0.25], &Cpu)?;
            let parts = SparseParts { losses: sums.clone(), squares: sums, divergence };
            let (figures, gradient) = sparse_figures_of_lines(&parts, &theta, &of_rows, cost, m)?;
            let (want, want_gradient) = sparse_figures(&parts, &theta, &numbers, cost, m)?;
            assert_eq!(figures.to_vec1::<f64>()?, want.to_vec1::<f64>()?, "{v}-{h}");
            assert_eq!(
                gradient.to_vec1::<f32>()?,
                want_gradient.to_vec1::<f32>()?,
                "{v}-{h}, {beside} beside"
            );
        }
    }
    Ok(())
}

#[test]
fn figures_of_products_are_those_of_what_the_products_make() -> Result<()> {
    for (v, h) in SIZES {
        for dtype in [DType::F32, DType::BF16] {
            let (cost, n, m) = (cost(v, h), v * h, 19);
            let theta = normal(2 * n + v + h, &Cpu, Philox::new(9, 0))?;
            let of = |cols: usize, at| normal((m, cols), &Cpu, Philox::new(9, at))?.to_dtype(dtype);
            let (x, a, delta, hidden) = (of(v, 1)?, of(h, 2)?, of(v, 3)?, of(h, 4)?);
            let biases: Tensor = normal(v + h, &Cpu, Philox::new(9, 5))?;
            let sums = uniform(m, &Cpu, Philox::new(9, 6))?.to_dtype(DType::F64)?;
            let divergence = Tensor::new(&[0.25], &Cpu)?;
            let parts = SparseParts { losses: sums.clone(), squares: sums, divergence };

            let (hidden, delta) = (hidden.t()?, delta.t()?);
            let products = [(&hidden, &x), (&delta, &a)];
            let (figures, gradient) = sparse_figures_of_products(&parts, &theta, products, &biases, cost, m)?;
            let of_rows = Tensor::cat(&[zeros(2 * n, DType::F32)?, biases], 0)?;
            for ((a, b), (start, shape)) in products.into_iter().zip([(0, (h, v)), (n, (v, h))]) {
                let to = of_rows.narrow(0, start, n)?.reshape(shape)?;
                gemm_(&to, a, b, Factors::OVERWRITE, Precision::F32)?;
            }
            let (want, want_gradient) = sparse_figures(&parts, &theta, &of_rows, cost, m)?;
            assert_eq!(figures.to_vec1::<f64>()?, want.to_vec1::<f64>()?, "{v}-{h}");
            let (got, want) = (gradient.to_vec1::<f32>()?, want_gradient.to_vec1::<f32>()?);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                // Sums of 19 terms of about 1 and the decay, rounded in another order; of biases none.
                let tolerance = if i < 2 * n { 20. * 2f32.powi(-24) * (19f32.sqrt() + 1.) } else { 0. };
                assert!((got - want).abs() <= tolerance, "{v}-{h} {dtype:?}, {i}: {got}, want {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn deltas_with_a_part_for_each_unit_are_those_of_the_formula() -> Result<()> {
    // Rows and units around a tile of the CPU and four neighbours, and more than one task.
    for (rows, n) in [(1, 1), (3, 7), (5, 4), (33, 130), (70, 1001)] {
        let delta: Tensor = normal((rows, n), &Cpu, Philox::new(8, 0))?;
        let a: Tensor = uniform((rows, n), &Cpu, Philox::new(8, 1))?;
        let bias: Tensor = normal(n, &Cpu, Philox::new(8, 2))?;
        let [d, y, s] = [&delta, &a, &bias].map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        layer_backward_biased_(&delta, &a, &bias, Activation::Sigmoid)?;
        for (e, got) in delta.flatten_all()?.to_vec1::<f32>()?.into_iter().enumerate() {
            let [d, y, s] = [d[e], y[e], s[e % n]].map(f64::from);
            let want = (d + s) * y * (1. - y);
            // Four roundings, of which that of the sum counts where the terms cancel.
            let tolerance = 2.5e-7 * (d.abs() + s.abs()) * y * (1. - y) + 1e-9;
            assert!((f64::from(got) - want).abs() <= tolerance, "[{rows}, {n}] at {e}: {got}, want {want}");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_said() -> Result<()> {
    let first =
        |result: Result<()>| result.unwrap_err().to_string().lines().next().unwrap_or_default().to_owned();
    let (cost, theta) = (cost(4, 3), zeros(31, DType::F32)?);
    let (one, two) = (zeros(1, DType::F64)?, zeros(2, DType::F64)?);
    let (three, wide) = (zeros(3, DType::F32)?, zeros(3, DType::F64)?);
    let parts = SparseParts { losses: wide.clone(), squares: wide.clone(), divergence: one.clone() };
    let copy = parameters(4, 3, 0, DType::F32)?;
    let cases = [
        (
            sparsity_pull_(&three, &one, &three.copy()?, cost, 0),
            "sparsity_pull_: m must be at least 1, got 0",
        ),
        (
            sparsity_pull_(&zeros(4, DType::F32)?, &one, &three, cost, 2),
            "sparsity_pull_: pull must have shape [3], got [4]",
        ),
        (
            sparsity_pull_(&three, &zeros(1, DType::F32)?, &wide, cost, 2),
            "sparsity_pull_: divergence must be f64, got F32",
        ),
        (
            sparsity_pull_(&three, &two, &wide, cost, 2),
            "sparsity_pull_: divergence must have shape [1], got [2]",
        ),
        (
            sparse_begin_(&copy, &one, &wide, &theta, cost),
            "sparse_begin_: squares must have shape [2], got [1]",
        ),
        (
            sparse_begin_(&copy, &two, &wide, &zeros(30, DType::F32)?, cost),
            "sparse_begin_: theta must have shape [31], got [30]",
        ),
        (
            sparse_begin_(&parameters(3, 4, 0, DType::F32)?, &two, &wide, &theta, cost),
            "sparse_begin_: copy.weight must have shape [3, 4], got [4, 3]",
        ),
        (
            sparse_begin_(
                &SparseParameters { bias: theta.narrow(0, 0, 7)?, ..parameters(4, 3, 1, DType::BF16)? },
                &two,
                &wide,
                &theta,
                cost,
            ),
            "sparse_begin_: copy.bias must have shape [3], got [7]",
        ),
        (
            sparse_begin_(&parameters(4, 3, 0, DType::F64)?, &two, &wide, &theta, cost),
            "sparse_begin_: copy.weight must be f32, got F64",
        ),
        (
            sparse_figures_of_lines(&parts, &theta, &parameters(4, 3, 0, DType::BF16)?, cost, 5).map(drop),
            "sparse_figures: of_rows.weight must be f32, got BF16",
        ),
        (
            sparse_figures(&parts, &theta, &theta.to_dtype(DType::F64)?, cost, 5).map(drop),
            "sparse_figures: of_rows must be f32, got F64",
        ),
        (
            sparse_figures_of_products(&parts, &theta, [(&theta, &theta); 2], &theta, cost, 5).map(drop),
            "sparse_figures: of_biases must have shape [7], got [31]",
        ),
        (
            sparse_figures(&parts, &theta, &theta, cost, 0).map(drop),
            "sparse_figures: m must be at least 1, got 0",
        ),
        (
            layer_backward_biased_(
                &zeros(6, DType::F32)?.reshape((2, 3))?,
                &theta,
                &three,
                Activation::Sigmoid,
            ),
            "layer_backward_biased_: output must have shape [2, 3], got [31]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(first(result), want);
    }
    Ok(())
}
