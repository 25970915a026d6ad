//! Updates of bf16 weights: rounded stochastically, by the same bits on every device.
#![allow(clippy::expect_used)]
use crate::resume::assert_two_layers_resume;
use candle::{DType, Device, Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, WeightStorage};
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::layers::{
    BiasGradients, BiasStep, CdOperands, CdUpdate, Phases, Sparsity, WeightStep, bias_step_, cd_update_,
    cd_update_reference, round_stochastic, rounding_bits,
};
use chandlery_ops::{Philox, Precision};
use chandlery_tests::{assert_close, assert_same_bits, devices, sizes_here};
use half::bf16;

const CPU: Device = Device::Cpu;
const DRAWS: Philox = Philox { seed: 3, stream: 1 << 63, offset: 11 };

/// Rate / batch, momentum and rate whose products with the numbers of [`Update`] need no rounding.
fn scalars() -> Result<Tensor> {
    Tensor::new(&[1f32 / 256., 0.5, 0.125], &CPU)
}

/// Whole multiples of `unit` in `[−1, 1]`, each as likely.
fn multiples(shape: &[usize], unit: f64, stream: u64) -> Result<Tensor> {
    let n = 1. / unit;
    (uniform(shape, &CPU, Philox::new(40, stream))?.affine(2. * n + 1., -n - 0.5)?.round()?.clamp(-n, n)?
        * unit)?
        .to_dtype(DType::BF16)
}

/// What an update reads and writes: numbers so short that all sums of f32 numbers are exact, in
/// whatever order.
struct Update {
    weight: Tensor,
    velocity: Tensor,
    hidden: Tensor,
    visible: Tensor,
    hidden_state: Tensor,
    visible_state: Tensor,
}

impl Update {
    fn new(batch: usize, rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            weight: multiples(&[1, rows, cols], 1. / 64., 0)?,
            velocity: multiples(&[rows, cols], 1. / 64., 1)?,
            hidden: multiples(&[1, 2, batch, rows], 0.5, 2)?,
            visible: multiples(&[1, 2, batch, cols], 0.5, 3)?,
            hidden_state: multiples(&[4, rows], 0.125, 4)?.to_dtype(DType::F32)?,
            visible_state: multiples(&[4, cols], 0.125, 5)?.to_dtype(DType::F32)?,
        })
    }

    /// Weights, velocity, hidden and visible state and counter after so many updates.
    fn run(&self, device: &Device, step: CdUpdate<'_>, n: usize) -> Result<[Tensor; 5]> {
        self.run_at([0; 4], device, step, n)
    }

    /// The same where weights, velocity, hidden and visible states begin so many entries into their
    /// memory.
    fn run_at(
        &self,
        [weight_at, velocity_at, hidden_at, visible_at]: [usize; 4],
        device: &Device,
        step: CdUpdate<'_>,
        n: usize,
    ) -> Result<[Tensor; 5]> {
        let at = |t: &Tensor, offset: usize| {
            let room = Tensor::zeros(offset, t.dtype(), device)?;
            Tensor::cat(&[&room, &t.to_device(device)?.flatten_all()?], 0)?
                .narrow(0, offset, t.elem_count())?
                .reshape(t.shape())
        };
        let own = |t: &Tensor| t.to_device(device)?.copy();
        let (params, velocity) = (at(&self.weight, weight_at)?, at(&self.velocity, velocity_at)?);
        let (hidden_state, visible_state) = (own(&self.hidden_state)?, own(&self.visible_state)?);
        let counter = Tensor::new(&[40i64], device)?;
        let to = CdOperands {
            params: &params,
            velocity: Some(&velocity),
            copy: None,
            hidden_state: &hidden_state,
            visible_state: &visible_state,
            counter: &counter,
        };
        let (hidden, visible) = (at(&self.hidden, hidden_at)?, at(&self.visible, visible_at)?);
        for _ in 0..n {
            cd_update_(to, &hidden, &visible, &scalars()?.to_device(device)?, step)?;
        }
        Ok([params.get(0)?, velocity, hidden_state, visible_state, counter])
    }
}

fn step(weights: WeightStep, sparsity: Option<Sparsity>) -> CdUpdate<'static> {
    CdUpdate {
        weights,
        sparsity,
        visible_scale: None,
        copy_scale: 1.,
        advance: 7,
        precision: Precision::Bf16,
        biases: BiasGradients::BothPhases,
        rounding: Some(DRAWS),
    }
}

/// A matrix of f32 numbers rounded by the bits of the step that begins at `counter`.
fn rounded(x: &Tensor, counter: i64) -> Result<Tensor> {
    let shape = x.dims2()?;
    let rows = x.to_vec2::<f32>()?;
    let round = |(i, x): (usize, f32)| {
        let at = (i / shape.1, i % shape.1);
        round_stochastic(x, rounding_bits(DRAWS, counter, shape, at))
    };
    let all: Vec<bf16> = rows.into_iter().flatten().enumerate().map(round).collect();
    Tensor::from_vec(all, shape, &CPU)
}

#[test]
fn bf16_weights_have_the_bits_of_their_reference_at_awkward_sizes() -> Result<()> {
    // Around groups of 32 columns, slices of 32 and 64 in depth, tiles of 64 and 128, lines of four
    // and of eight; the last three for products of warpgroups, with rest at every border and blocks
    // that share columns of tiles.
    let sizes = [
        (1, 4, 4),
        (3, 8, 12),
        (17, 64, 72),
        (31, 136, 8),
        (33, 60, 68),
        (100, 40, 264),
        (192, 100, 60),
        // Lines of no whole fours.
        (1, 1, 1),
        (5, 3, 7),
        (25, 101, 66),
        (20, 1000, 616),
        (64, 1600, 1544),
        (20, 8200, 1032),
        (192, 1096, 4104),
        // Minibatches of more rows than stay: of a large matrix, and of tiles that blocks share.
        (200, 1088, 4104),
        (600, 136, 264),
        (600, 392, 2056),
    ];
    let sparsity = Some(Sparsity { target: 0.125, cost: 0.5, decay: 0.5 });
    for (batch, rows, cols) in sizes_here(&sizes, |(batch, rows, cols)| batch * rows * cols) {
        let case = Update::new(batch, rows, cols)?;
        for (weights, sparsity) in [
            (WeightStep::default(), None),
            (WeightStep { l1: 0., l2: 0.5 }, sparsity),
            (WeightStep { l1: 0.25, l2: 0.5 }, None),
        ] {
            let f32 = |t: &Tensor| t.to_dtype(DType::F32);
            let params = Tensor::stack(&[f32(&case.weight.get(0)?)?, f32(&case.velocity)?], 0)?;
            let both = |t: &Tensor| f32(&t.get(0)?)?.flatten(0, 1);
            let (h, x) = (both(&case.hidden)?, both(&case.visible)?);
            let want = cd_update_reference(&params, &h, &x, &scalars()?, weights)?;
            let (want_w, want_v) = (rounded(&want.get(0)?, 40)?, want.get(1)?.to_dtype(DType::BF16)?);
            for device in devices()? {
                let what = format!("[{batch}, {rows}, {cols}] {weights:?} on {:?}", device.location());
                let [w, v, hidden, visible, counter] = case.run(&device, step(weights, sparsity), 1)?;
                assert_same_bits(&format!("{what}: weights"), &w.to_device(&CPU)?, &want_w)?;
                assert_same_bits(&format!("{what}: velocity"), &v.to_device(&CPU)?, &want_v)?;
                assert_eq!(counter.to_vec1::<i64>()?, [47], "{what}");
                for (side, got, state, planes, phases, sparsity) in [
                    ("hidden", hidden, &case.hidden_state, &case.hidden, Phases::Sum, sparsity),
                    ("visible", visible, &case.visible_state, &case.visible, Phases::Difference, None),
                ] {
                    let want = state.copy()?;
                    let gather_error = phases == Phases::Difference;
                    let step = BiasStep { phases, sparsity, gather_error, scale: None, sums: None };
                    bias_step_(&want, &f32(&planes.get(0)?)?, &scalars()?, step)?;
                    assert_same_bits(&format!("{what}: {side} biases"), &got.to_device(&CPU)?, &want)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn bf16_weights_and_states_may_begin_anywhere() -> Result<()> {
    // 25 rows of 100 units: the second minibatch begins 2,500 entries, 8 bytes beyond whole
    // sixteens, into memory. Then sizes of each kernel.
    for (batch, rows, cols) in [(25, 40, 100), (25, 16, 104), (7, 31, 50), (33, 1096, 4104)] {
        let case = Update::new(batch, rows, cols)?;
        let step = step(WeightStep { l1: 0.25, l2: 0.5 }, None);
        let want = case.run(&CPU, step, 2)?;
        for device in devices()? {
            for at in
                [[0, 0, 0, 2500], [4, 0, 0, 8], [0, 4, 12, 0], [8, 16, 8, 24], [1, 0, 0, 0], [0, 3, 2, 1]]
            {
                let got = case.run_at(at, &device, step, 2)?;
                for (name, (got, want)) in
                    ["weights", "velocity", "hidden", "visible"].iter().zip(got.iter().zip(&want))
                {
                    let what =
                        format!("[{batch}, {rows}, {cols}] at {at:?} on {:?}: {name}", device.location());
                    assert_same_bits(&what, &got.to_device(&CPU)?, want)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_network_of_bf16_weights_takes_minibatches_that_begin_between_sixteen_bytes() -> Result<()> {
    for device in devices()? {
        // Multiples of four that are none of eight, and neither.
        for (n_visible, n_hidden) in [(100, 36), (63, 30)] {
            let data = rows(100, n_visible)?.to_device(&device)?;
            let rbm = Rbm::init(RbmConfig::new(n_visible, n_hidden), Philox::new(43, 0), &device)?;
            let training = stochastic(RbmTrainConfig { batch: 25, ..RbmTrainConfig::default() });
            let mut trainer = RbmTrainer::new(&rbm, training, Philox::new(43, 1))?;
            for step in 0..12 {
                trainer.step(&data.narrow(0, step % 4 * 25, 25)?, None)?;
            }
            trainer.steps_of(&data, None, 4)?;
            trainer.check()?;
            assert!(trainer.metrics()?.reconstruction_error.is_finite());
        }
    }
    Ok(())
}

#[test]
fn each_step_has_bits_of_its_own_and_the_mean_of_the_weights_is_that_of_f32() -> Result<()> {
    // One velocity for all weights, which lie half a spacing of bf16 numbers (2^-7 at 1) from where
    // they go in 16 steps.
    const STEPS: usize = 16;
    let (rows, cols, ulp) = (64, 128, 2f64.powi(-7));
    for device in devices()? {
        let ones =
            |shape: &[usize], value: f64| Tensor::full(value as f32, shape, &CPU)?.to_dtype(DType::BF16);
        let case = Update {
            weight: ones(&[1, rows, cols], 1.)?,
            velocity: ones(&[rows, cols], 0.)?,
            // The gradient is 1, the rate over the batch 1/256, the momentum 0.5: steps of up to
            // one spacing.
            hidden: ones(&[1, 2, 1, rows], 0.5)?,
            visible: ones(&[1, 2, 1, cols], 0.0625)?,
            ..Update::new(1, rows, cols)?
        };
        let [w, ..] = case.run(&device, step(WeightStep::default(), None), STEPS)?;
        let all = w.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        let (mut weight, mut velocity) = (1f64, 0f64);
        for _ in 0..STEPS {
            velocity = 0.5 * velocity + 0.0625 / 256.;
            weight += velocity;
        }
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        let deviation = (all.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / n).sqrt();
        // A rounding adds a variance of at most a quarter of a spacing squared; steps that shared
        // bits would add up to STEPS² of it.
        let most = ulp / 2. * (STEPS as f64).sqrt();
        assert!(deviation > 0. && deviation <= most, "deviation {deviation}, at most {most}");
        let standard_error = deviation / n.sqrt();
        assert!(
            (mean - weight).abs() <= 4. * standard_error,
            "mean {mean}, want {weight} ± {standard_error}"
        );
    }
    Ok(())
}

#[test]
fn weights_that_are_not_finite_stay_so_and_leave_the_others_alone() -> Result<()> {
    for device in devices()? {
        for (rows, cols) in [(12, 20), (64, 72), (1096, 4104)] {
            let mut weights = vec![bf16::ONE; rows * cols];
            for (i, odd) in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY].into_iter().enumerate() {
                weights[i] = odd;
                weights[rows * cols - 1 - i] = odd;
            }
            let weight = Tensor::from_slice(&weights, (1, rows, cols), &CPU)?;
            let case = Update { weight, ..Update::new(4, rows, cols)? };
            let [w, ..] = case.run(&device, step(WeightStep::default(), None), 2)?;
            for (i, (got, was)) in w.flatten_all()?.to_vec1::<bf16>()?.iter().zip(&weights).enumerate() {
                assert_eq!(
                    got.is_finite(),
                    was.is_finite(),
                    "[{rows}, {cols}] on {:?}: weight {i} was {was} and became {got}",
                    device.location()
                );
            }
        }
    }
    Ok(())
}

#[test]
fn updates_of_bf16_weights_say_what_is_wrong() -> Result<()> {
    let first = |r: Result<[Tensor; 5]>| {
        r.expect_err("accepted").to_string().lines().next().unwrap_or_default().to_owned()
    };
    for device in devices()? {
        let still = CdUpdate { advance: 0, ..step(WeightStep::default(), None) };
        let message = first(Update::new(4, 8, 8)?.run(&device, still, 1));
        assert!(message.contains("an advance of at least 1, got BF16 states, advance 0"), "{message}");
        let masters = CdUpdate { rounding: None, ..step(WeightStep::default(), None) };
        let message = first(Update::new(4, 8, 8)?.run(&device, masters, 1));
        assert!(message.contains("params must be f32 or i16, got BF16"), "{message}");
    }
    Ok(())
}

/// Rows of 0 and 1 that repeat one of four patterns, with a tenth of the values turned.
fn rows(n: usize, width: usize) -> Result<Tensor> {
    let noise = uniform((n, width), &CPU, Philox::new(41, 0))?.to_vec2::<f32>()?;
    let value = |row: usize, i: usize| (i / (row % 4 + 1) % 2) as f32;
    let all = noise.iter().enumerate().flat_map(|(row, noise)| {
        noise.iter().enumerate().map(move |(i, &u)| if u < 0.1 { 1. - value(row, i) } else { value(row, i) })
    });
    Tensor::from_iter(all.collect::<Vec<_>>(), &CPU)?.reshape((n, width))
}

fn stochastic(training: RbmTrainConfig) -> RbmTrainConfig {
    RbmTrainConfig { precision: Precision::Bf16, weights: WeightStorage::Bf16Stochastic, ..training }
}

#[test]
fn bf16_weights_learn_what_f32_weights_learn() -> Result<()> {
    let data = rows(400, 64)?;
    for device in devices()? {
        let data = data.to_device(&device)?;
        let rbm = Rbm::init(RbmConfig::new(64, 40), Philox::new(42, 0), &device)?;
        let error = |training: RbmTrainConfig| -> Result<f64> {
            let mut trainer = RbmTrainer::new(&rbm, training, Philox::new(42, 1))?;
            for step in 0..800 {
                trainer.step(&data.narrow(0, step % 20 * 20, 20)?, None)?;
                if step == 600 {
                    trainer.metrics()?;
                }
            }
            trainer.check()?;
            Ok(trainer.metrics()?.reconstruction_error)
        };
        let sparsity = Some(SparsityConfig { target: 0.2, cost: 0.1, decay: 0.9 });
        let training =
            RbmTrainConfig { batch: 20, learning_rate: 0.05.into(), sparsity, ..RbmTrainConfig::default() };
        let (want, got) = (error(training.clone())?, error(stochastic(training))?);
        assert!(
            (got / want - 1.).abs() < 0.05,
            "{:?}: error {got}, with f32 weights {want}",
            device.location()
        );
    }
    Ok(())
}

#[test]
fn a_network_of_bf16_weights_resumes_bit_for_bit_on_every_device() -> Result<()> {
    const STEPS: usize = 24;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for device in devices()? {
        let training =
            stochastic(RbmTrainConfig { batch: 20, persistent: true, l1: 1e-4, ..RbmTrainConfig::default() });
        let dbn = Dbn::init(DbnConfig::new(&[36, 28, 16]), Philox::new(52, 0), &device)?;
        let rows = rows(160, 36)?.to_device(&device)?;
        let new = || DbnTrainer::new(&dbn, vec![training.clone(); 2], Philox::new(52, 1));
        let whole = assert_two_layers_resume(&path, new, &rows, STEPS, &[1, 13, STEPS, STEPS + 7])?;
        for layer in whole.layers() {
            let weight = layer.weight();
            assert_eq!(weight.dtype(), DType::F32);
            let short = weight.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
            assert_same_bits("weights are bf16 numbers", weight, &short)?;
        }
        // A checkpoint is that of any device.
        let (mut on_cpu, at) = DbnTrainer::load(&path, &CPU)?;
        let (mut here, _) = DbnTrainer::load(&path, &device)?;
        let rows = rows.to_device(&CPU)?;
        on_cpu.step(&rows.narrow(0, 0, 20)?, None)?;
        here.step(&rows.narrow(0, 0, 20)?.to_device(&device)?, None)?;
        assert!(at.as_u64() > Some(0));
        for ((part, got), (_, want)) in here.rbm()?.tensors().into_iter().zip(on_cpu.rbm()?.tensors()) {
            // A unit in a thousand may be drawn otherwise, which moves its weights by the rate over
            // the batch; a rounding may be to the other side.
            assert_close(
                &format!("a step from a checkpoint: {part}"),
                &got,
                &want,
                2f32.powi(-7),
                0.1 / 20.,
            )?;
        }
    }
    Ok(())
}

#[test]
fn layers_that_cannot_have_bf16_weights_are_refused_before_anything_is_trained() -> Result<()> {
    let dbn = Dbn::init(DbnConfig::new(&[8, 12, 6]), Philox::new(1, 0), &CPU)?;
    DbnTrainer::new(&dbn, vec![stochastic(RbmTrainConfig::default()); 2], Philox::new(1, 1))?;
    let message = |training: Vec<RbmTrainConfig>| {
        let refused = DbnTrainer::new(&dbn, training, Philox::new(1, 1)).err().expect("accepted");
        refused.to_string().lines().next().unwrap_or_default().to_owned()
    };
    let both = |one: RbmTrainConfig| vec![one; 2];
    assert_eq!(
        message(both(RbmTrainConfig { precision: Precision::F32, ..stochastic(RbmTrainConfig::default()) })),
        "RbmTrainConfig: precision must be bf16 for bf16-stochastic weights, got f32"
    );
    assert_eq!(
        message(both(RbmTrainConfig { max_norm: Some(3.), ..stochastic(RbmTrainConfig::default()) })),
        "RbmTrainConfig: max_norm must be none for bf16-stochastic weights, got 3"
    );
    Ok(())
}
