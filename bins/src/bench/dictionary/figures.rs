//! Figures 3 and 5 of Irofti 2016: times of Batch-OMP and of 200 iterations, ours in parallel
//! beside ours on one thread.
use super::pursuit::{self, Size};
use super::training::{self, Task};
use super::{DictionaryArgs, Row};
use crate::bench::floor::Gpu;
use crate::bench::place::Place;
use crate::bench::table::{Column, Table, or_dash};
use crate::bench::timing::Seconds;
use crate::report::Report;
use anyhow::Result;
use candle::Device;
use chandlery::dictionary::UpdateRule;
use chandlery::pictures::curves::{self, Curve, Panel};
use chandlery::pictures::write_png;

/// The iterations of figure 5.
const ITERATIONS: f64 = 200.;
/// Iterations that one thread makes of them, at most: each takes as long as the one before.
const ALONE: usize = 5;

/// What the floor is called among the curves of a GPU.
const FLOOR: &str = "floor of an H200";

/// Columns of figure 3.
const FIGURE3: [Column<Row>; 4] = [
    Column("on", -26, |row| row.device.clone()),
    Column("size", -22, |row| row.size().to_string()),
    Column("median ms", 10, |row| format!("{:.3}", row.ms)),
    Column("floor ms", 9, |row| or_dash(row.floor_ms, 4)),
];

/// Columns of figure 5.
const FIGURE5: [Column<Row>; 6] = [
    Column("", -8, |row| row.task.trim_start_matches(OF_FIGURE5).to_owned()),
    Column("on", -26, |row| row.device.clone()),
    Column("signals", 8, |row| row.n_signals.to_string()),
    Column("atoms", 6, |row| row.n_atoms.to_string()),
    Column("s", 10, |row| format!("{:.3}", ITERATIONS * row.ms / 1e3)),
    Column("floor s", 9, |row| or_dash(row.floor_ms.map(|ms| ITERATIONS * ms / 1e3), 4)),
];

/// What tasks of figure 5 begin with.
const OF_FIGURE5: &str = "figure 5, ";

/// Batch-OMP, p 64 and s 8: by signals at n 128, by atoms at m 8192.
pub fn figure3(args: &DictionaryArgs, device: &Device, report: &Report, rows: &mut Vec<Row>) -> Result<()> {
    let signals: Vec<Size> = (1..=10).map(|k| Size { m: 1024 * k, n: 128, p: 64, s: 8 }).collect();
    let atoms: Vec<Size> = (1..=8).map(|k| Size { m: 8192, n: 64 * k, p: 64, s: 8 }).collect();
    let mut panels = Vec::new();
    for (title, x_label, sizes, x) in [
        ("n 128, s 8", "signals m", signals, (|size: &Size| size.m) as fn(&Size) -> usize),
        ("m 8192, s 8", "atoms n", atoms, |size| size.n),
    ] {
        report.line(&format!("figure 3, Batch-OMP, {title}, p 64; floor: of an H200"))?;
        let mut table = Table::new(report, &FIGURE3)?;
        let (mut curves, mut floor) = (Vec::new(), Vec::new());
        for place in Place::ends(device, !args.no_single)? {
            let mut points = Vec::new();
            floor.clear();
            for size in &sizes {
                let row = pursuit::milliseconds(&place, *size, args.timing.repeats)?;
                points.push((x(size) as f64, row.ms));
                floor.extend(row.floor_ms.map(|ms| (x(size) as f64, ms)));
                table.add(Row { task: "figure 3".to_owned(), ..row })?;
            }
            curves.push(Curve::new(place.name(), points));
        }
        rows.extend(table.into_rows());
        if let [single, device] = curves.as_slice() {
            report.line(&format!("up to {:.0} times as fast", speed_up(single, device)))?;
        }
        if !device.is_cpu() {
            curves.push(Curve::new(FLOOR, floor));
        }
        panels.push(Panel::new(format!("Batch-OMP, {title}"), x_label, "ms", curves).log());
    }
    picture(args, report, "figure3.png", &panels)
}

/// 200 iterations of AK-SVD, SGK and NSGK: by atoms at m 12,288 and s 6, by signals at n 256 and s
/// 10; all atoms at once on the device (named P-), one by one on one thread.
pub fn figure5(args: &DictionaryArgs, device: &Device, report: &Report, rows: &mut Vec<Row>) -> Result<()> {
    let task = |m, n, s| Task { m, n, s, rule: UpdateRule::AkSvd, group: 1 };
    let atoms: Vec<Task> = [64, 128, 192, 256, 320, 384, 448, 512].map(|n| task(12_288, n, 6)).into();
    let signals: Vec<Task> = [4, 8, 12, 16, 20].map(|k| task(1024 * k, 256, 10)).into();
    let rules = [("AK-SVD", UpdateRule::AkSvd), ("SGK", UpdateRule::Sgk), ("NSGK", UpdateRule::Nsgk)];
    let mut panels = Vec::new();
    for (title, x_label, tasks, x) in [
        ("m 12288, s 6", "atoms n", atoms, (|task: &Task| task.n as f64) as fn(&Task) -> f64),
        ("n 256, s 10", "thousands of signals", signals, |task| task.m as f64 / 1024.),
    ] {
        report.line(&format!(
            "figure 5, {title}, p 64; seconds for {ITERATIONS} iterations; one thread runs {ALONE} of them, scaled up; floor: of an H200"
        ))?;
        let mut table = Table::new(report, &FIGURE5)?;
        let mut curves = Vec::new();
        for (name, rule) in rules {
            let mut of_rule = Vec::new();
            for place in Place::ends(device, !args.no_single)? {
                let alone = place.pool.is_some();
                let name = if alone { name.to_owned() } else { format!("P-{name}") };
                let mut points = Vec::new();
                for task in &tasks {
                    let task = Task { rule, group: if alone { 1 } else { task.n }, ..*task };
                    let iterations = if alone { args.epochs.min(ALONE) } else { args.epochs };
                    let ms = training::milliseconds(&place, &task, iterations)?;
                    points.push((x(&task), ITERATIONS * ms / 1e3));
                    let size = Size { m: task.m, n: task.n, p: 64, s: task.s };
                    let ms = Seconds { median: ms, min: ms, max: ms };
                    table.add(Row {
                        floor_ms: Some(1e3 * task.floor(&Gpu::H200)),
                        ..Row::new(&place, format!("{OF_FIGURE5}{name}"), size, ms)
                    })?;
                }
                of_rule.push(Curve::new(name, points));
            }
            curves.push(of_rule);
        }
        rows.extend(table.into_rows());
        for of_rule in &curves {
            if let [single, device] = of_rule.as_slice() {
                let factor = speed_up(single, device);
                report.line(&format!("{}: up to {factor:.1} times as fast", device.name))?;
            }
        }
        let curves = curves.concat();
        panels.push(Panel::new(format!("200 iterations, {title}"), x_label, "s", curves).log());
    }
    picture(args, report, "figure5.png", &panels)
}

/// The largest ratio of two curves over the same points.
fn speed_up(slow: &Curve, fast: &Curve) -> f64 {
    slow.points.iter().zip(&fast.points).map(|(slow, fast)| slow.1 / fast.1).fold(0., f64::max)
}

fn picture(args: &DictionaryArgs, report: &Report, name: &str, panels: &[Panel]) -> Result<()> {
    std::fs::create_dir_all(&args.figures)?;
    let path = args.figures.join(name);
    write_png(&curves::draw_pixels(panels)?, &path)?;
    report.line(&path.display().to_string())
}
