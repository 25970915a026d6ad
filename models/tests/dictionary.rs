//! Training of dictionaries: every rule against plain loops, care of atoms, resuming, files, errors.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Module, Result, Tensor};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainer, Iteration, OnlineConfig, OnlineTrainer, PursuitMethod,
    Replace, SparseCoder, SparseCodes, Start, TrainConfig, UpdateRule, overcomplete_dct, start,
};
use chandlery_ops::{AtomUpdate, Philox, Pursuit, normal, omp_reference, update_atoms_reference};

const CPU: Device = Device::Cpu;
const RULES: [UpdateRule; 5] =
    [UpdateRule::Ksvd, UpdateRule::AkSvd, UpdateRule::Sgk, UpdateRule::Nsgk, UpdateRule::Mod];
/// Signals.
const M: usize = 400;
/// Atoms.
const N: usize = 12;
/// Features.
const P: usize = 9;
/// Atoms of a signal.
const S: usize = 3;

fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    rows.broadcast_div(&rows.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// Signals that are combinations of few atoms of a dictionary, with some noise. f64.
fn signals() -> Result<Tensor> {
    let truth = unit_rows(&normal((N, P), &CPU, Philox::new(1, 0))?)?;
    let x = normal((M, N), &CPU, Philox::new(1, 1))?;
    let kept: Vec<f32> = (0..M)
        .flat_map(|i| {
            let order = Philox::new(1, 10 + i as u64).permutation(N);
            (0..N as u32).map(move |j| if order[..S].contains(&j) { 1. } else { 0. })
        })
        .collect();
    let x = (x * Tensor::from_vec(kept, (M, N), &CPU)?)?;
    (x.matmul(&truth)? + (normal((M, P), &CPU, Philox::new(1, 2))? * 0.05)?)?.to_dtype(DType::F64)
}

fn dictionary(atoms: Tensor) -> Result<Dictionary> {
    let (n, p) = atoms.dims2()?;
    Dictionary::from_tensor(DictionaryConfig::new(n, p, S), atoms)
}

fn beginning(y: &Tensor) -> Result<Dictionary> {
    dictionary(start(&Start::RandomSignals, N, y, Philox::new(2, 0))?)
}

fn coder() -> SparseCoder {
    SparseCoder { method: PursuitMethod::Omp, n_nonzero: S, error: None, nonnegative: false }
}

fn config(rule: UpdateRule) -> TrainConfig {
    TrainConfig { rule, coder: coder(), ..TrainConfig::default() }
}

fn bits(t: &Tensor) -> Result<Vec<u64>> {
    Ok(t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
}

fn difference(got: &Tensor, want: &Tensor) -> Result<f64> {
    (got - want)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()
}

fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}

/// `X'` and `X`: atom `j` from the equation of NSGK, one after the other, by plain loops over dense matrices.
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
            let config = TrainConfig { group, replace: Replace::None, ..config(rule) };
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
            TrainConfig { iterations: 30, ..config(rule) },
            Philox::new(3, 0),
        )?;
        let begin = trainer.last();
        assert_eq!((begin.iteration, begin.replaced), (0, 0));
        let trace = trainer.train()?;
        assert_eq!(trace.iter().map(|i| i.iteration).collect::<Vec<_>>(), (1..=30).collect::<Vec<_>>());
        let best = trace.iter().map(|i| i.rmse).fold(begin.rmse, f64::min);
        // The noise alone is .05; random signals for atoms leave several times as much.
        assert!(begin.rmse > 0.15 && best < 0.5 * begin.rmse, "{rule:?}: {} to {best}", begin.rmse);
        assert_eq!(best, trainer.best_rmse());
        let left = trainer.best().encode(&y)?.residual(&y, trainer.best().atoms())?;
        let rmse = left.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
        assert!((rmse - best).abs() < 1e-12, "{rule:?}: the best gives {rmse}, not {best}");
        // Nothing is left to do.
        assert!(trainer.train()?.is_empty());
        assert!((trainer.last().coherence - trainer.current().mutual_coherence()?).abs() < 1e-12);
    }
    Ok(())
}

#[test]
fn a_penalty_makes_the_trained_dictionary_less_coherent() -> Result<()> {
    let y = signals()?;
    let coherence = |coherence_penalty| -> Result<f64> {
        let config = TrainConfig { iterations: 20, coherence_penalty, ..config(UpdateRule::AkSvd) };
        let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, config, Philox::new(3, 0))?;
        trainer.train()?;
        let d = trainer.current().atoms();
        d.matmul(&d.t()?)?.sqr()?.sum_all()?.to_scalar()
    };
    let (without, with) = (coherence(0.)?, coherence(20.)?);
    assert!(with < 0.95 * without, "{without} {with}");
    Ok(())
}

#[test]
fn idle_atoms_become_the_worst_represented_distinct_signals() -> Result<()> {
    // Two atoms cover most signals; three signals lie elsewhere, the worst twice (once with another sign), one a little shorter.
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
    let config = TrainConfig { coder, min_uses: 1, ..TrainConfig::default() };
    let run = |config: TrainConfig| -> Result<(Iteration, Vec<Vec<f32>>)> {
        let mut trainer = DictionaryTrainer::new(dictionary(atoms.clone())?, &y, config, Philox::new(4, 0))?;
        assert_eq!(trainer.last().used, 2);
        let iteration = trainer.step()?;
        Ok((iteration, trainer.current().atoms().to_vec2()?))
    };
    let (iteration, d) = run(config.clone())?;
    assert_eq!((iteration.replaced, iteration.used, iteration.rmse), (2, 4, 0.));
    assert_eq!(d[2], [0., 0., 0., -1.], "the worst first");
    assert_eq!(d[3], [0., 0., 1., 0.], "the second worst lies along the worst");

    let (iteration, d) = run(TrainConfig { replace: Replace::None, ..config.clone() })?;
    assert_eq!((iteration.replaced, iteration.used), (0, 2));
    assert_eq!((&d[2], &d[3]), (&vec![0.; 4], &vec![0.; 4]));

    let (iteration, d) = run(TrainConfig { replace: Replace::Random, ..config.clone() })?;
    assert_eq!(iteration.replaced, 2);
    for row in &d[2..] {
        let length: f32 = row.iter().map(|x| x * x).sum();
        assert!((length - 1.).abs() < 1e-6, "a random signal of length 1, not {row:?}");
    }

    // Fixed atoms stay, used or not.
    let (iteration, d) = run(TrainConfig { n_fixed: 3, ..config })?;
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
        let config = TrainConfig { max_coherence, n_fixed: 7, min_uses: 0, ..config(UpdateRule::Sgk) };
        let mut trainer = DictionaryTrainer::new(dictionary(atoms.clone())?, &y, config, Philox::new(5, 0))?;
        assert!((trainer.last().coherence - 1.).abs() < 1e-12);
        let iteration = trainer.step()?;
        let kept = difference(&trainer.current().atoms().narrow(0, 7, 1)?, &atoms.narrow(0, 7, 1)?)?;
        assert_eq!((iteration.replaced > 0, kept > 1e-9), (replaced, replaced));
        assert_eq!(
            bits(&trainer.current().atoms().narrow(0, 0, 7)?)?,
            bits(&unit_rows(&atoms.narrow(0, 0, 7)?)?)?
        );
    }
    Ok(())
}

#[test]
fn a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let y = signals()?.to_dtype(DType::F32)?;
    for rule in RULES {
        for replace in [Replace::Random, Replace::WorstRepresented] {
            // Many replacements, so that draws and memory matter.
            let config = || TrainConfig { replace, min_uses: 80, iterations: 9, ..config(rule) };
            let fresh = || DictionaryTrainer::new(beginning(&y)?, &y, config(), Philox::new(6, 0));
            let mut whole = fresh()?;
            let trace = whole.train()?;
            assert!(trace.iter().any(|i| i.replaced > 0));
            for stop in [0, 1, 4, 8] {
                let mut first = fresh()?;
                (0..stop).try_for_each(|_| first.step().map(|_| ()))?;
                first.save_checkpoint(&path)?;
                let mut second = DictionaryTrainer::load_checkpoint(&path, &y, config())?;
                assert_eq!((second.last(), second.best_rmse()), (first.last(), first.best_rmse()));
                assert_eq!(second.train()?, trace[stop..], "{rule:?} {replace:?} stopped at {stop}");
                assert!(bits(second.current().atoms())? == bits(whole.current().atoms())?);
                assert!(bits(second.best().atoms())? == bits(whole.best().atoms())?);
            }
        }
    }
    // Other signals are found out.
    let error = DictionaryTrainer::load_checkpoint(&path, &(&y * 2.)?, config(UpdateRule::Mod)).map(|_| ());
    let message = first_line(error.expect_err("loaded"));
    assert!(message.contains("not a checkpoint: these signals and this configuration"), "{message}");
    let error = OnlineTrainer::load_checkpoint(&path, OnlineConfig::default(), &CPU).map(|_| ());
    let message = first_line(error.expect_err("loaded"));
    assert!(message.contains("not a checkpoint: missing field `idle`"), "{message}");
    Ok(())
}

#[test]
fn a_resumed_online_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let y = signals()?.to_dtype(DType::F32)?;
    for replace in [Replace::Random, Replace::WorstRepresented] {
        let config = || OnlineConfig {
            coder: coder(),
            replace,
            max_idle: 20,
            max_coherence: Some(0.8),
            ..OnlineConfig::default()
        };
        let fresh = || OnlineTrainer::new(beginning(&y)?, config(), Philox::new(6, 0));
        let run = |trainer: &mut OnlineTrainer, batches: std::ops::Range<usize>| -> Result<Vec<Iteration>> {
            batches.map(|b| trainer.partial_fit(&y.narrow(0, b % 40 * 10, 10)?)).collect()
        };
        let mut whole = fresh()?;
        let trace = run(&mut whole, 0..80)?;
        assert!(trace.iter().any(|i| i.replaced > 0));
        for stop in [0, 1, 33] {
            let mut first = fresh()?;
            run(&mut first, 0..stop)?;
            first.save_checkpoint(&path)?;
            let mut second = OnlineTrainer::load_checkpoint(&path, config(), &CPU)?;
            assert_eq!(second.batches(), stop);
            assert_eq!(run(&mut second, stop..80)?, trace[stop..], "{replace:?} stopped at {stop}");
            assert!(bits(second.dictionary().atoms())? == bits(whole.dictionary().atoms())?);
        }
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_dictionary_and_another_does_not() -> Result<()> {
    let y = signals()?.to_dtype(DType::F32)?;
    let run = |seed| -> Result<Vec<u64>> {
        let atoms = start(&Start::RandomSignals, N, &y, Philox::new(seed, 0))?;
        let config = TrainConfig {
            iterations: 5,
            replace: Replace::Random,
            min_uses: 80,
            ..config(UpdateRule::AkSvd)
        };
        let mut trainer = DictionaryTrainer::new(dictionary(atoms)?, &y, config, Philox::new(seed, 1))?;
        trainer.train()?;
        bits(trainer.current().atoms())
    };
    assert!(run(3)? == run(3)?);
    assert!(run(3)? != run(4)?);
    Ok(())
}

#[test]
fn batches_teach_as_much_as_all_signals_at_once() -> Result<()> {
    let y = signals()?;
    let rmse = |d: &Dictionary| -> Result<f64> {
        d.encode(&y)?.residual(&y, d.atoms())?.sqr()?.mean_all()?.sqrt()?.to_scalar()
    };
    let begin = rmse(&beginning(&y)?)?;
    for method in [PursuitMethod::Omp, PursuitMethod::Ols] {
        let coder = SparseCoder { method, ..coder() };
        let config = OnlineConfig { coder, max_idle: 100, ..OnlineConfig::default() };
        let mut trainer = OnlineTrainer::new(beginning(&y)?, config, Philox::new(7, 0))?;
        for batch in 0..120 {
            // Batches of two sizes.
            let (at, len) =
                if batch % 2 == 0 { (batch / 2 % 4 * 100, 60) } else { (batch / 2 % 4 * 100 + 60, 40) };
            let iteration = trainer.partial_fit(&y.narrow(0, at, len)?)?;
            assert_eq!(iteration.iteration, batch + 1);
        }
        let end = rmse(trainer.dictionary())?;
        assert!(end < 0.5 * begin, "{method:?}: {begin} to {end}");
        let lengths = trainer.dictionary().atoms().sqr()?.sum(1)?;
        assert!(difference(&lengths, &Tensor::ones(N, DType::F64, &CPU)?)? < 1e-12);
    }
    Ok(())
}

#[test]
fn without_forgetting_the_statistics_are_those_of_all_batches() -> Result<()> {
    // With every atom fixed the codes of all batches are over one dictionary, and one free sweep follows from the sums.
    let y = signals()?;
    let config = |n_fixed| OnlineConfig {
        coder: coder(),
        forgetting: 0.,
        n_fixed,
        replace: Replace::None,
        ..OnlineConfig::default()
    };
    let mut parts = OnlineTrainer::new(beginning(&y)?, config(N), Philox::new(8, 0))?;
    for batch in 0..3 {
        parts.partial_fit(&y.narrow(0, batch * 100, 100)?)?;
    }
    assert_eq!(bits(parts.dictionary().atoms())?, bits(&unit_rows(beginning(&y)?.atoms())?)?);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    parts.save_checkpoint(&path)?;
    let mut parts = OnlineTrainer::load_checkpoint(&path, config(0), &CPU)?;
    parts.partial_fit(&y.narrow(0, 300, 100)?)?;
    let mut whole = OnlineTrainer::new(beginning(&y)?, config(0), Philox::new(8, 0))?;
    whole.partial_fit(&y)?;
    assert!(difference(parts.dictionary().atoms(), whole.dictionary().atoms())? < 1e-12);
    Ok(())
}

#[test]
fn a_start_of_random_signals_has_neither_zeros_nor_copies() -> Result<()> {
    // Ten directions, each many times over with either sign, and zeros.
    let directions = normal((10, 5), &CPU, Philox::new(9, 0))?.to_vec2::<f32>()?;
    let rows: Vec<Vec<f32>> =
        (0..300).map(|i| directions[i % 10].iter().map(|x| x * [0., 1., -2.][i % 3]).collect()).collect();
    let y = Tensor::new(rows, &CPU)?;
    let d = start(&Start::RandomSignals, 13, &y, Philox::new(10, 0))?;
    assert!(Dictionary::from_tensor(DictionaryConfig::new(13, 5, 1), d.clone())?.mutual_coherence()? < 0.999);
    let like =
        d.matmul(&unit_rows(&Tensor::new(directions, &CPU)?)?.t()?)?.abs()?.max(1)?.to_vec1::<f32>()?;
    assert_eq!(
        like.iter().filter(|&&like| like > 1. - 1e-5).count(),
        10,
        "all ten directions, then random ones"
    );
    let lengths = d.sqr()?.sum(1)?.to_vec1::<f32>()?;
    assert!(lengths.iter().all(|length| (length - 1.).abs() < 1e-6));
    Ok(())
}

#[test]
fn the_cosine_dictionary_has_unit_atoms_of_mean_zero_but_for_the_first() -> Result<()> {
    for (n, side) in [(64, 8), (256, 8), (1, 3), (10, 4), (200, 8)] {
        let d = overcomplete_dct(n, side)?;
        assert_eq!(d.dims(), [n, side * side]);
        let rows = d.to_vec2::<f64>()?;
        let flat = 1. / side as f64;
        assert!(rows[0].iter().all(|x| (x - flat).abs() < 1e-12), "the first is constant");
        for row in &rows[1..] {
            assert!(row.iter().sum::<f64>().abs() < 1e-12);
            assert!((row.iter().map(|x| x * x).sum::<f64>() - 1.).abs() < 1e-12);
        }
    }
    // By hand: K = 2, waves (1, 1)/√2 and (1, 0) − ½ = (½, −½), scaled to length 1.
    let d = overcomplete_dct(4, 2)?.to_vec2::<f64>()?;
    assert!(d[1].iter().zip([0.5, -0.5, 0.5, -0.5]).all(|(x, want)| (x - want).abs() < 1e-12), "{d:?}");
    assert!(d[3].iter().zip([0.5, -0.5, -0.5, 0.5]).all(|(x, want)| (x - want).abs() < 1e-12), "{d:?}");
    Ok(())
}

#[test]
fn a_saved_dictionary_comes_back_and_is_a_layer() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for dtype in [DType::F32, DType::F64] {
        let y = signals()?.to_dtype(dtype)?;
        let mut saved = beginning(&y)?;
        saved.save_pretrained(folder.path())?;
        let back = Dictionary::from_pretrained(&folder.path().display().to_string(), &CPU)?;
        assert_eq!(back.config(), saved.config());
        assert_eq!(back.atoms().dtype(), dtype);
        assert!(bits(back.atoms())? == bits(saved.atoms())?);
        // What another candle project finds in the file.
        let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["dictionary"]);
        assert_eq!(tensors["dictionary"].dims(), [N, P]);

        let (codes, dense) = (back.encode(&y)?, back.forward(&y)?);
        assert_eq!(dense.dims(), [M, N]);
        assert_eq!(bits(&codes.to_dense()?)?, bits(&dense)?);
        let off = (back.decode(&codes)? - dense.matmul(back.atoms())?)?.to_dtype(DType::F64)?;
        assert!(off.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()? < 1e-5);
        // The method is part of the configuration.
        let config = DictionaryConfig { method: PursuitMethod::Ols, ..saved.config().clone() };
        saved = Dictionary::from_tensor(config, saved.atoms().clone())?;
        saved.save_pretrained(folder.path())?;
        let text = std::fs::read_to_string(folder.path().join("config.json"))?;
        assert!(text.contains("\"method\": \"ols\""), "{text}");
    }
    Ok(())
}

#[test]
fn names_are_those_of_files() -> Result<()> {
    let json = |x: &dyn Fn() -> serde_json::Result<String>| x().map_err(candle::Error::wrap);
    for rule in UpdateRule::ALL {
        assert_eq!(json(&|| serde_json::to_string(&rule))?, format!("\"{}\"", rule.name()));
        assert_eq!(rule.name().parse(), Ok(rule));
    }
    for replace in Replace::ALL {
        assert_eq!(json(&|| serde_json::to_string(&replace))?, format!("\"{}\"", replace.name()));
        assert_eq!(replace.name().parse(), Ok(replace));
    }
    assert_eq!(
        "svd".parse::<UpdateRule>(),
        Err("the rule of update must be one of ksvd, ak-svd, sgk, nsgk, mod, got svd".to_owned())
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() -> Result<()> {
    let y = signals()?;
    let says = |got: Result<()>, want: &str| assert_eq!(first_line(got.expect_err("accepted")), want);
    let train = |config: TrainConfig, y: &Tensor| {
        DictionaryTrainer::new(beginning(&signals()?)?, y, config, Philox::new(0, 0)).map(|_| ())
    };
    let good = config(UpdateRule::AkSvd);
    says(train(TrainConfig { group: 0, ..good.clone() }, &y), "TrainConfig: group must be at least 1, got 0");
    says(
        train(TrainConfig { coder: SparseCoder { n_nonzero: 13, ..coder() }, ..good.clone() }, &y),
        "TrainConfig: n_nonzero must be in 1..=12, the number of atoms, got 13",
    );
    says(
        train(TrainConfig { max_coherence: Some(1.5), ..good.clone() }, &y),
        "TrainConfig: max_coherence must be in (0, 1], got 1.5",
    );
    says(
        train(TrainConfig { n_fixed: 13, ..good.clone() }, &y),
        "TrainConfig: n_fixed must be at most 12, the number of atoms, got 13",
    );
    says(
        train(TrainConfig { coherence_penalty: 1., ..config(UpdateRule::Mod) }, &y),
        "TrainConfig: coherence_penalty must be 0 with mod, which has none, got 1; take another rule",
    );
    says(
        train(good.clone(), &y.narrow(1, 0, 8)?),
        "DictionaryTrainer: signals must have shape [batch, 9], got [400, 8]",
    );
    says(
        train(good.clone(), &y.narrow(0, 0, 0)?),
        "DictionaryTrainer: signals must be at least one, got none",
    );
    let nan = (&y / 0.)?;
    assert!(train(good, &nan).is_err());

    let mut online = OnlineTrainer::new(
        beginning(&y)?,
        OnlineConfig { coder: coder(), ..OnlineConfig::default() },
        Philox::new(0, 0),
    )?;
    says(
        online.partial_fit(&y.narrow(1, 0, 8)?).map(|_| ()),
        "OnlineTrainer::partial_fit: batch must have shape [batch, 9], got [400, 8]",
    );
    says(
        online.partial_fit(&y.narrow(0, 0, 0)?).map(|_| ()),
        "OnlineTrainer::partial_fit: signals of a batch must be at least 1, got 0",
    );
    says(
        OnlineTrainer::new(
            beginning(&y)?,
            OnlineConfig { coder: coder(), sweeps: 0, ..OnlineConfig::default() },
            Philox::new(0, 0),
        )
        .map(|_| ()),
        "OnlineConfig: sweeps must be at least 1, got 0",
    );
    says(
        start(&Start::Dct, 16, &y.narrow(1, 0, 8)?, Philox::new(0, 0)).map(|_| ()),
        "start: n_features must be a square for a DCT of square patches, got 8; take another start",
    );
    says(
        start(&Start::Given(y.clone()), 16, &y, Philox::new(0, 0)).map(|_| ()),
        "start: given atoms must have shape [16, 9], got [400, 9]",
    );
    says(
        DictionaryConfig::new(4, 9, 5).validate(),
        "DictionaryConfig: n_nonzero must be in 1..=4, the number of atoms, got 5",
    );
    says(
        Dictionary::from_tensor(DictionaryConfig::new(4, 9, 2), y.clone()).map(|_| ()),
        "Dictionary: atoms must be f32 or f64 of shape [4, 9], got F64 of shape [400, 9]",
    );
    Ok(())
}
