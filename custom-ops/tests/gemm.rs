//! The product on the CPU: equal to plain loops around the sizes of its blocks, and the same bits
//! on any number of threads.
#![allow(clippy::expect_used, clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::core::normal;
use chandlery_ops::layers::{
    BiasGradients, CdOperands, CdUpdate, Factors, WeightStep, cd_update_, gemm_, gemm_onto_, gemm_reference,
};
use chandlery_ops::{Philox, Precision};

/// `[rows, cols]` inside a larger buffer, row-major or the transposed view of one.
fn operand(rows: usize, cols: usize, transposed: bool, stream: u64) -> Result<Tensor> {
    let (r, c) = if transposed { (cols, rows) } else { (rows, cols) };
    let inside = normal((r + 3, c), &Cpu, Philox::new(20, stream))?.narrow(0, 2, r)?;
    if transposed { inside.t() } else { Ok(inside) }
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Fails with the worst entry when `got` is further from `want` than rounding explains: `depth`
/// terms of order 1, whose rounding errors add as a random walk, with room for the worst of many
/// entries.
fn assert_product(what: &str, got: &Tensor, want: &Tensor, depth: usize) -> Result<()> {
    let tolerance = 1e-6 + 6. * 2f32.powi(-24) * depth as f32;
    let (got, want) = (got.flatten_all()?.to_vec1::<f32>()?, want.flatten_all()?.to_vec1::<f32>()?);
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        let error = (got - want).abs();
        assert!(
            error <= tolerance,
            "{what}: entry {at} is {got}, wanted {want}: {:.2} times the tolerance",
            error / tolerance
        );
    }
    Ok(())
}

/// `(rows, cols, depth)` below, at and above the sizes of tiles (6, 16), of blocks (126 to 504
/// rows, 48 columns), and of what is cut at all.
const SIZES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 300, 400),
    (300, 1, 400),
    (2, 49, 2),
    (5, 31, 3),
    (6, 32, 33),
    (65, 47, 513),
    (100, 48, 784),
    (126, 97, 200),
    (127, 96, 90),
    (253, 145, 130),
    (505, 33, 70),
    (509, 10, 300),
    (1300, 50, 17),
];

#[test]
fn products_around_the_sizes_of_blocks_equal_plain_loops() -> Result<()> {
    for (m, n, k) in SIZES {
        for (a_t, b_t) in [(false, false), (false, true), (true, false), (true, true)] {
            let (a, b) = (operand(m, k, a_t, 0)?, operand(k, n, b_t, 1)?);
            let old = normal((m, n), &Cpu, Philox::new(20, 2))?;
            for (alpha, beta) in [(1., 0.), (-0.5, 1.), (0., 0.75)] {
                let got = old.copy()?;
                gemm_(&got, &a, &b, Factors::Host { alpha, beta }, Precision::F32)?;
                let want = gemm_reference(&old, &a, &b, alpha, beta)?;
                let what = format!("{m}x{n}x{k} a_t={a_t} b_t={b_t} alpha={alpha} beta={beta}");
                assert_product(&what, &got, &want, k)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_product_overwrites_nan_when_beta_is_zero() -> Result<()> {
    for (m, n, k) in SIZES {
        for a_t in [false, true] {
            let (a, b) = (operand(m, k, a_t, 0)?, operand(k, n, true, 1)?);
            let got = Tensor::full(f32::NAN, (m, n), &Cpu)?;
            gemm_(&got, &a, &b, Factors::OVERWRITE, Precision::F32)?;
            let want = gemm_reference(&Tensor::zeros((m, n), DType::F32, &Cpu)?, &a, &b, 1., 0.)?;
            assert_product(&format!("{m}x{n}x{k} over NaN"), &got, &want, k)?;
        }
    }
    Ok(())
}

#[test]
fn products_are_the_same_bits_on_any_number_of_threads() -> Result<()> {
    for (m, n, k) in SIZES {
        for (a_t, b_t) in [(false, true), (true, false)] {
            let (a, b) = (operand(m, k, a_t, 0)?, operand(k, n, b_t, 1)?);
            let run = |threads: usize| -> Result<Vec<u32>> {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let c = normal((m, n), &Cpu, Philox::new(20, 2))?;
                let factors = Factors::Host { alpha: 0.3, beta: -1.5 };
                pool.install(|| gemm_(&c, &a, &b, factors, Precision::F32))?;
                bits(&c)
            };
            let one = run(1)?;
            for threads in [2, 3, 5] {
                assert!(run(threads)? == one, "{m}x{n}x{k} a_t={a_t} b_t={b_t} on {threads} threads");
            }
        }
    }
    Ok(())
}

/// The update of f32 states, one pass on the CPU, against the product and `weight_step_` one after
/// the other.
#[test]
fn the_fused_update_is_the_bits_of_product_and_weight_step() -> Result<()> {
    for (rows, cols, batch) in [(1, 1, 1), (5, 31, 3), (127, 97, 50), (500, 131, 20)] {
        for (momentum, l1, l2) in [(0., 0., 0.), (0.9, 0., 2e-4), (0.5, 0.1, 0.01)] {
            let scalars = Tensor::new(&[0.02f32, momentum, 0.1], &Cpu)?;
            let params = normal((2, rows, cols), &Cpu, Philox::new(21, 0))?;
            let (h, x) = (
                normal((1, 3, batch, rows), &Cpu, Philox::new(21, 1))?,
                normal((1, 2, batch, cols), &Cpu, Philox::new(21, 2))?,
            );
            let step = |precision| CdUpdate {
                weights: WeightStep { l1, l2 },
                sparsity: None,
                visible_scale: None,
                copy_scale: 1.,
                advance: 1,
                precision,
                biases: BiasGradients::BothPhases,
                rounding: None,
            };
            let want = params.copy()?;
            let both = |t: &Tensor| t.get(0)?.narrow(0, 0, 2)?.flatten(0, 1);
            gemm_(&want.get(1)?, &both(&h)?.t()?, &both(&x)?, Factors::Tensor(&scalars), Precision::F32)?;
            chandlery_ops::layers::weight_step_(&want, &scalars, WeightStep { l1, l2 })?;
            let zeros = |n: usize| Tensor::zeros((4, n), DType::F32, &Cpu);
            let to = CdOperands {
                params: &params,
                velocity: None,
                copy: None,
                hidden_state: &zeros(rows)?,
                visible_state: &zeros(cols)?,
                counter: &Tensor::zeros(1, DType::I64, &Cpu)?,
            };
            cd_update_(to, &h, &x, &scalars, step(Precision::F32))?;
            assert!(
                bits(&params)? == bits(&want)?,
                "{rows}x{cols}, batch {batch}, momentum {momentum}, l1 {l1}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_product_onto_a_matrix_is_that_onto_a_copy_of_it() -> Result<()> {
    for (m, n, k) in [(1, 1, 1), (5, 31, 3), (130, 50, 70)] {
        for (a_t, b_t) in [(false, false), (true, false), (false, true)] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                // A cast lays a view out anew.
                let cast = |t: Tensor, transposed: bool| match transposed {
                    true => t.t()?.to_dtype(dtype)?.t(),
                    false => t.to_dtype(dtype),
                };
                let (a, b) = (cast(operand(m, k, a_t, 0)?, a_t)?, cast(operand(k, n, b_t, 1)?, b_t)?);
                let onto = normal((m, n), &Cpu, Philox::new(20, 2))?;
                let before = bits(&onto)?;
                let (got, want) = (Tensor::full(f32::NAN, (m, n), &Cpu)?, onto.copy()?);
                gemm_onto_(&got, &onto, &a, &b, -0.75, Precision::F32)?;
                gemm_(&want, &a, &b, Factors::Host { alpha: 1., beta: -0.75 }, Precision::F32)?;
                assert_eq!(bits(&got)?, bits(&want)?, "{m}x{n}x{k} a_t={a_t} b_t={b_t} {dtype:?}");
                assert_eq!(bits(&onto)?, before);
            }
        }
    }
    let (c, a) = (Tensor::zeros((2, 2), DType::F32, &Cpu)?, Tensor::zeros((2, 3), DType::F32, &Cpu)?);
    let refused = gemm_onto_(&c, &a, &a, &a.t()?, 1., Precision::F32).unwrap_err().to_string();
    assert_eq!(refused.lines().next(), Some("gemm_onto_: onto must have shape [2, 2], got [2, 3]"));
    let f64s = |shape: (usize, usize)| Tensor::zeros(shape, DType::F64, &Cpu);
    let (c, a) = (f64s((2, 2))?, f64s((2, 3))?);
    let refused = gemm_onto_(&c, &c.copy()?, &a, &a.t()?, 1., Precision::F32).unwrap_err().to_string();
    assert_eq!(refused.lines().next(), Some("gemm_onto_: c must be f32, got F64"));
    Ok(())
}
