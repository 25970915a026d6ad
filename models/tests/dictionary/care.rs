//! Idle atoms and atoms alike.
use super::{CPU, beginning, bits, coder, config, dictionary, difference, signals, unit_rows};
use candle::{Result, Tensor};
use chandlery::FullBatchTrainer;
use chandlery::dictionary::{
    DictionaryTrainConfig, DictionaryTrainer, Iteration, Replace, SparseCoder, UpdateRule,
};
use chandlery_ops::Philox;

#[test]
fn idle_atoms_become_the_worst_represented_distinct_signals() -> Result<()> {
    // Two atoms cover most signals; three signals lie elsewhere, the worst twice (once with another
    // sign), one a little shorter.
    let mut rows = vec![vec![0f32; 4]; 40];
    for (i, row) in rows.iter_mut().enumerate() {
        row[i % 2] = 1. + i as f32;
    }
    rows[7] = vec![0., 0., 0., -9.];
    rows[8] = vec![0., 0., 0., 8.];
    rows[9] = vec![0., 0., 5., 0.];
    rows[10] = vec![0.; 4];
    let y = Tensor::new(rows, &CPU)?;
    let atoms = Tensor::new(&[[1f32, 0., 0., 0.], [0., 1., 0., 0.], [0.; 4], [0.; 4]], &CPU)?;
    let coder = SparseCoder { n_nonzero: 1, ..coder() };
    let config =
        DictionaryTrainConfig { coder: Some(coder), min_uses: 1, ..DictionaryTrainConfig::default() };
    let run = |config: DictionaryTrainConfig| -> Result<(Iteration, Vec<Vec<f32>>)> {
        let mut trainer = DictionaryTrainer::new(dictionary(atoms.clone())?, &y, config, Philox::new(4, 0))?;
        assert_eq!(trainer.last().used, 2);
        trainer.step()?;
        let iteration = trainer.last();
        Ok((iteration, trainer.current().atoms().to_vec2()?))
    };
    let (iteration, d) = run(config.clone())?;
    assert_eq!((iteration.replaced, iteration.used, iteration.rmse), (2, 4, 0.));
    assert_eq!(d[2], [0., 0., 0., -1.], "the worst first");
    assert_eq!(d[3], [0., 0., 1., 0.], "the second worst lies along the worst");

    let (iteration, d) = run(DictionaryTrainConfig { replace: Replace::None, ..config.clone() })?;
    assert_eq!((iteration.replaced, iteration.used), (0, 2));
    assert_eq!((&d[2], &d[3]), (&vec![0.; 4], &vec![0.; 4]));

    let (iteration, d) = run(DictionaryTrainConfig { replace: Replace::Random, ..config.clone() })?;
    assert_eq!(iteration.replaced, 2);
    for row in &d[2..] {
        let length: f32 = row.iter().map(|x| x * x).sum();
        assert!((length - 1.).abs() < 1e-6, "a random signal of length 1, not {row:?}");
    }

    // Fixed atoms stay, used or not.
    let (iteration, d) = run(DictionaryTrainConfig { n_fixed: 3, ..config })?;
    assert_eq!(iteration.replaced, 1);
    assert_eq!((&d[2], &d[3]), (&vec![0.; 4], &vec![0., 0., 0., -1.]));
    Ok(())
}

#[test]
fn of_two_atoms_alike_the_later_is_replaced() -> Result<()> {
    let y = signals()?;
    let atoms = beginning(&y)?.atoms().copy()?;
    atoms.slice_set(&(atoms.narrow(0, 2, 1)? * -1.)?, 0, 7)?;
    for (max_coherence, replaced) in [(Some(0.99), true), (None, false)] {
        // All fixed but the copy, and no atom idle.
        let config =
            DictionaryTrainConfig { max_coherence, n_fixed: 7, min_uses: 0, ..config(UpdateRule::Sgk) };
        let mut trainer = DictionaryTrainer::new(dictionary(atoms.clone())?, &y, config, Philox::new(5, 0))?;
        assert!((trainer.last().coherence - 1.).abs() < 1e-12);
        trainer.step()?;
        let iteration = trainer.last();
        let kept = difference(&trainer.current().atoms().narrow(0, 7, 1)?, &atoms.narrow(0, 7, 1)?)?;
        assert_eq!((iteration.replaced > 0, kept > 1e-9), (replaced, replaced));
        assert_eq!(
            bits(&trainer.current().atoms().narrow(0, 0, 7)?)?,
            bits(&unit_rows(&atoms.narrow(0, 0, 7)?)?)?
        );
    }
    Ok(())
}
