//! t-SNE: queries, rows and points divided.
use super::{CPU, close, each};
use candle::{Result, Tensor};
use chandlery::tsne::{Affinity, Method, Progress, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Group, Philox, Trainer};
use chandlery_ops::core::normal;
use std::ops::ControlFlow;

/// Rows in three heaps.
fn rows(n: usize) -> Result<Tensor> {
    let heaps: Vec<u32> = (0..n).map(|i| (i % 3) as u32).collect();
    let centres = (normal((3, 7), &CPU, Philox::new(4, 1))? * 5.)?;
    centres.index_select(&Tensor::new(heaps, &CPU)?, 0)? + normal((n, 7), &CPU, Philox::new(4, 2))?
}

/// Affinities, what was seen and the layout of a run.
type Made = (Vec<f32>, Vec<Progress>, Vec<f32>);

fn made(group: &Group, config: &TsneConfig, rows: &Tensor) -> Result<Made> {
    let run = TsneTrainer::new_in_group(group, config.clone(), Philox::new(4, 0), rows)?;
    let mut run = run.in_group(group)?;
    let seen = run.fit()?;
    let affinities = run.affinities().values.to_vec1()?;
    Ok((affinities, seen, run.layout()?.flatten_all()?.to_vec1()?))
}

fn short() -> TsneConfig {
    TsneConfig { perplexity: 8., early_iterations: 30, iterations: 40, ..TsneConfig::default() }
}

#[test]
fn ranks_make_the_layout_of_one() -> Result<()> {
    let short = short();
    let by = |method| TsneConfig { method: Some(method), ..short.clone() };
    let cases = [
        ("all pairs", 389, by(Method::Exact)),
        ("in three dimensions", 389, TsneConfig { n_dims: 3, ..by(Method::Exact) }),
        ("on a line", 389, TsneConfig { n_dims: 1, ..by(Method::Exact) }),
        ("a tree", 1103, by(Method::BarnesHut)),
        ("a tree in three dimensions", 1103, TsneConfig { n_dims: 3, ..by(Method::BarnesHut) }),
        ("a grid", 1103, by(Method::Fft)),
        ("heavier tails", 389, TsneConfig { degrees_of_freedom: 0.5, ..by(Method::Exact) }),
        ("of one width", 389, TsneConfig { affinity: Affinity::FixedWidth(2.), ..short.clone() }),
        ("uniform", 389, TsneConfig { affinity: Affinity::Uniform, neighbours: Some(9), ..short.clone() }),
    ];
    for (what, n, config) in cases {
        let rows = rows(n)?;
        let (affinities, seen, layout) = made(&Group::single(), &config, &rows)?;
        for world in 1..=4 {
            let ranks = each(world, |group| made(group, &config, &rows))?;
            for of_rank in &ranks {
                assert!(of_rank == &ranks[0], "{what}: ranks of {world} differ");
                assert!(of_rank.0 == affinities, "{what}: other affinities by {world} ranks");
                assert_eq!(of_rank.1.len(), seen.len(), "{what}");
                for (a, b) in seen.iter().zip(&of_rank.1) {
                    close(what, a.kl, b.kl, 1e-5);
                    close(what, a.gradient_norm, b.gradient_norm, 1e-3);
                }
                layout.iter().zip(&of_rank.2).for_each(|(a, b)| close(what, (*a).into(), (*b).into(), 1e-3));
            }
        }
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_ranks_is_one_and_resumes_on_another_number() -> Result<()> {
    let config = TsneConfig { method: Some(Method::BarnesHut), ..short() };
    let folder = std::env::temp_dir().join(format!("chandlery-tsne-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let rows = rows(1103)?;
    let whole = made(&Group::single(), &config, &rows)?;
    for (before, after) in [(3, 1), (1, 2), (2, 4)] {
        let path = folder.join(format!("{before}-{after}.safetensors"));
        each(before, |group| {
            let run = TsneTrainer::new_in_group(group, config.clone(), Philox::new(4, 0), &rows)?;
            let mut run = run.in_group(group)?;
            run.fit_with(|_, seen| {
                Ok(if seen.iteration >= 30 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            run.gather()?;
            if group.rank() == 0 { run.save(&path, &serde_json::Value::Null) } else { run.join_save() }
        })?;
        let layouts = each(after, |group| {
            let mut run = TsneTrainer::load(&path, &rows, &CPU)?.0.in_group(group)?;
            assert_eq!(run.iteration(), 30);
            run.fit()?;
            run.layout()?.flatten_all()?.to_vec1::<f32>()
        })?;
        for layout in &layouts {
            assert!(layout == &layouts[0], "ranks of {after} differ");
            let what = format!("{before} ranks, then {after}");
            whole.2.iter().zip(layout).for_each(|(a, b)| close(&what, (*a).into(), (*b).into(), 1e-3));
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

#[test]
fn unique_rows_are_refused_by_several() -> Result<()> {
    let config = TsneConfig { unique: true, ..short() };
    let rows = rows(60)?;
    for said in each(2, |group| {
        let begun = TsneTrainer::new_in_group(group, config.clone(), Philox::new(4, 0), &rows);
        let whole = TsneTrainer::new(config.clone(), Philox::new(4, 0), &rows)?;
        let divided = whole.in_group(group);
        Ok([begun, divided].map(|made| made.err().map_or_else(String::new, |e| e.to_string())))
    })? {
        let want = "unique is for one process, got 2";
        assert!(said.iter().all(|said| said.contains(want)), "{said:?}");
    }
    Ok(())
}

#[test]
fn ranks_end_together_where_the_divergence_falls_too_little() -> Result<()> {
    let config = TsneConfig { stop_below: Some(1e-2), iterations: 400, ..short() };
    let rows = rows(389)?;
    let ends = each(3, |group| Ok(made(group, &config, &rows)?.1.last().map(|seen| seen.iteration)))?;
    assert!(ends[0].is_some_and(|end| end < 430), "no early end: {ends:?}");
    assert!(ends.iter().all(|end| end == &ends[0]), "{ends:?}");
    Ok(())
}
