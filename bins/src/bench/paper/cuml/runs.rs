//! Whole runs, from rows in host memory to a layout in host memory: tables 1 to 3, the time by
//! rows, and the help of PCA.
use super::data::clusters;
use super::{KNOWN, Known, SEED, best, faithful, table};
use crate::bench::paper::{Cell, Headline, Paper, break_even};
use crate::bench::place::Place;
use crate::bench::timing::time;
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::evaluation::layout::{SAMPLE, TRUST_NEIGHBOURS};
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::tsne::measure::{self, TrueDistances};
use chandlery::tsne::{Method, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_datasets::Preparation;
use std::time::Instant;

/// What a thread does in a second, about, to tell before a run whether it would end in time: FLOP
/// of the search, and points that are moved by Barnes-Hut and by FFT.
const FLOPS: f64 = 4e10;
const MOVES: [f64; 2] = [2e5, 1e6];
/// Rows whose trustworthiness is told without a GPU.
const MOST_MEASURED: usize = 5000;

/// The seconds of a run, and how good its layout is.
struct Ran {
    seconds: f64,
    trustworthiness: Option<f64>,
}

/// Lays rows of the host out; a GPU is warmed up, and the median of several runs counts.
fn lay_out(device: &Device, rows: &Tensor, config: &TsneConfig, repeats: u32) -> Result<Ran> {
    let philox = Philox::new(SEED, 9);
    let mut layout = None;
    let mut run = || -> Result<()> {
        let mut run = TsneTrainer::new(config.clone(), philox, &rows.to_device(device)?)?;
        run.fit()?;
        layout = Some(run.layout()?.to_device(&Device::Cpu)?);
        Ok(())
    };
    let seconds = match device.is_cuda() {
        true => time(device, repeats, run)?.median,
        false => {
            let begin = Instant::now();
            run()?;
            begin.elapsed().as_secs_f64()
        }
    };
    let n = rows.dim(0)?;
    let trustworthiness = match layout.filter(|_| device.is_cuda() || n <= MOST_MEASURED) {
        Some(layout) => {
            let there = rows.to_device(device)?;
            let read = config.preparation.apply(&there)?.to_dtype(candle::DType::F32)?.contiguous()?;
            let layout = layout.to_device(device)?;
            let (k, metric) = (TRUST_NEIGHBOURS, config.metric);
            Some(measure::trustworthiness(TrueDistances::Rows(&read, metric), &layout, k, SAMPLE)?)
        }
        None => None,
    };
    Ok(Ran { seconds, trustworthiness })
}

/// Whether a run ends in time at a place.
fn affords(place: &Place, quick: bool, n: usize, n_features: usize, config: &TsneConfig) -> bool {
    if place.device.is_cuda() {
        return true;
    }
    let threads = place.run(rayon::current_num_threads) as f64;
    let (n, n_features) = (n as f64, n_features as f64);
    // Beyond 150,000 rows the 32 nearest of clusters of about 1,024 rows are searched.
    let searched = if n > 150_000. { 32. * 1024. } else { n };
    let by_tree = config.method == Some(Method::BarnesHut);
    let moves = MOVES[usize::from(!by_tree)];
    let work = 2. * n * searched * n_features / FLOPS + n * config.iterations_in_all() as f64 / moves;
    work / threads <= if quick { 3. } else { 5. }
}

/// Runs of one data set at the places: the faithful form and ours.
struct Line {
    known: &'static Known,
    rows: &'static str,
    by_place: Vec<[Option<Ran>; 2]>,
}

/// All that is wanted.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    let wanted = ["table-1", "table-2", "table-3"].map(|id| paper.wants(id));
    if wanted.contains(&true) {
        tables(paper, wanted)?;
    }
    if paper.wants("sizes") {
        sizes(paper)?;
    }
    if paper.wants("pca") { pca(paper) } else { Ok(()) }
}

fn measured(paper: &Paper, places: &[Place]) -> Result<Vec<Line>> {
    let (quick, repeats) = (paper.quick(), paper.repeats().min(3));
    let mut lines = Vec::new();
    for known in &KNOWN {
        let forms = [faithful(), best()];
        let affords =
            |place: &Place, form: &TsneConfig| affords(place, quick, known.n, known.n_features, form);
        // No rows are made where no run would end in time.
        let is_any = places.iter().any(|place| forms.iter().any(|form| affords(place, form)));
        let (rows, what) = match is_any {
            true => {
                let (rows, what) = known.rows(paper)?;
                (Some(rows), what)
            }
            false => (None, "-"),
        };
        let mut by_place = Vec::new();
        for place in places {
            let mut ran = [None, None];
            for (ran, form) in ran.iter_mut().zip(&forms) {
                if let Some(rows) = rows.as_ref().filter(|_| affords(place, form)) {
                    *ran = Some(place.run(|| lay_out(&place.device, rows, form, repeats))?);
                }
            }
            by_place.push(ran);
        }
        lines.push(Line { known, rows: what, by_place });
    }
    Ok(lines)
}

fn tables(paper: &mut Paper, wanted: [bool; 3]) -> Result<()> {
    let places = paper.places()?;
    // All three are made of the same runs, whose time is that of the first.
    let open = ["table-1", "table-2", "table-3"].into_iter().find(|id| paper.wants(id));
    let lines = measured(paper, &places)?;
    let shape = |known: &Known| Cell::text(format!("{}×{}", known.n, known.n_features));
    let by_form =
        |form: &str| places.iter().map(|place| format!("{form}, {}", place.name())).collect::<Vec<_>>();
    let forms = [by_form("faithful"), by_form("ours")].concat();
    let of_form = |line: &Line, form: usize| {
        line.by_place.iter().map(|ran| ran[form].as_ref().map(|ran| ran.seconds)).collect::<Vec<_>>()
    };
    let seconds = |line: &Line| [of_form(line, 0), of_form(line, 1)].concat();
    let notes = |more: &[&str]| {
        let common = [
            "faithful: Barnes-Hut at θ = .5, random start, 250 early and 750 further iterations, \
                 points pushed back beyond 200; ours: FFT (all pairs up to 2,000 rows, 10,000 on a \
                 GPU), PCA start, 250 + 500 iterations.",
            "rows \"made\": ten Gaussian clusters of the shape, where the set is not at hand; \
                 scikit-learn's own sets are in no package that this one depends on.",
            "No figure where a run would take longer than this command may.",
            "1 thread: each op of a run is handed to the thread of kernels by another one, some 30 µs or \
             more each, which counts for few rows.",
        ];
        common.iter().chain(more).map(|&note| note.to_owned()).collect::<Vec<_>>()
    };
    if wanted[0] && (open == Some("table-1") || paper.wants("table-1")) {
        let heads: Vec<&str> = ["data", "shape", "rows", "cuML, V100"]
            .into_iter()
            .chain(forms.iter().map(String::as_str))
            .chain(["trust, faithful", "trust, ours", "source"])
            .collect();
        let rows = lines.iter().map(|line| {
            let known = line.known;
            let trust =
                |form: usize| line.by_place.iter().rev().find_map(|ran| ran[form].as_ref()?.trustworthiness);
            let mut cells = vec![
                Cell::text(known.name),
                shape(known),
                Cell::text(line.rows),
                Cell::or_none(known.cuml, Cell::seconds),
            ];
            cells.extend(seconds(line).into_iter().map(|x| Cell::or_none(x, Cell::seconds)));
            cells.extend([0, 1].map(|form| Cell::or_none(trust(form), |x| Cell::number(x, 4))));
            cells.push(Cell::text(known.place));
            cells
        });
        let rows = rows.collect();
        paper.table(table(
            "Table 1: seconds of t-SNE",
            &heads,
            rows,
            notes(&["trust: trustworthiness over 12 neighbours, at the last place that tells it; the \
     source says that its own is like scikit-learn's."]),
        ))?;
    }
    // The last place is the fastest that there is.
    let fastest = |line: &Line, form: usize| of_form(line, form).into_iter().flatten().reduce(f64::min);
    if wanted[1] && (open == Some("table-2") || paper.wants("table-2")) {
        let rows = lines.iter().map(|line| {
            let known = line.known;
            let gap = known.scikit_learn.zip(known.cuml).map(|(slow, fast)| slow - fast);
            let ours = |form| Cell::or_none(fastest(line, form), Cell::seconds);
            vec![
                Cell::text(known.name),
                shape(known),
                Cell::or_none(known.scikit_learn, Cell::seconds),
                Cell::or_none(known.cuml, Cell::seconds),
                Cell::or_none(gap, Cell::seconds),
                ours(0),
                ours(1),
            ]
        });
        let rows = rows.collect();
        paper.table(table(
            "Table 2: seconds beside scikit-learn",
            &["data", "shape", "scikit-learn, Xeon", "cuML, V100", "between them", "faithful", "ours"],
            rows,
            notes(&["faithful, ours: at the fastest place."]),
        ))?;
    }
    if wanted[2] && (open == Some("table-3") || paper.wants("table-3")) {
        let heads: Vec<&str> = ["data", "shape", "printed", "of the printed seconds"]
            .into_iter()
            .chain(forms.iter().map(String::as_str))
            .collect();
        let compared = lines.iter().filter(|line| line.known.factor.is_some());
        let rows = compared.map(|line| {
            let known = line.known;
            let over = |seconds: Option<f64>| known.scikit_learn.zip(seconds).map(|(slow, fast)| slow / fast);
            let mut cells = vec![
                Cell::text(known.name),
                shape(known),
                Cell::or_none(known.factor, Cell::factor),
                Cell::or_none(over(known.cuml), Cell::factor),
            ];
            cells.extend(seconds(line).into_iter().map(|x| Cell::or_none(over(x), Cell::factor)));
            cells
        });
        let rows = rows.collect();
        paper.table(table(
            "Table 3: how many times as fast as scikit-learn",
            &heads,
            rows,
            notes(&["Over scikit-learn's printed hours: nearly 3 for 204,800 rows of 80, 1 for \
                     Fashion-MNIST."]),
        ))?;
    }
    for line in lines.iter().filter(|line| line.known.scikit_learn.is_some()) {
        let Known { name, scikit_learn, factor, .. } = line.known;
        let over = |form| scikit_learn.zip(fastest(line, form)).map(|(slow, fast)| slow / fast);
        paper.headline(Headline {
            claim: format!("t-SNE of {name} against scikit-learn's printed time"),
            paper: factor_text(*factor),
            same: factor_text(over(0)),
            best: factor_text(over(1)),
        });
    }
    Ok(())
}

/// A factor in words.
fn factor_text(factor: Option<f64>) -> String {
    Cell::or_none(factor, Cell::factor).as_str().to_owned()
}

/// Seconds of ours by rows, and from how many each place is faster than the one before.
fn sizes(paper: &mut Paper) -> Result<()> {
    let (quick, repeats) = (paper.quick(), paper.repeats().min(3));
    let sizes: &[usize] = if quick { &[100, 200, 400] } else { &[250, 500, 1000, 2000, 4000, 8000, 16_000] };
    let n_features = 50;
    let places = paper.places()?;
    let mut by_place: Vec<Vec<Option<f64>>> = vec![Vec::new(); places.len()];
    for &n in sizes {
        let rows = clusters(n, n_features)?;
        for (place, seconds) in places.iter().zip(&mut by_place) {
            let config = best();
            seconds.push(match affords(place, quick, n, n_features, &config) {
                true => Some(place.run(|| lay_out(&place.device, &rows, &config, repeats))?.seconds),
                false => None,
            });
        }
    }
    let names: Vec<String> = places.iter().map(Place::name).collect();
    let rows = sizes.iter().enumerate().map(|(s, &n)| {
        let cells = by_place.iter().map(|seconds| Cell::or_none(seconds[s], Cell::seconds));
        std::iter::once(Cell::text(n.to_string())).chain(cells).collect()
    });
    let rows = rows.collect();
    let heads: Vec<&str> = ["rows"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut notes = vec![
        format!("Ours over ten clusters of {n_features} features, 750 iterations."),
        "On 1 thread each op is handed to the thread of kernels by another one, some 30 µs or more each."
            .to_owned(),
    ];
    for (slow, fast) in (1..places.len()).map(|fast| (fast - 1, fast)) {
        let both = sizes.iter().zip(&by_place[slow]).zip(&by_place[fast]);
        let both: Vec<[f64; 3]> = both.filter_map(|((&n, &a), &b)| Some([n as f64, a?, b?])).collect();
        let of = |k: usize| both.iter().map(|of| of[k]).collect::<Vec<_>>();
        let (x, a, b) = (of(0), of(1), of(2));
        notes.push(match break_even(&x, &a, &b) {
            Some(n) if x.first().is_some_and(|&first| n <= first) => {
                format!("{} is faster than {} at all of these.", names[fast], names[slow])
            }
            Some(n) => format!("{} is faster than {} from {n:.0} rows on.", names[fast], names[slow]),
            None => format!("{} is not faster than {} at any of these.", names[fast], names[slow]),
        });
    }
    paper.table(table("Seconds by rows", &heads, rows, notes))?;
    let curves = names.iter().zip(&by_place).map(|(name, seconds)| {
        let points = sizes.iter().zip(seconds).filter_map(|(&n, &s)| Some((n as f64, s?)));
        Curve::new(name.clone(), points)
    });
    let panel = Panel::new("t-SNE by rows", "rows", "seconds", curves.collect()).log_x().log();
    paper.figure("sizes", "Seconds of a run by rows of 50 features.", &[panel])
}

/// 204,800 rows of 80 features, as they are and by 50 principal components.
fn pca(paper: &mut Paper) -> Result<()> {
    let (quick, repeats) = (paper.quick(), paper.repeats().min(3));
    let places = paper.places()?;
    let mut lines = Vec::new();
    for place in &places {
        // As many as end in time; the GPU has those of the source.
        let affordable =
            if quick { &[800, 400, 200][..] } else { &[204_800, 51_200, 12_800, 3200, 800, 200] };
        let Some(n) = affordable.iter().copied().find(|&n| affords(place, quick, n, 80, &best())) else {
            continue;
        };
        let rows = clusters(n, 80)?;
        let device = &place.device;
        let (plain, fitted, reduced) = place.run(|| {
            let plain = lay_out(device, &rows, &best(), repeats)?;
            let steps = ["pca=50".parse().map_err(anyhow::Error::msg)?];
            let there = rows.to_device(device)?;
            let fit = || anyhow::Ok(Preparation::fit_tensor(&there, &steps, SEED)?);
            let preparation = fit()?;
            let fitted = time(device, repeats, || {
                let read = fit()?.apply(&there)?;
                drop(read);
                Ok(())
            })?;
            let config = TsneConfig { preparation, ..best() };
            anyhow::Ok((plain, fitted.median, lay_out(device, &rows, &config, repeats)?))
        })?;
        let all = fitted + reduced.seconds;
        let trust = |ran: &Ran| Cell::or_none(ran.trustworthiness, |x| Cell::number(x, 4));
        lines.push(vec![
            Cell::text(place.name()),
            Cell::text(n.to_string()),
            Cell::seconds(plain.seconds),
            Cell::seconds(fitted),
            Cell::seconds(reduced.seconds),
            Cell::factor(plain.seconds / all),
            trust(&plain),
            trust(&reduced),
        ]);
    }
    paper.table(table(
        "Rows of 80 features, and their 50 principal components",
        &["where", "rows", "×80", "PCA", "×50", "as fast with PCA", "trust, ×80", "trust, ×50"],
        lines,
        vec![
            "The source: 204,800 rows of 50 more than 1,000 times as fast as scikit-learn; and PCA \
                 first helps a CPU, but is not needed on a GPU."
                .to_owned(),
            "Ten clusters; `tsne --prepare pca=50` does the same. Places that are slower have \
                 fewer rows. ×50 has the product with the components in it, as raw rows are handed \
                 over; PCA is the search for them, and one product."
                .to_owned(),
        ],
    ))
}
