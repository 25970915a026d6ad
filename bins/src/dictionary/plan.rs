//! From the settings to the trainer: the initial dictionary, and how it is trained.
use super::args::Settings;
use super::choices::{ReplaceArg, StartArg};
use super::signals::Signals;
use super::streams;
use crate::atoms::given::given_by;
use crate::choices::{Method, Rule, name_of};
use crate::restore::check_group;
use anyhow::{Context, Result, ensure};
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, Init, OnlineDictionaryTrainConfig, distinct_signals,
    init,
};
use chandlery_ops::codes::ErrorTarget;
use std::path::Path;

/// In a run folder, the dictionary that a run began with, where that was given.
pub const START: &str = "checkpoint/start";
/// The most rows that the first dictionary is drawn from.
const MOST_CANDIDATES: usize = 1 << 20;

/// How signals are coded.
pub fn coder(settings: &Settings, n_features: usize) -> SparseCoder {
    let root = (n_features as f64).sqrt();
    SparseCoder {
        method: settings.method().into(),
        n_nonzero: settings.nonzero,
        error: settings.error.map(|rms| ErrorTarget::Absolute(rms * root)),
        nonnegative: settings.is_nonnegative(),
        chunk: settings.chunk_rows,
    }
}

/// Refuses options that contradict each other or would be ignored.
pub fn check(settings: &Settings) -> Result<()> {
    let Settings { atoms, nonzero, replace, .. } = *settings;
    ensure!(nonzero <= atoms, "--nonzero: must be at most --atoms, {atoms}, got {nonzero}");
    check_group(settings.group, atoms, settings.rule())?;
    let flags = [
        ("--max-coherence", settings.max_coherence.is_some()),
        ("--min-uses", settings.min_uses.is_some()),
        ("--max-idle", settings.max_idle.is_some()),
    ];
    for (flag, given) in flags {
        ensure!(
            !given || replace != ReplaceArg::None,
            "{flag}: has no effect with --replace none, which keeps every atom; leave out one of them"
        );
    }
    ensure!(
        !settings.is_nonnegative() || matches!(settings.method(), Method::Omp | Method::Ols),
        "--nonnegative: --pursuit must be omp or ols with it, got {}",
        name_of(&settings.method())
    );
    ensure!(
        !settings.nonnegative_atoms || matches!(settings.rule(), Rule::Sgk | Rule::Nsgk),
        "--nonnegative-atoms: --rule must be sgk or nsgk with it, which keep atoms at least 0, got {}",
        name_of(&settings.rule())
    );
    Ok(())
}

/// Rows to draw the first dictionary from: enough that as many as there are atoms differ, or all.
fn candidates(settings: &Settings, signals: &Signals, device: &Device, philox: Philox) -> Result<Tensor> {
    let all = signals.rows.split.n_samples().min(MOST_CANDIDATES);
    // Many a row is flat, or like others.
    let mut n = 16 * settings.atoms + 1024;
    loop {
        let rows = signals.some(n.min(all), settings.seed, device)?;
        if n >= all || distinct_signals(&rows, settings.atoms, philox)?.dim(0)? == settings.atoms {
            return Ok(rows);
        }
        n = n.saturating_mul(8);
    }
}

/// The dictionary that training starts from. A given one is read from `folder`, once a run has kept
/// it there.
pub fn first_dictionary(
    settings: &Settings,
    signals: &Signals,
    device: &Device,
    folder: Option<&Path>,
) -> Result<Dictionary> {
    let n_features = signals.n_features()?;
    let config = DictionaryConfig {
        method: settings.method().into(),
        nonnegative_atoms: settings.nonnegative_atoms,
        image: signals.rows.split.image,
        preparation: signals.preparation.clone(),
        ..DictionaryConfig::new(settings.atoms, n_features, settings.nonzero)
    };
    let philox = Philox::new(settings.seed, streams::START);
    let none = Tensor::zeros((1, n_features), DType::F32, device)?;
    let (how, rows) = match (&settings.start_from, settings.start) {
        (Some(name), _) => {
            let name = folder.map_or(name.clone(), |folder| folder.join(START).display().to_string());
            let atoms = given_by("--start-from", &name, device)?.atoms().clone();
            let values = atoms.dim(1)?;
            ensure!(
                values == n_features,
                "--start-from {name}: its atoms must have the {n_features} values of a row, got {values}"
            );
            (Init::Given(atoms), none)
        }
        (None, StartArg::Dct) => (Init::Dct, none),
        (None, StartArg::Random) => (Init::RandomSignals, candidates(settings, signals, device, philox)?),
    };
    let mut atoms = init(&how, settings.atoms, &rows, philox).context("--start")?;
    if settings.fixed_dc {
        let constant = Tensor::full(1. / (n_features as f32).sqrt(), (1, n_features), device)?;
        atoms = Tensor::cat(&[constant, atoms.narrow(0, 1, settings.atoms - 1)?], 0)?;
    }
    Ok(Dictionary::from_tensor(config, atoms)?)
}

/// How a dictionary is learned from all signals.
pub fn train_config(settings: &Settings, signals: &Signals) -> Result<DictionaryTrainConfig> {
    let usual = DictionaryTrainConfig::default();
    Ok(DictionaryTrainConfig {
        rule: settings.rule().into(),
        group: settings.group(),
        iterations: settings.epochs,
        coder: Some(coder(settings, signals.n_features()?)),
        replace: settings.replace.into(),
        min_uses: settings.min_uses.unwrap_or(usual.min_uses),
        max_coherence: max_coherence(settings, usual.max_coherence),
        coherence_penalty: settings.coherence_penalty,
        n_fixed: usize::from(settings.fixed_dc),
    })
}

/// The limit on the cosine of two atoms; 1 is none, which a rounding must not pass.
fn max_coherence(settings: &Settings, usual: Option<f64>) -> Option<f64> {
    settings.max_coherence.or(usual).filter(|&limit| limit < 1.)
}

/// How a dictionary is learned from minibatches.
pub fn online_config(settings: &Settings, signals: &Signals) -> Result<OnlineDictionaryTrainConfig> {
    let usual = OnlineDictionaryTrainConfig::default();
    Ok(OnlineDictionaryTrainConfig {
        coder: Some(coder(settings, signals.n_features()?)),
        forgetting: settings.forgetting.unwrap_or(usual.forgetting),
        sweeps: settings.sweeps.unwrap_or(usual.sweeps),
        replace: settings.replace.into(),
        max_idle: settings.max_idle.unwrap_or(usual.max_idle),
        max_coherence: max_coherence(settings, usual.max_coherence),
        n_fixed: usize::from(settings.fixed_dc),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dictionary::args::Cli;
    use clap::Parser;

    #[test]
    fn no_first_atom_is_noise_where_enough_rows_differ() {
        // Patches of digits: four of ten are flat, and many strokes are alike.
        let flags = ["dictionary-learning", "--data", "mnist-sample", "--patch", "8", "--patches", "5000"];
        let args = Cli::try_parse_from(flags).unwrap().train;
        let signals = Signals::open(&args.input, &args.settings.prepare, 0).unwrap();
        let atoms = first_dictionary(&args.settings, &signals, &Device::Cpu, None).unwrap().atoms().clone();
        let rows = signals.all(&Device::Cpu).unwrap();
        let lengths = rows.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
        let cosines =
            rows.broadcast_div(&(lengths + 1e-9).unwrap()).unwrap().matmul(&atoms.t().unwrap()).unwrap();
        let like = cosines.max(0).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(like.len(), 256);
        assert!(like.iter().all(|&like| like > 0.9999), "atoms that are no rows: {like:?}");
    }
}
