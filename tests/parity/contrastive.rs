//! The parameter update: equal to candle's ops, and the same bits on every device.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::{halves_into_, joined_into_, split_into_};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    BiasGradients, BiasStep, CdOperands, CdUpdate, Phases, Sparsity, WeightStep, bias_step_,
    bias_step_reference, cd_update_, cd_update_reference, cd_update_takes_halves, max_norm_rows_,
    warpgroups_multiply, weight_step_, weight_step_reference,
};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits, devices, sizes_here};

const CPU: Device = Device::Cpu;

fn scalars() -> Result<Tensor> {
    Tensor::new(&[0.02f32, 0.9, 0.1], &CPU)
}

#[test]
fn weight_step_matches_its_reference_at_awkward_sizes() -> Result<()> {
    for device in devices()? {
        // Around four entries a thread, a block, and with a length that four does not divide.
        for n in [1, 3, 4, 5, 1023, 1024, 1025, 65_536 * 4 + 2] {
            for step in
                [WeightStep::default(), WeightStep { l1: 0., l2: 0.3 }, WeightStep { l1: 0.2, l2: 0.1 }]
            {
                let params = normal((2, n), &CPU, Philox::new(30, 0))?;
                let run = |device: &Device| -> Result<Tensor> {
                    let params = params.to_device(device)?.copy()?;
                    weight_step_(&params, &scalars()?.to_device(device)?, step)?;
                    params.to_device(&CPU)
                };
                let got = run(&device)?;
                let what = format!("weight_step_ n={n} {step:?} on {:?}", device.location());
                assert_same_bits(&what, &got, &run(&CPU)?)?;
                // Four roundings of numbers of order 1.
                assert_close(&what, &got, &weight_step_reference(&params, &scalars()?, step)?, 3e-7, 3e-7)?;
            }
        }
    }
    Ok(())
}

#[test]
fn bias_step_matches_its_reference_and_the_bits_of_the_cpu() -> Result<()> {
    let sparsity = Some(Sparsity { target: 0.1, cost: 0.5, decay: 0.9 });
    for device in devices()? {
        for (batch, units) in [(1, 1), (15, 31), (16, 32), (17, 33), (100, 65), (192, 500)] {
            for dtype in [DType::F32, DType::BF16] {
                for (phases, sparsity, gather_error, scaled) in [
                    (Phases::Sum, None, false, false),
                    (Phases::Sum, sparsity, false, false),
                    (Phases::Difference, None, true, false),
                    (Phases::Difference, None, true, true),
                    (Phases::Positive, None, false, false),
                    (Phases::Negative, None, false, false),
                ] {
                    let state = normal((4, units), &CPU, Philox::new(31, 0))?;
                    let planes = normal((2, batch, units), &CPU, Philox::new(31, 1))?.to_dtype(dtype)?;
                    let scale = scaled.then(|| normal(units, &CPU, Philox::new(31, 2))).transpose()?;
                    let run = |device: &Device| -> Result<Tensor> {
                        let state = state.to_device(device)?.copy()?;
                        let scale = scale.as_ref().map(|s| s.to_device(device)).transpose()?;
                        let step =
                            BiasStep { phases, sparsity, gather_error, scale: scale.as_ref(), sums: None };
                        bias_step_(&state, &planes.to_device(device)?, &scalars()?.to_device(device)?, step)?;
                        state.to_device(&CPU)
                    };
                    let got = run(&device)?;
                    let what = format!(
                        "bias_step_ [{batch}, {units}] {dtype:?} {phases:?} sparsity {} error {gather_error} scaled {scaled} on {:?}",
                        sparsity.is_some(),
                        device.location()
                    );
                    assert_same_bits(&what, &got, &run(&CPU)?)?;
                    let step = BiasStep { phases, sparsity, gather_error, scale: scale.as_ref(), sums: None };
                    let want = bias_step_reference(&state, &planes, &scalars()?, step)?;
                    // Sums of `batch` terms of order 1, squares up to about 20; the fourth plane
                    // holds only roundings.
                    let atol = 4e-7 * (batch as f32).sqrt() * 8.;
                    assert_close(&what, &got.narrow(0, 0, 3)?, &want.narrow(0, 0, 3)?, 3e-6, atol)?;
                    assert_close(&what, &got.get(3)?, &want.get(3)?, 0., 1e-4)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_gathered_error_does_not_drift_over_many_steps() -> Result<()> {
    for device in devices()? {
        // 20,000 additions of about 6.67 to a sum of 133,000: plain f32 sums lose about 1e-4 of it,
        // a two-sum none.
        let planes = normal((2, 3, 2), &device, Philox::new(32, 0))?;
        let one = (planes.get(1)? - planes.get(0)?)?.sqr()?.sum(0)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let state = Tensor::zeros((4, 2), DType::F32, &device)?;
        let still = Tensor::zeros(3, DType::F32, &device)?;
        let step = BiasStep {
            phases: Phases::Difference,
            sparsity: None,
            gather_error: true,
            scale: None,
            sums: None,
        };
        for _ in 0..20_000 {
            bias_step_(&state, &planes, &still, step)?;
        }
        let gathered = state.narrow(0, 2, 2)?.to_dtype(DType::F64)?.sum(0)?.to_vec1::<f64>()?;
        for (gathered, one) in gathered.iter().zip(one) {
            let error = (gathered / (20_000. * one) - 1.).abs();
            // What is left is the rounding of one step's own sum.
            assert!(error < 3e-7, "relative error {error:e} on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn max_norm_shortens_long_rows_and_leaves_the_others() -> Result<()> {
    for device in devices()? {
        for cols in [1, 255, 256, 257, 1000] {
            let long = normal((3, cols), &CPU, Philox::new(33, 0))?;
            let length = long.sqr()?.sum_keepdim(1)?.sqrt()?;
            // Norms .5, exactly about 1 below the limit, and 7.
            let unit = long.broadcast_div(&length)?;
            let weight =
                unit.broadcast_mul(&Tensor::new(&[[0.5f32], [1.9], [7.]], &CPU)?)?.to_device(&device)?;
            let before = weight.copy()?;
            max_norm_rows_(&weight, 2.)?;
            assert_same_bits("short rows", &weight.narrow(0, 0, 2)?, &before.narrow(0, 0, 2)?)?;
            let want = (unit.get(2)? * 2.)?;
            assert_close(
                &format!("the long row of {cols}"),
                &weight.get(2)?.to_device(&CPU)?,
                &want,
                1e-5,
                0.,
            )?;
        }
    }
    Ok(())
}

#[test]
fn nan_spreads_and_is_not_hidden() -> Result<()> {
    for device in devices()? {
        let params = Tensor::new(&[[1f32, 2.], [f32::NAN, 0.]], &device)?;
        weight_step_(&params, &scalars()?.to_device(&device)?, WeightStep::default())?;
        let w = params.get(0)?.to_vec1::<f32>()?;
        assert!(w[0].is_nan() && w[1] == 2.);
        let state = Tensor::zeros((4, 1), DType::F32, &device)?;
        let planes = Tensor::new(&[[[0f32], [f32::NAN]], [[1.], [1.]]], &device)?;
        let step = BiasStep {
            phases: Phases::Difference,
            sparsity: None,
            gather_error: true,
            scale: None,
            sums: None,
        };
        bias_step_(&state, &planes, &scalars()?.to_device(&device)?, step)?;
        assert!(state.flatten_all()?.to_vec1::<f32>()?[..3].iter().all(|x| x.is_nan()));
    }
    Ok(())
}

#[test]
fn updates_say_what_is_wrong() -> Result<()> {
    let first =
        |r: Result<()>| r.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &CPU);
    let none = WeightStep::default();
    assert_eq!(
        first(weight_step_(&zeros(&[3, 4])?, &scalars()?, none)),
        "weight_step_: params must have shape [2, ..], got [3, 4]"
    );
    assert_eq!(
        first(weight_step_(&zeros(&[2, 4])?, &zeros(&[2])?, none)),
        "weight_step_: scalars must have shape [3] (rate / batch, momentum, rate), got [2]"
    );
    assert_eq!(
        first(weight_step_(&zeros(&[2, 4])?, &scalars()?, WeightStep { l1: 0., l2: f32::NAN })),
        "weight_step_: l1 and l2 must be at least 0, got 0 and NaN"
    );
    let step =
        BiasStep { phases: Phases::Difference, sparsity: None, gather_error: false, scale: None, sums: None };
    assert_eq!(
        first(bias_step_(&zeros(&[4, 3])?, &zeros(&[2, 5, 4])?, &scalars()?, step)),
        "bias_step_: state must have shape [4, 4], got [4, 3]"
    );
    assert_eq!(first(max_norm_rows_(&zeros(&[2, 2])?, 0.)), "max_norm_rows_: limit must be above 0, got 0");
    Ok(())
}

/// How the states of an update are stored.
#[derive(Debug, Clone, Copy)]
enum States {
    F32(Precision),
    Bf16,
    F16,
    F16Pair,
}

/// Everything that an update reads and writes, on the CPU.
struct Update {
    params: Tensor,
    hidden: Tensor,
    visible: Tensor,
    hidden_state: Tensor,
    visible_state: Tensor,
    states: States,
}

/// What weights are multiplied by in f16.
const COPY_SCALE: f32 = 64.;

impl Update {
    /// Random states in `[−1, 1]`; a third plane, which is not read, holds NaN.
    fn new(batch: usize, rows: usize, cols: usize, states: States) -> Result<Self> {
        let planes = |width: usize, stream: u64| -> Result<Tensor> {
            let numbers = (uniform((2, batch, width), &CPU, Philox::new(34, stream))?.affine(2., -1.))?;
            let unread = Tensor::full(f32::NAN, (1, batch, width), &CPU)?;
            let planes = Tensor::cat(&[&numbers, &unread], 0)?;
            match states {
                States::F32(_) => planes.unsqueeze(0),
                States::Bf16 => planes.to_dtype(DType::BF16)?.unsqueeze(0),
                States::F16 => planes.to_dtype(DType::F16)?.unsqueeze(0),
                States::F16Pair => {
                    let parts = Tensor::zeros((2, 3, batch, width), DType::F16, &CPU)?;
                    split_into_(&parts, &planes, 1.)?;
                    Ok(parts)
                }
            }
        };
        Ok(Self {
            params: normal((2, rows, cols), &CPU, Philox::new(34, 0))?,
            hidden: planes(rows, 1)?,
            visible: planes(cols, 2)?,
            hidden_state: normal((4, rows), &CPU, Philox::new(34, 3))?,
            visible_state: normal((4, cols), &CPU, Philox::new(34, 4))?,
            states,
        })
    }

    /// Both planes that are read, the sum of their parts, in f64.
    fn phases(planes: &Tensor) -> Result<Tensor> {
        planes.narrow(1, 0, 2)?.to_dtype(DType::F64)?.sum(0)
    }

    /// Parameters, copy, hidden and visible state, counter after the update on a device.
    fn run(&self, device: &Device, step: CdUpdate<'_>) -> Result<[Tensor; 5]> {
        self.run_stored(device, step, false)
    }

    /// The same with weights in halves, if asked for; those that come back are whole.
    fn run_stored(&self, device: &Device, step: CdUpdate<'_>, in_halves: bool) -> Result<[Tensor; 5]> {
        let [_, rows, cols] = *self.params.dims() else { unreachable!() };
        let own = |t: &Tensor| t.to_device(device)?.copy();
        let velocity = match (self.states, device.is_cuda()) {
            (States::Bf16, true) => Some(own(&self.params.get(1)?.to_dtype(DType::BF16)?)?),
            _ => None,
        };
        let params = match &velocity {
            Some(_) => own(&self.params.narrow(0, 0, 1)?)?,
            None => own(&self.params)?,
        };
        let (hidden, visible) = (own(&self.hidden)?, own(&self.visible)?);
        let copy = Tensor::zeros((hidden.dim(0)?, rows, cols), hidden.dtype(), device)?;
        let stored = match in_halves {
            true => Tensor::zeros(params.shape(), DType::I16, device)?,
            false => params.clone(),
        };
        if in_halves {
            halves_into_(&copy, &stored, &params)?;
        }
        let (hidden_state, visible_state) = (own(&self.hidden_state)?, own(&self.visible_state)?);
        let counter = Tensor::new(&[40i64], device)?;
        let to = CdOperands {
            params: &stored,
            velocity: velocity.as_ref(),
            copy: Some(&copy),
            hidden_state: &hidden_state,
            visible_state: &visible_state,
            counter: &counter,
        };
        cd_update_(to, &hidden, &visible, &scalars()?.to_device(device)?, step)?;
        if in_halves {
            joined_into_(&params, &copy, &stored)?;
        }
        let params = match velocity {
            Some(velocity) => Tensor::cat(&[&params, &velocity.to_dtype(DType::F32)?.unsqueeze(0)?], 0)?,
            None => params,
        };
        Ok([params, copy, hidden_state, visible_state, counter])
    }
}

#[test]
fn cd_update_matches_its_reference_at_awkward_sizes() -> Result<()> {
    // Around a slice of 32 in depth and tiles of 64 and 128, lines of four and of eight entries,
    // and lines of neither.
    let sizes = [
        (1, 1, 1),
        (3, 5, 7),
        (25, 100, 101),
        (25, 62, 100),
        (17, 64, 72),
        (31, 136, 8),
        (33, 60, 68),
        (100, 40, 264),
        (192, 100, 60),
        (20, 1000, 616),
        (64, 1600, 1544),
        (20, 8200, 4112),
        // Columns of tiles that several blocks share, three slices of a phase.
        (130, 4104, 1032),
        // More slices than a ring has places for: of one block a tile, and of two.
        (200, 264, 136),
        (450, 72, 200),
        // Minibatches of more rows than stay: of a large matrix with a ring of four k-blocks and of
        // five, and of tiles of 128 and of 256 columns, which one block has or several share, of one
        // part and of two; with blocks of 64 columns that one copy takes and not.
        (193, 2048, 2056),
        (257, 2056, 2304),
        (1100, 264, 128),
        (640, 192, 392),
        (600, 776, 2368),
        (1030, 392, 2056),
        (1030, 776, 1472),
    ];
    let sparsity = Some(Sparsity { target: 0.1, cost: 0.5, decay: 0.9 });
    for device in devices()? {
        for (batch, rows, cols) in sizes_here(&sizes, |(batch, rows, cols)| batch * rows * cols) {
            for states in [
                States::F32(Precision::F32),
                States::F32(Precision::Tf32),
                States::Bf16,
                States::F16,
                States::F16Pair,
            ] {
                let f16 = matches!(states, States::F16 | States::F16Pair);
                if f16 && !device.is_cuda() {
                    continue;
                }
                let case = Update::new(batch, rows, cols, states)?;
                for (weights, sparsity, biases) in [
                    (WeightStep::default(), None, BiasGradients::BothPhases),
                    (WeightStep { l1: 0.2, l2: 0.1 }, sparsity, BiasGradients::BothPhases),
                    (WeightStep::default(), None, BiasGradients::Autoencoder),
                ] {
                    let precision =
                        if let States::F32(precision) = states { precision } else { Precision::F32 };
                    let copy_scale = if f16 { COPY_SCALE } else { 1. };
                    let step = CdUpdate {
                        weights,
                        sparsity,
                        visible_scale: None,
                        copy_scale,
                        advance: 7,
                        precision,
                        biases,
                        rounding: None,
                    };
                    let [params, copy, hidden_state, visible_state, counter] = case.run(&device, step)?;
                    let what = format!(
                        "cd_update_ [{batch}, {rows}, {cols}] {states:?} {weights:?} {biases:?} on {:?}",
                        device.location()
                    );
                    let (h, x) = (Update::phases(&case.hidden)?, Update::phases(&case.visible)?);
                    let own_velocity = matches!(states, States::Bf16) && device.is_cuda();
                    let before = match own_velocity {
                        true => {
                            let rounded = case.params.get(1)?.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
                            Tensor::stack(&[&case.params.get(0)?, &rounded], 0)?
                        }
                        false => case.params.clone(),
                    };
                    let (h2, x2) = (h.flatten(0, 1)?, x.flatten(0, 1)?);
                    let want = cd_update_reference(&before, &h2, &x2, &scalars()?, weights)?;
                    // alpha times a sum of 2 · batch terms below 1; TF32 rounds each operand by
                    // 2^-11, and twelve deviations of the sum of those are allowed for the worst of
                    // millions.
                    let operand = match states {
                        States::F32(Precision::Tf32) => 2f32.powi(-11),
                        _ => 2f32.powi(-22),
                    };
                    // Tensor cores cut off some 2^-27 of a sum for each 16 rows of a pair of parts, and
                    // a worst sum is a quarter of those deviations.
                    let pairs = match states {
                        States::F32(_) => 0.,
                        States::Bf16 | States::F16 => 1.,
                        States::F16Pair => 3.,
                    };
                    let cut = pairs * batch as f32 / 8. * 2f32.powi(-29);
                    let atol = 0.02 * 12. * (operand + cut) * (2. * batch as f32).sqrt() + 1e-6;
                    let got = params.to_device(&CPU)?;
                    assert_close(&format!("{what}: weights"), &got.get(0)?, &want.get(0)?, 1e-6, atol)?;
                    // A bf16 velocity is rounded when it is stored, after the weights have taken
                    // it.
                    let rtol = if own_velocity { 2f32.powi(-8) } else { 1e-6 };
                    assert_close(&format!("{what}: velocity"), &got.get(1)?, &want.get(1)?, rtol, atol)?;

                    let scaled = (params.get(0)? * f64::from(copy_scale))?;
                    let rounded = scaled.to_dtype(copy.dtype())?;
                    assert_same_bits(&format!("{what}: copy"), &copy.get(0)?, &rounded)?;
                    if let States::F16Pair = states {
                        let rest = (scaled - rounded.to_dtype(DType::F32)?)?.to_dtype(DType::F16)?;
                        assert_same_bits(&format!("{what}: second part"), &copy.get(1)?, &rest)?;
                    }
                    // Biases are those of bias_step_, whose planes are the sums of the parts (exact
                    // in f32).
                    let (of_hidden, of_visible) = match biases {
                        BiasGradients::BothPhases => (Phases::Sum, Phases::Difference),
                        BiasGradients::Autoencoder => (Phases::Negative, Phases::Positive),
                    };
                    for (side, got, state, planes, phases, sparsity) in [
                        ("hidden", hidden_state, &case.hidden_state, &h, of_hidden, sparsity),
                        ("visible", visible_state, &case.visible_state, &x, of_visible, None),
                    ] {
                        let want = state.copy()?;
                        let gather_error = phases == Phases::Difference;
                        let step = BiasStep { phases, sparsity, gather_error, scale: None, sums: None };
                        bias_step_(&want, &planes.to_dtype(DType::F32)?, &scalars()?, step)?;
                        let (what, got) = (format!("{what}: {side} biases"), got.to_device(&CPU)?);
                        // Tensor cores sum hidden units of 16 bits where the kernel of warpgroups
                        // takes the update.
                        let one_part = matches!(states, States::F16 | States::Bf16);
                        let warpgroups = cd_update_takes_halves(&device, [rows, cols], batch);
                        match side == "hidden" && one_part && warpgroups {
                            true => assert_close(&what, &got, &want, 1e-6, 1e-6)?,
                            false => assert_same_bits(&what, &got, &want)?,
                        }
                    }
                    assert_eq!(counter.to_vec1::<i64>()?, [47], "{what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn weights_in_halves_are_stepped_as_whole_ones() -> Result<()> {
    for device in devices()? {
        // Tiles and slices that end within the matrix; columns of tiles that several blocks share,
        // or that one block keeps.
        for (batch, rows, cols) in
            [(192, 2056, 2304), (20, 8200, 4112), (130, 4104, 1032), (193, 2056, 2304), (321, 4104, 1032)]
        {
            if !cd_update_takes_halves(&device, [rows, cols], batch) {
                assert!(!device.is_cuda() || !warpgroups_multiply(&device), "no kernel for [{rows}, {cols}]");
                continue;
            }
            let case = Update::new(batch, rows, cols, States::Bf16)?;
            let phases = BiasGradients::BothPhases;
            for (l1, biases) in [(0., phases), (0.2, phases), (0., BiasGradients::Autoencoder)] {
                let step = CdUpdate {
                    weights: WeightStep { l1, l2: 0.1 },
                    sparsity: None,
                    visible_scale: None,
                    copy_scale: 1.,
                    advance: 7,
                    precision: Precision::F32,
                    biases,
                    rounding: None,
                };
                let [whole, copy, whole_hidden, whole_visible, _] = case.run(&device, step)?;
                let [joined, upper, hidden, visible, _] = case.run_stored(&device, step, true)?;
                let what = format!("[{batch}, {rows}, {cols}] l1 {l1} {biases:?} on {:?}", device.location());
                assert_same_bits(&format!("{what}: weights and velocity"), &joined, &whole)?;
                // Of these, the sums of hidden units are products in one of both kernels alone.
                if (193..=256).contains(&batch) {
                    assert_close(&format!("{what}: hidden biases"), &hidden, &whole_hidden, 1e-6, 1e-6)?;
                } else {
                    assert_same_bits(&format!("{what}: hidden biases"), &hidden, &whole_hidden)?;
                }
                assert_same_bits(&format!("{what}: visible biases"), &visible, &whole_visible)?;
                // The copy of whole weights takes the even one of two neighbours that are equally
                // near; ties are rare.
                let differs = upper.to_dtype(DType::F32)?.ne(&copy.to_dtype(DType::F32)?)?;
                let differing = differs.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
                assert!(differing < 1e-4 * (rows * cols) as f32, "{what}: {differing} entries of the copy");
            }
        }
    }
    Ok(())
}

#[test]
fn cd_update_says_what_is_wrong() -> Result<()> {
    let case = Update::new(4, 6, 5, States::F16)?;
    let step = CdUpdate {
        weights: WeightStep::default(),
        sparsity: None,
        visible_scale: None,
        copy_scale: 1.,
        advance: 0,
        precision: Precision::F32,
        biases: BiasGradients::BothPhases,
        rounding: None,
    };
    let first = |r: Result<[Tensor; 5]>| {
        r.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        first(case.run(&CPU, step)),
        "cd_update_: states of 1 parts of F16 must be on CUDA, with a copy of the weights, got a copy on Cpu"
    );
    let case = Update { hidden: case.hidden.narrow(2, 0, 3)?.contiguous()?, ..case };
    assert!(first(case.run(&CPU, step)).contains("visible must be F16 of shape [1, ≥ 2, 3, 5]"));
    let case = Update::new(4, 6, 5, States::F32(Precision::F32))?;
    let step = CdUpdate { weights: WeightStep { l1: -1., l2: 0. }, ..step };
    assert_eq!(first(case.run(&CPU, step)), "cd_update_: l1 and l2 must be at least 0, got -1 and 0");
    Ok(())
}
