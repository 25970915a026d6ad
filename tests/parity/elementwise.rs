//! Elementwise arithmetic: the bits of candle's ops on the CPU, and to rounding where a function is
//! the vendor's.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{
    abs, add, contiguous, div, equal, exp, ln, maximum, minimum, mul, neg, recip, relu, sigmoid, sqr, sqrt,
    sub,
};
use chandlery_ops::core::normal;
use chandlery_tests::devices;

/// Shapes of two operands: blocks of 256 and more than a grid of them, the operands of a layer, all
/// ways of broadcasting.
const SHAPES: [(&[usize], &[usize]); 9] = [
    (&[], &[]),
    (&[255], &[]),
    (&[257], &[257]),
    (&[1033, 1031], &[1033, 1031]),
    (&[500, 784], &[784]),
    (&[500, 1], &[784]),
    (&[7, 1, 33], &[65, 1]),
    (&[2, 3, 4, 5], &[3, 1, 5]),
    (&[0, 3], &[3]),
];

/// Draws, with what is no ordinary number among them where there is room.
fn draw(shape: &[usize], dtype: DType, stream: u64) -> Result<Tensor> {
    const SPECIAL: [f32; 8] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0., -0., 1e-40, -120., 90.];
    let x = normal(shape, &Device::Cpu, Philox::new(9, stream))?;
    let mut values = x.flatten_all()?.to_vec1::<f32>()?;
    // At every place of the one beside every value of the other.
    let step = if stream == 0 { 7 } else { 11 };
    for (i, value) in values.iter_mut().step_by(step).enumerate().skip(1) {
        *value = SPECIAL[i % SPECIAL.len()];
    }
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// Panics where entries are further apart than so many numbers of their type.
#[track_caller]
fn assert_apart(what: &str, got: &Tensor, want: &Tensor, ulps: i64) -> Result<()> {
    assert_eq!((got.dims(), got.dtype()), (want.dims(), want.dtype()), "{what}");
    assert!(got.is_contiguous(), "{what}");
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
    // Numbers as integers in their order; both zeros are told apart only where no rounding is allowed.
    let place = |x: f64| match (got.dtype(), x.is_sign_negative()) {
        (DType::F64, negative) => {
            let bits = x.abs().to_bits() as i64;
            if negative { -bits } else { bits }
        }
        (_, negative) => {
            let bits = i64::from((x.abs() as f32).to_bits());
            if negative { -bits } else { bits }
        }
    };
    for (i, (got, want)) in wide(got)?.into_iter().zip(wide(want)?).enumerate() {
        if got.is_nan() && want.is_nan() {
            continue;
        }
        let same_sign = ulps > 0 || got.is_sign_negative() == want.is_sign_negative();
        let apart = place(got).abs_diff(place(want));
        assert!(
            !got.is_nan() && !want.is_nan() && same_sign && apart <= ulps as u64,
            "{what}: entry {i} is {got:e}, and {want:e} on the CPU, {apart} numbers apart"
        );
    }
    Ok(())
}

type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);
/// How many numbers apart a result may be: those of CUDA's functions by its programming guide, one
/// more for the rounding of the CPU's, and the sums and quotients after them; 1 where a zero may have
/// either sign, as that of the larger of -0 and 0.
type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>, i64);

const BINARY: [Binary; 7] = [
    ("add", add),
    ("sub", sub),
    ("mul", mul),
    ("div", div),
    ("maximum", maximum),
    ("minimum", minimum),
    ("equal", equal),
];
const UNARY: [Unary; 9] = [
    ("abs", abs, 0),
    ("exp", exp, 3),
    ("ln", ln, 3),
    ("neg", neg, 0),
    ("recip", recip, 0),
    ("relu", relu, 1),
    ("sigmoid", sigmoid, 5),
    ("sqr", sqr, 0),
    ("sqrt", sqrt, 0),
];

#[test]
fn two_operands_have_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for dtype in [DType::F32, DType::F64] {
            for (a, b) in SHAPES {
                let (a, b) = (draw(a, dtype, 0)?, draw(b, dtype, 1)?);
                let (on_a, on_b) = (a.to_device(&device)?, b.to_device(&device)?);
                for (name, op) in BINARY {
                    let what = format!(
                        "{name} of {:?} and {:?} {dtype:?} on {:?}",
                        a.dims(),
                        b.dims(),
                        device.location()
                    );
                    assert_apart(&what, &op(&on_a, &on_b)?, &op(&a, &b)?, 0)?;
                    assert_apart(&what, &op(&on_b, &on_a)?, &op(&b, &a)?, 0)?;
                }
            }
        }
    }
    Ok(())
}

/// Views of a tensor, of all of which a kernel has to find its own way: contiguous, of its columns,
/// of its middle, turned about, repeated, empty.
fn views(x: &Tensor) -> Result<Vec<Tensor>> {
    let wide = x.unsqueeze(0)?.broadcast_as((3, 33, 7, 65))?;
    Ok(vec![
        x.clone(),
        x.t()?,
        x.narrow(1, 2, 3)?,
        x.narrow(0, 5, 20)?.narrow(2, 1, 63)?,
        x.permute((2, 0, 1))?,
        wide,
        x.narrow(0, 0, 0)?,
    ])
}

#[test]
fn functions_of_one_operand_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for dtype in [DType::F32, DType::F64] {
            let x = draw(&[33, 7, 65], dtype, 0)?;
            for (on_device, x) in views(&x.to_device(&device)?)?.iter().zip(views(&x)?) {
                for (name, op, ulps) in UNARY {
                    let what = format!(
                        "{name} of {:?}, strides {:?}, {dtype:?} on {:?}",
                        x.dims(),
                        x.stride(),
                        device.location()
                    );
                    assert_apart(&what, &op(on_device)?, &op(&x)?, ulps)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn copies_of_views_are_those_of_the_cpu() -> Result<()> {
    for device in devices()? {
        let x = Tensor::arange(0f32, 33. * 7. * 65., &Device::Cpu)?.reshape((33, 7, 65))?;
        for dtype in [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64] {
            let x = x.to_dtype(dtype)?;
            for (on_device, x) in views(&x.to_device(&device)?)?.iter().zip(views(&x)?) {
                let what = format!("copy of {:?} {:?} {dtype:?}", x.dims(), x.stride());
                assert_apart(&what, &contiguous(on_device)?, &contiguous(&x)?, 0)?;
            }
        }
    }
    Ok(())
}

/// Two views of one storage, and an operand with itself.
#[test]
fn operands_may_share_their_storage() -> Result<()> {
    for device in devices()? {
        let x = normal((40, 9), &Device::Cpu, Philox::new(9, 2))?;
        let both = |x: &Tensor| sub(&mul(x, x)?.narrow(0, 1, 39)?, &x.narrow(0, 0, 39)?);
        let top = |x: &Tensor| add(&x.narrow(0, 1, 39)?, &x.narrow(0, 0, 1)?);
        assert_apart("x x - x", &both(&x.to_device(&device)?)?, &both(&x)?, 0)?;
        assert_apart("x + a row of x", &top(&x.to_device(&device)?)?, &top(&x)?, 0)?;
    }
    Ok(())
}
