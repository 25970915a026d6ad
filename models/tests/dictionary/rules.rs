//! Every rule of update against plain loops, and that it learns.
use super::{CPU, M, N, P, RULES, S, beginning, coder, config, difference, signals};
use candle::{Result, Tensor};
use chandlery::dictionary::{
    CodeError, DictionaryTrainConfig, DictionaryTrainer, Replace, SparseCoder, SparseCodes, UpdateRule,
};
use chandlery::{Encode, FullBatchTrainer};
use chandlery_ops::Philox;
use chandlery_ops::codes::{AtomUpdate, ErrorTarget, Pursuit, omp_reference, update_atoms_reference};

/// `X'` and `X`: atom `j` from the equation of NSGK, one after the other, by plain loops over dense
/// matrices.
fn nsgk(y: &Tensor, d: &Tensor, before: &SparseCodes, now: &SparseCodes) -> Result<Vec<Vec<f64>>> {
    let (y, mut d) = (y.to_vec2::<f64>()?, d.to_vec2::<f64>()?);
    let (before, now) = (before.to_dense()?.to_vec2::<f64>()?, now.to_dense()?.to_vec2::<f64>()?);
    let product = |x: &[f64], d: &[Vec<f64>], c: usize| (0..N).map(|l| x[l] * d[l][c]).sum::<f64>();
    let mut z = vec![vec![0.; P]; M];
    for i in 0..M {
        for c in 0..P {
            z[i][c] = y[i][c] + product(&before[i], &d, c) - product(&now[i], &d, c);
        }
    }
    for j in 0..N {
        let mut g = [0.; P];
        for i in 0..M {
            for (c, g) in g.iter_mut().enumerate() {
                let without = z[i][c] - product(&before[i], &d, c) + before[i][j] * d[j][c];
                *g += before[i][j] * without;
            }
        }
        let norm = g.iter().map(|g| g * g).sum::<f64>().sqrt();
        d[j] = g.iter().map(|g| g / norm).collect();
    }
    Ok(d)
}

/// `(XᵀX)⁻¹XᵀY` by Gauss and Jordan, rows of length 1.
fn optimal_directions(y: &Tensor, x: &SparseCodes) -> Result<Vec<Vec<f64>>> {
    let x = x.to_dense()?;
    let (a, b) = (x.t()?.matmul(&x)?, x.t()?.matmul(y)?);
    let mut rows: Vec<Vec<f64>> =
        a.to_vec2::<f64>()?.into_iter().zip(b.to_vec2::<f64>()?).map(|(a, b)| [a, b].concat()).collect();
    for j in 0..N {
        let pivot = rows[j].iter().map(|x| x / rows[j][j]).collect::<Vec<f64>>();
        for (i, row) in rows.iter_mut().enumerate() {
            let factor = row[j];
            for (x, p) in row.iter_mut().zip(&pivot) {
                *x = if i == j { *p } else { *x - factor * p };
            }
        }
    }
    Ok(rows
        .into_iter()
        .map(|row| {
            let norm = row[N..].iter().map(|x| x * x).sum::<f64>().sqrt();
            row[N..].iter().map(|x| x / norm).collect()
        })
        .collect())
}

#[test]
fn a_step_of_every_rule_is_its_equation() -> Result<()> {
    let y = signals()?;
    for rule in RULES {
        for group in [1, 5, N] {
            let config = DictionaryTrainConfig { group, replace: Replace::None, ..config(rule) };
            let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, config, Philox::new(3, 0))?;
            let mut before = trainer.codes().clone();
            for step in 0..3 {
                let (d, codes) = (trainer.current().atoms().clone(), trainer.codes().clone());
                // The codes are those of the reference.
                let want = omp_reference(&y, &d, &Pursuit::new(S))?;
                assert!(difference(&codes.to_dense()?, &want.to_dense()?)? < 1e-9);
                let error = (&y - codes.to_dense()?.matmul(&d)?)?;
                let update = AtomUpdate { group, ..AtomUpdate::default() };
                let reference = |power_steps, tolerance| {
                    let update = AtomUpdate { power_steps, tolerance, ..update };
                    Ok::<_, candle::Error>(update_atoms_reference(&d, &codes, &error, &update)?.0)
                };
                let want = match rule {
                    UpdateRule::Ksvd => reference(100, 1e-5)?,
                    UpdateRule::AkSvd => reference(1, 0.)?,
                    UpdateRule::Sgk => reference(0, 0.)?,
                    UpdateRule::Nsgk if step == 0 => reference(0, 0.)?,
                    UpdateRule::Nsgk if group > 1 => {
                        update_atoms_reference(&d, &before, &error, &AtomUpdate { power_steps: 0, ..update })?
                            .0
                    }
                    UpdateRule::Nsgk => Tensor::new(nsgk(&y, &d, &before, &codes)?, &CPU)?,
                    UpdateRule::Mod => Tensor::new(optimal_directions(&y, &codes)?, &CPU)?,
                };
                trainer.step()?;
                let off = difference(trainer.current().atoms(), &want)?;
                // Sums of 400 products in another order, a chain over 12 atoms.
                assert!(off < 1e-10, "{rule:?}, group {group}, step {step}: atoms differ by {off}");
                before = codes;
            }
        }
    }
    Ok(())
}

#[test]
fn every_rule_learns_and_the_best_dictionary_is_kept() -> Result<()> {
    let y = signals()?;
    for rule in RULES {
        let mut trainer = DictionaryTrainer::new(
            beginning(&y)?,
            &y,
            DictionaryTrainConfig { iterations: 30, ..config(rule) },
            Philox::new(3, 0),
        )?;
        let begin = trainer.last();
        assert_eq!((begin.iteration, begin.replaced), (0, 0));
        let trace = trainer.fit()?;
        assert_eq!(trace.iter().map(|i| i.iteration).collect::<Vec<_>>(), (1..=30).collect::<Vec<_>>());
        let best = trace.iter().map(|i| i.rmse).fold(begin.rmse, f64::min);
        // The noise alone is .05; random signals for atoms leave several times as much.
        assert!(begin.rmse > 0.15 && best < 0.5 * begin.rmse, "{rule:?}: {} to {best}", begin.rmse);
        assert_eq!(best, trainer.best_rmse());
        let left = trainer.best().encode(&y)?.residual(&y, trainer.best().atoms())?;
        let rmse = left.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
        assert!((rmse - best).abs() < 1e-12, "{rule:?}: the best gives {rmse}, not {best}");
        // Nothing is left to do.
        assert!(trainer.fit()?.is_empty());
        assert!((trainer.last().coherence - trainer.current().mutual_coherence()?).abs() < 1e-12);
    }
    Ok(())
}

#[test]
fn a_penalty_makes_the_trained_dictionary_less_coherent() -> Result<()> {
    let y = signals()?;
    let coherence = |coherence_penalty| -> Result<f64> {
        let config = DictionaryTrainConfig { iterations: 20, coherence_penalty, ..config(UpdateRule::AkSvd) };
        let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, config, Philox::new(3, 0))?;
        trainer.fit()?;
        let d = trainer.current().atoms();
        d.matmul(&d.t()?)?.sqr()?.sum_all()?.to_scalar()
    };
    let (without, with) = (coherence(0.)?, coherence(20.)?);
    assert!(with < 0.95 * without, "{without} {with}");
    Ok(())
}

#[test]
fn an_error_target_is_met_with_fewer_atoms_after_training() -> Result<()> {
    let y = signals()?;
    let target = 0.2;
    let coder = SparseCoder { n_nonzero: P, error: Some(ErrorTarget::Absolute(target)), ..coder() };
    for rule in RULES {
        let config = DictionaryTrainConfig { coder: Some(coder.clone()), iterations: 60, ..config(rule) };
        let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, config, Philox::new(3, 0))?;
        let atoms = |trainer: &DictionaryTrainer| -> Result<u32> {
            trainer.codes().count.sum_all()?.to_scalar::<u32>()
        };
        let begin = atoms(&trainer)?;
        let mut trace = vec![trainer.last()];
        trace.extend(trainer.fit()?);
        let end = atoms(&trainer)?;
        assert!(f64::from(end) < 0.9 * f64::from(begin), "{rule:?}: {begin} to {end} atoms");
        let left = trainer.codes().residual(&y, trainer.current().atoms())?;
        let worst = left.sqr()?.sum(1)?.sqrt()?.max(0)?.to_scalar::<f64>()?;
        assert!(worst <= target * (1. + 1e-9), "{rule:?}: an error of {worst}");
        // The best is not the one of the lowest error, which says nothing here, but the one of the
        // fewest atoms.
        let fewest = trace.iter().map(|i| i.mean_count).fold(f64::INFINITY, f64::min);
        let lowest = trace.iter().min_by(|a, b| a.rmse.total_cmp(&b.rmse)).expect("iterations");
        assert!(lowest.mean_count > fewest, "{rule:?}: {lowest:?} has the fewest atoms too");
        assert_eq!(trainer.best_mean_count(), fewest);
        let codes = trainer.best().encode(&y)?;
        let count = f64::from(codes.count.sum_all()?.to_scalar::<u32>()?) / M as f64;
        assert!((count - fewest).abs() < 1e-12, "{rule:?}: {count} atoms a code, not {fewest}");
        assert_eq!(trainer.best().config().error, Some(CodeError::Absolute(target)));
    }
    Ok(())
}

#[test]
fn codes_that_must_not_be_negative_are_not() -> Result<()> {
    let y = signals()?.abs()?;
    let coder = SparseCoder { nonnegative: true, ..coder() };
    for rule in RULES {
        let config = DictionaryTrainConfig { coder: Some(coder.clone()), iterations: 15, ..config(rule) };
        let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, config, Philox::new(3, 0))?;
        let begin = trainer.last().rmse;
        trainer.fit()?;
        assert!(trainer.best_rmse() < 0.8 * begin, "{rule:?}: {begin} to {}", trainer.best_rmse());
        for codes in [trainer.codes(), &trainer.best().encode(&y)?] {
            assert!(codes.values.flatten_all()?.min(0)?.to_scalar::<f64>()? >= 0.);
        }
    }
    Ok(())
}
