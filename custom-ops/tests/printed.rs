//! The naive and the tiled kernel of the denoising autoencoder's paper are what they are beside:
//! the step in f64, and the product.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    DenoisingParams, TILE_WIDTHS, naive_denoising_step_, naive_denoising_step_reference, tiled_product_,
};

/// With a gap before each bias, and one at the end.
fn params(values: &Tensor, n_visible: usize, n_hidden: usize) -> DenoisingParams<'_> {
    let bias_at = n_visible * n_hidden + 3;
    DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at: bias_at + n_hidden + 1 }
}

#[test]
fn the_naive_form_is_a_step_of_a_minibatch() -> Result<()> {
    for (v, h, batch) in [(1, 1, 1), (7, 5, 3), (33, 20, 9), (130, 41, 16)] {
        let n = v * h + v + h + 9;
        let values = (normal(n, &Cpu, Philox::new(1, 0))? * 0.2)?;
        let of = |stream| uniform((batch, v), &Cpu, Philox::new(1, stream));
        let (x, noisy) = (of(1)?, of(2)?);
        let want = naive_denoising_step_reference(params(&values, v, h), &x, &noisy, 0.5)?;
        let (got, sums) = (values.copy()?, Tensor::zeros(n, DType::F32, &Cpu)?);
        naive_denoising_step_(params(&got, v, h), &sums, &x, &noisy, 0.5)?;
        let apart = (&got - &want)?.abs()?.max_all()?.to_scalar::<f32>()?;
        // Sums of at most 130 products of numbers around 1.
        assert!(apart < 1e-5, "{v}-{h}, {batch} rows: {apart} off");
        assert!((got - values)?.abs()?.max_all()?.to_scalar::<f32>()? > 1e-3, "{v}-{h} did not move");
        assert!(sums.to_vec1::<f32>()?.iter().all(|x| *x == 0.), "sums are zeros again");
    }
    Ok(())
}

#[test]
fn a_tiled_product_is_the_product_in_the_same_bits_at_any_width() -> Result<()> {
    for (rows, cols, depth) in [(1, 1, 1), (4, 3, 5), (33, 17, 31), (50, 32, 64)] {
        let of = |n: usize, stream| normal((n, depth), &Cpu, Philox::new(2, stream));
        let (a, b) = (of(rows, 0)?, of(cols, 1)?);
        let (a2, b2) = (a.to_vec2::<f32>()?, b.to_vec2::<f32>()?);
        for width in TILE_WIDTHS {
            let out = Tensor::full(9f32, (rows, cols), &Cpu)?;
            tiled_product_(&out, &a, &b, width)?;
            for (i, row) in out.to_vec2::<f32>()?.into_iter().enumerate() {
                for (j, got) in row.into_iter().enumerate() {
                    let want = a2[i].iter().zip(&b2[j]).fold(0f32, |sum, (a, b)| sum + a * b);
                    assert_eq!(got.to_bits(), want.to_bits(), "[{i}, {j}] of {rows}×{cols}, width {width}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let first_line =
        |r: Result<()>| r.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
    let zeros = |n: usize| Tensor::zeros(n, DType::F32, &Cpu);
    let matrix = |n, m| Tensor::zeros((n, m), DType::F32, &Cpu);
    let (values, sums) = (zeros(30)?, zeros(30)?);
    let naive = |sums: &Tensor, x: &Tensor, noisy: &Tensor| {
        first_line(naive_denoising_step_(params(&values, 4, 3), sums, x, noisy, 0.1))
    };
    let x = matrix(2, 4)?;
    for (got, want) in [
        (naive(&zeros(29)?, &x, &x), "sums must have shape [30], got [29]"),
        (naive(&sums, &matrix(2, 5)?, &x), "rows must have shape [2, 4], got [2, 5]"),
        (naive(&sums, &x, &matrix(3, 4)?), "corrupted must have shape [2, 4], got [3, 4]"),
        (
            naive(&sums, &matrix(0, 4)?, &matrix(0, 4)?),
            "there must be rows and units, got 0 rows and weights [3, 4]",
        ),
    ] {
        assert_eq!(got, Some(format!("naive_denoising_step_: {want}")));
    }
    let (out, a, b) = (matrix(2, 3)?, matrix(2, 4)?, matrix(3, 4)?);
    assert_eq!(
        first_line(tiled_product_(&out, &a, &b, 5)).as_deref(),
        Some(
            "tiled_product_: width must be one of [4, 8, 16, 32] and b have at most 65535 tiles of rows, got 5 for 3 rows"
        )
    );
    assert_eq!(
        first_line(tiled_product_(&out, &a, &matrix(3, 5)?, 8)).as_deref(),
        Some("tiled_product_: b must have shape [3, 4], got [3, 5]")
    );
    Ok(())
}
