//! `ñ`: atoms that are updated at once, from 1 to all; the paper says "similar, if not better".
use super::{RULES, recovery};
use crate::bench::dictionary::data;
use crate::bench::dictionary::training::SIDE;
use crate::bench::paper::{Cell, Paper, Table};
use crate::bench::place::Place;
use anyhow::Result;
use candle::Device;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, UpdateRule,
};
use chandlery::evaluation::recovery::KnownDictionary;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::{FullBatchTrainer, Philox};
use std::time::Instant;

/// Signals, atoms, and atoms of a code: those of figure 5.
const M: usize = 12_288;
const N: usize = 256;
const S: usize = 10;

pub fn make(paper: &mut Paper) -> Result<()> {
    let patches = by_patches(paper)?;
    let found = by_recovery(paper)?;
    let [seconds, errors] = patches;
    let panel = |title: &str, y: &str, curves| Panel::new(title, "atoms updated at once", y, curves).log_x();
    let panels = [
        panel("an iteration, 256 atoms", "ms", seconds).log(),
        panel("error, 256 atoms", "RMSE, grey levels", errors),
        panel("50 known atoms, 20 dB", "% found", found),
    ];
    let caption = "Time and quality by the number of atoms that are updated at once, ñ";
    paper.figure("atoms-at-once", caption, &panels)
}

/// Milliseconds an iteration and RMSE on image patches, by rule.
fn by_patches(paper: &mut Paper) -> Result<[Vec<Curve>; 2]> {
    let place = Place::whole(paper.device());
    let (groups, iterations) =
        if paper.quick() { (vec![1, 16, N], 4) } else { ((0..=8).map(|k| 1 << k).collect(), 50) };
    let mut heads = vec!["ñ".to_owned()];
    heads.extend(
        RULES.iter().flat_map(|(name, _)| [format!("{name}, an iteration"), format!("{name}, RMSE")]),
    );
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let title = format!("ñ, atoms updated at once: {M} patches of 8×8, {N} atoms, {S} of a code");
    let mut table = Table::new(title, &heads);
    let (mut times, mut errors) = (RULES.map(|_| Vec::new()), RULES.map(|_| Vec::new()));
    for group in groups {
        let mut row = vec![Cell::number(group as f64, 0)];
        let x = group as f64;
        for (i, (_, rule)) in RULES.iter().enumerate() {
            let (seconds, rmse) = learned(&place.device, *rule, group, iterations)?;
            row.extend([Cell::seconds(seconds), Cell::number(rmse, 4)]);
            times[i].push((x, 1e3 * seconds));
            errors[i].push((x, rmse));
        }
        table.row(row);
    }
    table.note(format!(
        "on {}; the error, in grey levels, of the best dictionary of {iterations} iterations from one start",
        place.name()
    ));
    paper.table(table)?;
    let curves = |points: [Vec<(f64, f64)>; 3]| {
        RULES.iter().zip(points).map(|((name, _), points)| Curve::new(*name, points)).collect()
    };
    Ok([curves(times), curves(errors)])
}

/// Seconds of an iteration, and the error of the best dictionary.
fn learned(device: &Device, rule: UpdateRule, group: usize, iterations: usize) -> Result<(f64, f64)> {
    let (signals, atoms) = (data::patches(M, SIDE, device)?, data::atoms(N, SIDE, device)?);
    let config = DictionaryTrainConfig { rule, group, iterations, ..DictionaryTrainConfig::default() };
    let first = Dictionary::from_tensor(DictionaryConfig::new(N, SIDE * SIDE, S), atoms)?;
    let mut trainer = DictionaryTrainer::new(first, &signals, config, Philox::new(0, 0))?;
    // The first one loads what the device needs.
    trainer.step()?;
    device.synchronize()?;
    let began = Instant::now();
    trainer.fit()?;
    device.synchronize()?;
    Ok((began.elapsed().as_secs_f64() / (iterations - 1).max(1) as f64, trainer.best_rmse()))
}

/// Per cent of known atoms that are found, by rule.
fn by_recovery(paper: &mut Paper) -> Result<Vec<Curve>> {
    let n = KnownDictionary::default().n_atoms;
    let (groups, trials) = if paper.quick() { (vec![1, n], 2) } else { (vec![1, 2, 5, 10, 25, n], 20) };
    let heads: Vec<String> =
        std::iter::once("ñ".to_owned()).chain(RULES.map(|(name, _)| format!("{name}, %"))).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table =
        Table::new("ñ, atoms updated at once: atoms of a known dictionary found at 20 dB", &heads);
    let mut points = RULES.map(|_| Vec::new());
    for group in groups {
        let mut row = vec![Cell::number(group as f64, 0)];
        for ((_, rule), points) in RULES.iter().zip(&mut points) {
            let found = 100. * recovery::share(*rule, group, 20., trials)?;
            points.push((group as f64, found));
            row.push(Cell::number(found, 1));
        }
        table.row(row);
    }
    table.note(format!("the task of the section \"recovery\", mean of {trials} dictionaries"));
    paper.table(table)?;
    Ok(RULES.iter().zip(points).map(|((name, _), points)| Curve::new(*name, points)).collect())
}
