//! Updates of the weights of patches, in one kernel or several, and a trainer that takes them.
use super::{CPU, Case, case, fused_grids, grid, odd_grids, split, warpgroup_updates};
use candle::{DType, Device, Result, Tensor};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::Precision;
use chandlery_ops::arrays::{halves_into_, joined_into_, scale_into_, split_into_};
use chandlery_ops::core::{Draws, normal, uniform};
use chandlery_ops::images::{
    PatchDirection, patch_cd_update_, patch_gradient_reference, patch_last_step_, patch_step_takes_halves,
    units_of_patches_,
};
use chandlery_ops::layers::{
    BiasGradients, BiasStep, CdOperands, CdUpdate, Phases, Sparsity, Unit, UnitPlanes, WeightStep,
    bias_step_, warpgroups_multiply, weight_step_reference,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};

#[test]
fn an_update_matches_its_reference() -> Result<()> {
    for device in devices()? {
        let mut halved = 0;
        let all = odd_grids().into_iter().map(|at| (at, 50, 1, DType::F32));
        let small = fused_grids().into_iter().map(|at| (at, 50));
        let large = warpgroup_updates().into_iter().flat_map(|at| [(at, 50), (at, 192)]);
        let fused = small.chain(large).flat_map(|(at, batch)| {
            [(2, DType::F16), (1, DType::F16), (1, DType::BF16)]
                .map(|(parts, dtype)| (at, batch, parts, dtype))
        });
        for ((grid, hidden), batch, parts, dtype) in all.chain(fused.filter(|_| device.is_cuda())) {
            let Case { weight, .. } = case((grid, hidden), batch)?;
            let n_hidden = grid.n_patches() * hidden;
            let planes = |n: usize, stream| uniform((2, batch, n), &CPU, Philox::new(62, stream));
            let (h, v) = (planes(n_hidden, 0)?, planes(grid.n_values(), 1)?);
            let h = Tensor::stack(&[h.get(0)?.neg()?, h.get(1)?], 0)?;
            let scalars = Tensor::new(&[0.02f32, 0.9, 0.1], &CPU)?;
            let weights = WeightStep { l1: 1e-3, l2: 1e-2 };
            let there = |t: &Tensor| match parts {
                2 => split(t, 1., &device),
                _ => t.to_dtype(dtype)?.to_device(&device)?.unsqueeze(0),
            };
            let (h, v) = (there(&h)?, there(&v)?);
            let whole = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F64)?.sum(0)?.flatten(0, 1);
            let gradient = patch_gradient_reference(&whole(&h)?, &whole(&v)?, &grid)?.to_dtype(DType::F32)?;
            let apart = dtype == DType::BF16;
            let velocity = normal(weight.shape(), &CPU, Philox::new(62, 2))?;
            let velocity =
                if apart { velocity.to_dtype(DType::BF16)?.to_dtype(DType::F32)? } else { velocity };
            let next = ((&velocity * 0.9f32 as f64)? + (gradient * 0.02f32 as f64)?)?;
            let want = weight_step_reference(&Tensor::stack(&[&weight, &next], 0)?, &scalars, weights)?;

            let params = match apart {
                true => weight.unsqueeze(0)?.to_device(&device)?.copy()?,
                false => Tensor::stack(&[&weight, &velocity], 0)?.to_device(&device)?,
            };
            let own =
                apart.then(|| velocity.to_dtype(DType::BF16)?.to_device(&device)?.copy()).transpose()?;
            let copy = Tensor::zeros([&[parts], weight.dims()].concat(), dtype, &device)?;
            let state = |n: usize| normal((4, n), &CPU, Philox::new(62, 3))?.to_device(&device);
            let (hidden_state, visible_state) = (state(n_hidden)?, state(grid.n_values())?);
            let biases = [hidden_state.copy()?, visible_state.copy()?];
            let counter = Tensor::new(&[3i64], &device)?;
            let sparsity = Some(Sparsity { target: 0.1, cost: 0.5, decay: 0.9 });
            let to = CdOperands {
                params: &params,
                velocity: own.as_ref(),
                copy: (dtype != DType::F32).then_some(&copy),
                hidden_state: &hidden_state,
                visible_state: &visible_state,
                counter: &counter,
            };
            let step = CdUpdate {
                weights,
                sparsity,
                visible_scale: None,
                copy_scale: 64.,
                advance: 11,
                precision: Precision::F32,
                biases: BiasGradients::BothPhases,
                rounding: None,
            };
            let there = scalars.to_device(&device)?;
            patch_cd_update_(to, &h, &v, &grid, &there, step)?;
            let what =
                format!("{grid:?} x {hidden}, {batch} rows, {parts} x {dtype:?} on {:?}", device.location());
            if apart && patch_step_takes_halves(&device, &grid, hidden, batch) {
                let weight = weight.unsqueeze(0)?.to_device(&device)?.contiguous()?;
                let lower = Tensor::zeros(weight.shape(), DType::I16, &device)?;
                let velocity = velocity.to_dtype(DType::BF16)?.to_device(&device)?.copy()?;
                let upper = copy.zeros_like()?;
                halves_into_(&upper, &lower, &weight)?;
                let (hidden_state, visible_state) = (biases[0].copy()?, biases[1].copy()?);
                let of_halves = CdOperands {
                    params: &lower,
                    velocity: Some(&velocity),
                    copy: Some(&upper),
                    hidden_state: &hidden_state,
                    visible_state: &visible_state,
                    counter: &Tensor::new(&[3i64], &device)?,
                };
                let step = CdUpdate { copy_scale: 1., ..step };
                patch_cd_update_(of_halves, &h, &v, &grid, &there, step)?;
                let joined = weight.zeros_like()?;
                joined_into_(&joined, &upper, &lower)?;
                assert_same_bits(&format!("{what}: weights in halves"), &joined, &params)?;
                if let Some(own) = &own {
                    assert_same_bits(&format!("{what}: velocity beside halves"), &velocity, own)?;
                }
                halved += 1;
            }
            let got = params.get(0)?.to_device(&CPU)?;
            // Up to 384 products of order 1/4, times .02, summed by the tensor cores at 2^-22 or in
            // two parts.
            let tolerance = if parts == 1 && dtype != DType::F32 { 2e-5 } else { 3e-6 };
            assert_close(&what, &got, &want.get(0)?, tolerance, tolerance)?;
            if dtype != DType::F32 {
                let copied = copy.to_device(&CPU)?.to_dtype(DType::F32)?.sum(0)?;
                let rounding = if parts == 2 {
                    1e-6
                } else if apart {
                    4e-3
                } else {
                    5e-4
                };
                assert_close(&what, &(copied / 64.)?, &got, rounding, 1e-6)?;
            }
            assert_eq!(counter.to_vec1::<i64>()?, [14], "{what}");
            // Biases are those of bias_step_, whose planes are the sums of the parts (exact in
            // f32).
            for (side, got, before, planes, phases, sparsity) in [
                ("hidden", &hidden_state, &biases[0], &h, Phases::Sum, sparsity),
                ("visible", &visible_state, &biases[1], &v, Phases::Difference, None),
            ] {
                let want = before.to_device(&CPU)?.copy()?;
                let planes = planes.to_device(&CPU)?.to_dtype(DType::F32)?.sum(0)?;
                let gather_error = phases == Phases::Difference;
                let step = BiasStep { phases, sparsity, gather_error, scale: None, sums: None };
                bias_step_(&want, &planes, &scalars, step)?;
                let (what, got) = (format!("{what}: {side} biases"), got.to_device(&CPU)?);
                // Tensor cores sum hidden units of 16 bits where the kernel of warpgroups takes the
                // update.
                let one_part = parts == 1 && dtype != DType::F32;
                let warpgroups = patch_step_takes_halves(&device, &grid, hidden, batch);
                match side == "hidden" && one_part && warpgroups {
                    true => assert_close(&what, &got, &want, 1e-6, 1e-6)?,
                    false => assert_same_bits(&what, &got, &want)?,
                }
            }
        }
        assert!(halved > 0 || !device.is_cuda() || !warpgroups_multiply(&device), "no weights in halves");
    }
    Ok(())
}

/// Grids whose last means and update are one kernel on an H100 or H200: tiles in one round and in
/// two, of k-blocks whose number is even or odd, as is that of every other one, so that all orders
/// of stages occur.
fn last_steps() -> Vec<((PatchGrid, usize), usize)> {
    vec![
        ((grid([1, 13, 13, 64], 3, 1), 192), 192),
        ((grid([1, 13, 13, 64], 3, 1), 192), 130),
        ((grid([2, 12, 12, 64], 2, 1), 128), 192),
        ((grid([1, 16, 16, 384], 1, 1), 192), 180),
        ((grid([1, 18, 18, 64], 3, 1), 256), 192),
    ]
}

#[test]
fn last_means_and_update_are_those_one_after_the_other() -> Result<()> {
    for device in devices()? {
        let small = ((grid([1, 8, 12, 8], 4, 2), 16), 50);
        let kinds = [(DType::F32, 1), (DType::F16, 1), (DType::F16, 2), (DType::BF16, 1)];
        let plain = if device.is_cuda() { &kinds[..] } else { &kinds[..1] };
        let halves = if device.is_cuda() && warpgroups_multiply(&device) { last_steps() } else { vec![] };
        let plain = plain.iter().map(|&(dtype, parts)| (small, dtype, parts, false));
        let halves = halves.into_iter().map(|case| (case, DType::BF16, 1, true));
        for (((grid, hidden), batch), dtype, parts, in_halves) in plain.chain(halves) {
            let what =
                format!("{grid:?} x {hidden}, {batch} rows, {parts} x {dtype:?} on {:?}", device.location());
            assert_eq!(
                in_halves,
                patch_step_takes_halves(&device, &grid, hidden, batch) && dtype == DType::BF16,
                "{what}"
            );
            let (n_hidden, shape) =
                (grid.n_patches() * hidden, [grid.n_patches(), hidden, grid.window_len()]);
            let stdev = 1. / (grid.window_len() as f64).sqrt();
            let weight = (normal(&shape, &device, Philox::new(64, 0))? * stdev)?;
            let velocity = (normal(&shape, &device, Philox::new(64, 1))? * 1e-3)?;
            let states = |n: usize, stream| -> Result<Tensor> {
                let planes = uniform((3, batch, n), &device, Philox::new(64, stream))?;
                let stored = match parts {
                    2 => {
                        let out = Tensor::zeros((2, 3, batch, n), DType::F16, &device)?;
                        split_into_(&out, &planes, 1.)?;
                        out
                    }
                    _ => planes.to_dtype(dtype)?.unsqueeze(0)?,
                };
                stored.contiguous()
            };
            let (h, v) = (states(n_hidden, 2)?, states(grid.n_values(), 3)?);
            let v = v.narrow(1, 1, 2)?; // planes from another than the first on, as a trainer has them
            let scalars = Tensor::new(&[0.02f32, 0.9, 0.1], &device)?;
            let copy_scale = if dtype == DType::F16 { 64. } else { 1. };
            let pre = Tensor::zeros((batch, n_hidden), DType::F32, &device)?;
            let run = |at_once: bool| -> Result<Vec<Tensor>> {
                let apart = dtype == DType::BF16;
                let params = match (in_halves, apart) {
                    (true, _) => Tensor::zeros((1, shape[0], shape[1], shape[2]), DType::I16, &device)?,
                    (_, true) => weight.unsqueeze(0)?.copy()?,
                    _ => Tensor::stack(&[&weight, &velocity], 0)?,
                };
                let copy = Tensor::zeros([&[parts], &shape[..]].concat(), dtype, &device)?;
                match (in_halves, parts) {
                    (true, _) => halves_into_(&copy, &params, &weight.unsqueeze(0)?)?,
                    (_, 2) => split_into_(&copy, &weight, copy_scale)?,
                    _ => scale_into_(&copy.get(0)?, &weight, copy_scale)?,
                }
                let own = apart.then(|| velocity.to_dtype(DType::BF16)?.copy()).transpose()?;
                let state = |n: usize| normal((4, n), &device, Philox::new(64, 4));
                let (hidden_state, visible_state) = (state(n_hidden)?, state(grid.n_values())?);
                let (h, counter) = (h.copy()?, Tensor::new(&[3i64], &device)?);
                let to = CdOperands {
                    params: &params,
                    velocity: own.as_ref(),
                    copy: (dtype != DType::F32).then_some(&copy),
                    hidden_state: &hidden_state,
                    visible_state: &visible_state,
                    counter: &counter,
                };
                let step = CdUpdate {
                    weights: WeightStep { l1: 1e-3, l2: 1e-2 },
                    sparsity: Some(Sparsity { target: 0.1, cost: 0.5, decay: 0.9 }),
                    visible_scale: None,
                    copy_scale,
                    advance: 11,
                    precision: Precision::F32,
                    biases: BiasGradients::BothPhases,
                    rounding: None,
                };
                // Twice, so that the second reads what the first wrote.
                for _ in 0..2 {
                    if at_once {
                        patch_last_step_(to, &h, &pre, &v, &grid, Unit::Bernoulli, &scalars, step)?;
                        continue;
                    }
                    let (planes, negative) = (h.flatten(0, 1)?, v.narrow(1, 0, 1)?.squeeze(1)?);
                    let weight = if dtype == DType::F32 { params.narrow(0, 0, 1)? } else { copy.clone() };
                    let out = UnitPlanes {
                        mean: Some(0),
                        mean_scale: -1.,
                        sample: None,
                        low: (parts == 2).then_some(3),
                    };
                    let (scale, bias) = (1. / copy_scale, hidden_state.get(0)?);
                    units_of_patches_(
                        &planes,
                        &pre,
                        &negative,
                        &weight,
                        &grid,
                        PatchDirection::Up,
                        scale,
                        &bias,
                        Unit::Bernoulli,
                        out,
                        Draws::Mode,
                        None,
                    )?;
                    patch_cd_update_(to, &h, &v, &grid, &scalars, step)?;
                }
                let whole = match in_halves {
                    true => {
                        let whole = weight.unsqueeze(0)?.zeros_like()?;
                        joined_into_(&whole, &copy, &params)?;
                        whole
                    }
                    false => params.clone(),
                };
                let velocity = own.unwrap_or(velocity.clone());
                Ok(vec![
                    whole,
                    velocity,
                    copy,
                    visible_state.clone(),
                    counter.to_dtype(DType::F32)?,
                    hidden_state.clone(),
                ])
            };
            let (got, want) = (run(true)?, run(false)?);
            let names = ["weights", "velocity", "copy", "visible biases", "counter", "hidden biases"];
            for ((got, want), name) in got.iter().zip(&want).zip(names) {
                let what = format!("{what}: {name}");
                // Sums of hidden units are made in another order. The second step's means are of
                // the biases that the first gave, and a mean that rounds to its neighbour moves a
                // weight by up to .02 / 256, and its copy or velocity to the next one.
                let (got, want) =
                    (got.to_device(&CPU)?.to_dtype(DType::F32)?, want.to_device(&CPU)?.to_dtype(DType::F32)?);
                match (in_halves, name) {
                    (true, "hidden biases") => assert_close(&what, &got, &want, 1e-5, 1e-5)?,
                    (true, "weights" | "velocity" | "copy") => {
                        let same = got.eq(&want)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
                        assert!(same > 0.9, "{what}: only {same} of all are the same");
                        let apart = if name == "weights" { 5e-4 } else { 5e-3 };
                        assert_close(&what, &got, &want, apart, apart)?;
                    }
                    _ => assert_same_bits(&what, &got, &want)?,
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_trainer_on_a_gpu_follows_the_cpu() -> Result<()> {
    for device in devices()? {
        for (visible, k) in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian]
            .into_iter()
            .flat_map(|unit| [(unit, 1), (unit, 3)])
        {
            let lowest = RbmConfig::patches(grid([1, 24, 40, 1], 24, 8), 64)?;
            let lowest = RbmConfig { visible, ..lowest };
            let Some(above) = lowest.hidden_grid(1, 1) else { candle::bail!("no patches") };
            let next = RbmConfig::patches(above, 8)?;
            let rows = uniform((96, 24 * 40), &CPU, Philox::new(63, 0))?;
            let config = RbmTrainConfig {
                batch: 32,
                k,
                sample_visible: visible == VisibleUnit::Gaussian && k == 1,
                learning_rate: 0.01.into(),
                ..RbmTrainConfig::default()
            };
            let run = |device: &Device, stacked: bool| -> Result<Tensor> {
                // The same weights everywhere: normal draws on the CPU.
                let lower = Rbm::init(lowest.clone(), Philox::new(63, 1), &CPU)?.to(DType::F32, device)?;
                let preparation = Default::default();
                let mut trainer = match stacked {
                    false => RbmTrainer::new(&lower, config.clone(), Philox::new(63, 2))?,
                    true => {
                        let rbm =
                            Rbm::init(next.clone(), Philox::new(63, 3), &CPU)?.to(DType::F32, device)?;
                        RbmTrainer::above(&[lower], &rbm, &preparation, config.clone(), Philox::new(63, 2))?
                    }
                };
                for minibatch in rows.to_device(device)?.chunk(3, 0)? {
                    trainer.step(&minibatch, None)?;
                }
                trainer.check()?;
                trainer.model()?.weight().to_device(&CPU)
            };
            for stacked in [false, true] {
                let what = format!("CD-{k} {visible:?} stacked {stacked} on {:?}", device.location());
                // Three steps of .01; a draw that falls to the other side moves a weight by .01/32.
                assert_close(&what, &run(&device, stacked)?, &run(&CPU, stacked)?, 1e-3, 2e-3)?;
            }
        }
    }
    Ok(())
}
