//! An iteration of the update rules and a pass of the online method, on the same patches from the same start.
use super::{DictionaryArgs, Place, Row, data};
use crate::bench::timing::{Seconds, time};
use crate::report::Report;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainer, OnlineConfig, OnlineTrainer, PursuitMethod, SparseCoder,
    TrainConfig, UpdateRule,
};

/// The size that peers were measured at: signals, atoms, side of a patch, atoms of a code, passes, rows of a minibatch.
const M: usize = 12_288;
const N: usize = 256;
const SIDE: usize = 8;
const S: usize = 10;
const PASSES: usize = 10;
const BATCH: usize = 512;

/// Iterations of figure 5 that were timed: signals, atoms, atoms of a code, and how.
pub struct Task {
    pub m: usize,
    pub n: usize,
    pub s: usize,
    pub rule: UpdateRule,
    /// ñ.
    pub group: usize,
}

pub fn run(args: &DictionaryArgs, device: &Device, report: &Report, rows: &mut Vec<Row>) -> Result<()> {
    report.line(&format!(
        "training on {M} natural patches in grey levels, n {N}, s {S}; RMSE after {PASSES} passes with OMP and OLS codes"
    ))?;
    let (signals, atoms) = (data::patches(M, SIDE, &Device::Cpu)?, data::atoms(N, SIDE, &Device::Cpu)?);
    if let Some(folder) = &args.dump {
        data::dump(folder, &signals, &atoms)?;
        report.line(&format!("signals.npy and start.npy in {}", folder.display()))?;
    }
    let [omp, ols] = errors(&signals, &atoms)?;
    report.line(&format!("{:<34} {:<26} {:>10} {omp:>9.4} {ols:>9.4}", "first dictionary", "", "ms/pass"))?;
    for place in Place::both(device, !args.no_single)? {
        let (signals, atoms) = (signals.to_device(&place.device)?, atoms.to_device(&place.device)?);
        for (name, rule, method) in [
            ("ak-svd, omp", Some(UpdateRule::AkSvd), PursuitMethod::Omp),
            ("ak-svd, ols", Some(UpdateRule::AkSvd), PursuitMethod::Ols),
            ("k-svd, omp", Some(UpdateRule::Ksvd), PursuitMethod::Omp),
            ("online, omp, batches of 512", None, PursuitMethod::Omp),
            ("online, ols, batches of 512", None, PursuitMethod::Ols),
        ] {
            let coder = SparseCoder { method, n_nonzero: S, error: None, nonnegative: false };
            let (ms, learned) = place.run(|| match rule {
                Some(rule) => batch(&place, args.common.repeats, &signals, &atoms, rule, coder),
                None => online(&place, args.common.repeats, &signals, &atoms, coder),
            })?;
            let [omp, ols] = errors(&signals, &learned)?;
            report.line(&format!(
                "{name:<34} {:<26} {:>10.3} {omp:>9.4} {ols:>9.4}",
                place.name(),
                ms.median
            ))?;
            rows.push(Row {
                model: "dictionary",
                task: name.to_owned(),
                n_signals: M,
                n_atoms: N,
                n_features: SIDE * SIDE,
                n_nonzero: S,
                device: place.name(),
                ms: ms.median,
                ms_min: ms.min,
                ms_max: ms.max,
                error: Some(omp),
                floor_ms: None,
                peer_ms: None,
            });
        }
    }
    Ok(())
}

/// Milliseconds an iteration, and the atoms after all passes.
fn batch(
    place: &Place,
    repeats: u32,
    signals: &Tensor,
    atoms: &Tensor,
    rule: UpdateRule,
    coder: SparseCoder,
) -> Result<(Seconds, Tensor)> {
    let config = TrainConfig { rule, coder, ..TrainConfig::default() };
    let mut learned = atoms.clone();
    let ms = time(&place.device, repeats, || {
        let mut trainer =
            DictionaryTrainer::new(dictionary(atoms)?, signals, config.clone(), Philox::new(0, 0))?;
        for _ in 0..PASSES {
            trainer.step()?;
        }
        learned = trainer.best().atoms().clone();
        Ok(())
    })?;
    // The trainer codes once more than it iterates.
    Ok((ms.times(1e3 / PASSES as f64), learned))
}

/// Milliseconds a pass, and the atoms after all passes.
fn online(
    place: &Place,
    repeats: u32,
    signals: &Tensor,
    atoms: &Tensor,
    coder: SparseCoder,
) -> Result<(Seconds, Tensor)> {
    let config = OnlineConfig { coder, ..OnlineConfig::default() };
    let mut learned = atoms.clone();
    let ms = time(&place.device, repeats, || {
        let mut trainer = OnlineTrainer::new(dictionary(atoms)?, config.clone(), Philox::new(0, 0))?;
        for pass in 0..PASSES {
            // Each pass in an order of its own, as a feed has it.
            let order = Philox::new(1, pass as u64).permutation(M);
            for batch in order.chunks_exact(BATCH) {
                let batch = signals.index_select(&Tensor::new(batch, &place.device)?, 0)?;
                trainer.partial_fit(&batch)?;
            }
        }
        learned = trainer.dictionary().atoms().clone();
        Ok(())
    })?;
    Ok((ms.times(1e3 / PASSES as f64), learned))
}

/// Times iterations of a rule for figure 5, and gives ms an iteration.
pub fn milliseconds(place: &Place, task: &Task, iterations: u32) -> Result<f64> {
    let signals = data::patches(task.m, SIDE, &place.device)?;
    let atoms = data::atoms(task.n, SIDE, &place.device)?;
    let config = TrainConfig {
        rule: task.rule,
        group: task.group,
        coder: SparseCoder { method: PursuitMethod::Omp, n_nonzero: task.s, error: None, nonnegative: false },
        ..TrainConfig::default()
    };
    let ms = place.run(|| {
        let mut trainer = DictionaryTrainer::new(dictionary(&atoms)?, &signals, config, Philox::new(0, 0))?;
        time(&place.device, 1, || {
            for _ in 0..iterations {
                trainer.step()?;
            }
            Ok(())
        })
    })?;
    Ok(1e3 * ms.median / f64::from(iterations))
}

fn dictionary(atoms: &Tensor) -> candle::Result<Dictionary> {
    let (n, p) = atoms.dims2()?;
    Dictionary::from_tensor(DictionaryConfig::new(n, p, S), atoms.clone())
}

/// Root mean square errors with OMP and with OLS codes.
fn errors(signals: &Tensor, atoms: &Tensor) -> Result<[f64; 2]> {
    let error = |method| -> Result<f64> {
        let coder = SparseCoder { method, n_nonzero: S, error: None, nonnegative: false };
        let atoms = atoms.to_device(signals.device())?;
        let residual = coder.encode(signals, &atoms)?.residual(signals, &atoms)?.to_dtype(DType::F64)?;
        Ok(residual.sqr()?.mean_all()?.to_scalar::<f64>()?.sqrt())
    };
    Ok([error(PursuitMethod::Omp)?, error(PursuitMethod::Ols)?])
}
