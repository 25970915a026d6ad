//! The spectral start is that of a dense solver, and stands graphs in pieces.
use super::{CPU, short};
use candle::{Result, Tensor};
use chandlery::tsne::{Affinities, Method, Start, TsneConfig, TsneTrainer, spectral_layout};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_ops::core::normal;
use nalgebra::{DMatrix, SymmetricEigen};

/// The standard deviation of the first coordinate, and of what is added to all.
const SPREAD: f64 = 1e-4;
const JITTER: f64 = 1e-6;

/// The affinities of rows, `[n, n_features]`.
fn of_rows(rows: &Tensor, perplexity: f64) -> Result<Affinities> {
    let config = TsneConfig { perplexity, ..TsneConfig::default() };
    Ok(TsneTrainer::new(config, Philox::new(82, 0), rows)?.affinities().clone())
}

/// A graph of edges, each in both directions.
fn of_edges(n: usize, edges: impl Iterator<Item = (usize, usize)>) -> Result<Affinities> {
    let mut rows = vec![vec![]; n];
    for (i, j) in edges {
        rows[i].push(j as u32);
        rows[j].push(i as u32);
    }
    rows.iter_mut().for_each(|row| row.sort_unstable());
    let mut offsets = vec![0u32];
    offsets.extend(rows.iter().scan(0, |end, row| {
        *end += row.len() as u32;
        Some(*end)
    }));
    let columns = rows.concat();
    let value = 1. / columns.len().max(1) as f32;
    Ok(Affinities {
        offsets: Tensor::new(offsets, &CPU)?,
        values: Tensor::full(value, columns.len(), &CPU)?,
        columns: Tensor::new(columns, &CPU)?,
    })
}

fn f64s(layout: &Tensor) -> Result<DMatrix<f64>> {
    let (n, d) = layout.dims2()?;
    let values: Vec<f64> = layout.to_dtype(candle::DType::F64)?.flatten_all()?.to_vec1()?;
    Ok(DMatrix::from_row_slice(n, d, &values))
}

/// The eigenvectors of the random walk but the constant one, by a dense solver, and their values.
fn dense(graph: &Affinities, count: usize) -> Result<(DMatrix<f64>, Vec<f64>)> {
    let n = graph.n();
    let (offsets, columns) = (graph.offsets.to_vec1::<u32>()?, graph.columns.to_vec1::<u32>()?);
    let values = graph.values.to_vec1::<f32>()?;
    let mut p = DMatrix::zeros(n, n);
    for i in 0..n {
        for e in offsets[i] as usize..offsets[i + 1] as usize {
            p[(i, columns[e] as usize)] = f64::from(values[e]);
        }
    }
    let roots: Vec<f64> = p.row_iter().map(|row| row.sum().sqrt()).collect();
    let m = DMatrix::from_fn(n, n, |i, j| p[(i, j)] / roots[i] / roots[j]);
    let eigen = SymmetricEigen::new(m);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
    let of = DMatrix::from_fn(n, count, |i, d| eigen.eigenvectors[(i, order[d + 1])] / roots[i]);
    Ok((of, order.iter().map(|&place| eigen.eigenvalues[place]).collect()))
}

/// How much of each column of `of` no combination of the columns of `by` and a constant makes, as a
/// share.
fn unexplained(of: &DMatrix<f64>, by: &DMatrix<f64>) -> Vec<f64> {
    let n = by.nrows();
    let with_constant = DMatrix::from_fn(n, by.ncols() + 1, |i, d| if d == 0 { 1. } else { by[(i, d - 1)] });
    let q = with_constant.qr().q();
    let about_mean = |column: &DMatrix<f64>| {
        let mean = column.mean();
        column.map(|x| x - mean)
    };
    (0..of.ncols())
        .map(|d| {
            let column = about_mean(&of.columns(d, 1).into_owned());
            let rest = &column - &q * (q.transpose() * &column);
            rest.norm() / column.norm()
        })
        .collect()
}

#[test]
fn directions_are_those_of_a_dense_solver() -> Result<()> {
    // Below and above the number of points of the dense path.
    for (n, n_dims) in [(60, 2), (200, 3), (257, 2), (700, 3)] {
        let rows = normal((n, 3), &CPU, Philox::new(82, 1))?;
        let rows = rows.broadcast_mul(&Tensor::new(&[5f32, 3., 2.], &CPU)?)?;
        let graph = of_rows(&rows, 8.)?;
        let (want, values) = dense(&graph, n_dims)?;
        assert!(
            values[n_dims] - values[n_dims + 1] > 1e-3,
            "{n}: values are too near for this test, {values:?}"
        );
        let got = f64s(&spectral_layout(&graph, n_dims, Philox::new(82, 2))?)?;
        // What is added is 1 % of the first coordinate; others may be smaller.
        let deviation = |d: usize| {
            let column = got.column(d);
            (column.map(|x| x - column.mean()).norm_squared() / n as f64).sqrt()
        };
        assert!((deviation(0) / SPREAD - 1.).abs() < 0.01, "{n}: {}", deviation(0));
        for (d, share) in unexplained(&got, &want).into_iter().enumerate() {
            let room = 1.5 * JITTER / deviation(d);
            assert!(share < room, "{n} points, coordinate {d}: {share} of it is something else, room {room}");
        }
        // Without what is added the two are much nearer: the mean of many draws takes it away.
        let draws = 40;
        let mut mean = DMatrix::zeros(n, n_dims);
        for draw in 0..draws {
            mean += f64s(&spectral_layout(&graph, n_dims, Philox::new(82, 3 + draw))?)? / draws as f64;
        }
        for (d, share) in unexplained(&mean, &want).into_iter().enumerate() {
            let room = 1.5 * JITTER / deviation(d) / (draws as f64).sqrt() + 1e-4;
            assert!(share < room, "{n} points, coordinate {d}: {share} of the mean is something else");
        }
    }
    Ok(())
}

#[test]
fn a_path_is_laid_out_in_its_order() -> Result<()> {
    for n in [5usize, 200, 600] {
        let graph = of_edges(n, (1..n).map(|i| (i - 1, i)))?;
        let got = f64s(&spectral_layout(&graph, 2, Philox::new(82, 4))?)?;
        // A cosine over the path.
        let want = DMatrix::from_fn(n, 1, |i, _| (std::f64::consts::PI * i as f64 / (n - 1) as f64).cos());
        let share = unexplained(&got.columns(0, 1).into_owned(), &want)[0];
        assert!(share < 0.02, "{n}: {share}");
    }
    Ok(())
}

#[test]
fn graphs_in_pieces_and_of_few_points_have_coordinates_that_differ() -> Result<()> {
    let ring = |from: usize, n: usize| (0..n).map(move |i| (from + i, from + (i + 1) % n));
    let clique = |n: usize| (0..n).flat_map(|i| (0..i).map(move |j| (i, j)));
    let graphs = [
        ("two points", of_edges(2, [(0, 1)].into_iter())?),
        ("three points", of_edges(3, clique(3))?),
        ("all pairs", of_edges(50, clique(50))?),
        ("all pairs of many", of_edges(300, clique(300))?),
        ("two rings", of_edges(60, ring(0, 30).chain(ring(30, 30)))?),
        ("two larger rings", of_edges(600, ring(0, 300).chain(ring(300, 300)))?),
        ("a hundred rings", of_edges(500, (0..100).flat_map(|r| ring(5 * r, 5)))?),
        ("a star", of_edges(400, (1..400).map(|i| (0, i)))?),
        ("a pair among points without an edge", of_edges(300, [(7, 9)].into_iter())?),
        ("no edge", of_edges(300, std::iter::empty())?),
        ("few points without an edge", of_edges(20, std::iter::empty())?),
    ];
    for (name, graph) in &graphs {
        for n_dims in [2, 3] {
            let layout = spectral_layout(graph, n_dims, Philox::new(82, 5))?;
            assert_eq!(layout.dims(), [graph.n(), n_dims]);
            let mut points = layout.to_vec2::<f32>()?;
            assert!(points.iter().flatten().all(|y| y.is_finite() && y.abs() < 1e-2), "{name}: {points:?}");
            for d in 0..n_dims {
                let first = points[0][d];
                assert!(
                    points.iter().any(|point| point[d] != first),
                    "{name}: coordinate {d} is {first} in all"
                );
            }
            points.sort_by(|a, b| {
                a.iter()
                    .zip(b)
                    .map(|(a, b)| a.total_cmp(b))
                    .find(|o| o.is_ne())
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
            assert!(points.windows(2).all(|pair| pair[0] != pair[1]), "{name}: two points are equal");
        }
    }
    // Pieces are apart.
    let (_, two) = &graphs[5];
    let y = f64s(&spectral_layout(two, 2, Philox::new(82, 6))?)?;
    let (a, b) = (y.rows(0, 300).row_mean(), y.rows(300, 300).row_mean());
    assert!((a - b).norm() > SPREAD, "two pieces lie on each other");
    Ok(())
}

#[test]
fn the_bits_are_those_of_any_number_of_threads() -> Result<()> {
    let graph = of_rows(&normal((9000, 3), &CPU, Philox::new(82, 7))?, 3.)?;
    let on = |threads: usize| -> Result<Vec<Vec<f32>>> {
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(candle::Error::wrap)?;
        pool.install(|| spectral_layout(&graph, 2, Philox::new(82, 8)))?.to_vec2()
    };
    let one = on(1)?;
    assert!(one == on(2)?, "two threads");
    assert!(one == on(3)?, "three threads");
    Ok(())
}

#[test]
fn runs_begin_with_it_from_rows_and_from_neighbours() -> Result<()> {
    let rows = normal((100, 4), &CPU, Philox::new(82, 9))?;
    let config = TsneConfig { start: Start::Spectral, ..short(Method::Exact) };
    let place = Philox::new(82, 10);
    let mut run = TsneTrainer::new(config.clone(), place, &rows)?;
    let want = spectral_layout(run.affinities(), 2, place)?.to_vec2::<f32>()?;
    assert_eq!(run.layout()?.to_vec2::<f32>()?, want);
    let near = chandlery_ops::tsne::knn(&rows, 30, chandlery::tsne::Metric::Euclidean)?;
    let given = TsneTrainer::from_neighbours(config.clone(), place, &near)?;
    assert_eq!(given.layout()?.to_vec2::<f32>()?, want);
    while run.step()?.is_some() {}
    let by_pca = TsneConfig { start: Start::Pca, ..config };
    let mut other = TsneTrainer::new(by_pca, place, &rows)?;
    while other.step()?.is_some() {}
    let (got, plain) = (run.kl()?, other.kl()?);
    assert!((got - plain).abs() < 0.1 * plain, "{got} from this start, {plain} from principal components");
    Ok(())
}

#[test]
fn a_graph_that_is_none_is_refused() -> Result<()> {
    let graph = of_edges(3, [(0, 1)].into_iter())?;
    let wrong = Affinities { columns: Tensor::new(&[1u32, 3], &CPU)?, ..graph.clone() };
    let error = super::message(spectral_layout(&wrong, 2, Philox::new(82, 11)));
    assert!(error.contains("columns of its affinities must be below 3, got 3"), "{error}");
    let values = Tensor::new(&[f32::NAN, -1.], &CPU)?;
    let layout = spectral_layout(&Affinities { values, ..graph }, 2, Philox::new(82, 12))?;
    assert!(layout.flatten_all()?.to_vec1::<f32>()?.iter().all(|y| y.is_finite()));
    Ok(())
}
