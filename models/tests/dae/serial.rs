//! The trainer follows the serial program from the same draws.
use super::{CPU, awake, grey, off, values};
use candle::{Result, Tensor};
use chandlery::dae::reference::{Real, Serial};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::layers::{Corruption, corrupt};

const DRAWS: Philox = Philox { seed: 77, stream: 2, offset: 5 };
const N: usize = 50;
const H: usize = 23;

/// The serial program after `steps` minibatches of `batch` rows, in order and again from the start.
fn serial<T: Real>(dae: &Dae, rows: &Tensor, batch: usize, steps: usize, rate: f64) -> Result<Serial<T>> {
    let mut serial = Serial::<T>::of(dae)?;
    let rows: Vec<T> = values(rows)?.into_iter().map(T::of).collect();
    let n = batch * dae.config().n_visible;
    for step in 0..steps {
        let from = step * n % rows.len();
        let x = &rows[from..from + n];
        let draws = Philox { offset: DRAWS.offset + (step * n.div_ceil(4)) as u64, ..DRAWS };
        let corrupted = Serial::corrupt(x, Corruption::SaltAndPepper(0.3), draws, 0);
        serial.step(x, &corrupted, T::of(rate));
    }
    Ok(serial)
}

fn trained(dae: &Dae, rows: &Tensor, batch: usize, steps: usize, rate: f64) -> Result<Dae> {
    let config = DaeTrainConfig { batch, learning_rate: rate.into(), ..DaeTrainConfig::default() };
    let mut trainer = DaeTrainer::new(dae, config, DRAWS)?;
    let n = rows.dim(0)?;
    for step in 0..steps {
        trainer.step(&rows.narrow(0, step * batch % n, batch)?, None)?;
    }
    trainer.model()
}

#[test]
fn minibatches_of_any_size_follow_the_serial_program_in_both_precisions() -> Result<()> {
    let (small, wide) = (DaeConfig::new(N, H), DaeConfig::new(69, 75));
    for (config, batch, steps) in [
        (&small, 1, 200),
        (&small, 2, 100),
        (&small, 7, 60),
        (&small, 8, 60),
        (&small, 33, 20),
        // Beyond one op for many steps, with units that are added, and rows that end within a block.
        (&wide, 65, 10),
    ] {
        let dae = awake(config.clone(), 1)?;
        let rows = grey(batch * 5, config.n_visible)?;
        let got = trained(&dae, &rows, batch, steps, 0.1)?;
        let f32s = serial::<f32>(&dae, &rows, batch, steps, 0.1)?.dae(&CPU)?;
        let f64s = serial::<f64>(&dae, &rows, batch, steps, 0.1)?.dae(&CPU)?;
        for ((name, start), (_, got)) in dae.tensors().into_iter().zip(got.tensors()) {
            for (what, want) in [("f32", &f32s), ("f64", &f64s)] {
                let want = want.tensors().into_iter().find(|(n, _)| *n == name).expect("the same names").1;
                let distance = values(&(&got - &start)?)?.iter().fold(0f64, |d, x| d.max(x.abs()));
                assert!(distance > 0.05, "{name} hardly moved: {distance}");
                // Rounding errors of 200 steps of sums of 50 products, 6e-8 each.
                let off = off(&values(&got)?, &values(&want)?);
                assert!(off < 2e-5, "batch {batch}, {what}: {name} is {off:e} off");
            }
        }
    }
    Ok(())
}

#[test]
fn observations_one_at_a_time_differ_from_a_minibatch_by_the_square_of_the_rate() -> Result<()> {
    // Steps of one row each read weights that moved meanwhile, by as much as the rate: a step of
    // four rows differs by its square.
    let dae = awake(DaeConfig::new(N, H), 2)?;
    let rows = values(&grey(4, N)?)?;
    let corrupted = Serial::corrupt(&rows, Corruption::SaltAndPepper(0.3), DRAWS, 0);
    let apart = |rate: f64| -> Result<f64> {
        let (mut one_by_one, mut at_once) = (Serial::<f64>::of(&dae)?, Serial::<f64>::of(&dae)?);
        for (x, corrupted) in rows.chunks(N).zip(corrupted.chunks(N)) {
            one_by_one.step(x, corrupted, rate / 4.);
        }
        at_once.step(&rows, &corrupted, rate);
        Ok(off(&one_by_one.weight, &at_once.weight))
    };
    assert!(apart(0.1)? > 1e-3 && apart(1e-4)? < 1e-7, "{:e} and {:e}", apart(0.1)?, apart(1e-4)?);
    Ok(())
}

#[test]
fn the_noise_of_the_serial_program_is_that_of_the_op() -> Result<()> {
    let rows = grey(3, N)?;
    for law in ["none", "salt-and-pepper:0.3", "masking:0.5", "flip:0.3", "gaussian:0.2"] {
        let law: Corruption = law.parse().map_err(candle::Error::msg)?;
        let want = corrupt(&rows, law, DRAWS)?.flatten_all()?.to_vec1::<f32>()?;
        let x = rows.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(Serial::corrupt(&x, law, DRAWS, 0), want);
        // The last row by itself.
        let alone = Serial::corrupt(&x[2 * N..], law, DRAWS, 2 * N as u64);
        assert_eq!(alone, want[2 * N..]);
    }
    Ok(())
}

#[test]
fn the_serial_program_refuses_what_the_paper_does_not_have() -> Result<()> {
    let dae = awake(DaeConfig { tied: false, ..DaeConfig::new(5, 3) }, 1)?;
    let error = super::first_line(Serial::<f32>::of(&dae).expect_err("taken"));
    assert!(
        error.starts_with("Serial: the autoencoder must have (true, Sigmoid, Sigmoid, CrossEntropy)"),
        "{error}"
    );
    Ok(())
}
