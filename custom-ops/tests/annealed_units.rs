//! Annealed units rise and are drawn by their formulas, whatever the sizes and at large inputs, and
//! what does not fit is refused.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::layers::{
    Rise, annealed_hidden_, annealed_hidden_reference, annealed_visible_, annealed_visible_reference,
};

const PLACE: Philox = Philox { seed: 11, stream: 22, offset: 33 };

fn numbers(shape: &[usize], stream: u64) -> Result<Tensor> {
    normal(shape, &Cpu, Philox::new(7, stream))?.to_dtype(DType::F64)
}

fn worst(got: &Tensor, want: &Tensor) -> Result<f64> {
    (got - want)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn weights_and_units_are_those_of_the_reference() -> Result<()> {
    for (rows, h, v) in [(1, 1, 1), (2, 3, 5), (7, 33, 4), (9, 130, 31), (65, 257, 70)] {
        let (units, visible) = ((numbers(&[rows, h], 0)? * 4.)?, numbers(&[rows, v], 1)?);
        let (bias, slope) = (numbers(&[h], 2)?, numbers(&[v], 3)?);
        for (from, to) in [(0., 0.001), (0.3, 0.7), (1., 0.9), (1., 1.)] {
            let rise = Rise { from, to, visible: &visible, slope: &slope, offset: 0.3 };
            let (want, states) = annealed_hidden_reference(&units, &bias, rise, PLACE)?;
            let (got, log_weights) = (units.copy()?, Tensor::full(5., rows, &Cpu)?);
            annealed_hidden_(&log_weights, &got, &bias, rise, PLACE)?;
            // Sums of a few hundred numbers below 10 in another order.
            let off = worst(&(log_weights - 5.)?, &want)?;
            assert!(off < 1e-12 * (h + v) as f64, "[{rows}, {h}, {v}] {from} to {to}: off by {off:e}");
            assert_eq!(got.to_vec2::<f64>()?, states.to_vec2::<f64>()?, "[{rows}, {h}, {v}] {from} to {to}");
        }
        let (shift, base) = (&bias, numbers(&[h], 4)?);
        let stdev = base.exp()?;
        for stdev in [None, Some(&stdev)] {
            let want = annealed_visible_reference(&units, shift, &base, stdev, 0.7, PLACE)?;
            let got = units.copy()?;
            annealed_visible_(&got, shift, &base, stdev, 0.7, PLACE)?;
            let off = worst(&got, &want)?;
            assert!(off < 1e-13, "[{rows}, {h}], real {}: off by {off:e}", stdev.is_some());
        }
    }
    Ok(())
}

#[test]
fn large_inputs_neither_overflow_nor_lose_the_rise() -> Result<()> {
    let units = Tensor::new(&[[1e300, -1e300, 800., -800.]], &Cpu)?;
    let (bias, visible) = (Tensor::zeros(4, DType::F64, &Cpu)?, Tensor::zeros((1, 1), DType::F64, &Cpu)?);
    let slope = Tensor::zeros(1, DType::F64, &Cpu)?;
    let rise = Rise { from: 0.25, to: 0.5, visible: &visible, slope: &slope, offset: 4. };
    let log_weights = Tensor::zeros(1, DType::F64, &Cpu)?;
    let states = units.copy()?;
    annealed_hidden_(&log_weights, &states, &bias, rise, PLACE)?;
    assert_eq!(log_weights.to_vec1::<f64>()?, [0.25 * 1e300]);
    assert_eq!(states.to_vec2::<f64>()?, [[1., 0., 1., 0.]]);
    // softplus(400) − softplus(200), and for −800 nothing.
    let (log_weights, states) = (Tensor::zeros(1, DType::F64, &Cpu)?, units.narrow(1, 2, 2)?.copy()?);
    annealed_hidden_(&log_weights, &states, &bias.narrow(0, 0, 2)?, rise, PLACE)?;
    assert_eq!(log_weights.to_vec1::<f64>()?, [200. + 1.]);
    Ok(())
}

#[test]
fn a_nan_is_seen_in_the_weight_of_its_chain_alone() -> Result<()> {
    let units = Tensor::new(&[[0., f64::NAN], [0., 1.]], &Cpu)?;
    let (bias, visible) = (Tensor::zeros(2, DType::F64, &Cpu)?, Tensor::zeros((2, 1), DType::F64, &Cpu)?);
    let slope = Tensor::zeros(1, DType::F64, &Cpu)?;
    let rise = Rise { from: 0., to: 1., visible: &visible, slope: &slope, offset: 0. };
    let log_weights = Tensor::zeros(2, DType::F64, &Cpu)?;
    annealed_hidden_(&log_weights, &units, &bias, rise, PLACE)?;
    let got = log_weights.to_vec1::<f64>()?;
    assert!(got[0].is_nan() && (got[1] - (1f64.exp().ln_1p() - 2f64.ln())).abs() < 1e-15, "{got:?}");
    assert_eq!(units.to_vec2::<f64>()?[0][1], 0.);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let (units, bias) = (numbers(&[2, 3], 0)?, numbers(&[3], 1)?);
    let (visible, slope, log_weights) = (numbers(&[2, 4], 2)?, numbers(&[4], 3)?, numbers(&[2], 4)?);
    let said = |log_weights: &Tensor, units: &Tensor, bias: &Tensor, visible: &Tensor, slope: &Tensor| {
        let rise = Rise { from: 0., to: 1., visible, slope, offset: 0. };
        annealed_hidden_(log_weights, units, bias, rise, PLACE)
            .err()
            .map_or_else(String::new, |e| e.to_string())
    };
    assert_eq!(said(&log_weights, &units, &bias, &visible, &slope), "");
    let f32_units = units.to_dtype(DType::F32)?;
    let empty = Tensor::zeros((2, 0), DType::F64, &Cpu)?;
    for (got, want) in [
        (said(&bias, &units, &bias, &visible, &slope), "log_weights must have shape [2], got [3]"),
        (said(&log_weights, &f32_units, &bias, &visible, &slope), "units must be f64, got F32"),
        (said(&log_weights, &units, &slope, &visible, &slope), "bias must have shape [3], got [4]"),
        (said(&log_weights, &units, &bias, &visible.t()?, &slope), "visible must be contiguous"),
        (said(&log_weights, &units, &bias, &units.copy()?, &slope), "slope must have shape [3], got [4]"),
        (said(&log_weights, &empty, &bias, &visible, &slope), "units must be at least 1 a chain, got 0"),
    ] {
        assert!(got.contains(want), "{got}");
    }
    let wrong = annealed_visible_(&units, &bias, &slope, None, 1., PLACE);
    let got = wrong.err().map_or_else(String::new, |e| e.to_string());
    assert!(got.contains("base must have shape [3], got [4]"), "{got}");
    Ok(())
}
