//! `m̃`: signals that are coded at a time.
use super::seconds;
use crate::bench::dictionary::data;
use crate::bench::dictionary::pursuit::Size;
use crate::bench::paper::{Cell, Paper, Table};
use anyhow::Result;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery_ops::codes::{Pursuit, bomp};

/// The largest of the paper, and one of today: `m̃` from the paper's 1024 to all, and below.
const SIZES: [Size; 2] = [Size { m: 8192, n: 512, p: 64, s: 8 }, Size { m: 262_144, n: 512, p: 64, s: 8 }];

pub fn make(paper: &mut Paper) -> Result<()> {
    let places = paper.places()?;
    let mut panels = Vec::new();
    for &size in if paper.quick() { &SIZES[..1] } else { &SIZES[..] } {
        let Size { m, n, p, s } = size;
        // One thread would take minutes for the larger ones.
        let places: Vec<_> = places.iter().filter(|place| m < 100_000 || place.pool.is_none()).collect();
        let mut heads = vec!["m̃".to_owned()];
        heads.extend(places.iter().map(|place| place.name()));
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let mut table = Table::new(format!("m̃, signals coded at a time: Batch-OMP, {size}"), &heads);
        let chunks: Vec<usize> = match paper.quick() {
            true => vec![64, 1024, m],
            false => std::iter::successors(Some(32), |k| Some(k * 2)).take_while(|&k| k <= m).collect(),
        };
        let mut points = vec![Vec::new(); places.len()];
        for chunk in chunks {
            let mut row = vec![Cell::number(chunk as f64, 0)];
            for (place, points) in places.iter().zip(&mut points) {
                // Some 10,000 launches show what a launch costs.
                if m / chunk > 10_000 {
                    row.push(Cell::none());
                    continue;
                }
                let (signals, atoms) =
                    (data::patches(m, p.isqrt(), &place.device)?, data::atoms(n, p.isqrt(), &place.device)?);
                let pursuit = Pursuit { chunk: Some(chunk), ..Pursuit::new(s) };
                let took = seconds(place, paper.repeats(), || {
                    bomp(&signals, &atoms, &pursuit)?;
                    Ok(())
                })?;
                points.push((chunk as f64, 1e3 * took));
                row.push(Cell::seconds(took));
            }
            table.row(row);
        }
        table.note("the paper: no significant difference from 1024 to m; it took m̃ = m");
        table.note("`--chunk-rows` of dictionary-learning, `Pursuit::chunk` of the library; DᵀD is computed once for all chunks");
        paper.table(table)?;
        let curves = places.iter().zip(points).map(|(place, points)| Curve::new(place.name(), points));
        panels.push(
            Panel::new(format!("Batch-OMP, {size}"), "signals coded at once", "ms", curves.collect())
                .log_x()
                .log(),
        );
    }
    paper.figure(
        "signals-at-once",
        "Milliseconds of Batch-OMP by the signals that are coded at a time",
        &panels,
    )
}
