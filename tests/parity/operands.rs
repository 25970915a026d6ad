//! Operands that do not fit are refused by name, on every device: they neither hang nor fault.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::core::Draws;
use chandlery_ops::layers::{
    Activation, BiasGradients, BiasStep, CdOperands, CdUpdate, Factors, Phases, Unit, UnitPlanes, WeightStep,
    bias_step_, cd_update_, gemm_, layer_forward_, units_,
};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_same_bits, devices};

fn refused(result: Result<()>) -> String {
    result.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_source_that_shares_the_storage_of_the_destination_is_refused() -> Result<()> {
    let says = |op: &str, name: &str, of: &str| {
        format!("{op}: {name} must not share the storage of {of}, which is written; copy one of them first")
    };
    for device in devices()? {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device);
        let a = zeros(&[3, 4])?;
        let error = refused(layer_forward_(&a, Some(&a.get(0)?), Activation::Relu, None));
        assert_eq!(error, says("layer_forward_", "bias", "a"));

        let (state, planes) = (zeros(&[4, 5])?, zeros(&[2, 6, 5])?);
        let step =
            BiasStep { phases: Phases::Sum, sparsity: None, gather_error: false, scale: None, sums: None };
        let scalars = state.get(0)?.narrow(0, 0, 3)?;
        assert_eq!(
            refused(bias_step_(&state, &planes, &scalars, step)),
            says("bias_step_", "scalars", "state")
        );
        let scale = state.get(3)?;
        let scaled = BiasStep { scale: Some(&scale), ..step };
        let error = refused(bias_step_(&state, &planes, &zeros(&[3])?, scaled));
        assert_eq!(error, says("bias_step_", "scale", "state"));

        let c = zeros(&[2, 2])?;
        let factors = Factors::Tensor(&c.get(0)?);
        let (m, f32) = (zeros(&[2, 2])?, Precision::F32);
        assert_eq!(refused(gemm_(&c, &m, &m, factors, f32)), says("gemm_", "factors", "c"));

        let (pre, of_units) = (zeros(&[2, 3])?, zeros(&[2, 2, 3])?);
        let out = UnitPlanes { sample: Some(0), ..UnitPlanes::default() };
        let (std, draws) = (of_units.get(1)?.get(0)?, Draws::At(Philox::new(0, 0)));
        let error = refused(units_(&of_units, &pre, &zeros(&[3])?, Unit::Gaussian, out, draws, Some(&std)));
        assert_eq!(error, says("units_", "std", "planes"));
    }
    Ok(())
}

#[test]
fn operands_of_another_device_are_refused_by_name() -> Result<()> {
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        let (a, bias) =
            (Tensor::zeros((2, 3), DType::F32, &device)?, Tensor::zeros(3, DType::F32, &Device::Cpu)?);
        let error = refused(layer_forward_(&a, Some(&bias), Activation::Relu, None));
        let want = "layer_forward_: bias must be on Cuda { gpu_id: 0 }, the device of the result, got Cpu";
        assert_eq!(error, want);
        let other = bias.to_device(&chandlery_ops::core::cuda_device(0)?)?;
        let error = refused(layer_forward_(&a, Some(&other), Activation::Relu, None));
        assert!(error.ends_with("got Cuda { gpu_id: 0 }, opened separately with its own stream"), "{error}");
    }
    Ok(())
}

/// Weights, velocity and both sides' biases after an update of 16 × 24 weights from f16 states, of
/// numbers so short that sums are exact in any order; `params`, `hidden`, `visible` and `copy`
/// begin so many entries into their storage.
fn update(
    device: &Device,
    parts: usize,
    [params_at, hidden_at, visible_at, copy_at]: [usize; 4],
) -> Result<[Tensor; 3]> {
    let (batch, h, v) = (8, 16, 24);
    let at = |offset: usize, shape: &[usize], dtype: DType| {
        let n = shape.iter().product::<usize>();
        let all: Vec<f32> = (0..n + offset).map(|i| (i.saturating_sub(offset) * 7 % 5) as f32 - 2.).collect();
        Tensor::new(all, device)?.to_dtype(dtype)?.narrow(0, offset, n)?.reshape(shape)
    };
    let params = at(params_at, &[2, h, v], DType::F32)?;
    let hidden = at(hidden_at, &[parts, 3, batch, h], DType::F16)?;
    let visible = at(visible_at, &[parts, 2, batch, v], DType::F16)?;
    let copy = at(copy_at, &[parts, h, v], DType::F16)?;
    let (hidden_state, visible_state) = (at(0, &[4, h], DType::F32)?, at(0, &[4, v], DType::F32)?);
    let (counter, scalars) =
        (Tensor::zeros(1, DType::I64, device)?, Tensor::new(&[0.125f32, 0.5, 0.25], device)?);
    let to = CdOperands {
        params: &params,
        velocity: None,
        copy: Some(&copy),
        hidden_state: &hidden_state,
        visible_state: &visible_state,
        counter: &counter,
    };
    let step = CdUpdate {
        weights: WeightStep::default(),
        sparsity: None,
        visible_scale: None,
        copy_scale: 1.,
        advance: 1,
        precision: Precision::Tf32,
        biases: BiasGradients::BothPhases,
        rounding: None,
    };
    cd_update_(to, &hidden, &visible, &scalars, step)?;
    assert_eq!(counter.to_vec1::<i64>()?, [1]);
    let copied = copy.to_dtype(DType::F32)?.sum(0)?;
    let rounded = params.get(0)?.to_dtype(DType::F16)?.to_dtype(DType::F32)?;
    assert_same_bits("the copy", &copied.to_device(&Device::Cpu)?, &rounded.to_device(&Device::Cpu)?)?;
    Ok([params.copy()?, hidden_state, visible_state])
}

#[test]
fn views_that_begin_anywhere_are_stepped_as_those_that_begin_on_sixteen_bytes() -> Result<()> {
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        for parts in [1, 2] {
            let want = update(&device, parts, [0; 4])?;
            for at in [[4, 8, 16, 8], [8, 4, 0, 0], [0, 0, 12, 4], [1, 0, 0, 0], [0, 3, 0, 0], [0, 0, 2, 1]] {
                for (got, want) in update(&device, parts, at)?.iter().zip(&want) {
                    let what = format!("{parts} parts at {at:?}");
                    assert_same_bits(&what, &got.to_device(&Device::Cpu)?, &want.to_device(&Device::Cpu)?)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn biases_of_no_rows_are_refused() -> Result<()> {
    for device in devices()? {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device);
        let step =
            BiasStep { phases: Phases::Sum, sparsity: None, gather_error: false, scale: None, sums: None };
        let error = refused(bias_step_(&zeros(&[4, 5])?, &zeros(&[2, 0, 5])?, &zeros(&[3])?, step));
        assert_eq!(error, "bias_step_: planes must have at least one row each, got shape [2, 0, 5]");
    }
    Ok(())
}
