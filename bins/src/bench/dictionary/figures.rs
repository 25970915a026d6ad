//! Figures 3 and 5 of Irofti 2016: times of Batch-OMP and of 200 iterations, ours in parallel beside ours on one thread.
use super::pursuit::{self, Size};
use super::training::{self, Task};
use super::{DictionaryArgs, Place, Row, optional};
use crate::bench::floor::Gpu;
use crate::curves::{self, Curve, Panel};
use crate::pictures::write_png;
use crate::report::Report;
use anyhow::Result;
use candle::Device;
use chandlery::dictionary::UpdateRule;

/// The iterations of figure 5.
const ITERATIONS: f64 = 200.;
/// Iterations that one thread makes of them, at most: each takes as long as the one before.
const ALONE: usize = 5;

/// What the floor is called among the curves of a GPU.
const FLOOR: &str = "floor of an H200";

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
        report.line(&format!("{:<26} {:<22} {:>10} {:>9}", "on", "size", "median ms", "floor ms"))?;
        let (mut curves, mut floor) = (Vec::new(), Vec::new());
        for place in Place::ends(device, !args.no_single)? {
            let mut points = Vec::new();
            floor.clear();
            for size in &sizes {
                let row = pursuit::milliseconds(&place, *size, args.timing.repeats)?;
                report.line(&format!(
                    "{:<26} {:<22} {:>10.3} {:>9}",
                    row.device,
                    size.to_string(),
                    row.ms,
                    optional(row.floor_ms)
                ))?;
                points.push((x(size) as f64, row.ms));
                floor.extend(row.floor_ms.map(|ms| (x(size) as f64, ms)));
                rows.push(Row { task: "figure 3".to_owned(), ..row });
            }
            curves.push(Curve { name: place.name(), points });
        }
        if let [single, device] = curves.as_slice() {
            report.line(&format!("up to {:.0} times as fast", speed_up(single, device)))?;
        }
        if !device.is_cpu() {
            curves.push(Curve { name: FLOOR.to_owned(), points: floor });
        }
        panels.push(panel(&format!("Batch-OMP, {title}"), x_label, "ms", curves));
    }
    picture(args, report, "figure3.png", &panels)
}

/// 200 iterations of AK-SVD, SGK and NSGK: by atoms at m 12,288 and s 6, by signals at n 256 and s 10; all atoms at once on the
/// device (named P-), one by one on one thread.
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
        report.line(&format!(
            "{:<8} {:<26} {:>8} {:>6} {:>10} {:>9}",
            "", "on", "signals", "atoms", "s", "floor s"
        ))?;
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
                    let (seconds, floor) = (ITERATIONS * ms / 1e3, task.floor(&Gpu::H200));
                    report.line(&format!(
                        "{name:<8} {:<26} {:>8} {:>6} {seconds:>10.3} {:>9.4}",
                        place.name(),
                        task.m,
                        task.n,
                        ITERATIONS * floor
                    ))?;
                    points.push((x(&task), seconds));
                    rows.push(row(&place, &name, &task, ms, 1e3 * floor));
                }
                of_rule.push(Curve { name, points });
            }
            curves.push(of_rule);
        }
        for of_rule in &curves {
            if let [single, device] = of_rule.as_slice() {
                let factor = speed_up(single, device);
                report.line(&format!("{}: up to {factor:.1} times as fast", device.name))?;
            }
        }
        let curves = curves.concat();
        panels.push(panel(&format!("200 iterations, {title}"), x_label, "s", curves));
    }
    picture(args, report, "figure5.png", &panels)
}

fn row(place: &Place, name: &str, task: &Task, ms: f64, floor_ms: f64) -> Row {
    Row {
        model: "dictionary",
        task: format!("figure 5, {name}"),
        n_signals: task.m,
        n_atoms: task.n,
        n_features: 64,
        n_nonzero: task.s,
        device: place.name(),
        ms,
        ms_min: ms,
        ms_max: ms,
        error: None,
        error_ols: None,
        floor_ms: Some(floor_ms),
        peer_ms: None,
    }
}

/// The largest ratio of two curves over the same points.
fn speed_up(slow: &Curve, fast: &Curve) -> f64 {
    slow.points.iter().zip(&fast.points).map(|(slow, fast)| slow.1 / fast.1).fold(0., f64::max)
}

fn panel(title: &str, x_label: &str, y_label: &str, curves: Vec<Curve>) -> Panel {
    Panel {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        y_label: y_label.to_owned(),
        log_y: true,
        curves,
    }
}

fn picture(args: &DictionaryArgs, report: &Report, name: &str, panels: &[Panel]) -> Result<()> {
    std::fs::create_dir_all(&args.figures)?;
    let path = args.figures.join(name);
    write_png(&curves::draw_pixels(panels)?, &path)?;
    report.line(&path.display().to_string())
}
