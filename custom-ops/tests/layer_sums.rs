//! A layer between products in bf16 is the layer in f32, rounded once, with sums of what was not
//! rounded; what lies beside its columns stays.
#![allow(clippy::unwrap_used)]
use candle::{D, DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::column_sums_;
use chandlery_ops::core::normal;
use chandlery_ops::layers::{
    Activation, OutputLoss, layer_backward_biased_, layer_backward_sums_, layer_forward_,
    layer_forward_sums_, output_loss_, output_loss_into_,
};

/// Rows and units: around the 32 lanes, and more than one thread is woken for.
const SHAPES: [(usize, usize); 7] = [(1, 1), (2, 7), (7, 501), (31, 16), (32, 5), (33, 65), (193, 131)];
const ACTIVATIONS: [Activation; 4] =
    [Activation::Identity, Activation::Sigmoid, Activation::Relu, Activation::Tanh];

/// `[rows, n]` within lines of `line`, of which all else is NaN.
fn in_lines(rows: usize, n: usize, line: usize, dtype: DType) -> Result<(Tensor, Tensor)> {
    let whole = Tensor::full(f32::NAN, (rows, line), &Cpu)?.to_dtype(dtype)?;
    Ok((whole.clone(), whole.narrow(1, 0, n)?))
}

/// The same with the numbers of `x`.
fn put_in_lines(x: &Tensor, line: usize) -> Result<Tensor> {
    let (rows, n) = x.dims2()?;
    let beside = Tensor::full(f32::NAN, (rows, line - n), &Cpu)?;
    Tensor::cat(&[x, &beside], 1)?.narrow(1, 0, n)
}

fn bits(t: &Tensor) -> Result<Vec<u32>> {
    let values = t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

/// That `got` are the numbers of `want`, rounded to bf16, and all beside them are NaN.
fn assert_rounded(what: &str, whole: &Tensor, want: &Tensor) -> Result<()> {
    let n = want.dim(1)?;
    assert_eq!(bits(&whole.narrow(1, 0, n)?)?, bits(&want.to_dtype(DType::BF16)?)?, "{what}");
    let beside = whole.narrow(1, n, whole.dim(D::Minus1)? - n)?.to_dtype(DType::F32)?;
    assert!(beside.flatten_all()?.to_vec1::<f32>()?.iter().all(|x| x.is_nan()), "{what}: written beside");
    Ok(())
}

#[test]
fn outputs_and_derivatives_are_those_of_f32_rounded_and_sums_are_of_f32() -> Result<()> {
    for (rows, n) in SHAPES {
        let random = |shape: (usize, usize), at| normal(shape, &Cpu, Philox::new(70, at));
        let (a, delta) = (random((rows, n), 0)?, random((rows, n), 1)?);
        let (bias, pull) = (random((1, n), 2)?.squeeze(0)?, random((1, n), 3)?.squeeze(0)?);
        for f in ACTIVATIONS {
            for line in [n, n.next_multiple_of(8) + 8] {
                let what = format!("[{rows}, {n}] in lines of {line}, {f:?}");
                let ((forward, to), (backward, back_to)) =
                    (in_lines(rows, n, line, DType::BF16)?, in_lines(rows, n, line, DType::BF16)?);
                let sums = [(); 2].map(|()| Tensor::full(f32::NAN, n, &Cpu).unwrap());
                let (wide_a, wide_delta) = (put_in_lines(&a, line + 3)?, put_in_lines(&delta, line + 1)?);
                layer_forward_sums_(&to, &sums[0], &wide_a, &bias, f)?;
                layer_backward_sums_(&back_to, &sums[1], &wide_delta, &pull, (&wide_a, &bias), f)?;

                let (y, d) = (a.copy()?, delta.copy()?);
                layer_forward_(&y, Some(&bias), f, None)?;
                layer_backward_biased_(&d, &y, &pull, f)?;
                for (whole, of, sums) in [(forward, y, &sums[0]), (backward, d, &sums[1])] {
                    assert_rounded(&what, &whole, &of)?;
                    let want = Tensor::zeros(n, DType::F32, &Cpu)?;
                    column_sums_(&want, &of)?;
                    assert_eq!(bits(sums)?, bits(&want)?, "sums of {what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn derivatives_of_a_loss_are_those_of_f32_rounded_and_what_is_gathered_is_the_same() -> Result<()> {
    let losses = ACTIVATIONS.map(OutputLoss::SquaredError).into_iter().chain([OutputLoss::CrossEntropy]);
    for (rows, n) in SHAPES {
        let (pre, bias) =
            (normal((rows, n), &Cpu, Philox::new(71, 0))?, normal(n, &Cpu, Philox::new(71, 1))?);
        let target = normal((rows, n), &Cpu, Philox::new(71, 2))?;
        for loss in losses.clone() {
            let what = format!("[{rows}, {n}], {loss:?}");
            let (whole, out) = in_lines(rows, n, n.next_multiple_of(8) + 8, DType::BF16)?;
            // Sums are added to what was there.
            let [got, want] = [(); 2].map(|()| Tensor::ones((2, rows), DType::F64, &Cpu).unwrap());
            output_loss_into_(&out, &put_in_lines(&pre, n + 5)?, &bias, &target, loss, 3 * rows, &got)?;
            let of_f32 = pre.copy()?;
            output_loss_(&of_f32, &bias, &target, loss, 3 * rows, &want)?;
            assert_rounded(&what, &whole, &of_f32)?;
            assert_eq!(got.to_vec2::<f64>()?, want.to_vec2::<f64>()?, "{what}");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_said() -> Result<()> {
    let first =
        |result: Result<()>| result.unwrap_err().to_string().lines().next().unwrap_or_default().to_owned();
    let f32s = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Cpu);
    let out = Tensor::zeros((2, 3), DType::BF16, &Cpu)?;
    let (a, three, gathered) = (f32s(&[2, 3])?, f32s(&[3])?, Tensor::zeros((2, 2), DType::F64, &Cpu)?);
    let (sums, f) = (three.copy()?, Activation::Sigmoid);
    let loss = OutputLoss::CrossEntropy;
    let cases = [
        (layer_forward_sums_(&a, &sums, &a, &three, f), "layer_forward_sums_: out must be bf16, got F32"),
        (
            layer_forward_sums_(&out, &sums, &f32s(&[3, 2])?.t()?, &three, f),
            "layer_forward_sums_: a must have contiguous lines, got shape [2, 3] with strides [1, 2]",
        ),
        (
            layer_forward_sums_(&out, &f32s(&[2])?, &a, &three, f),
            "layer_forward_sums_: sums must have shape [3], got [2]",
        ),
        (
            layer_forward_sums_(&out.narrow(0, 0, 0)?, &sums, &a, &three, f),
            "layer_forward_sums_: out must have at least one entry, got shape [0, 3]",
        ),
        (
            layer_backward_sums_(&out, &sums, &f32s(&[2, 4])?, &three, (&a, &three), f),
            "layer_backward_sums_: delta must have shape [2, 3], got [2, 4]",
        ),
        (
            layer_backward_sums_(&out, &sums, &a, &f32s(&[4])?, (&a, &three), f),
            "layer_backward_sums_: pull must have shape [3], got [4]",
        ),
        (
            output_loss_into_(&a.copy()?, &a, &three, &a, loss, 2, &gathered),
            "output_loss_into_: out must be bf16, got F32",
        ),
        (
            output_loss_into_(&out, &a, &three, &a, loss, 0, &gathered),
            "output_loss_into_: of must be at least 1, got 0",
        ),
        (
            output_loss_into_(&out, &a, &f32s(&[2])?, &a, loss, 2, &gathered),
            "output_loss_into_: bias must have shape [3], got [2]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(first(result), want);
    }
    Ok(())
}
