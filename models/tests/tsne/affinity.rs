//! Affinities of every kind are those of plain loops in f64.
use super::{CPU, message, tsne};
use candle::{DType, Result, Tensor};
use chandlery::tsne::{
    Affinities, Affinity, GivenNeighbours, Method, Metric, Neighbours, TsneConfig, TsneTrainer, measure,
};
use chandlery::{FullBatchTrainer, LoadOptions, Model, Philox, Trainer};
use chandlery_ops::core::normal;
use chandlery_ops::tsne::knn;

const K: usize = 8;
/// Distances are f32: their squares in units of the width are off by so much of themselves.
const ROUNDING: f64 = 1e-4;

fn config(affinity: Affinity) -> TsneConfig {
    TsneConfig { affinity, neighbours: Some(K), ..TsneConfig::default() }
}

/// `p_ij` as a matrix, of neighbours with their distances.
fn plain(near: &[Vec<(usize, f64)>], affinity: Affinity) -> Vec<Vec<f64>> {
    let n = near.len();
    let mut p = vec![vec![0.; n]; n];
    for (i, near) in near.iter().enumerate() {
        let least = near.iter().map(|(_, d)| d * d).fold(f64::INFINITY, f64::min);
        let weight = |d: f64| match affinity {
            Affinity::FixedWidth(width) => (-(d * d - least) / width / width / 2.).exp(),
            _ => 1.,
        };
        let total: f64 = near.iter().map(|(_, d)| weight(*d)).sum();
        for &(j, d) in near {
            p[i][j] += weight(d) / total / (2 * n) as f64;
            p[j][i] += weight(d) / total / (2 * n) as f64;
        }
    }
    p
}

/// The same of a graph.
fn dense(graph: &Affinities) -> Result<Vec<Vec<f64>>> {
    let n = graph.n();
    let (offsets, columns) = (graph.offsets.to_vec1::<u32>()?, graph.columns.to_vec1::<u32>()?);
    let values = graph.values.to_vec1::<f32>()?;
    let mut p = vec![vec![0.; n]; n];
    for i in 0..n {
        for e in offsets[i] as usize..offsets[i + 1] as usize {
            p[i][columns[e] as usize] += f64::from(values[e]);
        }
    }
    Ok(p)
}

fn assert_same(name: &str, got: &[Vec<f64>], want: &[Vec<f64>]) {
    let n = got.len();
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        for (j, (got, want)) in got.iter().zip(want).enumerate() {
            let room = ROUNDING * want + 1e-9 / n as f64;
            assert!((got - want).abs() <= room, "{name}: p of {i}, {j} is {got}, want {want}");
        }
    }
}

/// The `K` nearest rows of each.
fn nearest(rows: &Tensor) -> Result<Vec<Vec<(usize, f64)>>> {
    let rows = rows.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let of = |i: usize| {
        let far = |j: usize| rows[i].iter().zip(&rows[j]).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let mut others: Vec<_> = (0..rows.len()).filter(|&j| j != i).map(|j| (j, far(j))).collect();
        others.sort_by(|a, b| a.1.total_cmp(&b.1));
        others.truncate(K);
        others
    };
    Ok((0..rows.len()).map(of).collect())
}

#[test]
fn a_graph_has_the_weights_of_its_kind_in_every_unit() -> Result<()> {
    let plain_rows = normal((70, 3), &CPU, Philox::new(80, 0))?;
    for unit in [1f64, 1e-25, 1e25] {
        let rows = plain_rows.affine(unit, 0.)?;
        let near = nearest(&rows)?;
        let widths = [1e-30, 1e-3, 0.1, 0.5, 3., 1e30, f64::MIN_POSITIVE, 1e200];
        let kinds = widths.map(|width| Affinity::FixedWidth(width * unit)).into_iter();
        for affinity in kinds.chain([Affinity::Uniform]).filter(|of| config(*of).validate().is_ok()) {
            let run = TsneTrainer::new(config(affinity), Philox::new(80, 1), &rows)?;
            assert_same(
                &format!("{affinity:?}, unit {unit}"),
                &dense(run.affinities())?,
                &plain(&near, affinity),
            );
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_equally_far_weigh_the_same() -> Result<()> {
    let n = 40;
    for width in [1e-30, 1., 1e30] {
        let config = config(Affinity::FixedWidth(width));
        let run = TsneTrainer::new(config, Philox::new(80, 2), &Tensor::full(3f32, (n, 2), &CPU)?)?;
        let once = 1. / (2 * n * K) as f64;
        for p in run.affinities().values.to_vec1::<f32>()? {
            let times = f64::from(p) / once;
            assert!((times - 1.).abs() < 1e-5 || (times - 2.).abs() < 1e-5, "width {width}: {times} times");
        }
    }
    Ok(())
}

#[test]
fn given_neighbours_keep_the_unit_of_the_width() -> Result<()> {
    let rows = normal((30, 2), &CPU, Philox::new(80, 3))?;
    let near = nearest(&rows)?;
    // Row 7 is nobody's neighbour.
    let others =
        |line: &Vec<(usize, f64)>| line.iter().filter(|(j, _)| *j != 7).take(K - 1).copied().collect();
    let near: Vec<Vec<(usize, f64)>> = near.iter().map(others).collect();
    for unit in [1., 1e-200, 1e200] {
        let indices: Vec<i64> = near.iter().flatten().map(|(j, _)| *j as i64).collect();
        let distances: Vec<f64> = near.iter().flatten().map(|(_, d)| d * unit).collect();
        let given = GivenNeighbours { indices: &indices, distances: &distances, k: K - 1 };
        let checked = given.checked().map_err(candle::Error::wrap)?;
        for affinity in [Affinity::FixedWidth(0.4), Affinity::Uniform] {
            let scaled = match affinity {
                Affinity::FixedWidth(width) => Affinity::FixedWidth(width * unit),
                other => other,
            };
            let run = TsneTrainer::from_checked(config(scaled), Philox::new(80, 4), &checked, &CPU)?;
            let name = format!("{affinity:?}, unit {unit}");
            assert_same(&name, &dense(run.affinities())?, &plain(&near, affinity));
        }
    }
    // As tensors, with the row itself among them.
    let near = knn(&rows, K, Metric::Euclidean)?;
    let own = Tensor::arange(0u32, 30, &CPU)?.unsqueeze(1)?;
    let with_self = Neighbours {
        indices: Tensor::cat(&[&own, &near.indices], 1)?,
        distances: Tensor::cat(&[&Tensor::zeros((30, 1), DType::F32, &CPU)?, &near.distances], 1)?,
    };
    let config = config(Affinity::FixedWidth(0.4));
    let of = |near| TsneTrainer::from_neighbours(config.clone(), Philox::new(80, 5), near);
    let (a, b) = (of(&with_self)?, of(&near)?);
    assert_eq!(dense(a.affinities())?, dense(b.affinities())?);
    Ok(())
}

#[test]
fn measures_checkpoints_and_saved_layouts_have_the_kind_of_the_run() -> Result<()> {
    let rows = normal((60, 4), &CPU, Philox::new(80, 6))?;
    let folder = tempfile::tempdir()?;
    for affinity in [Affinity::Uniform, Affinity::FixedWidth(0.7)] {
        let config = TsneConfig {
            early_iterations: 20,
            iterations: 20,
            method: Some(Method::Exact),
            ..config(affinity)
        };
        let philox = Philox::new(80, 7);
        let mut run = TsneTrainer::new(config.clone(), philox, &rows)?;
        while run.step()?.is_some() {}
        assert!(run.notes().is_empty(), "{:?}", run.notes());
        let kl = measure::kl_of_affinities(run.affinities(), &run.layout()?, 1.)?;
        assert_eq!(measure::true_kl(&rows, &run.layout()?, &config, philox)?, kl, "{affinity:?}");
        assert!((run.metrics()?.kl - kl).abs() < 1e-6 * kl, "{affinity:?}");
        let other = TsneConfig { perplexity: 2.5, affinity: Affinity::Perplexity, ..config };
        assert_ne!(measure::true_kl(&rows, &run.layout()?, &other, philox)?, kl);
        run.model()?.save_pretrained(folder.path())?;
        let back = chandlery::tsne::Embedding::from_pretrained(folder.path(), &LoadOptions::default())?;
        assert_eq!(back.config().affinity, affinity);
    }
    let text = serde_json::to_string(&TsneConfig::default()).map_err(candle::Error::wrap)?;
    assert!(!text.contains("affinity"), "{text}");
    let text = serde_json::to_string(&config(Affinity::FixedWidth(0.5))).map_err(candle::Error::wrap)?;
    assert!(text.contains(r#""affinity":{"fixed-width":0.5}"#), "{text}");
    Ok(())
}

#[test]
fn a_width_that_is_none_is_refused() -> Result<()> {
    let rows = normal((20, 2), &CPU, Philox::new(80, 8))?;
    for width in [0., -1., f64::NAN, f64::INFINITY] {
        let error = message(tsne(config(Affinity::FixedWidth(width))).fit(&rows));
        assert!(error.contains("fixed width of the affinity must be above 0"), "{error}");
    }
    let many = TsneConfig { neighbours: Some(20), ..config(Affinity::Uniform) };
    let error = message(tsne(many).fit(&rows));
    assert!(error.contains("neighbours must be in 1..=19 for 20 rows, got 20"), "{error}");
    Ok(())
}
