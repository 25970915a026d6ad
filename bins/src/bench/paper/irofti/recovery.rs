//! A known dictionary found again, by rule, one atom at a time and all at once.
use super::RULES;
use crate::bench::paper::{Cell, Paper, Table};
use anyhow::Result;
use candle::Result as CandleResult;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Init, UpdateRule, init,
};
use chandlery::evaluation::recovery::{KnownDictionary, found};
use chandlery::{FullBatchTrainer, Philox};
use rayon::prelude::*;

/// Iterations of the protocol.
const ITERATIONS: usize = 80;
/// Signal to noise, in dB.
const NOISE: [f64; 4] = [10., 20., 30., f64::INFINITY];

pub fn make(paper: &mut Paper) -> Result<()> {
    let (trials, noise) = if paper.quick() { (2, &NOISE[1..2]) } else { (20, &NOISE[..]) };
    let mut heads = vec!["rule".to_owned(), "ñ".to_owned()];
    heads.extend(noise.iter().map(|&db| match db.is_finite() {
        true => format!("{db} dB, %"),
        false => "no noise, %".to_owned(),
    }));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new("Atoms of a known dictionary that are found again", &heads);
    let n = KnownDictionary::default().n_atoms;
    for group in [1, n] {
        for (name, rule) in RULES {
            let name = if group == 1 { name.to_owned() } else { format!("P-{name}") };
            let mut row = vec![Cell::text(name), Cell::number(group as f64, 0)];
            for &db in noise {
                row.push(Cell::number(100. * share(rule, group, db, trials)?, 1));
            }
            table.row(row);
        }
    }
    table.note(format!(
        "50 atoms of 20 values, 1,500 signals of 3 atoms, {ITERATIONS} iterations, mean of {trials} dictionaries; an atom is found when 1 − |d·d̂| < .01 (Aharon, Elad and Bruckstein 2006)"
    ));
    table.note("the paper gives no figures: it cites one that all atoms at once are \"similar, if not better\"; about 1 point is chance where 20 dictionaries are averaged, 5 where 2 are");
    table.note("computed on the CPU");
    paper.table(table)
}

/// The mean share of atoms that are found, over so many dictionaries.
pub fn share(rule: UpdateRule, group: usize, snr_db: f64, trials: u64) -> Result<f64> {
    // The runs are small: one after the other would not fill all cores.
    let shares: Vec<f64> = (0..trials)
        .into_par_iter()
        .map(|seed| of_one(rule, group, snr_db, seed))
        .collect::<CandleResult<_>>()?;
    Ok(shares.iter().sum::<f64>() / shares.len().max(1) as f64)
}

fn of_one(rule: UpdateRule, group: usize, snr_db: f64, seed: u64) -> CandleResult<f64> {
    let task = KnownDictionary { snr_db, ..KnownDictionary::default() };
    let (truth, signals) = task.draw(seed)?;
    let atoms = init(&Init::RandomSignals, task.n_atoms, &signals, Philox::new(seed, 3))?;
    let config = DictionaryConfig::new(task.n_atoms, task.n_features, task.n_nonzero);
    let training =
        DictionaryTrainConfig { rule, group, iterations: ITERATIONS, ..DictionaryTrainConfig::default() };
    let first = Dictionary::from_tensor(config, atoms)?;
    let mut trainer = DictionaryTrainer::new(first, &signals, training, Philox::new(seed, 4))?;
    trainer.fit()?;
    found(&truth, trainer.current().atoms())
}
