//! Table 4: the stages of a run apart.
//!
//! The search, the perplexities, the symmetric graph and the start are those of the run. Forces and
//! integration are one recorded step there; here they are called again and again on the layout that
//! the run has made, and the device is waited for after each. What a step takes without edges is
//! the integration, and what it takes more with them the attraction.
use super::data::clusters;
use super::{SEED, best, faithful, table};
use crate::bench::paper::{Cell, Paper};
use crate::bench::timing::time;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::tsne::{TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_ops::arrays::gather_rows_by;
use chandlery_ops::core::set_scalars_;
use chandlery_ops::tsne::{
    Affinities, LayoutState, LayoutStep, Repulsion, RepulsionMethod, affinities_in_order, curve_order,
    grid_sides, layout_step_,
};

/// Features of the rows.
const FEATURES: usize = 80;
/// Steps of a tree between two sorts of its points on a GPU, as of a run.
const ARRANGE: f64 = 10.;
/// Nodes of a side of a grid on a GPU at least, as of a run.
const GPU_NODES: usize = 256;

/// Seconds by stage.
type Stages = Vec<(&'static str, f64)>;

/// Seconds of one step's attraction and of its integration.
pub(super) fn step_seconds(graph: &Affinities, layout: &Tensor, repeats: u32) -> Result<(f64, f64)> {
    let (n, device) = (graph.n(), layout.device());
    let state = LayoutState::new(layout)?;
    // Nothing moves.
    set_scalars_(&state.rates, &[0., 0., 1.])?;
    let (forces, total) = (layout.zeros_like()?, Tensor::ones(1, DType::F64, device)?);
    let seconds = |graph: &Affinities| -> Result<f64> {
        let step = || Ok(layout_step_(&state, graph, &forces, &total, &LayoutStep::default())?);
        Ok(time(device, repeats, step)?.min)
    };
    let mut offsets = vec![0u32; n + 1];
    offsets[n] = 1;
    let none = Affinities {
        offsets: Tensor::new(offsets, device)?,
        columns: Tensor::new(&[n as u32 - 1], device)?,
        values: Tensor::new(&[0f32], device)?,
    };
    let (with, without) = (seconds(graph)?, seconds(&none)?);
    Ok(((with - without).max(0.), without))
}

/// Seconds of the stages of repulsion by a method, each the least of several calls.
fn repulsion_seconds(method: RepulsionMethod, layout: &Tensor, repeats: u32) -> Result<Stages> {
    let device = layout.device();
    let repulsion = Repulsion::new(method, layout.dim(0)?, layout.dim(1)?, 1., device)?;
    let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, device)?);
    let mut stages = Stages::new();
    if device.is_cuda() && matches!(method, RepulsionMethod::Tree { .. }) {
        let sort = time(device, repeats, || Ok(repulsion.arrange(layout)?))?;
        stages.push(("sorting", sort.min / ARRANGE));
    }
    let mut least = repulsion.repulsion_stages_(&forces, &total, layout)?;
    for _ in 0..repeats {
        let again = repulsion.repulsion_stages_(&forces, &total, layout)?;
        least.iter_mut().zip(again).for_each(|(least, again)| least.1 = least.1.min(again.1));
    }
    stages.extend(least);
    Ok(stages)
}

/// The stages of a run by Barnes-Hut, of 1,000 iterations, and by FFT, of 750.
fn of_run(device: &Device, rows: &Tensor, quick: bool, repeats: u32) -> Result<[Stages; 2]> {
    let there = rows.to_device(device)?;
    let iterations = if quick { 40 } else { 250 };
    let config = TsneConfig { early_iterations: iterations, iterations, ..best() };
    let begin = || anyhow::Ok(TsneTrainer::new(config.clone(), Philox::new(SEED, 9), &there)?);
    if device.is_cuda() {
        // Warms up.
        begin()?;
    }
    let mut run = begin()?;
    run.fit()?;
    let seconds = run.seconds();
    let first = [
        ("neighbours", seconds.neighbours),
        ("perplexity search", seconds.perplexity),
        ("symmetrisation", seconds.symmetrisation),
        ("start", seconds.start),
    ];
    // Points in the order in which a run takes them.
    let layout = run.layout()?;
    let order = curve_order(&layout)?;
    let graph = affinities_in_order(run.affinities(), &order)?;
    let layout = gather_rows_by(&layout, &order)?;
    let (attraction, integration) = step_seconds(&graph, &layout, repeats)?;
    let side = (layout.max(0)? - layout.min(0)?)?.max(0)?.to_scalar::<f32>()?;
    let least = if device.is_cuda() { GPU_NODES } else { 0 };
    let wanted = ((1.1 * side / config.node_distance) as usize + 5).max(least);
    let nodes = grid_sides(device).find(|&nodes| nodes >= wanted).unwrap_or(2048);
    let by = |method, config: TsneConfig| {
        let iterations = config.iterations_in_all() as f64;
        let of_step = repulsion_seconds(method, &layout, repeats)?;
        let of_step = of_step.into_iter().chain([("attraction", attraction), ("integration", integration)]);
        anyhow::Ok(first.into_iter().chain(of_step.map(|(name, s)| (name, s * iterations))).collect())
    };
    Ok([by(RepulsionMethod::Tree { theta: 0.5 }, faithful())?, by(RepulsionMethod::Grid { nodes }, best())?])
}

/// The table.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    if !paper.wants("table-4") {
        return Ok(());
    }
    let (quick, repeats) = (paper.quick(), paper.repeats());
    let places = paper.places()?;
    let (mut names, mut measured) = (Vec::new(), Vec::new());
    for place in &places {
        let threads = place.run(rayon::current_num_threads);
        let n = match (place.device.is_cuda(), quick) {
            (true, false) => 204_800,
            (true, true) => 20_000,
            (false, false) => (5000 * threads).min(40_000),
            (false, true) => (1000 * threads).min(4000),
        };
        let rows = clusters(n, FEATURES)?;
        names.push(format!("{}, {n} rows", place.name()));
        measured.push(place.run(|| of_run(&place.device, &rows, quick, repeats))?);
    }
    let heads: Vec<String> = names.iter().flat_map(|name| [name.clone(), "%".to_owned()]).collect();
    let heads: Vec<&str> =
        ["method", "stage", "paper, %"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut rows = Vec::new();
    for (m, method) in ["Barnes-Hut, 1,000 iterations", "FFT, 750 iterations"].into_iter().enumerate() {
        let totals: Vec<f64> =
            measured.iter().map(|of| of[m].iter().map(|(_, seconds)| seconds).sum()).collect();
        let stages = measured.first().map(|of| &of[m][..]).unwrap_or_default();
        for &(stage, _) in stages {
            let paper = if stage == "symmetrisation" { Cell::number(1., 0) } else { Cell::none() };
            let mut cells = vec![Cell::text(method), Cell::text(stage), paper];
            for (of, total) in measured.iter().zip(&totals) {
                let seconds = of[m].iter().find(|(name, _)| *name == stage).map(|(_, seconds)| *seconds);
                cells.push(seconds.map_or_else(Cell::none, Cell::seconds));
                cells.push(seconds.map_or_else(Cell::none, |s| Cell::number(100. * s / total, 1)));
            }
            rows.push(cells);
        }
        let mut cells = vec![Cell::text(method), Cell::text("all"), Cell::none()];
        cells.extend(totals.iter().flat_map(|&total| [Cell::seconds(total), Cell::number(100., 0)]));
        rows.push(cells);
    }
    paper.table(table(
        "Table 4: seconds of the stages of a run",
        &heads,
        rows,
        vec![
            "The source's table is a picture; its text says that symmetrisation takes 1 %, and \
                 took 25 % before."
                .to_owned(),
            format!(
                "Ten clusters of {FEATURES} features. What is done once is that of the run; a stage of \
                 an iteration is the least of {repeats} calls on the layout that a run ends with, \
                 times the iterations."
            ),
            "The device is waited for after each stage here, and not in a run, whose step is \
                 recorded: a GPU takes less for all than the sum."
                .to_owned(),
            "Tree building and summary are one pass over sorted points here; on a GPU points are \
                 sorted every 10 iterations."
                .to_owned(),
        ],
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_methods_have_the_stages_of_a_run() {
        let rows = clusters(300, 8).unwrap();
        let [tree, grid] = of_run(&Device::Cpu, &rows, true, 1).unwrap();
        let first = ["neighbours", "perplexity search", "symmetrisation", "start"];
        let names = |stages: &Stages| stages.iter().map(|stage| stage.0).collect::<Vec<_>>();
        let of_tree = ["sorting", "tree and summary", "traversal", "attraction", "integration"];
        let of_grid = ["sorting", "spreading", "FFT", "interpolation", "attraction", "integration"];
        assert_eq!(names(&tree), [&first[..], &of_tree].concat());
        assert_eq!(names(&grid), [&first[..], &of_grid].concat());
        assert!(tree.iter().chain(&grid).all(|&(_, seconds)| seconds >= 0.), "{tree:?} {grid:?}");
    }
}
