//! Figure 5: 200 iterations of AK-SVD, SGK and NSGK; by atoms at m 12,288 and s 6, by signals at n
//! 256 and s 10.
use super::printed::Printed;
use super::{RULES, Times, words};
use crate::bench::dictionary::data;
use crate::bench::dictionary::training::{SIDE, Task};
use crate::bench::floor::Gpu;
use crate::bench::paper::{Cell, Headline, Paper, Table};
use crate::bench::place::Place;
use anyhow::{Context, Result};
use chandlery::dictionary::{Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer};
use chandlery::pictures::curves::Panel;
use chandlery::{FullBatchTrainer, Philox};
use std::time::Instant;

/// Of the paper: so many iterations, and how many times as fast each rule became.
const ITERATIONS: usize = 200;
const PAPER: [f64; 3] = [12., 10.8, 10.6];
/// Iterations before those that are timed.
const WARM: usize = 5;

/// A panel of the figure.
struct Sweep {
    title: &'static str,
    x_label: &'static str,
    /// Signals, atoms, and atoms of a code.
    sizes: Vec<[usize; 3]>,
    x: fn(&[usize; 3]) -> f64,
}

fn sweeps(quick: bool) -> [Sweep; 2] {
    let atoms: Vec<_> = if quick { vec![64, 256] } else { (1..=8).map(|k| 64 * k).collect() };
    let signals = if quick { vec![4, 8] } else { vec![4, 8, 12, 16, 20] };
    [
        Sweep {
            title: "m 12,288, s 6",
            x_label: "atoms n",
            sizes: atoms.into_iter().map(|n| [12_288, n, 6]).collect(),
            x: |size| size[1] as f64,
        },
        Sweep {
            title: "n 256, s 10",
            x_label: "thousands of signals",
            sizes: signals.into_iter().map(|k| [1024 * k, 256, 10]).collect(),
            x: |size| size[0] as f64 / 1024.,
        },
    ]
}

/// Iterations that are run of the 200, for whom and where.
#[derive(Clone, Copy)]
struct Run {
    /// The printed form, whose iterations only show how long one takes.
    printed: usize,
    /// Ours on one thread, and elsewhere.
    single: usize,
    whole: usize,
}

impl Run {
    /// At the last size of a sweep, where the paper's factors are largest, one thread makes all.
    fn at(last: bool, quick: bool) -> Self {
        match (quick, last) {
            (true, _) => Self { printed: 1, single: 2, whole: 5 },
            (false, false) => Self { printed: 2, single: 10, whole: ITERATIONS },
            (false, true) => Self { printed: 5, single: ITERATIONS, whole: ITERATIONS },
        }
    }
}

pub fn make(paper: &mut Paper) -> Result<()> {
    let (places, quick) = (paper.places()?, paper.quick());
    let last_place = places.last().context("no place")?.name();
    let mut panels = Vec::new();
    let mut most = [[f64::NAN; 2]; RULES.len()];
    for sweep in sweeps(quick) {
        let mut heads = vec!["rule".to_owned(), sweep.x_label.to_owned()];
        heads.push("as printed, one by one, 1 thread".to_owned());
        heads.extend(places.iter().map(|place| {
            let how = if place.pool.is_some() { "one by one" } else { "P, all at once" };
            format!("ours, {how}, {}", place.name())
        }));
        heads.extend(
            [
                "floor of an H200",
                "iterations on 1 thread",
                "ours over one thread",
                "ours over printed",
                "the paper, up to",
            ]
            .map(str::to_owned),
        );
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let title = format!("Figure 5: {ITERATIONS} iterations on 8×8 patches, {}", sweep.title);
        let mut table = Table::new(title, &heads);
        let x: Vec<f64> = sweep.sizes.iter().map(sweep.x).collect();
        let mut curves = Vec::new();
        for ((&(name, rule), most), factor) in RULES.iter().zip(&mut most).zip(PAPER) {
            let mut printed = Times::new(format!("{name} as printed"));
            let mut ours: Vec<Times> =
                places.iter().map(|place| Times::new(curve_name(name, place))).collect();
            for (i, &[m, n, s]) in sweep.sizes.iter().enumerate() {
                let run = Run::at(i + 1 == sweep.sizes.len(), quick);
                let task = |group| Task { m, n, s, rule, group };
                printed.seconds.push(of_printed(places.first().context("no place")?, task(1), run.printed)?);
                let mut row =
                    vec![Cell::text(name), Cell::number(x[i], 0), Cell::seconds(printed.seconds[i])];
                for (times, place) in ours.iter_mut().zip(&places) {
                    let (group, iterations) =
                        if place.pool.is_some() { (1, run.single) } else { (n, run.whole) };
                    times.seconds.push(of_ours(place, &task(group), iterations)?);
                    row.push(Cell::seconds(times.seconds[i]));
                }
                let (single, whole) = (ours[0].seconds[i], ours[ours.len() - 1].seconds[i]);
                row.push(Cell::seconds(ITERATIONS as f64 * task(n).floor(&Gpu::H200)));
                row.push(Cell::number(run.single as f64, 0));
                row.push(Cell::factor(single / whole));
                row.push(Cell::factor(printed.seconds[i] / whole));
                row.push(Cell::factor(factor));
                table.row(row);
            }
            let last = &ours[ours.len() - 1];
            most[0] = most[0].max(ours[0].most_over(last));
            most[1] = most[1].max(printed.most_over(last));
            curves.extend(
                ours.iter()
                    .filter(|times| times.name == ours[0].name || times.name == last.name)
                    .map(|times| times.curve(&x, 1.)),
            );
        }
        table.note("the paper: its own sequential code on a CPU over its GPU with all atoms at once; at most, over both panels");
        table.note(format!(
            "where fewer than {ITERATIONS} iterations ran, their time is scaled: each takes as long as the one before; the printed form ran {}",
            if quick { "1" } else { "2 to 5" }
        ));
        table.note("ours also measures each iteration's error, replaces bad atoms and looks for atoms that are alike; the printed form does not");
        table.note(format!("factors are those of {last_place}"));
        paper.table(table)?;
        let title = format!("{ITERATIONS} iterations, {}", sweep.title);
        panels.push(Panel::new(title, sweep.x_label, "s", curves).log());
    }
    for ((&(name, _), [same, best]), factor) in RULES.iter().zip(most).zip(PAPER) {
        paper.headline(Headline {
            claim: format!(
                "{ITERATIONS} iterations of {name}: P-{name} on {last_place} over one thread, up to"
            ),
            paper: words(factor),
            same: words(same),
            best: words(best),
        });
    }
    let caption = "Figure 5: seconds of 200 iterations by atoms and by signals, one by one on one thread and all at once (P-)";
    paper.figure("figure-5", caption, &panels)
}

/// The paper's names: P- for all atoms at once.
fn curve_name(rule: &str, place: &Place) -> String {
    if place.pool.is_some() { rule.to_owned() } else { format!("P-{rule}, {}", place.name()) }
}

/// Seconds for all iterations as printed, from so many.
fn of_printed(place: &Place, task: Task, iterations: usize) -> Result<f64> {
    let (signals, atoms) =
        (data::patches(task.m, SIDE, &place.device)?, data::atoms(task.n, SIDE, &place.device)?);
    place.run(|| {
        let mut printed = Printed::new(&signals, &atoms, task);
        // The first update of NSGK is one of SGK.
        printed.step()?;
        let began = Instant::now();
        (0..iterations).try_for_each(|_| printed.step())?;
        Ok(scaled(began, iterations))
    })
}

/// Seconds for all iterations of the trainer, from so many.
fn of_ours(place: &Place, task: &Task, iterations: usize) -> Result<f64> {
    let (signals, atoms) =
        (data::patches(task.m, SIDE, &place.device)?, data::atoms(task.n, SIDE, &place.device)?);
    let config = DictionaryTrainConfig {
        rule: task.rule,
        group: task.group,
        iterations: WARM + iterations,
        ..DictionaryTrainConfig::default()
    };
    place.run(|| {
        let first = Dictionary::from_tensor(DictionaryConfig::new(task.n, SIDE * SIDE, task.s), atoms)?;
        let mut trainer = DictionaryTrainer::new(first, &signals, config, Philox::new(0, 0))?;
        let mut steps = |n: usize| -> Result<()> {
            (0..n).try_for_each(|_| trainer.step().map(drop))?;
            Ok(place.device.synchronize()?)
        };
        steps(iterations.min(WARM))?;
        let began = Instant::now();
        steps(iterations)?;
        Ok(scaled(began, iterations))
    })
}

/// Seconds since `began` for so many iterations, as seconds for all.
fn scaled(began: Instant, iterations: usize) -> f64 {
    began.elapsed().as_secs_f64() * ITERATIONS as f64 / iterations.max(1) as f64
}
