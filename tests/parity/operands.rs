//! Operands that do not fit are refused by name, on every device: they neither hang nor fault.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    Activation, BiasGradients, BiasStep, Contrast, ContrastStep, Draws, Factors, Phases, Philox, Precision,
    Unit, UnitPlanes, WeightStep, bias_step_, contrast_step_, gemm_, layer_forward_, units_,
};
use chandlery_tests::devices;

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
        let other = bias.to_device(&chandlery_ops::cuda_device(0)?)?;
        let error = refused(layer_forward_(&a, Some(&other), Activation::Relu, None));
        assert!(error.ends_with("got Cuda { gpu_id: 0 }, opened separately with its own stream"), "{error}");
    }
    Ok(())
}

/// The operands of an update of 16 × 24 weights from f16 states of one part; `params` and `hidden` begin so many entries into
/// their storage.
fn update(device: &Device, params_at: usize, hidden_at: usize) -> Result<()> {
    let (batch, h, v) = (8, 16, 24);
    let at = |offset: usize, shape: &[usize], dtype: DType| {
        let n = shape.iter().product::<usize>();
        Tensor::zeros(n + offset, dtype, device)?.narrow(0, offset, n)?.reshape(shape)
    };
    let params = at(params_at, &[2, h, v], DType::F32)?;
    let hidden = at(hidden_at, &[1, 3, batch, h], DType::F16)?;
    let visible = at(0, &[1, 2, batch, v], DType::F16)?;
    let copy = at(0, &[1, h, v], DType::F16)?;
    let (hidden_state, visible_state) = (at(0, &[4, h], DType::F32)?, at(0, &[4, v], DType::F32)?);
    let (counter, scalars) = (at(0, &[1], DType::I64)?, at(0, &[3], DType::F32)?);
    let to = Contrast {
        params: &params,
        velocity: None,
        copy: Some(&copy),
        hidden_state: &hidden_state,
        visible_state: &visible_state,
        counter: &counter,
    };
    let step = ContrastStep {
        weights: WeightStep::default(),
        sparsity: None,
        visible_scale: None,
        copy_scale: 1.,
        advance: 1,
        precision: Precision::Tf32,
        biases: BiasGradients::BothPhases,
        rounding: None,
    };
    contrast_step_(to, &hidden, &visible, &scalars, step)?;
    assert_eq!(counter.to_vec1::<i64>()?, [1]);
    Ok(())
}

#[test]
fn views_that_begin_between_sixteen_bytes_are_refused_and_the_device_lives() -> Result<()> {
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        update(&device, 0, 0)?;
        update(&device, 4, 8)?;
        let end = "into its storage; call .force_contiguous() first";
        let want = format!(
            "contrast_step_: params must begin on a multiple of 16 bytes, got a view 1 entries of F32 {end}"
        );
        assert_eq!(refused(update(&device, 1, 0)), want);
        let want = format!(
            "contrast_step_: hidden must begin on a multiple of 16 bytes, got a view 3 entries of F16 {end}"
        );
        assert_eq!(refused(update(&device, 0, 3)), want);
        update(&device, 0, 0)?;
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
