//! States drawn into a buffer are those of `bernoulli`, in each type and at each place.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, advance_, bernoulli, bernoulli_into_, bernoulli_into_reference, uniform};

const CPU: Device = Device::Cpu;
const PLACE: Philox = Philox { seed: 9, stream: 4, offset: u64::MAX - 1 };

fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

#[test]
fn states_are_those_of_bernoulli_and_of_the_reference() -> Result<()> {
    // Around a block of Philox, a tile of 128 and a task of 128 tiles.
    for n in [1, 3, 4, 127, 128, 129, 16_383, 16_385, 40_000] {
        let p = uniform(n, &CPU, PLACE.advanced(n))?;
        let want = values(&bernoulli(&p, PLACE)?)?;
        assert_eq!(values(&bernoulli_into_reference(&p, PLACE)?)?, want, "reference, {n}");
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let out = Tensor::full(7f32, n, &CPU)?.to_dtype(dtype)?;
            bernoulli_into_(&out, &p, Draws::At(PLACE))?;
            assert_eq!(values(&out)?, want, "{dtype:?}, {n}");
        }
    }
    Ok(())
}

#[test]
fn certain_units_leave_nothing_to_chance_and_a_counter_moves_the_draws() -> Result<()> {
    let p = Tensor::new(&[0f32, 1., -3., 2., f32::NAN], &CPU)?;
    let half = Tensor::full(0.5f32, (5, 40), &CPU)?;
    let (out, wide) = (p.zeros_like()?, half.zeros_like()?);
    let counter = Tensor::new(&[0i64], &CPU)?;
    let mut before = Vec::new();
    for _ in 0..100 {
        let draws = Draws::Counter { philox: PLACE, counter: &counter };
        bernoulli_into_(&out, &p, draws)?;
        assert_eq!(values(&out)?, [0., 1., 0., 1., 0.]);
        bernoulli_into_(&wide, &half, draws)?;
        let now = values(&wide)?;
        assert!(now != before, "the counter moved, the draws did not");
        before = now;
        advance_(&counter, 50)?;
    }
    // Rows of a larger buffer, and nothing beside them.
    let buffer = Tensor::full(9f32, (4, 40), &CPU)?;
    bernoulli_into_(&buffer.narrow(0, 1, 2)?, &half.narrow(0, 3, 2)?, Draws::At(PLACE))?;
    let got = buffer.to_vec2::<f32>()?;
    assert!([&got[0], &got[3]].iter().all(|row| row.iter().all(|x| *x == 9.)));
    assert_eq!(got[1..3].concat(), values(&bernoulli(&half.narrow(0, 0, 2)?, PLACE)?)?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_in_words() -> Result<()> {
    let zeros = |n: usize, dtype| Tensor::zeros(n, dtype, &CPU).unwrap();
    let text = |out: &Tensor, p: &Tensor, draws| {
        let err = bernoulli_into_(out, p, draws).unwrap_err().to_string();
        err.lines().next().unwrap_or_default().to_owned()
    };
    let (f32s, at) = (zeros(3, DType::F32), Draws::At(PLACE));
    for (got, want) in [
        (text(&f32s, &zeros(4, DType::F32), at), "p must have the shape of out [3], got [4]"),
        (text(&zeros(3, DType::U32), &f32s, at), "p must be f32 and out f32, bf16 or f16, got F32 and U32"),
        (text(&f32s, &zeros(3, DType::F64), at), "p must be f32 and out f32, bf16 or f16, got F64 and F32"),
        (
            text(&f32s, &zeros(3, DType::F32), Draws::Mode),
            "draws must be At, Counter or Columns, got Mode, which draws nothing",
        ),
    ] {
        assert_eq!(got, format!("bernoulli_into_: {want}"));
    }
    let square = Tensor::zeros((2, 3), DType::F32, &CPU)?;
    let turned = Tensor::zeros((3, 2), DType::F32, &CPU)?;
    assert_eq!(
        text(&square, &turned.t()?, at),
        "bernoulli_into_: p and out must be contiguous, got strides [1, 2] and [3, 1]"
    );
    Ok(())
}
