//! Figure 3: Batch-OMP, p 64 and s 8, by signals at n 128 and by atoms at m 8192.
use super::{Times, seconds, some, words};
use crate::bench::dictionary::data;
use crate::bench::dictionary::pursuit::{Size, floor};
use crate::bench::floor::Gpu;
use crate::bench::paper::{Cell, Headline, Paper, Table, break_even};
use crate::bench::place::Place;
use anyhow::{Context, Result};
use chandlery::pictures::curves::Panel;
use chandlery_ops::codes::{Pursuit, bomp, bomp_cholesky};

/// A panel of the figure.
struct Sweep {
    title: &'static str,
    x_label: &'static str,
    sizes: Vec<Size>,
    x: fn(&Size) -> usize,
    /// "Up to so many times", on a GPU of 2014.
    paper: f64,
}

fn sweeps(quick: bool) -> [Sweep; 2] {
    [
        Sweep {
            title: "n 128, s 8",
            x_label: "signals m",
            sizes: some((1..=10).map(|k| Size { m: 1024 * k, n: 128, p: 64, s: 8 }).collect(), quick),
            x: |size| size.m,
            paper: 312.,
        },
        Sweep {
            title: "m 8192, s 8",
            x_label: "atoms n",
            sizes: some((1..=8).map(|k| Size { m: 8192, n: 64 * k, p: 64, s: 8 }).collect(), quick),
            x: |size| size.n,
            paper: 250.,
        },
    ]
}

pub fn make(paper: &mut Paper) -> Result<()> {
    let places = paper.places()?;
    let mut panels = Vec::new();
    for sweep in sweeps(paper.quick()) {
        let Timed { printed, ours } = timed(&sweep.sizes, &places, paper.repeats())?;
        let x: Vec<f64> = sweep.sizes.iter().map(|size| (sweep.x)(size) as f64).collect();
        let (single, last) = (ours.first().context("no place")?, ours.last().context("no place")?);
        let plain = printed.first().context("no place")?;
        let floors: Vec<f64> = sweep.sizes.iter().map(|&size| floor(size, &Gpu::H200)).collect();

        let mut heads = vec![sweep.x_label.to_owned()];
        heads.extend(printed.iter().chain(&ours).map(|times| times.name.clone()));
        heads
            .extend(["floor of an H200", "ours over one thread", "ours over algorithm 1"].map(str::to_owned));
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let mut table = Table::new(format!("Figure 3: Batch-OMP of 8×8 patches, {}", sweep.title), &heads);
        for (i, (x, floor)) in x.iter().zip(&floors).enumerate() {
            let mut row = vec![Cell::number(*x, 0)];
            row.extend(printed.iter().chain(&ours).map(|times| Cell::seconds(times.seconds[i])));
            row.push(Cell::seconds(*floor));
            row.push(Cell::factor(single.seconds[i] / last.seconds[i]));
            row.push(Cell::factor(plain.seconds[i] / last.seconds[i]));
            table.row(row);
        }
        let mut row = vec![Cell::text("the paper, up to")];
        row.resize(heads.len() - 1, Cell::none());
        row.push(Cell::factor(sweep.paper));
        table.row(row);
        table.note("the paper: one core of a CPU, in the same C as its GPU's kernels, over that GPU");
        table.note(format!("factors are those of {}", last.name));
        if let [_, cores, gpu] = &ours[..] {
            let from = break_even(&x, &cores.seconds, &gpu.seconds);
            table.note(from.map_or("the GPU is faster than all cores at no size".to_owned(), |from| {
                format!("the GPU is faster than all cores from {} {from:.0} on", sweep.x_label)
            }));
        }
        paper.table(table)?;
        paper.headline(Headline {
            claim: format!("Batch-OMP, {}: {} over one thread, up to", sweep.title, places_name(&places)),
            paper: words(sweep.paper),
            same: words(single.most_over(last)),
            best: words(plain.most_over(last)),
        });
        let mut curves: Vec<_> = printed.iter().chain(&ours).map(|times| times.curve(&x, 1e3)).collect();
        if !paper.device().is_cpu() {
            let floor = Times { name: "floor of an H200".to_owned(), seconds: floors };
            curves.push(floor.curve(&x, 1e3));
        }
        panels.push(Panel::new(format!("Batch-OMP, {}", sweep.title), sweep.x_label, "ms", curves).log());
    }
    let caption =
        "Figure 3: milliseconds of Batch-OMP by signals and by atoms, algorithm 1 as printed and ours";
    paper.figure("figure-3", caption, &panels)
}

/// The fastest place.
fn places_name(places: &[Place]) -> String {
    places.last().map_or_else(String::new, Place::name)
}

/// Algorithm 1 on the CPU, and our form in every place.
struct Timed {
    printed: Vec<Times>,
    ours: Vec<Times>,
}

fn timed(sizes: &[Size], places: &[Place], repeats: u32) -> Result<Timed> {
    let named = |form: &str, place: &Place| Times::new(format!("{form}, {}", place.name()));
    let on_cpu = || places.iter().filter(|place| place.device.is_cpu());
    let mut printed: Vec<Times> = on_cpu().map(|place| named("algorithm 1", place)).collect();
    let mut ours: Vec<Times> = places.iter().map(|place| named("ours", place)).collect();
    for &Size { m, n, p, s } in sizes {
        let side = p.isqrt();
        for (at, place) in places.iter().enumerate() {
            let (signals, atoms) =
                (data::patches(m, side, &place.device)?, data::atoms(n, side, &place.device)?);
            if let Some(times) = printed.get_mut(at).filter(|_| place.device.is_cpu()) {
                times.seconds.push(seconds(place, repeats, || {
                    bomp_cholesky(&signals, &atoms, s)?;
                    Ok(())
                })?);
            }
            ours[at].seconds.push(seconds(place, repeats, || {
                bomp(&signals, &atoms, &Pursuit::new(s))?;
                Ok(())
            })?);
        }
    }
    Ok(Timed { printed, ours })
}
