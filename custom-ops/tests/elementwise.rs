//! Every function gives what its formula says of each entry, whatever the shapes and strides.
use candle::{DType, Device::Cpu, Result, Tensor, Var};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{
    abs, add, at_least, clamp, contiguous, div, equal, exp, ln, maximum, minimum, mul, neg, recip, relu,
    sigmoid, sqr, sqrt, sub,
};
use chandlery_ops::core::normal;

type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);
type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

const BINARY: [Binary; 7] = [
    ("add", add, |a, b| a + b),
    ("sub", sub, |a, b| a - b),
    ("mul", mul, |a, b| a * b),
    ("div", div, |a, b| a / b),
    ("maximum", maximum, f64::max),
    ("minimum", minimum, f64::min),
    ("equal", equal, |a, b| f64::from(u8::from(a == b))),
];
const UNARY: [Unary; 9] = [
    ("abs", abs, f64::abs),
    ("exp", exp, f64::exp),
    ("ln", ln, f64::ln),
    ("neg", neg, |x| -x),
    ("recip", recip, |x| 1. / x),
    ("relu", relu, |x| if x > 0. { x } else { 0. }),
    ("sigmoid", sigmoid, |x| 1. / (1. + (-x).exp())),
    ("sqr", sqr, |x| x * x),
    ("sqrt", sqrt, f64::sqrt),
];

fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// Within some roundings of the type, or both NaN.
#[track_caller]
fn assert_near(what: &str, got: &Tensor, want: &[f64]) -> Result<()> {
    let unit = if got.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
    let got = values(got)?;
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let near = got == want || (got - want).abs() <= 8. * unit * want.abs();
        assert!(near || (got.is_nan() && want.is_nan()), "{what}: entry {i} is {got}, not {want}");
    }
    Ok(())
}

/// Pairs of shapes, and what they are broadcast to.
const SHAPES: [(&[usize], &[usize], &[usize]); 8] = [
    (&[], &[], &[]),
    (&[3], &[], &[3]),
    (&[4, 3], &[3], &[4, 3]),
    (&[4, 1], &[3], &[4, 3]),
    (&[4, 3], &[4, 3], &[4, 3]),
    (&[2, 1, 3], &[5, 1], &[2, 5, 3]),
    (&[2, 3, 4, 5], &[3, 1, 5], &[2, 3, 4, 5]),
    (&[0, 3], &[3], &[0, 3]),
];

#[test]
fn two_operands_are_broadcast_and_combined_entry_by_entry() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for (a, b, shape) in SHAPES {
            let draw = |shape: &[usize], stream| normal(shape, &Cpu, Philox::new(5, stream))?.to_dtype(dtype);
            let (a, b) = (draw(a, 0)?, draw(b, 1)?);
            let (wide_a, wide_b) = (values(&a.broadcast_as(shape)?)?, values(&b.broadcast_as(shape)?)?);
            for (name, op, formula) in BINARY {
                let what = format!("{name} of {:?} and {:?}, {dtype:?}", a.dims(), b.dims());
                let got = op(&a, &b)?;
                assert_eq!((got.dims(), got.dtype()), (shape, dtype), "{what}");
                let want: Vec<f64> = wide_a.iter().zip(&wide_b).map(|(&a, &b)| formula(a, b)).collect();
                let rounded = if dtype == DType::F32 {
                    want.iter().map(|&x| f64::from(x as f32)).collect()
                } else {
                    want
                };
                // f64 has the exact result of f32 operands to more digits than f32 keeps.
                assert_eq!(values(&got)?, rounded, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn functions_of_one_operand_go_by_its_strides() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let x = normal((4, 3, 5), &Cpu, Philox::new(5, 2))?.to_dtype(dtype)?;
        for x in [x.clone(), x.transpose(0, 2)?, x.narrow(1, 1, 2)?, x.narrow(0, 0, 0)?] {
            for (name, op, formula) in UNARY {
                let want: Vec<f64> = values(&x)?.into_iter().map(formula).collect();
                let what = format!("{name} of {:?}, strides {:?}, {dtype:?}", x.dims(), x.stride());
                let got = op(&x)?;
                assert_eq!((got.dims(), got.dtype()), (x.dims(), dtype), "{what}");
                assert_near(&what, &got, &want)?;
            }
        }
    }
    Ok(())
}

#[test]
fn copies_have_their_entries_side_by_side() -> Result<()> {
    let x = Tensor::arange(0u32, 24, &Cpu)?.reshape((2, 3, 4))?;
    for dtype in [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64] {
        let got = contiguous(&x.to_dtype(dtype)?.permute((2, 0, 1))?)?;
        assert!(got.is_contiguous());
        let want = (0..24).map(|i| f64::from(12 * (i / 3 % 2) + 4 * (i % 3) + i / 6));
        assert_eq!(values(&got)?, want.collect::<Vec<_>>(), "{dtype:?}");
    }
    Ok(())
}

#[test]
fn values_are_kept_within_bounds() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let x = Tensor::new(&[[-2f64, -0.5, 0.], [0.25, 0.75, 9.]], &Cpu)?.to_dtype(dtype)?;
        assert_eq!(values(&at_least(&x, -0.5)?)?, [-0.5, -0.5, 0., 0.25, 0.75, 9.]);
        assert_eq!(values(&clamp(&x, -0.5, 0.5)?)?, [-0.5, -0.5, 0., 0.25, 0.5, 0.5]);
    }
    Ok(())
}

#[test]
fn gradients_pass_and_other_types_and_shapes_are_as_in_candle() -> Result<()> {
    let x = Var::new(&[1f64, 2., 3.], &Cpu)?;
    let gradients = sqr(&mul(&x, &Tensor::new(2f64, &Cpu)?)?)?.sum_all()?.backward()?;
    let gradient = gradients.get(&x).map(Tensor::to_vec1::<f64>).transpose()?;
    assert_eq!(gradient, Some(vec![8., 16., 24.]));
    let bytes = Tensor::new(&[1u8, 2], &Cpu)?;
    assert_eq!(add(&bytes, &bytes)?.to_vec1::<u8>()?, [2, 4]);
    assert!(add(&bytes, &Tensor::new(&[1f32, 2.], &Cpu)?).is_err());
    assert!(add(&bytes, &Tensor::new(&[1u8, 2, 3], &Cpu)?).is_err());
    Ok(())
}
